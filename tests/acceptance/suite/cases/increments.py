"""Incremental archives of random changes, extracted by GNU tar and by C-FFS."""

import os
import random
import shutil
import stat
import subprocess

from .. import trees
from ..case import GIB, case
from ..volume import cffs_binary

NAMES = [b"a", b"b", b"c-d", b"c", b"new\nline", b"\xff\xfe", b"-rf", b" x ", b"long" * 40, b"*"]


class Changes:
    """Random changes of a tree."""

    def __init__(self, root, seed):
        self.root = os.fsencode(root)
        self.rng = random.Random(seed)

    def all(self):
        """The paths of directories, the root first, and those of other files."""
        directories, files = [], []
        for directory, below, others in os.walk(self.root):
            directories.append(directory)
            for name in below:
                if os.path.islink(os.path.join(directory, name)):
                    others.append(name)
            files += [os.path.join(directory, name) for name in others]
        return directories, files

    def make(self, count):
        """Makes that many changes. One that the tree does not allow is left out."""
        kinds = [self.write] * 6 + [self.directory] * 4 + [self.link, self.rename] * 2
        kinds += [self.symlink, self.fifo, self.sparse, self.move_directory, self.remove,
                  self.remove_directory, self.exchange_types, self.mode, self.owner, self.time,
                  self.attribute, self.no_attribute, self.acl]
        while count:
            directories, files = self.all()
            self.directories, self.files = sorted(directories), sorted(files)
            try:
                self.rng.choice(kinds)()
                count -= 1
            except (OSError, IndexError):
                pass

    def new(self):
        return os.path.join(self.rng.choice(self.directories), self.rng.choice(NAMES))

    def any_file(self):
        return self.rng.choice(self.files)

    def any(self):
        return self.rng.choice(self.files + self.directories[1:])

    def regular(self):
        path = self.any_file()
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise OSError
        return path

    def write(self):
        is_new = self.rng.random() < 0.6
        with open(self.new() if is_new else self.regular(), "xb" if is_new else "ab") as file:
            file.truncate(self.rng.choice([0, file.tell()]))
            file.write(self.rng.randbytes(self.rng.choice([0, 10, 700, 5000, 2 << 20])))

    def directory(self):
        os.mkdir(self.new())

    def symlink(self):
        os.symlink(self.rng.choice([b"nowhere", b"a", b"../b", b"x//y"]), self.new())

    def link(self):
        os.link(self.any_file(), self.new(), follow_symlinks=False)

    def fifo(self):
        os.mkfifo(self.new())

    def sparse(self):
        with open(self.new(), "xb") as file:
            file.seek(self.rng.choice([1 << 16, 3 << 20]))
            file.write(b"island")
            file.truncate(self.rng.choice([4 << 20, (3 << 20) + 6]))

    def rename(self):
        os.rename(self.any_file(), self.new())

    def move_directory(self):
        os.rename(self.rng.choice(self.directories[1:]), self.new())

    def remove(self):
        os.unlink(self.any_file())

    def remove_directory(self):
        shutil.rmtree(max(self.rng.choices(self.directories[1:], k=2)))

    def exchange_types(self):
        """A directory becomes a file, or a file a directory."""
        path = self.rng.choice([self.any(), self.any_file()])
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
            with open(path, "xb") as file:
                file.write(b"a file now")
        else:
            os.unlink(path)
            os.mkdir(path)
            trees.touch(os.path.join(path, b"inside"))

    def mode(self):
        path = self.any()
        if os.path.islink(path):
            raise OSError
        os.chmod(path, self.rng.choice([0o600, 0o755, 0o1777, 0o2750, 0o4755]))

    def owner(self):
        os.chown(self.any(), self.rng.randrange(5), self.rng.randrange(5), follow_symlinks=False)

    def time(self):
        when = self.rng.choice(trees.TIMES_NS[5:])
        os.utime(self.any(), ns=(when, when), follow_symlinks=False)

    def attribute(self):
        name = self.rng.choice([b"user.one", b"user.two=%"])
        os.setxattr(self.any(), name, self.rng.randbytes(20), follow_symlinks=False)

    def no_attribute(self):
        os.removexattr(self.any(), b"user.one", follow_symlinks=False)

    def acl(self):
        path = self.any()
        if os.path.islink(path):
            raise OSError
        subprocess.run(["setfacl", "-n", "-m", "u:7:rx,m::rwx", path], check=True)


