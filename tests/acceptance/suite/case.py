"""Cases, and the interface that they use.

A case is a function that gets a `Trial`: a fresh, mounted volume and the means to run programs on it. It
fails by raising any exception. `Skip` is for features that this machine or this kind of volume lacks; its
reason is printed.
"""

import os
import pwd
import shutil
import subprocess

from . import volume

MIB = 1 << 20
GIB = 1 << 30

REGISTRY = []


class Skip(Exception):
    """The case cannot run here, for this reason."""


class Case:
    """A registered case: its function, and the volume that it needs."""

    def __init__(self, name, function, size, inodes, only_on, timeout):
        self.name = name
        self.function = function
        self.size = size
        self.inodes = inodes
        self.only_on = only_on
        self.timeout = timeout


def case(name, size=1 * GIB, inodes=100_000, only_on=None, timeout=180):
    """Registers a case. `size` and `inodes` are a number, or a pair (quick, full); `timeout` is the limit for
    the quick size in seconds; the limit for the full size is forty times as long."""

    def register(function):
        REGISTRY.append(Case(name, function, size, inodes, only_on, timeout))
        return function

    return register


def pick(value, full):
    """The quick or the full value of a pair; a single value stands for both."""
    if isinstance(value, tuple):
        return value[1 if full else 0]
    return value


class Trial:
    """One run of one case."""

    def __init__(self, under_test, scratch, full):
        self.volume = under_test
        self.dir = under_test.dir
        self.scratch = scratch
        self.full = full

    def pick(self, quick, full):
        """The size of this run."""
        return full if self.full else quick

    def path(self, *parts):
        """A path on the mount."""
        return os.path.join(self.dir, *parts)

    def outside(self, *parts):
        """A path outside the mount."""
        return os.path.join(self.scratch, *parts)

    def subdir(self, name):
        """A fresh directory on the mount."""
        path = self.path(name)
        os.mkdir(path)
        return path

    def run(self, *argv, user=None, check=True, timeout=None, **kwargs):
        """Runs a program; its output goes to the case's log. Skips the case if the program is missing."""
        if user:
            kwargs.update(as_user(user))
        if "/" not in argv[0] and not shutil.which(argv[0]):
            raise Skip(f"{argv[0]} is not installed")
        return volume.echo_run(argv, check=check, timeout=timeout, **kwargs)

    def output(self, *argv, **kwargs):
        """Runs a program and returns what it wrote to its standard output, as bytes."""
        return self.run(*argv, stdout=subprocess.PIPE, **kwargs).stdout

    def shell(self, script, **kwargs):
        """Runs a shell script that ends at the first failure."""
        return self.run("bash", "-euo", "pipefail", "-c", script, **kwargs)

    def unmount(self):
        self.volume.unmount()

    def mount(self, options=None):
        self.volume.mount(options)

    def remount(self, options=None):
        """Unmounts and mounts again: data that is not on the device is lost."""
        self.volume.unmount()
        self.volume.mount(options)

    def program(self, name, package):
        """The full path of a program; skips the case if the program is missing."""
        for directory in [os.path.join(volume.REPOSITORY, "target/tools/bin"),
                          *os.environ.get("PATH", "").split(":"), "/usr/sbin", "/sbin"]:
            path = os.path.join(directory, name)
            if os.access(path, os.X_OK):
                return path
        raise Skip(f"{name} is not installed: {package}")


def as_user(name):
    """Arguments of subprocess that run a program as this user, with no group but the user's own."""
    entry = pwd.getpwnam(name)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
