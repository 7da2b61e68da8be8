"""Tiny files on mounts, after the paper on extµ: single operations, servers, and options of programs.

    tiny_study.py BINARIES [--quick]     (as root; BINARIES has cffs and cffs-bench)

Each file system is on an emulated disk of 7200 rpm of its own. Writes docs/performance/tiny.md; with --quick,
prints what few files take.
"""

import contextlib
import os
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, "python/uconfigparser")
import benchmark as options
from emulated import Disk, MemoryGroup, drop_caches, machine, run

REPORT = Path("docs/performance/tiny.md")
PROFILE = "hdd7200"
TINY = 128
GIB = 1 << 30
KINDS = ["cffs", "cffs^inline", "ext2", "ext3", "ext4"]


class Volume:
    """A file system on an emulated disk."""

    def __init__(self, kind, binaries):
        self.kind, self.cffs = kind, str(Path(binaries, "cffs"))
        self.is_cffs = kind.startswith("cffs")
        self.scratch = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.at = Path(self.scratch.name, "mnt")
        self.disk = Disk(Path(binaries, "cffs-bench"), self.scratch.name, 2 * GIB, PROFILE)
        self.cache = None

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.scratch)
            stack.enter_context(self.disk)
            self.at.mkdir()
            features = ["--features", "^inline"] if self.kind == "cffs^inline" else []
            lazy = ["-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"]
            make = [f"mkfs.{self.kind}", "-q", "-F", *lazy]
            run(*([self.cffs, "mkfs", "-q", *features] if self.is_cffs else make), self.disk.device)
            self.mount()
            stack.callback(self.unmount)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self.stack.close()

    def mount(self):
        cache = f",cache={self.cache}" if self.cache else ""
        command = [self.cffs, "mount"] if self.is_cffs else ["mount", "-t", self.kind]
        run(*command, "-o", "noatime" + cache, self.disk.device, str(self.at))

    def unmount(self):
        run(*([self.cffs, "umount"] if self.is_cffs else ["umount"]), str(self.at))

    def chill(self):
        self.unmount()
        drop_caches()
        self.mount()

    def settle(self):
        run("sync", "--file-system", str(self.at))


# The operations of table 1: the flags, and the number of files of a run. A durable write takes long.
OPERATIONS = {
    "O_RDONLY": (os.O_RDONLY, 1000),
    "O_WRONLY": (os.O_WRONLY, 1000),
    "O_TRUNC, O_SYNC": (os.O_WRONLY | os.O_TRUNC | os.O_SYNC, 100),
    "O_APPEND": (os.O_WRONLY | os.O_APPEND, 1000),
}
# The paper's figures, as far as its text has them: open, then read or write.
PAPER = {
    ("O_RDONLY", "extµ"): "62.0, 1.3",
    ("O_RDONLY", "ext2"): "64.2, 654.0",
    ("O_RDONLY", "ext3"): "68.0, 858.7",
    ("O_RDONLY", "ext4"): "105.0, 202.3",
    ("O_WRONLY", "extµ"): "60.7, 1.7",
    ("O_WRONLY", "ext3"): "68.5, 691.4",
    ("O_WRONLY", "ext4"): "105.2, 178.0",
    ("O_TRUNC, O_SYNC", "extµ"): "70.8, 224.4",
    ("O_TRUNC, O_SYNC", "ext3"): "88.7, 1,967.6",
    ("O_TRUNC, O_SYNC", "ext4"): "134.2, 28,691.4",
}


def microseconds(volume, flags, count):
    """The means of open, read or write, and close, of cold files of 128 bytes."""
    place, data = volume.at / "files", bytes(range(TINY))
    place.mkdir()
    paths = [str(place / f"tiny{number:04}") for number in range(count)]
    for path in paths:
        Path(path).write_bytes(data)
    volume.settle()
    volume.chill()
    spent = [0, 0, 0]

    def operate():
        for path in paths:
            begun = time.perf_counter_ns()
            file = os.open(path, flags)
            opened = time.perf_counter_ns()
            if flags == os.O_RDONLY:
                os.read(file, TINY)
            else:
                os.write(file, data)
            moved = time.perf_counter_ns()
            os.close(file)
            for part, end in enumerate((opened - begun, moved - opened, time.perf_counter_ns() - moved)):
                spent[part] += end

    requests = volume.disk.counted(operate)
    for path in paths:
        os.unlink(path)
    place.rmdir()
    volume.settle()
    return [sum(spent)] + spent, requests["reads"] + requests["writes"]


