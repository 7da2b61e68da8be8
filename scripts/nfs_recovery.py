"""Crashes NFS servers under load and measures their recovery, and a full check for comparison.

A volume on an emulated disk of 7200 rpm gets a tree of small files, with the disk's delays switched off.
Then for each rate: `cffs serve` serves it, clients change it, the server is killed, and with cold caches
`cffs fsck -p` recovers the volume, and `cffs fsck -f -n` checks all of it. The disk counts what it does.
With --journal small volumes have a journal, and the table shows how much of it is overtaken.

usage: nfs_recovery.py [--quick | --journal]    (as root; CFFS and CFFS_BENCH name the programs)
"""

import contextlib
import json
import os
import pathlib
import platform
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, "tests/acceptance")
from suite import nfs_client  # pylint: disable=wrong-import-position

CFFS, BENCH = os.environ["CFFS"], os.environ["CFFS_BENCH"]
SCRATCH = "/dev/shm"
REPORT = pathlib.Path("docs/performance/nfs-recovery.md")
CLIENTS = 64
BLOCK = 4096
GIB = 1 << 30


def run(*command, **options):
    """The output of a command that must succeed."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **options)
    if done.returncode:
        sys.exit(f"nfs-recovery: {command}: {done.stdout.decode(errors='replace')}")
    return done.stdout.decode()


class Disk:
    """An emulated disk as a block device."""

    def __init__(self, place, size):
        self.place, self.size = place, size
        self.socket = os.path.join(place, "control")
        self.server, self.device = None, None

    def __enter__(self):
        directory = os.path.join(self.place, "disk")
        os.mkdir(directory)
        self.server = subprocess.Popen(
            [BENCH, "disk", "--profile", "hdd7200", "--size", str(self.size), "--control", self.socket,
             "--backing", os.path.join(self.place, "backing"), directory], stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        file = os.path.join(directory, "disk")
        deadline = time.monotonic() + 10
        while not (os.path.exists(file) and os.path.exists(self.socket)):
            if self.server.poll() is not None or time.monotonic() > deadline:
                sys.exit("nfs-recovery: the emulated disk does not start")
            time.sleep(0.05)
        self.device = run("losetup", "--find", "--show", "--direct-io=on", "--sector-size", str(BLOCK),
                          file).strip()
        # The emulated disk has one, and what is durable has to wait for a flush of it.
        queue = pathlib.Path("/sys/block", os.path.basename(self.device), "queue/write_cache")
        queue.write_text("write back", encoding="ascii")
        return self

    def __exit__(self, *_):
        if self.device:
            subprocess.run(["losetup", "--detach", self.device], check=False)
        self.server.terminate()
        self.server.wait()

    def become(self, profile):
        """Switches delays off by none, and on by hdd7200."""
        run(BENCH, "control", self.socket, "profile", profile)

    def counters(self):
        return json.loads(run(BENCH, "control", self.socket, "counters"))

    def measured(self, *command):
        """What the disk does for a command that begins with cold caches, and how long that takes."""
        run("blockdev", "--flushbufs", self.device)
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3", encoding="ascii")
        before, begun = self.counters(), time.monotonic()
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        seconds, after = time.monotonic() - begun, self.counters()
        # fsck ends with 1 where it has repaired something.
        if done.returncode > 1:
            sys.exit(f"nfs-recovery: {command}: {done.stdout.decode(errors='replace')}")
        delta = {key: after[key] - before[key] for key in before}
        return (f"{delta['reads']:,} | {delta['writes']:,} | {delta['read_bytes'] / 1e6:,.1f} | "
                f"{delta['busy_ns'] / 1e9:.2f} | {seconds:.2f}")


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


def make_tree(image, files):
    """A hundred files in a directory, a hundred directories in one above it; files of 0 to 8 KiB."""
    unpack = subprocess.Popen([CFFS, "tar", "--extract", image], stdin=subprocess.PIPE)
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
        sys.exit("nfs-recovery: cffs tar --extract failed")


def unused_port():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return unused.getsockname()[1]


class Load(threading.Thread):
    """A client that keeps to a rate while it can: of four operations two make files of 4 KiB, one writes, and
    one removes. All are durable when they are answered."""

    def __init__(self, port, number, rate):
        super().__init__(daemon=True)
        self.port, self.number, self.rate = port, number, rate
        self.done, self.ended = 0, threading.Event()

    def run(self):
        # It ends when the server does.
        with contextlib.suppress(ConnectionError, TimeoutError):
            self.change_files()

    def change_files(self):
        client, rng, made = nfs_client.Client(self.port), random.Random(self.number), []
        root, contents, begun = client.root(), rng.randbytes(BLOCK), time.monotonic()
        while not self.ended.is_set():
            time.sleep(max(0, begun + self.done / self.rate - time.monotonic()))
            kind = self.done % 4
            if kind < 2 or len(made) < 2:
                name = b"load-%d-%d-%d" % (self.port, self.number, self.done)
                file = client.create(root, name)
                client.write(file, 0, contents, nfs_client.FILE_SYNC)
                made.append((name, file))
            elif kind == 2:
                client.write(rng.choice(made)[1], 0, contents, nfs_client.FILE_SYNC)
            else:
                client.remove(root, made.pop(rng.randrange(len(made)))[0])
            self.done += 1


def crash_under_load(device, rate, seconds):
    """Serves the device, has clients change it, and kills the server. Returns the rate that was reached, and
    the percentage of blocks in the journal, if the volume has one, that a newer record overtook before they
    went to their places."""
    port = unused_port()
    server = subprocess.Popen([CFFS, "serve", "--foreground", "--nfs", f"127.0.0.1:{port}", "--export",
                               "/:insecure,no_root_squash", device], stdin=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
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
        clients = [Load(port, number, rate / CLIENTS) for number in range(CLIENTS if rate else 0)]
        for client in clients:
            client.start()
        time.sleep(seconds)
        done = sum(client.done for client in clients)
        stats = json.loads(run(CFFS, "stats", "--json", device))
        overtaken = stats.get("journal", {}).get("superseded_percent")
    finally:
        server.kill()
        server.wait()
    for client in clients:
        client.ended.set()
        client.join()
    return done / seconds, overtaken


def rows(place, sizes, rates, seconds, journal):
    """A row of the table for each number of files and each rate."""
    for files in sizes:
        with tempfile.TemporaryDirectory(dir=place) as below, \
                Disk(below, (files // 250_000 + 1) * GIB) as disk:
            disk.become("none")
            run(CFFS, "mkfs", "-q", "--journal", journal, disk.device)
            make_tree(disk.device, files)
            for rate in rates:
                disk.become("hdd7200")
                reached, overtaken = crash_under_load(disk.device, rate, seconds)
                recovery = disk.measured(CFFS, "fsck", "-p", disk.device)
                check = disk.measured(CFFS, "fsck", "-f", "-n", disk.device)
                disk.become("none")
                if journal != "none":
                    yield f"| {files:,} | {rate:,} | {reached:,.0f} | {overtaken:.1f} |"
                    continue
                yield f"| {files:,} | {rate:,} | {reached:,.0f} | {recovery} | {check} |"


HEADER = """\
| files | operations/s asked | reached | recovery: reads | writes | MB read | disk s | s \
| full check: reads | writes | MB read | disk s | s |
| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""
JOURNAL_HEADER = """\
| files | operations/s asked | reached | overtaken % |
| ---: | ---: | ---: | ---: |
"""


