"""Contents: all ways to write, read, truncate, reserve and map must agree."""

import errno
import mmap
import os
import resource
import signal
import subprocess
import tempfile
import time

from ..posix import PosixTest, in_child, posix_case
from ..syscalls import (FALLOC_COLLAPSE, FALLOC_INSERT, FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_ZERO,
                        fallocate)

# Sizes around each change of the representation: inline, fragments, blocks, segments.
SIZES = (0, 1, 100, 127, 128, 129, 255, 256, 500, 1000, 1023, 1024, 1025, 2048, 3000, 4095, 4096, 4097,
         12_288, 40_000, 65_535, 65_536, 65_537, 131_073, 1 << 20, (3 << 20) + 1)


def pattern(size, seed=0):
    """Bytes of which each part differs from its neighbours."""
    words = range(size // 8 + 1)
    return b"".join((word * 2654435761 + seed).to_bytes(8, "little")[:8] for word in words)[:size]


@posix_case("posix-contents", size=1 << 30)
class Contents(PosixTest):
    """read, write, truncate, append, copy_file_range, O_DIRECT."""

    def test_grows_and_shrinks_through_all_sizes(self):
        path = self.make("file")
        fd = self.open(path)
        data = pattern(SIZES[-1])
        for size in SIZES:
            os.pwrite(fd, data[os.fstat(fd).st_size:size], os.fstat(fd).st_size)
            self.assertEqual(os.fstat(fd).st_size, size)
            self.assertTrue(os.pread(fd, size + 1, 0) == data[:size], size)
            os.fsync(fd)
        for size in reversed(SIZES):
            os.ftruncate(fd, size)
            self.assertTrue(os.pread(fd, SIZES[-1], 0) == data[:size], size)
            os.ftruncate(fd, size + 5000)
            self.assertTrue(os.pread(fd, 6000, size) == bytes(5000), f"old data after {size}")
            os.ftruncate(fd, size)

    def test_all_sizes_survive_a_remount(self):
        for size in SIZES:
            self.make(f"{size}", pattern(size, size))
        self.trial.remount()
        for size in SIZES:
            self.assertTrue(self.read(self.at(f"{size}")) == pattern(size, size), size)

    def test_cut_and_grown_again_survives_a_remount(self):
        for size in SIZES[1:]:
            path = self.make(f"{size}", pattern(size, size))
            os.truncate(path, size // 2)
            os.truncate(path, size + 10_000)
        self.trial.remount()
        for size in SIZES[1:]:
            expected = pattern(size, size)[:size // 2] + bytes(size + 10_000 - size // 2)
            self.assertTrue(self.read(self.at(f"{size}")) == expected, size)

    def test_writes_behind_the_end_leave_zeroes(self):
        for gap in (1, 200, 1000, 5000, 70_000, 1 << 22):
            path = self.make(f"{gap}", b"begin")
            fd = self.open(path)
            os.pwrite(fd, b"end", 5 + gap)
            self.assertTrue(self.read(path) == b"begin" + bytes(gap) + b"end", gap)

    def test_o_trunc(self):
        path = self.make("file", pattern(100_000))
        for _ in range(3):
            fd = os.open(path, os.O_WRONLY | os.O_TRUNC)
            self.assertEqual(os.fstat(fd).st_size, 0)
            os.write(fd, b"short")
            os.close(fd)
            self.assertEqual(self.read(path), b"short")

    def test_append_by_several_processes_loses_nothing(self):
        path = self.make("log")
        children = []
        for worker in range(4):
            child = os.fork()
            if child == 0:
                fd = os.open(path, os.O_WRONLY | os.O_APPEND)
                for number in range(500):
                    os.write(fd, b"worker %d line %06d\n" % (worker, number))
                os._exit(0)
            children.append(child)
        for child in children:
            self.assertEqual(os.waitpid(child, 0)[1], 0)
        lines = self.read(path).splitlines()
        self.assertEqual(sorted(lines), sorted(b"worker %d line %06d" % (worker, number)
                                               for worker in range(4) for number in range(500)))

    def test_append_ignores_the_offset_of_pwrite(self):
        path = self.make("file", b"12345")
        fd = self.open(path, os.O_RDWR | os.O_APPEND)
        os.pwrite(fd, b"6", 0)
        self.assertEqual(self.read(path), b"123456")

    def test_direct_reads_see_buffered_writes_and_vice_versa(self):
        path = self.make("file", pattern(1 << 20))
        direct = self.open(path, os.O_RDWR | os.O_DIRECT)
        buffered = self.open(path)
        page = mmap.mmap(-1, 65536)
        os.preadv(direct, [page], 131072)
        self.assertTrue(page[:] == pattern(1 << 20)[131072:196608])
        page[:] = b"D" * 65536
        os.pwritev(direct, [page], 262144)
        self.assertTrue(os.pread(buffered, 65536, 262144) == b"D" * 65536)
        os.pwrite(buffered, b"B" * 4096, 262144)
        os.preadv(direct, [page], 262144)
        self.assertTrue(page[:4097] == b"B" * 4096 + b"D")
        os.pwritev(direct, [page], 1 << 20)
        self.assertEqual(os.fstat(buffered).st_size, (1 << 20) + 65536)

    def test_direct_at_the_end_of_small_files(self):
        for size in (1, 100, 1000, 5000):
            path = self.make(f"{size}", pattern(size))
            direct = self.open(path, os.O_RDWR | os.O_DIRECT)
            page = mmap.mmap(-1, 8192)
            self.assertEqual(os.preadv(direct, [page], 0), size)
            self.assertTrue(page[:size] == pattern(size))

    def test_copy_file_range(self):
        data = pattern(300_000)
        source, target = self.open(self.make("source", data)), self.open(self.make("target", b"t" * 1000))
        done = 0
        while done < 250_000:
            done += os.copy_file_range(source, target, 250_000 - done, 7 + done, 500 + done)
        self.assertTrue(self.read(self.at("target")) == b"t" * 500 + data[7:250_007])
        self.assertEqual(os.copy_file_range(source, target, 100, 300_000, 0), 0)
        within = os.copy_file_range(source, source, 1000, 0, 200_000)
        self.assertTrue(os.pread(source, within, 200_000) == data[:within])

    def test_copy_keeps_holes(self):
        data, size = pattern(100_000), (64 << 20) + 10
        source = self.open(self.make("source", data))
        target = self.open(self.make("target", pattern(1 << 20)))
        os.pwrite(source, data, 32 << 20)
        os.ftruncate(source, size)
        # The target is in the kernel's cache, which must not be read afterwards.
        self.assertEqual(len(self.read(self.at("target"))), 1 << 20)
        done = 0
        while copied := os.copy_file_range(source, target, 1 << 40, done, done):
            done += copied
        self.assertEqual((done, os.fstat(target).st_size), (size, size))
        self.assertTrue(self.read(self.at("source")) == self.read(self.at("target")))
        self.assertTrue(os.lseek(target, 200_000, os.SEEK_DATA) in range((32 << 20) - 4096, (32 << 20) + 1))
        os.fsync(target)
        self.assertLess(os.fstat(target).st_blocks * 512, 1 << 20)

    def test_copy_by_cp(self):
        """Files that begin or end with a hole, are empty, or come from another file system."""
        sizes = (0, 1, 5000, 70_000, 300_000)
        for size in sizes:
            fd = self.open(self.make(f"{size}", pattern(size)))
            os.ftruncate(fd, size + size // 2)
        expected = {size: self.read(self.at(f"{size}")) for size in sizes}
        with tempfile.TemporaryDirectory() as elsewhere:
            for number, how in enumerate(("auto", "always", "never")):
                for size in sizes:
                    within, back = self.at(f"{size}-{number}"), self.at(f"{size}-{number}-back")
                    outside = os.path.join(elsewhere, f"{size}-{number}")
                    for source, target in ((self.at(f"{size}"), within), (within, outside), (outside, back)):
                        subprocess.run(["cp", f"--sparse={how}", source, target], check=True)
                        self.assertTrue(self.read(target) == expected[size], (size, how, target))

    def test_file_size_limit(self):
        path = self.make("file")

        def write_beyond():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
            fd = os.open(path, os.O_RDWR)
            count = os.pwrite(fd, b"x" * 9000, 5000)
            for call in (lambda: os.pwrite(fd, b"x", 10_000), lambda: os.ftruncate(fd, 10_001),
                         lambda: os.posix_fallocate(fd, 0, 10_001)):
                try:
                    call()
                    return "allowed"
                except OSError as error:
                    if error.errno != errno.EFBIG:
                        return str(error)
            return count

        self.assertEqual(in_child(write_beyond), 5000)
        self.assertEqual(os.stat(path).st_size, 10_000)

    def test_bad_calls(self):
        fd = self.open(self.make("file", b"x"), os.O_RDONLY)
        self.refuses(errno.EBADF, os.write, fd, b"y")
        self.refuses(errno.EINVAL, os.ftruncate, fd, 0)
        self.refuses(errno.EINVAL, os.lseek, self.open(self.at("file")), -1, os.SEEK_SET)
        self.refuses(errno.EISDIR, os.open, self.base, os.O_WRONLY)
        self.refuses(errno.EISDIR, os.read, self.open(self.base, os.O_RDONLY), 1)
        if self.trial.volume.name != "xfs":  # which has files of 8 EiB
            self.refuses(errno.EFBIG, os.truncate, self.at("file"), (1 << 63) - 1)
            self.assertEqual(os.stat(self.at("file")).st_size, 1)

    def test_vectors_and_zero_lengths(self):
        fd = self.open(self.make("file"))
        self.assertEqual(os.pwritev(fd, [b"one", b"", b"two"], 1), 6)
        self.assertEqual(os.write(fd, b""), 0)
        self.assertEqual(self.read(self.at("file")), b"\0onetwo")
        self.assertEqual(os.pread(fd, 10, 100), b"")

    def test_a_file_with_data_has_blocks(self):
        """tar --sparse and other programs treat a file with a size and no blocks as one large hole, and do
        not read it. Contents that have no place yet, or are in the inode, must therefore count."""
        sizes = (1, 100, 500, 512, 513, 1000, 2000, 5000, 100_000)
        for size in sizes:
            self.make(f"{size}", b"x" * size)
        self.check_blocks(sizes, "just written")
        self.trial.volume.sync()
        self.check_blocks(sizes, "synced")
        self.trial.remount()
        self.check_blocks(sizes, "mounted again")
        os.truncate(self.make("hole"), 1 << 20)
        self.assertLess(os.stat(self.at("hole")).st_blocks, 32)

    def check_blocks(self, sizes, when):
        for size in sizes:
            blocks = os.stat(self.at(f"{size}")).st_blocks
            self.assertGreaterEqual(blocks, max(size // 512, 1), f"{size} bytes, {when}")

    def test_blocks_are_honest(self):
        path = self.make("file", os.urandom(1 << 20))
        fd = self.open(path)
        os.fsync(fd)
        self.assertGreaterEqual(os.fstat(fd).st_blocks * 512, 1 << 20)
        self.assertLess(os.fstat(fd).st_blocks * 512, 2 << 20)
        os.ftruncate(fd, 0)
        os.fsync(fd)
        self.assertLess(os.fstat(fd).st_blocks * 512, 65536)


@posix_case("posix-holes", size=1 << 30)
class Holes(PosixTest):
    """fallocate's modes, SEEK_HOLE, SEEK_DATA."""

    BLOCK = 65536

    def islands(self):
        """A file with data in blocks 0, 4 and 8, and a hole at the end."""
        path = self.at("file")
        fd = self.open(path, os.O_RDWR | os.O_CREAT)
        for block in (0, 4, 8):
            os.pwrite(fd, b"D" * self.BLOCK, block * self.BLOCK)
        os.ftruncate(fd, 12 * self.BLOCK)
        return fd

    def map_of(self, fd):
        """Pairs (start, end) of data, by SEEK_DATA and SEEK_HOLE."""
        found, offset, end = [], 0, os.fstat(fd).st_size
        while offset < end:
            try:
                start = os.lseek(fd, offset, os.SEEK_DATA)
            except OSError as error:
                self.assertEqual(error.errno, errno.ENXIO)
                break
            offset = os.lseek(fd, start, os.SEEK_HOLE)
            self.assertGreater(offset, start)
            found.append((start, offset))
        return found

    def check_map(self, fd, *blocks):
        data = os.pread(fd, 12 * self.BLOCK, 0)
        found = self.map_of(fd)
        inside = lambda offset: any(start <= offset < end for start, end in found)
        for block in range(12):
            middle = block * self.BLOCK + self.BLOCK // 2
            if data[middle]:
                self.assertTrue(inside(middle), f"data in block {block} is called a hole: {found}")
            self.assertEqual(block in blocks, inside(middle), f"block {block} of {found}")

    def test_seek_hole_and_data(self):
        fd = self.islands()
        self.check_map(fd, 0, 4, 8)
        os.fsync(fd)
        self.check_map(fd, 0, 4, 8)
        self.assertEqual(os.lseek(fd, 100, os.SEEK_DATA), 100)
        self.assertEqual(os.lseek(fd, 2 * self.BLOCK, os.SEEK_HOLE), 2 * self.BLOCK)
        self.refuses(errno.ENXIO, os.lseek, fd, 12 * self.BLOCK, os.SEEK_DATA)
        self.refuses(errno.ENXIO, os.lseek, fd, 12 * self.BLOCK, os.SEEK_HOLE)
        self.refuses(errno.ENXIO, os.lseek, fd, 10 * self.BLOCK, os.SEEK_DATA)

    def test_seek_in_small_files(self):
        for size in (1, 100, 1000, 5000):
            fd = self.open(self.make(f"{size}", b"x" * size))
            self.assertEqual(os.lseek(fd, 0, os.SEEK_DATA), 0)
            self.assertEqual(os.lseek(fd, 0, os.SEEK_HOLE), size)
            self.refuses(errno.ENXIO, os.lseek, fd, size, os.SEEK_DATA)

    def test_punch_hole(self):
        fd = self.islands()
        os.fsync(fd)
        before = os.fstat(fd).st_blocks
        fallocate(fd, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, 4 * self.BLOCK, self.BLOCK)
        os.fsync(fd)
        self.check_map(fd, 0, 8)
        self.assertLess(os.fstat(fd).st_blocks, before)
        # Parts of blocks become zeroes, their neighbours stay.
        fallocate(fd, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, 10, 5000)
        expected = b"D" * 10 + bytes(5000) + b"D" * (self.BLOCK - 5010)
        self.assertTrue(os.pread(fd, self.BLOCK, 0) == expected)
        fallocate(fd, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, 11 * self.BLOCK, 1 << 40)
        self.assertEqual(os.fstat(fd).st_size, 12 * self.BLOCK)

    def test_punch_hole_in_small_files(self):
        for size in (100, 1000, 5000):
            path = self.make(f"{size}", b"x" * size)
            fallocate(self.open(path), FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, 10, 50)
            self.assertTrue(self.read(path) == b"x" * 10 + bytes(50) + b"x" * (size - 60))

    def test_punched_stays_punched(self):
        fd = self.islands()
        os.fsync(fd)
        fallocate(fd, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, self.BLOCK // 2, 4 * self.BLOCK)
        expected = os.pread(fd, 13 * self.BLOCK, 0)
        os.close(fd)
        self.trial.remount()
        self.assertTrue(self.read(self.at("file")) == expected)

    def test_zero_range(self):
        fd = self.islands()
        fallocate(fd, FALLOC_ZERO, 100, self.BLOCK)
        self.assertTrue(os.pread(fd, 2 * self.BLOCK, 0) == b"D" * 100 + bytes(2 * self.BLOCK - 100))
        fallocate(fd, FALLOC_ZERO | FALLOC_KEEP_SIZE, 11 * self.BLOCK, 4 * self.BLOCK)
        self.assertEqual(os.fstat(fd).st_size, 12 * self.BLOCK)
        fallocate(fd, FALLOC_ZERO, 11 * self.BLOCK, 4 * self.BLOCK)
        self.assertEqual(os.fstat(fd).st_size, 15 * self.BLOCK)

    def test_reserve(self):
        fd = self.open(self.make("file", b"kept"))
        os.posix_fallocate(fd, 0, 1 << 20)
        self.assertEqual(os.fstat(fd).st_size, 1 << 20)
        self.assertTrue(os.pread(fd, 1 << 20, 0) == b"kept" + bytes((1 << 20) - 4))
        os.fsync(fd)
        self.assertGreaterEqual(os.fstat(fd).st_blocks * 512, 1 << 20)

    def test_reserve_beyond_the_end(self):
        fd = self.open(self.make("file", b"kept"))
        fallocate(fd, FALLOC_KEEP_SIZE, 0, 1 << 20)
        self.assertEqual(os.fstat(fd).st_size, 4)
        self.assertEqual(self.read(self.at("file")), b"kept")
        os.fsync(fd)
        self.assertGreaterEqual(os.fstat(fd).st_blocks * 512, 1 << 20)
        os.pwrite(fd, b"end", 500_000)
        self.assertTrue(self.read(self.at("file")) == b"kept" + bytes(499_996) + b"end")

    def test_shifting_modes_work_or_are_refused(self):
        """FUSE does not support these; a file system that does must do it correctly."""
        fd = self.islands()
        for mode, size in ((FALLOC_COLLAPSE, 11), (FALLOC_INSERT, 13)):
            try:
                fallocate(fd, mode, self.BLOCK, self.BLOCK)
            except OSError as error:
                self.assertEqual(error.errno, errno.EOPNOTSUPP)
                continue
            self.assertIn(os.fstat(fd).st_size, (size * self.BLOCK, 12 * self.BLOCK))
            self.assertEqual(os.pread(fd, 1, 0), b"D")

    def test_bad_ranges(self):
        fd = self.islands()
        self.refuses(errno.EINVAL, fallocate, fd, 0, -1, 10)
        self.refuses(errno.EINVAL, fallocate, fd, 0, 0, 0)
        self.refuses(errno.EFBIG, fallocate, fd, 0, (1 << 62), (1 << 62) - 1 + (1 << 61))
        self.refuses(errno.EOPNOTSUPP, fallocate, fd, FALLOC_PUNCH_HOLE, 0, 10)
        reader = self.open(self.at("file"), os.O_RDONLY)
        self.refuses(errno.EBADF, fallocate, reader, 0, 0, 10)


@posix_case("posix-mmap", size=1 << 30)
class Mapped(PosixTest):
    """Shared and private mappings, together with read and write."""

    def test_shared_write_is_seen_by_read(self):
        fd = self.open(self.make("file", bytes(100_000)))
        with mmap.mmap(fd, 100_000) as memory:
            memory[50_000:50_005] = b"hello"
            self.assertEqual(os.pread(fd, 5, 50_000), b"hello")
            os.pwrite(fd, b"world", 60_000)
            self.assertEqual(memory[60_000:60_005], b"world")

    def test_writes_of_the_maker_are_seen_by_mappings_and_readers(self):
        path = self.at("file")
        made = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
        os.write(made, pattern(100_000))
        other = os.open(path, os.O_RDWR)
        with mmap.mmap(other, 100_000) as mapping:
            self.assertTrue(mapping[:] == pattern(100_000))
            os.pwrite(made, b"new", 5000)
            self.assertEqual((mapping[5000:5003], os.pread(other, 3, 5000)), (b"new", b"new"))
            mapping[9000:9005] = b"other"
            os.pwrite(made, b"next", 9005)
            self.assertEqual(mapping[9000:9009], b"othernext")
            mapping.flush()
        os.write(made, b"end")
        self.assertEqual(os.pread(other, 10, 100_000), b"end")
        os.close(made)
        os.close(other)

    def test_flushed_mapping_survives_a_remount(self):
        for size in SIZES[1:]:
            path = self.make(f"{size}", bytes(size))
            fd = os.open(path, os.O_RDWR)
            with mmap.mmap(fd, size) as memory:
                memory[:] = pattern(size, 3)
                if size % 2:
                    memory.flush()
            os.close(fd)
        self.trial.remount()
        for size in SIZES[1:]:
            self.assertTrue(self.read(self.at(f"{size}")) == pattern(size, 3), size)

    def test_mapping_lives_longer_than_descriptor_and_name(self):
        path = self.make("file", bytes(8192))
        fd = os.open(path, os.O_RDWR)
        memory = mmap.mmap(fd, 8192)
        os.close(fd)
        os.unlink(path)
        memory[5000:5003] = b"abc"
        memory.flush()
        self.assertEqual(memory[5000:5003], b"abc")
        memory.close()

    def test_bytes_behind_the_end_do_not_reach_the_file(self):
        path = self.make("file", b"x" * 100)
        fd = self.open(path)
        with mmap.mmap(fd, 100) as memory:
            memory[:] = b"y" * 100
        with mmap.mmap(fd, 0) as whole:
            self.assertEqual(len(whole), 100)
        os.ftruncate(fd, 4096)
        self.assertTrue(self.read(path) == b"y" * 100 + bytes(3996))

    def test_truncated_mapping_faults(self):
        path = self.make("file", b"x" * 20_000)

        def touch_behind_the_end():
            child = os.fork()
            if child == 0:
                signal.signal(signal.SIGBUS, signal.SIG_DFL)
                fd = os.open(path, os.O_RDWR)
                memory = mmap.mmap(fd, 20_000)
                os.ftruncate(fd, 100)
                memory[16_384]
                os._exit(0)
            return os.WTERMSIG(os.waitpid(child, 0)[1])

        self.assertEqual(in_child(touch_behind_the_end), signal.SIGBUS)

    def test_mapping_into_a_hole(self):
        path = self.at("file")
        fd = self.open(path, os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, 1 << 20)
        with mmap.mmap(fd, 1 << 20) as memory:
            self.assertEqual(memory[500_000], 0)
            memory[500_000] = 7
            memory.flush()
        expected = bytearray(1 << 20)
        expected[500_000] = 7
        os.close(fd)
        self.trial.remount()
        self.assertTrue(self.read(path) == bytes(expected))

    def test_private_mapping_keeps_to_itself(self):
        path = self.make("file", b"original")
        fd = self.open(path)
        with mmap.mmap(fd, 8, flags=mmap.MAP_PRIVATE) as memory:
            memory[:] = b"changed!"
            self.assertEqual(self.read(path), b"original")

    def test_mapped_write_moves_the_time(self):
        path = self.make("file", bytes(4096))
        os.utime(path, ns=(10**18, 10**18))
        fd = self.open(path)
        with mmap.mmap(fd, 4096) as memory:
            memory[0] = 1
            memory.flush()
        os.fsync(fd)
        self.assertGreater(os.stat(path).st_mtime, time.time() - 100)

    def test_executing_and_busy_text(self):
        with open("/bin/true", "rb") as source:
            path = self.make("program", source.read(), 0o755)
        self.assertEqual(os.spawnl(os.P_WAIT, path, "program"), 0)
        os.chmod(path, 0o644)
        self.assertEqual(os.spawnl(os.P_WAIT, path, "program"), 127)
