"""Images as a file system of fsspec, for pandas, pyarrow, zarr and others: `cffs://image!/path`.

    >>> import fsspec, pycffs
    >>> pycffs.mkfs("tree.cffs", 64 << 20)
    >>> with pycffs.Volume("tree.cffs") as volume:
    ...     volume.makedirs("/data")
    ...     volume.write("/data/a.csv", b"1,2")
    >>> with fsspec.open("cffs://tree.cffs!/data/a.csv") as file:
    ...     file.read()
    b'1,2'

An image is opened once for all URLs that name it, with the options of pycffs.Volume; it is read-only unless
read_only=False is given. A volume in a store can be used as well: `cffs://s3://bucket/tree!/path`, and a
directory of a mounted volume: `cffs:///mnt/directory!/path`. `cat` of many paths reads in device order.

A symbolic link is followed if the caller names it, and never during a traversal: in a listing, a link to a
directory has the type "link", so that `walk`, `find`, `du`, `get` and `cp` do not follow it, and `rm`
removes links, not their targets. `cp` replaces links below its target where the source has something else.
An existing name is taken literally, even if it looks like a pattern.
"""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import stat as modes
from datetime import UTC, datetime
from glob import has_magic
from typing import Any

from fsspec.spec import AbstractFileSystem
from fsspec.utils import stringify_path

from pycffs import _BUFFER_BYTES, Stat, Volume

__all__ = ["CffsFileSystem"]

_OPTIONS = ("atime", "cache", "dirty", "take_over")
_KINDS = {modes.S_IFDIR: "directory", modes.S_IFREG: "file", modes.S_IFLNK: "link"}


