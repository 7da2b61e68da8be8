"""A program that uses the package, checked by `mypy --strict` and run (see test_fsspec.py)."""

import io
import os
import sys
from pathlib import Path
from typing import IO, Any, assert_type

import pycffs


def fill(image: Path) -> None:
    pycffs.mkfs(image, 64 << 20, "label")
    with pycffs.Volume(image, cache=1 << 20, dirty=None, atime=False) as volume:
        assert_type(volume, pycffs.Volume)
        volume.makedirs(b"/d/e")
        volume.write(Path("/d/one"), b"1234")
        with volume.open("/d/two", "wb") as file:
            assert_type(file, io.BufferedWriter)
            file.write(b"12345")
            pycffs.fsync(file)
        with volume.open("/d/two", "r+", encoding="utf-8") as text:
            assert_type(text.read(), str)
            pycffs.fsync(text)
        volume.utime("/d/one", ns=(0, 1))
        assert_type(volume.statvfs(), dict[str, int])
        assert_type(volume.import_tree(Path(__file__).parent, "/tests", threads=1), dict[str, int])


def total(image: str | os.PathLike[str]) -> tuple[int, int]:
    with pycffs.Volume(image, read_only=True) as volume:
        entries = [entry for entry in volume.walk("/d") if entry.is_file()]
        assert_type(entries, list[pycffs.Entry])
        errors: list[OSError] = []
        assert_type(list(volume.walk("/d", onerror=errors.append)), list[pycffs.Entry])
        assert_type(volume.stat("/d/one", follow_symlinks=False).mtime_ns, int)
        assert_type(volume.listdir("/d"), list[str])
        with volume.open("/d/one") as file:
            assert_type(file.read(), bytes)
        mode: str = "rt"
        with volume.open("/d/one", mode) as unknown:
            assert_type(unknown, IO[Any])
        contents = volume.read_many(entry.path for entry in entries)
        assert_type(contents, list[bytes])
        for each in volume.read_many(["/missing"], threads=2, errors="return"):
            assert_type(each, bytes | OSError)
        return sum(map(len, contents)), len(entries)


if __name__ == "__main__":
    fill(Path(sys.argv[1]))
    count, files = total(sys.argv[1])
    print(f"{count} bytes in {files} files")
