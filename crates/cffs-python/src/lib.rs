//! `pycffs._native`: what the Python package `pycffs` does not do in Python.
//!
//! Every call that may wait for the device or for another thread lets other Python threads run meanwhile.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Mutex;

use cffs::clock::Timestamp;
use cffs::error::{Error, Result};
use cffs::files::{self, CopyCause, CopyError, CopyOptions, Files, Observer, Summary};
use cffs::vfs::errno::errno;
use cffs::vfs::types::{AtimeMode, Attr, OpenOptions, SetAttr, SetTime};
use pyo3::exceptions::{PyOSError, PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

mod bytes;
mod path;
mod store;

use bytes::Contents;
use path::VolumePath;
use store::Opened;

/// An error as Python has it: an `OSError` of the class that its number belongs to.
fn raised(error: &Error, path: &VolumePath) -> PyErr {
    let text = match error {
        // What the system or a store says, which is not always about a device.
        Error::Io(error) => error.to_string(),
        _ => error.to_string(),
    };
    // The exception shows the path after the text, which need not begin with it.
    let named = format!("{}: ", path.shown().display());
    let text = text.strip_prefix(&named).map(str::to_owned).unwrap_or(text);
    PyOSError::new_err((errno(error), text, path.shown()))
}

/// The same for a call with two paths, both of which the exception has, as those of `os` do.
fn raised_for_both(error: &Error, path: &VolumePath, other: &VolumePath) -> PyErr {
    // The number between them is Windows'.
    let of_windows: Option<i32> = None;
    PyOSError::new_err((errno(error), error.to_string(), path.shown(), of_windows, other.shown()))
}

/// The module.
#[pymodule(name = "_native")]
mod native {
    #[pymodule_export]
    use super::{File, Stat, Volume, mkfs_image};
}

/// Make an image, or at a URL a volume in a store, of a size in bytes. There must be nothing yet.
#[pyfunction]
#[pyo3(name = "mkfs", signature = (image, size, label = ""))]
fn mkfs_image(py: Python<'_>, image: PathBuf, size: u64, label: &str) -> PyResult<()> {
    let label = label.as_bytes().to_vec();
    let made = py.detach(|| store::make(&image, size, label));
    made.map_err(|error| raised(&error, &VolumePath::from(&*store::shown(&image))))
}

/// The attributes of a file.
#[pyclass(frozen, get_all, module = "pycffs")]
struct Stat {
    ino: u64,
    mode: u32,
    nlink: u32,
    uid: u32,
    gid: u32,
    size: u64,
    allocated: u64,
    atime_ns: i128,
    mtime_ns: i128,
    ctime_ns: i128,
    birthtime_ns: i128,
}

impl From<Attr> for Stat {
    fn from(attr: Attr) -> Stat {
        let ns = |time: Timestamp| {
            i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds)
        };
        Stat {
            ino: attr.ino.0,
            mode: attr.mode(),
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            size: attr.size,
            allocated: attr.allocated_bytes,
            atime_ns: ns(attr.atime),
            mtime_ns: ns(attr.mtime),
            ctime_ns: ns(attr.ctime),
            birthtime_ns: ns(attr.btime),
        }
    }
}

#[pymethods]
impl Stat {
    fn __repr__(&self) -> String {
        format!("Stat(ino={}, mode=0o{:o}, size={})", self.ino, self.mode, self.size)
    }
}

/// A file that is open, to read and to write at any place.
#[pyclass(frozen, module = "pycffs._native")]
struct File {
    file: files::File,
    path: VolumePath,
}

#[pymethods]
impl File {
    /// Up to `count` bytes from `offset` on.
    fn pread<'py>(
        &self,
        py: Python<'py>,
        count: usize,
        offset: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let size = self.call(py, || Ok(self.file.node().attr()?.size))?;
        let most = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let mut buffer = vec![0; count.min(most)];
        let read = self.call(py, || self.file.read_at(offset, &mut buffer))?;
        Ok(PyBytes::new(py, &buffer[..read]))
    }

    /// Write all of `data` at `offset`.
    fn pwrite(&self, py: Python<'_>, data: &[u8], offset: u64) -> PyResult<()> {
        self.call(py, || self.file.write_all_at(offset, data))
    }

    /// Cut the file off, or make it longer by a hole.
    fn truncate(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        self.call(py, || self.file.set_len(size))
    }

    /// The attributes.
    fn stat(&self, py: Python<'_>) -> PyResult<Stat> {
        self.call(py, || self.file.node().attr().map(Stat::from))
    }

    /// Make contents and attributes durable.
    fn fsync(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, || self.file.sync())
    }
}