class CffsFileSystem(AbstractFileSystem):
    """The files of one image."""

    protocol = "cffs"
    root_marker = "/"

    def __init__(self, image: str = "", *, read_only: bool = True, **options: Any) -> None:
        known = {name: options.pop(name) for name in _OPTIONS if name in options}
        super().__init__(**options)
        if not image:
            raise ValueError("which image? give image=, or a URL like cffs://tree.cffs!/path")
        self.volume = Volume(image, read_only=read_only, **known)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        path = stringify_path(path)
        if path.startswith("cffs://"):
            path = path.removeprefix("cffs://")
            # Without the name of an image, it is a path in the open image.
            path = path.partition("!")[2] if "!" in path else path
        return "/" + path.strip("/")

    @staticmethod
    def _get_kwargs_from_urls(url: str) -> dict[str, str]:
        image, mark, _ = url.removeprefix("cffs://").partition("!")
        return {"image": image} if mark else {}

    def _information(self, path: str, stat: Stat) -> dict[str, Any]:
        kind = _KINDS.get(modes.S_IFMT(stat.mode), "other")
        information = {
            "name": path,
            "size": stat.size if kind == "file" else 0,
            "type": kind,
            "mode": stat.mode,
            "ino": stat.ino,
            "nlink": stat.nlink,
            "uid": stat.uid,
            "gid": stat.gid,
            "mtime": stat.mtime_ns / 1e9,
            "created": stat.birthtime_ns / 1e9,
            "islink": kind == "link",
        }
        if kind == "link":
            information["destination"] = self.volume.readlink(path)
            target = self._target(path)
            # A link to a file can be read like a file; a link to a directory is not traversed.
            if target is not None and modes.S_ISREG(target.mode):
                information["size"] = target.size
                information["type"] = "file"
        return information

    def _target(self, path: str) -> Stat | None:
        return self.volume.stat(path) if self.volume.exists(path) else None

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        information = self._information(path, self.volume.lstat(path))
        # Named links are followed.
        if information["type"] == "link":
            target = self._target(path)
            if target is not None:
                information["type"] = _KINDS.get(modes.S_IFMT(target.mode), "other")
        return information

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path)
        information = self.info(path)
        if information["type"] != "directory":
            return [information] if detail else [path]
        entries = self.volume.scandir(path)
        if not detail:
            return [entry.path for entry in entries]
        return [self._information(entry.path, entry.stat()) for entry in entries]

    def find(self, path: str, *arguments: Any, follow_links: bool = True, **options: Any) -> Any:
        if follow_links or not self.islink(path):
            return super().find(path, *arguments, **options)
        path = self._strip_protocol(path)
        return {path: self.info(path)} if options.get("detail") else [path]

    def glob(self, path: str, *arguments: Any, follow_links: bool = True, **options: Any) -> Any:
        return super().glob(path, *arguments, **options)

    def exists(self, path: str, **_: Any) -> bool:
        return self.volume.exists(self._strip_protocol(path))

    def lexists(self, path: str, **_: Any) -> bool:
        return self.volume.lexists(self._strip_protocol(path))

    def islink(self, path: str) -> bool:
        path = self._strip_protocol(path)
        return self.volume.lexists(path) and modes.S_ISLNK(self.volume.lstat(path).mode)

    def expand_path(
        self, path: Any, recursive: bool = False, maxdepth: int | None = None, **options: Any
    ) -> Any:
        options.pop("into", None)
        paths = path if isinstance(path, (list, set, tuple)) else [path]
        found: set[str] = set()
        for each in paths:
            name = self._strip_protocol(each)
            if not has_magic(name) or not self.volume.lexists(name):
                with contextlib.suppress(FileNotFoundError):
                    found |= set(super().expand_path([each], recursive, maxdepth, **options))
                continue
            # An existing name is not a pattern.
            found.add(name)
            if recursive:
                found |= set(self.find(name, maxdepth=maxdepth, withdirs=True, **options))
        if not found:
            raise FileNotFoundError(path)
        return sorted(found)

    def created(self, path: str) -> datetime:
        return datetime.fromtimestamp(self.info(path)["created"], tz=UTC)

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(self.info(path)["mtime"], tz=UTC)

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        path = self._strip_protocol(path)
        if create_parents:
            self.makedirs(self._parent(path), exist_ok=True)
        self.volume.mkdir(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        path = self._strip_protocol(path)
        if not exist_ok and self.volume.exists(path):
            raise FileExistsError(path)
        self.volume.makedirs(path)

    def rmdir(self, path: str) -> None:
        self.volume.rmdir(self._strip_protocol(path))

    def rm_file(self, path: str) -> None:
        self.volume.unlink(self._strip_protocol(path))

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        for each in reversed(self.expand_path(path)):
            self._remove(each, recursive, maxdepth)

    def _remove(self, path: str, recursive: bool, maxdepth: int | None) -> None:
        if recursive and maxdepth is None:
            self.volume.rmtree(path)
        elif not modes.S_ISDIR(self.volume.lstat(path).mode):
            self.volume.unlink(path)
        else:
            if recursive and maxdepth:
                for entry in self.volume.scandir(path):
                    self._remove(entry.path, maxdepth > 1, maxdepth - 1)
            self.volume.rmdir(path)

    def mv_file(self, path1: str, path2: str, **_: Any) -> None:
        self.volume.rename(self._strip_protocol(path1), self._strip_protocol(path2))

    def mv(
        self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **options: Any
    ) -> None:
        # Several paths are copied and removed, as in other file systems; a single one is renamed.
        is_one = isinstance(path1, str) and (not has_magic(path1) or self.lexists(path1))
        if not is_one or not isinstance(path2, str):
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **options)
            return
        path1, new_path = self._strip_protocol(path1), self._strip_protocol(path2)
        if path2.endswith("/") or self.isdir(new_path):
            new_path = f"{new_path.rstrip('/')}/{path1.rpartition('/')[2]}"
        self.volume.makedirs(self._parent(new_path))
        self.mv_file(path1, new_path)

    def copy(
        self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **options: Any
    ) -> None:
        # A link to a directory is copied as a link. Copies of files below it would be written through it.
        options["follow_links"] = False
        if isinstance(path2, (str, os.PathLike)):
            options["into"] = self._strip_protocol(path2)
        super().copy(path1, path2, recursive=recursive, maxdepth=maxdepth, **options)

    def cp_file(self, path1: str, path2: str, into: str | None = None, **_: Any) -> None:
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        stat = self.volume.lstat(path1)
        is_dir = modes.S_ISDIR(stat.mode)
        # Following it would leave the copied tree; the copy has the same target.
        is_link = modes.S_ISLNK(stat.mode) and not self.isfile(path1)
        target = self.volume.readlink(path1) if is_link else ""
        contents = b"" if is_dir or is_link else self.volume.read(path1)
        if into is not None:
            self._remove_links(into, path2)
        self.volume.makedirs(self._parent(path2))
        if is_dir:
            self.volume.makedirs(path2)
        elif is_link:
            self.volume.symlink(target, path2)
        else:
            self.volume.write(path2, contents)

    def _remove_links(self, into: str, path: str) -> None:
        """Removes links on the way from the target of a copy to a file in it, such as earlier copies made.

        The copy would be written through them, out of its target.
        """
        at = into.rstrip("/")
        for name in path.removeprefix(at).split("/"):
            if name:
                at = f"{at}/{name}"
                if self.islink(at):
                    self.volume.unlink(at)

    def touch(self, path: str, truncate: bool = True, **_: Any) -> None:
        path = self._strip_protocol(path)
        if truncate or not self.volume.exists(path):
            self.pipe_file(path, b"")
        else:
            now = int(datetime.now(tz=UTC).timestamp() * 1e9)
            self.volume.utime(path, (now, now))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        if start is None and end is None:
            return self.volume.read(self._strip_protocol(path))
        return bytes(super().cat_file(path, start=start, end=end, **options))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        path = self._strip_protocol(path)
        if mode == "create" and self.volume.lexists(path):
            raise FileExistsError(path)
        if self._intrans:
            with self.open(path, "wb") as file:
                file.write(value)
            return
        self.volume.makedirs(self._parent(path))
        self.volume.write(path, bytes(value))

    def cat(self, path: Any, recursive: bool = False, on_error: str = "raise", **options: Any) -> Any:
        paths = self.expand_path(path, recursive=recursive)
        is_one = len(paths) == 1 and not isinstance(path, list) and paths[0] == self._strip_protocol(path)
        if is_one or options:
            return super().cat(path, recursive=recursive, on_error=on_error, **options)
        contents: dict[str, Any] = {}
        for each, found in zip(paths, self.volume.read_many(paths, errors="return"), strict=True):
            # A directory has no contents; it is in the list only because of its entries.
            if isinstance(found, IsADirectoryError) and recursive:
                continue
            if isinstance(found, OSError) and on_error == "raise":
                raise found
            if not isinstance(found, OSError) or on_error == "return":
                contents[each] = found
        return contents

    def _open(
        self, path: str, mode: str = "rb", block_size: Any = None, autocommit: bool = True, **_: Any
    ) -> Any:
        path = self._strip_protocol(path)
        if "r" not in mode:
            self.volume.makedirs(self._parent(path))
        kind = _Random if "+" in mode else _Reader if "r" in mode else _Writer
        return kind(self, path, mode, autocommit)

    def sync(self) -> None:
        """Makes everything durable."""
        self.volume.sync()

    def close(self) -> None:
        """Closes the image, which makes all changes durable. Later uses of its URLs open it again."""
        for token, each in list(self._cache.items()):
            if each is self:
                del self._cache[token]
        self.volume.close()


