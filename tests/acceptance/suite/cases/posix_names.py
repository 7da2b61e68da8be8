"""Names: links, renames of every kind, directories that change while they are read, handles."""

import errno
import os
import stat

from ..posix import GROUP, OTHER, USER, PosixTest, in_child, posix_case
from ..syscalls import (RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT, Directory, Getdents32,
                        linkat_fd, name_to_handle, open_by_handle, renameat2)


@posix_case("posix-rename")
class Rename(PosixTest):
    """rename and renameat2."""

    def test_replaces_atomically_and_keeps_the_inode(self):
        source, target = self.make("source", b"new"), self.make("target", b"old")
        inode = os.stat(source).st_ino
        fd = self.open(target)
        os.rename(source, target)
        self.assertEqual((os.stat(target).st_ino, self.read(target)), (inode, b"new"))
        self.assertEqual(os.pread(fd, 10, 0), b"old")
        self.assertEqual(os.fstat(fd).st_nlink, 0)
        self.refuses(errno.ENOENT, os.stat, source)

    def test_noreplace(self):
        source, target = self.make("source", b"1"), self.make("target", b"2")
        self.refuses(errno.EEXIST, renameat2, source, target, RENAME_NOREPLACE)
        renameat2(source, self.at("free"), RENAME_NOREPLACE)
        self.assertEqual(self.read(self.at("free")), b"1")

    def test_exchange_files(self):
        first, second = self.make("first", b"1"), self.make("second", b"22")
        renameat2(first, second, RENAME_EXCHANGE)
        self.assertEqual((self.read(first), self.read(second)), (b"22", b"1"))
        self.refuses(errno.ENOENT, renameat2, first, self.at("absent"), RENAME_EXCHANGE)

    def test_exchange_a_file_with_a_directory_of_another_parent(self):
        os.makedirs(self.at("a", "directory", "inner"))
        os.mkdir(self.at("b"))
        self.make("b/file", b"f")
        renameat2(self.at("a", "directory"), self.at("b", "file"), RENAME_EXCHANGE)
        self.assertEqual(self.read(self.at("a", "directory")), b"f")
        self.assertEqual(os.listdir(self.at("b", "file")), ["inner"])
        self.assertEqual((os.stat(self.at("a")).st_nlink, os.stat(self.at("b")).st_nlink), (2, 3))
        self.assertEqual(os.stat(self.at("b", "file", "..")).st_ino, os.stat(self.at("b")).st_ino)

    def test_exchange_refuses_a_loop(self):
        os.makedirs(self.at("a", "b"))
        self.refuses(errno.EINVAL, renameat2, self.at("a"), self.at("a", "b"), RENAME_EXCHANGE)

    def test_whiteout(self):
        source = self.make("source", b"data")
        renameat2(source, self.at("target"), RENAME_WHITEOUT)
        status = os.lstat(source)
        self.assertTrue(stat.S_ISCHR(status.st_mode) and status.st_rdev == 0)
        self.assertEqual(self.read(self.at("target")), b"data")

    def test_a_whiteout_belongs_to_its_maker(self):
        for mode, group in ((0o1777, GROUP), (0o3777, GROUP + 1)):
            parent = self.at(f"{mode:o}")
            os.mkdir(parent)
            os.chown(parent, 0, GROUP + 1)
            os.chmod(parent, mode)
            source = f"{parent}/source"

            def leave(source=source, parent=parent):
                os.close(os.open(source, os.O_CREAT | os.O_WRONLY))
                renameat2(source, f"{parent}/target", RENAME_WHITEOUT)

            in_child(leave, USER)
            status = os.lstat(source)
            self.assertEqual((status.st_uid, status.st_gid), (USER, group), f"{mode:o}")
            in_child(lambda source=source: os.unlink(source), USER)

    def test_directory_moves_with_its_parent_and_counts(self):
        os.makedirs(self.at("from", "directory", "sub"))
        os.mkdir(self.at("to"))
        os.rename(self.at("from", "directory"), self.at("to", "directory"))
        self.assertEqual((os.stat(self.at("from")).st_nlink, os.stat(self.at("to")).st_nlink), (2, 3))
        self.assertEqual(os.stat(self.at("to", "directory", "..")).st_ino, os.stat(self.at("to")).st_ino)

    def test_directory_over_directory(self):
        os.mkdir(self.at("source"))
        os.makedirs(self.at("full", "entry"))
        os.mkdir(self.at("empty"))
        self.assertIn(self.errno_of(os.rename, self.at("source"), self.at("full")),
                      (errno.ENOTEMPTY, errno.EEXIST))
        os.rename(self.at("source"), self.at("empty"))
        self.assertEqual(sorted(os.listdir(self.base)), ["empty", "full"])
        file = self.make("file")
        self.refuses(errno.ENOTDIR, os.rename, self.at("empty"), file)
        self.refuses(errno.EISDIR, os.rename, file, self.at("empty"))

    def errno_of(self, function, *arguments):
        with self.assertRaises(OSError) as raised:
            function(*arguments)
        return raised.exception.errno

    def test_into_itself(self):
        os.makedirs(self.at("a", "b", "c"))
        self.refuses(errno.EINVAL, os.rename, self.at("a"), self.at("a", "b", "c", "d"))
        self.refuses(errno.EINVAL, os.rename, self.at("a"), self.at("a", "d"))

    def test_two_names_of_one_file_stay(self):
        first = self.make("first")
        os.link(first, self.at("second"))
        os.rename(first, self.at("second"))
        self.assertEqual(sorted(os.listdir(self.base)), ["first", "second"])

    def test_sticky_directory_protects_names(self):
        os.mkdir(self.at("sticky"))
        os.chmod(self.at("sticky"), 0o1777)
        mine = self.make("sticky/file")
        os.chown(mine, USER, GROUP)
        self.refuses(errno.EPERM, in_child, lambda: os.unlink(mine), OTHER)
        self.refuses(errno.EPERM, in_child, lambda: os.rename(mine, mine + "2"), OTHER)
        in_child(lambda: os.rename(mine, mine + "2"), USER)
        in_child(lambda: os.unlink(mine + "2"), USER)

    def test_survives_remount(self):
        os.makedirs(self.at("one", "two"))
        self.make("one/two/file", b"kept")
        inode = os.stat(self.at("one", "two", "file")).st_ino
        os.rename(self.at("one", "two"), self.at("moved"))
        os.rename(self.at("moved", "file"), self.at("one", "file"))
        self.trial.remount()
        self.assertEqual(os.stat(self.at("one", "file")).st_ino, inode)
        self.assertEqual(self.read(self.at("one", "file")), b"kept")
        self.assertEqual(os.listdir(self.at("moved")), [])


