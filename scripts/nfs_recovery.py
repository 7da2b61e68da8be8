"""Crashes file systems under load and measures their recovery, and a full check for comparison.

A volume on an emulated disk of 7200 rpm gets a tree of small files, with the disk's delays switched off. Then
for each rate clients change it, it crashes, and with cold caches it is recovered and checked. The disk counts
what it does. C-FFS is served by `cffs serve`, whose clients use NFS; the server is killed, and `cffs fsck -p`
recovers the volume. ext4 and XFS are mounted, and an ioctl shuts them down without writing their logs; the
next mount recovers them.

usage: nfs_recovery.py [--quick | --journal | --only c-ffs|peers|reads]
       (as root; CFFS and CFFS_BENCH name the programs)

Writes docs/performance/nfs-recovery.md, with --only a section of it. With --quick it prints tables of small
volumes; with --journal how much of the journal of small volumes is overtaken.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import random
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, "tests/acceptance")
from emulated import Disk, drop_caches, machine, run  # pylint: disable=wrong-import-position
from suite import nfs_client  # pylint: disable=wrong-import-position

CFFS, BENCH = os.environ["CFFS"], os.environ["CFFS_BENCH"]
SCRATCH = "/dev/shm"
REPORT = pathlib.Path("docs/performance/nfs-recovery.md")
CLIENTS = 64
# The load changes files in this many directories, which are spread evenly over the tree.
DIRECTORIES = 100
# Longer than the 30 s between checkpoints of C-FFS, the 5 s of ext4's commits and the 30 s of XFS's log.
SECONDS = 45
BLOCK = 4096
GIB = 1 << 30


def measured(disk, *command):
    """What the disk does for a command that begins with cold caches, and how long that takes."""
    run("blockdev", "--flushbufs", disk.device)
    drop_caches()
    done = []

    def work():
        done.append(subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False))

    delta = disk.counted(work)
    # fsck ends with 1 where it has repaired something.
    if done[0].returncode > 1:
        sys.exit(f"nfs-recovery: {command}: {done[0].stdout.decode(errors='replace')}")
    return (f"{delta['reads']:,} | {delta['writes']:,} | {delta['read_bytes'] / 1e6:,.1f} | "
            f"{delta['busy_ns'] / 1e9:.2f} | {delta['seconds']:.2f}")


def ustar_header(name, mode, size, kind):
    """The header of a file or a directory in a tar archive."""
    head = bytearray(512)
    fields = [(0, name.encode()), (100, b"%07o" % mode), (108, b"0000000"), (116, b"0000000"),
              (124, b"%011o" % size), (136, b"00000000000"), (148, b" " * 8), (156, kind),
              (257, b"ustar\0" b"00")]
    for at, value in fields:
        head[at:at + len(value)] = value
    head[148:155] = b"%06o\0" % sum(head)
    return bytes(head)


def directory_of(number):
    """The directory of a file of the tree: a hundred files in each, a hundred of them in one above."""
    return f"{number // 10_000:03}", f"{number // 100 % 100:03}"


def changed_directories(files):
    """The directories that the load changes."""
    return [directory_of(number) for number in range(0, files, max(100, files // DIRECTORIES))]


def make_tree(files, *extract):
    """A hundred files in a directory, a hundred directories in one above it; files of 0 to 8 KiB."""
    unpack = subprocess.Popen(extract, stdin=subprocess.PIPE)
    rng = random.Random(1)
    data = rng.randbytes(8192)
    with unpack.stdin as archive:
        for number in range(files):
            top, below = directory_of(number)
            middle = f"{top}/{below}/"
            if number % 10_000 == 0:
                archive.write(ustar_header(f"{top}/", 0o755, 0, b"5"))
            if number % 100 == 0:
                archive.write(ustar_header(middle, 0o755, 0, b"5"))
            size = min(8192, int(rng.lognormvariate(7.2, 1.2)))
            archive.write(ustar_header(f"{middle}file-{number:07}", 0o644, size, b"0"))
            archive.write(data[:size] + bytes(-size % 512))
        archive.write(bytes(1024))
    if unpack.wait():
        sys.exit(f"nfs-recovery: {extract} failed")


class Served:
    """A volume that is served by NFS. Changes are durable when they are answered."""

    def __init__(self, port):
        self.client = nfs_client.Client(port)

    def directories(self, files):
        root = self.client.root()
        tops = {top: self.client.lookup(root, top.encode()) for top, _ in changed_directories(files)}
        return [self.client.lookup(tops[top], below.encode()) for top, below in changed_directories(files)]

    def create(self, directory, name, contents):
        file = self.client.create(directory, name)
        self.write(file, contents)
        return file

    def write(self, file, contents):
        self.client.write(file, 0, contents, nfs_client.FILE_SYNC)

    def remove(self, directory, name):
        self.client.remove(directory, name)

    def read(self, number):
        file = self.client.root()
        for name in (*directory_of(number), f"file-{number:07}"):
            file = self.client.lookup(file, name.encode())
        self.client.read(file, 8192)

    def close(self):
        self.client.close()


class Mounted:
    """A mounted volume. Makes each change durable, as a server of NFS must."""

    def __init__(self, at):
        self.at = at

    def directories(self, files):
        """Paths: an open directory would keep the volume from being unmounted."""
        return [os.path.join(self.at, *names) for names in changed_directories(files)]

    def create(self, directory, name, contents):
        file = os.path.join(directory, name.decode())
        self.write(file, contents)
        self.make_durable(directory)
        return file

    def write(self, file, contents):
        opened = os.open(file, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.write(opened, contents)
            os.fsync(opened)
        finally:
            os.close(opened)

    def remove(self, directory, name):
        os.unlink(os.path.join(directory, name.decode()))
        self.make_durable(directory)

    def make_durable(self, directory):
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)

    def read(self, number):
        pathlib.Path(self.at, *directory_of(number), f"file-{number:07}").read_bytes()

    def close(self):
        pass


class Load(threading.Thread):
    """A client that keeps to a rate while it can: of four operations two make files of 4 KiB, one writes, and
    one removes, in one of the directories at random. All are durable when they are answered."""

    def __init__(self, connect, directories, number, rate, prefix):
        super().__init__(daemon=True)
        self.connect, self.number, self.rate, self.prefix = connect, number, rate, prefix
        self.directories = directories
        self.seconds, self.ended = [], threading.Event()

    def run(self):
        # It ends when the server or the file system does.
        with contextlib.suppress(OSError), contextlib.closing(self.connect()) as volume:
            self.change_files(volume)

    def change_files(self, volume):
        rng, made = random.Random(self.number), []
        contents, begun = rng.randbytes(BLOCK), time.monotonic()
        while not self.ended.is_set():
            done = len(self.seconds)
            time.sleep(max(0, begun + done / self.rate - time.monotonic()))
            kind, called = done % 4, time.monotonic()
            if kind < 2 or len(made) < 2:
                name = b"load-%d-%d-%d" % (self.prefix, self.number, done)
                directory = rng.choice(self.directories)
                made.append((directory, name, volume.create(directory, name, contents)))
            elif kind == 2:
                volume.write(rng.choice(made)[2], contents)
            else:
                directory, name, _ = made.pop(rng.randrange(len(made)))
                volume.remove(directory, name)
            self.seconds.append(time.monotonic() - called)


class Reader(threading.Thread):
    """Reads files of the tree at random, ten in a second, and measures each read."""

    RATE = 10

    def __init__(self, connect, files):
        super().__init__(daemon=True)
        self.connect, self.files = connect, files
        self.seconds, self.ended = [], threading.Event()

    def run(self):
        rng, begun = random.Random(2), time.monotonic()
        with contextlib.suppress(OSError), contextlib.closing(self.connect()) as volume:
            while not self.ended.wait(max(0, begun + len(self.seconds) / self.RATE - time.monotonic())):
                called = time.monotonic()
                volume.read(rng.randrange(self.files))
                self.seconds.append(time.monotonic() - called)


class Experiment:
    """A load that ends in a crash."""

    def __init__(self, files, rate, seconds, prefix, with_reader=False):
        self.files, self.rate, self.seconds, self.prefix = files, rate, seconds, prefix
        self.with_reader = with_reader
        # Times of changes, and of reads.
        self.changes, self.reads = [], []

    def run(self, connect, crash):
        """Has clients change a volume until it crashes."""
        clients, readers = [], []
        if self.rate:
            with contextlib.closing(connect()) as volume:
                directories = volume.directories(self.files)
            clients = [Load(connect, directories, number, self.rate / CLIENTS, self.prefix)
                       for number in range(CLIENTS)]
        if self.with_reader:
            readers = [Reader(connect, self.files)]
        for client in clients + readers:
            client.start()
        time.sleep(self.seconds)
        self.changes = sorted(second for client in clients for second in list(client.seconds))
        self.reads = sorted(second for reader in readers for second in list(reader.seconds))
        # A reader has no file open while a volume is unmounted.
        for reader in readers:
            reader.ended.set()
            reader.join()
        crash()
        for client in clients:
            client.ended.set()
            client.join()


def milliseconds(times):
    """The mean and the 99th percentile of sorted times."""
    return f"{statistics.mean(times) * 1e3:,.1f} | {times[len(times) * 99 // 100] * 1e3:,.0f}"


@contextlib.contextmanager
def memory_device(place):
    """A block device in memory, for a journal of 32 MiB."""
    file = os.path.join(place, "journal")
    run("truncate", "--size", "32M", file)
    device = run("losetup", "--find", "--show", "--sector-size", str(BLOCK), file)
    yield device
    run("losetup", "--detach", device)


class CFfs:
    """C-FFS, with a journal of this size, on the volume's disk or on another device."""

    def __init__(self, _place, journal, device=None):
        self.options = ["--journal", journal] + (["--journal-device", device] if device else [])
        self.overtaken = None

    def make(self, disk, files):
        run(CFFS, "mkfs", "-q", *self.options, disk.device)
        make_tree(files, CFFS, "tar", "--extract", disk.device)

    def crash_under_load(self, disk, experiment):
        """Serves the device, has clients change it, and kills the server."""
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
        server = subprocess.Popen([CFFS, "serve", "--foreground", "--nfs", f"127.0.0.1:{port}", "--export",
                                   "/:insecure,no_root_squash", disk.device], stdin=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL)

        def crash():
            stats = json.loads(run(CFFS, "stats", "--json", disk.device))
            self.overtaken = stats.get("journal", {}).get("superseded_percent")
            server.kill()
            server.wait()

        try:
            deadline = time.monotonic() + 60
            while True:
                try:
                    nfs_client.Client(port).close()
                    break
                except ConnectionRefusedError:
                    if server.poll() is not None or time.monotonic() > deadline:
                        sys.exit("nfs-recovery: the server cannot be reached")
                    time.sleep(0.05)
            experiment.run(lambda: Served(port), crash)
        finally:
            server.kill()
            server.wait()

    def recovered(self, disk):
        return measured(disk, CFFS, "fsck", "-p", disk.device)

    def checked(self, disk):
        return measured(disk, CFFS, "fsck", "-f", "-n", disk.device)


