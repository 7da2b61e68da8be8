"""Counts the device requests of a program that starts with cold caches, by file system.

    python3 cold.py BINARIES [--options 300] [--seed 1]        (as root)

BINARIES is the directory with cffs and cffs-bench. Each file system is on a separate emulated disk. Prints
the number of requests for reading 5 of the options, and all of them, from one INI file and from a directory
of files, and for setting 5 durably. The caches are emptied and the volume is
mounted again before each; requests of mounting are not counted.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

PACKAGE = Path(__file__).parent / "src"
TOUCHED = 5
SIZE = "512M"

# Each runs as a separate program, in the volume; `names` are the options that it uses.
PREPARE = """
config = UConfigParser("config")
config["section"] = {name: f"value of {name}" for name in names}
with open("config.ini", "w") as file:
    config.write(file)
"""
CASES = {
    ("get 5", "INI"): "p = ConfigParser(); p.read('config.ini'); [p.get('section', n) for n in names]",
    ("get 5", "files"): "p = UConfigParser('config'); [p.get('section', n) for n in names]",
    ("set 5", "INI"): """
p = ConfigParser()
p.read("config.ini")
for name in names:
    p.set("section", name, "changed")
with open("config.ini.new", "w") as file:
    p.write(file)
os.rename("config.ini.new", "config.ini")
""",
    ("set 5", "files"): """
p = UConfigParser("config")
for name in names:
    p.set("section", name, "changed")
""",
    ("read all", "INI"): "p = ConfigParser(); p.read('config.ini'); dict(p['section'])",
    ("read all", "files"): "UConfigParser('config').read_all()",
}


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


class Disk:
    """An emulated disk as a block device."""

    def __init__(self, binaries, scratch, cleanup):
        self.bench, self.socket = binaries / "cffs-bench", scratch / "control"
        (scratch / "disk").mkdir()
        command = [self.bench, "disk", "--size", SIZE, "--backing", scratch / "backing"]
        server = subprocess.Popen(
            [*command, "--control", self.socket, scratch / "disk"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        cleanup.callback(server.wait)
        cleanup.callback(server.terminate)
        server.stderr.readline()
        file = scratch / "disk" / "disk"
        self.device = run("losetup", "--find", "--show", "--direct-io=on", file)
        cleanup.callback(run, "losetup", "--detach", self.device)
        queue = Path("/sys/block", Path(self.device).name, "queue")
        for attribute, value in {"rotational": 1, "scheduler": "mq-deadline"}.items():
            (queue / attribute).write_text(str(value))

    def requests(self):
        counters = json.loads(run(self.bench, "control", self.socket, "counters"))
        return counters["reads"] + counters["writes"]


class Volume:
    """A file system on such a disk."""

    def __init__(self, kind, binaries, scratch, cleanup):
        self.kind, self.cffs = kind, binaries / "cffs"
        self.disk = Disk(binaries, scratch, cleanup)
        self.at = scratch / "mnt"
        self.at.mkdir()
        make = [self.cffs, "mkfs"] if kind == "cffs" else [f"mkfs.{kind}", "-q"]
        lazy = ["-E", "lazy_itable_init=0,lazy_journal_init=0"] if kind == "ext4" else []
        run(*make, *lazy, self.disk.device)

    def __enter__(self):
        mount = [self.cffs, "mount"] if self.kind == "cffs" else ["mount", "-t", self.kind]
        run(*mount, "-o", "noatime", self.disk.device, self.at)
        Path("/proc/sys/vm/drop_caches").write_text("3")
        return self

    def __exit__(self, *_):
        run(*([self.cffs, "umount"] if self.kind == "cffs" else ["umount"]), self.at)

    def settle(self):
        run("sync", "-f", self.at)
        if self.kind == "cffs":
            run(self.cffs, "sync", self.at)

    def requests(self, program, names):
        """The number of requests of a program, including its writes left in the caches."""
        with self:
            os.listdir(self.at)
            before = self.disk.requests()
            run_in(self.at, program, names)
            self.settle()
            return self.disk.requests() - before


def run_in(directory, program, names):
    # The program continues in a process whose imports are done, since they are on another device.
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.chdir(directory)
            exec(program, NAMESPACE | {"names": names})
            code = 0
        finally:
            os._exit(code)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"the program failed:\n{program}")


def imports():
    sys.path.insert(0, str(PACKAGE))
    from configparser import ConfigParser

    from uconfigparser import UConfigParser

    return {"ConfigParser": ConfigParser, "UConfigParser": UConfigParser, "os": os}


NAMESPACE = imports()


def measure(kind, arguments):
    names = [f"option{number}" for number in range(arguments.options)]
    some = random.Random(arguments.seed).sample(names, TOUCHED)
    with ExitStack() as cleanup:
        scratch = Path(cleanup.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        volume = Volume(kind, arguments.binaries, scratch, cleanup)
        with volume:
            run_in(volume.at, PREPARE, names)
        return {case: volume.requests(program, some) for case, program in CASES.items()}


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("binaries", type=Path)
    arguments.add_argument("--options", type=int, default=300)
    arguments.add_argument("--seed", type=int, default=1)
    arguments = arguments.parse_args()
    if os.geteuid() != 0:
        sys.exit("this mounts volumes, which only root may do")
    print(f"{'':8}" + "".join(f"{what + ', ' + form:>17}" for what, form in CASES))
    for kind in ["ext4", "xfs", "cffs"]:
        requests = measure(kind, arguments)
        print(f"{kind:8}" + "".join(f"{requests[case]:17}" for case in CASES), flush=True)


if __name__ == "__main__":
    main()
