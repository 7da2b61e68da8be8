"""Images as a file system of fsspec. Skipped if fsspec or pytest is missing."""

import importlib.util
import os
import pickle
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

    def test_it_is_read_only_by_default(self):
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

    def test_mv_renames_instead_of_copying(self):
        """It is not copied, as in fsspec's file systems that cannot rename."""
        self.filled()
        files = self.files(read_only=False)
        inodes = {path: files.info(path)["ino"] for path in ("/data", "/data/7", "/data/8")}
        files.mv("/data/7", "/new/seven")
        files.mv("/data/8", "/new/")
        files.mv("/data", "/new")
        self.assertEqual(files.info("/new/seven")["ino"], inodes["/data/7"])
        self.assertEqual(files.info("/new/8")["ino"], inodes["/data/8"])
        self.assertEqual(files.info("/new/data")["ino"], inodes["/data"])
        self.assertEqual(files.ls("/", detail=False), ["/new"])
        files.mv("/new/data/1*", "/new/ones", recursive=True)
        self.assertEqual(files.cat_file("/new/ones/19"), b"19")
        self.assertFalse(files.exists("/new/data/19"))
        with self.assertRaises(FileNotFoundError):
            files.mv("/missing", "/other")

    def linked(self):
        """A tree with a link to a directory outside, one that forms a loop, and a dangling one."""
        files = self.files(read_only=False)
        files.pipe({"/tree/a": b"1", "/tree/sub/b": b"22", "/outside/precious": b"333"})
        files.volume.symlink("/outside", "/tree/out")
        files.volume.symlink("..", "/tree/sub/up")
        files.volume.symlink("nowhere", "/tree/dangling")
        return files

    def test_rm_removes_links_and_not_their_targets(self):
        """Regression: rm of a tree emptied the target directory of a link in the tree."""
        files = self.linked()
        files.rm("/tree", recursive=True)
        self.assertFalse(files.exists("/tree"))
        self.assertEqual(files.cat_file("/outside/precious"), b"333")
        files.volume.symlink("/outside", "/link")
        files.rm("/link", recursive=True)
        self.assertEqual((files.lexists("/link"), files.exists("/outside/precious")), (False, True))
        files.pipe("/many1/f", b"")
        files.pipe("/many2/f", b"")
        files.volume.symlink("/outside", "/many2/out")
        files.mv("/many*", "/moved", recursive=True)
        self.assertEqual(files.cat_file("/outside/precious"), b"333")
        self.assertEqual(files.volume.readlink("/moved/many2/out"), "/outside")
        self.assertFalse(files.exists("/many1") or files.exists("/many2"))
        files.pipe({"/deep/x/y/z": b"", "/deep/f": b""})
        with self.assertRaises(OSError):
            files.rm("/deep", recursive=True, maxdepth=1)
        with self.assertRaises(OSError):
            files.rm("/deep")
        files.rm("/deep/x", recursive=True, maxdepth=3)
        self.assertFalse(files.exists("/deep/x"))

    def test_cp_and_mv_never_write_through_a_copied_link(self):
        """Regression: files below a link that a pattern or a list names were written through its copy."""
        files = self.linked()
        for operation in ("cp", "mv"):
            for source in ("/from/*", ["/from/out", "/from/a"]):
                with self.subTest(operation=operation, source=source):
                    files.pipe({"/from/a": b"1", "/to/outside/precious": b"other"})
                    if not files.lexists("/from/out"):
                        files.volume.symlink("../outside", "/from/out")
                    getattr(files, operation)(source, "/to/copy/", recursive=True)
                    self.assertEqual(files.cat("/outside/precious"), b"333")
                    self.assertEqual(files.cat("/to/outside/precious"), b"other")
                    self.assertEqual(files.volume.readlink("/to/copy/out"), "../outside")
                    files.rm("/to", recursive=True)

    def test_a_second_cp_replaces_the_links_of_the_first(self):
        """Regression: a file or directory was written through the link that the first copy had made."""
        files = self.files(read_only=False)
        for options in ({}, {"maxdepth": 3}):
            with self.subTest(**options):
                files.pipe({"/tree/sub/f": b"1", "/outside/precious": b"333"})
                for name, target in (("out", "/outside"), ("file", "/outside/precious"), ("same", "nowhere")):
                    files.volume.symlink(target, f"/tree/{name}")
                files.volume.symlink("/outside", "/tree/sub/out")
                files.volume.symlink("/outside/precious", "/copy-file")
                files.cp("/tree/", "/copy/", recursive=True)
                files.volume.unlink("/copy/file")
                files.volume.symlink("/outside/precious", "/copy/file")
                for name in ("out", "sub/out"):
                    files.rm(f"/tree/{name}")
                files.pipe({"/tree/out/precious": b"of the tree", "/tree/sub/out": b"a file"})
                files.cp("/tree/", "/copy/", recursive=True, **options)
                self.assertEqual(files.cat("/outside/precious"), b"333")
                self.assertEqual(files.ls("/outside", detail=False), ["/outside/precious"])
                copied = {"out/precious": b"of the tree", "sub/out": b"a file", "file": b"333", "sub/f": b"1"}
                self.assertEqual({name: files.cat(f"/copy/{name}") for name in copied}, copied)
                self.assertFalse(files.islink("/copy/out") or files.islink("/copy/file"))
                self.assertEqual(files.volume.readlink("/copy/same"), "nowhere")
                # The caller names this one.
                files.cp("/tree/sub/f", "/copy-file")
                self.assertEqual(files.cat("/outside/precious"), b"1")
                files.volume.symlink("/outside", "/copy-to")
                files.cp("/tree/sub/", "/copy-to", recursive=True)
                self.assertEqual(files.cat("/outside/f"), b"1")
                for name in ("tree", "outside", "copy", "copy-file", "copy-to"):
                    files.rm(f"/{name}", recursive=True)

    def test_links_are_followed_only_if_the_caller_names_them(self):
        """Regression: find, du, walk, glob, get and cp followed links, out of the tree and in loops."""
        files = self.linked()
        found = ["/tree/a", "/tree/dangling", "/tree/out", "/tree/sub/b", "/tree/sub/up"]
        self.assertEqual(sorted(files.find("/tree")), found)
        self.assertEqual(sorted(files.glob("/tree/**")), ["/tree", *found[:3], "/tree/sub", *found[3:]])
        self.assertEqual(files.du("/tree"), 3)
        walked = [(path, sorted(dirs), sorted(names)) for path, dirs, names in files.walk("/tree")]
        self.assertEqual(
            walked, [("/tree", ["sub"], ["a", "dangling", "out"]), ("/tree/sub", [], ["b", "up"])]
        )
        files.cp("/tree", "/copy", recursive=True)
        self.assertEqual(sorted(files.find("/copy")), [path.replace("tree", "copy") for path in found])
        self.assertEqual(files.volume.readlink("/copy/out"), "/outside")
        # A link that the caller names is equivalent to its target.
        self.assertTrue(files.isdir("/tree/out") and files.islink("/tree/out"))
        self.assertEqual(files.ls("/tree/out", detail=False), ["/tree/out/precious"])
        self.assertEqual(files.find("/tree/out"), ["/tree/out/precious"])
        self.assertEqual(files.cat_file("/tree/out/precious"), b"333")
        files.rm("/tree/dangling")
        with tempfile.TemporaryDirectory() as scratch:
            files.get("/tree", f"{scratch}/tree", recursive=True)
            got = [path for path in Path(scratch).rglob("*") if path.is_file()]
            self.assertEqual(sorted(path.name for path in got), ["a", "b"])

    def test_what_leads_nowhere_does_not_exist(self):
        files = self.linked()
        files.volume.symlink("loop", "/loop")
        for path in ("/tree/dangling", "/loop", "/" + "x" * 300):
            self.assertFalse(files.exists(path) or files.isfile(path) or files.isdir(path), path)
        self.assertTrue(files.lexists("/tree/dangling") and files.lexists("/loop"))
        self.assertFalse(files.lexists("/missing"))

    def test_an_existing_name_is_taken_literally(self):
        """Regression: rm of x[1] removed x1."""
        files = self.files(read_only=False)
        files.pipe({"/x[1]": b"right", "/x1": b"wrong", "/d[1]/f": b"", "/d1/f": b""})
        self.assertEqual(files.cat("/x[1]"), b"right")
        files.mv("/x[1]", "/moved")
        files.rm("/d[1]", recursive=True)
        self.assertEqual(sorted(files.find("/")), ["/d1/f", "/moved", "/x1"])
        files.rm("/x[1]")
        self.assertEqual(sorted(files.find("/")), ["/d1/f", "/moved"])

    def test_files_have_the_methods_that_fsspec_needs(self):
        """Regression: without a size, tail, read_block and ranges from the end raised AttributeError."""
        files = self.files(read_only=False)
        files.pipe("/f", b"0123456789\n" * 10)
        with files.open("/f") as file:
            self.assertEqual((file.size, file.path, file.mode, file.fs), (110, "/f", "rb", files))
        self.assertEqual(files.tail("/f", 4), b"789\n")
        self.assertEqual(files.read_block("/f", 2, 10, b"\n"), b"0123456789\n")
        self.assertEqual(files.cat_file("/f", start=-4), b"789\n")
        self.assertEqual(files.cat_ranges(["/f", "/f"], [0, -2], [2, None]), [b"01", b"9\n"])
        with files.open("/f", "r+b") as file:
            file.write(b"ab")
        self.assertEqual(files.head("/f", 3), b"ab2")

    def test_a_file_that_is_read_can_be_pickled(self):
        self.filled()
        files = self.files()
        with files.open("/data/39") as file:
            self.assertEqual(file.read(1), b"3")
            with pickle.loads(pickle.dumps(file)) as again:
                self.assertEqual(again.read(), b"9")
                again.fs.close()
        self.assertEqual(pickle.loads(pickle.dumps(self.files())).cat_file("/data/7"), b"7")

    def test_a_transaction_is_kept_or_undone_as_a_whole(self):
        files = self.files(read_only=False)
        files.pipe("/old", b"old")
        with files.transaction:
            files.pipe("/old", b"new")
            with files.open("/dir/f", "wb") as file:
                file.write(b"1")
            with files.open("/text", "w") as file:
                file.write("text")
            self.assertEqual(files.cat_file("/old"), b"old")
            self.assertFalse(files.exists("/dir/f"))
        self.assertEqual(sorted(files.find("/")), ["/dir/f", "/old", "/text"])
        self.assertEqual((files.cat_file("/old"), files.cat_file("/text")), (b"new", b"text"))
        with self.assertRaises(KeyError), files.transaction:
            files.pipe({"/old": b"newer", "/dir/g": b"2"})
            raise KeyError
        self.assertEqual(sorted(files.find("/")), ["/dir/f", "/old", "/text"])
        self.assertEqual(files.cat_file("/old"), b"new")
        files.pipe("/after", b"3")
        self.assertEqual(files.cat_file("/after"), b"3")

    @needs("pytest")
    def test_the_tests_that_fsspec_has_for_every_file_system(self):
        tests = Path(__file__).with_name("fsspec_conformance.py")
        command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", str(tests)]
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
        ended = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=False)
        self.assertEqual(ended.returncode, 0, ended.stdout[-4000:] + ended.stderr)
        self.assertGreater(int(re.search(r"(\d+) passed", ended.stdout)[1]), 100)
        # One test is for file systems without empty directories.
        skipped = re.findall(r"^SKIPPED \[(\d+)\] .*?: (.*)$", ended.stdout, re.MULTILINE)
        self.assertEqual(skipped, [])

    @needs("pytest")
    def test_every_suite_of_fsspec_is_run(self):
        import fsspec.tests.abstract

        suites = {name for name in dir(fsspec.tests.abstract) if re.fullmatch(r"Abstract\w+Tests", name)}
        tests = Path(__file__).with_name("fsspec_conformance.py").read_text(encoding="utf-8")
        self.assertGreaterEqual(len(suites), 5)
        self.assertEqual(suites, set(re.findall(r"abstract\.(Abstract\w+Tests)", tests)))


