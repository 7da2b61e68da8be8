"""Other file systems on top of the mount."""

import os
import stat
import subprocess

from ..case import GIB, case


@case("overlayfs-upper", size=1 * GIB)
def overlayfs_upper(t):
    """The mount as a container's writable layer.

    The kernel takes a FUSE file system as an upper layer only if readdir gives d_type,
    rename accepts RENAME_WHITEOUT, and trusted.* xattrs can be set ("upper fs missing required features"
    in its log, and EINVAL, where one is missing). It uses O_TMPFILE for copying up where that works, and
    RENAME_EXCHANGE to put a directory in a whiteout's place.

    Of a file with several names, overlayfs remembers the name by which it was looked up first, and asks
    a FUSE server about that one whenever any of them is used: once it is removed, the others fail with
    ESTALE until the kernel forgets the file. No FUSE server can help that, so the case does not ask for it.
    """
    lower, merged = t.outside("lower"), t.outside("merged")
    os.makedirs(os.path.join(lower, "directory", "sub"))
    os.mkdir(merged)
    for name in ("kept", "removed", "changed", "directory/inner", "directory/sub/leaf"):
        with open(os.path.join(lower, name), "w", encoding="ascii") as file:
            file.write(f"lower {name}")
    os.symlink("kept", os.path.join(lower, "link"))
    os.setxattr(os.path.join(lower, "changed"), "user.tag", b"carried")
    upper = t.subdir("upper")
    t.subdir("work")

    def mount_overlay():
        t.run("mount", "-t", "overlay", "overlay", "-o",
              f"lowerdir={lower},upperdir={upper},workdir={t.path('work')},redirect_dir=on", merged)

    def at(*parts):
        return os.path.join(merged, *parts)

    def write(name, text):
        with open(at(name), "a", encoding="ascii") as file:
            file.write(text)

    def read(name):
        with open(at(name), encoding="ascii") as file:
            return file.read()

    mount_overlay()
    try:
        write("new", "made above")
        write("changed", ", changed above")
        os.unlink(at("removed"))
        os.rename(at("directory"), at("renamed"))
        os.mkdir(at("directory"))
        write("directory/other", "in a directory that hides one")
        os.rename(at("kept"), at("renamed", "moved"))
        os.chmod(at("renamed", "inner"), 0o4711)
        os.link(at("new"), at("second name"))
        t.run("cp", "-a", "/usr/include/linux", at("tree"))
        os.unlink(at("tree", "fs.h"))
        removed = stat.S_ISCHR(os.lstat(os.path.join(upper, "removed")).st_mode)
        assert removed and os.lstat(os.path.join(upper, "removed")).st_rdev == 0, "a whiteout is device 0/0"
    finally:
        t.run("umount", merged)
    t.remount()
    mount_overlay()
    try:
        assert read("new") == read("second name") == "made above"
        assert read("changed") == "lower changed, changed above"
        assert os.getxattr(at("changed"), "user.tag") == b"carried"
        names = ["changed", "directory", "link", "new", "renamed", "second name", "tree"]
        assert sorted(os.listdir(merged)) == names
        assert sorted(os.listdir(at("renamed"))) == ["inner", "moved", "sub"]
        assert os.listdir(at("directory")) == ["other"]
        assert read("renamed/sub/leaf") == "lower directory/sub/leaf"
        assert read("renamed/moved") == "lower kept"
        assert stat.S_IMODE(os.stat(at("renamed", "inner")).st_mode) == 0o4711
        difference = t.output("diff", "-rq", "/usr/include/linux", at("tree"), check=False)
        assert difference.strip() == b"Only in /usr/include/linux: fs.h", difference
        os.unlink(at("second name"))  # before "new", by which the file was looked up first: see above
        t.run("rm", "-rf", *(at(name) for name in os.listdir(merged)))
        assert not os.listdir(merged)
    finally:
        t.run("umount", merged)


@case("loop-device", size=1 * GIB)
def loop_device(t):
    """A file on the mount as the disk of another file system: reads, writes, flushes and discards
    (which punch holes) from inside the kernel."""
    image, inner = t.path("disk"), t.outside("inner")
    os.mkdir(inner)
    with open(image, "wb") as file:
        file.truncate(256 << 20)
    t.run("mkfs.ext4", "-q", "-F", image)
    t.run("mount", "-o", "loop,discard", image, inner)
    try:
        t.run("cp", "-a", "/usr/include", inner)
        t.run("sync", "-f", inner)
        full = os.stat(image).st_blocks
        t.run("rm", "-rf", os.path.join(inner, "include"))
        t.run("sync", "-f", inner)  # ext4 trims only what a committed transaction has freed
        t.run("fstrim", inner)
        trimmed = os.stat(image).st_blocks
        t.run("cp", "-a", "/usr/include/linux", inner)
    finally:
        subprocess.run(["umount", inner], check=True)
    assert trimmed < full, f"discards gave nothing back: {full} blocks, then {trimmed}"
    t.remount()
    t.run("e2fsck", "-f", "-n", image)
    t.run("mount", "-o", "loop,ro", image, inner)
    try:
        t.run("diff", "-r", "/usr/include/linux", os.path.join(inner, "linux"))
    finally:
        subprocess.run(["umount", inner], check=True)
