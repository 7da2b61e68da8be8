"""What README and the examples show works as they show it."""

import contextlib
import doctest
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PACKAGE = Path(__file__).parent.parent


class Documents(unittest.TestCase):
    def test_the_readme_and_the_example(self):
        with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
            result = doctest.testfile(str(PACKAGE / "README.md"), module_relative=False)
            self.assertEqual(result.failed, 0)
            self.assertGreater(result.attempted, 5)
            command = [sys.executable, PACKAGE / "examples/dataset.py", "tree.cffs", "/set"]
            environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
            said = subprocess.check_output(command, env=environment, encoding="utf-8")
            self.assertEqual(said, "1000 files, 2890 bytes, 4 batches\n")


if __name__ == "__main__":
    unittest.main()
