"""A full volume: refuses writes with ENOSPC, loses nothing, and can be emptied and filled again."""

import errno
import hashlib
import os
import threading

from .. import trees
from ..case import MIB, case
from .scale import used_bytes

# Metadata that a file system keeps once it was needed (directory blocks, journal, chunks of inodes).
ALLOWANCE = 0.02


def fill(root, rng_seed):
    """Writes and fsyncs files of several sizes until the volume is full. Returns the digest of each file
    whose fsync succeeded."""
    sizes = (1 << 20, 200, 7_000, 65_536, 100, 300_001, 4_096, 1_000)
    safe = {}
    number = 0
    full = False
    for round in range(len(sizes)):
        # Each round omits the larger sizes, so that the last hundred bytes are filled at the end.
        usable = sorted(sizes)[:len(sizes) - round]
        while True:
            path = os.path.join(root, f"d{number // 200}", f"file{number}")
            digest = hashlib.sha256(b"%d %d" % (rng_seed, number)).digest()
            data = digest * (usable[number % len(usable)] // 32 + 1)
            number += 1
            try:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            except OSError as error:
                assert error.errno == errno.ENOSPC, error
                full = True
                break
            try:
                left = memoryview(data)
                while left:
                    left = left[os.write(fd, left):]
                os.fsync(fd)
                safe[path] = hashlib.sha256(data).digest()
            except OSError as error:
                assert error.errno == errno.ENOSPC, error
                full = True
                break
            finally:
                try:
                    os.close(fd)
                except OSError as error:
                    assert error.errno == errno.ENOSPC, error
    assert full
    return safe


def verify(safe):
    for path, digest in safe.items():
        with open(path, "rb") as file:
            assert hashlib.sha256(file.read()).digest() == digest, f"{path} was acknowledged, but is damaged"


@case("no-space", size=(96 * MIB, 1024 * MIB), inodes=(30_000, 300_000), timeout=240)
def no_space(t):
    """Fill to ENOSPC, remount, compare the acknowledged files, delete all, and repeat: df must return to its
    former value, and the second fill must hold as much as the first."""
    at_start = used_bytes(t.dir)
    size = os.statvfs(t.dir).f_blocks * os.statvfs(t.dir).f_frsize
    first = t.subdir("first")
    safe = fill(first, 1)
    held = sum(os.stat(path).st_size for path in safe)
    status = os.statvfs(t.dir)
    print(f"note: {len(safe)} files, {held >> 20} MiB on {size >> 20} MiB;"
          f" df says {status.f_bavail * status.f_frsize >> 10} KiB are left")
    assert held > 0.6 * (size - at_start), "ENOSPC long before the volume is full"
    assert status.f_bavail * status.f_frsize < 0.08 * size, "df shows free space on a full volume"
    verify(safe)
    # Operations that need no space still work, and data can be changed in place.
    changed = next(path for path in safe if os.stat(path).st_size > 60_000)
    with open(changed, "r+b") as file:
        file.write(b"x" * 4096)
        file.flush()
        os.fsync(file.fileno())
    with open(changed, "rb") as file:
        safe[changed] = hashlib.sha256(file.read()).digest()
    t.remount()
    verify(safe)
    t.run("rm", "-rf", first)
    t.volume.sync()
    t.remount()
    kept = used_bytes(t.dir) - at_start
    assert kept <= ALLOWANCE * size, f"{kept >> 10} KiB were not freed"
    again = fill(t.subdir("second"), 2)
    held_again = sum(os.stat(path).st_size for path in again)
    assert held_again > 0.95 * held, f"held {held}, and after emptying only {held_again}"
    t.remount()
    verify(again)


@case("no-space-large-file", size=(128 * MIB, 1024 * MIB))
def no_space_large_file(t):
    """One file larger than the volume: write is short or returns ENOSPC, the file holds the bytes that write
    accepted, and a fallocate beyond the free space changes and reserves nothing."""
    free = os.statvfs(t.dir).f_bavail * os.statvfs(t.dir).f_frsize
    fd = os.open(t.path("reserved"), os.O_RDWR | os.O_CREAT)
    try:
        os.posix_fallocate(fd, 0, free * 2)
        raise AssertionError("reserved twice the available space")
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
    os.close(fd)
    os.unlink(t.path("reserved"))
    fd = os.open(t.path("large"), os.O_RDWR | os.O_CREAT)
    block = os.urandom(1 << 20)
    written = 0
    try:
        while True:
            count = os.write(fd, block)
            os.fsync(fd)
            written += count
            assert written < 2 * free, "more was written than there is space"
            if count < len(block):
                break
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
    os.close(fd)
    assert written > 0.7 * free, f"{written} of {free}"
    t.remount()
    with open(t.path("large"), "rb") as file:
        for offset in range(0, written, len(block)):
            piece = file.read(min(len(block), written - offset))
            assert piece == block[:len(piece)], f"damaged near {offset}"
    os.truncate(t.path("large"), 0)
    trees.make_plain_tree(t.subdir("tree"), 500)


@case("no-space-threads", size=512 * MIB)
def no_space_threads(t):
    """Many threads append to files of their own and fsync each piece, until the volume is full: each gets
    ENOSPC, and all fsynced data exists. A buffer that is not aligned to a page reaches the server in pieces
    that end within a block, so the end of a file is written, placed, and written again."""
    size, threads = 1 << 20, 64
    t.remount({"cffs": "cache=32M,dirty=16M"}.get(t.volume.name))
    pieces = memoryview(os.urandom(2 * size))
    safe, refused, other = {}, [], []

    def piece(number, step):
        start = (number * 7919 + step * 104_729) % size + 1
        return pieces[start:start + size]

    def work(number):
        path = t.path(f"file-{number}")
        try:
            with open(path, "wb", buffering=0) as file:
                step = 0
                while file.write(piece(number, step)) == size:
                    os.fsync(file.fileno())
                    step += 1
                    safe[path] = (number, step)
        except OSError as error:
            (refused if error.errno == errno.ENOSPC else other).append(error)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not other and refused, f"{other[:3]}, {len(refused)} times ENOSPC"
    t.remount()
    for path, (number, steps) in safe.items():
        with open(path, "rb") as file:
            for step in range(steps):
                assert file.read(size) == piece(number, step), f"{path} was acknowledged, but is damaged"