class Kernel:
    """ext4 or XFS. The journal of ext4 may be on another device."""

    # FS_IOC_SHUTDOWN, and the flag by which the log is not written.
    SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, 2
    OPTIONS = {"ext4": ["-F", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"],
               "xfs": ["-f", "-K"]}

    def __init__(self, place, kind, device=None):
        self.kind, self.at, self.options = kind, os.path.join(place, "mnt"), self.OPTIONS[kind]
        if device:
            run("mke2fs", "-q", "-F", "-b", "4096", "-O", "journal_dev", device)
            self.options = [*self.options, "-J", f"device={device}"]

    def make(self, disk, files):
        os.mkdir(self.at)
        run(f"mkfs.{self.kind}", "-q", *self.options, disk.device)
        run(*self.mount(disk))
        make_tree(files, "tar", "--extract", "--directory", self.at)
        run("umount", self.at)

    def mount(self, disk):
        return ["mount", "-t", self.kind, "-o", "noatime", disk.device, self.at]

    def crash_under_load(self, disk, experiment):
        def crash():
            root = os.open(self.at, os.O_RDONLY)
            fcntl.ioctl(root, self.SHUTDOWN, struct.pack("I", self.NO_LOG_FLUSH))
            os.close(root)

        run(*self.mount(disk))
        drop_caches()
        experiment.run(lambda: Mounted(self.at), crash)
        run("umount", self.at)

    def recovered(self, disk):
        cells = measured(disk, *self.mount(disk))
        run("umount", self.at)
        return cells

    def checked(self, disk):
        check = ["e2fsck", "-f", "-n"] if self.kind == "ext4" else ["xfs_repair", "-n"]
        return measured(disk, *check, disk.device)


CHECK_COLUMNS = "reads | writes | MB read | disk s | s"


# Files, and the journal that mkfs makes for a disk of their size.
C_FFS = [(100_000, "none"), (1_000_000, "none"), (1_000_000, "60M")]


def c_ffs(place, volumes, rates, seconds, is_of_the_journal=False):
    """A row of the table for each volume and each rate."""
    for files, journal in volumes:
        with tempfile.TemporaryDirectory(dir=place) as below, \
                Disk(BENCH, below, (files // 250_000 + 1) * GIB, "hdd7200") as disk:
            volume = CFfs(below, journal)
            volume.make(disk, files)
            for number, rate in enumerate(rates):
                disk.become("hdd7200")
                load = Experiment(files, rate, seconds if rate else 5, number)
                volume.crash_under_load(disk, load)
                reached = len(load.changes) / load.seconds
                recovery, check = volume.recovered(disk), volume.checked(disk)
                if is_of_the_journal:
                    yield f"| {files:,} | {rate:,} | {reached:,.0f} | {volume.overtaken:.1f} |"
                    continue
                yield f"| {files:,} | {journal} | {rate:,} | {reached:,.0f} | {recovery} | {check} |"


# Whether the journal is in memory, and the rest of what makes the volume.
CONFIGURATIONS = {
    "C-FFS, no journal": (False, CFfs, "none"),
    "C-FFS, journal": (False, CFfs, "32M"),
    "C-FFS, journal in memory": (True, CFfs, "32M"),
    "ext4": (False, Kernel, "ext4"),
    "ext4, journal in memory": (True, Kernel, "ext4"),
    "XFS": (False, Kernel, "xfs"),
}


@contextlib.contextmanager
def configured(place, name, files):
    """A disk, and a volume of this configuration with a tree of files on it."""
    is_in_memory, system, argument = CONFIGURATIONS[name]
    with contextlib.ExitStack() as stack:
        below = stack.enter_context(tempfile.TemporaryDirectory(dir=place))
        disk = stack.enter_context(Disk(BENCH, below, 2 * GIB, "hdd7200"))
        device = stack.enter_context(memory_device(below)) if is_in_memory else None
        volume = system(below, argument, device)
        volume.make(disk, files)
        yield disk, volume


def peers(place, files, rates, seconds):
    """A row of the table for each configuration and each rate."""
    for name in CONFIGURATIONS:
        with configured(place, name, files) as (disk, volume):
            for rate in rates:
                disk.become("hdd7200")
                load = Experiment(files, rate, seconds, rate)
                volume.crash_under_load(disk, load)
                recovery, check = volume.recovered(disk), volume.checked(disk)
                yield (f"| {name if rate == rates[0] else ''} | {rate:,} | "
                       f"{len(load.changes) / seconds:,.0f} | {milliseconds(load.changes)} | {recovery} | "
                       f"{check.split(' | ')[-1]} |")


def reads(place, files, rates, seconds):
    """A row of the table for each configuration with its journal on the disk, and each rate."""
    for name, (is_in_memory, _, _) in CONFIGURATIONS.items():
        if is_in_memory:
            continue
        with configured(place, name, files) as (disk, volume):
            for rate in rates:
                disk.become("hdd7200")
                load = Experiment(files, rate, seconds, rate, with_reader=True)
                volume.crash_under_load(disk, load)
                volume.recovered(disk)
                yield (f"| {name if rate == rates[0] else ''} | {len(load.changes) / seconds:,.0f} | "
                       f"{len(load.reads)} | {load.reads[len(load.reads) // 2] * 1e3:.1f} | "
                       f"{milliseconds(load.reads)} | {load.reads[-1] * 1e3:,.0f} |")


def header(*columns):
    titles = " | ".join(columns)
    return f"| {titles} |\n|{' ---: |' * (titles.count('|') + 1)}\n"


C_FFS_HEADER = header("files | journal | operations/s asked | reached", f"recovery: {CHECK_COLUMNS}",
                      f"full check: {CHECK_COLUMNS}")
PEERS_HEADER = header("", "operations/s asked | reached | mean ms | 99% ms", f"recovery: {CHECK_COLUMNS}",
                      "full check: s")
READS_HEADER = header("", "changes/s", "reads", "median ms", "mean ms", "99% ms", "longest ms")
JOURNAL_HEADER = header("files | operations/s asked | reached | overtaken %")


def today():
    return time.strftime("%-d %B %Y")


def c_ffs_text(seconds):
    return f"""\
# Recovery of an NFS server that was killed under load

Written by `make nfs-recovery`: {machine()}, {run(CFFS, "--version")}, {today()}.

The volume is on an emulated disk of 7200 rpm with a write cache. It has files of up to 8 KiB, a hundred in a
directory, and is served by `cffs serve`. {CLIENTS} clients, each of which waits for its answers, change
{DIRECTORIES} directories, which are spread evenly over the tree, for {seconds} seconds: half of the
operations make files of 4 KiB, a quarter write, and a quarter remove, all durable when they are answered.
Then the server is killed, and started again with cold caches: `cffs fsck -p` is the recovery before it
serves. For comparison, `cffs fsck -f -n` is a full check of the same volume. `disk s` is how long the disk
was busy. `s` is the total time, which is longer if the machine does other work. The journal of 60 MiB is the
one that `mkfs` makes for a rotating disk of this size.

"""


TITLES = {"peers": "## Next to logging file systems", "reads": "## Reads while files are changed"}


def peers_text(files, seconds):
    versions = [run(CFFS, "--version"), run("mkfs.ext4", "-V").splitlines()[0], run("mkfs.xfs", "-V")]
    return f"""
{TITLES["peers"]}

{machine()}, {'; '.join(versions)}, {today()}.

Volumes of 2 GiB with {files:,} files, under the same load for {seconds} seconds. C-FFS is served by NFS as
above, with a journal of 32 MiB or without one. ext4 and XFS are mounted, and the clients make each change
durable by fsync(2) of the file and its directory, without the cost of NFS. They are shut down without writing
their logs (FS_IOC_SHUTDOWN), and the next mount recovers them; the full check is `e2fsck -f -n` or
`xfs_repair -n`. Journals in memory stand for NVRAM: requests to them take no time of the disk, and are not
counted.

"""


def reads_text(files, seconds):
    return f"""
{TITLES["reads"]}

{machine()}, {run(CFFS, "--version")}, {today()}.

The same volumes of {files:,} files, without and with the load of 200 operations/s, and a reader that looks up
and reads a random file of the tree {Reader.RATE} times in a second, for {seconds} seconds from cold caches.
A run contains many epochs, and a checkpoint of C-FFS, which is made every 30 s.

"""


PARTS = ["c-ffs", "peers", "reads"]


def replaced(sections):
    """The report with some sections replaced."""
    text, old = REPORT.read_text(encoding="utf-8"), {}
    for part in reversed(PARTS[1:]):
        text, title, after = text.partition("\n" + TITLES[part])
        old[part] = title + after
    old[PARTS[0]] = text
    return "".join((old | sections)[part] for part in PARTS)


def main():
    mode, parts = sys.argv[1:2], PARTS
    if sys.argv[1:] not in ([], ["--quick"], ["--journal"], *(["--only", part] for part in PARTS)):
        sys.exit(__doc__)
    if mode == ["--only"]:
        parts = sys.argv[2:]
    sections = {}

    def written(part, text, rows):
        print(text, end="", flush=True)
        for row in rows:
            print(row, flush=True)
            text += row + "\n"
        sections[part] = text

    with tempfile.TemporaryDirectory(prefix="nfs-recovery-", dir=SCRATCH) as place:
        if mode == ["--journal"]:
            rows = c_ffs(place, [(5000, "32M")], [50, 200, 1000], 10, is_of_the_journal=True)
            written("journal", JOURNAL_HEADER, rows)
            return
        if mode == ["--quick"]:
            written("c-ffs", C_FFS_HEADER, c_ffs(place, [(5000, "none")], [0, 200], 2))
            written("peers", PEERS_HEADER, peers(place, 5000, [200], 2))
            written("reads", READS_HEADER, reads(place, 5000, [0, 200], 2))
            return
        if "c-ffs" in parts:
            rows = c_ffs(place, C_FFS, [0, 50, 200, 1000], SECONDS)
            written("c-ffs", c_ffs_text(SECONDS) + C_FFS_HEADER, rows)
        if "peers" in parts:
            rows = peers(place, 100_000, [50, 200, 1000], SECONDS)
            written("peers", peers_text(100_000, SECONDS) + PEERS_HEADER, rows)
        if "reads" in parts:
            rows = reads(place, 100_000, [0, 200], SECONDS)
            written("reads", reads_text(100_000, SECONDS) + READS_HEADER, rows)
    REPORT.write_text(replaced(sections), encoding="utf-8")
    print(f"written to {REPORT}")


main()
