"""The published package: its types check, and the wheel and the source distribution are complete."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import unittest
import zipfile
from pathlib import Path

PROJECT = Path(__file__).parents[1]


def has(module, version=()):
    """Whether a module can be imported, in this version or a newer one."""
    if importlib.util.find_spec(module) is None:
        return False
    found = getattr(__import__(module), "__version__", "0").split(".")
    return tuple(int(part) for part in found[: len(version)]) >= version


def run(*command, **settings):
    ended = subprocess.run(command, capture_output=True, text=True, check=False, **settings)
    if ended.returncode:
        raise AssertionError(f"{command}: {ended.returncode}\n{ended.stdout}{ended.stderr}")
    return ended.stdout


class Place(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.at = Path(directory.name)


@unittest.skipUnless(has("mypy"), "mypy is not installed")
class Types(Place):
    def check(self, program):
        """The output of mypy for a program that uses the installed package, with py.typed."""
        shutil.copytree(PROJECT / "src" / "uconfigparser", self.at / "installed" / "uconfigparser")
        (self.at / "program.py").write_text(textwrap.dedent(program))
        return subprocess.run(
            [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "program.py"],
            cwd=self.at,
            env=os.environ | {"MYPYPATH": "installed"},
            capture_output=True,
            text=True,
            check=False,
        ).stdout

    def test_the_package_is_fully_typed(self):
        run(sys.executable, "-m", "mypy", "--strict", "--no-incremental", "src", cwd=PROJECT)

    def test_programs_that_use_it_are_checked(self):
        right = """
            from uconfigparser import UConfigParser
            config = UConfigParser("d", durable=True)
            names: list[str] = config.sections()
            stored: dict[str, dict[str, str | None]] = config.read_all()
            """
        self.assertIn("Success", self.check(right))

    def test_a_wrong_use_is_found(self):
        wrong = """
            from uconfigparser import UConfigParser
            UConfigParser("d").set("section", 1, "value")
            """
        self.assertIn('Argument 2 to "set"', self.check(wrong))


@unittest.skipUnless(has("setuptools", (70, 1)), "setuptools 70.1 or newer is not installed")
class Distributions(Place):
    def build(self, kind, source):
        """Builds with the hook that pip and build call, and returns the file."""
        call = f"from setuptools.build_meta import build_{kind} as b; print(b({str(self.at)!r}))"
        return self.at / run(sys.executable, "-c", call, cwd=source).splitlines()[-1]

    def source(self):
        """A copy of the project, since building leaves files behind."""
        return shutil.copytree(
            PROJECT, self.at / "project", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )

    def test_a_wheel_from_the_source_distribution_works(self):
        sdist = self.build("sdist", self.source())
        with tarfile.open(sdist) as archive:
            archive.extractall(self.at / "unpacked", filter="data")
        unpacked = self.at / "unpacked" / sdist.name.removesuffix(".tar.gz")
        self.assertTrue((unpacked / "src/uconfigparser/py.typed").is_file())
        self.assertTrue((unpacked / "README.md").is_file())
        wheel = self.build("wheel", unpacked)
        self.assertEqual(wheel.name, "uconfigparser-0.1.0-py3-none-any.whl")
        with zipfile.ZipFile(wheel) as archive:
            self.assertIn("uconfigparser/py.typed", archive.namelist())
            metadata = archive.read("uconfigparser-0.1.0.dist-info/METADATA").decode()
            archive.extractall(self.at / "installed")
        self.assertIn("Requires-Python: >=3.11", metadata)
        self.assertNotIn("Requires-Dist", metadata)
        use = "from uconfigparser import UConfigParser as U; c = U('d'); c['a'] = {'b': '1'}; " \
            "print(c.getint('a', 'b'))"
        # -S keeps the source tree out even where a developer has linked it into his packages.
        environment = {"PYTHONPATH": str(self.at / "installed")}
        said = run(sys.executable, "-S", "-c", use, cwd=self.at, env=environment)
        self.assertEqual(said, "1\n")


if __name__ == "__main__":
    unittest.main()