impl File {
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce() -> Result<T> + Send,
    ) -> PyResult<T> {
        py.detach(work).map_err(|error| raised(&error, &self.path))
    }
}

/// A volume that is open: its files by path.
#[pyclass(frozen, subclass, module = "pycffs._native")]
struct Volume {
    opened: Opened,
}

#[pymethods]
impl Volume {
    #[new]
    #[pyo3(signature = (
        image, *, read_only = false, atime = true, cache = None, dirty = None, take_over = false
    ))]
    fn new(
        py: Python<'_>,
        image: PathBuf,
        read_only: bool,
        atime: bool,
        cache: Option<u64>,
        dirty: Option<u64>,
        take_over: bool,
    ) -> PyResult<Volume> {
        let mut options = OpenOptions { read_only, take_over, ..OpenOptions::default() };
        options.cache_bytes = cache.unwrap_or(options.cache_bytes);
        options.dirty_bytes_max = dirty.unwrap_or(options.dirty_bytes_max);
        if !atime {
            options.atime = AtimeMode::Never;
        }
        let opened = py.detach(|| Opened::open(&image, options));
        let opened =
            opened.map_err(|error| raised(&error, &VolumePath::from(&*store::shown(&image))))?;
        Ok(Volume { opened })
    }

    /// Make everything durable and close the volume. Later calls fail.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, &VolumePath::ROOT, || self.opened.close())
    }

    /// Make everything durable.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, &VolumePath::ROOT, || self.files().volume().sync())
    }

    /// The contents of a file.
    fn read(&self, py: Python<'_>, path: VolumePath) -> PyResult<Py<PyAny>> {
        let (file, size) = self.call(py, &path, || {
            let file = self.files().open(&path)?;
            let size = file.node().attr()?.size;
            Ok((file, size))
        })?;
        let mut contents = Contents::new(py, size)?;
        let filled = self.call(py, &path, move || contents.fill(&file).map(|()| contents))?;
        Ok(filled.finish(py))
    }

    /// Make a file with these contents, or give them to the one that is there.
    fn write(&self, py: Python<'_>, path: VolumePath, data: &[u8]) -> PyResult<()> {
        self.call(py, &path, || self.files().write(&path, data))
    }

    /// Read whole files in the order in which they lie on the device: for each path its contents, or the
    /// error that kept it from being read.
    fn _read_many<'py>(
        &self,
        py: Python<'py>,
        paths: Vec<VolumePath>,
        threads: usize,
    ) -> PyResult<Vec<Py<PyAny>>> {
        let threads = NonZeroUsize::new(threads)
            .ok_or_else(|| PyValueError::new_err("at least one thread has to read"))?;
        let (batch, missed) = py.detach(|| self.files().batch(&paths));
        let unread = || Mutex::new(Err(PyOSError::new_err("a file was not read")));
        let mut found: Vec<Mutex<PyResult<Contents>>> = paths.iter().map(|_| unread()).collect();
        for (position, size) in batch.sizes() {
            found[position] = Mutex::new(Ok(Contents::new(py, size)?));
        }
        for (position, error) in missed {
            found[position] = Mutex::new(Err(raised(&error, &paths[position])));
        }
        let read = |position: usize, file: &files::File| {
            // A thread that panicked takes the call with it.
            let mut place = found[position].lock().unwrap_or_else(|held| held.into_inner());
            if let Ok(contents) = &mut *place
                && let Err(error) = contents.fill(file)
            {
                *place = Err(raised(&error, &paths[position]));
            }
        };
        py.detach(move || batch.read(threads, || (), |(), position, file| read(position, file)));
        let found = found
            .into_iter()
            .map(|place| place.into_inner().unwrap_or_else(|held| held.into_inner()));
        let object = |read: PyResult<Contents>| match read {
            Ok(contents) => contents.finish(py),
            Err(error) => error.into_value(py).into_any(),
        };
        Ok(found.map(object).collect())
    }

    /// Open a file: `create` makes it if it is missing, `exclusive` fails unless it makes it.
    #[pyo3(signature = (path, create = false, exclusive = false, truncate = false, mode = 0o644))]
    fn _open(
        &self,
        py: Python<'_>,
        path: VolumePath,
        create: bool,
        exclusive: bool,
        truncate: bool,
        mode: u32,
    ) -> PyResult<File> {
        let file = self.call(py, &path, || {
            if create {
                match self.files().create_new(&path, mode) {
                    Err(Error::Exists) if !exclusive => {}
                    made => return made,
                }
            }
            let file = self.files().open(&path)?;
            if truncate {
                file.set_len(0)?;
            }
            Ok(file)
        })?;
        Ok(File { file, path })
    }

    /// The attributes of what a path leads to, or with `follow_symlinks=False` of a symbolic link at its end.
    #[pyo3(signature = (path, *, follow_symlinks = true))]
    fn stat(&self, py: Python<'_>, path: VolumePath, follow_symlinks: bool) -> PyResult<Stat> {
        let attr = self.call(py, &path, || match follow_symlinks {
            true => self.files().stat(&path),
            false => self.files().stat_itself(&path),
        })?;
        Ok(attr.into())
    }

    /// The names in a directory with their attributes, in the order in which they were made.
    fn _entries(&self, py: Python<'_>, path: VolumePath) -> PyResult<Vec<(VolumePath, Stat)>> {
        let items = self.call(py, &path, || self.files().read_dir(&path))?;
        Ok(items.into_iter().map(|item| (item.name.into(), item.attr.into())).collect())
    }

    /// Make a directory.
    #[pyo3(signature = (path, mode = 0o755))]
    fn mkdir(&self, py: Python<'_>, path: VolumePath, mode: u32) -> PyResult<()> {
        self.call(py, &path, || {
            self.files().make_dir(&path)?;
            let changes = SetAttr { permissions: Some(mode & 0o7777), ..SetAttr::default() };
            self.files().set_attr(&path, &changes).map(drop)
        })
    }

    /// Make a directory and those above it, as far as they are missing.
    fn makedirs(&self, py: Python<'_>, path: VolumePath) -> PyResult<()> {
        self.call(py, &path, || self.files().make_dir_all(&path))
    }

    /// Remove an empty directory.
    fn rmdir(&self, py: Python<'_>, path: VolumePath) -> PyResult<()> {
        self.call(py, &path, || self.files().remove_dir(&path))
    }

    /// Remove a name that is not a directory's.
    fn unlink(&self, py: Python<'_>, path: VolumePath) -> PyResult<()> {
        self.call(py, &path, || self.files().remove_file(&path))
    }

    /// Rename, and replace what had the new name.
    fn rename(&self, py: Python<'_>, path: VolumePath, new_path: VolumePath) -> PyResult<()> {
        py.detach(|| self.files().rename(&path, &new_path))
            .map_err(|error| raised_for_both(&error, &path, &new_path))
    }

    /// Give a file another name.
    fn link(&self, py: Python<'_>, path: VolumePath, new_path: VolumePath) -> PyResult<()> {
        py.detach(|| self.files().hard_link(&path, &new_path))
            .map_err(|error| raised_for_both(&error, &path, &new_path))
    }

    /// Make a symbolic link at `path`.
    fn symlink(&self, py: Python<'_>, target: VolumePath, path: VolumePath) -> PyResult<()> {
        self.call(py, &path, || self.files().symlink(target.as_ref(), &path))
    }

    /// The target of a symbolic link.
    fn readlink(&self, py: Python<'_>, path: VolumePath) -> PyResult<VolumePath> {
        self.call(py, &path, || self.files().read_link(&path)).map(VolumePath::from)
    }

    /// Set the lower 12 bits of a mode.
    fn chmod(&self, py: Python<'_>, path: VolumePath, mode: u32) -> PyResult<()> {
        let changes = SetAttr { permissions: Some(mode & 0o7777), ..SetAttr::default() };
        self.call(py, &path, || self.files().set_attr(&path, &changes).map(drop))
    }

    /// Set owner and group; -1 leaves one as it is.
    fn chown(&self, py: Python<'_>, path: VolumePath, uid: i64, gid: i64) -> PyResult<()> {
        let id = |given: i64| match given {
            -1 => Ok(None),
            _ => u32::try_from(given).map(Some).map_err(|error| {
                PyOverflowError::new_err(format!(
                    "{given} is no number of a user or group: {error}"
                ))
            }),
        };
        let changes = SetAttr { uid: id(uid)?, gid: id(gid)?, ..SetAttr::default() };
        self.call(py, &path, || self.files().set_attr(&path, &changes).map(drop))
    }

    /// Set the times of access and of the last change of the contents, in nanoseconds since 1970.
    fn utime(&self, py: Python<'_>, path: VolumePath, ns: (i128, i128)) -> PyResult<()> {
        let time = |ns: i128| -> PyResult<_> {
            let seconds = i64::try_from(ns.div_euclid(1_000_000_000))?;
            let nanoseconds = ns.rem_euclid(1_000_000_000) as u32;
            Ok(Some(SetTime::To(Timestamp { seconds, nanoseconds })))
        };
        let changes = SetAttr { atime: time(ns.0)?, mtime: time(ns.1)?, ..SetAttr::default() };
        self.call(py, &path, || self.files().set_attr(&path, &changes).map(drop))
    }

    /// Cut a file off, or make it longer by a hole.
    fn truncate(&self, py: Python<'_>, path: VolumePath, size: u64) -> PyResult<()> {
        let changes = SetAttr { size: Some(size), ..SetAttr::default() };
        self.call(py, &path, || self.files().set_attr(&path, &changes).map(drop))
    }

    /// The sizes of the volume in bytes, and its inodes.
    fn statvfs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let sizes = self.files().volume().stat_fs();
        let in_bytes = |fragments: u64| fragments * u64::from(sizes.fragment_bytes);
        let found = PyDict::new(py);
        found.set_item("bytes", in_bytes(sizes.fragments))?;
        found.set_item("free_bytes", in_bytes(sizes.free_fragments))?;
        found.set_item("available_bytes", in_bytes(sizes.available_fragments))?;
        found.set_item("inodes", sizes.inodes)?;
        Ok(found)
    }

    /// Copy a tree of the host into the volume: what is in `source` comes into `target`.
    #[pyo3(
        signature = (source, target = VolumePath::ROOT, *, threads = None),
        text_signature = "($self, source, target='/', *, threads=None)"
    )]
    fn import_tree<'py>(
        &self,
        py: Python<'py>,
        source: PathBuf,
        target: VolumePath,
        threads: Option<usize>,
    ) -> PyResult<Bound<'py, PyDict>> {
        copied(py, threads, |options, observer| {
            files::import(self.files(), &source, target.as_ref(), options, observer)
        })
    }

    /// Copy a tree of the volume to the host.
    #[pyo3(signature = (source, target, *, threads = None))]
    fn export_tree<'py>(
        &self,
        py: Python<'py>,
        source: VolumePath,
        target: PathBuf,
        threads: Option<usize>,
    ) -> PyResult<Bound<'py, PyDict>> {
        copied(py, threads, |options, observer| {
            files::export(self.files(), source.as_ref(), &target, options, observer)
        })
    }
}

