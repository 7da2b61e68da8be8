"""Millions of small files in one image, read and written without mounting it.

    >>> import pycffs
    >>> pycffs.mkfs("tree.cffs", 64 << 20)
    >>> with pycffs.Volume("tree.cffs") as volume:
    ...     volume.write("/hello", b"world")
    ...     volume.read("/hello")
    b'world'

pycffs.Volume("/mnt/directory") opens a directory of a mounted volume in the same way: the volume's server
carries out the calls, with the rights of the user.

Paths are str, bytes or path-like, with / between names, and begin at the volume's root. No permissions are
checked in an image: a program that may open it may do anything in it. Changes are in memory until
Volume.sync, Volume.close or, for one file, fsync has returned. Calls release the interpreter's lock, and a
volume may be used by many threads. Ctrl-C ends long calls, except Volume.close.
"""

from __future__ import annotations

import errno
import io
import itertools
import os
import stat as modes
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, Literal, overload

from pycffs import _native
from pycffs._native import Stat, __version__, mkfs

__all__ = ["Entry", "Stat", "Volume", "__version__", "fsync", "mkfs"]

# Bytes of a file that are read ahead, or buffered for a single write.
_BUFFER_BYTES = 64 << 10
# Errors which mean that a path does not exist; others leave that open.
_LEADS_NOWHERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]

_ReadBytes = Literal["rb", "br"]
_WriteBytes = Literal["wb", "bw", "xb", "bx", "ab", "ba"]
_UpdateBytes = Literal["r+b", "rb+", "w+b", "wb+", "x+b", "xb+", "a+b", "ab+"]
_Text = Literal[
    "r", "rt", "w", "wt", "x", "xt", "a", "at",
    "r+", "r+t", "rt+", "w+", "w+t", "wt+", "x+", "x+t", "xt+", "a+", "a+t", "at+",
]  # fmt: skip


class Entry:
    """A name in a directory, like os.DirEntry. The attributes were read with the name, so those of a
    symbolic link are the link's own. An entry can be used wherever a path of the volume is accepted."""

    __slots__ = ("_stat", "name", "path")

    def __init__(self, path: str, stat: Stat) -> None:
        self.name = path.rpartition("/")[2]
        self.path = path
        self._stat = stat

    def __fspath__(self) -> str:
        return self.path

    def stat(self) -> Stat:
        """The attributes, of a symbolic link its own."""
        return self._stat

    def inode(self) -> int:
        return self._stat.ino

    def is_dir(self) -> bool:
        return modes.S_ISDIR(self._stat.mode)

    def is_file(self) -> bool:
        return modes.S_ISREG(self._stat.mode)

    def is_symlink(self) -> bool:
        return modes.S_ISLNK(self._stat.mode)

    def __repr__(self) -> str:
        return f"<Entry {self.path!r}>"


class _Walk(Iterator[Entry]):
    """The entries of a walk. Unlike a generator, it continues after an exception."""

    def __init__(
        self, volume: Volume, path: Path, onerror: Callable[[OSError], object] | None
    ) -> None:
        self._volume = volume
        self._path = path
        self._onerror = onerror
        # None before the walk has begun.
        self._walk: _native.Walk | None = None
        self._entries: Iterator[Entry] = iter(())
        self._has_ended = False

    def __next__(self) -> Entry:
        while (entry := next(self._entries, None)) is None:
            if self._has_ended:
                raise StopIteration
            try:
                self._read()
            except OSError as error:
                if self._onerror is None:
                    raise
                self._onerror(error)
        return entry

    def _read(self) -> None:
        if self._walk is None:
            try:
                self._walk = self._volume._walk(self._path)
            except OSError:
                self._has_ended = True
                raise
        found = self._walk.next()
        self._has_ended = not found
        self._entries = itertools.starmap(Entry, found)


