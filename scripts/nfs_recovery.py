"""Crashes file systems under load and measures their recovery, and a full check for comparison.

A volume on an emulated disk of 7200 rpm gets a tree of small files, with the disk's delays switched off. Then
for each rate clients change it, it crashes, and with cold caches it is recovered and checked. The disk counts
what it does. C-FFS is served by `cffs serve`, whose clients use NFS; the server is killed, and `cffs fsck -p`
recovers the volume. ext4 and XFS are mounted, and an ioctl shuts them down without writing their logs; the
next mount recovers them.

usage: nfs_recovery.py [--quick | --journal | --only c-ffs|peers]
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


def make_tree(files, *extract):
    """A hundred files in a directory, a hundred directories in one above it; files of 0 to 8 KiB."""
    unpack = subprocess.Popen(extract, stdin=subprocess.PIPE)
    rng = random.Random(1)
    data = rng.randbytes(8192)
    with unpack.stdin as archive:
        for number in range(files):
            top, middle = f"{number // 10_000:03}/", f"{number // 10_000:03}/{number // 100 % 100:03}/"
            if number % 10_000 == 0:
                archive.write(ustar_header(top, 0o755, 0, b"5"))
            if number % 100 == 0:
                archive.write(ustar_header(middle, 0o755, 0, b"5"))
            size = min(8192, int(rng.lognormvariate(7.2, 1.2)))
            archive.write(ustar_header(f"{middle}file-{number:07}", 0o644, size, b"0"))
            archive.write(data[:size] + bytes(-size % 512))
        archive.write(bytes(1024))
    if unpack.wait():
        sys.exit(f"nfs-recovery: {extract} failed")


class Served:
    """The root of a volume that is served by NFS. Changes are durable when they are answered."""

    def __init__(self, port):
        self.client = nfs_client.Client(port)
        self.root = self.client.root()

    def create(self, name, contents):
        file = self.client.create(self.root, name)
        self.write(file, contents)
        return file

    def write(self, file, contents):
        self.client.write(file, 0, contents, nfs_client.FILE_SYNC)

    def remove(self, name, _):
        self.client.remove(self.root, name)

    def close(self):
        self.client.close()


class Mounted:
    """The root of a mounted volume. Makes each change durable, as a server of NFS must."""

    def __init__(self, at):
        self.root = os.open(at, os.O_RDONLY | os.O_DIRECTORY)

    def create(self, name, contents):
        self.write(name, contents)
        os.fsync(self.root)
        return name

    def write(self, name, contents):
        file = os.open(name, os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=self.root)
        try:
            os.write(file, contents)
            os.fsync(file)
        finally:
            os.close(file)

    def remove(self, name, _):
        os.unlink(name, dir_fd=self.root)
        os.fsync(self.root)

    def close(self):
        os.close(self.root)


class Load(threading.Thread):
    """A client that keeps to a rate while it can: of four operations two make files of 4 KiB, one writes, and
    one removes. All are durable when they are answered."""

    def __init__(self, connect, number, rate, prefix):
        super().__init__(daemon=True)
        self.connect, self.number, self.rate, self.prefix = connect, number, rate, prefix
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
                made.append((name, volume.create(name, contents)))
            elif kind == 2:
                volume.write(rng.choice(made)[1], contents)
            else:
                volume.remove(*made.pop(rng.randrange(len(made))))
            self.seconds.append(time.monotonic() - called)


def loaded(connect, rate, seconds, prefix, crash):
    """Has clients change a volume until it crashes. Returns the sorted times of their operations."""
    clients = [Load(connect, number, rate / CLIENTS, prefix) for number in range(CLIENTS if rate else 0)]
    for client in clients:
        client.start()
    time.sleep(seconds)
    times = [list(client.seconds) for client in clients]
    crash()
    for client in clients:
        client.ended.set()
        client.join()
    return sorted(second for each in times for second in each)


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

    def crash_under_load(self, disk, rate, seconds):
        """Serves the device, has clients change it, and kills the server. Returns the times of operations."""
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
            return loaded(lambda: Served(port), rate, seconds, port, crash)
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

    def crash_under_load(self, disk, rate, seconds):
        def crash():
            root = os.open(self.at, os.O_RDONLY)
            fcntl.ioctl(root, self.SHUTDOWN, struct.pack("I", self.NO_LOG_FLUSH))
            os.close(root)

        run(*self.mount(disk))
        times = loaded(lambda: Mounted(self.at), rate, seconds, rate, crash)
        run("umount", self.at)
        return times

    def recovered(self, disk):
        cells = measured(disk, *self.mount(disk))
        run("umount", self.at)
        return cells

    def checked(self, disk):
        check = ["e2fsck", "-f", "-n"] if self.kind == "ext4" else ["xfs_repair", "-n"]
        return measured(disk, *check, disk.device)


CHECK_COLUMNS = "reads | writes | MB read | disk s | s"


def c_ffs(place, sizes, rates, seconds, journal="none"):
    """A row of the table for each number of files and each rate."""
    for files in sizes:
        with tempfile.TemporaryDirectory(dir=place) as below, \
                Disk(BENCH, below, (files // 250_000 + 1) * GIB, "hdd7200") as disk:
            volume = CFfs(below, journal)
            volume.make(disk, files)
            for rate in rates:
                disk.become("hdd7200")
                reached = len(volume.crash_under_load(disk, rate, seconds)) / seconds
                recovery, check = volume.recovered(disk), volume.checked(disk)
                if journal != "none":
                    yield f"| {files:,} | {rate:,} | {reached:,.0f} | {volume.overtaken:.1f} |"
                    continue
                yield f"| {files:,} | {rate:,} | {reached:,.0f} | {recovery} | {check} |"


# Whether the journal is in memory, and the rest of what makes the volume.
CONFIGURATIONS = {
    "C-FFS, no journal": (False, CFfs, "none"),
    "C-FFS, journal": (False, CFfs, "32M"),
    "C-FFS, journal in memory": (True, CFfs, "32M"),
    "ext4": (False, Kernel, "ext4"),
    "ext4, journal in memory": (True, Kernel, "ext4"),
    "XFS": (False, Kernel, "xfs"),
}


def peers(place, files, rates, seconds):
    """A row of the table for each configuration and each rate."""
    for name, (is_in_memory, system, argument) in CONFIGURATIONS.items():
        with contextlib.ExitStack() as stack:
            below = stack.enter_context(tempfile.TemporaryDirectory(dir=place))
            disk = stack.enter_context(Disk(BENCH, below, 2 * GIB, "hdd7200"))
            device = stack.enter_context(memory_device(below)) if is_in_memory else None
            volume = system(below, argument, device)
            volume.make(disk, files)
            for rate in rates:
                disk.become("hdd7200")
                times = volume.crash_under_load(disk, rate, seconds)
                mean, late = statistics.mean(times) * 1e3, times[len(times) * 99 // 100] * 1e3
                recovery, check = volume.recovered(disk), volume.checked(disk)
                yield (f"| {name if rate == rates[0] else ''} | {rate:,} | {len(times) / seconds:,.0f} | "
                       f"{mean:,.1f} | {late:,.0f} | {recovery} | {check.split(' | ')[-1]} |")


def header(*columns):
    titles = " | ".join(columns)
    return f"| {titles} |\n|{' ---: |' * (titles.count('|') + 1)}\n"


C_FFS_HEADER = header("files | operations/s asked | reached", f"recovery: {CHECK_COLUMNS}",
                      f"full check: {CHECK_COLUMNS}")
PEERS_HEADER = header("", "operations/s asked | reached | mean ms | 99% ms", f"recovery: {CHECK_COLUMNS}",
                      "full check: s")
JOURNAL_HEADER = header("files | operations/s asked | reached | overtaken %")


def c_ffs_text(seconds):
    version = run(CFFS, "--version")
    return f"""\
