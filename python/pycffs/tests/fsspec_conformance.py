"""The tests that fsspec has for every file system, run on an image by pytest (see test_fsspec.py)."""

import posixpath

import fsspec.tests.abstract as abstract
import pycffs
import pytest
from fsspec.implementations.local import LocalFileSystem, make_path_posix
from pycffs.fsspec import CffsFileSystem


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self, tmp_path):
        image = tmp_path / "tree.cffs"
        pycffs.mkfs(image, 64 << 20)
        files = CffsFileSystem(str(image), read_only=False, skip_instance_cache=True)
        yield files
        files.close()

    @pytest.fixture
    def fs_path(self):
        return "/test"

    @pytest.fixture
    def fs_join(self):
        return posixpath.join

    @pytest.fixture
    def local_fs(self):
        return LocalFileSystem(auto_mkdir=True)

    @pytest.fixture
    def local_path(self, tmp_path):
        (tmp_path / "local").mkdir()
        return make_path_posix(str(tmp_path / "local"))

    @pytest.fixture
    def supports_empty_directories(self):
        return True


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass
