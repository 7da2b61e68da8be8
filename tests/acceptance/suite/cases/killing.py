"""A server that is killed during work: all promises to programs are kept afterwards."""

import contextlib
import errno
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import time

from ..case import GIB, Skip, case
from ..volume import bench_binary, cffs_binary

# Commits transactions, and prints the number of each when it is durable. The removal of the journal's name
# commits a transaction. SQLite waits for that itself in mode EXTRA, but not if it cannot open the directory,
# which happens right after the server was killed.
SQLITE_WRITER = """\
import os, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA synchronous = EXTRA")
directory = os.open(os.path.dirname(sys.argv[1]), os.O_RDONLY | os.O_DIRECTORY)
while True:
    db.execute("BEGIN IMMEDIATE")
    number = db.execute("SELECT coalesce(max(number), 0) + 1 FROM log").fetchone()[0]
    db.execute("INSERT INTO log VALUES (?, randomblob(abs(random()) % 3000))", (number,))
    db.execute("UPDATE total SET rows = rows + 1")
    db.execute("COMMIT")
    os.fsync(directory)
    print(number, flush=True)
"""

# Commits to git, and prints each commit when it is durable. Git makes its objects durable, and the new file
# of the branch, but not the rename that puts it in place.
GIT_WRITER = """\
cd "$1"
for ((i = 0; ; i++)); do
    for j in 1 2 3; do echo "$i $j $RANDOM" > "d$((RANDOM % 20))-$j"; done
    git add -A && git -c gc.auto=0 commit -q -m "$i" && "$2" sync . && git rev-parse HEAD || exit 1
done
"""


def last_line(path):
    """The last acknowledgement of a writer, or None."""
    with open(path, encoding="ascii") as log:
        lines = [line for line in log.read().split("\n")[:-1] if line]
    return lines[-1] if lines else None


def kill_server(t):
    """Sends SIGKILL to the server of the mount, and returns when it has ended."""
    pid = json.loads(t.output(cffs_binary(), "info", "--json", t.dir))["server"]["pid"]
    server = os.pidfd_open(pid)
    signal.pidfd_send_signal(server, signal.SIGKILL)
    select.select([server], [], [], 60)
    os.close(server)


def no_operation():
    """A context without an operation on the volume."""
    return contextlib.nullcontext(lambda: None)


def kill_again_and_again(t, rounds, rng, crash, operation=no_operation):
    """SQLite and git work until `crash` is called, in the context of `operation`. After each recovery the
    image is sound, the checks of the operation and of both programs succeed, and no acknowledged transaction
    or commit is lost."""
    sqlite = t.program("sqlite3", "apt-get install sqlite3")
    database, work = t.path("log.db"), t.subdir("git")
    t.run(sqlite, database, f"PRAGMA journal_mode={rng.choice(('WAL', 'DELETE'))};"
          "CREATE TABLE log (number INTEGER PRIMARY KEY, data);"
          "CREATE TABLE total (rows); INSERT INTO total VALUES (0);")
    t.run("git", "init", "-q", work)
    for key, value in (("core.fsync", "all"), ("core.fsyncMethod", "fsync"), ("user.name", "n"),
                       ("user.email", "e@example.org")):
        t.run("git", "-C", work, "config", key, value)
    t.volume.sync()
    for round in range(rounds):
        logs = [t.outside(f"acknowledged-{name}") for name in ("sqlite", "git")]
        commands = [[sys.executable, "-c", SQLITE_WRITER, database],
                    ["bash", "-c", GIT_WRITER, "bash", work, cffs_binary()]]
        writers = []
        for log, command in zip(logs, commands):
            with open(log, "wb") as out:
                writers.append(subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL))
        time.sleep(rng.uniform(0.1, 1.5))
        with operation() as check:
            kill_server(t)
            crash()
        for writer in writers:
            assert writer.wait(timeout=60) != 0, "a writer outlived the server"
        subprocess.run(["umount", "-l", t.dir], check=True)
        t.mount()
        check()
        rows, commit = (last_line(log) for log in logs)
        found = t.output(sqlite, database, "PRAGMA integrity_check; SELECT count(*), max(number) FROM log;"
                         "SELECT rows FROM total;").decode().split()
        print(f"round {round}: acknowledged {rows} rows and {commit}; found {found}", flush=True)
        assert found[0] == "ok", found
        count, highest = (int(number or 0) for number in found[1].split("|"))
        assert count == highest == int(found[2]) and count >= int(rows or 0), (found, rows)
        # Lock files of a killed git, which block the next one.
        for name in ("index.lock", "HEAD.lock", "refs/heads/master.lock", "refs/heads/main.lock"):
            if os.path.exists(os.path.join(work, ".git", name)):
                os.unlink(os.path.join(work, ".git", name))
        t.run("git", "-C", work, "fsck", "--full", "--strict", "--no-dangling", "--no-progress")
        if commit:
            t.run("git", "-C", work, "merge-base", "--is-ancestor", commit, "HEAD")
        t.unmount()
        t.volume.check()
        t.mount()


