"""A virtual machine with a Linux kernel of its own: a client of the network that shares nothing with the
server, not even its page cache; or a machine that a case may make hang.

The processor is emulated, so the machine needs no privileges and runs wherever QEMU does. A guest's disk is
an archive that the kernel unpacks into memory: busybox, the kernel's modules, and those of the host's
programs that a script names, with their libraries. It reaches ports of the host's loopback address at
10.0.2.2.
"""

import dataclasses
import glob
import lzma
import os
import re
import stat
import subprocess

from . import volume
from .case import Skip

TOOLS = os.path.join(volume.REPOSITORY, "target", "tools")
SCRIPTS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "guest")


@dataclasses.dataclass(frozen=True)
class Machine:
    """A kernel, and its options."""

    # Where scripts/setup.sh has unpacked the kernel.
    directory: str
    modules: tuple
    emulator_options: tuple
    memory_mib: int = 768


# A client of the network; its first argument is the port of the export that it mounts.
CLIENT = Machine(os.path.join(TOOLS, "guest"), ("virtio_pci", "virtio_net", "nfsv3"),
                 ("-accel", "tcg", "-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net"))
# A machine that mounts volumes itself, with a kernel that has FUSE over io_uring.
SERVER = Machine(os.path.join(TOOLS, "guest-rings"), ("fuse", "loop"),
                 ("-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"), 1536)
# The last output of a guest; it may follow an incomplete line.
VERDICT = re.compile(r"guest: status (\d+)\s*$", re.M)


class Archive:
    """A cpio archive in the format "newc", which the kernel unpacks."""

    def __init__(self):
        self.entries = {}

    def add(self, path, mode, contents=b"", device=0):
        """Adds one file, and the directories above it."""
        above = os.path.dirname(path)
        if above and above not in self.entries:
            self.add(above, stat.S_IFDIR | 0o755)
        self.entries[path] = (mode, contents, device)

    def add_host_file(self, source, path=None):
        """Adds a file of the host as an executable one, at its own path if no other is given."""
        with open(source, "rb") as file:
            self.add((path or source).lstrip("/"), stat.S_IFREG | 0o755, file.read())

    def add_program(self, source):
        """Adds a program to /bin, and the libraries that it is linked with to their paths."""
        self.add_host_file(source, f"bin/{os.path.basename(source)}")
        linked = subprocess.run(["ldd", source], capture_output=True, text=True, check=False).stdout
        for library in re.findall(r"(/\S+) \(0x", linked):
            if library.lstrip("/") not in self.entries:
                self.add_host_file(library)

    def write(self, path):
        with open(path, "wb") as file:
            for number, (name, (mode, contents, device)) in enumerate(self.entries.items(), 1):
                write_entry(file, number, name, mode, contents, device)
            write_entry(file, 0, "TRAILER!!!", 0, b"", 0)


def write_entry(file, number, name, mode, contents, device):
    encoded = name.encode() + b"\0"
    fields = (number, mode, 0, 0, 1, 0, len(contents), 0, 0, os.major(device), os.minor(device),
              len(encoded), 0)
    file.write(b"070701" + b"".join(b"%08x" % field for field in fields) + encoded)
    file.write(b"\0" * (-file.tell() % 4) + contents)
    file.write(b"\0" * (-file.tell() % 4))


def modules_in_order(directory, names):
    """Paths of modules and of all their dependencies, in an order in which they can be loaded."""
    paths = {os.path.basename(path).split(".")[0].replace("-", "_"): path
             for path in glob.glob(f"{directory}/**/lib/modules/*/kernel/**/*.ko*", recursive=True)}
    found = []

    def need(name):
        if name not in paths:
            return  # The module is built into the kernel, or the guest's first process reports it.
        depends = re.search(rb"\0depends=([^\0]*)\0", module_contents(paths[name]))
        for other in filter(None, depends[1].decode().split(",")):
            need(other.replace("-", "_"))
        if paths[name] not in found:
            found.append(paths[name])

    for name in names:
        need(name)
    return found


def module_contents(path):
    """The bytes of a module, which may be compressed."""
    with (lzma.open(path) if path.endswith(".xz") else open(path, "rb")) as module:
        return module.read()


def run(trial, script, arguments="", programs=(), files=(), timeout=None, machine=CLIENT):
    """Boots a guest that runs a script from `guest/`, and raises unless it succeeds. `arguments` are those of
    guest/init; `files` are pairs of a text's name and contents. Returns the output."""
    emulator = trial.program("qemu-system-x86_64", "apt-get install qemu-system-x86")
    kernels = glob.glob(f"{machine.directory}/boot/vmlinuz-*")
    if not kernels:
        raise Skip(f"no kernel in {machine.directory}: scripts/setup.sh fetches it")
    archive = Archive()
    archive.add("dev/console", stat.S_IFCHR | 0o600, device=os.makedev(5, 1))
    archive.add_program(trial.program("busybox", "apt-get install busybox-static"))
    archive.add_host_file(os.path.join(SCRIPTS, "init"), "init")
    archive.add_host_file(os.path.join(SCRIPTS, script), "script")
    for program in programs:
        archive.add_program(program)
    for name, contents in files:
        archive.add(name, stat.S_IFREG | 0o644, contents.encode())
    for number, module in enumerate(modules_in_order(machine.directory, machine.modules)):
        archive.add(f"modules/{number:02}.ko", stat.S_IFREG | 0o644, module_contents(module))
    image = trial.outside("initrd")
    archive.write(image)
    command = [emulator, *machine.emulator_options, "-machine", "q35", "-m", str(machine.memory_mib),
               "-nographic", "-no-reboot", "-nodefaults", "-serial", "stdio", "-kernel", kernels[0],
               "-initrd", image, "-append", f"console=ttyS0 quiet panic=-1 -- {arguments}"]
    print("$ " + " ".join(command), flush=True)
    try:
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               timeout=timeout, check=True)
        output = ended.stdout.decode("utf-8", "replace")
    except subprocess.TimeoutExpired as late:
        print((late.stdout or b"").decode("utf-8", "replace"))
        raise
    print(output, flush=True)
    os.unlink(image)
    verdict = VERDICT.search(output)
    assert verdict, "the guest ended without a verdict"
    assert verdict[1] == "0", f"{script} failed in the guest with status {verdict[1]}"
    return output