def operations(volume, scale):
    """Rows of table 1: the run of three that took the least time."""
    for name, (flags, count) in OPERATIONS.items():
        count //= scale
        spent, requests = min(microseconds(volume, flags, count) for _ in range(3))
        cells = [f"{part / 1e3 / count:,.1f}" for part in spent[1:]]
        paper = PAPER.get((name, {"cffs": "extµ"}.get(volume.kind, volume.kind)), "")
        yield name, [volume.kind, *cells, f"{requests / count:.3f}", paper]


# Two processes of 50 threads, since threads of Python do not run at the same time.
PROCESSES, THREADS = 2, 50
FILES = 10_000
MEMORY = 32 << 20
READS = {"web server": 10, "web proxy": 5}


def serve(kind, size, root, seconds, process):
    """The files that clients read and write in this time: see `servers`."""
    # Buffers and stacks take memory that the caches lack.
    threading.stack_size(64 << 10)
    end, done = time.monotonic() + seconds, [0] * THREADS

    def client(thread):
        chance = random.Random(process * THREADS + thread)
        data, line = chance.randbytes(size), chance.randbytes(512)

        def append(path, what):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(file, what)
            os.close(file)

        def pick():
            number = chance.randrange(FILES)
            return f"{root}/{number // 100:03}/{number:05}"

        while time.monotonic() < end:
            if kind == "web proxy":
                replaced = pick()
                try:
                    os.unlink(replaced)
                except FileNotFoundError:
                    pass
                append(replaced, data)
                done[thread] += 1
            for _ in range(READS[kind]):
                try:
                    file = os.open(pick(), os.O_RDONLY)
                except FileNotFoundError:
                    continue
                os.read(file, size)
                os.close(file)
                done[thread] += 1
            append(f"{root}/log", line)

    threads = [threading.Thread(target=client, args=[thread]) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done)


def servers(kind, size, volume, seconds):
    """Files read and written a second by a server of this kind, and requests of the disk for each."""
    root, data = volume.at / "served", random.Random(size).randbytes(size)
    root.mkdir()
    for number in range(FILES):
        path = root / f"{number // 100:03}" / f"{number:05}"
        path.parent.mkdir(exist_ok=True)
        if kind == "web server" or number % 5:
            path.write_bytes(data)
    volume.settle()
    # A server in user space has a cache of its own.
    volume.cache = MEMORY // 2 if volume.is_cffs else None
    volume.chill()
    clients = MEMORY - (volume.cache or 0)
    done = []

    def clients_of(process):
        return serve(kind, size, root, seconds, process)

    def work():
        with MemoryGroup() as group:
            done.append(group.call(clients, clients_of, PROCESSES))

    requests = volume.disk.counted(work)
    return done[0] / requests["seconds"], (requests["reads"] + requests["writes"]) / done[0]


def configuration(volume, rounds):
    """Rows of figure 6: microseconds of a call with an INI file and with files."""
    ini, config = volume.at / "config.ini", volume.at / "config"
    parser = options.UConfigParser(config)
    parser["section"] = {f"option{number}": f"value of option {number}" for number in range(300)}
    with open(ini, "w", encoding="ascii") as file:
        parser.write(file)
    volume.settle()
    fastest = {}

    def times():
        # Three times, since a virtual processor may be slow for some seconds.
        for _ in range(3):
            for name, *calls in options.cases(ini, config, 300):
                now = [min(options.median_us(call, 1) for _ in range(rounds)) for call in calls]
                fastest[name] = [min(pair) for pair in zip(now, fastest.get(name, now))]
            time.sleep(2)

    volume.disk.counted(times)
    return fastest.items()


def table(title, text, header, groups):
    """A table of groups of rows, each with its name in its first row."""
    lines = [" | ".join(header), " | ".join(["---"] * len(header))]
    for name, rows in groups.items():
        lines += [" | ".join([name if number == 0 else "", *row]) for number, row in enumerate(rows)]
    return f"## {title}\n\n{text}\n\n" + "".join(f"| {line} |\n" for line in lines) + "\n"