@posix_case("posix-links")
class Links(PosixTest):
    """Files with no name, with one name, and with many names."""

    def test_unlinked_but_open(self):
        path = self.make("file", b"still here")
        fd = self.open(path)
        os.unlink(path)
        self.assertEqual(os.listdir(self.base), [])
        self.assertEqual(os.fstat(fd).st_nlink, 0)
        os.pwrite(fd, b"x" * 300_000, 100_000)
        os.ftruncate(fd, 350_000)
        self.assertEqual(os.pread(fd, 10, 0), b"still here")
        self.assertEqual(os.fstat(fd).st_size, 350_000)
        os.fchmod(fd, 0o600)
        os.setxattr(fd, "user.x", b"y")
        self.assertEqual(os.getxattr(fd, "user.x"), b"y")
        again = self.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
        self.assertEqual(os.pread(again, 1, 200_000), b"x")

    def test_unlinked_space_comes_back_with_the_last_close(self):
        path = self.make("file")
        fd = self.open(path)
        os.write(fd, os.urandom(32 << 20))
        os.fsync(fd)
        os.unlink(path)
        self.trial.volume.sync()
        full = os.statvfs(self.base).f_bfree
        os.close(fd)
        self.trial.volume.sync()
        status = os.statvfs(self.base)
        self.assertGreater((status.f_bfree - full) * status.f_frsize, 30 << 20)

    def test_removed_working_directory(self):
        os.mkdir(self.at("gone"))
        fd = self.open(self.at("gone"), os.O_RDONLY | os.O_DIRECTORY)
        os.rmdir(self.at("gone"))
        self.assertEqual(os.listdir(fd), [])
        self.refuses(errno.ENOENT, os.open, "new", os.O_CREAT | os.O_WRONLY, dir_fd=fd)
        self.refuses(errno.ENOENT, os.mkdir, "new", dir_fd=fd)

    def test_tmpfile_becomes_a_file(self):
        fd = self.open(self.base, os.O_TMPFILE | os.O_RDWR)
        os.write(fd, b"nameless")
        self.assertEqual((os.fstat(fd).st_nlink, os.listdir(self.base)), (0, []))
        linkat_fd(fd, self.at("named"))
        self.assertEqual(os.fstat(fd).st_nlink, 1)
        os.close(fd)
        self.trial.remount()
        self.assertEqual(self.read(self.at("named")), b"nameless")

    def test_tmpfile_excl_stays_nameless(self):
        fd = self.open(self.base, os.O_TMPFILE | os.O_RDWR | os.O_EXCL)
        self.refuses(errno.ENOENT, linkat_fd, fd, self.at("named"))

    def test_link_counts_and_times(self):
        path = self.make("file", b"1")
        before = os.stat(path)
        os.link(path, self.at("second"))
        after = os.stat(path)
        self.assertEqual((after.st_nlink, after.st_mtime_ns), (2, before.st_mtime_ns))
        self.assertGreaterEqual(after.st_ctime_ns, before.st_ctime_ns)
        with open(self.at("second"), "ab") as file:
            file.write(b"2")
        self.assertEqual(self.read(path), b"12")
        os.unlink(path)
        self.assertEqual(os.stat(self.at("second")).st_nlink, 1)
        self.assertEqual(os.stat(self.at("second")).st_ino, before.st_ino)

    def test_link_refusals(self):
        os.mkdir(self.at("directory"))
        self.refuses(errno.EPERM, os.link, self.at("directory"), self.at("second"))
        path = self.make("file")
        self.refuses(errno.EEXIST, os.link, path, self.at("directory"))
        self.refuses(errno.EXDEV, os.link, path, self.trial.outside("elsewhere"))

    def test_special_files(self):
        for kind, device in ((stat.S_IFCHR, os.makedev(1, 5)), (stat.S_IFBLK, self.trial.volume.device_max),
                             (stat.S_IFIFO, 0), (stat.S_IFSOCK, 0)):
            path = self.at(f"{kind:o}")
            os.mknod(path, kind | 0o640, device)
            status = os.lstat(path)
            self.assertEqual((status.st_mode, status.st_rdev), (kind | 0o640, device))
        with open(self.at(f"{stat.S_IFCHR:o}"), "rb") as zero:
            self.assertEqual(zero.read(3), bytes(3))

    def test_fifo_carries_data(self):
        os.mkfifo(self.at("fifo"))
        reader = self.open(self.at("fifo"), os.O_RDONLY | os.O_NONBLOCK)
        writer = self.open(self.at("fifo"), os.O_WRONLY)
        os.write(writer, b"through")
        self.assertEqual(os.read(reader, 20), b"through")

    def test_symlinks(self):
        for length in (1, 59, 60, 127, 128, 1000, 1023, 4000, 4095):
            if length > self.trial.volume.symlink_bytes_max:
                continue
            os.symlink("t" * length, self.at(f"{length}"))
            self.assertEqual(os.readlink(self.at(f"{length}")), "t" * length)
            self.assertEqual(os.lstat(self.at(f"{length}")).st_size, length)
        os.symlink("loop", self.at("loop"))
        self.refuses(errno.ELOOP, os.stat, self.at("loop"))
        self.refuses(errno.ELOOP, os.open, self.at("1"), os.O_RDONLY | os.O_NOFOLLOW)


