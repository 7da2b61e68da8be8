"""Servers that are killed, in a machine of their own, which nothing may bring to a standstill."""

import os
import subprocess

from .. import guest
from ..case import case
from ..volume import cffs_binary


# It needs no volume on this machine; the suite mounts one all the same.
@case("killed-servers", only_on="cffs", timeout=600)
def killed_servers(t):
    """A server is killed just after mounting, in use, with all of its mount namespace and with its
    container: over each transport and in each order it ends, its mount answers ENOTCONN, and sync(2)
    and df of the machine go on. Servers hung with sync(2) of the whole machine, until it was started
    again: in a namespace that ended with them, and with a thread that waited for its own mount."""
    program = t.outside("cffs")
    # What a debugger needs is most of it, and the guest has it in memory.
    subprocess.run(["objcopy", "--strip-debug", cffs_binary(), program], check=True)
    # The guest says itself what hangs; this is for one that cannot.
    guest.run(t, "killed.sh", f"- {t.pick(100, 1000)}", [program], timeout=t.pick(500, 10_000),
              machine=guest.SERVER)
    os.unlink(program)
