"""Shuffled reads of many small files: an image, a directory of ext4, and formats that pack files.

    make bench-python      (as root; builds all of it, and runs scripts/bench-python.sh)

Everything is on an ext4 file system on an emulated disk of 7200 rpm: the files themselves, an image, a
tar archive with an index, a database of SQLite, one of LMDB, and a zip archive. Reads all files in batches,
in an order that is the same for each: hot, when everything is in memory, the best of three; and cold, with
the requests that the disk saw.

Then reads an epoch of a set twice as large as the memory of the reading process, which a memory cgroup
limits, compared with ext4 only, with MALLOC_ARENA_MAX=1 for both. There an image is read in batches as above
and in batches of a quarter of the memory, as by a loader that knows its order far ahead, such as `epoch` in
examples/dataset.py; if 256 files exceed a quarter of the memory, only in the latter.

Reading from the disk stops after some seconds: the rate and the requests are those until then, marked with a
star. The first files also fetch data for later ones, such as inodes and read-ahead, so such a rate is a lower
bound for a whole epoch.
"""

import argparse
import importlib.util
import io
import json
import math
import os
import random
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pycffs

BATCH = 256
EPOCH_SEED = 1


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def names_of(files):
    return [f"{number % 100:02}/{number:06}" for number in range(files)]


class OneByOne:
    """A format that is read file by file, by several threads for a batch."""

    def __init__(self, threads):
        self.pool = ThreadPoolExecutor(threads)
        self.own = threading.local()

    def batch(self, names):
        return list(self.pool.map(self.read, names))

    def handle(self):
        """The handle from which one thread reads."""
        if not hasattr(self.own, "handle"):
            self.own.handle = self.open()
        return self.own.handle

    def close(self):
        self.pool.shutdown()


class Ext4(OneByOne):
    @staticmethod
    def write(at, names, contents):
        for number in range(100):
            (at / f"{number:02}").mkdir(parents=True)
        for name in names:
            (at / name).write_bytes(contents(name))

    def __init__(self, at, threads):
        super().__init__(threads)
        self.at = str(at)

    def read(self, name):
        with open(f"{self.at}/{name}", "rb", buffering=0) as file:
            return file.read()


class Tar(OneByOne):
    @staticmethod
    def write(at, names, contents):
        index = {}
        with tarfile.open(at, "w") as archive:
            for name in names:
                data = contents(name)
                info = tarfile.TarInfo(name)
                info.size = len(data)
                index[name] = (archive.offset + 512, len(data))
                archive.addfile(info, io.BytesIO(data))
        at.with_suffix(".index").write_text(json.dumps(index))

    def __init__(self, at, threads):
        super().__init__(threads)
        self.index = json.loads(at.with_suffix(".index").read_text())
        self.file = open(at, "rb")

    def read(self, name):
        offset, size = self.index[name]
        return os.pread(self.file.fileno(), size, offset)


class Sqlite(OneByOne):
    @staticmethod
    def write(at, names, contents):
        database = sqlite3.connect(at)
        database.execute("CREATE TABLE files (name TEXT PRIMARY KEY, data BLOB) WITHOUT ROWID")
        database.executemany("INSERT INTO files VALUES (?, ?)", ((name, contents(name)) for name in names))
        database.commit()
        database.close()

    def __init__(self, at, threads):
        super().__init__(threads)
        self.at = at

    def open(self):
        return sqlite3.connect(f"file:{self.at}?mode=ro", uri=True)

    def read(self, name):
        return self.handle().execute("SELECT data FROM files WHERE name = ?", (name,)).fetchone()[0]


class Lmdb(OneByOne):
    @staticmethod
    def write(at, names, contents):
        import lmdb

        with lmdb.open(str(at), map_size=8 << 30) as environment, environment.begin(write=True) as changes:
            for name in names:
                changes.put(name.encode(), contents(name))

    def __init__(self, at, threads):
        import lmdb

        super().__init__(threads)
        self.environment = lmdb.open(str(at), readonly=True, lock=False)

    def open(self):
        return self.environment.begin()

    def read(self, name):
        return self.handle().get(name.encode())

    def close(self):
        super().close()
        self.own = None
        self.environment.close()


class Zip(OneByOne):
    @staticmethod
    def write(at, names, contents):
        with zipfile.ZipFile(at, "w", zipfile.ZIP_STORED) as archive:
            for name in names:
                archive.writestr(name, contents(name))

    def __init__(self, at, threads):
        super().__init__(threads)
        self.at = at

    def open(self):
        return zipfile.ZipFile(self.at)

    def read(self, name):
        return self.handle().read(name)


class Cffs:
    @staticmethod
    def write(at, names, contents):
        pycffs.mkfs(at, 8 << 30)
        with pycffs.Volume(at) as volume:
            for number in range(100):
                volume.mkdir(f"{number:02}")
            for name in names:
                volume.write(name, contents(name))

    def __init__(self, at, threads, cache=6 << 30):
        # The same amount of memory as the system has for the others' pages.
        self.volume, self.threads = pycffs.Volume(at, read_only=True, cache=cache), threads

    def batch(self, names):
        return self.volume.read_many(names, threads=self.threads)

    def close(self):
        self.volume.close()


