"""A server that is killed during work: all promises to programs are kept afterwards."""

import contextlib
import json
import os
import random
import select
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


def kill_again_and_again(t, rounds, rng, crash):
    """SQLite and git work until `crash` is called. After each recovery the image is sound, both programs' own
    checks succeed, and no acknowledged transaction or commit is lost."""
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
        kill_server(t)
        crash()
        for writer in writers:
            assert writer.wait(timeout=60) != 0, "a writer outlived the server"
        subprocess.run(["umount", "-l", t.dir], check=True)
        t.mount()
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


@case("power-cut", size=1 * GIB, only_on="cffs", timeout=180)
def power_cut(t):
    """The server is killed, and the device loses some of the unflushed writes: all, a single write, all but
    one, the later ones, half a request, or some sectors."""
    rng = seeded()
    # Data written between the cuts stays: a fast machine fills a gibibyte before the three hundredth.
    with volatile_disk(t, rng, t.pick(1, 8)) as cut:
        t.mount()
        kill_again_and_again(t, t.pick(5, 300), rng, cut)


@contextlib.contextmanager
def volatile_disk(t, rng, size_gib, profile="none"):
    """Moves the trial's volume to an emulated disk, and yields a function that makes it lose unflushed
    writes."""
    bench = bench_binary()
    if not os.path.exists(bench):
        raise Skip(f"there is no {bench}: cargo build -p cffs-bench, and name it in $CFFS_BENCH")
    disk, control = t.outside("disk"), t.outside("control")
    os.mkdir(disk)
    t.unmount()
    plain, lost = t.volume.image, []

    def cut():
        answer = json.loads(t.output(bench, "control", control, "cut", str(rng.randrange(1 << 32))))
        lost.append(answer["lost_sectors"])
        print(answer, flush=True)

    command = [bench, "disk", f"--profile={profile}", f"--size={size_gib}G", "--volatile",
               "--control", control, "--backing", t.outside("backing"), disk]
    with serving(command, os.path.join(disk, "disk")) as image:
        t.volume.image = image
        try:
            t.run(cffs_binary(), "mkfs", image)
            yield cut
        finally:
            t.volume.tear_down()
            t.volume.image = plain
    # Writes are nearly always in progress, but five cuts may miss all of them.
    assert any(lost) or len(lost) < 20, "no power cut lost anything"
    print(f"note: {len(lost)} power cuts, {sum(map(bool, lost))} of them lost sectors: {sum(lost)} in all")


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
