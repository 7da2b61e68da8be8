"""Attributes: times, modes, owners, ACLs, xattrs, locks, and statvfs."""

import errno
import fcntl
import os
import stat
import struct
import subprocess
import sys
import time

from ..posix import GROUP, OTHER, USER, PosixTest, in_child, posix_case
from ..syscalls import (CAP_FSETID, F_OFD_GETLK, F_OFD_SETLK, FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE,
                        FALLOC_ZERO, FS_APPEND_FL, FS_IMMUTABLE_FL, UTIME_NOW, UTIME_OMIT, birth_time,
                        drop_capability, fallocate, toggle_flag, utimensat)

# The id of an ACL entry that names no user or group.
NO_ID = 0xffff_ffff

PAST = (1_000_000_000, 123_456_789)
PAST_NS = 1_000_000_000_123_456_789


@posix_case("posix-times")
class Times(PosixTest):
    """The times that calls change, and the range of times."""

    def moved_by(self, path, action):
        """The times, of atime, mtime and ctime, that the action changes."""
        os.utime(path, ns=(PAST_NS, PAST_NS), follow_symlinks=False)
        before = os.lstat(path)
        time.sleep(0.02)
        action()
        after = os.lstat(path)
        return {name for name in ("atime", "mtime", "ctime")
                if getattr(before, f"st_{name}_ns") != getattr(after, f"st_{name}_ns")}

    def test_of_a_file(self):
        path = self.make("file", b"0123456789")
        fd = self.open(path)
        for number, (action, expected) in enumerate((
                (lambda: os.pwrite(fd, b"x", 0), {"mtime", "ctime"}),
                (lambda: os.ftruncate(fd, 5), {"mtime", "ctime"}),
                (lambda: os.truncate(path, 4), {"mtime", "ctime"}),
                (lambda: os.chmod(path, 0o600), {"ctime"}),
                (lambda: os.chown(path, 5, 5), {"ctime"}),
                (lambda: os.link(path, self.at("second")), {"ctime"}),
                (lambda: os.unlink(self.at("second")), {"ctime"}),
                (lambda: os.setxattr(path, "user.a", b"b"), {"ctime"}),
                (lambda: os.removexattr(path, "user.a"), {"ctime"}),
                (lambda: os.posix_fallocate(fd, 0, 9000), {"mtime", "ctime"}),
                (lambda: fallocate(fd, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, 0, 4096), {"mtime", "ctime"}),
                (lambda: [toggle_flag(fd, FS_APPEND_FL) for _ in range(2)], {"ctime"}),
                (lambda: os.stat(path), set()))):
            self.assertEqual(self.moved_by(path, action), expected, f"action {number}")
        self.assertLessEqual(self.moved_by(path, lambda: os.close(os.open(path, os.O_RDONLY))), set())

    def test_of_a_directory(self):
        path = self.at("directory")
        os.mkdir(path)
        both = {"mtime", "ctime"}
        for action in (lambda: self.make("directory/a"), lambda: os.mkdir(f"{path}/b"),
                       lambda: os.symlink("x", f"{path}/c"), lambda: os.link(f"{path}/a", f"{path}/d"),
                       lambda: os.rename(f"{path}/a", f"{path}/e"),
                       lambda: os.rename(f"{path}/e", self.at("out")),
                       lambda: os.rename(self.at("out"), f"{path}/in"), lambda: os.unlink(f"{path}/in"),
                       lambda: os.rmdir(f"{path}/b")):
            self.assertEqual(self.moved_by(path, action), both)
        self.make("directory/file")
        self.assertEqual(self.moved_by(path, lambda: self.make("directory/file", b"contents")), set())
        self.assertEqual(self.moved_by(path, lambda: os.stat(f"{path}/file")), set())

    def test_reading_moves_atime_by_relatime(self):
        path = self.make("file", b"x")
        # An access time older than the modification must change; a newer one of today need not.
        os.utime(path, ns=(PAST_NS, PAST_NS + 10))
        self.read(path)
        self.assertGreater(os.stat(path).st_atime_ns, PAST_NS)

    def test_o_noatime_keeps_the_time(self):
        for flags, moves in ((os.O_NOATIME, False), (0, True)):
            # New files each time: the kernel may answer from its cache.
            path, directory = self.make(f"file{flags}", b"x" * 5000), self.at(f"directory{flags}")
            os.mkdir(directory)
            for target, read in ((path, lambda fd: os.read(fd, 100)), (directory, os.listdir)):
                os.utime(target, ns=(PAST_NS, PAST_NS + 10))
                fd = self.open(target, os.O_RDONLY | flags)
                read(fd)
                self.assertEqual(os.stat(target).st_atime_ns != PAST_NS, moves, target)

    def test_noatime(self):
        path = self.make("file", b"x")
        self.trial.remount("noatime")
        os.utime(path, ns=(PAST_NS, PAST_NS + 10))
        self.read(path)
        self.assertEqual(os.stat(path).st_atime_ns, PAST_NS)
        self.trial.remount()

    def test_special_values_of_utimensat(self):
        path = self.make("file")
        utimensat(path, PAST, (PAST[0] + 1, 999_999_999))
        times = (os.stat(path).st_atime_ns, os.stat(path).st_mtime_ns)
        self.assertEqual(times, (PAST_NS, 1_000_000_001_999_999_999))
        utimensat(path, (0, UTIME_OMIT), (0, UTIME_NOW))
        self.assertEqual(os.stat(path).st_atime_ns, PAST_NS)
        self.assertLess(abs(os.stat(path).st_mtime - time.time()), 60)
        utimensat(path, (0, UTIME_OMIT), (0, UTIME_OMIT))
        self.assertEqual(os.stat(path).st_atime_ns, PAST_NS)
        self.refuses(errno.EINVAL, utimensat, path, (0, 1_000_000_000), PAST)

    def test_only_the_owner_sets_times_only_a_writer_touches(self):
        path = self.make("file", mode=0o666)
        os.chmod(path, 0o666)
        os.chown(path, USER, GROUP)
        self.refuses(errno.EPERM, in_child, lambda: utimensat(path, PAST, PAST), OTHER)
        in_child(lambda: utimensat(path, (0, UTIME_NOW), (0, UTIME_NOW)), OTHER)
        os.chmod(path, 0o644)
        self.refuses(errno.EACCES, in_child, lambda: utimensat(path, (0, UTIME_NOW), (0, UTIME_NOW)), OTHER)
        in_child(lambda: utimensat(path, PAST, PAST), USER)

    def test_range_and_precision_survive_a_remount(self):
        for when in (0, 1, -1, -(1 << 31) * 10**9, (1 << 31) * 10**9 + 7, (1 << 32) * 10**9 + 1, PAST_NS):
            os.utime(self.make(f"{when}"), ns=(when, when))
            os.mkdir(self.at(f"d{when}"))
            os.utime(self.at(f"d{when}"), ns=(when, when))
        self.trial.remount("noatime")
        for when in (0, 1, -1, -(1 << 31) * 10**9, (1 << 31) * 10**9 + 7, (1 << 32) * 10**9 + 1, PAST_NS):
            for kind in ("", "d"):
                status = os.stat(self.at(f"{kind}{when}"))
                self.assertEqual((status.st_atime_ns, status.st_mtime_ns), (when, when))
        self.trial.remount()

    def test_birth_time(self):
        before = time.time()
        path = self.make("file")
        birth = birth_time(path)
        self.assertIsNotNone(birth)
        self.assertLess(abs(birth[0] - before), 60)
        os.utime(path, ns=(PAST_NS, PAST_NS))
        os.rename(path, self.at("renamed"))
        self.trial.remount()
        self.assertEqual(birth_time(self.at("renamed")), birth)

    def test_mtime_after_close_is_the_time_of_the_write(self):
        """Programs compare times right after they have written, so the server must not set them later."""
        path = self.make("file")
        fd = self.open(path)
        os.write(fd, b"x" * 100_000)
        seen = os.fstat(fd).st_mtime_ns
        time.sleep(0.05)
        os.fsync(fd)
        os.close(fd)
        self.assertEqual(os.stat(path).st_mtime_ns, seen)
        self.trial.remount()
        self.assertEqual(os.stat(path).st_mtime_ns, seen)


