"""The volume served by NFS: the kernel's client in a guest, and servers that are killed under load."""

import collections
import contextlib
import glob
import random
import re
import signal
import socket
import subprocess
import threading
import time

from .. import guest, nfs_client, volume
from ..case import GIB, MIB, case
from .conformance import PJDFSTEST_CONFIGURATION
from .killing import seeded, volatile_disk

READY_S = 30
STOPPED_S = 60


@contextlib.contextmanager
def served(t):
    """Unmounts the trial's volume, serves it at a port of this machine, and yields the port. At the end the
    server must stop with a complete image."""
    if t.volume.is_mounted():
        t.unmount()
    port = unused_port()
    server = start(t, port)
    try:
        yield port
        server.send_signal(signal.SIGTERM)
        status = server.wait(STOPPED_S)
        assert status == 0, f"the server ended with status {status}"
    finally:
        server.kill()
        server.wait()


def unused_port():
    """A port that was free a moment ago."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return unused.getsockname()[1]


def start(t, port):
    """A server that can be reached."""
    command = [volume.cffs_binary(), "serve", "--foreground", "--nfs", f"127.0.0.1:{port}",
               "--export", "/:insecure,no_root_squash", t.volume.image]
    print("$ " + " ".join(command), flush=True)
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        wait_for(server, port)
    except BaseException:
        server.kill()
        server.wait()
        raise
    return server


def wait_for(server, port):
    """Returns when the server can be reached."""
    deadline = time.monotonic() + READY_S
    while True:
        assert server.poll() is None, f"the server ended with status {server.returncode}"
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, "the server cannot be reached"
            time.sleep(0.05)


@case("nfs-files", size=256 * MIB, only_on="cffs", timeout=120)
def nfs_files(t):
    """Shell commands on files, through the kernel's client, with warm and with cold caches."""
    with served(t) as port:
        guest.run(t, "files.sh", port)


FSX_CONFIGURATION = """\
flen = 262144
[opsize]
max = 65536
[weights]
close_open = 1
read = 10
write = 10
mapread = 10
mapwrite = 10
invalidate = 1
truncate = 3
fsync = 0.3
fdatasync = 0.3
"""


@case("nfs-programs", size=256 * MIB, only_on="cffs", timeout=180)
def nfs_programs(t):
    """fsx, SQLite and git through the kernel's client: reads, mapped pages, sizes and names agree with what
    was written, with warm caches and with cold ones."""
    programs = [t.program("fsx", "cargo install fsx@0.3.2 --root target/tools"),
                t.program("sqlite3", "apt-get install sqlite3"), t.program("git", "apt-get install git")]
    with served(t) as port:
        guest.run(t, "programs.sh", f"{port} {t.pick(500, 20_000)} {t.pick(10, 1000)}", programs,
                  [("fsx.toml", FSX_CONFIGURATION)])


# Features that version 3 of the protocol cannot provide: a removed file that is still open keeps a name, and
# therefore a link; times after 2106.
PJDFSTEST_FAILED = {"unlink::open_file_not_freed", "utimensat::y2038"}
# Cases that remount, which has no effect on the server, and one that needs a known limit of links.
PJDFSTEST_SKIPPED = re.compile("erofs|link::link_count_max$")


@case("nfs-pjdfstest", size=256 * MIB, only_on="cffs", timeout=300)
def nfs_pjdfstest(t):
    """pjdfstest through the kernel's client: all cases without a remount pass, except those that the protocol
    excludes."""
    program = t.program("pjdfstest", "cargo install pjdfstest@0.2.2 --locked --root target/tools")
    configuration = PJDFSTEST_CONFIGURATION.replace("REMOUNT", "false").replace("EXPECTED", "[]")
    with served(t) as port:
        output = guest.run(t, "pjdfstest.sh", port, [program], [("pjdfstest.toml", configuration)])
    text = re.sub(r"\x1b\[[0-9;]*m|\r", "", output)
    summary = re.search(r"Summary: (\d+) failed, (\d+) skipped, (\d+) passed", text)
    assert summary, "pjdfstest did not end"
    failed = set(re.findall(r"^(\S+) +FAILED$", text, re.M))
    skipped = [name for name in re.findall(r"^(\S+) +skipped$", text, re.M)
               if not PJDFSTEST_SKIPPED.search(name)]
    assert failed == PJDFSTEST_FAILED, f"failed: {sorted(failed)}"
    assert not skipped, f"skipped: {skipped}"
    print(f"note: {summary[3]} passed")


