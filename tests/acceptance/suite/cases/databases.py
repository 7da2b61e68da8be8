"""Programs that depend on fsync, rename, locks and mmap."""

import os
import shutil
import subprocess
import sys
import textwrap

from ..case import GIB, MIB, Skip, case

SQLITE_WRITER = """\
import sqlite3, sys
path, mode, worker, transactions = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
db = sqlite3.connect(path, timeout=120, isolation_level=None)
assert db.execute(f"PRAGMA journal_mode={mode}").fetchone()[0].upper() == mode
for number in range(transactions):
    db.execute("BEGIN IMMEDIATE")
    db.execute("INSERT INTO log VALUES (?, ?, randomblob(abs(random()) % 3000))", (worker, number))
    db.execute("UPDATE account SET balance = balance - 1 WHERE id = ?", (number % 7,))
    db.execute("UPDATE account SET balance = balance + 1 WHERE id = ?", (number * 3 % 7,))
    db.execute("ROLLBACK" if number % 10 == 9 else "COMMIT")
"""


@case("sqlite", size=1 * GIB)
def sqlite(t):
    """Two processes write one database, in each journal mode, one of which shares memory through mmap;
    the sums agree, before and after a remount."""
    program = t.program("sqlite3", "apt-get install sqlite3")
    transactions = t.pick(100, 5000)
    for mode in ("WAL", "DELETE", "TRUNCATE", "PERSIST"):
        path = t.path(f"{mode}.db")
        t.run(program, path, f"PRAGMA journal_mode={mode}; PRAGMA mmap_size=67108864;"
              "CREATE TABLE log (worker, number, data, PRIMARY KEY (worker, number));"
              "CREATE TABLE account (id INTEGER PRIMARY KEY, balance);"
              "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 6)"
              "INSERT INTO account SELECT i, 1000 FROM n;")
        command = [sys.executable, "-c", SQLITE_WRITER, path, mode]
        writers = [subprocess.Popen([*command, str(worker), str(transactions)]) for worker in range(2)]
        assert all([writer.wait() == 0 for writer in writers]), f"a writer failed in mode {mode}"
    t.remount()
    for mode in ("WAL", "DELETE", "TRUNCATE", "PERSIST"):
        found = t.output(program, t.path(f"{mode}.db"),
                         "PRAGMA integrity_check; SELECT count(*) FROM log; SELECT sum(balance) FROM account;")
        committed = 2 * (transactions - transactions // 10)
        assert found.split() == [b"ok", b"%d" % committed, b"7000"], f"{mode}: {found!r}"


@case("fsync-rename-mmap", size=512 * MIB)
def fsync_rename_mmap(t):
    """The access patterns of PostgreSQL: segments extended and written at random, fsynced by another process
    than the writer; a file replaced by a durable rename; a mapped file shared by processes; a log that is
    recycled by rename."""
    script = textwrap.dedent("""\
        import mmap, os, random, sys
        base, rounds = sys.argv[1], int(sys.argv[2])
        rng = random.Random(7)

        def fsync_directory(path):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(fd)
            os.close(fd)

        os.mkdir(f"{base}/wal")
        os.mkdir(f"{base}/data")
        shared = os.open(f"{base}/shared", os.O_RDWR | os.O_CREAT, 0o600)
        os.posix_fallocate(shared, 0, 1 << 20)
        memory = mmap.mmap(shared, 1 << 20)
        expected = {}
        for round in range(rounds):
            segment = f"{base}/data/{round % 5}"
            fd = os.open(segment, os.O_RDWR | os.O_CREAT, 0o600)
            for _ in range(20):
                block = rng.randrange(256)
                page = rng.randbytes(8192)
                assert os.pwrite(fd, page, block * 8192) == 8192
                expected[segment, block] = page
            os.close(fd)
            child = os.fork()
            if child == 0:
                # The checkpointer syncs what others wrote, through a descriptor of its own; and its
                # mark in shared memory must be seen by the parent.
                fd = os.open(segment, os.O_RDWR)
                os.fsync(fd)
                memory[round % 4096] = round % 251
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            assert memory[round % 4096] == round % 251
            with open(f"{base}/control.tmp", "wb") as file:
                file.write(b"%d" % round)
                file.flush()
                os.fsync(file.fileno())
            os.rename(f"{base}/control.tmp", f"{base}/control")
            fsync_directory(base)
            assert open(f"{base}/control", "rb").read() == b"%d" % round
            if round % 4 == 0 and round:
                os.rename(f"{base}/wal/{round - 4}", f"{base}/wal/{round}")
                fsync_directory(f"{base}/wal")
            wal = os.open(f"{base}/wal/{round - round % 4}", os.O_RDWR | os.O_CREAT | os.O_DSYNC, 0o600)
            os.pwrite(wal, b"%08d" % round, round % 4 * 8192)
            os.close(wal)
        memory.flush()
        for (segment, block), page in expected.items():
            with open(segment, "rb") as file:
                file.seek(block * 8192)
                assert file.read(8192) == page, (segment, block)
        assert len(os.listdir(f"{base}/wal")) == 1
        """)
    rounds = t.pick(200, 5000)
    base = t.subdir("cluster")
    t.run(sys.executable, "-c", script, base, str(rounds))
    t.remount()
    with open(os.path.join(base, "control"), "rb") as file:
        assert file.read() == b"%d" % (rounds - 1)


@case("postgresql", size=2 * GIB, timeout=240)
def postgresql(t):
    """PostgreSQL itself: initdb, pgbench, a fast shutdown, a start after a remount, all checksums correct."""
    versions = sorted(os.listdir("/usr/lib/postgresql")) if os.path.isdir("/usr/lib/postgresql") else []
    if not versions:
        raise Skip("PostgreSQL is not installed: apt-get install postgresql")
    programs = os.path.join("/usr/lib/postgresql", versions[-1], "bin")
    shutil.chown(t.subdir("postgres"), "postgres", "postgres")
    sockets = t.outside("sockets")
    os.mkdir(sockets)
    shutil.chown(sockets, "postgres", "postgres")
    data = t.path("postgres", "data")

    def run(program, *arguments):
        return t.output(os.path.join(programs, program), *arguments, user="postgres", cwd=sockets)

    def start():
        run("pg_ctl", "-D", data, "-w", "-s", "-l", os.path.join(sockets, "log"),
            "-o", f"-k {sockets} -h '' -c max_wal_size=128MB -c shared_buffers=32MB", "start")

    def stop():
        run("pg_ctl", "-D", data, "-w", "-s", "-m", "fast", "stop")

    run("initdb", "-D", data, "--data-checksums", "--auth=trust", "-U", "postgres")
    start()
    run("pgbench", "-h", sockets, "-U", "postgres", "-i", "-q", "-s", t.pick("1", "10"), "postgres")
    run("pgbench", "-h", sockets, "-U", "postgres", "-c", "4", "-T", t.pick("4", "60"), "-n", "postgres")
    stop()
    t.remount()
    run("pg_checksums", "--check", "-D", data)
    start()
    sums = run("psql", "-h", sockets, "-U", "postgres", "-At", "-c",
               "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history)",
               "postgres")
    run("pg_amcheck", "-h", sockets, "-U", "postgres", "--install-missing", "postgres")
    stop()
    assert sums.strip() == b"t", f"accounts and history disagree: {sums!r}"