class _File:
    """A file with the methods that fsspec needs in addition to those of io."""

    def __init__(self, fs: CffsFileSystem, path: str, mode: str, autocommit: bool) -> None:
        self.fs = fs
        self.path = path
        self.autocommit = autocommit or ("w" not in mode and "x" not in mode)
        self.blocksize = _BUFFER_BYTES
        # Until it is committed, a file being written has another name in the same directory.
        self._written_to = path
        if not self.autocommit:
            if "x" in mode and fs.volume.lexists(path):
                raise FileExistsError(path)
            parent, _, name = path.rpartition("/")
            self._written_to = f"{parent}/.{name[:200]}.{secrets.token_hex(8)}"
        self._unbuffered = fs.volume._open_raw(self._written_to, mode)
        super().__init__(self._unbuffered, _BUFFER_BYTES)  # type: ignore[call-arg]

    @property
    def size(self) -> int:
        """The size of the file in bytes, without buffered data."""
        return self._unbuffered.size()

    def commit(self) -> None:
        """Gives the file its name, at the end of a transaction."""
        if self.autocommit:
            raise RuntimeError("a file that was not opened in a transaction has its name already")
        self.close()
        self.fs.volume.rename(self._written_to, self.path)

    def discard(self) -> None:
        """Removes the files written in a transaction."""
        if self.autocommit:
            raise RuntimeError("a file that was not opened in a transaction cannot be discarded")
        self.close()
        self.fs.volume.unlink(self._written_to)

    def close(self) -> None:
        super().close()  # type: ignore[misc]

    def __reduce_ex__(self, _: Any) -> Any:
        if self._unbuffered.mode != "rb":
            raise TypeError("only a file that is open to be read can be pickled")
        return _reopen, (self.fs, self.path, self.tell())  # type: ignore[attr-defined]


def _reopen(fs: CffsFileSystem, path: str, position: int) -> Any:
    file = fs.open(path, "rb")
    file.seek(position)
    return file


class _Reader(_File, io.BufferedReader):
    pass


class _Writer(_File, io.BufferedWriter):
    pass


class _Random(_File, io.BufferedRandom):
    pass