class Writer(threading.Thread):
    """A client that makes files durable in all possible ways, continues when the server was restarted, and
    records what it was promised."""

    PIECE, PIECES = 3000, 4
    # The number of its permanent files.
    KEPT = 8

    def __init__(self, port, number, rng, start_number):
        super().__init__(daemon=True)
        self.port, self.number, self.rng, self.start_number = port, number, rng, start_number
        self.client, self.root, self.failure = None, None, None
        self.stopping = threading.Event()
        # Acknowledged contents by name, and removed names; names for which both states are valid.
        self.promised, self.gone, self.open = {}, collections.deque(maxlen=50), set()
        self.repeated, self.checked = 0, 0

    def run(self):
        try:
            for round in range(1 << 30):
                if self.stopping.is_set():
                    return
                self.make(f"{self.number}.{round}", round)
        except Exception as error:  # pylint: disable=broad-except
            self.failure = error

    def again_and_again(self, action):
        """Repeats an action until the server is available for all of it."""
        while True:
            try:
                if self.client is None:
                    self.client = nfs_client.Client(self.port)
                    self.root = self.root or self.client.root()
                    self.check()
                return action()
            except (ConnectionError, TimeoutError):
                if self.client:
                    self.client.close()
                self.client = None
                if self.stopping.is_set():
                    raise
                time.sleep(0.01)

    def make(self, name, round):
        contents = self.rng.randbytes(self.PIECE * self.PIECES)
        by_commit, client = round % 3 != 0, lambda: self.client
        self.open = {name, name + ".new"}
        # Only the name of this file is promised.
        self.open.add(name + ".made")
        self.again_and_again(lambda: client().create(self.root, f"{name}.made".encode()))
        self.promised[name + ".made"] = b""
        self.open.remove(name + ".made")
        file = self.again_and_again(lambda: client().create(self.root, name.encode()))
        while True:
            seen = set()
            for piece in range(self.PIECES):
                at = piece * self.PIECE
                data = contents[at:at + self.PIECE]
                stable = nfs_client.UNSTABLE if by_commit else nfs_client.FILE_SYNC

                def write(at=at, data=data, stable=stable):
                    before = self.start_number()
                    verifier = client().write(file, at, data, stable)
                    # The verifier of one of the servers of that time.
                    return (verifier, before, self.start_number())

                seen.add(self.again_and_again(write))

            if not by_commit:
                # Each of these was promised separately.
                break

            def commit():
                before = self.start_number()
                return client().commit(file), before

            verifier, server = self.again_and_again(commit)
            # Data in the memory of a previous server is lost, so the verifier must have changed.
            assert all(seen_verifier != verifier for seen_verifier, _, last in seen if last < server), \
                "a new server has the verifier of an old one"
            if all(seen_verifier == verifier for seen_verifier, _, _ in seen):
                break
            self.repeated += 1
        self.promised[name] = contents
        if round % 2:
            self.rename(name, name + ".new")
        if round >= self.KEPT:
            self.remove(round - self.KEPT)
        self.open = set()

    def rename(self, old, new):
        def rename():
            try:
                self.client.rename(self.root, old.encode(), new.encode())
            except nfs_client.Failed as failed:
                # The connection broke before the reply arrived.
                assert failed.status == nfs_client.NOENT, failed
        self.again_and_again(rename)
        self.promised[new] = self.promised.pop(old)
        self.gone.append(old)

    def remove(self, round):
        for name in (f"{self.number}.{round}{suffix}" for suffix in ("", ".new", ".made")):
            if self.promised.pop(name, None):
                self.open.add(name)

                def remove(name=name):
                    try:
                        self.client.remove(self.root, name.encode())
                    except nfs_client.Failed as failed:
                        assert failed.status == nfs_client.NOENT, failed
                self.again_and_again(remove)
                self.gone.append(name)

    def check(self):
        """Everything that any server acknowledged exists."""
        for name, contents in self.promised.items():
            if name not in self.open:
                file = self.client.lookup(self.root, name.encode())
                found = self.client.read(file, len(contents) + 1)
                assert found == contents, f"{name} does not have the acknowledged contents"
                self.checked += 1
        for name in self.gone:
            try:
                self.client.lookup(self.root, name.encode())
            except nfs_client.Failed as failed:
                assert failed.status == nfs_client.NOENT, failed
            else:
                raise AssertionError(f"{name} exists again, although its removal was acknowledged")


