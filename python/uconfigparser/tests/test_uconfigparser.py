"""The behaviour of a configuration in a directory beyond the standard library's interface."""

import io
import os
import stat
import tempfile
import threading
import unittest
from pathlib import Path

from uconfigparser import (
    DuplicateOptionError,
    DuplicateSectionError,
    NoOptionError,
    NoSectionError,
    UConfigParser,
)


class TestCase(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.at = Path(directory.name) / "config"

    def config(self, **arguments):
        return UConfigParser(self.at, **arguments)


class Files(TestCase):
    def test_an_option_is_a_file_and_a_section_a_directory(self):
        config = self.config()
        config["server"] = {"Port": "8080"}
        self.assertEqual((self.at / "server" / "port").read_text(), "8080\n")
        (self.at / "server" / "host").write_text("localhost")
        self.assertEqual(config["server"]["host"], "localhost")
        self.assertEqual(config.sections(), ["server"])

    def test_names_that_no_file_can_have(self):
        config = self.config(interpolation=None)
        for name in ["a/b", "..", ".", "", "a%2fb", "nul\0", ".new", "ä"]:
            config.add_section("s" + name)
            config.set("s" + name, name, "value " + name)
            self.assertEqual(config.get("s" + name, name), "value " + name)
            self.assertEqual(config.options("s" + name), [name])
        self.assertEqual(len(config.sections()), 8)
        self.assertEqual(sorted(os.listdir(self.at.parent)), ["config"])

    def test_a_name_cannot_lead_out_of_the_directory(self):
        (self.at.parent / "secret").write_text("outside")
        config = self.config()
        config.add_section("..")
        for section, option in [("..", "secret"), ("../..", "secret"), ("..", "../secret")]:
            with self.assertRaises((NoSectionError, NoOptionError)):
                config.get(section, option)

    def test_values_are_read_back_unchanged(self):
        config = self.config(interpolation=None)
        config.add_section("s")
        for value in ["", " ", "\n", "a\n", "\n\n", "a\r\nb", "[x]", "= # ;", "x" * 200_000, "ä€\0"]:
            config.set("s", "o", value)
            self.assertEqual(config.get("s", "o"), value)

    def test_no_value_differs_from_an_empty_one(self):
        config = self.config(allow_no_value=True)
        config["s"] = {"none": None, "empty": ""}
        self.assertEqual(config.read_all()["s"], {"none": None, "empty": ""})

    def test_unfinished_files_are_not_options(self):
        config = self.config()
        config.add_section("s")
        (self.at / "s" / ".1-1.new").write_text("half")
        (self.at / ".git").mkdir()
        self.assertEqual((config.options("s"), config.sections()), ([], ["s"]))


class Permissions(TestCase):
    def test_a_new_option_has_the_requested_mode(self):
        config = self.config(mode=0o600)
        config["s"] = {"o": "1"}
        self.assertEqual(stat.S_IMODE((self.at / "s" / "o").stat().st_mode), 0o600)
        self.assertEqual(stat.S_IMODE((self.at / "s").stat().st_mode), 0o700)

    def test_an_option_keeps_its_mode_when_it_is_set(self):
        config = self.config()
        config["s"] = {"password": "1"}
        config.chmod("s", "Password", 0o400)
        config["s"]["password"] = "2"
        self.assertEqual(stat.S_IMODE((self.at / "s" / "password").stat().st_mode), 0o400)
        with self.assertRaises(NoOptionError):
            config.chmod("s", "nothing", 0o400)

    @unittest.skipUnless(os.geteuid() == 0, "changing owners takes root")
    def test_an_option_keeps_its_owner_when_it_is_set(self):
        config = self.config()
        config["s"] = {"o": "1"}
        os.chown(self.at / "s" / "o", 1234, 4321)
        config["s"]["o"] = "2"
        status = (self.at / "s" / "o").stat()
        self.assertEqual((status.st_uid, status.st_gid), (1234, 4321))


class Atomicity(TestCase):
    def test_a_reader_never_sees_half_a_value(self):
        config = self.config()
        values = {"a" * 5000, "b" * 9000}
        config["s"] = {"o": "a" * 5000}
        done = threading.Event()

        def write():
            while not done.is_set():
                for value in values:
                    config.set("s", "o", value)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(2000):
                self.assertIn(config.get("s", "o"), values)
        finally:
            done.set()
            writer.join()

    def test_a_failed_write_leaves_the_old_value_and_nothing_else(self):
        config = self.config()
        config["s"] = {"o": "old"}
        with self.assertRaises(UnicodeEncodeError):
            config.set("s", "o", "\ud800")
        self.assertEqual(os.listdir(self.at / "s"), ["o"])
        self.assertEqual(config.get("s", "o"), "old")

    def test_durable_options_read_back(self):
        config = self.config(durable=True)
        config["s"] = {"o": "kept"}
        self.assertEqual(config["s"]["o"], "kept")


class Ini(TestCase):
    TEXT = "[DEFAULT]\nbase = /srv\n\n[a]\npath = %(base)s/a\nlong = 1\n\t2\n\n"

    def test_imported_options_can_be_exported(self):
        config = self.config()
        config.read_string(self.TEXT)
        self.assertEqual(config["a"]["path"], "/srv/a")
        self.assertEqual((self.at / "a" / "path").read_text(), "%(base)s/a\n")
        out = io.StringIO()
        config.write(out)
        other = UConfigParser(self.at.parent / "other")
        other.read_string(out.getvalue())
        self.assertEqual(other.read_all(), config.read_all())

    def test_an_unparsable_file_changes_nothing(self):
        config = self.config()
        with self.assertRaises(Exception):
            config.read_string("[a]\nx = 1\nnonsense\n")
        self.assertEqual(config.sections(), [])

    def test_duplicates_in_a_dictionary_change_nothing(self):
        config = self.config()
        with self.assertRaises(DuplicateOptionError):
            config.read_dict({"s": {"o": "1", "O": "2"}})
        with self.assertRaises(DuplicateSectionError):
            config.read_dict({"1": {}, 1: {}})
        self.assertEqual(config.sections(), [])

    def test_converters(self):
        config = self.config(converters={"list": str.split})
        config["s"] = {"o": "a b"}
        self.assertEqual(config.getlist("s", "o"), ["a", "b"])
        self.assertEqual(config["s"].getlist("o"), ["a", "b"])
        self.assertEqual(config["s"].getint("nothing", 7), 7)
        with self.assertRaises(AttributeError):
            config.getnothing("s", "o")


if __name__ == "__main__":
    unittest.main()