class Types(unittest.TestCase):
    """The type annotations match the package, and suffice for a strictly checked program."""

    def mypy(self, *arguments):
        command = [sys.executable, "-m", *map(str, arguments)]
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path[1:]))
        ended = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=False)
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)

    @needs("mypy")
    def test_a_program_is_checked_and_runs(self):
        program = Path(__file__).with_name("typed_program.py")
        package = Path(pycffs.__file__).parent
        # Its imports have no errors either, if a checker examines them.
        self.mypy("mypy", "--strict", "--cache-dir", os.devnull, program)
        with tempfile.TemporaryDirectory() as scratch:
            command = [sys.executable, program, Path(scratch) / "tree.cffs"]
            environment = dict(os.environ, PYTHONPATH=str(package.parent))
            said = subprocess.check_output(command, env=environment, encoding="utf-8")
        self.assertEqual(said, "9 bytes in 2 files\n")

    @needs("mypy")
    def test_the_stubs_are_those_of_the_native_module(self):
        self.mypy("mypy.stubtest", "--concise", "pycffs._native")

    @needs("mypy", "fsspec")
    def test_the_package_is_typed(self):
        package = Path(pycffs.__file__).parent
        options = ["--strict", "--cache-dir", os.devnull, "--follow-imports", "silent"]
        # fsspec itself has no types.
        options += ["--allow-subclassing-any", "--disable-error-code", "import-untyped"]
        self.mypy("mypy", *options, package)


if __name__ == "__main__":
    unittest.main()
