#!/usr/bin/env python3
"""Counts and times for the tables and figures of PLACE, on ext4.

    place_study.py PLACE CFFS_BENCH SCRATCH [PART...]     (called by place-study.sh)

Prints the report, or only the named parts of it. The counts are those of the kernel's block layer on a loop
device, and the places those that it reports for files. Times are those of an emulated disk.
"""

import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import random
import shutil
import statistics
import struct
import sys
import threading
import time
from pathlib import Path

sys.dont_write_bytecode = True
from emulated import Disk, MemoryGroup, drop_caches, run

PLACE, BENCH = sys.argv[1:3]
GIB = 1 << 30
GROUP_BYTES = 2 * GIB
PROFILE = "atlas-ii"


class Volume:
    """ext4 with the defaults of mkfs, in 8 GiB: four flex groups of 2 GiB."""

    def __init__(self, scratch):
        self.image = Path(scratch) / "image"
        self.root = Path(scratch) / "mnt"
        self.root.mkdir(exist_ok=True)

    def __enter__(self):
        with open(self.image, "wb") as image:
            image.truncate(8 * GIB)
        run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(self.image))
        self.device = run("losetup", "--find", "--show", str(self.image))
        run("mount", self.device, str(self.root))
        self.init = run(PLACE, "init", str(self.root))
        return self

    def __exit__(self, *_):
        run("umount", str(self.root))
        run("losetup", "--detach", self.device)
        self.image.unlink()

    def chill(self):
        run("umount", str(self.root))
        drop_caches()
        run("mount", "-o", "noatime", self.device, str(self.root))

    def counted(self, work):
        """The reads and writes of the device, and the KiB written, until everything is written."""
        run("sync", "--file-system", str(self.root))
        before = self.stat()
        work()
        run("sync", "--file-system", str(self.root))
        return [now - then for now, then in zip(self.stat(), before)]

    def stat(self):
        fields = Path(f"/sys/block/{Path(self.device).name}/stat").read_text().split()
        return int(fields[0]), int(fields[4]), int(fields[6]) // 2


class DiskVolume(Volume):
    """The same on an emulated Atlas II, which has seven zones. It has delays only while it is timed."""

    def __enter__(self):
        self.disk = Disk(BENCH, self.root.parent, 8 * GIB, PROFILE, sector=512)
        with contextlib.ExitStack() as stack:
            self.device = stack.enter_context(self.disk).device
            run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", self.device)
            run("mount", "-o", "noatime", self.device, str(self.root))
            stack.callback(run, "umount", str(self.root))
            init = self.disk.counted(lambda: run(PLACE, "init", str(self.root)))
            self.init_seconds = init["seconds"]
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self.stack.close()

    def timed(self, work):
        """The seconds until the work is done and written."""
        run("sync", "--file-system", str(self.root))

        def durable():
            work()
            run("sync", "--file-system", str(self.root))

        return self.disk.counted(durable)["seconds"]

    def busy_seconds(self, paths):
        """The time for which the disk is busy while files are read, with their inodes in memory."""
        self.chill()
        for path in paths:
            os.stat(path)
        return self.disk.counted(lambda: [path.read_bytes() for path in paths])["busy_ns"] / 1e9


def place_of(path):
    """The device offset of a file's first block, by FIEMAP; None without blocks."""
    with open(path, "rb") as file:
        request = bytearray(struct.pack("<QQIIII", 0, 2**64 - 1, 1, 0, 1, 0) + bytes(56))
        fcntl.ioctl(file, 0xC020660B, request)
    return struct.unpack_from("<Q", request, 40)[0] if struct.unpack_from("<I", request, 20)[0] else None


