"""The code in documents and examples works as shown."""

import contextlib
import doctest
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import pycffs

PACKAGE = Path(__file__).parent.parent
REPOSITORY = PACKAGE.parent.parent


class Documents(unittest.TestCase):
    def setUp(self):
        scratch = self.enterContext(tempfile.TemporaryDirectory())
        self.enterContext(contextlib.chdir(scratch))

    def run_doctest(self, module):
        result = doctest.testmod(module)
        self.assertEqual(result.failed, 0)
        self.assertGreater(result.attempted, 1)

    def test_the_readme_and_the_example(self):
        result = doctest.testfile(str(PACKAGE / "README.md"), module_relative=False)
        self.assertEqual(result.failed, 0)
        self.assertGreater(result.attempted, 5)
        command = [sys.executable, PACKAGE / "examples/dataset.py", "tree.cffs", "/set"]
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
        said = subprocess.check_output(command, env=environment, encoding="utf-8")
        self.assertEqual(said, "1000 files, 2890 bytes, 4 batches\n")

    def test_every_example_is_run_here(self):
        examples = (PACKAGE / "examples").glob("*.py")
        self.assertEqual([each.name for each in examples], ["dataset.py"])

    def test_a_loader_with_processes_takes_the_example(self):
        """Each process opens the image itself; a loader sends the data set to them by pickle."""
        pycffs.mkfs("tree.cffs", 64 << 20)
        with pycffs.Volume("tree.cffs") as volume:
            for number in range(10):
                volume.write(f"/{number}", b"%d" % number)
        script = """
import concurrent.futures, multiprocessing, dataset
if __name__ == "__main__":
    files = dataset.ImageFiles("tree.cffs")
    assert files[3] == b"3"
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, context) as pool:
        print(list(pool.map(files.__getitems__, [[9, 0], [5]])), len(files))
"""
        Path("loader.py").write_text(script)
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(PACKAGE / "examples"), *sys.path]))
        said = subprocess.check_output([sys.executable, "loader.py"], env=environment, encoding="utf-8")
        self.assertEqual(said, "[[b'9', b'0'], [b'5']] 10\n")

    def test_the_description_of_the_package(self):
        self.run_doctest(pycffs)

    @unittest.skipUnless(importlib.util.find_spec("fsspec"), "there is no fsspec here")
    def test_the_description_of_the_file_system(self):
        import fsspec
        import pycffs.fsspec

        fsspec.register_implementation("cffs", pycffs.fsspec.CffsFileSystem, clobber=True)
        self.addCleanup(pycffs.fsspec.CffsFileSystem.clear_instance_cache)
        self.run_doctest(pycffs.fsspec)

    def test_the_lines_in_the_readme_of_the_repository(self):
        shutil.copytree(REPOSITORY / "docs", "docs")
        [lines] = re.findall(r"```python\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
        found = {}
        exec(lines, found)
        files = [each for each in Path("docs").rglob("*") if each.is_file()]
        self.assertEqual(sorted(found["texts"]), sorted(each.read_bytes() for each in files))


if __name__ == "__main__":
    unittest.main()