class Volume(_native.Volume):
    """A volume in an image file, on a block device, in an object store, or mounted: its files by path.

    A directory of a mounted volume is the root of all paths; the server of the mount carries out the
    calls with the rights of the user. Then reading sets no times of access, close makes nothing
    durable, and calls in a child after os.fork fail with ENOTCONN, as after a restart of the server.

    A store is named by a URL, file:///directory or s3://bucket/prefix, followed by @NAME for a version;
    credentials come from the environment (docs/object-stores.md). read_only: refuse changes; other
    programs may read at the same time. atime: whether reading sets times of access. cache: bytes of memory
    for cached contents (256 MiB). dirty: bytes of memory for changes (64 MiB). take_over: open it for
    writing though another program has not closed it; if it is in a store, that program can no longer write.

    A read-only volume can be pickled: the process that unpickles it opens it. After close, calls raise
    ValueError, like those of a file.
    """

    def __enter__(self) -> Volume:
        if self.closed:
            raise ValueError("the volume is closed")
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def scandir(self, path: Path = "/") -> Iterator[Entry]:
        """The entries of a directory with their attributes, in the order of their creation."""
        directory = os.fsdecode(path).rstrip("/")
        return (Entry(f"{directory}/{name}", stat) for name, stat in self._entries(path))

    def listdir(self, path: Path = "/") -> list[str]:
        """The names in a directory, in the order of their creation."""
        return [name for name, _ in self._entries(path)]

    def walk(
        self, path: Path = "/", *, onerror: Callable[[OSError], object] | None = None
    ) -> Iterator[Entry]:
        """Everything below a directory, each directory before its entries. Links are not followed. Some
        hundred entries are read ahead.

        An error of a directory, whose path is its filename, follows the entry of that directory. It is
        passed to onerror, and the walk goes on. Without onerror it is raised, unlike by os.walk; the
        iterator then continues with the entries after that directory."""
        return _Walk(self, path, onerror)

    def exists(self, path: Path) -> bool:
        """Whether a path exists, like os.path.exists."""
        return self._finds(path, follow_symlinks=True)

    def lexists(self, path: Path) -> bool:
        """Whether a name exists, like os.path.lexists: true for a dangling symbolic link as well."""
        return self._finds(path, follow_symlinks=False)

    def _finds(self, path: Path, *, follow_symlinks: bool) -> bool:
        try:
            self.stat(path, follow_symlinks=follow_symlinks)
        except OSError as error:
            if error.errno not in _LEADS_NOWHERE:
                raise
            return False
        return True

    def lstat(self, path: Path) -> Stat:
        """The attributes of a file; those of the link itself for a symbolic link."""
        return self.stat(path, follow_symlinks=False)

    def makedirs(self, path: Path, *, exist_ok: bool = True) -> None:
        """Makes a directory and its missing ancestors."""
        if self.lexists(path):
            if exist_ok and self.exists(path) and modes.S_ISDIR(self.stat(path).mode):
                return
            raise FileExistsError(errno.EEXIST, "file exists", os.fsdecode(path))
        super().makedirs(path)

    def remove(self, path: Path) -> None:
        """Another name of unlink, as in os."""
        self.unlink(path)

    def replace(self, path: Path, new_path: Path) -> None:
        """Another name of rename, which replaces an existing file."""
        self.rename(path, new_path)

    def rmtree(self, path: Path) -> None:
        """Removes a file, or a directory with everything below it. Never follows symbolic links."""
        if not modes.S_ISDIR(self.lstat(path).mode):
            self.unlink(path)
            return
        directory = os.fsdecode(path)
        above = [(directory, self.scandir(directory))]
        while above:
            directory, entries = above[-1]
            for entry in entries:
                if entry.is_dir():
                    above.append((entry.path, self.scandir(entry)))
                    break
                self.unlink(entry)
            else:
                self.rmdir(directory)
                above.pop()

    @overload
    def read_many(
        self, paths: Iterable[Path], *, threads: int = ..., errors: Literal["raise"] = ...
    ) -> list[bytes]: ...

    @overload
    def read_many(
        self, paths: Iterable[Path], *, threads: int = ..., errors: Literal["return"]
    ) -> list[bytes | OSError]: ...

    def read_many(
        self, paths: Iterable[Path], *, threads: int = 1, errors: Literal["raise", "return"] = "raise"
    ) -> list[bytes] | list[bytes | OSError]:
        """The contents of many files, in the order of the paths.

        The files are read in device order, which for many files in another order is many times as fast as one
        by one. With errors="return", an OSError replaces the contents of a file that cannot be read.
        """
        if errors not in ("raise", "return"):
            raise ValueError(f"errors is 'raise' or 'return', not {errors!r}")
        found: list[Any] = self._read_many(list(paths), threads)
        if errors == "raise":
            for each in found:
                if isinstance(each, OSError):
                    raise each
        return found

    @overload
    def open(self, path: Path, mode: _ReadBytes = ...) -> io.BufferedReader: ...

    @overload
    def open(self, path: Path, mode: _WriteBytes) -> io.BufferedWriter: ...

    @overload
    def open(self, path: Path, mode: _UpdateBytes) -> io.BufferedRandom: ...

    @overload
    def open(
        self,
        path: Path,
        mode: _Text,
        *,
        encoding: str | None = ...,
        errors: str | None = ...,
        newline: str | None = ...,
    ) -> io.TextIOWrapper: ...

    @overload
    def open(
        self,
        path: Path,
        mode: str,
        *,
        encoding: str | None = ...,
        errors: str | None = ...,
        newline: str | None = ...,
    ) -> IO[Any]: ...

    def open(
        self,
        path: Path,
        mode: str = "rb",
        *,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> Any:
        """Opens a file like the built-in open: r, w, a or x, with b or t, and +. Without a mode, however, a
        file is read as bytes, as in fsspec.

        Encoding, errors and newline are for text. Concurrent appends by several file objects, in any threads,
        are all kept: each flushed buffer is appended in one piece.
        """
        kinds = set(mode) & set("rwax")
        is_known = set(mode) <= set("rwaxbt+") and len(set(mode)) == len(mode)
        if len(kinds) != 1 or not is_known or {"b", "t"} <= set(mode):
            raise ValueError(f"invalid mode: {mode!r}")
        if "b" in mode and not (encoding is errors is newline is None):
            raise ValueError("encoding, errors and newline are for text, and the mode has a b")
        raw = self._open_raw(path, mode)
        buffered: Any
        if "+" in mode:
            buffered = io.BufferedRandom(raw, _BUFFER_BYTES)
        else:
            kind = io.BufferedReader if "r" in mode else io.BufferedWriter
            buffered = kind(raw, _BUFFER_BYTES)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)

    def _open_raw(self, path: Path, mode: str) -> _Raw:
        native = self._open(path, "r" not in mode, "x" in mode, "w" in mode)
        raw = _Raw(native, os.fsdecode(path), mode)
        if "a" in mode:
            raw.seek(0, os.SEEK_END)
        return raw