@case("nfs-killed", size=256 * MIB, only_on="cffs", timeout=180)
def nfs_killed(t):
    """The server is killed while clients write, and started again at the same address: they repeat
    uncommitted writes, and everything acknowledged as durable exists."""
    if t.volume.is_mounted():
        t.unmount()
    kill_under_load(t, t.pick(6, 300), seeded(), lambda server: None)


@case("nfs-power-cut", size=256 * MIB, only_on="cffs", timeout=180)
def nfs_power_cut(t):
    """Like nfs-killed, and the device loses some unflushed writes: changes that a COMMIT, a stable WRITE or a
    change of names has acknowledged exist, and each new server has another verifier. The power is cut while
    requests are in progress, including flushes: the server is stopped first, and killed when no more answers
    can reach it."""
    rng = seeded()
    # On a slow disk, some request is nearly always in progress.
    with volatile_disk(t, rng, t.pick(1, 8), "hdd7200") as cut:

        def cut_under(server):
            server.send_signal(signal.SIGSTOP)
            wait_until_stopped(server.pid)
            cut()

        kill_under_load(t, t.pick(6, 300), rng, cut_under)


def wait_until_stopped(pid):
    """Returns when no thread of a stopped process runs any more, except in the kernel."""
    deadline = time.monotonic() + STOPPED_S
    while True:
        states = []
        for status in glob.glob(f"/proc/{pid}/task/*/stat"):
            with contextlib.suppress(FileNotFoundError), open(status, encoding="utf-8") as text:
                states.append(text.read().rpartition(")")[2].split()[0])
        if states and not set(states) & set("RS"):
            return
        assert time.monotonic() < deadline, f"threads do not stop: {states}"
        time.sleep(0.001)


def kill_under_load(t, rounds, rng, crash):
    """Clients write while `crash` is applied to the server, which is killed and started again."""
    port, starts = unused_port(), [0]
    server = start(t, port)
    clients = [Writer(port, number, random.Random(rng.random()), lambda: starts[0]) for number in range(4)]
    verifiers = {verifier_of(port)}
    try:
        for client in clients:
            client.start()
        for round in range(rounds):
            time.sleep(rng.uniform(0.05, 0.6))
            crash(server)
            server.kill()
            server.wait()
            starts[0] += 1
            if round % 25 == 24:
                t.run(volume.cffs_binary(), "fsck", "-p", t.volume.image, check=False)
                t.volume.check()
            server = start(t, port)
            verifiers.add(verifier_of(port))
            assert len(verifiers) == round + 2, "a new server has the verifier of an old one"
            assert not any(client.failure for client in clients), [client.failure for client in clients]
        time.sleep(0.5)
        for client in clients:
            client.stopping.set()
        for client in clients:
            client.join(60)
            assert client.failure is None and not client.is_alive(), client.failure
            client.check()
        server.send_signal(signal.SIGTERM)
        assert server.wait(STOPPED_S) == 0
    finally:
        server.kill()
        server.wait()
    t.volume.check()
    checked = sum(client.checked for client in clients)
    assert checked > rounds, "almost nothing was acknowledged"
    repeated = sum(client.repeated for client in clients)
    print(f"note: {rounds} kills, {repeated} files written again, {checked} files compared")


def verifier_of(port):
    """The verifier of the present server."""
    client = nfs_client.Client(port)
    verifier = client.commit(client.create(client.root(), b"verifier"))
    client.close()
    return verifier
