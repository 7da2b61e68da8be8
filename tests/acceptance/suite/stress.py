"""Many processes that use a volume at the same time, each in lock step with a reference.

A worker has a directory of its own on the volume and one on ext4. It draws operations from a seed, performs
each on both, and compares what they return; from time to time it compares the two trees in full. Every worker
thus has a real file system as the model of its directory. In between it works in a directory that all workers
share, where any result of a race is valid, except reports of damage and failures of the device.

A worker's operations depend only on its seed, and those in the shared directory on a second seed: the same
seed performs the same operations, although the schedule of the processes differs.
"""

import ctypes
import errno
import hashlib
import os
import random
import shutil
import stat
import struct
import sys
import time
import traceback

from . import nfs_client, syscalls

FILES_MAX = 200
FILE_BYTES_MAX = 200_000
XATTR_BYTES_MAX = 10_000
PIECE_BYTES = 100
DEPTH_MAX = 4
OPEN_MAX = 6
COMPARE_EVERY = 1000
# One operation in this many goes to the directory that all workers share.
SHARED_EVERY = 6

# The valid results of a race in the shared directory.
RACES = {errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY, errno.EISDIR, errno.ENOTDIR, errno.ENODATA,
         errno.EINVAL, errno.ELOOP, errno.EPERM, errno.EOPNOTSUPP, errno.ENXIO, errno.ESTALE, errno.EXDEV}
ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
NAMES = [f"n{number}" for number in range(12)] + ["long-" + "x" * 240, "long-" + "y" * 250, "sp ace", "é\n"]
XATTRS = [f"user.a{number}" for number in range(5)] + ["trusted.t", "user." + "n" * 200]

syscalls.libc.copy_file_range.restype = ctypes.c_ssize_t


class Difference(Exception):
    """The volume and the reference differ."""


def acl(rng):
    """An access control list as the kernel takes it."""
    def entry(tag, permissions, number=0xFFFFFFFF):
        return struct.pack("<HHI", tag, permissions, number)
    users = sorted(rng.sample(range(1000, 1040), rng.randrange(1, 20)))
    return b"".join([struct.pack("<I", 2), entry(1, rng.randrange(8))]
                    + [entry(2, rng.randrange(8), number) for number in users]
                    + [entry(4, rng.randrange(8)), entry(16, rng.randrange(8)), entry(32, rng.randrange(8))])