def fsync(file: IO[Any]) -> None:
    """Makes the writes to a file of a volume durable, like os.fsync for a file of the host."""
    raw = getattr(getattr(file, "buffer", file), "raw", None)
    if not isinstance(raw, _Raw):
        raise TypeError(f"Volume.open has not opened this: {file!r}")
    file.flush()
    raw.fsync()


class _Raw(io.RawIOBase):
    """A file with a position, without a buffer."""

    def __init__(self, native: _native.File, name: str, mode: str) -> None:
        self._native: _native.File | None = native
        self.name = name
        self.mode = mode
        self._position = 0

    @property
    def _file(self) -> _native.File:
        if self._native is None:
            raise ValueError("I/O operation on closed file")
        return self._native

    def close(self) -> None:
        super().close()
        # The inode is no longer in use.
        self._native = None

    def readable(self) -> bool:
        return "r" in self.mode or "+" in self.mode

    def writable(self) -> bool:
        return "r" not in self.mode or "+" in self.mode

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self.readable():
            raise io.UnsupportedOperation("not readable")
        count = self._file.preadinto(buffer, self._position)
        self._position += count
        return count

    def readall(self) -> bytes:
        if not self.readable():
            raise io.UnsupportedOperation("not readable")
        data = self._file.pread(None, self._position)
        self._position += len(data)
        return data

    def write(self, data: Any) -> int:
        if not self.writable():
            raise io.UnsupportedOperation("not writable")
        data = bytes(data)
        if "a" in self.mode:
            self._position = self._file.append(data)
        else:
            self._file.pwrite(data, self._position)
            self._position += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_SET:
            position = offset
        elif whence == os.SEEK_CUR:
            position = self._position + offset
        elif whence == os.SEEK_END:
            position = self._file.stat().size + offset
        else:
            raise ValueError(f"invalid whence: {whence}")
        if position < 0:
            raise ValueError(f"a position before the file's beginning: {position}")
        self._position = position
        return position

    def tell(self) -> int:
        return self._position

    def truncate(self, size: int | None = None) -> int:
        if not self.writable():
            raise io.UnsupportedOperation("not writable")
        size = self._position if size is None else size
        self._file.truncate(size)
        return size

    def size(self) -> int:
        """The size of the file, without data in the buffer above."""
        return self._file.stat().size

    def fsync(self) -> None:
        """Makes writes durable, except data in the buffer above, which must be flushed first."""
        self._file.fsync()