# Recovery of an NFS server that was killed under load

Written by `make nfs-recovery`: {machine()}, {version}.

The volume is on an emulated disk of 7200 rpm with a write cache. It has files of up to 8 KiB, and is
served by `cffs serve`. {CLIENTS} clients, each of which waits for its answers, change it for {seconds}
seconds: half of the operations make files of 4 KiB, a quarter write, and a quarter remove, all durable when
they are answered. Then the server is killed, and started again with cold caches: `cffs fsck -p` is the
recovery before it serves. For comparison, `cffs fsck -f -n` is a full check of the same volume. `disk s` is
how long the disk was busy, `s` the total time.

"""


PEERS_TITLE = "## Next to logging file systems"


def peers_text(files, seconds):
    versions = [run(CFFS, "--version"), run("mkfs.ext4", "-V").splitlines()[0], run("mkfs.xfs", "-V")]
    return f"""
{PEERS_TITLE}

{machine()}, {'; '.join(versions)}, {time.strftime('%-d %B %Y')}.

Volumes of 2 GiB with {files:,} files, under the same load for {seconds} seconds. C-FFS is served by NFS as
above, with a journal of 32 MiB or without one. ext4 and XFS are mounted, and the clients make each change
durable by fsync(2) of the file and its directory, without the cost of NFS. They are shut down without writing
their logs (FS_IOC_SHUTDOWN), and the next mount recovers them; the full check is `e2fsck -f -n` or
`xfs_repair -n`. Journals in memory stand for NVRAM: requests to them take no time of the disk, and are not
counted.

"""


def main():
    mode, parts = sys.argv[1:2], ["c-ffs", "peers"]
    if sys.argv[1:] not in ([], ["--quick"], ["--journal"], ["--only", "c-ffs"], ["--only", "peers"]):
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
            written("journal", JOURNAL_HEADER, c_ffs(place, [5000], [50, 200, 1000], 10, "32M"))
        elif mode == ["--quick"]:
            written("c-ffs", C_FFS_HEADER, c_ffs(place, [5000], [0, 200], 2))
            written("peers", PEERS_HEADER, peers(place, 5000, [200], 2))
        if "c-ffs" in parts and mode in ([], ["--only"]):
            rows = c_ffs(place, [100_000, 1_000_000], [0, 50, 200, 1000], 10)
            written("c-ffs", c_ffs_text(10) + C_FFS_HEADER, rows)
        if "peers" in parts and mode in ([], ["--only"]):
            rows = peers(place, 100_000, [50, 200, 1000], 10)
            written("peers", peers_text(100_000, 10) + PEERS_HEADER, rows)
    if mode in ([], ["--only"]):
        before, _, after = REPORT.read_text(encoding="utf-8").partition("\n" + PEERS_TITLE)
        old = {"c-ffs": before, "peers": "\n" + PEERS_TITLE + after}
        REPORT.write_text("".join((old | sections)[part] for part in old), encoding="utf-8")
        print(f"written to {REPORT}")


main()
