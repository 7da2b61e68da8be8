"""The volume served by NFS to independent clients: libnfs by its asynchronous interface, and pyNfsClient.
Each has a codec of its own."""

import glob
import os
import signal
import sys

from .. import volume
from ..case import MIB, Skip, case
from . import network

TOOLS = os.path.join(volume.REPOSITORY, "target/tools")


def compile_client(t):
    """The client in C, compiled against libnfs."""
    source = os.path.join(volume.REPOSITORY, "tests/acceptance/clients/libnfs.c")
    for root in os.path.join(TOOLS, "libnfs"), "/":
        library = glob.glob(os.path.join(root, "usr/lib/*/libnfs.a"))
        headers = os.path.join(root, "usr/include")
        if library and os.path.exists(os.path.join(headers, "nfsc/libnfs-raw.h")):
            program = t.outside("libnfs-client")
            t.run("cc", "-Wall", "-Wextra", "-Werror", "-O1", "-isystem", headers, "-o", program, source,
                  library[0])
            return program
    raise Skip("libnfs-dev is not there: scripts/setup.sh unpacks it below target/tools")


@case("nfs-libnfs", size=256 * MIB, only_on="cffs", timeout=120)
def nfs_libnfs(t):
    """24 calls in progress on one connection: files are created, written from their ends, committed, listed
    in pieces by READDIRPLUS, and read; EXCLUSIVE create recognizes a repetition. After a kill, a new server
    has all of them under the same handles, and another verifier."""
    client, files = compile_client(t), t.pick("200", "1000")
    if t.volume.is_mounted():
        t.unmount()
    port = network.unused_port()
    server = network.start(t, port)
    try:
        verifier, handle = t.output(client, str(port), "make", files).decode().split()
        server.kill()
        server.wait()
        server = network.start(t, port)
        t.run(client, str(port), "check", files, verifier, handle)
        server.send_signal(signal.SIGTERM)
        assert server.wait(network.STOPPED_S) == 0
    finally:
        server.kill()
        server.wait()


class Client:
    """pyNfsClient, with results instead of structures."""

    def __init__(self, package, port):
        self.auth = {"flavor": 1, "machine_name": "suite", "uid": 0, "gid": 0, "aux_gid": []}
        mount = package.Mount("127.0.0.1", port, 30, self.auth)
        mount.connect()
        mounted = mount.mnt("/")
        assert mounted["status"] == 0, mounted
        self.root = mounted["mountinfo"]["fhandle"]
        mount.disconnect()
        self.nfs = package.NFSv3("127.0.0.1", port, 30, self.auth)
        self.nfs.connect()

    def close(self):
        self.nfs.disconnect()

    def status(self, procedure, *arguments, **options):
        """How a call ended."""
        return getattr(self.nfs, procedure)(*arguments, auth=self.auth, **options)["status"]

    def ok(self, procedure, *arguments, **options):
        """The results of a call that must succeed."""
        reply = getattr(self.nfs, procedure)(*arguments, auth=self.auth, **options)
        assert reply["status"] == 0, f"{procedure}: {reply}"
        return reply.get("resok")

    def make(self, procedure, *arguments, **options):
        """The handle of the file that a call creates."""
        return self.ok(procedure, *arguments, **options)["obj"]["handle"]["data"]

    def attributes(self, file):
        reply = self.nfs.getattr(file, auth=self.auth)
        assert reply["status"] == 0, reply
        return reply["attributes"]

    def names(self, directory, procedure, **options):
        """Every entry of a directory, from a listing in pieces."""
        entries, cookie, pieces = {}, 0, 0
        while True:
            reply = self.ok(procedure, directory, cookie=cookie, **options)["reply"]
            pieces += 1
            entry = reply["entries"][0] if reply["entries"] else None
            while entry:
                assert entry["name"] not in entries, f"{entry['name']} is listed twice"
                entries[entry["name"]] = entry
                cookie = entry["cookie"]
                entry = entry["nextentry"][0] if entry["nextentry"] else None
            if reply["eof"]:
                assert pieces > 1, "the listing fits one reply"
                return entries


@case("nfs-pynfsclient", size=128 * MIB, only_on="cffs", timeout=60)
def nfs_pynfsclient(t):
    """Every procedure by pyNfsClient, which decodes whole replies, including those of failures."""
    sys.path.insert(0, os.path.join(TOOLS, "python"))
    try:
        import pyNfsClient  # pylint: disable=import-error,import-outside-toplevel
    except ImportError as error:
        raise Skip(f"pyNfsClient cannot be used ({error}): pip install pyNfsClient==0.1.5 --target "
                   "target/tools/python; it needs a Python before 3.13") from error
    finally:
        sys.path.pop(0)
    with network.served(t) as port:
        client = Client(pyNfsClient, port)
        try:
            change_names(client, pyNfsClient)
            change_contents(client, pyNfsClient)
            list_names(client, pyNfsClient)
            ask_the_file_system(client)
        finally:
            client.close()


