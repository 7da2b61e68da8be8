"""The functions of the package on a directory of a mounted volume: the tests on an image, and more."""

import contextlib
import errno
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

import test_volume

import pycffs

# The program of the same build.
CFFS = Path(os.environ.get("CFFS", Path(pycffs.__file__).parents[2] / "debug" / "cffs"))


class WithMount(unittest.TestCase):
    """A test with an empty directory of a mounted volume."""

    def setUp(self):
        if not CFFS.exists() or not Path("/dev/fuse").exists() or os.geteuid() != 0:
            self.skipTest("mounts are not possible")
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = Path(scratch.name)
        self.mountpoint = self.scratch / "mnt"
        self.mountpoint.mkdir()
        pycffs.mkfs(self.scratch / "tree.cffs", 128 << 20, "label")
        subprocess.run([CFFS, "mount", self.scratch / "tree.cffs", self.mountpoint], check=True)
        self.addCleanup(subprocess.run, [CFFS, "umount", self.mountpoint], check=True)
        self.image = self.mountpoint / "top"
        self.image.mkdir()
        self.volume = pycffs.Volume(self.image)
        self.addCleanup(self.close)

    def close(self):
        self.volume.close()

    def again(self, **options):
        self.volume.close()
        self.volume = pycffs.Volume(self.image, **options)


class Names(WithMount, test_volume.Names):
    # It names the image by a relative path.
    test_a_pickled_volume_is_opened_again = None


class Contents(WithMount, test_volume.Contents):
    # It reads the image.
    test_fsync_makes_a_file_durable = None