FORMATS = {"ext4": Ext4, "tar": Tar, "SQLite": Sqlite, "LMDB": Lmdb, "zip": Zip, "C-FFS": Cffs}
if importlib.util.find_spec("lmdb") is None:
    del FORMATS["LMDB"]


def epoch(reader, names, size, seed=EPOCH_SEED, batch=BATCH, seconds_max=math.inf):
    """Reads all files in a shuffled order, or until a time limit; returns their number and the seconds."""
    names = names.copy()
    random.Random(seed).shuffle(names)
    read, start = 0, time.perf_counter()
    while read < len(names) and time.perf_counter() - start < seconds_max:
        for data in reader.batch(names[read : read + batch]):
            if len(data) != size:
                sys.exit("a file has not its length")
            read += 1
    return read, time.perf_counter() - start


class Reading(NamedTuple):
    """How fast files came from the disk, and how many requests each took."""

    rate: float
    requests: float
    is_whole: bool

    @staticmethod
    def of(read, files, seconds, requests):
        return Reading(read / seconds, requests / read, read == files)

    def __str__(self):
        return f"{self.rate:12,.0f}{' ' if self.is_whole else '*'}{self.requests:8.3f}"


class Disk:
    """An ext4 file system on an emulated disk."""

    def __init__(self, binaries, gigabytes, cleanup):
        self.bench = binaries / "cffs-bench"
        scratch = Path(cleanup.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        self.socket, served, self.at = scratch / "control", scratch / "disk", scratch / "mnt"
        served.mkdir()
        self.at.mkdir()
        command = [self.bench, "disk", "--size", f"{gigabytes}G", "--profile", "none"]
        command += ["--backing", scratch / "backing", "--control", self.socket, served]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        cleanup.callback(server.wait)
        cleanup.callback(server.terminate)
        server.stderr.readline()
        self.device = run("losetup", "--find", "--show", "--direct-io=on", served / "disk")
        cleanup.callback(run, "losetup", "--detach", self.device)
        queue = Path("/sys/block", Path(self.device).name, "queue")
        for attribute, value in {"rotational": 1, "scheduler": "mq-deadline"}.items():
            (queue / attribute).write_text(str(value))
        run("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", self.device)
        run("mount", "-o", "noatime", self.device, self.at)
        cleanup.callback(run, "umount", self.at)

    def become(self, profile):
        run("sync")
        run(self.bench, "control", self.socket, "profile", profile)

    def requests(self):
        counters = json.loads(run(self.bench, "control", self.socket, "counters"))
        return counters["reads"] + counters["writes"]

    def empty_caches(self):
        run("sync")
        Path("/proc/sys/vm/drop_caches").write_text("3")


def write(disk, form, at, files, size):
    """Writes files of a size, and returns their names."""
    data = random.Random(0).randbytes(size + 65536)
    names = names_of(files)
    form.write(at, names, lambda name: data[int(name[3:]) % 65536 :][:size])
    return names


def hot(disk, form, files, size):
    """Files per second with everything in memory, by one thread and by four."""
    names = write(disk, form, disk.at / "hot", files, size)
    rates = []
    for threads in (1, 4):
        reader = form(disk.at / "hot", threads)
        epoch(reader, names, size)
        rates.append(files / min(epoch(reader, names, size, seed)[1] for seed in (2, 3, 4)))
        reader.close()
    return rates


def cold(disk, form, files, size, seconds_max):
    """Measures cold reads by one thread, and by four."""
    names = write(disk, form, disk.at / "cold", files, size)
    found = []
    for threads in (1, 4):
        disk.become("hdd7200")
        disk.empty_caches()
        reader = form(disk.at / "cold", threads)
        before = disk.requests()
        read, seconds = epoch(reader, names, size, seconds_max=seconds_max)
        found.append(Reading.of(read, files, seconds, disk.requests() - before))
        reader.close()
        disk.become("none")
    return found


def measure(disk, size, hot_files, cold_files, seconds_max):
    print(f"\nfiles of {size >> 10} KiB per second: {hot_files} hot, {cold_files} cold, requests per file")
    print(f"{'':8}{'hot, 1 thread':>16}{'hot, 4':>10}{'cold, 1':>12}{'':>9}{'cold, 4':>12}")
    for kind, form in FORMATS.items():
        one, four = hot(disk, form, hot_files, size)
        from_disk, from_disk_by_four = cold(disk, form, cold_files, size, seconds_max)
        print(f"{kind:8}{one:16,.0f}{four:10,.0f}{from_disk}{from_disk_by_four}", flush=True)
        for left in [*disk.at.glob("hot*"), *disk.at.glob("cold*")]:
            run("rm", "-rf", left)


class Memory:
    """A cgroup that limits the memory of its processes, including the page cache."""

    def __init__(self, limit_bytes, cleanup):
        root = Path("/sys/fs/cgroup")
        is_unified = (root / "cgroup.controllers").exists()
        self.at = (root if is_unified else root / "memory") / f"pycffs-benchmark-{os.getpid()}"
        self.at.mkdir()
        cleanup.callback(self.at.rmdir)
        limit = self.at / ("memory.max" if is_unified else "memory.limit_in_bytes")
        if not limit.exists():
            sys.exit(f"{limit}: there is no memory cgroup; mount it, or enable its controller")
        limit.write_text(str(limit_bytes))

    def enter(self):
        (self.at / "cgroup.procs").write_text(str(os.getpid()))


def read_epoch(kind, at, files, size, threads, batch, cache, seconds_max):
    """The task of the limited process; prints the number of files read, and the seconds taken."""
    form = FORMATS[kind]
    reader = form(Path(at), threads, cache) if form is Cffs else form(Path(at), threads)
    print(*epoch(reader, names_of(files), size, batch=batch, seconds_max=seconds_max))
    reader.close()


def limited_epoch(disk, memory_bytes, kind, at, files, size, threads, batch, seconds_max):
    """Measures cold reads by a process with limited memory."""
    disk.become("hdd7200")
    disk.empty_caches()
    before = disk.requests()
    # The rest of the memory is for the interpreter, a batch and its reads, and the kernel.
    counts = (files, size, threads, batch, memory_bytes // 4, seconds_max)
    task = ["--epoch", kind, str(at), *map(str, counts)]
    command = [sys.executable, __file__, str(disk.bench.parent), *task]
    # By default malloc gives each thread a pool, and pools do not return memory.
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    with ExitStack() as cleanup:
        enter = Memory(memory_bytes, cleanup).enter
        how = {"check": True, "stdout": subprocess.PIPE, "text": True, "env": environment}
        ended = subprocess.run(command, preexec_fn=enter, **how)
    read, seconds = ended.stdout.split()
    found = Reading.of(int(read), files, float(seconds), disk.requests() - before)
    disk.become("none")
    return found


def measure_epochs(disk, size, memory_bytes, seconds_max):
    files = 2 * memory_bytes // size
    far = memory_bytes // 4 // size
    near = min(BATCH, far)
    print(f"\nan epoch of {files} files of {size >> 10} KiB with {memory_bytes >> 20} MiB, files per second")
    print(f"{'':24}{'1 thread':>12}{'requests':>9}{'4':>12}{'requests':>9}")
    rows = {}
    for kind, batches in {"ext4": [near], "C-FFS": sorted({near, far})}.items():
        write(disk, FORMATS[kind], disk.at / "set", files, size)
        for batch in batches:
            task = (kind, disk.at / "set", files, size)
            ways = [(*task, threads, batch, seconds_max) for threads in (1, 4)]
            one, four = rows[kind, batch] = [limited_epoch(disk, memory_bytes, *way) for way in ways]
            name = f"{kind}, batches of {batch}"
            print(f"{name:24}{one}{four}", flush=True)
        run("rm", "-rf", disk.at / "set")
    ext4 = rows["ext4", near]
    for batch in sorted({near, far}):
        factors = [ours.rate / theirs.rate for ours, theirs in zip(rows["C-FFS", batch], ext4, strict=True)]
        print(f"batches of {batch}: {factors[0]:.1f} and {factors[1]:.1f} times as fast as ext4", flush=True)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("binaries", type=Path)
    less = "with a tenth of the files, and no epoch of the small ones"
    arguments.add_argument("--quick", action="store_true", help=less)
    longest = "stop reading from the disk after this many seconds [20, quick: 3]"
    arguments.add_argument("--read-seconds-max", type=int, metavar="SECONDS", help=longest)
    arguments.add_argument("--epoch", nargs=8, help=argparse.SUPPRESS)
    arguments.add_argument("--only-epochs", action="store_true", help="of the set larger than memory alone")
    arguments = arguments.parse_args()
    if arguments.epoch:
        kind, at, *counts = arguments.epoch
        return read_epoch(kind, at, *map(int, counts))
    if os.geteuid() != 0:
        sys.exit("this mounts volumes, which only root may do")
    part = 10 if arguments.quick else 1
    seconds_max = arguments.read_seconds_max or (3 if arguments.quick else 20)
    print(f"*: not the whole of an epoch, but what was read of it in {seconds_max} seconds", flush=True)
    with ExitStack() as cleanup:
        disk = Disk(arguments.binaries, 16, cleanup)
        disk.become("none")
        if not arguments.only_epochs:
            measure(disk, 4 << 10, 100_000 // part, 10_000 // part, seconds_max)
            measure(disk, 100 << 10, 20_000 // part, 4_000 // part, seconds_max)
        # Writing the small ones as single files takes longer than the rest of a quick run.
        for size in [100 << 10] if arguments.quick else [4 << 10, 100 << 10]:
            measure_epochs(disk, size, 128 << 20, seconds_max)


if __name__ == "__main__":
    main()