def change_names(client, package):
    root = client.root
    directory = client.make("mkdir", root, "directory", mode=0o750)
    assert client.attributes(directory)["mode"] == 0o750
    file = client.make("create", directory, "file", package.GUARDED, mode=0o640)
    # The client uses seconds as call numbers, so an identical call gets the earlier answer.
    assert client.status("create", directory, "file", package.GUARDED, mode=0o600) == package.NFS3ERR_EXIST
    once = client.make("create", directory, "once", package.EXCLUSIVE, verf=b"verifier")
    assert client.status("create", directory, "once", package.EXCLUSIVE, verf=b"another.") == \
        package.NFS3ERR_EXIST
    assert client.ok("lookup", directory, "once")["object"]["data"] == once
    client.ok("link", file, root, "second")
    assert client.attributes(file)["nlink"] == 2
    client.ok("rename", directory, "file", root, "renamed")
    assert client.status("lookup", directory, "file") == package.NFS3ERR_NOENT
    assert client.ok("lookup", root, "renamed")["object"]["data"] == file
    link = client.make("symlink", root, "link", "directory/once")
    assert client.ok("readlink", link)["data"] == b"directory/once"
    pipe = client.make("mknod", root, "pipe", package.NF3FIFO, mode=0o600)
    assert client.attributes(pipe)["type"] == package.NF3FIFO
    assert client.status("rmdir", root, "directory") == package.NFS3ERR_NOTEMPTY
    client.ok("remove", directory, "once")
    client.ok("rename", root, "directory", root, "empty")
    client.ok("rmdir", root, "empty")
    stale = client.nfs.getattr(once, auth=client.auth)["status"]
    assert stale == package.NFS3ERR_STALE, stale


def change_contents(client, package):
    file = client.make("create", client.root, "contents", package.GUARDED, mode=0o600)
    text = "0123456789" * 1000
    written = client.ok("write", file, 0, len(text), text, package.UNSTABLE)
    assert written["count"] == len(text)
    committed = client.ok("commit", file)
    assert committed["verf"] == written["verf"]
    durable = client.ok("write", file, 5, 2, "xy", package.FILE_SYNC)
    assert durable["committed"] == package.FILE_SYNC and durable["verf"] == written["verf"]
    before = durable["file_wcc"]["before"]["attributes"]
    assert before["size"] == len(text)
    read = client.ok("read", file, offset=0, chunk_count=20_000)
    assert read["data"] == b"01234xy" + text[7:].encode() and read["eof"]
    client.ok("setattr", file, size=7, mode=0o644)
    attributes = client.attributes(file)
    assert (attributes["size"], attributes["mode"]) == (7, 0o644)
    granted = client.ok("access", file, 0x3F)["access"]
    assert granted == 0x01 | 0x04 | 0x08, f"{granted:#x}"


def list_names(client, package):
    directory = client.make("mkdir", client.root, "many", mode=0o755)
    files = {f"file {number}".encode(): client.make("create", directory, f"file {number}", package.GUARDED,
                                                   mode=0o600) for number in range(120)}
    plus = client.names(directory, "readdirplus", dircount=2048, maxcount=4096)
    assert set(plus) == {*files, b".", b".."}, sorted(plus)
    for name, handle in files.items():
        assert plus[name]["name_handle"]["handle"]["data"] == handle
        attributes = plus[name]["name_attributes"]["attributes"]
        assert attributes["fileid"] == plus[name]["fileid"] == client.attributes(handle)["fileid"]
    plain = client.names(directory, "readdir", count=1024)
    assert {name: entry["fileid"] for name, entry in plain.items()} == \
        {name: entry["fileid"] for name, entry in plus.items()}


def ask_the_file_system(client):
    space = client.ok("fsstat", client.root)
    assert 0 < space["abytes"] <= space["fbytes"] < space["tbytes"] <= 128 * MIB, space
    limits = client.ok("fsinfo", client.root)
    assert limits["rtmax"] >= 1 << 16 and limits["maxfilesize"] > 1 << 40, limits
    names = client.ok("pathconf", client.root)
    assert names["name_max"] == 255 and names["no_trunc"] and names["case_preserving"], names