def seeded():
    """A random generator, seeded by SEED."""
    seed = int(os.environ.get("SEED", time.time_ns() % 100_000))
    print(f"SEED={seed}", flush=True)
    return random.Random(seed)


@case("killed-server", size=8 * GIB, only_on="cffs", timeout=180)
def killed_server(t):
    """The server is killed during work; its writes since the last sync remain on the device."""
    kill_again_and_again(t, t.pick(5, 300), seeded(), lambda: None)


# The number of cuts of one volume with all sizes; otherwise each cut has a volume of its own.
CUTS_OF_VOLUME = 10
# Volumes that can grow by some steps within a disk.
VOLUME_BYTES, GROW_BYTES = 512 << 20, 1 << 20
JOURNALS = ("none", "inside", "other disk")
# Of the free space: unchanged, after growing, in short runs, and little.
SHAPES = ("usual", "grown", "holes", "nearly full")
HOLE_BYTES = 64 << 10
# The free space for each cut of a volume with holes or nearly full.
LEFT_BYTES = 24 << 20
# The operations on a volume in use, with their arguments: of a directory on it, and of one that no file has.
OPERATIONS = {
    "none": None,
    "trim": lambda directory, _: ("trim", directory),
    "grow": lambda directory, _: ("grow", directory, f"+{GROW_BYTES}"),
    "regroup": lambda directory, _: ("regroup", directory),
    "scrub": lambda directory, _: ("scrub", directory),
    "check": lambda directory, _: ("fsck", "--online", directory),
    "clone": lambda directory, name: ("clone", f"{directory}/git", f"{directory}/{name}"),
    "mark": lambda directory, name: ("mark", directory, name),
    "tune": lambda directory, name: ("tune", "--label", name, directory),
    "sync": lambda directory, _: ("sync", directory),
}
# Those that succeed without free space.
NEED_NO_SPACE = ("trim", "scrub", "check", "sync")


@case("power-cut", size=1 * GIB, only_on="cffs", timeout=180)
def power_cut(t):
    """The server is killed, and the device loses some of the unflushed writes: all, a single write, all but
    one, the later ones, half a request, or some sectors. The seed chooses whether the volume is compressed,
    where its journal is and whether it is used, the shape of the free space, whether freed blocks are
    discarded, by which transport it is mounted, how often it commits, and which operation on the volume in
    use is interrupted. A journal on another disk loses writes of its own."""
    rng = seeded()
    cuts = t.pick(8, 300)
    of_volume = t.pick(1, CUTS_OF_VOLUME)
    t.unmount()
    lost = []
    for _ in range(0, cuts, of_volume):
        with volume_by_seed(t, rng, of_volume, lost) as (cut, operation):
            kill_again_and_again(t, of_volume, rng, cut, operation)
    note_losses(lost)


