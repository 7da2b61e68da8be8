"""Mounting: persistence, permissions and refusals."""

import errno
import os
import pwd
import subprocess
import time

from .. import syscalls, trees
from ..case import MIB, GIB, Skip, case
from ..volume import cffs_binary
from .scale import expect


@case("persistence", size=2 * GIB, inodes=(100_000, 300_000))
def persistence(t):
    """A copied tree with every kind of file is the same after each of several remounts, with changes in
    between; fsck finds no problems at any stage."""
    trees.make_odd_tree(t.subdir("odd"))
    trees.make_plain_tree(t.subdir("plain"), t.pick(1_500, 100_000))
    t.run("cp", "-a", "/usr/include/linux", t.path("include"))
    expected = trees.describe(t.dir)
    for round in range(3):
        t.unmount()
        t.volume.check()
        t.mount()
        trees.assert_same(expected, trees.describe(t.dir), f"remount {round}")
        os.rename(t.path("include"), t.path("odd", f"include{round}"))
        os.rename(t.path("odd", f"include{round}"), t.path("include"))
        t.run("rm", "-rf", t.path("plain", f"{round}"))
        trees.make_plain_tree(t.subdir(f"more{round}"), 500, seed=round)
        expected = trees.describe(t.dir)
    t.run("diff", "-r", "--no-dereference", "/usr/include/linux", t.path("include"))


@case("remount-storm", size=256 * MIB)
def remount_storm(t):
    """Mount, change little, unmount, many times: no change is lost before the next mount, even if nothing was
    changed, and without pauses."""
    for round in range(t.pick(15, 200)):
        if round % 3:
            with open(t.path(f"file{round}"), "wb") as file:
                file.write(b"%d" % round * 50)
            if round % 3 == 2:
                os.rename(t.path(f"file{round - 1}"), t.path("replaced"))
                os.link(t.path(f"file{round}"), t.path(f"link{round}"))
        t.remount()
        for earlier in range(2, round + 1, 3):
            with open(t.path(f"link{earlier}"), "rb") as file:
                assert file.read() == b"%d" % earlier * 50, earlier


@case("read-only", size=256 * MIB)
def read_only(t):
    """-o ro: everything can be read, nothing can be changed, and the image stays unchanged."""
    trees.make_plain_tree(t.subdir("tree"), 200)
    with open(t.path("file"), "wb") as file:
        file.write(b"contents")
    os.symlink("file", t.path("symlink"))
    expected = trees.describe(t.dir)
    t.unmount()
    before = trees.digest(t.volume.image)
    t.mount("ro")
    trees.assert_same(expected, trees.describe(t.dir), "mounted read-only")
    file = t.path("file")
    new = t.path("new")
    for function, *arguments in ((os.open, file, os.O_WRONLY), (os.open, new, os.O_CREAT | os.O_WRONLY),
                                 (os.mkdir, new), (os.unlink, file), (os.rename, file, new),
                                 (os.link, file, new), (os.symlink, "x", new),
                                 (os.chmod, file, 0o600), (os.chown, file, 1, 1), (os.truncate, file, 0),
                                 (os.utime, file), (os.setxattr, file, "user.a", b"")):
        expect(errno.EROFS, function, *arguments)
    assert not os.access(file, os.W_OK)
    t.unmount()
    if t.volume.name != "ext4":  # ext4 records the time of the mount and the directory nevertheless
        assert trees.digest(t.volume.image) == before, "a read-only mount has changed the image"


@case("second-mount", size=64 * MIB, only_on="cffs")
def second_mount(t):
    """An image can be mounted once: the second mount fails with a message, and the first continues."""
    elsewhere = t.outside("elsewhere")
    os.mkdir(elsewhere)
    result = t.run(cffs_binary(), "mount", t.volume.image, elsewhere, check=False, timeout=30,
                   stderr=subprocess.PIPE)
    assert result.returncode != 0, "mounted twice"
    message = result.stderr.decode().lower()
    assert t.volume.image.lower() in message and ("in use" in message or "mounted" in message
                                                  or "lock" in message), message
    assert not os.path.ismount(elsewhere)
    trees.touch(t.path("still works"))
    command = (cffs_binary(), "fsck", "-y", t.volume.image)
    result = t.run(*command, check=False, timeout=30, stderr=subprocess.PIPE)
    assert result.returncode not in (0, 1), "fsck repairs a mounted image"
    assert os.listdir(t.dir)[-1] == "still works"


