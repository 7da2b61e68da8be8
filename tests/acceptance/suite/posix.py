"""A base for tests of single calls: unittest classes that run on the mount as one case."""

import errno
import os
import pickle
import sys
import traceback
import unittest

from .case import case

USER, OTHER = 12001, 12002
GROUP = 13001


class PosixTest(unittest.TestCase):
    """Each test gets a fresh directory on the mount, which any user may search."""

    trial = None

    def setUp(self):
        self.base = self.trial.subdir(self.id().rpartition(".")[2])

    def at(self, *parts):
        """A path in the test's directory."""
        return os.path.join(self.base, *parts)

    def make(self, name, data=b"", mode=0o644):
        """Makes a file and returns its path."""
        path = self.at(name)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        os.write(fd, data)
        os.close(fd)
        return path

    def read(self, path):
        with open(path, "rb") as file:
            return file.read()

    def open(self, path, flags=os.O_RDWR, mode=0o644):
        """A file descriptor that is closed at the end of the test."""
        fd = os.open(path, flags, mode)
        self.addCleanup(close_if_open, fd)
        return fd

    def refuses(self, number, function, *arguments, **keywords):
        """The call must fail with exactly this errno."""
        with self.assertRaises(OSError) as raised:
            function(*arguments, **keywords)
        self.assertEqual(errno.errorcode[raised.exception.errno], errno.errorcode[number])


def close_if_open(fd):
    try:
        os.close(fd)
    except OSError:
        pass


def in_child(function, uid=None, groups=(GROUP,)):
    """Calls the function in a child process, as a user if a uid is given. Returns what it returns, and
    raises the OSError that it raises."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        outcome = None
        try:
            if uid is not None:
                os.setgroups(list(groups))
                os.setgid(groups[0])
                os.setuid(uid)
            outcome = (True, function())
        except OSError as error:
            outcome = (False, error)
        except BaseException:  # any exception must reach the parent
            outcome = (False, AssertionError(traceback.format_exc()))
        os.write(writer, pickle.dumps(outcome))
        os._exit(0)
    os.close(writer)
    data = b""
    while chunk := os.read(reader, 65536):
        data += chunk
    os.close(reader)
    os.waitpid(child, 0)
    succeeded, value = pickle.loads(data)
    if succeeded:
        return value
    raise value


def posix_case(name, **limits):
    """Registers a test class as a case of the suite."""

    def register(test_class):
        @case(name, **limits)
        def run(t):
            test_class.trial = t
            suite = unittest.defaultTestLoader.loadTestsFromTestCase(test_class)
            result = unittest.TextTestRunner(stream=sys.stderr, verbosity=2).run(suite)
            for test, reason in result.skipped:
                print(f"note: skipped {test.id().rpartition('.')[2]}: {reason}")
            print(f"note: {result.testsRun} tests")
            broken = [test.id().rpartition(".")[2] for test, _ in result.failures + result.errors]
            assert not broken, f"{len(broken)} of {result.testsRun} failed: {' '.join(broken)}"

        run.__doc__ = test_class.__doc__
        return test_class

    return register
