"""Emulated disks as block devices, and limits on memory, for the studies in this directory."""

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path


def run(*command, **options):
    """The output of a program that must succeed."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                          **options)
    if done.returncode:
        # A later failure, of what cleans up, must not hide this one.
        print(f"{command}: {done.stdout}", file=sys.stderr)
        sys.exit(1)
    return done.stdout.strip()


def machine():
    """The processors and the kernel of this machine."""
    info = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    model = next((line.split(":")[1].strip() for line in info if line.startswith("model name")), "unknown")
    return f"{os.cpu_count()} cores of {model},\nLinux {platform.release()}"


def drop_caches():
    Path("/proc/sys/vm/drop_caches").write_text("3", encoding="ascii")


class Disk:
    """An emulated disk as a block device. It has delays only while `counted` measures."""

    def __init__(self, bench, scratch, size, profile, sector=4096):
        self.bench, self.scratch, self.size = str(bench), Path(scratch), size
        self.profile, self.sector = profile, sector
        self.socket, self.file = self.scratch / "control", self.scratch / "disk" / "disk"
        self.server, self.device = None, None

    def __enter__(self):
        self.file.parent.mkdir()
        command = [self.bench, "disk", "--profile", "none", "--size", str(self.size)]
        command += ["--control", self.socket, "--backing", self.scratch / "backing", self.file.parent]
        self.server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        # It says when it is ready.
        self.server.stderr.readline()
        self.device = run("losetup", "--find", "--show", "--direct-io=on", "--sector-size", str(self.sector),
                          str(self.file))
        queue = Path("/sys/block", Path(self.device).name, "queue")
        # With a write cache, what is durable waits for a flush. A disk without one completes it at once.
        settings = {"rotational": "1", "scheduler": "mq-deadline", "write_cache": "write back"}
        for attribute, value in settings.items():
            (queue / attribute).write_text(value, encoding="ascii")
        return self

    def __exit__(self, *_):
        if self.device:
            subprocess.run(["losetup", "--detach", self.device], check=False)
        self.server.terminate()
        self.server.wait()
        self.server.stderr.close()
        self.file.parent.rmdir()
        (self.scratch / "backing").unlink(missing_ok=True)

    def become(self, profile):
        run(self.bench, "control", str(self.socket), "profile", profile)

    def counters(self):
        return json.loads(run(self.bench, "control", str(self.socket), "counters"))

    def counted(self, work):
        """What the disk does during the work, and `seconds` for all of it."""
        self.become(self.profile)
        before, begun = self.counters(), time.monotonic()
        work()
        seconds, after = time.monotonic() - begun, self.counters()
        self.become("none")
        return {key: after[key] - before[key] for key in before} | {"seconds": seconds}


class MemoryGroup:
    """A control group: its programs, and the kernel's caches for them, get no more memory than its limit."""

    def __init__(self):
        root, limit = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"
        if not root.exists():
            root, limit = Path("/sys/fs/cgroup"), "memory.max"
            (root / "cgroup.subtree_control").write_text("+memory", encoding="ascii")
        self.at = root / f"cffs-study-{os.getpid()}"
        self.limit = self.at / limit

    def __enter__(self):
        self.at.mkdir()
        return self

    def __exit__(self, *_):
        self.at.rmdir()

    def call(self, limit, work, processes=1):
        """The sum of what the work returns in some new processes, which are within the limit."""
        self.limit.write_text(str(limit), encoding="ascii")
        ends = [self._fork(work, number) for number in range(processes)]
        total = 0
        for child, end in ends:
            with os.fdopen(end) as answer:
                text = answer.read()
            if os.waitpid(child, 0)[1]:
                sys.exit("a process with limited memory failed")
            total += int(text)
        return total

    def _fork(self, work, number):
        answer, end = os.pipe()
        child = os.fork()
        if child:
            os.close(end)
            return child, answer
        status = 1
        try:
            (self.at / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
            os.write(end, str(work(number)).encode())
            status = 0
        finally:
            os._exit(status)
