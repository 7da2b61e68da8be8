"""A mounted volume through its server, compared with the same image unmounted, and with ext4.

    make bench-mounted SOURCE=DIR      (as root; builds it, and runs scripts/bench-mounted.sh)

Copies the tree SOURCE into a volume whose image is in memory (/dev/shm): once while the volume is mounted,
where the server makes the calls, and once with the image open in this process. Makes it durable, which is not
counted, walks the copy, and reads all its files in batches. Extracts an archive of the tree into both, and by
tar(1) into an ext4 file system on a loop device in memory. The sides take turns in each round; the first
round is not counted. Everything is read once before, so SOURCE and the archive are in the page cache. The
figures are medians in milliseconds, and the ratios are speeds: above 1, the mounted volume is faster.
"""

import argparse
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import pycffs

BATCH = 256


def run(*command, **options):
    return subprocess.run(command, check=True, **options)


def timed(work):
    begun = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - begun)


def read_all(volume, paths):
    for begin in range(0, len(paths), BATCH):
        volume.read_many(paths[begin : begin + BATCH])


class Round:
    """Both volumes and ext4, empty, in one directory."""

    def __init__(self, cffs, scratch, size):
        self.cffs = cffs
        self.images = {side: scratch / f"{side}.cffs" for side in ("mounted", "unmounted")}
        self.mountpoint, self.ext4 = scratch / "mnt", scratch / "ext4"
        for image in self.images.values():
            image.unlink(missing_ok=True)
            pycffs.mkfs(image, size)
        self.ext4_image = scratch / "ext4.img"
        self.ext4_image.unlink(missing_ok=True)
        with self.ext4_image.open("wb") as file:
            file.truncate(size)
        run("mkfs.ext4", "-q", "-F", self.ext4_image)
        for directory in (self.mountpoint, self.ext4):
            directory.mkdir(exist_ok=True)

    def __enter__(self):
        with ExitStack() as stack:
            run(self.cffs, "mount", self.images["mounted"], self.mountpoint)
            stack.callback(run, self.cffs, "umount", self.mountpoint)
            run("mount", "-o", "loop,noatime", self.ext4_image, self.ext4)
            stack.callback(run, "umount", self.ext4)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self.stack.close()

    def place(self, side):
        """What names the volume of a side."""
        return self.mountpoint if side == "mounted" else self.images[side]

    def from_python(self, side, source):
        times = {}
        with pycffs.Volume(self.place(side), read_only=False) as volume:
            times["import"] = timed(lambda: volume.import_tree(source, "/tree"))
            volume.sync()
            times["walk"] = timed(lambda: sum(1 for _ in volume.walk("/tree")))
            paths = [entry.path for entry in volume.walk("/tree") if entry.is_file()]
            times["read_many"] = timed(lambda: read_all(volume, paths))
        return times

    def extract(self, side, archive):
        if side == "ext4":
            command = ["tar", "-x", "-C", self.ext4]
        else:
            place = self.place(side)
            command = [self.cffs, "tar", "-x", *([place] if side == "mounted" else [place, "/"])]
        with archive.open("rb") as file:
            return timed(lambda: run(*command, stdin=file))


def measure(arguments, scratch):
    cffs = arguments.binaries / "cffs"
    archive = scratch / "tree.tar"
    with tarfile.open(archive, "w") as file:
        file.add(arguments.source, "archived")
    files = sum(len(names) for _, _, names in os.walk(arguments.source))
    size = max(256 << 20, (4 * archive.stat().st_size) >> 20 << 20)
    print(f"{files} files, an archive of {archive.stat().st_size >> 20} MiB")
    times = {}
    for number in range(arguments.rounds + 1):
        with Round(cffs, scratch, size) as volumes:
            sides = ["mounted", "unmounted"]
            for side in sides if number % 2 else reversed(sides):
                found = volumes.from_python(side, arguments.source)
                if number > 0:
                    for what, took in found.items():
                        times.setdefault((what, side), []).append(took)
            for side in ("ext4", *sides):
                took = volumes.extract(side, archive)
                if number > 0:
                    times.setdefault(("tar -x", side), []).append(took)
    return {key: statistics.median(took) for key, took in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("binaries", type=Path, help="the directory with cffs")
    parser.add_argument("source", type=Path, help="the tree to copy")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scratch", type=Path, default=Path("/dev/shm"))
    arguments = parser.parse_args()
    print(shlex.join(["scripts/bench-mounted.sh", *sys.argv[2:]]))
    print(f"{platform.machine()}, {os.cpu_count()} processors, Linux {platform.release()}, ", end="")
    print(time.strftime("%-d %B %Y"))
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
        medians = measure(arguments, Path(scratch))
    print("| | mounted, ms | unmounted, ms | ratio | ext4, ms | ratio |")
    print("| --- | --- | --- | --- | --- | --- |")
    for what in ("import", "walk", "read_many", "tar -x"):
        mounted, unmounted = medians[what, "mounted"], medians[what, "unmounted"]
        row = f"| {what} | {mounted:.0f} | {unmounted:.0f} | {unmounted / mounted:.2f}"
        ext4 = medians.get((what, "ext4"))
        print(row + (f" | {ext4:.0f} | {ext4 / mounted:.2f} |" if ext4 else " | | |"))


if __name__ == "__main__":
    main()