def without_attributes_of_directories(description):
    """GNU tar does not remove the extended attributes of a directory."""
    keep = {}
    for path, fields in description.items():
        is_directory = fields[0].startswith("d")
        keep[path] = [field for field in fields
                      if not (is_directory and isinstance(field, tuple) and field[0].startswith("user."))]
    return keep


def archive(t, source, target, *options):
    with open(target, "wb") as out:
        t.run(cffs_binary(), "tar", source, *options, stdout=out)


@case("increments", size=1 * GIB, only_on="cffs", timeout=400)
def increments(t):
    """A full archive and increments of random changes, written from the mount, from the image, and from a
    copy of the image after a crash: GNU tar and C-FFS, on an image and on a mount, restore exactly the
    tree."""
    seed = int(os.environ.get("SEED", "1"))
    for round in range(t.pick(3, 100)):
        increments_of(t, seed + round, f"{round}")


def increments_of(t, seed, name):
    print(f"SEED={seed}", flush=True)
    for entry in os.listdir(t.dir):
        t.run("rm", "-rf", "--", t.path(entry))
    changes = Changes(t.dir, seed)
    gnu = t.outside(f"gnu{name}")
    os.makedirs(gnu)
    restored = type(t.volume)(t.outside(f"restored{name}"))
    restored.make(GIB, 100_000)
    changes.make(60)
    for directory in ("moved", "stays"):
        t.subdir(directory)
    trees.touch(t.path("moved", "file"))
    os.link(t.path("moved", "file"), t.path("stays", "file"))
    t.run(cffs_binary(), "mark", t.dir, f"{name}.0")
    file = t.outside("archive.tar")
    for number in range(5):
        since = [] if number == 0 else ["--since", f"{name}.{number - 1}"]
        if number == 1:
            # The list does not have the other name of the file.
            os.rename(t.path("moved"), t.path("moved now"))
        changes.make(0 if number == 0 else changes.rng.choice([1, 3, 10, 40]))
        if number == 1:
            archive(t, t.dir, file, *since)
        elif number == 2:
            t.volume.sync()
            copy = t.outside("copy.img")
            t.run("cp", "--sparse=always", t.volume.image, copy)
            archive(t, copy, file, *since)
            os.unlink(copy)
        else:
            t.unmount()
            archive(t, t.volume.image, file, *since)
            t.mount()
        if number > 0:
            t.run(cffs_binary(), "mark", t.dir, f"{name}.{number}")
        expected = trees.describe(t.dir)
        with open(file, "rb") as archived:
            subprocess.run(["tar", "--extract", "--listed-incremental=/dev/null", "--xattrs", "--acls",
                            "--xattrs-include=*", "--numeric-owner", "-C", gnu], stdin=archived, check=True)
        trees.assert_same(without_attributes_of_directories(expected),
                          without_attributes_of_directories(trees.describe(gnu)), f"GNU tar, {number}")
        if number % 2:
            restored.mount()
        target = restored.dir if number % 2 else restored.image
        with open(file, "rb") as archived:
            subprocess.run([cffs_binary(), "tar", "--extract", "--incremental", target], stdin=archived,
                           check=True)
        if number % 2 == 0:
            restored.mount()
        trees.assert_same(expected, trees.describe(restored.dir), f"cffs tar --extract, {number}")
        restored.unmount()
    restored.check()
    shutil.rmtree(gnu)
    os.unlink(restored.image)
