"""System calls that Python does not offer, through libc, with errno as OSError."""

import ctypes
import fcntl
import mmap
import os
import platform
import struct

libc = ctypes.CDLL(None, use_errno=True)

AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_SYMLINK_FOLLOW = 0x400
AT_STATX_SYNC_AS_STAT = 0
RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT = 1, 2, 4
FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_COLLAPSE, FALLOC_ZERO, FALLOC_INSERT = 1, 2, 8, 16, 32
F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW = 36, 37, 38
STATX_BTIME = 0x800
UTIME_NOW, UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2
MAX_HANDLE_SZ = 128
FS_IOC_GETFLAGS, FS_IOC_SETFLAGS = 0x80086601, 0x40086602
FS_IMMUTABLE_FL, FS_APPEND_FL = 0x10, 0x20
CAP_FSETID = 4
# The same on all architectures, as system calls since Linux 5 are.
SYS_OPEN_TREE, SYS_MOVE_MOUNT, SYS_MOUNT_SETATTR = 428, 429, 442


def call(function, *arguments):
    """Calls a libc function that returns -1 for errors."""
    result = function(*arguments)
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def renameat2(source, target, flags):
    call(libc.renameat2, AT_FDCWD, os.fsencode(source), AT_FDCWD, os.fsencode(target), ctypes.c_uint(flags))


def fallocate(fd, mode, offset, length):
    call(libc.fallocate, fd, mode, ctypes.c_long(offset), ctypes.c_long(length))


def linkat_fd(fd, target):
    """Gives a name to an open file without one, as open(2) advises under O_TMPFILE."""
    call(libc.linkat, AT_FDCWD, os.fsencode(f"/proc/self/fd/{fd}"), AT_FDCWD, os.fsencode(target),
         AT_SYMLINK_FOLLOW)


class Timespec(ctypes.Structure):
    """struct timespec"""

    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


def utimensat(path, access, modification, flags=0):
    """Each time is (seconds, nanoseconds); the nanoseconds may be UTIME_NOW or UTIME_OMIT."""
    times = (Timespec * 2)(Timespec(*access), Timespec(*modification))
    call(libc.utimensat, AT_FDCWD, os.fsencode(path), times, flags)


def birth_time(path):
    """statx's btime as (seconds, nanoseconds), or None if the file system has none."""
    buffer = ctypes.create_string_buffer(256)
    call(libc.statx, AT_FDCWD, os.fsencode(path), AT_STATX_SYNC_AS_STAT, STATX_BTIME, buffer)
    if not int.from_bytes(buffer[0:4], "little") & STATX_BTIME:
        return None
    return (int.from_bytes(buffer[80:88], "little", signed=True), int.from_bytes(buffer[88:92], "little"))


def name_to_handle(path):
    """The file's handle (an opaque value that outlives names) as bytes, and the mount's id."""
    buffer = ctypes.create_string_buffer(8 + MAX_HANDLE_SZ)
    buffer[0:4] = MAX_HANDLE_SZ.to_bytes(4, "little")
    mount_id = ctypes.c_int()
    call(libc.name_to_handle_at, AT_FDCWD, os.fsencode(path), buffer, ctypes.byref(mount_id), 0)
    size = int.from_bytes(buffer[0:4], "little")
    return bytes(buffer[0:8 + size])


def open_by_handle(mount_fd, handle, flags):
    return call(libc.open_by_handle_at, mount_fd, ctypes.create_string_buffer(handle, len(handle)), flags)


def toggle_flag(fd, flag):
    """Toggles a flag of a file, like chattr(1)."""
    flags = struct.unpack("i", fcntl.ioctl(fd, FS_IOC_GETFLAGS, bytes(8))[:4])[0]
    fcntl.ioctl(fd, FS_IOC_SETFLAGS, struct.pack("ii", flags ^ flag, 0))


def drop_capability(number):
    """Takes a capability from this process's effective set."""
    header = struct.pack("Ii", 0x20080522, 0)
    data = ctypes.create_string_buffer(24)
    call(libc.capget, header, data)
    low = struct.unpack_from("I", data)[0]
    struct.pack_into("I", data, 0, low & ~(1 << number))
    call(libc.capset, header, data)


class Getdents32:
    """getdents64(2) as a 32-bit program calls it, by interrupt 0x80 of the x86; None on other machines."""

    SIZE = 1 << 15
    MAP_32BIT = 0x40
    # push %rbx; mov %edi,%ebx; mov %esi,%ecx; mov $220,%eax; int $0x80; pop %rbx; ret
    CODE = bytes.fromhex("53 89fb 89f1 b8dc000000 cd80 5b c3")

    @classmethod
    def is_possible(cls):
        return platform.machine() == "x86_64" and os.path.exists("/proc/sys/abi/vsyscall32")

    def __init__(self):
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | self.MAP_32BIT
        self.memory = mmap.mmap(-1, self.SIZE + 4096, flags=flags,
                                prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.memory[self.SIZE:self.SIZE + len(self.CODE)] = self.CODE
        self.function = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint] * 3)(self.address + self.SIZE)

    def read(self, fd):
        """The next entries, as (number, offset, name); none at the end."""
        length = self.function(fd, self.address, self.SIZE)
        if length < 0:
            raise OSError(-length, os.strerror(-length))
        entries, at = [], 0
        while at < length:
            number, offset, size = struct.unpack_from("<QqH", self.memory, at)
            entries.append((number, offset, bytes(self.memory[at + 19:at + size]).split(b"\0")[0]))
            at += size
        return entries


class Directory:
    """opendir(3) and related functions: Python has no telldir and seekdir."""

    libc.opendir.restype = ctypes.c_void_p
    libc.readdir.restype = ctypes.c_void_p
    libc.telldir.restype = ctypes.c_long

    def __init__(self, path):
        self.handle = ctypes.c_void_p(libc.opendir(os.fsencode(path)))
        if not self.handle:
            raise OSError(ctypes.get_errno(), "opendir", path)

    def next(self):
        """The next name as bytes, or None at the end."""
        entry = libc.readdir(self.handle)
        if not entry:
            return None
        # struct dirent of 64-bit Linux: d_ino, d_off, d_reclen, d_type, d_name.
        return ctypes.string_at(entry + 19)

    def rest(self):
        """All the names up to the end, without . and .. ."""
        names = []
        while (name := self.next()) is not None:
            if name not in (b".", b".."):
                names.append(name)
        return names

    def tell(self):
        return libc.telldir(self.handle)

    def seek(self, position):
        libc.seekdir(self.handle, ctypes.c_long(position))

    def rewind(self):
        libc.rewinddir(self.handle)

    def close(self):
        libc.closedir(self.handle)


class MountAttr(ctypes.Structure):
    """struct mount_attr"""

    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]


def bind_with_owners(source, target, user_namespace):
    """Mounts a directory on another one, with owners as a user namespace, an open file, maps them."""
    syscall = libc.syscall
    clone, attached_by_fd, set_owners = 1, 4, 0x100000
    tree = call(syscall, SYS_OPEN_TREE, AT_FDCWD, os.fsencode(source), ctypes.c_uint(clone))
    try:
        attr = MountAttr(set_owners, 0, 0, user_namespace.fileno())
        call(syscall, SYS_MOUNT_SETATTR, tree, b"", ctypes.c_uint(AT_EMPTY_PATH), ctypes.byref(attr),
             ctypes.c_size_t(ctypes.sizeof(attr)))
        call(syscall, SYS_MOVE_MOUNT, tree, b"", AT_FDCWD, os.fsencode(target),
             ctypes.c_uint(attached_by_fd))
    finally:
        os.close(tree)