class Mounted(WithMount):
    def test_both_sides_see_the_changes_of_the_other(self):
        self.volume.write("/f", b"attached")
        self.assertEqual((self.image / "f").read_bytes(), b"attached")
        (self.image / "g").write_bytes(b"by the kernel")
        self.assertEqual(self.volume.read_many(["/g", "/f"]), [b"by the kernel", b"attached"])
        self.assertEqual(self.volume.listdir(), ["f", "g"])
        with self.volume.open("/f", "ab") as file:
            file.write(b"!")
            pycffs.fsync(file)
        self.assertEqual((self.image / "f").stat().st_size, 9)
        self.assertEqual(self.volume.stat("/f").ino, (self.image / "f").stat().st_ino)
        self.volume.sync()

    def test_a_child_of_the_process_cannot_use_the_session(self):
        self.volume.write("/f", b"contents")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                self.volume.read("/f")
            except OSError as error:
                status = 0 if error.errno == errno.ENOTCONN and "fork" in str(error) else 2
            # Closing its handles must not disturb the session of the parent.
            self.volume.close()
            with pycffs.Volume(self.image) as own:
                status += own.read("/f") != b"contents"
            os._exit(status)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(self.volume.read("/f"), b"contents")

    def test_a_volume_that_is_read_only_changes_nothing_and_can_be_pickled(self):
        self.volume.write("/f", b"contents")
        with self.assertRaises(TypeError):
            pickle.dumps(self.volume)
        with pycffs.Volume(self.image, read_only=True) as volume:
            with self.assertRaises(OSError) as caught:
                volume.write("/f", b"")
            self.assertEqual(caught.exception.errno, errno.EROFS)
            with pickle.loads(pickle.dumps(volume)) as other:
                self.assertEqual(other.read("/f"), b"contents")

    def test_what_the_server_has_cannot_be_set(self):
        for options in ({"cache": 1 << 20}, {"dirty": 1 << 20}, {"take_over": True}):
            with self.assertRaisesRegex(ValueError, "server"):
                pycffs.Volume(self.image, **options)

    def test_a_directory_of_another_file_system_is_refused(self):
        with self.assertRaisesRegex(OSError, "not in a mounted C-FFS volume"):
            pycffs.Volume(self.scratch)

    def test_a_directory_is_made_as_by_the_kernel(self):
        """Regression: the umask and the set-group-ID bit of the directory above had no effect."""
        os.chown(self.image, 0, 2000)
        self.image.chmod(0o2775)
        before = os.umask(0o027)
        self.addCleanup(os.umask, before)
        self.again()
        for mode in (0o777, 0o755, 0o1777, 0o2700, 0o4700):
            os.mkdir(self.image / f"kernel-{mode:o}", mode)
            self.volume.mkdir(f"/library-{mode:o}", mode)
            made = (os.stat(self.image / f"{by}-{mode:o}") for by in ("kernel", "library"))
            kernel, library = ((stat.st_mode, stat.st_gid) for stat in made)
            self.assertEqual(library, kernel)

    def test_a_file_has_the_permissions_that_the_umask_leaves(self):
        before = os.umask(0o007)
        self.addCleanup(os.umask, before)
        self.again()
        self.volume.write("/written", b"")
        self.volume.open("/opened", "wb").close()
        for name in ("written", "opened"):
            self.assertEqual(os.stat(self.image / name).st_mode & 0o777, 0o660, name)

    def test_many_files_with_the_outcome_of_each(self):
        names = [f"/{number}" for number in range(500)]
        for name in names:
            self.volume.write(name, name.encode() * 1000)
        self.volume.write("/large", bytes(3 << 20))
        self.volume.mkdir("/d")
        found = self.volume.read_many([*names, "/large", "/d", "/missing"], errors="return")
        self.assertEqual(found[:500], [name.encode() * 1000 for name in names])
        self.assertEqual(found[500], bytes(3 << 20))
        self.assertIsInstance(found[501], IsADirectoryError)
        self.assertIsInstance(found[502], FileNotFoundError)

    def test_ctrl_c_ends_a_step_of_a_walk_and_loses_nothing(self):
        """Regression: a signal was handled only after all entries of a step were found."""
        # More than the server sends before it is stopped.
        names = [f"/{number:04}" for number in range(2000)]
        for name in names:
            (self.image / name[1:]).mkdir()
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        servers, ended = self.servers(), threading.Event()
        main = threading.main_thread()

        def state():
            task = Path(f"/proc/self/task/{main.native_id}")
            status = (task / "status").read_text().splitlines()
            return (task / "syscall").read_text(), [line for line in status if "ctxt" in line]

        def is_waiting():
            """Whether the main thread waits, instead of asking for what has arrived."""
            call, switches = state()
            # poll and ppoll, of x86-64 and arm64
            is_poll = call.split()[0] in ("7", "73", "271")
            time.sleep(0.02)
            return is_poll and state() == (call, switches)

        def go_on():
            for server in servers:
                os.kill(server, signal.SIGCONT)

        def interrupt():
            while not is_waiting() and not ended.is_set():
                pass
            if not ended.is_set():
                signal.pthread_kill(main.ident, signal.SIGINT)
                # Signals are handled from this time on.
                time.sleep(0.1)
            go_on()

        walk = self.volume._walk("/")
        thread = threading.Thread(target=interrupt)
        self.addCleanup(go_on)
        for server in servers:
            os.kill(server, signal.SIGSTOP)
        found = []
        try:
            thread.start()
            with self.assertRaises(KeyboardInterrupt):
                while entries := walk.next():
                    found += entries
        finally:
            ended.set()
            thread.join()
        while entries := walk.next():
            found += entries
        self.assertEqual([path for path, _ in found], names)

    def test_a_walk_goes_on_behind_a_directory_that_may_not_be_listed(self):
        """Regression: a walk could not be continued after the error."""
        for name in ("first", "private", "third"):
            (self.image / name).mkdir()
            (self.image / name / "file").write_bytes(b"")
        (self.image / "private").chmod(0o700)
        for directory in (self.scratch, self.mountpoint, self.image):
            directory.chmod(0o755)
        self.volume.close()
        os.seteuid(65534)
        try:
            self.volume = pycffs.Volume(self.image, read_only=True)
        finally:
            os.seteuid(0)
        names = ["/first", "/first/file", "/private", "/third", "/third/file"]
        errors = []
        found = [entry.path for entry in self.volume.walk(onerror=errors.append)]
        self.assertEqual(found, names)
        walk = self.volume.walk()
        found = []
        with self.assertRaises(PermissionError) as caught:
            found.extend(entry.path for entry in walk)
        self.assertEqual([caught.exception.filename], ["/private"])
        self.assertEqual([error.filename for error in errors], ["/private"])
        found += [entry.path for entry in walk]
        self.assertEqual(found, names)

    def servers(self):
        """The processes of the mount's server."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                if os.fsencode(self.mountpoint) in words and words[0].endswith(b"cffs"):
                    found.append(int(process.name))
        return found

    def test_by_fsspec(self):
        try:
            import fsspec  # noqa: PLC0415
        except ImportError:
            self.skipTest("fsspec is not installed")
        from pycffs.fsspec import CffsFileSystem  # noqa: PLC0415

        # The entry point, which an installation would have.
        fsspec.register_implementation("cffs", CffsFileSystem, clobber=True)
        (self.image / "a").write_bytes(b"1,2")
        with fsspec.open(f"cffs://{self.image}!/a") as file:
            self.assertEqual(file.read(), b"1,2")
        system = fsspec.filesystem("cffs", image=str(self.image), read_only=False)
        with system.open("/new", "wb") as file:
            file.write(b"written")
        self.assertEqual((self.image / "new").read_bytes(), b"written")
        self.assertEqual(system.cat(["/a", "/new"]), {"/a": b"1,2", "/new": b"written"})
        # fsspec keeps them, and the mount would stay busy.
        system.volume.close()
        fsspec.filesystem("cffs", image=str(self.image)).volume.close()
        CffsFileSystem.clear_instance_cache()

    def test_a_restart_ends_the_session(self):
        self.volume.write("/f", b"contents")
        subprocess.run([CFFS, "restart", self.mountpoint], check=True)
        with self.assertRaises(OSError) as caught:
            self.volume.read("/f")
        self.assertEqual(caught.exception.errno, errno.ENOTCONN)
        self.again()
        self.assertEqual(self.volume.read("/f"), b"contents")


if __name__ == "__main__":
    sys.exit(unittest.main())
