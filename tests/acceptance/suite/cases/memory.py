"""The memory that users can make a server use: bounded by the options of its mount.

docs/MEMORY.md has the formula. Each case repeats an operation so often that the bound would be far exceeded
if the server kept memory for each, and checks the kernel's figure for the process.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import socket
import threading

from .. import trees
from ..case import GIB, MIB, case
from ..volume import cffs_binary

CACHE_MIB, DIRTY_MIB = 32, 16
OPTIONS = f"cache={CACHE_MIB}M,dirty={DIRTY_MIB}M"
# The program itself, its threads, and a buffer for each concurrent request: docs/MEMORY.md.
FIXED_MIB = 48
BOUND = (CACHE_MIB + CACHE_MIB // 4 * 9 // 8 + 3 * DIRTY_MIB + FIXED_MIB) * MIB

ATTRIBUTES = 3
ATTRIBUTE_BYTES = 60_000


def server_pid(t):
    return json.loads(t.output(cffs_binary(), "info", "--json", t.dir))["server"]["pid"]


@contextlib.contextmanager
def bounded(t, what, bound=BOUND):
    """Fails if the server uses more memory than the bound meanwhile."""
    pid = server_pid(t)
    with open(f"/proc/{pid}/clear_refs", "w", encoding="ascii") as clear:
        clear.write("5")  # resets the peak
    yield
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) << 10
    kinds = json.loads(t.output(cffs_binary(), "stats", "--json", t.dir))["memory"]
    print(f"note: {what}: {peak / MIB:.0f} of {bound / MIB:.0f} MiB")
    for kind, use in kinds.items():
        if isinstance(use, dict):
            limit = use.get("limit_bytes", bound)
            assert use["bytes"] <= limit * 9 / 8 + MIB, f"{what}: {kind} take {use['bytes']} of {limit}"
    assert peak <= bound, f"{what}: {peak} bytes resident, {bound} are the bound; {kinds}"


def set_attributes(file, number):
    for index in range(ATTRIBUTES):
        os.setxattr(file, f"user.attribute-{index}", bytes([(number + index) % 251]) * ATTRIBUTE_BYTES)


def check_attributes(file, number):
    for index in range(ATTRIBUTES):
        value = os.getxattr(file, f"user.attribute-{index}")
        assert value == bytes([(number + index) % 251]) * ATTRIBUTE_BYTES, (file, index)


@case("memory-attributes", size=(1 * GIB, 4 * GIB), only_on="cffs")
def attributes(t):
    """Extended attributes of many files, 180 KB each, are set, listed and read: they are dropped from memory
    like blocks of the cache, and new ones are written."""
    count = t.pick(2_000, 8_000)
    names = [t.path(f"file-{number}") for number in range(count)]
    t.remount(OPTIONS)
    with bounded(t, f"{count} files get attributes"):
        for number, name in enumerate(names):
            trees.touch(name)
            set_attributes(name, number)
    t.remount(OPTIONS)
    with bounded(t, "ls -l of them"):
        t.shell(f"ls -l {t.dir} | wc -l")
    with bounded(t, "their attributes are read"):
        for number, name in enumerate(names):
            check_attributes(name, number)
    with bounded(t, "their modes change"):
        for name in names:
            os.chmod(name, 0o600)


@case("memory-unlinked", size=(1 * GIB, 4 * GIB), only_on="cffs")
def unlinked(t):
    """Open files that have lost their name, or never had one, each with 180 KB of attributes and some
    contents."""
    count = t.pick(1_500, 6_000)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count + 100, max(count + 100, 4096)))
    t.remount(OPTIONS)
    files = []
    with bounded(t, f"{count} open files without a name"):
        for number in range(count):
            if number % 2:
                fd = os.open(t.dir, os.O_TMPFILE | os.O_RDWR, 0o600)
            else:
                fd = os.open(t.path("gone"), os.O_CREAT | os.O_RDWR, 0o600)
            set_attributes(fd, number)
            os.write(fd, bytes([number % 251]) * 10_000)
            if not number % 2:
                os.unlink(t.path("gone"))
            files.append(fd)
        for number, fd in enumerate(files):
            check_attributes(fd, number)
            assert os.pread(fd, 20_000, 0) == bytes([number % 251]) * 10_000
    for fd in files:
        os.close(fd)


@case("memory-names", size=(1 * GIB, 4 * GIB), inodes=(70_000, 250_000), only_on="cffs", timeout=240)
def names(t):
    """Very many names of 250 bytes in one directory: made, looked up, not found, renamed and removed."""
    count = t.pick(20_000, 200_000)
    t.remount(OPTIONS)
    root = t.subdir("names")
    with bounded(t, f"{count} long names"):
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        for number in range(count):
            os.close(os.open(f"{number:0>250}", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=fd))
        for number in range(count):
            os.stat(f"{number:0>250}", dir_fd=fd)
            assert not os.path.exists(f"/proc/self/fd/{fd}/{number:a>250}")
        assert len(os.listdir(root)) == count
        for number in range(0, count, 2):
            os.rename(f"{number:0>250}", f"{number:b>250}", src_dir_fd=fd, dst_dir_fd=fd)
        for number in range(1, count, 2):
            os.unlink(f"{number:0>250}", dir_fd=fd)
        os.close(fd)


@case("memory-open-files", size=1 * GIB, inodes=(20_000, 100_000), only_on="cffs")
def open_files(t):
    """Many files are open at once, and locked, each with a few pages of contents."""
    count = t.pick(5_000, 50_000)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count + 100, max(count + 100, 4096)))
    t.remount(OPTIONS)
    with bounded(t, f"{count} open files with locks"):
        files = []
        for number in range(count):
            fd = os.open(t.path(f"file-{number}"), os.O_CREAT | os.O_RDWR, 0o600)
            os.write(fd, b"c" * 9_000)
            fcntl.lockf(fd, fcntl.LOCK_EX)
            fcntl.flock(fd, fcntl.LOCK_SH)
            files.append(fd)
        for fd in files:
            assert len(os.pread(fd, 9_000, 0)) == 9_000
            os.close(fd)


@case("memory-deep", size=1 * GIB, inodes=(10_000, 60_000), only_on="cffs")
def deep(t):
    """Very deeply nested directories, all of them open."""
    depth = t.pick(2_000, 20_000)
    resource.setrlimit(resource.RLIMIT_NOFILE, (depth + 100, max(depth + 100, 4096)))
    t.remount(OPTIONS)
    with bounded(t, f"{depth} directories deep"):
        held = [os.open(t.dir, os.O_RDONLY | os.O_DIRECTORY)]
        for _ in range(depth):
            os.mkdir("d" * 200, dir_fd=held[-1])
            held.append(os.open("d" * 200, os.O_RDONLY | os.O_DIRECTORY, dir_fd=held[-1]))
        for fd in reversed(held):
            os.listdir(fd)
            os.close(fd)


@case("memory-pieces", size=(4 * GIB, 24 * GIB), only_on="cffs", timeout=240)
def pieces(t):
    """Files in very many pieces: every second block is a hole. They are read in random order, and their modes
    change, so that a simple cache would have all of them in memory at once."""
    count, blocks = t.pick((40, 6_000), (100, 20_000))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]

    def allocate(fd, mode, offset, length):
        if libc.fallocate(fd, mode, offset, length):
            raise OSError(ctypes.get_errno(), "fallocate")

    t.remount(OPTIONS)
    with bounded(t, f"{count} files in {blocks} pieces"):
        for number in range(count):
            fd = os.open(t.path(f"file-{number}"), os.O_CREAT | os.O_RDWR, 0o600)
            allocate(fd, 0, 0, blocks * 8192)
            for block in range(blocks):
                allocate(fd, 3, block * 8192, 4096)
            os.close(fd)
    t.remount(OPTIONS)
    with bounded(t, "they are read"):
        for number in range(count):
            with open(t.path(f"file-{number}"), "rb") as file:
                file.seek(number * 8192)
                assert file.read(8192) == bytes(8192)
            os.chmod(t.path(f"file-{number}"), 0o644)


@case("memory-requests", size=4 * GIB, only_on="cffs")
def requests(t):
    """Very many requests at once, and readers that stop reading: directories half read, and a file sent
    to sockets that are never read."""
    readers, threads = t.pick((500, 64), (3_000, 256))
    resource.setrlimit(resource.RLIMIT_NOFILE, (4 * readers + 200, max(4 * readers + 200, 4096)))
    t.remount(OPTIONS)
    root = t.subdir("listed")
    for number in range(2_000):
        trees.touch(os.path.join(root, f"{number:0>100}"))
    large = t.path("large")
    with open(large, "wb") as file:
        for _ in range(200):
            file.write(os.urandom(MIB))
    t.remount(OPTIONS)
    with bounded(t, f"{readers} readers that stop, {threads} threads that read and write"):
        stopped = []
        for _ in range(readers):
            listing = os.scandir(root)
            next(listing)
            one, other = socket.socketpair()
            one.setblocking(False)
            file = open(large, "rb")
            with contextlib.suppress(BlockingIOError):
                while os.sendfile(one.fileno(), file.fileno(), None, MIB):
                    pass
            stopped.append((listing, one, other, file))

        def work(number):
            path = t.path(f"w-{number}")
            with open(large, "rb", buffering=0) as file, open(path, "wb", buffering=0) as out:
                for step in range(20):
                    file.seek((number * 37 + step * 11) % 199 * MIB)
                    out.write(file.read(MIB))
                    os.fsync(out.fileno())
            os.unlink(path)

        workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        for listing, *rest in stopped:
            listing.close()
            for each in rest:
                each.close()
