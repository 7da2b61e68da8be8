"""Many, large, long and deep: the limits that C-FFS promises, at the size of the run."""

import errno
import json
import os
import random
import shutil

from .. import trees
from ..case import GIB, MIB, Skip, case
from ..syscalls import Directory
from ..volume import bench_binary, cffs_binary


def used_bytes(path):
    status = os.statvfs(path)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


@case("many-files", size=(2 * GIB, 16 * GIB), inodes=(100_000, 1_200_000), timeout=240)
def many_files(t):
    """find, du and rm -rf over a tree of small files; every file is found, before and after a remount, and
    the space is freed."""
    count = t.pick(20_000, 500_000)
    root = t.subdir("tree")
    trees.make_plain_tree(root, count)
    sums = t.shell(f"find {root} -type f -print0 | sort -z | xargs -0 cat | sha1sum", stdout=-1).stdout
    t.remount()
    assert int(t.shell(f"find {root} -type f | wc -l", stdout=-1).stdout) == count
    apparent = int(t.output("du", "-sb", "--apparent-size", root).split()[0])
    allocated = int(t.output("du", "-s", "-B1", root).split()[0])
    print(f"{apparent} bytes, {allocated} allocated")
    sums_now = t.shell(f"find {root} -type f -print0 | sort -z | xargs -0 cat | sha1sum", stdout=-1).stdout
    assert sums_now == sums
    full = used_bytes(t.dir)
    t.run("rm", "-rf", root)
    t.volume.sync()
    t.remount()
    freed = full - used_bytes(t.dir)
    assert os.listdir(t.dir) in ([], ["lost+found"])
    assert freed > 0.9 * allocated, f"{allocated} were allocated, {freed} were freed"


@case("memory", size=(1 * GIB, 16 * GIB), inodes=(60_000, 1_100_000), only_on="cffs", timeout=240)
def memory(t):
    """A server with `cache=64M` stays below 64 MiB and 128 MiB more, while every file of a large tree is
    listed, stat'ed and read, and one in a hundred is changed."""
    count = t.pick(50_000, 1_000_000)
    t.remount("cache=64M")
    root = t.subdir("tree")
    trees.make_plain_tree(root, count)
    t.remount("cache=64M")
    assert int(t.shell(f"find {root} -type f -size -1000 -printf x | wc -c", stdout=-1).stdout) == count
    t.shell(f"tar cf - {root} 2>/dev/null | wc -c")
    t.shell(f"find {root} -type f -name '*77.c' -print0 | xargs -0 touch")
    pid = json.loads(t.output(cffs_binary(), "info", "--json", t.dir))["server"]["pid"]
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
    print(f"note: {count} files, {peak >> 10} MiB resident at most")
    assert peak << 10 <= 192 * MIB, f"{peak} KiB are resident"


@case("growth", size=256 * MIB, only_on="cffs")
def growth(t):
    """`cffs-bench scale` at small sizes: all steps with a tree and a volume, including recovery from a crash,
    are measured, and memory and images grow no faster than n log n."""
    bench = bench_binary()
    if not os.path.exists(bench):
        raise Skip(f"there is no {bench}: cargo build -p cffs-bench, and name it in $CFFS_BENCH")
    t.unmount()
    for part, sizes in (("tree", "1500,15000"), ("volume", "1,4")):
        report = t.outside(part)
        t.run(bench, "scale", "--quick", "--only", part, "--sizes", sizes, "--cffs", cffs_binary(),
              "--scratch", os.path.dirname(report), "--output", report)
        with open(os.path.join(report, "scale.json"), encoding="utf-8") as file:
            result = json.load(file)
        steps = {sample["step"] for sample in result["samples"]}
        assert len(steps) >= 6 and {"mount", "recovery (fsck -p)"} < steps, steps
        assert len(result["samples"]) == 2 * len(steps), "a step is missing at one size"
        faster = [curve for curve in result["curves"] if curve["measure"] in ("image_bytes", "peak_bytes")
                  and any(step["verdict"] == "faster" for step in curve["growth"])]
        assert not faster, faster
        assert os.listdir(report).count("scale.md") == 1


