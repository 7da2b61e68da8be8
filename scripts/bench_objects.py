"""Counts what file systems ask of an object store: C-FFS, and beside it s3fs and rclone's mount.

versitygw serves the objects; before it stands `cffs-bench store-proxy`, which counts, and takes 30 ms for
each request and 85 MB/s for all. Prints the table of docs/object-stores.md, and fails where C-FFS asks for
more than its bars. Counts depend little on how busy the machine is; the seconds printed beside them do.
"""

import argparse
import contextlib
import json
import math
import os
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
SMALL_COUNT = 1000
KEYS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "only-for-benchmarks"}
PATIENCE_SECONDS = 60


def wait_for(what, is_so):
    until = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        if time.monotonic() > until:
            sys.exit(f"bench-objects: {what} takes too long")
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


class Bench:
    def __init__(self, store, programs, scratch, count):
        self.store, self.programs, self.scratch, self.count = store, programs, scratch, count
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
    def counted(self, system, what, bar=None):
        """Counts the requests of a block; a bar is the most of these kinds together, and what they are."""
        before, began = self.store.counts(), time.monotonic()
        yield
        seconds, after = time.monotonic() - began, self.store.counts()
        row = {name: after[name] - before[name] for name in after}
        row |= {"system": system, "what": what, "seconds": round(seconds, 1), "bar": None}
        if bar:
            most, kinds = bar
            row["bar"] = f"≤ {most} {' + '.join(kinds)}"
            row["is_met"] = sum(row[kind] for kind in kinds) <= most
        self.rows.append(row)
        print(f"{system}: {what}: {({name: row[name] for name in after})}, {seconds:.1f} s", file=sys.stderr)

    def cffs(self, *arguments):
        subprocess.run([self.programs["cffs"], *map(str, arguments)], check=True, env=self.environment,
                       stdout=subprocess.DEVNULL)

    def sync(self):
        """Waits for this volume alone; syncfs(2) does not reach a server of the mount type fuse."""
        self.cffs("sync", self.mountpoint)

    def umount(self):
        self.cffs("umount", self.mountpoint)

    def settle(self):
        """Waits until nothing more is put: rclone goes on after files are closed, and ends amid it."""
        before = None
        while before != (before := self.store.counts()["puts"]):
            time.sleep(2)

    def abandon(self):
        """Leaves no mount behind where a run failed."""
        if os.path.ismount(self.mountpoint):
            subprocess.run(["umount", "-l", self.mountpoint], check=False)

    def source(self):
        """The tree to import: directories of a thousand files."""
        source = self.scratch / "source"
        for number in range(self.count):
            directory = source / f"d{number // 1000}"
            if number % 1000 == 0:
                directory.mkdir(parents=True)
            (directory / f"f{number}").write_bytes(number.to_bytes(8, "little") * (FILE_BYTES // 8))
        return source

    def create(self, directory, count):
        directory.mkdir()
        for number in range(count):
            (directory / f"f{number}").write_bytes(number.to_bytes(8, "little") * (FILE_BYTES // 8))

    def scan(self, directory):
        found = 0
        for parent, _, names in os.walk(directory):
            for name in names:
                found += len((Path(parent) / name).read_bytes()) == FILE_BYTES
        return found

    def run_cffs(self):
        url, name = "s3://bucket/tree", "C-FFS"
        server = ("mount", "-o", f"log={self.scratch}/log")
        self.cffs("mkfs", "-q", "--size", "1T", url)
        millions = self.count / 1e6
        source = self.source()
        all_files = f"{self.count:,} × 4 KiB"
        with self.counted(name, f"import of {all_files}", (12 + math.ceil(700 * millions), ["puts"])):
            self.cffs("import", "-q", url, source)
        shutil.rmtree(source)
        everything = ["puts", "gets", "heads", "lists", "deletes"]
        with self.counted(name, "mount, clean", (12, everything)):
            self.cffs(*server, url, self.mountpoint)
        path = self.mountpoint / f"d{self.count // 2000}" / f"f{self.count // 2}"
        with self.counted(name, "one cold small file by path", (3, ["gets"])):
            path.read_bytes()
        self.umount()
        self.cffs(*server, url, self.mountpoint)
        with self.counted(name, f"cold scan of {all_files}", (12 + math.ceil(1500 * millions), ["gets"])):
            assert self.scan(self.mountpoint) == self.count
        (self.mountpoint / "warm").write_bytes(b"x" * FILE_BYTES)
        self.sync()
        with self.counted(name, "fsync of a new 4 KiB file", (1, everything)):
            with open(self.mountpoint / "new", "wb") as file:
                file.write(b"x" * FILE_BYTES)
                file.flush()
                os.fsync(file.fileno())
        with self.counted(name, "1,000 × 4 KiB created, then sync", (3, everything)):
            self.create(self.mountpoint / "small", SMALL_COUNT)
            self.sync()
        self.umount()
        self.cffs(*server, url, self.mountpoint)
        with self.counted(name, "these 1,000 read cold", (8, ["gets"])):
            assert self.scan(self.mountpoint / "small") == SMALL_COUNT
        time.sleep(20)
        with self.counted(name, "an idle writer, 30 s", (0, everything)):
            time.sleep(30)
        with self.counted(name, "snapshot", (1, ["puts"])):
            self.cffs("snapshot", "create", f"{url}@kept")
        with self.counted(name, "clone", (4, ["puts"])):
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
        everything = ["puts", "gets", "heads", "lists", "deletes"]
        with self.counted("C-FFS", "mount, after a crash", (80, everything)):
            self.cffs(*server, "-o", "takeover", url, self.mountpoint)
        assert self.scan(self.mountpoint / "lost") == 100
        self.umount()

    def run_peer(self, name, command):
        """Files that are closed and then unmounted: all of them are in the store then."""

        @contextlib.contextmanager
        def mounted():
            # A cache of what was written would answer for the store.
            shutil.rmtree(self.scratch / "rclone", ignore_errors=True)
            with contextlib.ExitStack() as stack:
                start(stack, command, env=self.environment, stdout=subprocess.DEVNULL)
                wait_for(name, lambda: os.path.ismount(self.mountpoint))
                yield
                umount = ["umount", self.mountpoint]
                wait_for(name, lambda: subprocess.run(umount, stderr=subprocess.DEVNULL).returncode == 0)

        with self.counted(name, "1,000 × 4 KiB created, then unmounted"), mounted():
            self.create(self.mountpoint / "small", SMALL_COUNT)
            self.settle()
        with mounted():
            with self.counted(name, "one cold small file by path"):
                (self.mountpoint / "small" / "f500").read_bytes()
        with mounted():
            with self.counted(name, "these 1,000 read cold"):
                assert self.scan(self.mountpoint / "small") == SMALL_COUNT

    def table(self):
        print("| | | PUT | GET | HEAD | LIST | DELETE | bar |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        for row in self.rows:
            numbers = " | ".join(f"{row[kind]:,}" for kind in ["puts", "gets", "heads", "lists", "deletes"])
            bar = "" if row["bar"] is None else row["bar"] + ("" if row["is_met"] else ", **missed**")
            for kind, shown in [("puts", "PUT"), ("gets", "GET"), ("heads", "HEAD"), ("lists", "LIST"),
                                ("deletes", "DELETE")]:
                bar = bar.replace(kind, shown)
            bar = bar.replace("PUT + GET + HEAD + LIST + DELETE", "requests")
            print(f"| {row['system']} | {row['what']} | {numbers} | {bar} |")


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="20,000 files in place of a million")
    parser.add_argument("--delay-ms", type=int, default=30, help="of each request; the counts need none")
    parser.add_argument("--json", type=Path, help="write the counts and seconds here, too")
    for program in ["cffs", "cffs-bench", "versitygw", "s3fs", "rclone"]:
        parser.add_argument(f"--{program}", type=Path, required=program not in ("s3fs", "rclone"))
    arguments = parser.parse_args()
    programs = {name: getattr(arguments, name.replace("-", "_")) for name in
                ["cffs", "cffs-bench", "versitygw", "s3fs", "rclone"]}
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-objects-")))
        store = Store(stack, programs, scratch, arguments.delay_ms)
        bench = Bench(store, programs, scratch, 20_000 if arguments.quick else 1_000_000)
        stack.callback(bench.abandon)
        bench.run_cffs()
        if programs["s3fs"]:
            keys = scratch / "keys"
            keys.write_text(":".join(KEYS.values()))
            keys.chmod(0o600)
            options = f"url={store.endpoint},use_path_request_style,passwd_file={keys}"
            bench.run_peer("s3fs", [programs["s3fs"], "bucket:/", bench.mountpoint, "-f", "-o", options])
        else:
            print("not run: s3fs", file=sys.stderr)
        if programs["rclone"]:
            options = ["--vfs-cache-mode", "writes", "--vfs-write-back", "0s"]
            options += ["--cache-dir", scratch / "rclone"]
            command = [programs["rclone"], "mount", "store:bucket/rclone", bench.mountpoint, *options]
            bench.run_peer("rclone mount", command)
        else:
            print("not run: rclone mount", file=sys.stderr)
        bench.table()
        if arguments.json:
            arguments.json.write_text(json.dumps(bench.rows, indent=1) + "\n")
        sys.exit(any(row.get("is_met") is False for row in bench.rows))


if __name__ == "__main__":
    main()
