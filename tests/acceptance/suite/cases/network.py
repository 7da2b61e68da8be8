"""The volume served by NFS, with the kernel's client in a guest."""

import contextlib
import re
import signal
import socket
import subprocess
import time

from .. import guest, volume
from ..case import MIB, case
from .conformance import PJDFSTEST_CONFIGURATION

READY_S = 30
STOPPED_S = 60


@contextlib.contextmanager
def served(t):
    """Serves the trial's volume, which is unmounted for it, at a port of this machine, and yields the port.
    In the end the server must stop, and leave its image complete."""
    if t.volume.is_mounted():
        t.unmount()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    command = [volume.cffs_binary(), "serve", "--foreground", "--nfs", f"127.0.0.1:{port}",
               "--export", "/:insecure,no_root_squash", t.volume.image]
    print("$ " + " ".join(command), flush=True)
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        wait_for(server, port)
        yield port
        server.send_signal(signal.SIGTERM)
        status = server.wait(STOPPED_S)
        assert status == 0, f"the server ended with status {status}"
    finally:
        server.kill()
        server.wait()


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
    """What a shell does with files, through the kernel's client, with warm caches and with cold ones."""
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


# What version 3 of the protocol cannot do, whatever the server: a removed file that is still open keeps
# a name, and with it a link; times after 2106.
PJDFSTEST_FAILED = {"unlink::open_file_not_freed", "utimensat::y2038"}
# Those that remount, which the server's side does not show, and one that needs a known limit of links.
PJDFSTEST_SKIPPED = re.compile("erofs|link::link_count_max$")


@case("nfs-pjdfstest", size=256 * MIB, only_on="cffs", timeout=300)
def nfs_pjdfstest(t):
    """pjdfstest through the kernel's client: all cases that need no remount pass, but for those that the
    protocol excludes."""
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