@case("many-directories", size=(1 * GIB, 16 * GIB), inodes=(30_000, 1_100_000))
def many_directories(t):
    """Directories in directories: a million of them in the full size. The parent's link count is their number
    plus 2, or 1 if the file system does not count beyond its limit."""
    outer = inner = t.pick(100, 1000)
    for first in range(outer):
        parent = t.path(f"{first}")
        os.mkdir(parent)
        for second in range(inner):
            os.mkdir(f"{parent}/{second}")
        assert os.stat(parent).st_nlink in (inner + 2, 1)
    t.remount()
    for first in random.Random(3).sample(range(outer), 20):
        assert len(os.listdir(t.path(f"{first}"))) == inner
        assert os.stat(t.path(f"{first}", f"{inner - 1}", "..")).st_ino == os.stat(t.path(f"{first}")).st_ino
    t.run("rm", "-rf", *(t.path(f"{first}") for first in range(outer)))
    assert os.listdir(t.dir) in ([], ["lost+found"])


@case("big-directory", size=(1 * GIB, 8 * GIB), inodes=(60_000, 1_200_000))
def big_directory(t):
    """One directory with very many names: each is found once, removed names are not found and can be used
    again, and renames within the directory work."""
    count = t.pick(20_000, 1_000_000)
    root = t.subdir("big")
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    for number in range(count):
        os.close(os.open(f"entry-{number:08}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=fd))
    names = os.listdir(root)
    assert len(names) == count == len(set(names))
    for number in range(0, count, 2):
        os.unlink(f"entry-{number:08}", dir_fd=fd)
    for number in range(1, count, 20):
        os.rename(f"entry-{number:08}", f"moved-{number:08}", src_dir_fd=fd, dst_dir_fd=fd)
    os.close(fd)
    t.remount()
    expected = {f"{'moved' if number % 20 == 1 else 'entry'}-{number:08}" for number in range(1, count, 2)}
    names = os.listdir(root)
    assert len(names) == len(expected) and set(names) == expected
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    for name in random.Random(5).sample(sorted(expected), 2000):
        os.stat(name, dir_fd=fd)
    for number in random.Random(6).sample(range(0, count, 2), 2000):
        try:
            os.stat(f"entry-{number:08}", dir_fd=fd)
            raise AssertionError(f"entry-{number:08} was removed, but is found")
        except FileNotFoundError:
            pass
        os.close(os.open(f"entry-{number:08}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=fd))
    os.close(fd)
    assert len(os.listdir(root)) == len(expected) + 2000
    shutil.rmtree(root)


@case("hard-links", size=1 * GIB)
def hard_links(t):
    """65,000 names of one file (the limit of ext4), in many directories; the count is correct at each stage,
    and the contents exist until the last name is removed."""
    count = t.pick(2_000, 65_000)
    first = t.path("first")
    with open(first, "wb") as file:
        file.write(b"shared")
    for number in range(1, count):
        directory = t.path(f"d{number // 500}")
        os.makedirs(directory, exist_ok=True)
        os.link(first, os.path.join(directory, f"name{number}"))
    assert os.stat(first).st_nlink == count
    t.remount()
    inode = os.stat(first).st_ino
    os.unlink(first)
    for number in range(1, count - 1):
        name = t.path(f"d{number // 500}", f"name{number}")
        if number % 100 == 0:
            status = os.stat(name)
            assert (status.st_ino, status.st_nlink) == (inode, count - number), (number, status)
        os.unlink(name)
    t.remount()
    last = t.path(f"d{(count - 1) // 500}", f"name{count - 1}")
    status = os.stat(last)
    assert (status.st_ino, status.st_nlink) == (inode, 1), status
    with open(last, "rb") as file:
        assert file.read() == b"shared"
    # Only one name is left, so the inode may move back to its directory; the file must still work normally.
    os.rename(last, first)
    os.link(first, last)
    t.remount()
    assert os.stat(last).st_nlink == os.stat(first).st_nlink == 2


@case("sparse-16TiB", size=1 * GIB)
def sparse_16_tib(t):
    """A file that ends at 16 TiB (one block before, on ext4) with islands at the start, the middle and the
    end: takes the space of its islands, reads as zeros between them, and has the right end."""
    end = t.volume.file_bytes_max
    islands = {0: b"first", (1 << 32) - 3: b"across 4 GiB", (1 << 41) + 1: b"middle", end - 4: b"last"}
    path = t.path("sparse")
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    for offset, data in islands.items():
        assert os.pwrite(fd, data, offset) == len(data)
    os.fsync(fd)
    assert os.fstat(fd).st_size == end
    os.close(fd)
    t.remount()
    fd = os.open(path, os.O_RDWR)
    status = os.fstat(fd)
    assert status.st_size == end and status.st_blocks * 512 < MIB, status
    for offset, data in islands.items():
        assert os.pread(fd, len(data), offset) == data, offset
    assert os.pread(fd, 4096, 1 << 40) == bytes(4096)
    assert os.lseek(fd, 1 << 20, os.SEEK_DATA) <= (1 << 32) - 3
    assert (1 << 41) - MIB <= os.lseek(fd, (1 << 32) + MIB, os.SEEK_DATA) <= (1 << 41) + 1
    assert os.pread(fd, 100, end) == b""
    os.ftruncate(fd, 1 << 41)
    os.ftruncate(fd, end)
    assert os.pread(fd, 6, (1 << 41) + 1) == bytes(6), "truncated contents came back"
    os.close(fd)
    os.unlink(path)


@case("deep-directories", size=512 * MIB)
def deep_directories(t):
    """Directories deeper than PATH_MAX: created, walked down and up again, and removed by rm -rf."""
    depth = t.pick(300, 5_000)
    os.chdir(t.dir)
    identities = []
    for level in range(depth):
        os.mkdir("directory-of-some-length")
        os.chdir("directory-of-some-length")
        identities.append(os.stat(".").st_ino)
    with open("bottom", "w", encoding="ascii") as file:
        file.write("here")
    for level in range(depth - 1, 0, -1):
        os.chdir("..")
        assert os.stat(".").st_ino == identities[level - 1], level
    os.chdir("/")
    t.remount()
    found = t.output("find", t.dir, "-name", "bottom", check=False)
    assert found.rstrip().endswith(b"bottom")
    t.run("rm", "-rf", t.path("directory-of-some-length"))


@case("names", size=512 * MIB)
def names(t):
    """255 bytes fit, 256 do not; a name may contain any byte except / and NUL; a path of 4095 bytes opens, a
    longer one does not; . and .. have their usual meaning."""
    base = os.fsencode(t.subdir("names"))
    expected = set()
    for byte in range(1, 256):
        if byte not in b"/.":
            expected |= {bytes([byte]), bytes([byte]) * 255, b"x" + bytes([byte])}
    expected |= {b"n" * length for length in range(1, 256)}
    expected |= {b"...", b".a", b"a.", b"e\xcc\x81", b"\xc3\xa9"}
    for name in expected:
        trees.touch(os.path.join(base, name))
    assert set(os.listdir(base)) == expected
    t.remount()
    assert set(os.listdir(base)) == expected
    for name in expected:
        assert os.stat(os.path.join(base, name)).st_nlink == 1, name
    for operation in (trees.touch, os.mkdir, os.unlink, os.rmdir, os.stat, lambda path: os.symlink("x", path),
                      lambda path: os.link(base + b"/n", path), lambda path: os.rename(base + b"/n", path)):
        expect(errno.ENAMETOOLONG, operation, os.path.join(base, b"n" * 256))

    path = base
    while len(path) <= 4095 - 220:
        path += b"/" + b"p" * 100
        os.mkdir(path)
    longest = path + b"/" + b"f" * (4095 - len(path) - 1)
    trees.touch(longest)
    assert len(longest) == 4095 and os.stat(longest).st_size == 0
    expect(errno.ENAMETOOLONG, trees.touch, longest + b"f")
    target = b"t" * t.volume.symlink_bytes_max
    os.symlink(target, base + b"/symlink")
    assert os.readlink(base + b"/symlink") == target
    expect(errno.ENAMETOOLONG, os.symlink, b"t" * 4096, base + b"/too long")

    inner = os.path.join(base, b"inner")
    os.mkdir(inner)
    expect(errno.EEXIST, os.mkdir, inner + b"/.")
    expect(errno.EEXIST, os.mkdir, inner + b"/..")
    expect(errno.EINVAL, os.rmdir, inner + b"/.")
    expect(errno.ENOTEMPTY, os.rmdir, inner + b"/..")
    expect(errno.EBUSY, os.rename, inner + b"/.", base + b"/elsewhere")
    expect(errno.ENOTDIR, os.stat, base + b"/n/")
    assert os.stat(inner + b"/..").st_ino == os.stat(base).st_ino
    listing = Directory(inner)
    assert {listing.next(), listing.next(), listing.next()} == {b".", b"..", None}
    listing.close()
    assert os.stat(t.dir).st_ino == os.stat(t.path(".")).st_ino


def expect(number, function, *arguments):
    """Fails unless the call fails with this errno."""
    try:
        function(*arguments)
    except OSError as error:
        assert error.errno == number, f"{errno.errorcode[number]} expected: {error}"
        return
    raise AssertionError(f"{errno.errorcode[number]} expected, and no error from {arguments!r:.200}")
