"""Millions of small files in one image, read and written without mounting it.

    >>> import pycffs
    >>> pycffs.mkfs("tree.cffs", 64 << 20)
    >>> with pycffs.Volume("tree.cffs") as volume:
    ...     volume.write("/hello", b"world")
    ...     volume.read("/hello")
    b'world'

Paths are str, bytes or path-like, with / between names, and begin at the volume's root. Nobody's permissions
are checked: a program that may open an image may do anything in it. What is changed is in memory until
Volume.sync, Volume.close or, for one file, fsync has returned.
Calls release the interpreter's lock, and a volume may be used by many threads.
"""

from __future__ import annotations

import io
import os
import stat as modes
from collections.abc import Iterable, Iterator
from typing import IO, Any, Literal, overload

from pycffs import _native
from pycffs._native import Stat, mkfs

__all__ = ["Entry", "Stat", "Volume", "fsync", "mkfs"]

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]

_ReadBytes = Literal["rb", "br"]
_WriteBytes = Literal["wb", "bw", "xb", "bx", "ab", "ba"]
_UpdateBytes = Literal["r+b", "rb+", "w+b", "wb+", "x+b", "xb+", "a+b", "ab+"]
_Text = Literal[
    "r", "rt", "w", "wt", "x", "xt", "a", "at",
    "r+", "r+t", "rt+", "w+", "w+t", "wt+", "x+", "x+t", "xt+", "a+", "a+t", "at+",
]  # fmt: skip


class Entry:
    """A name in a directory, as os.DirEntry has it. The attributes have come with the name."""

    __slots__ = ("_stat", "name", "path")

    def __init__(self, directory: str, name: str, stat: Stat) -> None:
        self.name = name
        self.path = f"{directory.rstrip('/')}/{name}"
        self._stat = stat

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


class Volume(_native.Volume):
    """A volume in an image file, on a block device, or in an object store: its files by path.

    A store is named by a URL, file:///directory or s3://bucket/prefix, with @NAME behind it for a version;
    credentials come from the environment, as docs/object-stores.md says. read_only: refuse changes; other
    programs may read at the same time. atime: whether reading sets times of access. cache: bytes of memory
    for what was read (256 MiB). dirty: bytes of memory for changes (64 MiB). take_over: open it for writing
    though the program that had it open has not closed it; of a store, that program writes no more.
    """

    def __enter__(self) -> Volume:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def scandir(self, path: Path = "/") -> Iterator[Entry]:
        """The entries of a directory with their attributes, in the order in which they were made."""
        directory = os.fsdecode(path)
        return (Entry(directory, name, stat) for name, stat in self._entries(path))

    def listdir(self, path: Path = "/") -> list[str]:
        """The names in a directory, in the order in which they were made."""
        return [name for name, _ in self._entries(path)]

    def walk(self, path: Path = "/") -> Iterator[Entry]:
        """Everything below a directory, each directory before what is in it. Links are not followed."""
        for entry in self.scandir(path):
            yield entry
            if entry.is_dir():
                yield from self.walk(entry.path)

    def exists(self, path: Path) -> bool:
        """Whether a path leads to something."""
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

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

        The files are read in the order in which they lie on the device, which for many files in another order
        is many times as fast as one by one. With errors="return" an OSError takes the place of the contents
        of a file that cannot be read.
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
        """Opens a file as the built-in open does: r, w, a or x, with b or t, and +.

        Encoding, errors and newline are for text. Without a mode a file is read as bytes.
        """
        kinds = set(mode) & set("rwax")
        is_known = set(mode) <= set("rwaxbt+") and len(set(mode)) == len(mode)
        if len(kinds) != 1 or not is_known or {"b", "t"} <= set(mode):
            raise ValueError(f"invalid mode: {mode!r}")
        if "b" in mode and not (encoding is errors is newline is None):
            raise ValueError("encoding, errors and newline are for text, and the mode has a b")
        kind = kinds.pop()
        native = self._open(path, kind != "r", kind == "x", kind == "w")
        raw = _Raw(native, os.fsdecode(path), mode)
        if kind == "a":
            raw.seek(0, os.SEEK_END)
        buffered: Any
        if "+" in mode:
            buffered = io.BufferedRandom(raw)
        else:
            buffered = io.BufferedReader(raw) if kind == "r" else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)


def fsync(file: IO[Any]) -> None:
    """Makes what was written to a file of a volume durable, as os.fsync does for one of the host."""
    raw = getattr(getattr(file, "buffer", file), "raw", None)
    if not isinstance(raw, _Raw):
        raise TypeError(f"Volume.open has not opened this: {file!r}")
    file.flush()
    raw.fsync()


class _Raw(io.RawIOBase):
    """A file with a position, without a buffer."""

    def __init__(self, native: _native.File, name: str, mode: str) -> None:
        self._native = native
        self.name = name
        self.mode = mode
        self._position = 0

    def readable(self) -> bool:
        return "r" in self.mode or "+" in self.mode

    def writable(self) -> bool:
        return "r" not in self.mode or "+" in self.mode

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self.readable():
            raise io.UnsupportedOperation("not readable")
        data = self._native.pread(len(buffer), self._position)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def write(self, data: Any) -> int:
        if not self.writable():
            raise io.UnsupportedOperation("not writable")
        if "a" in self.mode:
            self._position = self._native.stat().size
        data = bytes(data)
        self._native.pwrite(data, self._position)
        self._position += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        bases = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._native.stat().size}
        if whence not in bases:
            raise ValueError(f"invalid whence: {whence}")
        position = bases[whence] + offset
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
        self._native.truncate(size)
        return size

    def fsync(self) -> None:
        """Makes what was written through to here durable; flush the buffer above first."""
        self._native.fsync()
