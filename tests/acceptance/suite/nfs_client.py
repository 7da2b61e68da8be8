"""A small client for NFS version 3, written from RFC 1813 and sharing no code with the server. It returns the
server's answers as they are, and repeats nothing by itself."""

import itertools
import socket
import struct

NFS, MOUNT = 100003, 100005
LOOKUP, READ, WRITE, CREATE, REMOVE, RENAME, COMMIT = 3, 6, 7, 8, 12, 14, 21
UNSTABLE, FILE_SYNC = 0, 2
NOENT = 2
LAST_FRAGMENT = 1 << 31


class Failed(Exception):
    """The server answered with this status."""

    def __init__(self, status):
        super().__init__(f"status {status}")
        self.status = status


def words(*numbers):
    """Numbers of 32 bits."""
    return struct.pack(f">{len(numbers)}I", *numbers)


def opaque(data):
    """Bytes with their length, up to a multiple of four."""
    return words(len(data)) + data + bytes(-len(data) % 4)


class Results:
    """The contents of a reply, read from its beginning."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        piece = self.data[self.at:self.at + count]
        assert len(piece) == count, "the reply ends early"
        self.at += count
        return piece

    def word(self):
        return struct.unpack(">I", self.take(4))[0]

    def opaque(self):
        count = self.word()
        data = self.take(count)
        self.take(-count % 4)
        return data

    def skip_attributes(self):
        """Attributes after an operation."""
        if self.word():
            self.take(84)

    def skip_wcc(self):
        """Attributes before and after a change."""
        if self.word():
            self.take(24)
        self.skip_attributes()


class Client:
    """A connection, as root."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.numbers = itertools.count(int.from_bytes(self.socket.getsockname()[1].to_bytes(2, "big")) << 8)

    def close(self):
        self.socket.close()

    def call(self, program, procedure, arguments):
        """The results of a call; ConnectionError if the server goes away."""
        number = next(self.numbers)
        credentials = words(0) + opaque(b"suite") + words(0, 0, 0)
        message = words(number, 0, 2, program, 3, procedure, 1) + opaque(credentials) + words(0, 0)
        message += arguments
        self.socket.sendall(words(LAST_FRAGMENT | len(message)) + message)
        header = struct.unpack(">I", self.receive(4))[0]
        assert header & LAST_FRAGMENT, "a reply in fragments"
        reply = Results(self.receive(header & ~LAST_FRAGMENT))
        # The number of the call; an accepted reply without verifier; success.
        head = [reply.word() for _ in range(6)]
        assert head == [number, 1, 0, 0, 0, 0], head
        return reply

    def receive(self, count):
        data = bytearray()
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                raise ConnectionResetError("the server closed the connection")
            data += piece
        return bytes(data)

    def nfs(self, procedure, arguments):
        """The results of a call that must succeed."""
        reply = self.call(NFS, procedure, arguments)
        status = reply.word()
        if status:
            raise Failed(status)
        return reply

    def root(self):
        """The handle of the first export."""
        reply = self.call(MOUNT, 1, opaque(b"/"))
        assert reply.word() == 0, "not mounted"
        return reply.opaque()

    def lookup(self, directory, name):
        return self.nfs(LOOKUP, opaque(directory) + opaque(name)).opaque()

    def create(self, directory, name):
        """Creates a file, or truncates an existing one."""
        attributes = words(1, 0o644, 0, 0, 1, 0, 0, 0, 0)
        reply = self.nfs(CREATE, opaque(directory) + opaque(name) + words(0) + attributes)
        assert reply.word(), "no handle"
        return reply.opaque()

    def write(self, file, offset, data, stable):
        """Writes, and returns the server's verifier."""
        arguments = opaque(file) + struct.pack(">Q", offset) + words(len(data), stable) + opaque(data)
        reply = self.nfs(WRITE, arguments)
        reply.skip_wcc()
        count, _ = reply.word(), reply.word()
        assert count == len(data), f"{count} bytes of {len(data)}"
        return reply.take(8)

    def commit(self, file):
        """Makes the file durable, and returns the server's verifier."""
        reply = self.nfs(COMMIT, opaque(file) + struct.pack(">Q", 0) + words(0))
        reply.skip_wcc()
        return reply.take(8)

    def read(self, file, count):
        reply = self.nfs(READ, opaque(file) + struct.pack(">Q", 0) + words(count))
        reply.skip_attributes()
        reply.take(8)
        return reply.opaque()

    def rename(self, directory, old, new):
        self.nfs(RENAME, opaque(directory) + opaque(old) + opaque(directory) + opaque(new))

    def remove(self, directory, name):
        self.nfs(REMOVE, opaque(directory) + opaque(name))