@contextlib.contextmanager
def volume_by_seed(t, rng, cuts, lost):
    """Makes and mounts a volume of a kind that the seed chooses, on emulated disks. Yields a function that
    cuts their power, and one that begins an operation on the volume. There will be this number of cuts."""
    compression = rng.choice(("none", "zstd"))
    journal, shape = rng.choice(JOURNALS), rng.choice(SHAPES)
    mount = [f"transport={rng.choice(('auto', 'dev'))}", f"commit={rng.choice(('5', '0.01'))}",
             rng.choice(("discard", "nodiscard"))]
    if journal != "none" and rng.randrange(3) == 0:
        mount.append("journal=off")
    print(f"note: compression: {compression}, journal: {journal}, space: {shape}, {', '.join(mount)}",
          flush=True)
    plain, options = t.volume.image, t.volume.mount_options
    if os.path.exists(plain):
        os.unlink(plain)
    mkfs = [] if compression == "none" else ["--compress", compression]
    mkfs += ["--journal", "none" if journal == "none" else "16M"]
    with contextlib.ExitStack() as stack:
        disks = [stack.enter_context(emulated_disk(t, f"disk-{nth}", 1))
                 for nth in range(2 if journal == "other disk" else 1)]
        if journal == "other disk":
            mkfs += ["--journal-device", disks[1].image]
        t.run(cffs_binary(), "mkfs", *mkfs, "--size", str(VOLUME_BYTES), plain)
        copy_data(plain, disks[0].image)
        t.volume.image = disks[0].image
        if journal == "other disk":
            mount.append(f"journal-device={disks[1].image}")
        t.volume.mount_options = ",".join(filter(None, (options, *mount)))
        try:
            t.mount()
            shape_space(t, shape, cuts)
            yield (lambda: lost.append(sum(disk.cut(rng) for disk in disks)),
                   lambda: operation_by_seed(t, rng, shape))
            t.unmount()
        finally:
            t.volume.tear_down()
            t.volume.image, t.volume.mount_options = plain, options