@case("umount-8", size=256 * MIB, only_on="cffs")
def umount_8(t):
    """umount(8) cannot wait for the server; the next command on the image waits, and finds all data."""
    for program in (["umount"], ["fusermount3", "-u"], ["umount"]):
        trees.make_plain_tree(t.subdir("-".join(program) + str(len(os.listdir(t.dir)))), 300)
        expected = trees.describe(t.dir)
        t.run(*program, t.dir)
        t.volume.check()
        t.mount()
        trees.assert_same(expected, trees.describe(t.dir), program[0])
        t.run(*program, t.dir)
        t.mount()
        trees.assert_same(expected, trees.describe(t.dir), f"{program[0]}, mounted again at once")


@case("ordinary-user", size=64 * MIB, only_on="cffs")
def ordinary_user(t):
    """An unprivileged user makes, mounts, uses, unmounts and checks an image, through fusermount3; other
    users, including root, have no access."""
    t.program("fusermount3", "apt-get install fuse3")
    entry = pwd.getpwnam("tests")
    home = t.outside("home")
    os.mkdir(home)
    os.chown(home, entry.pw_uid, entry.pw_gid)
    os.mkdir(os.path.join(home, "mnt"))
    os.chown(os.path.join(home, "mnt"), entry.pw_uid, entry.pw_gid)
    # The user may have no access to the build tree.
    program = os.path.join(home, "cffs")
    t.run("install", "-m", "755", cffs_binary(), program)
    os.chmod("/dev/fuse", 0o666)  # as udev sets it, if it is running
    environment = {"HOME": home, "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}

    def run(*argv, **kwargs):
        return t.run(*argv, user="tests", cwd=home, env=environment, **kwargs)

    run(program, "mkfs", "--size", "64M", "image")
    run(program, "mount", "image", "mnt")
    try:
        run("sh", "-ec", "echo contents > mnt/file; mkdir mnt/d; mv mnt/file mnt/d; ln mnt/d/file mnt/second;"
            "chmod 600 mnt/second; test $(cat mnt/d/file) = contents; df mnt; rm mnt/second; sync -f mnt")
        expect(errno.EACCES, os.listdir, os.path.join(home, "mnt"))
    finally:
        run(program, "umount", "mnt", check=False)
    assert not os.path.ismount(os.path.join(home, "mnt"))
    run(program, "fsck", "-f", "-n", "image")
    run(program, "mount", "image", "mnt")
    run("sh", "-ec", "test $(cat mnt/d/file) = contents; fusermount3 -u mnt")
    run(program, "fsck", "-f", "-n", "image")


@case("owners-by-mount", size=64 * MIB)
def owners_by_mount(t):
    """Regression: an id-mapped mount, as containers with a user namespace use them, failed with EINVAL. It
    shows the owners of the namespace, stores those of the volume, and still distinguishes its callers:
    privileges of root are only for root."""
    base = t.subdir("base")
    with open(t.path("base", "file"), "wb"):
        pass
    os.chown(t.path("base", "file"), 1000, 1001)
    # No user can write to a directory whose owner is not mapped in the namespace.
    os.chown(base, 1000, 1000)
    os.chmod(base, 0o777)
    shown = t.outside("shown")
    os.mkdir(shown)
    holder = subprocess.Popen(["unshare", "--user", "sleep", "1000"])
    try:
        for name in ("uid_map", "gid_map"):
            write_when_unshared(holder.pid, name, "1000 5000 10\n")
        with open(f"/proc/{holder.pid}/ns/user", encoding="ascii") as namespace:
            try:
                syscalls.bind_with_owners(base, shown, namespace)
            except OSError as error:
                if error.errno == errno.EINVAL and not has_owners_by_mount(t):
                    raise Skip("the kernel has no id-mapped mounts for FUSE (Linux 6.12)") from error
                raise
        try:
            found = os.stat(os.path.join(shown, "file"))
            assert_is("owner shown", (found.st_uid, found.st_gid), (5000, 5001))
            for command, name in (("mkdir", "directory"), ("touch", "new"), ("mkfifo", "fifo")):
                t.run(command, os.path.join(shown, name),
                      preexec_fn=lambda: (os.setgid(5002), os.setuid(5003)))
                stored = os.stat(t.path("base", name))
                assert_is(f"owner stored by {command}", (stored.st_uid, stored.st_gid), (1003, 1002))
            os.chown(os.path.join(shown, "new"), 5004, 5005)
            stored = os.stat(t.path("base", "new"))
            assert_is("owner changed", (stored.st_uid, stored.st_gid), (1004, 1005))
        finally:
            t.run("umount", shown)
    finally:
        holder.kill()
        holder.wait()
    # Requests no longer carry the caller; behaviour that depends on it stays the same.
    os.setxattr(t.path("base", "file"), "trusted.of-root", b"1")
    assert "trusted.of-root" in os.listxattr(t.path("base", "file"))
    names = t.output("getfattr", "-m", "-", t.path("base", "file"), user="nobody")
    assert b"trusted" not in names, names
    program = t.path("base", "program")
    with open(program, "wb"):
        pass
    for user, kept in (("root", 0o4777), ("nobody", 0o777)):
        os.chmod(program, 0o4777)
        t.run("fallocate", "-l", "4096", program, user=user)
        assert_is(f"mode after fallocate by {user}", os.stat(program).st_mode & 0o7777, kept)


def assert_is(what, found, expected):
    assert found == expected, f"{what}: {found}, not {expected}"


def has_owners_by_mount(t):
    """Whether the kernel is one that should allow id-mapped mounts of this kind of file system."""
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    return t.volume.name != "cffs" or release >= (6, 12)


def write_when_unshared(pid, name, text):
    """Writes to the id map of a process once it has a user namespace of its own."""
    own = os.stat("/proc/self/ns/user").st_ino
    deadline = time.monotonic() + 30
    while os.stat(f"/proc/{pid}/ns/user").st_ino == own:
        assert time.monotonic() < deadline, "the process has no namespace of its own"
        time.sleep(0.01)
    with open(f"/proc/{pid}/{name}", "w", encoding="ascii") as file:
        file.write(text)


@case("failed-mount", size=64 * MIB, only_on="cffs")
def failed_mount(t):
    """A failed mount leaves nothing behind, and reports the reason: no image, no file system in it, a mount
    point that does not exist or is a file."""
    t.unmount()
    junk, target = t.outside("junk"), t.outside("target")
    with open(junk, "wb") as file:
        file.write(os.urandom(1 << 20))
    trees.touch(t.outside("a file"))
    os.mkdir(target)
    for image, directory, named in ((t.outside("absent"), target, "absent"), (junk, target, "junk"),
                                    (t.volume.image, t.outside("no directory"), "no directory"),
                                    (t.volume.image, t.outside("a file"), "a file")):
        command = (cffs_binary(), "mount", image, directory)
        result = t.run(*command, check=False, timeout=30, stderr=subprocess.PIPE)
        message = result.stderr.decode()
        assert result.returncode != 0, f"{image} on {directory}"
        assert named in message and "panick" not in message, message
        assert not os.path.ismount(target)
    t.mount()


@case("cores-come-and-go", size=256 * MIB, only_on="cffs")
def cores_come_and_go(t):
    """A mount over io_uring continues when the kernel's switch is turned off, when a core goes offline, and
    when a core that was offline at the mount comes back. Taking a core offline affects the whole machine, so
    that is only in the full run."""
    switch = "/sys/module/fuse/parameters/enable_uring"
    if not os.path.exists(switch):
        raise Skip("the kernel has no FUSE over io_uring")

    def works(when):
        for core in sorted(os.sched_getaffinity(0)):
            t.run("taskset", "--cpu-list", str(core), "cp", "/bin/ls", t.path("copy"), timeout=60)
            t.run("taskset", "--cpu-list", str(core), "cmp", "/bin/ls", t.path("copy"), timeout=60)
        os.unlink(t.path("copy"))
        print(f"note: it works {when}")

    t.remount("transport=rings")
    before = open(switch, encoding="ascii").read().strip()
    try:
        write(switch, "N")
        works("with the switch off")
    finally:
        write(switch, before)
    last = f"/sys/devices/system/cpu/cpu{max(os.sched_getaffinity(0))}/online"
    if not t.full or not os.path.exists(last):
        return
    try:
        write(last, "0")
        works("with one core less")
        t.remount("transport=rings")
        works("mounted with one core less")
        write(last, "1")
        works("with the core online again")
    finally:
        write(last, "1")


def write(path, value):
    with open(path, "w", encoding="ascii") as file:
        file.write(value)
