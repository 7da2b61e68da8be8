#!/usr/bin/env python3
"""Counts for the tables and figures of PLACE, on ext4 in a loop device.

Called by place-study.sh. The counts are those of the kernel's block layer, and the places those that it
reports for files. Figures 6 and 7 are on an emulated disk, and have the time for which that was busy. None of
these depends on how fast the machine is.
"""

import fcntl
import json
import os
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path

PLACE, BENCH = sys.argv[1:3]
GIB = 1 << 30
GROUP_BYTES = 2 * GIB


def run(*command):
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout


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
        self.device = run("losetup", "--find", "--show", str(self.image)).strip()
        run("mount", self.device, str(self.root))
        self.init = run(PLACE, "init", str(self.root)).strip()
        return self

    def __exit__(self, *_):
        run("umount", str(self.root))
        run("losetup", "--detach", self.device)
        self.image.unlink()

    def chill(self):
        run("umount", str(self.root))
        run("mount", self.device, str(self.root))

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
        served, self.socket = self.image.with_name("served"), str(self.image.with_name("control"))
        served.mkdir(exist_ok=True)
        command = [BENCH, "disk", "--profile", "none", "--size", str(8 * GIB), "--control", self.socket]
        command += ["--backing", str(self.image.with_name("backing")), str(served)]
        self.disk = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.disk.stderr.readline()
        self.image = served / "disk"
        run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(self.image))
        self.device = run("losetup", "--find", "--show", "--direct-io=on", str(self.image)).strip()
        run("mount", "-o", "noatime", self.device, str(self.root))
        run(PLACE, "init", str(self.root))
        return self

    def __exit__(self, *_):
        run("umount", str(self.root))
        run("losetup", "--detach", self.device)
        self.disk.terminate()
        self.disk.wait()

    def busy_seconds(self, paths):
        """The time for which the disk is busy while files are read, with their inodes in memory."""
        self.chill()
        for path in paths:
            os.stat(path)
        run(BENCH, "control", self.socket, "profile", "atlas-ii")
        before = self.busy()
        for path in paths:
            path.read_bytes()
        seconds = self.busy() - before
        run(BENCH, "control", self.socket, "profile", "none")
        return seconds

    def busy(self):
        return json.loads(run(BENCH, "control", self.socket, "counters"))["busy_ns"] / 1e9


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
    ways = ("cp -r", "file by file", "place cp")
    for way in ways:
        with Volume(scratch) as volume:
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
            _, writes, kib = volume.counted(work)
            rows.append([way, writes, kib, f"{in_group(files_below(to), 2)} of 500"])
    header = ["", "writes", "KiB", "in group 2"]
    table("Figure 5: copying a tree of 500 files in 50 directories", header, rows)


TIMED = """Read cold, with inodes in memory, on an emulated Atlas II (`cffs-bench disk --profile atlas-ii`).
Times are those for which the disk is busy. They depend on the angle of the platter at each request, so they
differ by up to 4% between runs."""


def figure_6(scratch):
    rows = []
    for name, groups in (("one group", [0]), ("two groups", [0, 1]), ("ends of the disk", [0, 3]),
                         ("all groups", [0, 1, 2, 3])):
        with DiskVolume(scratch) as volume:
            chance, paths = random.Random(3), []
            (volume.root / "from").write_bytes(chance.randbytes(8 << 10))
            for number in range(200):
                path = volume.root / f"f{number:03}"
                group = str(chance.choice(groups))
                run(PLACE, "cp", "--group", group, str(volume.root / "from"), str(path))
                paths.append(path)
            shuffled = chance.sample(paths, len(paths))
            best = sorted(paths, key=place_of)
            seconds = volume.busy_seconds(shuffled)
            rows.append([name, f"{travel(shuffled):.1f}", f"{seconds:.2f}", f"{travel(best):.2f}"])
    header = ["200 files of 8 KiB in", "random order: MB apart", "s", "order of the device: MB apart"]
    table("Figure 6: files read one after the other", header, rows, TIMED)
    print("In the order of the device the time depends on the reader: if the disk has turned past the next")
    print("file, it waits for almost a turn.\n")


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


def figure_8(scratch):
    rows = []
    for layout in ("spread", "as made", "in one group", "in one group, packed"):
        with Volume(scratch) as volume:
            site, chance = volume.root / "site", random.Random(5)
            plant(site, 40, 1000, [2000, 6000, 14_000], 5)
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
            log = chance.choices(chance.sample(paths, len(paths)), weights, k=3000)
            run("sync", "--file-system", str(volume.root))
            volume.chill()
            reads, _, _ = volume.counted(lambda: [path.read_bytes() for path in log])
            rows.append([layout, f"{travel(log):.0f}", reads])
    header = ["site", "MB between visited files", "reads of the device, cold"]
    table("Figure 8: 3,000 visits to a site of 1,000 files in 40 directories", header, rows)
    print("The distance is that between all visits, also those to files in the page cache. The device is read for")
    print("the first visit to a file only.\n")


def main():
    scratch = sys.argv[3]
    print("# Placing by group\n")
    volume = "ext4 of 8 GiB with the defaults of mkfs.ext4, in a loop device"
    print(f"Linux {os.uname().release}; {volume}. Written by\n`make place-study`.\n")
    print("Counts for the tables and figures of PLACE: requests are those of the kernel's block layer, and places")
    print("those that it reports for files. ext4 commits every five seconds, so a slow run writes somewhat more.\n")
    for part in (table_1, table_2, figures_3_to_5, figure_6, figure_7, figure_8):
        part(scratch)
    shutil.rmtree(scratch, ignore_errors=True)


main()
