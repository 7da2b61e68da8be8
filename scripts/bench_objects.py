"""Counts the requests of file systems to an object store: C-FFS, JuiceFS, s3fs and rclone's mount.

versitygw serves the objects; before it stands `cffs-bench store-proxy`, which counts, and takes 30 ms for
each request and 85 MB/s for all. Prints the tables of docs/object-stores.md, and fails where C-FFS misses
one of its bars. Counts depend little on how busy the machine is; the seconds do.
"""

import argparse
import contextlib
import json
import math
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

FILE_BYTES = 4096
PIECES_BYTES_MIN = 64 << 20
SMALL_COUNT = 1000
KEYS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "only-for-benchmarks"}
PATIENCE_SECONDS = 60
KINDS = ["puts", "gets", "heads", "lists", "deletes"]
SHOWN = {"puts": "PUT", "gets": "GET", "heads": "HEAD", "lists": "LIST", "deletes": "DELETE",
         "gets_in_a_row": "GET in a row"}

BYTES_PER_SECOND = 85_000_000
SHARE_OF_BANDWIDTH = 0.8
# Nothing is said of the bandwidth by less: the delays of the first requests would be most of the time.
BANDWIDTH_COUNT_MIN = 1_000_000

# What is done on all file systems, and by how much C-FFS is meant to need fewer requests and less time.
CREATE, SCAN, RANDOM = "1,000 × 4 KiB created, until they are in the store", \
    "these 1,000 read cold", "100 of these at random, cold"
RANDOM_COUNT = 100
# Of Amazon S3 Standard, as of `cffs stats`: dollars for a thousand requests. Those that delete are free.
USD_PER_THOUSAND = {"puts": 0.005, "lists": 0.005, "gets": 0.0004, "heads": 0.0004, "deletes": 0}
FEWER, FASTER = 10, 5


def wait_for(what, is_so):
    until = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        if time.monotonic() > until:
            raise TimeoutError(f"{what} takes too long")
        time.sleep(0.02)


