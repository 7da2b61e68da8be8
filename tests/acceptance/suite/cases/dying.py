"""Servers that are killed, in a virtual machine, which must not hang."""

import os
import subprocess

from .. import guest
from ..case import case
from ..volume import cffs_binary


@case("killed-servers", only_on="cffs", timeout=1800)
def killed_servers(t):
    """A server is killed just after mounting, in use, with all of its mount namespace and with its container:
    over each transport and in each order it ends, its mount answers ENOTCONN, and sync(2) and df of the
    machine go on. Regression: servers hung together with sync(2) of the whole machine until a reboot: in a
    namespace that ended with them, and with a thread that waited for its own mount."""
    # The suite mounts a volume for each case. Other tests may make mount namespaces, which would keep it.
    t.unmount()
    program = t.outside("cffs")
    # Debug information is most of the program, and the guest has it in memory.
    subprocess.run(["objcopy", "--strip-debug", cffs_binary(), program], check=True)
    # The guest itself reports a hang; this limit is for a guest that cannot, next to other tests.
    guest.run(t, "killed.sh", f"- {t.pick(100, 1000)}", [program], timeout=t.pick(1700, 10_000),
              machine=guest.SERVER)
    os.unlink(program)