def in_group(paths, group):
    return sum(place_of(path) // GROUP_BYTES == group for path in paths)


def travel(paths):
    """The mean distance between the contents of files that follow each other, in MB."""
    places = [place_of(path) for path in paths]
    return sum(abs(b - a) for a, b in zip(places, places[1:])) / (len(places) - 1) / 1e6


def files_below(root):
    return sorted(path for path in root.rglob("*") if path.is_file())


def plant(root, directories, files, sizes, seed):
    chance = random.Random(seed)
    for number in range(directories):
        (root / f"d{number:03}").mkdir(parents=True)
    for number in range(files):
        path = root / f"d{number % directories:03}" / f"f{number:04}"
        path.write_bytes(chance.randbytes(chance.choice(sizes)))


class Stopwatch:
    """Milliseconds by part."""

    def __init__(self):
        self.parts = {}

    @contextlib.contextmanager
    def part(self, name):
        begun = time.perf_counter()
        yield
        self.parts.setdefault(name, []).append((time.perf_counter() - begun) * 1e3)

    def mean(self, name):
        return statistics.mean(self.parts[name])


class Library:
    """libplace."""

    def __init__(self):
        self.c = ctypes.CDLL(str(Path(PLACE).with_name("libplace.so")))
        self.c.place_open.restype = ctypes.c_void_p
        self.c.place_error.restype = ctypes.c_char_p

    @contextlib.contextmanager
    def opened(self, path):
        tree = ctypes.c_void_p(self.c.place_open(os.fsencode(path)))
        if not tree:
            sys.exit(f"place_open: {self.c.place_error().decode()}")
        yield tree
        self.c.place_close(tree)

    def made(self, call, tree, path, mode, *more):
        arguments = [ctypes.c_uint64(number) for number in more]
        if getattr(self.c, call)(tree, os.fsencode(path), mode, *arguments):
            sys.exit(f"{call}: {self.c.place_error().decode()}")


def table(title, header, rows, before=""):
    print(f"## {title}\n")
    if before:
        print(before + "\n")
    print("| " + " | ".join(header) + " |")
    print("| " + " | ".join("---" for _ in header) + " |")
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    print()


def table_1(scratch):
    rows = []
    for size in (0, 8 << 10, 64 << 10, 1 << 20):
        cells = []
        for command in (["cp"], [PLACE, "cp", "--group", "2"]):
            with Volume(scratch) as volume:
                (volume.root / "from").write_bytes(random.Random(1).randbytes(size))

                def copies():
                    for number in range(100):
                        run(*command, str(volume.root / "from"), str(volume.root / f"c{number}"))

                _, writes, kib = volume.counted(copies)
                paths = [volume.root / f"c{number}" for number in range(100)]
                right = in_group(paths, 2) if size else "-"
                cells += [f"{writes / 100:.1f}", f"{kib / 100:.0f}", right]
        rows.append([f"{size >> 10} KiB", *cells])
    header = ["size", "cp: writes", "KiB", "in group 2", "place cp: writes", "KiB", "in group 2"]
    table("Table 1: creating files in a group", header, rows, "Of the device, for each of 100 files.")


def write_whole(path, data):
    """Writes a file with the calls that any program would use."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.write(file, data)
    os.close(file)


def table_1_times(scratch):
    """What a file of a program costs that uses the library, and its parts."""
    library, rows = Library(), []
    for size in (0, 8 << 10, 64 << 10, 1 << 20):
        data, watch = random.Random(1).randbytes(size), Stopwatch()
        with DiskVolume(scratch) as volume:

            def make(number):
                standard, placed, empty = (volume.root / f"{kind}{number}" for kind in ("s", "p", "e"))
                with watch.part("base"):
                    write_whole(standard, data)
                with watch.part("rename"):
                    os.rename(standard, volume.root / f"r{number}")
                with watch.part("all"):
                    with watch.part("open"):
                        opened = library.opened(volume.root / "any")
                        tree = opened.__enter__()
                    with watch.part("make"):
                        library.made("place_create_file_with_room", tree, placed, 0o644, 2, size)
                    with watch.part("write"):
                        write_whole(placed, data)
                with watch.part("empty"):
                    library.made("place_create_file", tree, empty, 0o644, 2)
                opened.__exit__(None, None, None)

            volume.timed(lambda: [make(number) for number in range(100)])
            right = in_group([volume.root / f"p{number}" for number in range(100)], 2) if size else "-"
        space = watch.mean("make") - watch.mean("empty")
        parts = [watch.mean(name) for name in ("base", "open", "empty")] + [space, watch.mean("write")]
        parts += [watch.mean("all"), watch.mean("rename")]
        rows.append([f"{size >> 10} KiB", *(f"{ms:.2f}" for ms in parts), right])
    header = ["size", "standard calls", "placed: open the tree", "make and name", "allocate", "write"]
    header += ["total", "a rename", "in group 2"]
    table("Table 1: times of a file, in ms", header, rows, TIMES_OF_CALLS + TIMES_OF_FILES)


def table_2_times(scratch):
    library, watch = Library(), Stopwatch()
    with DiskVolume(scratch) as volume:

        def make(number):
            with watch.part("base"):
                os.mkdir(volume.root / f"s{number}")
            with watch.part("open"):
                opened = library.opened(volume.root / "any")
                tree = opened.__enter__()
            with watch.part("make"):
                library.made("place_create_dir", tree, volume.root / f"p{number}", 0o755, 2)
            opened.__exit__(None, None, None)

        volume.timed(lambda: [make(number) for number in range(100)])
    rows = [[name, *(f"{of(watch.parts[part]):.2f}" for part in ("base", "open", "make"))]
            for name, of in (("mean", statistics.mean), ("median", statistics.median), ("longest", max))]
    header = ["", "standard call", "placed: open the tree", "make, check and rename"]
    table("Table 2: times of a directory, in ms", header, rows, TIMES_OF_CALLS)


TIMES_OF_FILES = " Allocating is the difference between a file with room and one without."
TIMES_OF_CALLS = """\
100 of them by the library, until the calls return, on an emulated Atlas II. What the kernel writes later
takes no time here."""


def table_2(scratch):
    rows = []
    for name, command in (("mkdir", ["mkdir"]), ("place mkdir", [PLACE, "mkdir", "--group", "2"])):
        for each in (False, True):
            with Volume(scratch) as volume:
                paths = [str(volume.root / f"d{number}") for number in range(100)]
                calls = [[path] for path in paths] if each else [paths]
                _, writes, kib = volume.counted(lambda: [run(*command, *call) for call in calls])
                right = sum((os.stat(path).st_ino - 1) // (8192 * 16) == 2 for path in paths)
                rows.append([name, "100 calls" if each else "1 call", writes, kib, right])
    table("Table 2: creating 100 directories", ["command", "", "writes", "KiB", "in group 2"], rows)


def figures_3_to_5(scratch):
    with Volume(scratch) as volume:
        print(f"## Figure 4: initialization\n\nRoot: {volume.init}. There is no cache to fill.\n")
        plant(volume.root / "tree", 100, 250, [200 << 10], 1)
        run(PLACE, "cp", "--group", "2", str(volume.root / "tree"), str(volume.root / "copy"))
        originals, copies = (files_below(volume.root / name) for name in ("tree", "copy"))
        row = [[in_group(originals, group), in_group(copies, group)] for group in range(4)]
        rows = [[group, *cells] for group, cells in enumerate(row)]
        header = ["group", "as made", "after place cp --group 2"]
        table("Figure 3: 250 files of 200 KiB in 100 directories", header, rows)
    rows = []
    for way in ("cp -r", "file by file", "place cp"):
        with DiskVolume(scratch) as volume:
            source, to = volume.root / "tree", volume.root / "copy"
            plant(source, 50, 500, [1000, 4000, 16_000, 40_000], 2)

            def naive():
                for path in [source, *sorted(source.rglob("*"))]:
                    at = str(to / path.relative_to(source)).rstrip("/.")
                    if path.is_dir():
                        run(PLACE, "mkdir", "--group", "2", at)
                    else:
                        run(PLACE, "cp", "--group", "2", str(path), at)

            work = {
                "cp -r": lambda: run("cp", "-r", str(source), str(to)),
                "file by file": naive,
                "place cp": lambda: run(PLACE, "cp", "--group", "2", str(source), str(to)),
            }[way]
            counts = []
            seconds = volume.timed(lambda: counts.extend(volume.counted(work)))
            rows.append([way, *counts[1:], f"{in_group(files_below(to), 2)} of 500", f"{seconds:.2f}"])
    header = ["", "writes", "KiB", "in group 2", "s, until written"]
    table("Figure 5: copying a tree of 500 files in 50 directories", header, rows, ON_DISK)


ON_DISK = "On an emulated Atlas II, with the tree in memory."
TIMED = """Read cold, with inodes in memory, on an emulated Atlas II (`cffs-bench disk --profile atlas-ii`).
Times are those for which the disk is busy. They depend on the angle of the platter at each request, so they
differ by up to 4% between runs."""


class Array:
    """Emulated disks, with addresses in stripes over them, for one reader. Each has a part of the 8 GiB."""

    CHUNK = 64 << 10

    def __init__(self, scratch, members):
        self.place = Path(scratch) / "array"
        self.members = members

    def __enter__(self):
        self.stack = contextlib.ExitStack()
        self.files = []
        for number in range(self.members):
            (self.place / str(number)).mkdir(parents=True)
            disk = Disk(BENCH, self.place / str(number), 8 * GIB // self.members, PROFILE, sector=512)
            self.stack.enter_context(disk)
            disk.become(PROFILE)
            self.files.append(os.open(disk.file, os.O_RDONLY | os.O_DIRECT))
            self.stack.callback(os.close, self.files[-1])
        return self

    def __exit__(self, *_):
        self.stack.close()
        shutil.rmtree(self.place)

    def read(self, place, length):
        """Reads a piece of the array, from all members that have some of it at once."""
        pieces = []
        while length:
            chunk, inside = divmod(place, self.CHUNK)
            stripe, member = divmod(chunk, self.members)
            size = min(length, self.CHUNK - inside)
            pieces.append((self.files[member], mmap.mmap(-1, size), stripe * self.CHUNK + inside))
            place, length = place + size, length - size
        threads = [threading.Thread(target=lambda file, to, at: os.preadv(file, [to], at), args=piece)
                   for piece in pieces[1:]]
        for thread in threads:
            thread.start()
        file, to, at = pieces[0]
        os.preadv(file, [to], at)
        for thread in threads:
            thread.join()

    def seconds(self, places, length):
        begun = time.monotonic()
        for place in places:
            self.read(place, length)
        return time.monotonic() - begun


# The size of a file of figure 6, and the bytes that an Atlas II reads beyond a request.
SMALL = 8 << 10
READ_AHEAD = 128 << 10


def figure_6(scratch):
    rows, followed, layouts = [], [], {}
    for name, groups in (("one group", [0]), ("one group, packed", [0]), ("two groups", [0, 1]),
                         ("ends of the disk", [0, 3]), ("all groups", [0, 1, 2, 3])):
        with DiskVolume(scratch) as volume:
            chance, paths = random.Random(3), []
            (volume.root / "from").write_bytes(chance.randbytes(SMALL))
            for number in range(200):
                path = volume.root / f"f{number:03}"
                group = str(chance.choice(groups))
                run(PLACE, "cp", "--group", group, str(volume.root / "from"), str(path))
                paths.append(path)
            if "packed" in name:
                run(PLACE, "pack", "--group", "0", str(volume.root))
            shuffled = chance.sample(paths, len(paths))
            best = sorted(paths, key=place_of)
            cells = [f"{cell:.2f}" for order in (shuffled, best)
                     for cell in (travel(order), volume.busy_seconds(order))]
            rows.append([name, *cells, f"{volume.busy_seconds(best[::2] + best[1::2]):.2f}"])
            gaps = [(place_of(b) - place_of(a) - SMALL) >> 10 for a, b in zip(best, best[1:])]
            near = sum(gap <= READ_AHEAD >> 10 for gap in gaps)
            followed.append([name, statistics.median_low(gaps), f"{near} of {len(gaps)}"])
            layouts[name] = [[place_of(path) for path in order] for order in (shuffled, best)]
    header = ["200 files of 8 KiB in", "random order: MB apart", "s", "order of the device: MB apart", "s"]
    header += ["every second one, then the others: s"]
    table("Figure 6: files read one after the other", header, rows, TIMED)
    header = ["", "KiB between a file and the next: median", "within the read-ahead of the drive"]
    table("Figure 6: gaps in the order of the device", header, followed, GAPS)
    rows = []
    for members in (1, 2, 4):
        with Array(scratch, members) as array:
            cells = [f"{array.seconds(order, SMALL):.2f}" for name in ("one group", "all groups")
                     for order in layouts[name]]
        rows.append([members, *cells])
    header = ["disks", "one group, random: s", "ordered", "all groups, random", "ordered"]
    table("Section 6: the same files on a striped array", header, rows, ARRAY)


GAPS = """\
In the order of the device, a file that `place cp` placed begins 128 KiB after the one before. The emulated
drive reads on for 128 KiB after a request (an assumed figure), so it reads the gap instead of seeking over
it: 128 KiB take 12 to 13 ms, one and a half turns, and a short seek with half a turn takes half of that. A
reader that takes every second file first leaves gaps of 248 KiB, over which the drive seeks. The kernel has
no part in this: in the table after this one, the same places are read directly. Packed files have no gaps,
and the order of the device is the fastest by far, as in the paper."""
ARRAY = """\
The places of figure 6 in an array (RAID-0) of emulated Atlas IIs with chunks of 64 KiB, read directly by
one reader. All arrays have 8 GiB, each member its part of them on a whole disk. Seconds are elapsed."""


def figure_7(scratch):
    rows = []
    with DiskVolume(scratch) as volume:
        (volume.root / "from").write_bytes(random.Random(4).randbytes(64 << 20))
        for group in range(4):
            at = str(volume.root / f"large{group}")
            run(PLACE, "cp", "--group", str(group), str(volume.root / "from"), at)
            pieces = run("filefrag", at).split(":")[-1].split()[0]
            rate = (64 << 20) / 1e6 / volume.busy_seconds([Path(at)])
            rows.append([group, f"{place_of(at) / 1e6:.0f}", pieces, f"{rate:.2f}"])
    header = ["group", "begins at, MB", "pieces", "read at MB/s"]
    table("Figure 7: a file of 64 MiB in each group", header, rows, TIMED)


def table_3(scratch):
    """The time in which the parameters of NOW-Sort are found, and the merge that uses them."""
    with DiskVolume(scratch) as volume:
        answers = []
        found = volume.disk.counted(lambda: answers.append(run(PLACE, "disk", "--json", volume.device)))
        memory = volume.disk.counted(lambda: run(PLACE, "memory", "--limit", "4M", str(volume.root)))
        # A warning may be before or after the answer.
        drive = json.JSONDecoder().raw_decode(answers[0][answers[0].index("{"):])[0]
        rate = statistics.mean(zone["bytes_per_second"] for zone in drive["zones"])
        seek_ms = max(seek["ms"] for seek in drive["seeks"])
        seconds = [memory["seconds"], found["seconds"], volume.init_seconds]
        rows = [["caches", f"{seconds[0]:.2f}", 0.73, "processor caches, and 4 MiB of the page cache"],
                ["bandwidth, longest seek", f"{seconds[1]:.2f}", 2.98,
                 f"{rate / 1e6:.2f} MB/s, {seek_ms:.1f} ms, {drive['rpm']:.0f} rpm"],
                ["initialization", f"{seconds[2]:.2f}", 4.51, "`place init`"],
                ["all", f"{sum(seconds):.2f}", 8.22, ""]]
        table("Table 3: finding the parameters of a sort", ["", "s", "paper: s", "found"], rows, FOUND)
        merge(volume.disk, rate, seek_ms)


def merge(disk, rate, seek_ms):
    """Merges eight runs, which lie 1 GiB apart, with buffers of several sizes."""
    runs, length, rows = 8, 6 << 20, []
    enough = int(rate * seek_ms / 1e3 * 9) >> 12 << 12
    file = os.open(disk.file, os.O_RDONLY | os.O_DIRECT)
    for name, size in (("", 64 << 10), ("", 256 << 10), (", from the parameters", enough), ("", 4 << 20)):
        buffer = mmap.mmap(-1, size)
        pieces = [run * GIB + at for at in range(0, length, size) for run in range(runs)]
        begun = disk.counted(lambda: [os.preadv(file, [buffer], at) for at in pieces])
        moved = len(pieces) * size / begun["seconds"]
        rows.append([f"{size >> 10} KiB{name}", len(pieces), f"{moved / 1e6:.2f}",
                     f"{100 * moved / rate:.0f}%"])
    os.close(file)
    header = ["buffer of each run", "reads", "MB/s", "of the bandwidth"]
    table("Section 4.2: merging eight runs", header, rows, MERGED)


FOUND = """\
On an emulated Atlas II. `place disk` finds bandwidth and seeks together; the paper took 2.46 and 0.52 s."""
MERGED = """\
NOW-Sort needs the bandwidth and the longest seek to choose the buffers of its merge. Here they have nine
times the bytes that stream in the longest seek. Eight runs, 1 GiB apart, are read alternately, directly from
the disk."""


def visit(log):
    """Answers requests: a fifth with 304, which takes the status of the file, the others with all of it."""
    for number, path in enumerate(log):
        if number % 5 == 4:
            os.stat(path)
            continue
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as contents:
            for at in range(0, len(contents), mmap.PAGESIZE):
                contents[at]
    return len(log)


def figure_8(scratch):
    rows = []
    for layout in ("spread", "as made", "in one group", "in one group, packed"):
        with DiskVolume(scratch) as volume:
            site, chance = volume.root / "site", random.Random(5)
            plant(site, 40, 1000, [8000, 20_000, 36_000], 5)
            if layout == "spread":
                for number, directory in enumerate(sorted(site.iterdir())):
                    run(PLACE, "mv", "--group", str(number % 4), str(directory), str(directory) + "s")
            elif layout.startswith("in one group"):
                run(PLACE, "mv", "--outer", str(site), str(volume.root / "moved"))
                site = volume.root / "moved"
            if "packed" in layout:
                run(PLACE, "pack", "--group", "0", str(site))
            paths = files_below(site)
            weights = [1 / (rank + 1) ** 0.8 for rank in range(len(paths))]
            log = chance.choices(chance.sample(paths, len(paths)), weights, k=2000)
            run("sync", "--file-system", str(volume.root))
            cells = [f"{travel(log):.0f}"]
            with MemoryGroup() as group:
                for limit in (8 << 20, 32 << 20):
                    volume.chill()
                    counts = volume.disk.counted(lambda: group.call(limit, lambda _: visit(log)))
                    cells += [counts["reads"], f"{counts['busy_ns'] / 1e9:.1f}"]
            rows.append([layout, *cells])
    header = ["site", "MB between visited files", "8 MiB: reads", "s", "32 MiB: reads", "s"]
    table("Figure 8: 2,000 requests to a site of 1,000 files in 40 directories", header, rows, SITE)


SITE = """\
The site has 21 MB, on an emulated Atlas II. Files are chosen by Zipf's law with exponent 0.8. A fifth of the
answers are 304, which takes the status of the file. For the others the file is mapped, and each page is
touched. A control group limits the memory, with that of the kernel's caches, which are empty at first.
Seconds are those for which the disk is busy."""


HEAD = """\
Counts and times for the tables and figures of PLACE: requests are those of the kernel's block layer, and
places those that it reports for files. ext4 commits every five seconds, so a slow run writes somewhat more.
"""


def main():
    scratch = sys.argv[3]
    print("# Placing by group\n")
    volume = "ext4 of 8 GiB with the defaults of mkfs.ext4, in a loop device"
    print(f"Linux {os.uname().release}; {volume}. Written by\n`make place-study`.\n")
    print(HEAD)
    parts = (table_1, table_1_times, table_2, table_2_times, figures_3_to_5, figure_6, figure_7, table_3,
             figure_8)
    for part in parts:
        if not sys.argv[4:] or part.__name__ in sys.argv[4:]:
            part(scratch)
    shutil.rmtree(scratch, ignore_errors=True)


main()