impl Volume {
    fn files(&self) -> &Files {
        &self.opened.files
    }

    fn call<T: Send>(
        &self,
        py: Python<'_>,
        path: &VolumePath,
        work: impl FnOnce() -> Result<T> + Send,
    ) -> PyResult<T> {
        py.detach(work).map_err(|error| raised(&error, path))
    }
}

/// A failure of a copy as an `OSError` has it: a number, words, and the path.
type Failure = (i32, String, OsString);

fn failure(error: &CopyError) -> Failure {
    let number = match &error.cause {
        CopyCause::Volume(error) => errno(error),
        CopyCause::Host(error) => {
            error.raw_os_error().unwrap_or_else(|| errno(&Error::Io(error.kind().into())))
        }
    };
    (number, error.cause.to_string(), error.path.clone().into_os_string())
}

/// Keeps the first failure of a copy.
#[derive(Default)]
struct First(Mutex<Option<Failure>>);

impl Observer for First {
    fn failed(&self, error: &CopyError) {
        if let Ok(mut first) = self.0.lock() {
            first.get_or_insert_with(|| failure(error));
        }
    }
}

/// Copies a tree, and says how much it was. A file that could not be copied is an error, after all others
/// were.
fn copied<'py>(
    py: Python<'py>,
    threads: Option<usize>,
    copy: impl FnOnce(&CopyOptions, &dyn Observer) -> Result<Summary, CopyError> + Send,
) -> PyResult<Bound<'py, PyDict>> {
    let options =
        CopyOptions { threads: threads.and_then(NonZeroUsize::new), ..CopyOptions::default() };
    let first = First::default();
    let summary = py
        .detach(|| copy(&options, &first))
        .map_err(|error| PyOSError::new_err(failure(&error)))?;
    if let Ok(Some((number, mut words, path))) = first.0.into_inner() {
        let others = summary.failures.saturating_sub(1);
        if others > 0 {
            words += &format!(" (and {others} more could not be copied)");
        }
        return Err(PyOSError::new_err((number, words, path)));
    }
    let found = PyDict::new(py);
    found.set_item("files", summary.files)?;
    found.set_item("directories", summary.directories)?;
    found.set_item("symlinks", summary.symlinks)?;
    found.set_item("bytes", summary.bytes)?;
    Ok(found)
}
