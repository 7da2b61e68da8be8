"""Images as a file system of fsspec. Skipped where fsspec or pytest is missing."""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import pycffs


def needs(*names):
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return unittest.skipIf(missing, f"there is no {' and no '.join(missing)} here")


@needs("fsspec")
class Fsspec(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.image = Path(scratch.name) / "tree.cffs"
        pycffs.mkfs(self.image, 64 << 20)

    def filled(self):
        with pycffs.Volume(self.image) as volume:
            volume.makedirs("/data/deep")
            for number in range(40):
                volume.write(f"/data/{number}", str(number).encode())
            volume.symlink("0", "/data/link")
            volume.symlink("nowhere", "/data/dangling")

    def files(self, **options):
        from pycffs.fsspec import CffsFileSystem

        files = CffsFileSystem(str(self.image), skip_instance_cache=True, **options)
        self.addCleanup(files.close)
        return files

    def test_a_url_names_an_image_and_a_path(self):
        import fsspec
        from pycffs.fsspec import CffsFileSystem

        fsspec.register_implementation("cffs", CffsFileSystem, clobber=True)
        self.filled()
        with fsspec.open(f"cffs://{self.image}!/data/7") as file:
            self.assertEqual(file.read(), b"7")
        files, path = fsspec.core.url_to_fs(f"cffs://{self.image}!/data/7")
        self.assertEqual(path, "/data/7")
        again, _ = fsspec.core.url_to_fs(f"cffs://{self.image}!/data/8")
        self.assertIs(files, again, "the image is opened once for all of its URLs")
        files.close()
        CffsFileSystem.clear_instance_cache()
        with self.assertRaisesRegex(ValueError, "which image"):
            CffsFileSystem()

    def test_it_is_read_only_unless_asked_for(self):
        self.filled()
        with self.assertRaises(OSError):
            self.files().pipe("/new", b"")

    def test_listings_have_attributes(self):
        self.filled()
        files = self.files()
        listed = {each["name"]: each for each in files.ls("/data")}
        self.assertEqual(listed["/data/39"]["size"], 2)
        self.assertEqual(listed["/data/deep"]["type"], "directory")
        self.assertEqual(listed["/data/link"]["destination"], "0")
        self.assertEqual((listed["/data/link"]["type"], listed["/data/link"]["size"]), ("file", 1))
        self.assertEqual(listed["/data/dangling"]["type"], "link")
        self.assertEqual(files.ls("/data/39", detail=False), ["/data/39"])
        self.assertEqual(files.du("/data/39"), 2)
        self.assertEqual(len(files.glob("/data/[0-9]*")), 40)
        self.assertLessEqual(files.created("/data/1"), files.modified("/data/1"))

    def test_cat_of_many_files(self):
        self.filled()
        files = self.files()
        paths = [f"/data/{number}" for number in (5, 3, 39)]
        self.assertEqual(files.cat(paths), {"/data/5": b"5", "/data/3": b"3", "/data/39": b"39"})
        self.assertEqual(files.cat("/data/5"), b"5")
        self.assertEqual(files.cat_file("/data/39", start=1), b"9")
        paths.append("/data/missing")
        with self.assertRaises(FileNotFoundError):
            files.cat(paths)
        self.assertEqual(len(files.cat(paths, on_error="omit")), 3)
        self.assertIsInstance(files.cat(paths, on_error="return")["/data/missing"], FileNotFoundError)

    def test_changes_are_in_the_image(self):
        files = self.files(read_only=False)
        files.pipe({"/a/one": b"1", "/a/two": b"2"})
        files.cp_file("/a/one", "/b/copy")
        files.mv("/a/two", "/a/moved")
        files.touch("/a/one", truncate=False)
        files.rm("/b", recursive=True)
        files.close()
        with pycffs.Volume(self.image, read_only=True) as volume:
            self.assertEqual([entry.path for entry in volume.walk()], ["/a", "/a/one", "/a/moved"])
            self.assertEqual(volume.read("/a/one"), b"1")

    @needs("pytest")
    def test_the_tests_that_fsspec_has_for_every_file_system(self):
        tests = Path(__file__).with_name("fsspec_conformance.py")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)]
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
        ended = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=False)
        self.assertEqual(ended.returncode, 0, ended.stdout[-4000:] + ended.stderr)
        self.assertGreater(int(re.search(r"(\d+) passed", ended.stdout)[1]), 100)


class Types(unittest.TestCase):
    @needs("mypy", "fsspec")
    def test_the_package_is_typed(self):
        package = Path(pycffs.__file__).parent
        command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", os.devnull]
        command += ["--follow-imports", "silent", "--allow-subclassing-any"]
        command += ["--disable-error-code", "import-untyped", str(package)]
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path[1:]))
        ended = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=False)
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)


if __name__ == "__main__":
    unittest.main()