HEAD = """\
# Tiny files on mounts

{machine}; {version}; {ext}. {date}. Written by `make tiny-study`.

The experiments of extµ (Kooburat and Liu, section 6) on mounts. Each file system is on an emulated disk of
7200 rpm (`hdd7200`), made with its defaults and mounted with `noatime`; `cffs^inline` does not store contents
in inodes. This kernel serves ext2 and ext3 by its driver for ext4. The paper's figures are of a Pentium 4
with a disk of 7200 rpm and Linux 2.6.31.

"""
OPERATIONS_TEXT = """\
Microseconds of each call on files of 128 bytes in one directory, with cold caches at the beginning: the
means of {count} files, a tenth of them with O_SYNC, in the fastest of three runs. Only with O_SYNC does a
write wait for the disk to store it. With O_APPEND the file outgrows extµ's inode; C-FFS has room for 512
bytes. The paper's column has its figures for open, and for read or write, in the row of C-FFS those of extµ,
as far as its text is legible. Python makes the calls, which takes about half a microsecond for each."""
SERVERS_TEXT = """\
After FileBench: 100 clients on {files} files, for {seconds} s, with cold caches at the beginning. A client of
the web server reads ten files, then appends 512 bytes to a log. One of the proxy replaces a file, reads five,
and appends to the log; a fifth of the files do not exist at first. Clients and the kernel's caches for them
have {memory} MiB of memory, so that the files do not fit; C-FFS has half of it for the cache of its server,
and the clients the other half. The paper had 1 GB and 1000 clients, and gives one number: extµ serves almost
2.5 times as many files of 128 bytes from its web server as ext2."""
OPTIONS_TEXT = """\
A program gets or sets five of 300 options, in an INI file of three blocks or with a file for each (the
package uconfigparser): microseconds of the fastest of three times {rounds} calls with warm caches
(`python/uconfigparser/benchmark.py`). Nothing is made durable, but ext4 writes a file that replaces another
to the disk at once (`auto_da_alloc`). The paper says that files are up to 55 times as fast on extµ and up to
20 times on ext3 if options are set, and about twice as fast if they are read. Virtual processors may be half
as fast for some seconds, which doubles both times of a row; the gain does not depend on that."""


def main():
    binaries, quick = sys.argv[1], sys.argv[2:] == ["--quick"]
    scale, seconds, rounds = (10, 1, 3) if quick else (1, 5, 50)
    first, second, third = {}, {}, {}
    for kind in KINDS:
        with Volume(kind, binaries) as volume:
            for name, row in operations(volume, scale):
                first.setdefault(name, []).append(row)
            for name, (ini, files) in configuration(volume, rounds):
                row = [kind, f"{ini:,.0f}", f"{files:,.0f}", f"{ini / files:.2f}"]
                third.setdefault(name, []).append(row)
        for name, size in ((name, size) for name in READS for size in (TINY, 16 << 10)):
            with Volume(kind, binaries) as volume:
                rate, requests = servers(name, size, volume, seconds)
            rows = second.setdefault(f"{name}, {size:,} bytes", [])
            rows.append([kind, f"{rate:,.0f}", f"{requests:.4f}"])
        print(f"{kind} is measured", file=sys.stderr, flush=True)
    text = HEAD.format(
        machine=machine(),
        version=run(str(Path(binaries, "cffs")), "--version"),
        ext=run("mkfs.ext4", "-V").splitlines()[0], date=time.strftime("%-d %B %Y"))
    text += table("Operations by flags of open (6.1, table 1)", OPERATIONS_TEXT.format(count=1000 // scale),
                  ["", "", "open, µs", "read or write, µs", "close, µs", "requests/file", "paper, µs"], first)
    text += table("Servers (6.2, figure 5)",
                  SERVERS_TEXT.format(files=f"{FILES:,}", seconds=seconds, memory=MEMORY >> 20),
                  ["", "", "files/s", "requests/file"], second)
    text += table("Options of programs (6.3.2, figure 6)", OPTIONS_TEXT.format(rounds=rounds),
                  ["", "", "INI file, µs", "files, µs", "gain"], third)
    print(text, end="")
    if not quick:
        REPORT.write_text(text.rstrip("\n") + "\n", encoding="utf-8")


main()