@posix_case("posix-permissions")
class Permissions(PosixTest):
    """Modes, owners, set-id bits, ACLs."""

    def shared(self, name, mode):
        os.mkdir(self.at(name))
        os.chown(self.at(name), 0, GROUP + 1)
        os.chmod(self.at(name), mode)
        return self.at(name)

    def test_setgid_directory_hands_down_its_group(self):
        parent = self.shared("shared", 0o2777)
        in_child(lambda: os.mkdir(f"{parent}/directory"), USER)
        in_child(lambda: os.close(os.open(f"{parent}/file", os.O_CREAT | os.O_WRONLY)), USER)
        for name in ("directory", "file"):
            self.assertEqual((os.stat(f"{parent}/{name}").st_uid, os.stat(f"{parent}/{name}").st_gid),
                             (USER, GROUP + 1))
        self.assertTrue(os.stat(f"{parent}/directory").st_mode & stat.S_ISGID)

    def test_setgid_is_dropped_from_programs_of_a_foreign_group(self):
        parent = self.shared("shared", 0o2777)
        in_child(lambda: os.close(os.open(f"{parent}/file", os.O_CREAT | os.O_WRONLY, 0o2775)), USER)
        self.assertFalse(os.stat(f"{parent}/file").st_mode & stat.S_ISGID)
        in_child(lambda: os.chmod(f"{parent}/file", 0o2755), USER)
        self.assertFalse(os.stat(f"{parent}/file").st_mode & stat.S_ISGID)

    def test_write_clears_setuid(self):
        for name, action in (("write", lambda path: append(path)),
                             ("truncate", lambda path: os.truncate(path, 1)), ("fallocate", allocate)):
            path = self.make(name, b"#!program")
            os.chown(path, 0, 0)
            os.chmod(path, 0o6777)
            in_child(lambda: action(path), USER)
            self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o777, name)
            self.trial.volume.sync()
            self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o777, name)

    def test_a_stranger_clears_setgid_without_group_execution(self):
        actions = {
            "write": append, "truncate": lambda path: os.truncate(path, 1), "fallocate": allocate,
            "open": lambda path: os.close(os.open(path, os.O_WRONLY | os.O_TRUNC)),
            "direct": lambda path: os.close(os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CREAT)),
        }
        for name, action in actions.items():
            for groups, kept in (((GROUP,), False), ((GROUP + 5,), True), ((GROUP, GROUP + 5), True)):
                path = self.make(f"{name}{len(groups)}{kept}", b"not a program")
                os.chown(path, 0, GROUP + 5)
                os.chmod(path, 0o2666)
                in_child(lambda action=action, path=path: action(path), USER, groups=groups)
                mode = stat.S_IMODE(os.stat(path).st_mode)
                self.assertEqual(mode, 0o2666 if kept else 0o666, f"{name} by groups {groups}")

    def test_root_without_the_capability_clears_set_id(self):
        source = self.open(self.make("source", b"contents"), os.O_RDONLY)
        actions = {
            "write": lambda fd: os.write(fd, b"x"), "truncate": lambda fd: os.ftruncate(fd, 3),
            "fallocate": lambda fd: os.posix_fallocate(fd, 0, 9000),
            "punch": lambda fd: fallocate(fd, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, 0, 4096),
            "zero": lambda fd: fallocate(fd, FALLOC_ZERO, 0, 4096),
            "copy": lambda fd: os.copy_file_range(source, fd, 4, 0),
        }
        for name, action in actions.items():
            for drops, expected in ((True, 0o777), (False, 0o6777)):
                path = self.make(f"{name}{drops}", b"#!program" * 1000)
                os.chown(path, 0, GROUP)
                os.chmod(path, 0o6777)

                def change(path=path, action=action, drops=drops):
                    if drops:
                        drop_capability(CAP_FSETID)
                    fd = os.open(path, os.O_RDWR)
                    action(fd)
                    os.close(fd)

                in_child(change)
                self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), expected, f"{name} {drops}")

    def test_touching_an_append_only_file(self):
        os.mkdir(self.at("directory"))
        for path in (self.make("file"), self.at("directory")):
            fd = self.open(path, os.O_RDONLY)
            toggle_flag(fd, FS_APPEND_FL)
            try:
                os.utime(path)
                self.refuses(errno.EPERM, os.utime, path, (1, 1))
                self.refuses(errno.EPERM, utimensat, path, (0, UTIME_OMIT), (0, UTIME_NOW))
                self.refuses(errno.EPERM, os.chmod, path, 0o700)
            finally:
                toggle_flag(fd, FS_APPEND_FL)
            toggle_flag(fd, FS_IMMUTABLE_FL)
            try:
                self.refuses(errno.EPERM, os.utime, path)
            finally:
                toggle_flag(fd, FS_IMMUTABLE_FL)

    def test_root_keeps_setuid_when_writing(self):
        path = self.make("file")
        os.chmod(path, 0o4755)
        append(path)
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o4755)

    def test_chown_clears_setuid(self):
        path = self.make("file")
        os.chown(path, USER, GROUP)
        os.chmod(path, 0o6755)
        in_child(lambda: os.chown(path, -1, GROUP + 5), USER, groups=(GROUP, GROUP + 5))
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o755)

    def test_chown_without_a_change_clears_set_id(self):
        for mode, expected in ((0o6777, 0o777), (0o6664, 0o2664), (0o2664, 0o2664)):
            path = self.make(f"file{mode:o}")
            os.chown(path, USER, GROUP)
            os.chmod(path, mode)
            os.chown(path, -1, -1)
            self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), expected, f"{mode:o} by root")
            os.chmod(path, mode)
            in_child(lambda path=path: os.chown(path, -1, -1), USER, groups=(GROUP + 5,))
            mode_left = stat.S_IMODE(os.stat(path).st_mode)
            self.assertEqual(mode_left, expected & ~0o2000, f"{mode:o} by an owner outside the group")

    def test_chown_without_a_change_by_another_user(self):
        """Regression: any user could clear the set-id bits of root's programs."""
        calls = {"chown": lambda path, fd: os.chown(path, -1, -1),
                 "fchown": lambda path, fd: os.chown(fd, -1, -1),
                 "lchown": lambda path, fd: os.lchown(path, -1, -1)}
        for name, call in calls.items():
            for mode in (0o4755, 0o6777, 0o2755, 0o4700, 0o2644, 0o755, 0o666):
                path = self.make(f"{name}{mode:o}", b"#!program")
                os.chown(path, 0, 0)
                os.chmod(path, mode)
                fd = self.open(path)
                try:
                    in_child(lambda c=call, p=path, f=fd: c(p, f), USER)
                except PermissionError:  # ext4 refuses the call if it would clear bits
                    self.assertTrue(mode & 0o6000, f"{name} {mode:o}")
                self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), mode, f"{name} {mode:o}")
        # In a user namespace of its own, the user has all capabilities, but not over these files.
        path = self.make("namespace")
        os.chmod(path, 0o4755)
        chown = f"import os; os.chown({path!r}, -1, -1)"
        command = ["unshare", "--user", "--map-root-user", sys.executable, "-c", chown]
        in_child(lambda: subprocess.run(command, capture_output=True).returncode, USER)
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o4755)
        # A member of the group may not clear the bit, and another group cannot be set.
        path = self.make("member")
        os.chown(path, 0, GROUP)
        os.chmod(path, 0o2664)
        in_child(lambda: os.chown(path, -1, -1), USER)
        self.refuses(errno.EPERM, in_child, lambda: os.chown(path, -1, GROUP), USER)
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o2664)
        os.mkdir(self.at("directory"))
        os.chmod(self.at("directory"), 0o2777)
        os.symlink("target", self.at("link"))
        for path in (self.at("directory"), self.at("link")):
            in_child(lambda path=path: os.lchown(path, -1, -1), USER)
        self.assertEqual(stat.S_IMODE(os.stat(self.at("directory")).st_mode), 0o2777)

    def test_a_descriptor_writes_without_permission_and_clears_set_id(self):
        source = self.open(self.make("source", b"contents"), os.O_RDONLY)
        actions = {
            "write": lambda fd: os.write(fd, b"x"), "truncate": lambda fd: os.ftruncate(fd, 3),
            "fallocate": lambda fd: os.posix_fallocate(fd, 0, 9000),
            "copy": lambda fd: os.copy_file_range(source, fd, 4, 0),
        }
        for name, action in actions.items():
            path = self.make(name, b"#!program")
            os.chmod(path, 0o6755)
            fd = self.open(path)
            in_child(lambda action=action, fd=fd: action(fd), USER)
            self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o755, name)

    def test_chown_by_root_without_the_capability_clears_setgid(self):
        for drops, expected in ((True, 0o664), (False, 0o2664)):
            path = self.make(f"file{drops}")
            os.chown(path, USER, GROUP)
            os.chmod(path, 0o2664)

            def change(path=path, drops=drops):
                if drops:
                    drop_capability(CAP_FSETID)
                os.chown(path, USER, GROUP)

            in_child(change, groups=())
            self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), expected, f"drops: {drops}")

    def test_a_default_acl_leaves_setgid(self):
        path = self.at("directory")
        os.mkdir(path)
        os.chown(path, USER, GROUP + 5)
        os.chmod(path, 0o2775)
        entries = ((0x01, 7, NO_ID), (0x02, 7, USER), (0x04, 7, NO_ID), (0x10, 7, NO_ID), (0x20, 5, NO_ID))
        acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
        in_child(lambda: os.setxattr(path, "system.posix_acl_default", acl), USER, groups=(GROUP,))
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o2775)
        in_child(lambda: os.setxattr(path, "system.posix_acl_access", acl), USER, groups=(GROUP,))
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o775)

    def test_chown_by_others_is_refused(self):
        path = self.make("file")
        os.chown(path, USER, GROUP)
        self.refuses(errno.EPERM, in_child, lambda: os.chown(path, OTHER, -1), USER)
        self.refuses(errno.EPERM, in_child, lambda: os.chown(path, -1, GROUP + 9), USER)
        self.refuses(errno.EPERM, in_child, lambda: os.chmod(path, 0o777), OTHER)

    def test_access(self):
        path = self.make("file", b"secret", 0o640)
        os.chmod(path, 0o640)
        os.chown(path, USER, GROUP)
        self.assertEqual(in_child(lambda: self.read(path), OTHER, groups=(GROUP,)), b"secret")
        self.refuses(errno.EACCES, in_child, lambda: self.read(path), OTHER, groups=(GROUP + 1,))
        self.refuses(errno.EACCES, in_child, lambda: append(path), OTHER, groups=(GROUP,))
        closed = self.shared("closed", 0o700)
        self.refuses(errno.EACCES, in_child, lambda: os.stat(f"{closed}/x"), USER)
        self.refuses(errno.EACCES, in_child, lambda: os.mkdir(self.at("new")), USER)

    def test_umask(self):
        old = os.umask(0o027)
        self.addCleanup(os.umask, old)
        self.make("file", mode=0o666)
        os.mkdir(self.at("directory"), 0o777)
        self.assertEqual(stat.S_IMODE(os.stat(self.at("file")).st_mode), 0o640)
        self.assertEqual(stat.S_IMODE(os.stat(self.at("directory")).st_mode), 0o750)

    def setfacl(self, *arguments):
        subprocess.run(["setfacl", *arguments], check=True)

    def getfacl(self, path):
        text = subprocess.run(["getfacl", "-cpnE", path], check=True, stdout=subprocess.PIPE).stdout
        return set(text.decode().split())

    def test_acl_grants_and_masks(self):
        path = self.make("file", b"data", 0o600)
        os.chmod(path, 0o600)
        self.setfacl("-m", f"u:{USER}:rw", path)
        self.assertEqual(in_child(lambda: self.read(path), USER), b"data")
        self.refuses(errno.EACCES, in_child, lambda: self.read(path), OTHER)
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o660)
        os.chmod(path, 0o600)
        self.assertIn("mask::---", self.getfacl(path))
        self.refuses(errno.EACCES, in_child, lambda: self.read(path), USER)

    def test_default_acl_is_inherited(self):
        os.mkdir(self.at("parent"))
        self.setfacl("-d", "-m", f"u::rwx,u:{USER}:rwx,g::r-x,m::rwx,o::---", self.at("parent"))
        old = os.umask(0o077)
        self.addCleanup(os.umask, old)
        os.mkdir(self.at("parent", "directory"), 0o777)
        file = self.make("parent/file", mode=0o666)
        self.assertIn(f"default:user:{USER}:rwx", self.getfacl(self.at("parent", "directory")))
        expected = {f"user:{USER}:rwx", "group::r-x", "mask::rw-", "other::---"}
        self.assertLessEqual(expected, self.getfacl(file))
        self.assertEqual(stat.S_IMODE(os.stat(file).st_mode), 0o660)
        self.trial.remount()
        self.assertIn(f"user:{USER}:rwx", self.getfacl(file))
        self.assertIn(f"default:user:{USER}:rwx", self.getfacl(self.at("parent", "directory")))

    def test_minimal_acl_is_the_mode(self):
        path = self.make("file", mode=0o600)
        self.setfacl("--set", "u::rw,g::r,o::r", path)
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o644)
        self.assertEqual(os.listxattr(path), [])