class Store:
    """versitygw behind the proxy."""

    def __init__(self, stack, programs, scratch, delay_ms):
        buckets = scratch / "buckets"
        (buckets / "bucket").mkdir(parents=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            upstream = "127.0.0.1:%d" % free.getsockname()[1]
        start(stack, [programs["versitygw"], "--access", KEYS["AWS_ACCESS_KEY_ID"],
                      "--secret", KEYS["AWS_SECRET_ACCESS_KEY"], "--port", upstream, "posix", buckets],
              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        host, port = upstream.split(":")
        wait_for("versitygw", lambda: can_connect(host, int(port)))
        proxy = start(stack, [programs["cffs-bench"], "store-proxy", "--delay-ms", delay_ms, upstream],
                      stdout=subprocess.PIPE, text=True)
        self.endpoint = "http://" + proxy.stdout.readline().strip()

    def counts(self):
        with urllib.request.urlopen(self.endpoint + "/.counts") as answer:
            return json.load(answer)


def can_connect(host, port):
    with contextlib.suppress(OSError), socket.create_connection((host, port), 1):
        return True
    return False


def start(stack, command, **options):
    """A process that ends with the stack."""
    process = subprocess.Popen([str(part) for part in command], **options)

    def end():
        process.terminate()
        try:
            process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    stack.callback(end)
    return process


class Contents:
    """The contents of files: their numbers, or consecutive pieces of the files below a directory.

    The pieces repeat once all of them are used. They are then so far apart that no file system stores or
    compresses equal pieces together.
    """

    def __init__(self, directory):
        self.pieces = b""
        if directory:
            found = sorted(path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
            self.pieces = b"".join(path.read_bytes() for path in found)
            if len(self.pieces) < PIECES_BYTES_MIN:
                sys.exit(f"bench-objects: the files below {directory} have {len(self.pieces):,} bytes in total; "
                         f"at least {PIECES_BYTES_MIN:,} are necessary")

    def of(self, number):
        if not self.pieces:
            return number.to_bytes(8, "little") * (FILE_BYTES // 8)
        begin = number % (len(self.pieces) // FILE_BYTES) * FILE_BYTES
        return self.pieces[begin:begin + FILE_BYTES]


class Bench:
    def __init__(self, store, programs, scratch, arguments):
        self.store, self.programs, self.scratch, self.count = store, programs, scratch, arguments.files
        self.contents, self.compresses = Contents(arguments.contents), arguments.compress
        self.mountpoint = scratch / "mnt"
        self.mountpoint.mkdir()
        # Nothing of the user's own stores.
        others = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        self.environment = {
            **others, **KEYS, "AWS_ENDPOINT_URL": store.endpoint, "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1", "RCLONE_CONFIG_STORE_TYPE": "s3",
            "RCLONE_CONFIG_STORE_PROVIDER": "Other",
            "RCLONE_CONFIG_STORE_ENDPOINT": store.endpoint, "RCLONE_CONFIG_STORE_ENV_AUTH": "true",
            "RCLONE_CONFIG_STORE_REGION": "us-east-1", "RCLONE_CONFIG": "/dev/null",
        }
        self.rows = []

    @contextlib.contextmanager
    def counted(self, system, what, most=None, kinds=KINDS, seconds_max=None):
        """Counts the requests of a block. A bar is the maximum of these kinds together, and of seconds.

        The block may say when it ended, where it had to wait to learn that.
        """
        before, row = self.store.counts(), {"began": time.monotonic()}
        yield row
        seconds, after = row.get("ended", time.monotonic()) - row["began"], self.store.counts()
        row = {name: after[name] - before[name] for name in after}
        row |= {"system": system, "what": what, "seconds": round(seconds, 2), "bars": []}
        if most is not None:
            named = "requests" if kinds is KINDS else " + ".join(SHOWN[kind] for kind in kinds)
            row["bars"].append((f"≤ {most:,} {named}", sum(row[kind] for kind in kinds) <= most))
        if seconds_max is not None:
            row["bars"].append((f"≤ {seconds_max:.0f} s", seconds <= seconds_max))
        self.rows.append(row)
        print(f"{system}: {what}: {({name: row[name] for name in after})}, {seconds:.2f} s", file=sys.stderr)

    def at_bandwidth(self):
        """The most seconds in which all files are to pass, by the bandwidth; none for few."""
        if self.count < BANDWIDTH_COUNT_MIN:
            return None
        return self.count * FILE_BYTES / BYTES_PER_SECOND / SHARE_OF_BANDWIDTH

    def cffs(self, *arguments):
        subprocess.run([self.programs["cffs"], *map(str, arguments)], check=True, env=self.environment,
                       stdout=subprocess.DEVNULL)

    def sync(self):
        """Waits for this volume alone; syncfs(2) does not reach a server of the mount type fuse."""
        self.cffs("sync", self.mountpoint)

    def umount(self):
        self.cffs("umount", self.mountpoint)

    def settle(self):
        """Waits until nothing more is put, as rclone does after files are closed; when that was."""
        last, ended = self.store.counts()["puts"], time.monotonic()
        while time.monotonic() - ended < 2:
            time.sleep(0.1)
            if last != (last := self.store.counts()["puts"]):
                ended = time.monotonic()
        return ended

    def abandon(self):
        """Leaves no mount behind where a run failed."""
        if os.path.ismount(self.mountpoint):
            subprocess.run(["umount", "-l", self.mountpoint], check=False)

    def all_files(self):
        return f"{self.count:,} × 4 KiB"

    def source(self):
        """The tree to import: directories of a thousand files."""
        source = self.scratch / "source"
        for number in range(self.count):
            directory = source / f"d{number // 1000}"
            if number % 1000 == 0:
                directory.mkdir(parents=True)
            (directory / f"f{number}").write_bytes(self.contents.of(number))
        # Else that is written while the server of the store writes.
        os.sync()
        return source

    def create(self, directory, count):
        directory.mkdir()
        for number in range(count):
            (directory / f"f{number}").write_bytes(self.contents.of(number))

    def scan(self, directory, count):
        """Reads all files, four at a time that lie side by side."""
        every = ["find", directory, "-type", "f", "-print0"]
        with subprocess.Popen(every, stdout=subprocess.PIPE) as found, subprocess.Popen(
                ["xargs", "-0", "-P", "4", "-n", "200", "cat"], stdin=found.stdout,
                stdout=subprocess.PIPE) as read:
            length = 0
            while piece := read.stdout.read(1 << 20):
                length += len(piece)
        assert length == count * FILE_BYTES, f"{length} bytes of {count} files"

    def read_some(self, directory):
        for number in random.Random(1).sample(range(SMALL_COUNT), RANDOM_COUNT):
            assert len((directory / f"f{number}").read_bytes()) == FILE_BYTES

    def run_cffs(self):
        url, name = "s3://bucket/tree", "C-FFS"
        server = ("mount", "-o", f"logfile={self.scratch}/log")
        compression = "zstd" if self.compresses else "off"
        self.cffs("mkfs", "-q", "--size", "1T", "--compress", compression, url)
        millions = self.count / 1e6
        source = self.source()
        most = 12 + math.ceil(700 * millions) if millions < 1 else 700
        with self.counted(name, f"import of {self.all_files()}", most, ["puts"], self.at_bandwidth()):
            self.cffs("import", "-q", url, source)
        shutil.rmtree(source)
        with self.counted(name, "mount, clean", 12, seconds_max=2):
            self.cffs(*server, url, self.mountpoint)
        path = self.mountpoint / f"d{self.count // 2000}" / f"f{self.count // 2}"
        with self.counted(name, "one cold small file by path", 3, ["gets_in_a_row"]):
            path.read_bytes()
        self.umount()
        self.cffs(*server, url, self.mountpoint)
        most = 12 + math.ceil(1500 * millions) if millions < 1 else 1500
        with self.counted(name, f"cold scan of {self.all_files()}", most, ["gets"], self.at_bandwidth()):
            self.scan(self.mountpoint, self.count)
        self.umount()
        what = f"cold `cffs tar` of {self.all_files()}"
        with self.counted(name, what, most, ["gets"], self.at_bandwidth()):
            self.cffs("tar", url, "/")
        self.cffs(*server, url, self.mountpoint)
        (self.mountpoint / "warm").write_bytes(b"x" * FILE_BYTES)
        self.sync()
        with self.counted(name, "fsync of a new 4 KiB file", 1):
            with open(self.mountpoint / "new", "wb") as file:
                file.write(b"x" * FILE_BYTES)
                file.flush()
                os.fsync(file.fileno())
        with self.counted(name, CREATE, 3):
            self.create(self.mountpoint / "small", SMALL_COUNT)
            self.sync()
        self.umount()
        self.cffs(*server, url, self.mountpoint)
        with self.counted(name, SCAN, 8, ["gets"]):
            self.scan(self.mountpoint / "small", SMALL_COUNT)
        self.umount()
        self.cffs(*server, url, self.mountpoint)
        with self.counted(name, RANDOM):
            self.read_some(self.mountpoint / "small")
        time.sleep(20)
        with self.counted(name, "an idle writer, 30 s", 0):
            time.sleep(30)
        with self.counted(name, "snapshot", 1, ["puts"]):
            self.cffs("snapshot", "create", f"{url}@kept")
        with self.counted(name, "clone", 4, ["puts"]):
            self.cffs("clone", f"{url}@kept", "s3://bucket/clone")
        self.crash(server, url)

    def crash(self, server, url):
        """Mounts after a server was killed at work."""
        self.umount()
        command = [self.programs["cffs"], *server, "-f", url, self.mountpoint]
        process = subprocess.Popen([str(part) for part in command], env=self.environment)
        wait_for("a mount", lambda: os.path.ismount(self.mountpoint))
        self.create(self.mountpoint / "lost", 100)
        self.sync()
        process.kill()
        process.wait()
        subprocess.run(["umount", "-l", self.mountpoint], check=True)
        with self.counted("C-FFS", "mount, after a crash", 80, seconds_max=2):
            self.cffs(*server, "-o", "takeover", url, self.mountpoint)
        self.scan(self.mountpoint / "lost", 100)
        self.umount()

    @contextlib.contextmanager
    def peer(self, name):
        """A peer that fails takes only its own rows with it."""
        try:
            yield
        except (OSError, AssertionError, subprocess.SubprocessError) as error:
            print(f"not run to its end: {name}: {error}", file=sys.stderr)
            self.abandon()

    def run_peer(self, name, command):
        """A mount whose files are in the store, or on their way there, when they are closed."""

        @contextlib.contextmanager
        def mounted():
            # A cache of the writes would answer for the store.
            shutil.rmtree(self.scratch / "cache", ignore_errors=True)
            with contextlib.ExitStack() as stack:
                start(stack, command, env=self.environment, stdout=subprocess.DEVNULL)
                wait_for(name, lambda: os.path.ismount(self.mountpoint))
                yield
                umount = ["umount", self.mountpoint]
                wait_for(name, lambda: subprocess.run(umount, stderr=subprocess.DEVNULL).returncode == 0)

        small = self.mountpoint / "small"
        with mounted(), self.counted(name, CREATE) as row:
            self.create(small, SMALL_COUNT)
            row["ended"] = self.settle()
        with mounted(), self.counted(name, "one cold small file by path"):
            (small / "f500").read_bytes()
        with mounted(), self.counted(name, SCAN):
            self.scan(small, SMALL_COUNT)
        with mounted(), self.counted(name, RANDOM):
            self.read_some(small)

    def run_juicefs(self, program):
        """Its names are in SQLite on this machine, so requests for them are not counted."""
        names = f"sqlite3://{self.scratch}/juicefs.db"
        bucket = ["--storage", "s3", "--bucket", f"{self.store.endpoint}/bucket"]
        keys = {"ACCESS_KEY": KEYS["AWS_ACCESS_KEY_ID"], "SECRET_KEY": KEYS["AWS_SECRET_ACCESS_KEY"]}
        compression = ["--compress", "zstd" if self.compresses else "none"]
        subprocess.run([program, "format", *bucket, *compression, names, "juicefs"], check=True,
                       env=self.environment | keys, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        options = ["--cache-dir", self.scratch / "cache", "--no-usage-report", "--no-syslog", "--log",
                   self.scratch / "log", "--backup-meta", "0", "--metrics", "127.0.0.1:0"]
        self.run_peer("JuiceFS", [program, "mount", *options, names, self.mountpoint])

    def compare(self):
        """By how much C-FFS is ahead of each other system; whether that is as much as it is meant to be."""
        ours = {row["what"]: row for row in self.rows if row["system"] == "C-FFS"}
        for row in self.rows:
            if row["system"] == "C-FFS" or row["what"] not in (CREATE, SCAN, RANDOM):
                continue
            own = ours[row["what"]]
            requests = [sum(each[kind] for kind in KINDS) for each in (row, own)]
            fewer = requests[0] / max(requests[1], 1)
            faster = row["seconds"] / max(own["seconds"], 0.01)
            row["fewer"], row["faster"] = round(fewer, 1), round(faster, 1)
            row["bars"] = [(f"{FEWER} × fewer requests", fewer >= FEWER),
                           (f"{FASTER} × faster", faster >= FASTER)]

    def table(self):
        print("| | | PUT | GET | HEAD | LIST | DELETE | seconds | bar |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        for row in self.rows:
            numbers = " | ".join(f"{row[kind]:,}" for kind in KINDS)
            bars = ", ".join(bar + ("" if is_met else " **missed**") for bar, is_met in row["bars"])
            if "fewer" in row:
                bars = f"C-FFS: {row['fewer']:,g} × fewer requests, {row['faster']:,g} × faster" + "".join(
                    f"; {bar} **missed**" for bar, is_met in row["bars"] if not is_met)
            print(f"| {row['system']} | {row['what']} | {numbers} | {row['seconds']:.1f} | {bars} |")

    def dollars(self):
        """What requests for a million files cost, in proportion to those that were counted."""
        all_files = (f"import of {self.all_files()}", f"cold scan of {self.all_files()}", self.count)
        rows = {(row["system"], row["what"]): row for row in self.rows}
        print("\n| a million files | made | read cold |")
        print("| --- | --- | --- |")
        for system in dict.fromkeys(row["system"] for row in self.rows):
            made, read, count = all_files if system == "C-FFS" else (CREATE, SCAN, SMALL_COUNT)
            costs = []
            for row in (rows.get((system, made)), rows.get((system, read))):
                if row is not None:
                    usd = sum(row[kind] * USD_PER_THOUSAND[kind] for kind in KINDS) * 1000 / count
                    costs.append(f"${usd:.2f}" if usd >= 0.1 else f"${usd:.1g}")
            if len(costs) == 2:
                print(f"| {system} | {costs[0]} | {costs[1]} |")


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=1_000_000, help="how many are imported and scanned")
    parser.add_argument("--delay-ms", type=int, default=30, help="of each request; the counts need none")
    parser.add_argument("--contents", type=Path, help="a directory, whose files' pieces fill the files")
    parser.add_argument("--compress", action="store_true", help="compress the volumes of C-FFS and JuiceFS")
    parser.add_argument("--json", type=Path, help="write the counts and seconds here, too")
    names, peers = ["cffs", "cffs-bench", "versitygw"], ["juicefs", "s3fs", "rclone"]
    for program in names + peers:
        parser.add_argument(f"--{program}", type=Path, required=program in names)
    arguments = parser.parse_args()
    programs = {name: getattr(arguments, name.replace("-", "_")) for name in names + peers}
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-objects-")))
        store = Store(stack, programs, scratch, arguments.delay_ms)
        bench = Bench(store, programs, scratch, arguments)
        stack.callback(bench.abandon)
        bench.run_cffs()
        for name in peers:
            if not programs[name]:
                print(f"not run: {name}", file=sys.stderr)
        if programs["juicefs"]:
            with bench.peer("JuiceFS"):
                bench.run_juicefs(programs["juicefs"])
        if programs["s3fs"]:
            keys = scratch / "keys"
            keys.write_text(":".join(KEYS.values()))
            keys.chmod(0o600)
            options = f"url={store.endpoint},use_path_request_style,passwd_file={keys}"
            command = [programs["s3fs"], "bucket:/", bench.mountpoint, "-f", "-o", options]
            with bench.peer("s3fs"):
                bench.run_peer("s3fs", command)
        if programs["rclone"]:
            options = ["--vfs-cache-mode", "writes", "--vfs-write-back", "0s"]
            options += ["--cache-dir", scratch / "cache"]
            command = [programs["rclone"], "mount", "store:bucket/rclone", bench.mountpoint, *options]
            with bench.peer("rclone mount"):
                bench.run_peer("rclone mount", command)
        bench.compare()
        bench.table()
        bench.dollars()
        if arguments.json:
            arguments.json.write_text(json.dumps(bench.rows, indent=1) + "\n")
        sys.exit(not all(is_met for row in bench.rows for _, is_met in row["bars"]))


if __name__ == "__main__":
    main()
