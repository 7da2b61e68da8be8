"""Volumes in object stores, named by URLs: a directory, and S3 served by versitygw on loopback."""

import contextlib
import errno
import os
import shutil
import socket
import subprocess
import tempfile
import time
import unittest
import unittest.mock
from pathlib import Path

import pycffs
from test_fsspec import needs

REPOSITORY = Path(__file__).parents[3]
GATEWAY = shutil.which("versitygw", path=f"{REPOSITORY}/target/tools/bin:{os.environ['PATH']}")


class InStore:
    """The tests of every store, whose objects are below `self.base`."""

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.start(Path(scratch.name))
        self.url = f"{self.base}/tree"
        pycffs.mkfs(self.url, 1 << 30, "in a store")

    def test_files_can_be_read_back(self):
        names = [f"/set/{number}" for number in range(300)]
        with pycffs.Volume(self.url) as volume:
            volume.makedirs("/set")
            for name in names:
                volume.write(name, name.encode())
        with pycffs.Volume(self.url, read_only=True) as volume:
            self.assertEqual(volume.read_many(reversed(names)), [name.encode() for name in reversed(names)])
            with self.assertRaises(OSError) as caught:
                volume.unlink("/set/7")
            self.assertEqual(caught.exception.errno, errno.EROFS)

    def test_a_volume_has_one_writer(self):
        first = pycffs.Volume(self.url)
        first.write("/before", b"1")
        first.sync()
        with self.assertRaisesRegex(OSError, "open for writing on this host") as caught:
            pycffs.Volume(self.url)
        self.assertEqual(caught.exception.errno, errno.EBUSY)
        with pycffs.Volume(self.url, read_only=True) as reader:
            self.assertEqual(reader.read("/before"), b"1")
        with pycffs.Volume(self.url, take_over=True) as second:
            second.write("/after", b"2")
        first.write("/lost", b"3")
        with self.assertRaises(OSError):
            first.sync()
        with contextlib.suppress(OSError):
            first.close()
        # The second process has closed it, so no takeover is needed.
        with pycffs.Volume(self.url) as third:
            self.assertEqual(sorted(third.listdir()), ["after", "before"])

    def test_an_open_file_does_not_block_other_programs(self):
        volume = pycffs.Volume(self.url)
        volume.write("/f", b"contents")
        file = volume.open("/f")
        volume.close()
        pycffs.Volume(self.url).close()
        with self.assertRaises(ValueError):
            file.read()

    def test_impossible_requests_are_refused(self):
        with self.assertRaises(FileExistsError) as caught:
            pycffs.mkfs(self.url, 1 << 30)
        self.assertEqual(caught.exception.filename, self.url)
        words = "no volume at .*other; if there should be one, check the URL"
        with self.assertRaisesRegex(FileNotFoundError, words) as caught:
            pycffs.Volume(f"{self.base}/other")
        self.assertEqual(caught.exception.filename, f"{self.base}/other")
        with self.assertRaises(FileNotFoundError):
            pycffs.Volume(f"{self.url}@monday", read_only=True)

    @needs("fsspec")
    def test_a_url_of_fsspec_has_that_of_the_store(self):
        import fsspec
        from pycffs.fsspec import CffsFileSystem

        fsspec.register_implementation("cffs", CffsFileSystem, clobber=True)
        self.addCleanup(CffsFileSystem.clear_instance_cache)
        with pycffs.Volume(self.url) as volume:
            volume.write("/a.csv", b"1,2\n")
        with fsspec.open(f"cffs://{self.url}!/a.csv", "rt") as file:
            self.assertEqual(file.read(), "1,2\n")


class Directory(InStore, unittest.TestCase):
    def start(self, scratch):
        self.base = scratch.as_uri()

    def test_an_invalid_store_url_is_refused(self):
        for url, why in [("ftp://bucket/tree", "unknown store ftp://"),
                         ("s3://key:secret@bucket/tree", "a URL has no credentials"),
                         ("file:///missing/directory/tree", "directory /missing/directory does not exist")]:
            with self.assertRaisesRegex(OSError, why) as caught:
                pycffs.Volume(url)
            self.assertEqual(caught.exception.errno, errno.EINVAL)
            self.assertNotIn("secret", str(caught.exception))


@unittest.skipUnless(GATEWAY, "there is no versitygw; scripts/setup.sh installs it where Go is")
class S3(InStore, unittest.TestCase):
    def start(self, scratch):
        (scratch / "bucket").mkdir()
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = "127.0.0.1:%d" % free.getsockname()[1]
        settings = {"AWS_ENDPOINT_URL": f"http://{address}", "AWS_ALLOW_HTTP": "true",
                    "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "tests",
                    "AWS_SECRET_ACCESS_KEY": "only for tests"}
        environment = unittest.mock.patch.dict(os.environ, settings)
        environment.start()
        self.addCleanup(environment.stop)
        command = [GATEWAY, "--access", "tests", "--secret", "only for tests", "--port", address]
        command += ["posix", scratch]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        for _ in range(300):
            with contextlib.suppress(OSError):
                socket.create_connection(address.split(":")).close()
                break
            time.sleep(0.1)
        self.base = "s3://bucket/below"


if __name__ == "__main__":
    unittest.main()