def shape_space(t, shape, cuts):
    """Gives the free space of the mounted volume its shape."""
    if shape == "grown":
        t.run(cffs_binary(), "grow", t.dir, f"+{GROW_BYTES}")
    elif shape == "nearly full":
        fill(t, LEFT_BYTES)
    elif shape == "holes":
        left = LEFT_BYTES * cuts * 2
        fill(t, left)
        directory = t.subdir("runs")
        runs = [os.path.join(directory, str(number)) for number in range(left // HOLE_BYTES)]
        made = [run for run in runs if reserve(run, HOLE_BYTES)]
        for run in made[::2]:
            os.unlink(run)
    t.volume.sync()


def fill(t, left):
    """Makes, extends or shortens a file, so that this much of the space is left."""
    space, filler = os.statvfs(t.dir), t.path("filler")
    more = space.f_bfree * space.f_frsize - left
    if more > 0:
        assert reserve(filler, more), f"no space for {more} bytes of {space.f_bfree * space.f_frsize}"
    elif more < 0:
        os.truncate(filler, max(os.path.getsize(filler) + more, 0))


def reserve(path, size):
    """Makes or extends a file by this much space; false if there is not enough."""
    try:
        with open(path, "ab") as file:
            os.posix_fallocate(file.fileno(), file.tell(), size)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    return True


def copy_data(source, target):
    """Copies an image to the beginning of a disk that contains zeros."""
    with open(source, "rb") as plain, open(target, "r+b") as disk:
        at, end = 0, os.fstat(plain.fileno()).st_size
        while at < end:
            try:
                at = os.lseek(plain.fileno(), at, os.SEEK_DATA)
            except OSError:
                break
            hole = os.lseek(plain.fileno(), at, os.SEEK_HOLE)
            os.pwrite(disk.fileno(), os.pread(plain.fileno(), hole - at, at), at)
            at = hole
        os.fsync(disk.fileno())


@contextlib.contextmanager
def operation_by_seed(t, rng, shape):
    """Begins an operation on the volume, so that the power is usually cut meanwhile. Yields a function that
    checks, after the next mount, that its result was kept if it succeeded, and leaves a volume that is nearly
    full as full as before."""
    name, argument = rng.choice(sorted(OPERATIONS)), f"by-{rng.randrange(1 << 32)}"
    delay = rng.choice((0, rng.uniform(0, 0.05), rng.uniform(0, 0.3)))
    def refill():
        if shape == "nearly full":
            fill(t, LEFT_BYTES)

    if OPERATIONS[name] is None:
        yield refill
        return
    command = [cffs_binary(), *OPERATIONS[name](t.dir, argument)]
    print("$ " + " ".join(command), flush=True)
    before = size_and_label(t)
    messages = t.outside("messages-of-operation")
    with open(messages, "wb") as out:
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=out)

    def check():
        code = running.wait(timeout=60)
        print(f"note: {name}, cut after {delay:.3f} s: exit code {code}", flush=True)
        size, label = size_and_label(t)
        if name == "grow":
            # Interrupted, the volume has its old size or its new one.
            grown = before[0] + GROW_BYTES
            assert size == grown or code != 0 and size == before[0], (before, size)
        elif name == "tune":
            assert label == argument or code != 0 and label == before[1], (before, label)
        elif name == "mark" and code == 0:
            assert argument in t.output(cffs_binary(), "mark", t.dir).decode(), "a mark is lost"
        refill()

    time.sleep(delay)
    if running.poll() not in (None, 0):
        with open(messages, encoding="utf-8", errors="replace") as file:
            said = file.read()
        may_lack_space = shape in ("holes", "nearly full") and name not in NEED_NO_SPACE
        assert may_lack_space and "no space left" in said.lower(), f"{name} failed before the kill: {said}"
    yield check


def size_and_label(t):
    """The size of the mounted volume in bytes, and its label."""
    info = json.loads(t.output(cffs_binary(), "info", "--json", t.dir))["superblock"]
    return info["size_bytes"], info["label"]


class EmulatedDisk:
    """A disk that loses unflushed writes on request."""

    def __init__(self, t, image, control):
        self.trial = t
        self.image = image
        self.control = control

    def cut(self, rng):
        """Cuts the power. Returns the number of sectors that were lost."""
        seed = str(rng.randrange(1 << 32))
        answer = json.loads(self.trial.output(bench_binary(), "control", self.control, "cut", seed))
        print(answer, flush=True)
        return answer["lost_sectors"]


@contextlib.contextmanager
def emulated_disk(t, name, size_gib, profile="none"):
    """An empty disk, which exists as long as the context."""
    bench = bench_binary()
    if not os.path.exists(bench):
        raise Skip(f"there is no {bench}: cargo build -p cffs-bench, and name it in $CFFS_BENCH")
    work = t.outside(name)
    disk, control, backing = (os.path.join(work, part) for part in ("disk", "control", "backing"))
    os.makedirs(disk)
    command = [bench, "disk", f"--profile={profile}", f"--size={size_gib}G", "--volatile",
               "--control", control, "--backing", backing, disk]
    try:
        with serving(command, os.path.join(disk, "disk")) as image:
            yield EmulatedDisk(t, image, control)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def note_losses(lost):
    """Prints the count of cuts, and fails if many of them lost nothing."""
    # Writes are nearly always in progress, but five cuts may miss all of them.
    assert any(lost) or len(lost) < 20, "no power cut lost anything"
    print(f"note: {len(lost)} power cuts, {sum(map(bool, lost))} of them lost sectors: {sum(lost)} in all")


@contextlib.contextmanager
def volatile_disk(t, rng, size_gib, profile="none"):
    """Moves the trial's volume to an emulated disk, and yields a function that makes it lose unflushed
    writes."""
    plain, lost = t.volume.image, []
    with emulated_disk(t, "disk", size_gib, profile) as disk:
        t.unmount()
        t.volume.image = disk.image
        try:
            t.run(cffs_binary(), "mkfs", disk.image)
            yield lambda: lost.append(disk.cut(rng))
        finally:
            t.volume.tear_down()
            t.volume.image = plain
    note_losses(lost)


@contextlib.contextmanager
def serving(command, file):
    """Runs a server, waits until its file exists, and ends it."""
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 30
        while not os.path.exists(file):
            assert server.poll() is None and time.monotonic() < until, f"no {file}"
            time.sleep(0.05)
        yield file
    finally:
        server.terminate()
        server.wait(timeout=30)
