"""Trees of files: one with everything that a UNIX file system can store, and a digest to compare trees."""

import hashlib
import os
import random
import socket
import stat
import subprocess

ODD_NAMES = [
    b"plain", b" leading and trailing ", b"-rf", b"new\nline", b"tab\there", b"\xff\xfe not utf-8 \x80",
    "na\u00efve \u65e5\u672c\u8a9e \U0001f600".encode(), b"back\\slash", b"'quotes\"`", b"*?[glob]", b"...",
    b".hidden", b"~", b"#", b"\x01\x7f", b"a" * 255, b"\xc3" * 255, b"colon:semi;amp&", b"CON", b"x.Y",
]
TIMES_NS = [0, 1, -1_000_000_001, -(1 << 31) * 1_000_000_000, (1 << 31) * 1_000_000_000 + 5,
            4_102_444_800_123_456_789, 1_700_000_000_999_999_999]
SOME_TIME_NS = 987_654_321_123_456_789


def make_odd_tree(root, capabilities=True):
    """Fills the directory with every kind of file, name, time, owner, mode, xattr, ACL and hole."""
    base = os.fsencode(root)
    rng = random.Random(1996)
    names = os.path.join(base, b"names")
    os.mkdir(names)
    for number, name in enumerate(ODD_NAMES):
        with open(os.path.join(names, name), "wb") as file:
            file.write(rng.randbytes(number * 97))
        os.mkdir(os.path.join(names, name[:200] + b".d"))
        os.symlink(name, os.path.join(names, name[:200] + b".link"))

    sizes = os.path.join(base, b"sizes")
    os.mkdir(sizes)
    for size in (0, 1, 59, 60, 61, 255, 256, 511, 512, 1023, 1024, 1025, 4095, 4096, 4097, 8191, 65535, 65536,
                 65537, 1 << 20, (5 << 20) + 3):
        with open(os.path.join(sizes, b"%d" % size), "wb") as file:
            file.write(rng.randbytes(size))
    with open(os.path.join(base, b"sparse"), "wb") as file:
        for offset in (0, 1 << 20, (48 << 20) + 12345):
            file.seek(offset)
            file.write(b"island")
        file.truncate((64 << 20) + 7)

    links = os.path.join(base, b"links")
    os.mkdir(links)
    with open(os.path.join(links, b"first"), "wb") as file:
        file.write(b"one file, three names")
    os.link(os.path.join(links, b"first"), os.path.join(links, b"second"))
    os.link(os.path.join(links, b"first"), os.path.join(names, b"third"))
    os.symlink(b"l" * 1000, os.path.join(links, b"long symlink"))
    os.symlink(b"first", os.path.join(links, b"short symlink"))
    os.link(os.path.join(links, b"short symlink"), os.path.join(links, b"hard link to a symlink"),
            follow_symlinks=False)

    special = os.path.join(base, b"special")
    os.mkdir(special)
    os.mkfifo(os.path.join(special, b"fifo"), 0o640)
    os.mknod(os.path.join(special, b"char"), 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    os.mknod(os.path.join(special, b"block"), 0o660 | stat.S_IFBLK, os.makedev(259, 65537))
    bound = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(special)
    bound.bind("socket")
    os.chdir(here)
    bound.close()

    modes = os.path.join(base, b"modes")
    os.mkdir(modes)
    for mode in (0o000, 0o400, 0o644, 0o777, 0o1644, 0o2755, 0o4755, 0o6711, 0o7777):
        for make, kind in ((touch, b"f"), (os.mkdir, b"d")):
            path = os.path.join(modes, b"%s%04o" % (kind, mode))
            make(path)
            os.chown(path, 1000 + mode, 70000)
            os.chmod(path, mode)

    attributes = os.path.join(base, b"xattrs")
    os.mkdir(attributes)
    for name, value in ((b"user.empty", b""), (b"user.small", b"value"), (b"user.binary", bytes(range(256))),
                        (b"user.large", rng.randbytes(2000)), (b"trusted.root", b"only root sees this"),
                        (b"user." + b"n" * 200, b"long name")):
        path = os.path.join(attributes, name[:60])
        touch(path)
        os.setxattr(path, name, value)
    for number in range(20):
        os.setxattr(os.path.join(attributes, b"user.empty"), b"user.many%d" % number, rng.randbytes(30))
    if capabilities:
        # CAP_NET_RAW, permitted and effective: what `setcap cap_net_raw+ep` writes.
        touch(os.path.join(attributes, b"capable"))
        os.setxattr(os.path.join(attributes, b"capable"), b"security.capability",
                    bytes.fromhex("0100000200200000000000000000000000000000"))
    os.setxattr(attributes, b"user.on.directory", b"yes")
    acls = os.path.join(base, b"acls")
    os.mkdir(acls)
    touch(os.path.join(acls, b"file"))
    subprocess.run(["setfacl", "-m", "u:1000:rw,g:70000:r,m:rwx", os.path.join(acls, b"file")], check=True)
    subprocess.run(["setfacl", "-d", "-m", "u:1000:rwx,g::r-x,o::---", acls], check=True)
    touch(os.path.join(acls, b"heir"))
    os.mkdir(os.path.join(acls, b"heir.d"))

    # Times far from now, with fractions of a second, so that a copy that does not set a time is noticed.
    for directory, _, files in os.walk(base, topdown=False):
        for name in files:
            os.utime(os.path.join(directory, name), ns=(SOME_TIME_NS, SOME_TIME_NS), follow_symlinks=False)
        os.utime(directory, ns=(SOME_TIME_NS, SOME_TIME_NS))
    for name in os.listdir(names):
        os.utime(os.path.join(names, name), ns=(SOME_TIME_NS, SOME_TIME_NS), follow_symlinks=False)
    times = os.path.join(base, b"times")
    os.mkdir(times)
    for when in TIMES_NS:
        path = os.path.join(times, b"%d" % when)
        touch(path)
        os.utime(path, ns=(when, when))
    os.symlink(b"nowhere", os.path.join(times, b"symlink"))
    os.utime(os.path.join(times, b"symlink"), ns=(TIMES_NS[4], TIMES_NS[5]), follow_symlinks=False)
    os.utime(times, ns=(TIMES_NS[3], TIMES_NS[3]))


def touch(path):
    """Makes an empty file."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))


def make_plain_tree(root, files, seed=1):
    """Fills a directory tree with many small files, like a source tree."""
    rng = random.Random(seed)
    block = rng.randbytes(1 << 20)
    directory, number = root, 0
    while number < files:
        directory = os.path.join(root, f"{number % 10}", f"section-{number // 1000}", f"part{number // 25}")
        os.makedirs(directory, exist_ok=True)
        for _ in range(25):
            size = int(rng.lognormvariate(7.5, 1.5)) % 200_000
            start = rng.randrange(len(block) - size)
            with open(os.path.join(directory, f"file-{number:07}.c"), "wb") as file:
                file.write(block[start:start + size])
            number += 1
            if number == files:
                return


def describe(root, times=True):
    """One line per file of the tree: path, kind, owner, mode, links, size, times, xattrs and contents.
    Two trees are the same if their descriptions are."""
    base = os.fsencode(root)
    names_of = {}
    lines = {}
    pending = [b""]
    while pending:
        directory = pending.pop()
        with os.scandir(os.path.join(base, directory)) as entries:
            for entry in entries:
                relative = os.path.join(directory, entry.name)
                status = entry.stat(follow_symlinks=False)
                fields = [stat.filemode(status.st_mode), status.st_uid, status.st_gid]
                if times:
                    fields.append(status.st_mtime_ns)
                if stat.S_ISDIR(status.st_mode):
                    pending.append(relative)
                else:
                    fields += [status.st_nlink, status.st_size]
                    names_of.setdefault(status.st_ino, set()).add(relative)
                if status.st_mode & 0o170000 in (stat.S_IFCHR, stat.S_IFBLK):
                    fields.append(status.st_rdev)
                path = os.path.join(base, relative)
                if stat.S_ISLNK(status.st_mode):
                    fields.append(os.readlink(path))
                elif stat.S_ISREG(status.st_mode):
                    fields.append(digest(path))
                fields += [(name, os.getxattr(path, name, follow_symlinks=False).hex())
                           for name in sorted(os.listxattr(path, follow_symlinks=False))]
                lines[relative] = fields
    for group in names_of.values():
        for name in group:
            lines[name].append(sorted(group))
    return lines


def digest(path):
    """A checksum of the data, without reading holes."""
    sha = hashlib.sha1()
    with open(path, "rb", buffering=0) as file:
        end = os.fstat(file.fileno()).st_size
        offset = 0
        while offset < end:
            try:
                start = os.lseek(file.fileno(), offset, os.SEEK_DATA)
            except OSError:
                break
            offset = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            os.lseek(file.fileno(), start, os.SEEK_SET)
            left, at = offset - start, start
            while left:
                chunk = file.read(min(left, 1 << 20))
                assert chunk, f"{path!r} ends at {at}, inside of data"
                # Written zeros and the zeros of a hole are equal contents.
                if chunk.strip(b"\0"):
                    trimmed = chunk.lstrip(b"\0")
                    sha.update(b"%d:" % (at + len(chunk) - len(trimmed)) + trimmed.rstrip(b"\0"))
                at += len(chunk)
                left -= len(chunk)
    return sha.hexdigest()


def assert_same(expected, found, what):
    """Fails with the first differences between two descriptions."""
    differences = []
    for path in sorted(expected.keys() | found.keys()):
        if expected.get(path) != found.get(path):
            differences.append("\n    ".join((repr(path)[:300], f"expected {expected.get(path)}"[:600],
                                             f"found    {found.get(path)}"[:600])))
    assert not differences, f"{what}: {len(differences)} differences\n" + "\n".join(differences[:10])
