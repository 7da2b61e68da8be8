"""Volumes under test: an image file, and how to make, mount, unmount and check it.

A `Volume` has no state except paths. It asks the kernel whether it is mounted, so the driver can clean up
after a case that ran in another process and ended at any point.
"""

import os
import shutil
import subprocess
import time

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


def cffs_binary():
    """The program under test: $CFFS, or the release build of this repository."""
    target = os.path.join(REPOSITORY, os.environ.get("CARGO_TARGET_DIR") or "target")
    return os.environ.get("CFFS") or os.path.join(target, "release", "cffs")


def bench_binary():
    """The program with the emulated disk: $CFFS_BENCH, or the one next to the program under test."""
    return os.environ.get("CFFS_BENCH") or os.path.join(os.path.dirname(cffs_binary()), "cffs-bench")


def echo_run(argv, check=True, timeout=300, **kwargs):
    """Runs a command, printed to the log in shell syntax."""
    print("$ " + " ".join(map(str, argv)), flush=True)
    return subprocess.run(argv, check=check, timeout=timeout, stdin=subprocess.DEVNULL, **kwargs)


def mount_points_below(path):
    """Mount points at or below `path`, innermost first."""
    found = []
    with open("/proc/self/mountinfo", "rb") as mounts:
        for line in mounts:
            point = line.split()[4].decode("unicode_escape")
            if point == path or point.startswith(path + "/"):
                found.append(point)
    return found[::-1]


class Volume:
    """One image, and the directory that it is mounted on. The limits are those that C-FFS promises; if a
    reference has a lower limit, cases use that."""

    name = None
    file_bytes_max = 1 << 44
    symlink_bytes_max = 4095
    device_max = os.makedev(4095, (1 << 20) - 1)
    # pathconf cannot ask a file system for its LINK_MAX: libc has a table of those that it knows.
    link_max_is_known = True

    def __init__(self, work, features=None, policy=None, mount_options=None):
        self.image = os.path.join(work, "volume.img")
        self.dir = os.path.join(work, "mnt")
        self.features = features
        self.policy = policy
        self.mount_options = mount_options
        os.makedirs(self.dir, exist_ok=True)

    def make(self, size, inodes):
        """Creates a file system of `size` bytes with space for `inodes` files."""
        raise NotImplementedError

    def mount(self, options=None):
        """Mounts, and returns when the volume is usable."""
        raise NotImplementedError

    def unmount(self):
        """Unmounts, and returns when the image is complete."""
        raise NotImplementedError

    def check(self):
        """Raises unless the unmounted image is free of problems."""
        raise NotImplementedError

    def sync(self):
        """Makes everything durable."""
        echo_run(["sync", "-f", self.dir])

    def is_mounted(self):
        """Queries the kernel."""
        return self.dir in mount_points_below(self.dir)

    def tear_down(self):
        """Removes the mount in any state."""
        for point in mount_points_below(os.path.dirname(self.dir)):
            subprocess.run(["umount", "-l", point], check=False)

    def join_options(self, options):
        return ",".join(o for o in (self.mount_options, options) if o)


class KernelVolume(Volume):
    """A file system of the kernel, on a loop device that is removed with the mount."""

    def mount(self, options=None):
        echo_run(["mount", "-o", ",".join(filter(None, ["loop", self.join_options(options)])),
                  self.image, self.dir])

    def unmount(self):
        echo_run(["umount", self.dir])

    def make_image(self, size):
        with open(self.image, "wb") as image:
            image.truncate(size)


class Ext4(KernelVolume):
    """The first reference: cases that pass on it must pass on C-FFS."""

    name = "ext4"
    file_bytes_max = (1 << 44) - 4096
    mkfs_options = ()

    def make(self, size, inodes):
        self.make_image(size)
        echo_run(["mkfs.ext4", "-q", "-F", *self.mkfs_options, "-N", str(inodes), self.image])

    def check(self):
        echo_run(["e2fsck", "-f", "-n", self.image], stdout=subprocess.DEVNULL)


class Ext4WithLargeAttributes(Ext4):
    """With space for attributes of more than a block, like C-FFS."""

    mkfs_options = ("-O", "ea_inode")


class Xfs(KernelVolume):
    """The second reference, with other limits and other choices where POSIX leaves them open."""

    name = "xfs"
    symlink_bytes_max = 1023
    device_max = os.makedev(511, (1 << 18) - 1)

    def make(self, size, inodes):
        self.make_image(max(size, 320 << 20))
        echo_run(["mkfs.xfs", "-q", "-f", self.image])

    def check(self):
        echo_run(["xfs_repair", "-n", self.image], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def sync(self):
        super().sync()
        # A worker frees the space of removed files some time after the unlink.
        time.sleep(1)


class Cffs(Volume):
    """The file system under test."""

    name = "cffs"
    link_max_is_known = False

    def make(self, size, inodes, *options):
        argv = [cffs_binary(), "mkfs", "--size", str(size), *options]
        if self.features:
            argv += ["--features", self.features]
        if self.policy:
            argv += ["--policy", self.policy]
        self.make_room()
        echo_run(argv + [self.image])

    def make_room(self):
        """Removes what was made before."""
        if os.path.exists(self.image):
            os.unlink(self.image)

    def mount(self, options=None):
        argv = [cffs_binary(), "mount", self.image, self.dir]
        joined = self.join_options(options)
        if joined:
            argv += ["-o", joined]
        echo_run(argv)
        if not self.is_mounted():
            raise RuntimeError(f"cffs mount returned 0, but {self.dir} is not a mount point")

    def unmount(self):
        echo_run([cffs_binary(), "umount", self.dir])
        if self.is_mounted():
            raise RuntimeError(f"cffs umount returned 0, but {self.dir} is still a mount point")

    def check(self):
        echo_run([cffs_binary(), "fsck", "-f", "-n", self.image])

    def sync(self):
        echo_run([cffs_binary(), "sync", self.dir])

    def tear_down(self):
        # If a server no longer answers, every program that accesses the mount hangs. Aborting the connection
        # first fails every waiting request and lets the server end.
        if self.is_mounted():
            device = self.connection()
            abort = f"/sys/fs/fuse/connections/{device}/abort"
            if subprocess.run(["timeout", "20", "umount", self.dir], check=False).returncode:
                if device is not None and os.path.exists(abort):
                    with open(abort, "w", encoding="ascii") as control:
                        control.write("1")
                time.sleep(0.5)
        super().tear_down()

    def connection(self):
        """The connection's number, from mountinfo: stat would query the server."""
        with open("/proc/self/mountinfo", "rb") as mounts:
            for line in mounts:
                fields = line.split()
                if fields[4].decode("unicode_escape") == self.dir:
                    major, minor = fields[2].split(b":")
                    return int(major) << 20 | int(minor)
        return None


class CffsInStore(Cffs):
    """C-FFS in an object store, which is a directory here: each sync is an object."""

    name = "cffs-store"

    def __init__(self, work, *arguments):
        super().__init__(work, *arguments)
        self.directory = os.path.join(work, "store")
        self.image = "file://" + self.directory

    def make_room(self):
        shutil.rmtree(self.directory, ignore_errors=True)


KINDS = {kind.name: kind for kind in (Cffs, CffsInStore, Ext4, Xfs)}