def payload(seed, size):
    """Bytes derived from a number: zeros, which could be mistaken for holes, a repeated piece, or noise."""
    if seed % 7 == 0:
        return bytes(size)
    rng = random.Random(seed)
    if seed % 7 < 4:
        piece = rng.randbytes(PIECE_BYTES)
        return (piece * (size // PIECE_BYTES + 1))[:size]
    return rng.randbytes(size)


class Operations:
    """The operations, each on a path below one root. They raise OSError, or return a value to compare."""

    def __init__(self, root):
        self.root = root
        self.open = []

    def at(self, path):
        return os.path.join(self.root, path)

    def create(self, path, mode):
        os.close(os.open(self.at(path), os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))

    def mkdir(self, path, mode):
        os.mkdir(self.at(path), mode)

    def mknod(self, path, mode):
        os.mknod(self.at(path), stat.S_IFIFO | mode)

    def symlink(self, path, target):
        os.symlink(target, self.at(path))

    def link(self, source, path):
        os.link(self.at(source), self.at(path), follow_symlinks=False)

    def unlink(self, path):
        os.unlink(self.at(path))

    def rmdir(self, path):
        os.rmdir(self.at(path))

    def rename(self, source, path, flags):
        syscalls.renameat2(self.at(source), self.at(path), flags)

    def tmpfile(self, path, seed, size):
        """A file that gets its name at the end."""
        fd = os.open(os.path.dirname(self.at(path)) or self.root, os.O_TMPFILE | os.O_RDWR, 0o640)
        try:
            os.write(fd, payload(seed, size))
            syscalls.linkat_fd(fd, self.at(path))
        finally:
            os.close(fd)

    def with_fd(self, path, flags, action):
        fd = os.open(self.at(path), flags | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            return action(fd)
        finally:
            os.close(fd)

    def write(self, path, seed, offset, size):
        return self.with_fd(path, os.O_RDWR, lambda fd: os.pwrite(fd, payload(seed, size), offset))

    def append(self, path, seed, size):
        return self.with_fd(path, os.O_WRONLY | os.O_APPEND, lambda fd: os.write(fd, payload(seed, size)))

    def replace(self, path, seed, size):
        """Saves a file as programs do."""
        return self.with_fd(path, os.O_WRONLY | os.O_TRUNC, lambda fd: os.write(fd, payload(seed, size)))

    def read(self, path, offset, size):
        return self.with_fd(path, os.O_RDONLY, lambda fd: digest(os.pread(fd, size, offset)))

    def truncate(self, path, size):
        self.with_fd(path, os.O_RDWR, lambda fd: os.ftruncate(fd, size))

    def fallocate(self, path, mode, offset, size):
        self.with_fd(path, os.O_RDWR, lambda fd: syscalls.fallocate(fd, mode, offset, size))

    def copy(self, source, path, offset, size, to):
        """copy_file_range(2) until everything is copied."""
        def action(fd):
            def into(target):
                copied = 0
                while copied < size:
                    done = os.copy_file_range(fd, target, size - copied, offset + copied, to + copied)
                    if done == 0:
                        break
                    copied += done
                return copied
            return self.with_fd(path, os.O_RDWR, into)
        return self.with_fd(source, os.O_RDONLY, action)

    def setxattr(self, path, name, value, flags):
        os.setxattr(self.at(path), name, value, flags, follow_symlinks=False)

    def dress(self, path, seed):
        """Sets many attributes, which take far more than a sector, and reads one of them."""
        rng = random.Random(seed)
        for name in XATTRS:
            self.setxattr(path, name, rng.randbytes(rng.randrange(XATTR_BYTES_MAX)), 0)
        return self.getxattr(path, rng.choice(XATTRS))

    def getxattr(self, path, name):
        return digest(os.getxattr(self.at(path), name, follow_symlinks=False))

    def removexattr(self, path, name):
        os.removexattr(self.at(path), name, follow_symlinks=False)

    def listxattr(self, path):
        return sorted(os.listxattr(self.at(path), follow_symlinks=False))

    def chmod(self, path, mode):
        # Root is in no group but its own here, so a set-group-id bit stays.
        fd = os.open(self.at(path), os.O_PATH | os.O_NOFOLLOW)
        try:
            os.chmod(f"/proc/self/fd/{fd}", mode)
        finally:
            os.close(fd)

    def chown(self, path, uid, gid):
        os.lchown(self.at(path), uid, gid)

    def utimens(self, path, access, modification):
        syscalls.utimensat(self.at(path), access, modification, 0x100)
        found = os.lstat(self.at(path))
        return found.st_atime_ns, found.st_mtime_ns

    def fsync(self, path):
        self.with_fd(path, os.O_RDONLY, os.fsync)

    def readdir(self, path):
        return sorted(os.listdir(self.at(path)))

    def stat(self, path):
        return attributes(os.lstat(self.at(path)))

    def statfs(self):
        os.statvfs(self.root)

    def hold(self, path):
        """Opens a file and keeps it open, even if its name is removed."""
        self.open.append(os.open(self.at(path), os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK))

    def use(self, number, seed, offset, size):
        """Writes and reads a file that is kept open; returns the result of fstat(2)."""
        fd = self.open[number]
        os.pwrite(fd, payload(seed, size), offset)
        return digest(os.pread(fd, FILE_BYTES_MAX, 0)), attributes(os.fstat(fd))

    def drop(self, number):
        os.close(self.open.pop(number))

    def close(self):
        while self.open:
            self.drop(0)


def digest(data):
    return len(data), hashlib.blake2b(data, digest_size=8).hexdigest()


def attributes(found):
    """The attributes on which two file systems agree: not the times, which differ between two calls, nor a
    directory's size."""
    is_directory = stat.S_ISDIR(found.st_mode)
    size = None if is_directory else found.st_size
    return found.st_mode, found.st_uid, found.st_gid, found.st_nlink, size


def listing(root):
    """Everything in a tree on which two file systems agree, by path."""
    found, first_names = {}, {}
    pending = [""]
    while pending:
        path = pending.pop()
        at = os.path.join(root, path) if path else root
        status = os.lstat(at)
        names = [] if stat.S_ISLNK(status.st_mode) else os.listxattr(at, follow_symlinks=False)
        values = {name: digest(os.getxattr(at, name, follow_symlinks=False)) for name in names}
        contents = None
        if stat.S_ISREG(status.st_mode):
            with open(at, "rb") as file:
                contents = digest(file.read())
        elif stat.S_ISLNK(status.st_mode):
            contents = os.readlink(at)
        elif stat.S_ISDIR(status.st_mode):
            contents = sorted(os.listdir(at))
            pending += [os.path.join(path, name) for name in contents]
        first = first_names.setdefault(status.st_ino, path)
        found[path] = (attributes(status), contents, values, first)
    # The order of the walk decides which name is the first.
    return {path: (*rest, min(p for p, v in found.items() if v[3] == first) if rest[0][3] > 1 else path)
            for path, (*rest, first) in found.items()}


class Worker:
    """One process, with a directory on the volume and one on the reference."""

    def __init__(self, seed, volume, reference, shared):
        self.seed = seed
        self.rng = random.Random(seed)
        self.shared_rng = random.Random(seed ^ 0x5A5A)
        self.sides = (Operations(volume), Operations(reference))
        self.shared = Operations(shared)
        # The known kind of each path.
        self.paths = {}
        self.count = 0
        self.recent = []

    def step(self):
        """Performs one operation on both sides."""
        self.count += 1
        name, arguments = self.draw()
        if name is None:
            return
        self.recent = self.recent[-9:] + [(name, *short(arguments))]
        results = [outcome(getattr(side, name), arguments) for side in self.sides]
        if results[0] != results[1]:
            volume, reference = results
            raise Difference(f"{name}{short(arguments)}: the volume said {volume}, the reference {reference}")
        if results[0][0] == "ok":
            self.learn(name, arguments)
        if self.shared_rng.randrange(SHARED_EVERY) == 0:
            self.race()
        if self.count % COMPARE_EVERY == 0:
            self.compare()

    def compare(self):
        """Compares the two trees."""
        one, other = (listing(side.root) for side in self.sides)
        for path in sorted(one.keys() | other.keys()):
            if one.get(path) != other.get(path):
                raise Difference(f"{path!r}: the volume has {one.get(path)}, the reference {other.get(path)}")

    # Drawing

    def some(self, *kinds):
        """A path that probably exists, of one of these kinds; sometimes any other path."""
        if self.rng.random() < 0.05:
            return self.fresh()
        known = [path for path, kind in self.paths.items() if not kinds or kind in kinds]
        return self.rng.choice(known) if known else self.fresh()

    def fresh(self):
        """A path that probably does not exist."""
        above = [path for path, kind in self.paths.items() if kind == "d" and path.count("/") < DEPTH_MAX]
        directory = self.rng.choice([""] * 2 + above)
        return os.path.join(directory, self.rng.choice(NAMES))

    def draw(self):
        rng = self.rng
        if len(self.paths) > FILES_MAX and rng.random() < 0.5:
            name = rng.choice(("unlink", "unlink", "rmdir"))
        else:
            name = rng.choices(*WEIGHTS)[0]
        offset = rng.randrange(FILE_BYTES_MAX // 2) 
        offset -= offset % rng.choice((1, 1, 512, 4096))
        size = rng.choice((rng.randrange(1, 300), rng.randrange(1, 5000), rng.randrange(1, 80_000)))
        seed = rng.randrange(1 << 30)
        number = rng.randrange(len(self.sides[0].open)) if self.sides[0].open else None
        is_full = len(self.sides[0].open) >= OPEN_MAX
        if name in ("use", "drop") and number is None or name == "hold" and is_full:
            return None, ()
        second = lambda: (rng.randrange(-(1 << 31), 1 << 33), rng.randrange(10 ** 9))  # noqa: E731
        mode = rng.choice((0o644, 0o600, 0o755, 0o700, 0o1777, 0o2755, 0o4711))
        value = rng.randbytes(rng.choice((0, rng.randrange(100), rng.randrange(XATTR_BYTES_MAX))))
        return name, {
            "create": lambda: (self.fresh(), mode),
            "mkdir": lambda: (self.fresh(), mode),
            "mknod": lambda: (self.fresh(), mode & 0o777),
            "symlink": lambda: (self.fresh(), "t" * rng.choice((3, 60, 500, 4000))),
            "link": lambda: (self.some("f", "l", "p"), self.fresh()),
            "tmpfile": lambda: (self.fresh(), seed, size),
            "unlink": lambda: (self.some("f", "l", "p"),),
            "rmdir": lambda: (self.some("d"),),
            "rename": lambda: (self.some(), rng.choice((self.fresh, self.some))(),
                               rng.choice((0, 0, 0, syscalls.RENAME_NOREPLACE, syscalls.RENAME_EXCHANGE))),
            "write": lambda: (self.some("f"), seed, offset, size),
            "append": lambda: (self.some("f"), seed, size % 20_000),
            "replace": lambda: (self.some("f"), seed, size),
            "read": lambda: (self.some("f"), offset, size),
            "truncate": lambda: (self.some("f"), rng.choice((0, offset, offset + size))),
            "fallocate": lambda: (self.some("f"), rng.choice((
                0, syscalls.FALLOC_KEEP_SIZE, syscalls.FALLOC_PUNCH_HOLE | syscalls.FALLOC_KEEP_SIZE,
                syscalls.FALLOC_ZERO)), offset, size),
            # Copies of whole files may share clusters.
            "copy": lambda: (self.some("f"), self.some("f"),
                             *rng.choice(((offset // 4, size, offset), (0, FILE_BYTES_MAX, 0)))),
            "setxattr": lambda: (self.some(), rng.choice(XATTRS), value, rng.choice((0, 0, 0, 1, 2))),
            "dress": lambda: (self.some("f", "d"), seed),
            "acl": lambda: (self.some("f", "d"), rng.choice((ACCESS, DEFAULT)), acl(rng), 0),
            "getxattr": lambda: (self.some(), rng.choice(XATTRS)),
            "removexattr": lambda: (self.some(), rng.choice(XATTRS + [ACCESS, DEFAULT])),
            "listxattr": lambda: (self.some(),),
            "chmod": lambda: (self.some("f", "d", "p"), mode),
            "chown": lambda: (self.some(), rng.choice((0, 1000, 1 << 31)), rng.choice((0, 1000))),
            "utimens": lambda: (self.some(), second(), second()),
            "fsync": lambda: (self.some("f", "d"),),
            "readdir": lambda: (self.some("d"),),
            "stat": lambda: (self.some(),),
            "statfs": lambda: (),
            "hold": lambda: (self.some("f"),),
            "use": lambda: (number, seed, offset, size % 20_000),
            "drop": lambda: (number,),
        }[name]()

    def close(self):
        for side in self.sides:
            side.close()

    def learn(self, name, arguments):
        """Records the changes of a successful operation to the paths."""
        kinds = {"create": "f", "tmpfile": "f", "mkdir": "d", "mknod": "p", "symlink": "l"}
        if name in kinds:
            self.paths[arguments[0]] = kinds[name]
        elif name == "link":
            self.paths[arguments[1]] = self.paths.get(arguments[0], "f")
        elif name in ("unlink", "rmdir"):
            self.paths.pop(arguments[0], None)
        elif name == "rename":
            source, path, flags = arguments
            moved = self.take(source)
            if flags == syscalls.RENAME_EXCHANGE:
                self.put(source, self.take(path))
            else:
                self.take(path)
            self.put(path, moved)

    def take(self, top):
        below = [path for path in self.paths if path == top or path.startswith(top + "/")]
        return {path[len(top):]: self.paths.pop(path) for path in below}

    def put(self, top, kinds):
        self.paths.update({top + rest: kind for rest, kind in kinds.items()})

    # The shared directory

    def race(self):
        """Performs an operation where others work, too."""
        rng = self.shared_rng
        one, other = (rng.choice(("", "", "d0/", "d1/")) + rng.choice(NAMES[:8]) for _ in range(2))
        directory = rng.choice(("d0", "d1"))
        size = rng.randrange(1, 30_000)
        name, arguments = rng.choice((
            ("create", (one, 0o644)), ("mkdir", (directory, 0o755)), ("symlink", (one, other)),
            ("link", (one, other)), ("unlink", (one,)), ("rmdir", (directory,)),
            ("rename", (one, other, rng.choice((0, 1, 2)))), ("rename", ("d0", "d1", rng.choice((0, 2)))),
            ("write", (one, size, size, size)), ("append", (one, size, size)), ("truncate", (one, size)),
            ("setxattr", (one, rng.choice(XATTRS), rng.randbytes(size % XATTR_BYTES_MAX), 0)),
            ("setxattr", (directory, ACCESS, acl(rng), 0)), ("getxattr", (one, rng.choice(XATTRS))),
            ("removexattr", (one, rng.choice(XATTRS))), ("listxattr", (one,)), ("chmod", (one, 0o640)),
            ("read", (one, 0, FILE_BYTES_MAX)), ("readdir", ("",)), ("readdir", (directory,)),
            ("fsync", (one,)), ("stat", (one,)), ("copy", (one, other, 0, size, 0)),
        ))
        result = outcome(getattr(self.shared, name), arguments)
        if result[0] == "errno" and getattr(errno, result[1]) not in RACES:
            raise Difference(f"in the shared directory, {name}{short(arguments)}: {result[1]}")


# How often each operation is drawn.
WEIGHTS = tuple(zip(*{
    "create": 8, "mkdir": 4, "mknod": 1, "symlink": 2, "link": 3, "tmpfile": 1, "unlink": 5, "rmdir": 3,
    "rename": 6, "write": 10, "append": 5, "replace": 3, "read": 6, "truncate": 4, "fallocate": 4, "copy": 2,
    "setxattr": 8, "dress": 6, "acl": 3, "getxattr": 5, "removexattr": 4, "listxattr": 3, "chmod": 2,
    "chown": 2, "utimens": 2, "fsync": 3, "readdir": 3, "stat": 3, "statfs": 1, "hold": 2, "use": 4,
    "drop": 1,
}.items()))

Operations.acl = Operations.setxattr


def outcome(operation, arguments):
    """The result of an operation: ("ok", value) or ("errno", name)."""
    try:
        return "ok", operation(*arguments)
    except OSError as error:
        return "errno", errno.errorcode.get(error.errno, str(error.errno))


def short(arguments):
    """Arguments, shortened for printing."""
    def one(each):
        if isinstance(each, bytes):
            return f"{len(each)} bytes"
        if isinstance(each, str) and len(each) > 60:
            return f"{each[:50]}... ({len(each)})"
        return each
    return tuple(map(one, arguments))


class NfsWorker:
    """An NFS client, with files of its own whose contents it knows, and some that it shares with others."""

    # The NFS statuses of valid results of a race.
    RACES = {2, 17, 20, 21, 22, 66, 70}

    def __init__(self, seed, port, directory, shared):
        self.seed, self.rng, self.count = seed, random.Random(seed), 0
        self.client = nfs_client.Client(port)
        root = self.client.root()
        self.directory = self.client.lookup(root, os.fsencode(directory))
        self.shared = self.client.lookup(root, os.fsencode(shared))
        self.known = {}
        self.recent = []

    def step(self):
        self.count += 1
        rng = self.rng
        name, other = (f"f{rng.randrange(30)}".encode() for _ in range(2))
        action = rng.choice((self.save, self.save, self.overwrite, self.check, self.remove, self.rename))
        self.recent = self.recent[-9:] + [(action.__name__, name, other)]
        action(name, other)
        if rng.randrange(SHARED_EVERY) == 0:
            self.race(rng.choice(NAMES[:8]).encode(), rng.choice(NAMES[:8]).encode())
        if self.count % COMPARE_EVERY == 0:
            self.compare()

    def save(self, name, _):
        data = self.rng.randbytes(self.rng.randrange(40_000))
        file = self.client.create(self.directory, name)
        self.known[name] = data
        for at in range(0, len(data), 8192):
            stable = self.rng.choice((nfs_client.UNSTABLE, nfs_client.UNSTABLE, nfs_client.FILE_SYNC))
            self.client.write(file, at, data[at:at + 8192], stable)
        if self.rng.randrange(2):
            self.client.commit(file)

    def overwrite(self, name, _):
        if data := self.known.get(name):
            at = self.rng.randrange(len(data))
            piece = self.rng.randbytes(min(len(data) - at, 3000))
            file = self.client.lookup(self.directory, name)
            self.client.write(file, at, piece, nfs_client.UNSTABLE)
            self.known[name] = data[:at] + piece + data[at + len(piece):]

    def check(self, name, _):
        try:
            file = self.client.lookup(self.directory, name)
            found = self.client.read(file, FILE_BYTES_MAX)
        except nfs_client.Failed as failed:
            found = failed.status
        expected = self.known.get(name, nfs_client.NOENT)
        if found != expected:
            raise Difference(f"{name}: {short((found,))}, and not {short((expected,))}")

    def remove(self, name, _):
        expected = 0 if self.known.pop(name, None) is not None else nfs_client.NOENT
        self.expect(expected, self.client.remove, self.directory, name)

    def rename(self, name, other):
        data = self.known.get(name)
        self.expect(nfs_client.NOENT if data is None else 0, self.client.rename, self.directory, name, other)
        if data is not None:
            del self.known[name]
            self.known[other] = data

    def expect(self, status, call, *arguments):
        try:
            call(*arguments)
            found = 0
        except nfs_client.Failed as failed:
            found = failed.status
        if found != status:
            raise Difference(f"{call.__name__}{short(arguments[1:])}: status {found}, and not {status}")

    def race(self, name, other):
        """Performs an operation where others work, too."""
        try:
            file = self.client.create(self.shared, name)
            self.client.write(file, 0, name * 300, nfs_client.UNSTABLE)
            self.client.commit(file)
            self.client.rename(self.shared, name, other)
            self.client.remove(self.shared, other)
        except nfs_client.Failed as failed:
            if failed.status not in self.RACES:
                at = f"in the shared directory, {name}, {other}"
                raise Difference(f"{at}: status {failed.status}") from None

    def compare(self):
        for name in self.known:
            self.check(name, name)

    def close(self):
        self.client.close()


def run(worker, seconds):
    """Runs a worker for some time, in a process of its own; returns True if all results were as expected."""
    try:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            worker.step()
        worker.compare()
        return True
    except BaseException:  # any exception must be reported in the log
        print(f"worker with seed {worker.seed}, after {worker.count} operations, which ended with:")
        for operation in worker.recent:
            print("   ", operation)
        traceback.print_exc(file=sys.stdout)
        return False
    finally:
        print(f"worker {worker.seed}: {worker.count} operations")
        sys.stdout.flush()
        worker.close()


def together(makers, seconds):
    """Creates workers and runs them at the same time, each in a process; fails if one of them fails."""
    children = []
    for make in makers:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = 0 if run(make(), seconds) else 1
            finally:
                sys.stdout.flush()
                os._exit(status)
        children.append(child)
    failed = [number for number, child in enumerate(children) if os.waitpid(child, 0)[1] != 0]
    assert not failed, f"workers {failed} failed: see above"


def in_lock_step(seed, count, volume, reference):
    """Functions that create workers, in new directories of the volume and of the reference."""
    for number in range(count):
        place, model = os.path.join(volume, f"w{number}"), os.path.join(reference, f"w{number}")
        os.mkdir(place)
        os.mkdir(model)
        yield lambda own=seed * 1000 + number, place=place, model=model: Worker(
            own, place, model, os.path.join(volume, "shared"))


def compare_all(volume, reference):
    """Compares the directories of all workers, for example after a remount."""
    for name in sorted(os.listdir(reference)):
        if name.startswith("w"):
            Worker(0, os.path.join(volume, name), os.path.join(reference, name), volume).compare()


def clear(*directories):
    """Removes the workers' files."""
    for directory in directories:
        for name in os.listdir(directory):
            if name != "lost+found":
                shutil.rmtree(os.path.join(directory, name))