def append(path):
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(fd, b"more")
    os.close(fd)


def allocate(path):
    fd = os.open(path, os.O_WRONLY)
    os.posix_fallocate(fd, 0, 10_000)
    os.close(fd)


@posix_case("posix-xattrs")
class Xattrs(PosixTest):
    """Extended attributes: namespaces, sizes, errors."""

    def test_set_get_list_remove(self):
        path = self.make("file")
        values = {"user.empty": b"", "user.a": b"1", "user.b": bytes(range(256)), "trusted.c": b"x" * 1500,
                  "user." + "n" * 250: b"long"}
        for name, value in values.items():
            os.setxattr(path, name, value)
        self.assertEqual(set(os.listxattr(path)), set(values))
        self.trial.remount()
        for name, value in values.items():
            self.assertEqual(os.getxattr(path, name), value)
        os.removexattr(path, "user.a")
        self.assertNotIn("user.a", os.listxattr(path))
        self.refuses(errno.ENODATA, os.getxattr, path, "user.a")
        self.refuses(errno.ENODATA, os.removexattr, path, "user.a")

    def test_create_and_replace(self):
        path = self.make("file")
        self.refuses(errno.ENODATA, os.setxattr, path, "user.a", b"1", os.XATTR_REPLACE)
        os.setxattr(path, "user.a", b"1", os.XATTR_CREATE)
        self.refuses(errno.EEXIST, os.setxattr, path, "user.a", b"2", os.XATTR_CREATE)
        os.setxattr(path, "user.a", b"3" * 900, os.XATTR_REPLACE)
        self.assertEqual(os.getxattr(path, "user.a"), b"3" * 900)

    def test_attributes_grow_and_shrink_next_to_contents(self):
        path = self.make("file", b"contents " * 8)
        for size in (0, 10, 100, 300, 700, 1500, 3000, 1500, 200, 0):
            os.setxattr(path, "user.a", b"v" * size)
            os.setxattr(path, "user.b", b"w" * (size // 10))
            self.assertEqual(os.getxattr(path, "user.a"), b"v" * size)
            self.assertEqual(self.read(path), b"contents " * 8)

    def test_limits(self):
        path = self.make("file")
        self.refuses(errno.ERANGE, os.setxattr, path, "user." + "n" * 251, b"")
        self.refuses(errno.E2BIG, os.setxattr, path, "user.a", bytes(65537))
        number = 0
        try:
            for number in range(5000):
                os.setxattr(path, f"user.many{number}", b"x" * 100)
        except OSError as error:
            self.assertIn(error.errno, (errno.ENOSPC, errno.E2BIG, errno.EDQUOT))
        self.assertGreater(number, 20)
        for index in range(number):
            self.assertEqual(os.getxattr(path, f"user.many{index}"), b"x" * 100)

    def test_set_attributes_are_listed(self):
        # xfs takes more names than Linux lists.
        path = self.make("file")
        names = [f"user.{number:04}" + "n" * 246 for number in range(400)]
        count = 0
        with self.assertRaises(OSError) as raised:
            for count, name in enumerate(names):
                os.setxattr(path, name, b"v")
        self.assertEqual(raised.exception.errno, errno.ENOSPC)
        self.assertEqual(sorted(os.listxattr(path)), names[:count])

    def test_namespaces(self):
        path = self.make("file", mode=0o644)
        os.setxattr(path, "trusted.secret", b"1")
        self.assertEqual(in_child(lambda: os.listxattr(path), USER), [])
        self.refuses(errno.ENODATA, in_child, lambda: os.getxattr(path, "trusted.secret"), USER)
        self.refuses(errno.EPERM, in_child, lambda: os.setxattr(path, "trusted.other", b""), USER)
        self.refuses(errno.EACCES, in_child, lambda: os.setxattr(path, "user.a", b""), USER)
        self.refuses(errno.EOPNOTSUPP, os.setxattr, path, "unknown.namespace", b"")
        os.symlink("x", self.at("symlink"))
        self.refuses(errno.EPERM, os.setxattr, self.at("symlink"), "user.a", b"", follow_symlinks=False)
        os.setxattr(self.at("symlink"), "trusted.a", b"on a symlink", follow_symlinks=False)
        self.assertEqual(os.getxattr(self.at("symlink"), "trusted.a", follow_symlinks=False), b"on a symlink")

    def test_capabilities_go_with_a_write(self):
        path = self.make("file")
        os.setxattr(path, "security.capability", bytes.fromhex("0100000200200000" + "00" * 12))
        append(path)
        self.refuses(errno.ENODATA, os.getxattr, path, "security.capability")
        made = os.open(self.at("made"), os.O_CREAT | os.O_WRONLY, 0o755)
        os.setxattr(self.at("made"), "security.capability", bytes.fromhex("0100000200200000" + "00" * 12))
        os.write(made, b"by the one who made it")
        os.close(made)
        self.refuses(errno.ENODATA, os.getxattr, self.at("made"), "security.capability")

    def test_go_with_the_file(self):
        path = self.make("file")
        os.setxattr(path, "user.a", b"1")
        os.rename(path, self.at("renamed"))
        os.link(self.at("renamed"), self.at("second"))
        self.assertEqual(os.getxattr(self.at("second"), "user.a"), b"1")
        os.unlink(self.at("renamed"))
        self.trial.remount()
        self.assertEqual(os.getxattr(self.at("second"), "user.a"), b"1")


@posix_case("posix-locks")
class Locks(PosixTest):
    """flock, fcntl, and locks of open file descriptions."""

    def lock(self, fd, command, kind, start=0, length=0):
        """fcntl with struct flock of 64-bit Linux; returns the structure's type and pid."""
        packed = struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0)
        result = struct.unpack("hhqqi4x", fcntl.fcntl(fd, command, packed))
        return result[0], result[4]

    def test_flock(self):
        path = self.make("file")
        first, second = self.open(path), self.open(path)
        fcntl.flock(first, fcntl.LOCK_EX)
        self.refuses(errno.EAGAIN, fcntl.flock, second, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(first, fcntl.LOCK_SH)
        fcntl.flock(second, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.close(first)
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def test_record_locks_between_processes(self):
        path = self.make("file")
        fd = self.open(path)
        self.lock(fd, fcntl.F_SETLK, fcntl.F_WRLCK, 100, 50)

        def contend():
            mine = os.open(path, os.O_RDWR)
            kind, pid = self.lock(mine, fcntl.F_GETLK, fcntl.F_RDLCK, 120, 1)
            self.lock(mine, fcntl.F_SETLK, fcntl.F_WRLCK, 150, 10)
            try:
                self.lock(mine, fcntl.F_SETLK, fcntl.F_RDLCK, 149, 1)
            except OSError as error:
                return kind, pid, error.errno
            return None

        kind, pid, number = in_child(contend)
        self.assertEqual((kind, pid), (fcntl.F_WRLCK, os.getpid()))
        self.assertIn(number, (errno.EAGAIN, errno.EACCES))

    def test_waiting_lock_is_granted(self):
        path = self.make("file")
        fd = self.open(path)
        self.lock(fd, fcntl.F_SETLK, fcntl.F_WRLCK)
        child = os.fork()
        if child == 0:
            mine = os.open(path, os.O_RDWR)
            self.lock(mine, fcntl.F_SETLKW, fcntl.F_WRLCK)
            os._exit(0)
        time.sleep(0.1)
        self.assertEqual(os.waitpid(child, os.WNOHANG)[0], 0)
        self.lock(fd, fcntl.F_SETLK, fcntl.F_UNLCK)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_closing_any_descriptor_drops_record_locks(self):
        path = self.make("file")
        fd = self.open(path)
        self.lock(fd, fcntl.F_SETLK, fcntl.F_WRLCK)
        os.close(os.open(path, os.O_RDONLY))
        in_child(lambda: self.lock(os.open(path, os.O_RDWR), fcntl.F_SETLK, fcntl.F_WRLCK))

    def test_open_file_description_locks(self):
        path = self.make("file")
        first, second = self.open(path), self.open(path)
        self.lock(first, F_OFD_SETLK, fcntl.F_WRLCK, 0, 10)
        self.refuses(errno.EAGAIN, self.lock, second, F_OFD_SETLK, fcntl.F_WRLCK, 5, 10)
        self.assertEqual(self.lock(second, F_OFD_GETLK, fcntl.F_WRLCK, 5, 10)[0], fcntl.F_WRLCK)
        os.close(os.open(path, os.O_RDONLY))
        self.refuses(errno.EAGAIN, self.lock, second, F_OFD_SETLK, fcntl.F_WRLCK, 5, 10)
        os.close(first)
        self.lock(second, F_OFD_SETLK, fcntl.F_WRLCK, 5, 10)


@posix_case("posix-statvfs", size=1 << 30)
class Statvfs(PosixTest):
    """The figures of df."""

    def test_space_follows_writes(self):
        before = os.statvfs(self.base)
        path = self.make("file", os.urandom(64 << 20))
        self.trial.volume.sync()
        written = os.statvfs(self.base)
        used = (before.f_bfree - written.f_bfree) * before.f_frsize
        self.assertTrue(64 << 20 <= used <= 72 << 20, used)
        os.unlink(path)
        self.trial.volume.sync()
        after = os.statvfs(self.base)
        self.assertLess((before.f_bfree - after.f_bfree) * before.f_frsize, 4 << 20)

    def test_fields(self):
        status = os.statvfs(self.base)
        self.assertEqual(status.f_namemax, 255)
        self.assertLessEqual(status.f_bavail, status.f_bfree)
        self.assertLess(status.f_bfree, status.f_blocks)
        self.assertTrue(0.85 * (1 << 30) <= status.f_blocks * status.f_frsize <= 1 << 30)
        self.assertGreater(status.f_ffree, 1000)
        self.assertEqual(os.fstatvfs(self.open(self.base, os.O_RDONLY)).f_blocks, status.f_blocks)

    def test_files_are_counted(self):
        before = os.statvfs(self.base)
        for number in range(500):
            self.make(f"{number}", b"x" * 3000)
        self.trial.volume.sync()
        after = os.statvfs(self.base)
        used_before, used_after = before.f_files - before.f_ffree, after.f_files - after.f_ffree
        self.assertTrue(450 <= used_after - used_before <= 600, used_after - used_before)