@posix_case("posix-readdir", inodes=50_000)
class Readdir(PosixTest):
    """Reading a directory that changes meanwhile."""

    def fill(self, count):
        for number in range(count):
            self.make(f"entry{number:05}")
        return {b"entry%05d" % number for number in range(count)}

    def test_each_entry_once_while_others_come_and_go(self):
        names = self.fill(3000)
        directory = Directory(self.base)
        self.addCleanup(directory.close)
        seen = [directory.next() for _ in range(1000)]
        for number in range(3000):
            if number % 3 == 0:
                os.unlink(self.at(f"entry{number:05}"))
            if number % 5 == 0:
                self.make(f"late{number}")
        seen += directory.rest()
        stable = {name for name in names if int(name[5:]) % 3}
        self.assertEqual(len(seen), len(set(seen)), "an entry was returned twice")
        self.assertLessEqual(stable, set(seen), "an entry that existed all the time was left out")

    def test_rename_within_does_not_hide_others(self):
        names = self.fill(1000)
        directory = Directory(self.base)
        self.addCleanup(directory.close)
        seen = [directory.next() for _ in range(500)]
        for number in range(0, 1000, 10):
            os.rename(self.at(f"entry{number:05}"), self.at(f"renamed{number:05}"))
        seen += directory.rest()
        self.assertLessEqual({name for name in names if int(name[5:]) % 10}, set(seen))

    def test_each_file_once_while_all_are_renamed(self):
        self.fill(10)
        directory = Directory(self.base)
        self.addCleanup(directory.close)
        seen = []
        while (name := directory.next()) is not None and len(seen) < 1000:
            seen.append(name)
            for number in range(10):
                os.rename(self.at(f"entry{number:05}"), self.at(f"other{number:05}"))
                os.rename(self.at(f"other{number:05}"), self.at(f"entry{number:05}"))
        files = [name for name in seen if name not in (b".", b"..")]
        self.assertEqual(len(files), 10, "files were listed again under their new names")

    def test_telldir_and_seekdir(self):
        self.fill(2000)
        directory = Directory(self.base)
        self.addCleanup(directory.close)
        places = []
        while (place := directory.tell(), name := directory.next())[1] is not None:
            places.append((place, name))
        for place, name in places[::37] + places[::-101]:
            directory.seek(place)
            self.assertEqual(directory.next(), name)
        for number in range(0, 2000, 2):
            os.unlink(self.at(f"entry{number:05}"))
        for place, name in places[::41]:
            if name[:5] == b"entry" and int(name[5:]) % 2:
                directory.seek(place)
                self.assertEqual(directory.next(), name, "a position changed because of a removal")

    def test_any_position_below_the_last_leads_to_an_entry(self):
        self.fill(400)
        directory = Directory(self.base)
        self.addCleanup(directory.close)
        places = []
        while (place := directory.tell(), directory.next())[1] is not None:
            places.append(place)
        largest = max(places)
        for place in range(0, largest, max(1, largest // 1000)):
            directory.seek(place)
            self.assertIsNotNone(directory.next(), f"end of directory at {place} of {largest}")

    def test_a_program_of_32_bits_sees_all_entries(self):
        # It accepts numbers below 2^32 and positions below 2^31; for others its libc returns EOVERFLOW.
        if not Getdents32.is_possible():
            self.skipTest("no programs of 32 bits")
        names = self.fill(3000)
        for number in range(0, 3000, 3):
            os.unlink(self.at(f"entry{number:05}"))
        getdents, fd = Getdents32(), self.open(self.base, os.O_RDONLY | os.O_DIRECTORY)
        seen = []
        while entries := getdents.read(fd):
            for number, offset, name in entries:
                self.assertLess(number, 1 << 32, name)
                self.assertLess(offset, 1 << 31, name)
                seen.append(name)
            # Like its libc when the buffer has no space for the next entry.
            os.lseek(fd, entries[-1][1], os.SEEK_SET)
        expected = [name for name in names if int(name[5:]) % 3] + [b".", b".."]
        self.assertEqual(sorted(seen), sorted(expected))

    def test_rewinddir_shows_new_entries(self):
        directory = Directory(self.base)
        self.addCleanup(directory.close)
        self.assertEqual(directory.rest(), [])
        self.make("new")
        directory.rewind()
        self.assertEqual(directory.rest(), [b"new"])

    def test_remove_while_reading(self):
        self.fill(5000)
        with os.scandir(self.base) as entries:
            for entry in entries:
                os.unlink(entry.path)
        self.assertEqual(os.listdir(self.base), [])
        os.rmdir(self.base)

    def test_types_and_numbers(self):
        self.make("file")
        os.mkdir(self.at("directory"))
        os.symlink("x", self.at("symlink"))
        os.mkfifo(self.at("fifo"))
        os.link(self.at("file"), self.at("second"))
        with os.scandir(self.base) as entries:
            for entry in entries:
                status = os.lstat(entry.path)
                self.assertEqual(entry.inode(), status.st_ino, entry.name)
                self.assertEqual(entry.is_dir(follow_symlinks=False), stat.S_ISDIR(status.st_mode))
                self.assertEqual(entry.is_symlink(), stat.S_ISLNK(status.st_mode))
                self.assertEqual(entry.is_file(follow_symlinks=False), stat.S_ISREG(status.st_mode))


@posix_case("posix-handles")
class Handles(PosixTest):
    """name_to_handle_at and open_by_handle_at, which file servers depend on."""

    def mount_fd(self):
        return self.open(self.trial.dir, os.O_RDONLY | os.O_DIRECTORY)

    def test_opens_the_file_of_its_handle(self):
        path = self.make("file", b"by handle")
        handle = name_to_handle(path)
        os.mkdir(self.at("elsewhere"))
        os.rename(path, self.at("elsewhere", "other name"))
        fd = open_by_handle(self.mount_fd(), handle, os.O_RDONLY)
        self.addCleanup(os.close, fd)
        self.assertEqual(os.read(fd, 20), b"by handle")

    def test_directory(self):
        os.makedirs(self.at("one", "two"))
        self.make("one/two/file")
        handle = name_to_handle(self.at("one", "two"))
        fd = open_by_handle(self.mount_fd(), handle, os.O_RDONLY | os.O_DIRECTORY)
        self.addCleanup(os.close, fd)
        self.assertEqual(os.listdir(fd), ["file"])
        parent = os.open("..", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        self.addCleanup(os.close, parent)
        self.assertEqual(os.fstat(parent).st_ino, os.stat(self.at("one")).st_ino)

    def test_survives_a_remount(self):
        os.mkdir(self.at("directory"))
        handles = {path: name_to_handle(path) for path in
                   (self.make("file", b"x"), self.make("directory/file", b"y"), self.at("directory"))}
        self.trial.remount()
        mount_fd = os.open(self.trial.dir, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for path, handle in handles.items():
                fd = open_by_handle(mount_fd, handle, os.O_RDONLY)
                self.assertEqual(os.fstat(fd).st_ino, os.stat(path).st_ino)
                os.close(fd)
        finally:
            os.close(mount_fd)

    def test_of_a_removed_file_is_stale(self):
        path = self.make("file")
        handle = name_to_handle(path)
        os.unlink(path)
        for number in range(20):
            self.make(f"takes the place {number}")
        self.refuses(errno.ESTALE, open_by_handle, self.mount_fd(), handle, os.O_RDONLY)

    def test_of_removed_files_are_stale_at_once(self):
        """The kernel releases an inode some time after its last name was removed."""
        mount_fd = self.mount_fd()
        for number in range(200):
            path = self.make(f"file {number}")
            handle = name_to_handle(path)
            os.unlink(path)
            self.refuses(errno.ESTALE, open_by_handle, mount_fd, handle, os.O_RDONLY)
