import os
from collections.abc import Callable
from typing import Any, Self, final

from typing_extensions import Buffer, disjoint_base

__all__ = ["File", "Stat", "Volume", "Walk", "__version__", "mkfs"]

__version__: str

_Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]

def mkfs(image: str | os.PathLike[str], size: int, label: str = "") -> None:
    """Make an image, or at a URL a volume in a store, of a size in bytes. It must not exist yet."""

@final
class Stat:
    """The attributes of a file. Times are nanoseconds since 1970. Each attribute has a second name, that of
    os.stat_result."""

    ino: int
    mode: int
    nlink: int
    uid: int
    gid: int
    size: int
    allocated: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    birthtime_ns: int
    def __new__(cls, fields: tuple[int, ...]) -> Self: ...
    def __getnewargs__(self) -> tuple[tuple[int, ...]]: ...
    @property
    def st_ino(self) -> int: ...
    @property
    def st_mode(self) -> int: ...
    @property
    def st_nlink(self) -> int: ...
    @property
    def st_uid(self) -> int: ...
    @property
    def st_gid(self) -> int: ...
    @property
    def st_size(self) -> int: ...
    @property
    def st_blocks(self) -> int: ...
    @property
    def st_atime(self) -> float: ...
    @property
    def st_atime_ns(self) -> int: ...
    @property
    def st_mtime(self) -> float: ...
    @property
    def st_mtime_ns(self) -> int: ...
    @property
    def st_ctime(self) -> float: ...
    @property
    def st_ctime_ns(self) -> int: ...
    @property
    def st_birthtime(self) -> float: ...

@final
class File:
    def pread(self, count: int | None, offset: int) -> bytes: ...
    def preadinto(self, buffer: Buffer, offset: int) -> int: ...
    def pwrite(self, data: bytes, offset: int) -> None: ...
    def append(self, data: bytes) -> int: ...
    def truncate(self, size: int) -> None: ...
    def stat(self) -> Stat: ...
    def fsync(self) -> None: ...

@final
class Walk:
    def next(self) -> list[tuple[str, Stat]]:
        """Return the next entries, each with its path and its attributes; none at the end."""

@disjoint_base
class Volume:
    def __new__(
        cls,
        image: str | os.PathLike[str],
        *,
        read_only: bool = False,
        atime: bool = True,
        cache: int | None = None,
        dirty: int | None = None,
        take_over: bool = False,
    ) -> Self: ...
    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, Any]]: ...
    @property
    def closed(self) -> bool:
        """Whether the volume was closed."""
    def close(self) -> None:
        """Make everything durable and close the volume. Later calls raise ValueError, except this one, which
        does nothing."""
    def sync(self) -> None:
        """Make everything durable."""
    def read(self, path: _Path) -> bytes:
        """The contents of a file."""
    def write(self, path: _Path, data: bytes) -> None:
        """Make a file with these contents, or replace the contents of an existing one."""
    def stat(self, path: _Path, *, follow_symlinks: bool = True) -> Stat:
        """The attributes of the file at a path, or of a symbolic link itself."""
    def mkdir(self, path: _Path, mode: int = 0o755) -> None:
        """Make a directory."""
    def makedirs(self, path: _Path) -> None:
        """Make a directory and its missing ancestors."""
    def rmdir(self, path: _Path) -> None:
        """Remove an empty directory."""
    def unlink(self, path: _Path) -> None:
        """Remove a name of a file other than a directory."""
    def rename(self, path: _Path, new_path: _Path) -> None:
        """Rename, and replace an existing file with the new name."""
    def link(self, path: _Path, new_path: _Path) -> None:
        """Give a file another name."""
    def symlink(self, target: _Path, path: _Path) -> None:
        """Make a symbolic link at `path`."""
    def readlink(self, path: _Path) -> str:
        """The target of a symbolic link."""
    def chmod(self, path: _Path, mode: int) -> None:
        """Set the lower 12 bits of a mode."""
    def chown(self, path: _Path, uid: int, gid: int) -> None:
        """Set owner and group; -1 keeps the current one."""
    def utime(self, path: _Path, ns: tuple[int, int]) -> None:
        """Set the times of access and of the last change of the contents."""
    def truncate(self, path: _Path, size: int) -> None:
        """Truncate a file, or extend it by a hole."""
    def statvfs(self) -> dict[str, int]:
        """The sizes of the volume in bytes, and its inodes."""
    def import_tree(
        self,
        source: str | os.PathLike[str],
        target: _Path = "/",
        *,
        threads: int | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> dict[str, int]:
        """Copy a tree of the host into the volume: the contents of `source` into `target`.

        `progress(files, bytes)` is called some twenty times a second, and at the end. An exception that it
        raises ends the copy, as Ctrl-C does; files copied before stay."""
    def export_tree(
        self,
        source: _Path,
        target: str | os.PathLike[str],
        *,
        threads: int | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> dict[str, int]:
        """Copy a tree of the volume to the host; `progress` is as for import_tree."""
    def _walk(self, path: _Path) -> Walk: ...
    def _entries(self, path: _Path) -> list[tuple[str, Stat]]: ...
    def _read_many(self, paths: list[Any], threads: int) -> list[bytes | OSError]: ...
    def _open(
        self,
        path: _Path,
        create: bool = False,
        exclusive: bool = False,
        truncate: bool = False,
        mode: int | None = None,
    ) -> File: ...