def heading(seconds):
    """What stands before the table."""
    info = pathlib.Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    model = next((line.split(":")[1].strip() for line in info if line.startswith("model name")), "unknown")
    version = run(CFFS, "--version").strip()
    return f"""\
# Recovery of an NFS server that was killed under load

Written by `make nfs-recovery`: {os.cpu_count()} cores of {model},
Linux {platform.release()}, {version}.

The volume is on an emulated disk of 7200 rpm with a write cache. It has files of up to 8 KiB, and is
served by `cffs serve`. {CLIENTS} clients, each of which waits for its answers, change it for {seconds}
seconds: half of the operations make files of 4 KiB, a quarter write, and a quarter remove, all durable when
they are answered. Then the server is killed, and started again with cold caches: `cffs fsck -p` is the
recovery before it serves. For comparison, `cffs fsck -f -n` is a full check of the same volume. `disk s` is
how long the disk was busy, `s` the total time.

"""


def main():
    quick, journaled = sys.argv[1:] == ["--quick"], sys.argv[1:] == ["--journal"]
    if sys.argv[1:] and not quick and not journaled:
        sys.exit(__doc__)
    sizes, rates, seconds = ([5000], [0, 200], 2) if quick else ([100_000, 1_000_000], [0, 50, 200, 1000], 10)
    if journaled:
        sizes, rates = [5000], [50, 200, 1000]
    text = JOURNAL_HEADER if journaled else heading(seconds) + HEADER
    print(text, end="", flush=True)
    with tempfile.TemporaryDirectory(prefix="nfs-recovery-", dir=SCRATCH) as place:
        for row in rows(place, sizes, rates, seconds, "32M" if journaled else "none"):
            print(row, flush=True)
            text += row + "\n"
    if not quick and not journaled:
        REPORT.write_text(text, encoding="utf-8")
        print(f"written to {REPORT}")


main()
