//! `pycffs._native`: the parts of the Python package `pycffs` that are not written in Python.
//!
//! Every call that may wait for the device or for another thread releases the GIL meanwhile.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use cffs::clock::Timestamp;
use cffs::error::Error;
use cffs::files::{self, Files};
use cffs::vfs::types::{AtimeMode, OpenOptions, SetAttr, SetTime};
use pyo3::exceptions::{PyOSError, PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

mod bytes;
mod copying;
mod failing;
mod file;
mod path;
mod stat;
mod store;
mod waiting;
mod walk;

use bytes::Contents;
use copying::copied;
use failing::{Failure, closed, raised, raised_for_both};
use file::{File, write_all_at};
use path::VolumePath;
use stat::Stat;
use store::Opened;
use waiting::{Signals, interruptible};
use walk::Walk;

/// The module.
#[pymodule(name = "_native")]
mod native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::{File, Stat, Volume, Walk, mkfs_image};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

/// Create an image or, given a URL, a volume in an object store, of `size` bytes. It must not exist yet.
#[pyfunction]
#[pyo3(name = "mkfs", signature = (image, size, label = ""))]
fn mkfs_image(py: Python<'_>, image: PathBuf, size: Bound<'_, PyAny>, label: &str) -> PyResult<()> {
    let shown = VolumePath::from(&*store::shown(&image));
    let size: u64 = match size.extract() {
        Ok(size) if i64::try_from(size).is_ok() => size,
        Ok(_) => return Err(raised(&Error::TooLarge, &shown)),
        // No volume is that large; a negative size is an error as for os.truncate.
        Err(error) if error.is_instance_of::<PyOverflowError>(py) => {
            let error = match size.lt(0)? {
                true => Error::Invalid("the size must not be negative"),
                false => Error::TooLarge,
            };
            return Err(raised(&error, &shown));
        }
        Err(error) => return Err(error),
    };
    let label = label.as_bytes().to_vec();
    let made = interruptible(py, move || store::make(&image, size, label), drop)?;
    made.map_err(|error| raised(&error, &shown))
}

/// An open volume. Its methods access files by path.
#[pyclass(frozen, subclass, module = "pycffs._native")]
struct Volume {
    opened: Arc<Opened>,
    /// The arguments with which it was opened, to open it again in another process.
    given: Given,
}

/// The arguments of a volume.
#[derive(Clone)]
struct Given {
    image: PathBuf,
    read_only: bool,
    atime: bool,
    cache: Option<u64>,
    dirty: Option<u64>,
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
        let shown = VolumePath::from(&*store::shown(&image));
        if store::is_directory(&image) && (cache.is_some() || dirty.is_some() || take_over) {
            let why = "cache, dirty and take_over are options for an image: the server of a mounted volume has its own";
            return Err(PyValueError::new_err(why));
        }
        let image = store::absolute(image);
        let given = Given { image: image.clone(), read_only, atime, cache, dirty };
        let open = move || Opened::open(&image, options);
        // An opening for which no caller waits any more must not block other programs.
        let opened = interruptible(py, open, |late| drop(late.map(|opened| opened.close())))?;
        let opened = opened.map_err(|error| raised(&error, &shown))?;
        Ok(Volume { opened: Arc::new(opened), given })
    }

    /// For pickle, which opens the volume again.
    fn __getnewargs_ex__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<((PathBuf,), Bound<'py, PyDict>)> {
        let Given { image, read_only, atime, cache, dirty } = &self.given;
        if !read_only {
            let why = "only a volume that is open read-only can be pickled: one that is open for writing belongs to one process";
            return Err(PyTypeError::new_err(why));
        }
        if self.opened.is_closed() {
            return Err(closed());
        }
        let options = PyDict::new(py);
        options.set_item("read_only", read_only)?;
        options.set_item("atime", atime)?;
        options.set_item("cache", cache)?;
        options.set_item("dirty", dirty)?;
        Ok(((image.clone(),), options))
    }

    /// Whether the volume was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.opened.is_closed()
    }

    /// Make everything durable and close the volume. Later calls fail, except `close`, which does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, &VolumePath::ROOT, || Ok(self.opened.close()?))
    }

    /// Make everything durable.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let opened = Arc::clone(&self.opened);
        let synced = interruptible(py, move || opened.files.sync(), drop)?;
        synced.map_err(|error| Failure::from(error).of(&self.opened, &VolumePath::ROOT))
    }

    /// Read the contents of a file.
    fn read(&self, py: Python<'_>, path: VolumePath) -> PyResult<Py<PyAny>> {
        let read = self.call(py, &path, || Ok(self.files().read_at_once(&path).transpose()?))?;
        if let Some(contents) = read {
            return Ok(PyBytes::new(py, &contents).into_any().unbind());
        }
        let (file, size) = self.call(py, &path, || {
            let file = self.files().open(&path)?;
            let size = file.node().attr()?.size;
            Ok((file, size))
        })?;
        let mut contents = Contents::new(py, size)?;
        let filled = self.call(py, &path, move || contents.fill(&file).map(|()| contents))?;
        Ok(filled.finish(py))
    }

    /// Create a file with these contents, or replace the contents of an existing file.
    fn write(&self, py: Python<'_>, path: VolumePath, data: &[u8]) -> PyResult<()> {
        self.call(py, &path, || write_all_at(&self.files().create(&path)?, 0, data))
    }

    /// Read whole files in device order: for each path its contents, or the error that prevented reading it.
    fn _read_many<'py>(
        &self,
        py: Python<'py>,
        paths: Vec<VolumePath>,
        threads: usize,
    ) -> PyResult<Vec<Py<PyAny>>> {
        let threads = NonZeroUsize::new(threads)
            .ok_or_else(|| PyValueError::new_err("threads must be at least 1"))?;
        if self.files().root().is_attached() {
            return self.read_many_attached(py, &paths);
        }
        let (batch, missed) = py.detach(|| self.files().batch(&paths));
        let unread = || Mutex::new(Err(PyOSError::new_err("a file was not read")));
        let mut found: Vec<Mutex<PyResult<Contents>>> = paths.iter().map(|_| unread()).collect();
        for (position, size) in batch.sizes() {
            found[position] = Mutex::new(Ok(Contents::new(py, size)?));
        }
        for (position, error) in missed {
            found[position] = Mutex::new(Err(raised(&error, &paths[position])));
        }
        if self.opened.is_closed() {
            return Err(closed());
        }
        let stopped: Mutex<Option<PyErr>> = Mutex::new(None);
        let read = |signals: &mut Signals, position: usize, file: &files::File| {
            // A panic of a thread also ends the call.
            let mut place = found[position].lock().unwrap_or_else(|held| held.into_inner());
            let Ok(contents) = &mut *place else { return true };
            let filled = contents.fill(file).and_then(|()| Ok(signals.handle()?));
            let Err(failure) = filled else { return true };
            let is_final = matches!(failure, Failure::Signal(_)) || self.opened.is_closed();
            let error = failure.of(&self.opened, &paths[position]);
            match is_final {
                true => *stopped.lock().unwrap_or_else(|held| held.into_inner()) = Some(error),
                false => *place = Err(error),
            }
            !is_final
        };
        py.detach(|| batch.read(threads, Signals::new, read));
        if let Some(error) = stopped.into_inner().unwrap_or_else(|held| held.into_inner()) {
            return Err(error);
        }
        let found = found
            .into_iter()
            .map(|place| place.into_inner().unwrap_or_else(|held| held.into_inner()));
        let object = |read: PyResult<Contents>| match read {
            Ok(contents) => contents.finish(py),
            Err(error) => error.into_value(py).into_any(),
        };
        Ok(found.map(object).collect())
    }

    /// Open a file. `create` creates it if it does not exist; with `exclusive`, it must not exist.
    #[pyo3(signature = (path, create = false, exclusive = false, truncate = false, mode = None))]
    fn _open(
        &self,
        py: Python<'_>,
        path: VolumePath,
        create: bool,
        exclusive: bool,
        truncate: bool,
        mode: Option<u32>,
    ) -> PyResult<File> {
        let file = self.call(py, &path, || {
            let mode = mode.unwrap_or_else(|| self.files().new_file_permissions());
            let file = match (create, exclusive) {
                (true, true) => return Ok(self.files().create_new(&path, mode)?),
                (true, false) => self.files().open_or_create(&path, mode)?,
                (false, _) => self.files().open(&path)?,
            };
            if truncate {
                file.set_len(0)?;
            }
            Ok(file)
        })?;
        Ok(File::new(&self.opened, file, path))
    }

    /// Return the attributes of the file at a path; with `follow_symlinks=False`, those of a symbolic link
    /// itself.
    #[pyo3(signature = (path, *, follow_symlinks = true))]
    fn stat(&self, py: Python<'_>, path: VolumePath, follow_symlinks: bool) -> PyResult<Stat> {
        let attr = self.call(py, &path, || {
            Ok(match follow_symlinks {
                true => self.files().stat(&path)?,
                false => self.files().stat_itself(&path)?,
            })
        })?;
        Ok(attr.into())
    }

    /// Return the names in a directory with their attributes, in the order of their creation.
    fn _entries(&self, py: Python<'_>, path: VolumePath) -> PyResult<Vec<(VolumePath, Stat)>> {
        let items = self.call(py, &path, || Ok(self.files().read_dir(&path)?))?;
        Ok(items.into_iter().map(|item| (item.name.into(), item.attr.into())).collect())
    }

    /// Begin to walk below a directory.
    fn _walk(&self, py: Python<'_>, path: VolumePath) -> PyResult<Walk> {
        let begin = || Ok(Walk::new(&self.opened, self.files().walk(&path)?, path.clone()));
        self.call(py, &path, begin)
    }

    /// Create a directory.
    #[pyo3(signature = (path, mode = 0o755))]
    fn mkdir(&self, py: Python<'_>, path: VolumePath, mode: u32) -> PyResult<()> {
        self.call(py, &path, || Ok(self.files().make_dir_with(&path, mode)?))
    }

    /// Create a directory and its missing ancestors.
    fn makedirs(&self, py: Python<'_>, path: VolumePath) -> PyResult<()> {
        self.call(py, &path, || Ok(self.files().make_dir_all(&path)?))
    }

    /// Remove an empty directory.
    fn rmdir(&self, py: Python<'_>, path: VolumePath) -> PyResult<()> {
        self.call(py, &path, || Ok(self.files().remove_dir(&path)?))
    }

    /// Remove a name of a file other than a directory.
    fn unlink(&self, py: Python<'_>, path: VolumePath) -> PyResult<()> {
        self.call(py, &path, || Ok(self.files().remove_file(&path)?))
    }

    /// Rename a file, replacing an existing file with the new name.
    fn rename(&self, py: Python<'_>, path: VolumePath, new_path: VolumePath) -> PyResult<()> {
        py.detach(|| self.files().rename(&path, &new_path))
            .map_err(|error| raised_for_both(&error, &self.opened, &path, &new_path))
    }

    /// Give a file another name.
    fn link(&self, py: Python<'_>, path: VolumePath, new_path: VolumePath) -> PyResult<()> {
        py.detach(|| self.files().hard_link(&path, &new_path))
            .map_err(|error| raised_for_both(&error, &self.opened, &path, &new_path))
    }

    /// Create a symbolic link at `path`.
    fn symlink(&self, py: Python<'_>, target: VolumePath, path: VolumePath) -> PyResult<()> {
        self.call(py, &path, || Ok(self.files().symlink(target.as_ref(), &path)?))
    }

    /// Return the target of a symbolic link.
    fn readlink(&self, py: Python<'_>, path: VolumePath) -> PyResult<VolumePath> {
        self.call(py, &path, || Ok(self.files().read_link(&path)?)).map(VolumePath::from)
    }

    /// Set the lower 12 bits of a mode.
    fn chmod(&self, py: Python<'_>, path: VolumePath, mode: u32) -> PyResult<()> {
        let changes = SetAttr { permissions: Some(mode & 0o7777), ..SetAttr::default() };
        self.set_attr(py, &path, &changes)
    }

    /// Set owner and group; -1 keeps the current one.
    fn chown(&self, py: Python<'_>, path: VolumePath, uid: i64, gid: i64) -> PyResult<()> {
        let id = |given: i64| match given {
            -1 => Ok(None),
            _ => u32::try_from(given).map(Some).map_err(|error| {
                PyOverflowError::new_err(format!(
                    "{given} is not the number of a user or group: {error}"
                ))
            }),
        };
        let changes = SetAttr { uid: id(uid)?, gid: id(gid)?, ..SetAttr::default() };
        self.set_attr(py, &path, &changes)
    }

    /// Set the times of the last access and of the last change of the contents, in nanoseconds since 1970.
    fn utime(&self, py: Python<'_>, path: VolumePath, ns: (i128, i128)) -> PyResult<()> {
        let time = |ns: i128| -> PyResult<_> {
            let seconds = i64::try_from(ns.div_euclid(1_000_000_000))?;
            let nanoseconds = ns.rem_euclid(1_000_000_000) as u32;
            Ok(Some(SetTime::To(Timestamp { seconds, nanoseconds })))
        };
        let changes = SetAttr { atime: time(ns.0)?, mtime: time(ns.1)?, ..SetAttr::default() };
        self.set_attr(py, &path, &changes)
    }

    /// Truncate a file, or extend it by a hole.
    fn truncate(&self, py: Python<'_>, path: VolumePath, size: u64) -> PyResult<()> {
        let changes = SetAttr { size: Some(size), ..SetAttr::default() };
        self.set_attr(py, &path, &changes)
    }

    /// Return the sizes of the volume in bytes, and its number of inodes.
    fn statvfs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let sizes = self.call(py, &VolumePath::ROOT, || Ok(self.files().stat_fs()?))?;
        let in_bytes = |fragments: u64| fragments * u64::from(sizes.fragment_bytes);
        let found = PyDict::new(py);
        found.set_item("bytes", in_bytes(sizes.fragments))?;
        found.set_item("free_bytes", in_bytes(sizes.free_fragments))?;
        found.set_item("available_bytes", in_bytes(sizes.available_fragments))?;
        found.set_item("inodes", sizes.inodes)?;
        Ok(found)
    }

    /// Copy a tree of the host into the volume: the contents of `source` into `target`. `progress(files,
    /// bytes)` is called repeatedly.
    #[pyo3(
        signature = (source, target = VolumePath::ROOT, *, threads = None, progress = None),
        text_signature = "($self, source, target='/', *, threads=None, progress=None)"
    )]
    fn import_tree<'py>(
        &self,
        py: Python<'py>,
        source: PathBuf,
        target: VolumePath,
        threads: Option<usize>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        copied(py, &self.opened, threads, progress, move |files, options, observer| {
            files::import(files, &source, target.as_ref(), options, observer)
        })
    }

    /// Copy a tree of the volume to the host. `progress(files, bytes)` is called repeatedly.
    #[pyo3(signature = (source, target, *, threads = None, progress = None))]
    fn export_tree<'py>(
        &self,
        py: Python<'py>,
        source: VolumePath,
        target: PathBuf,
        threads: Option<usize>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        copied(py, &self.opened, threads, progress, move |files, options, observer| {
            files::export(files, source.as_ref(), &target, options, observer)
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
        work: impl FnOnce() -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        py.detach(work).map_err(|failure| failure.of(&self.opened, path))
    }

    /// The same at the server of a mounted volume: the contents come in batches, in one thread.
    fn read_many_attached(&self, py: Python<'_>, paths: &[VolumePath]) -> PyResult<Vec<Py<PyAny>>> {
        if self.opened.is_closed() {
            return Err(closed());
        }
        let unread: Vec<Option<Py<PyAny>>> = paths.iter().map(|_| None).collect();
        let state = Mutex::new((Signals::new(), None, unread));
        let visit = |position: usize, read: cffs::error::Result<&[u8]>| {
            let mut state = state.lock().unwrap_or_else(|held| held.into_inner());
            let (signals, stopped, found) = &mut *state;
            if stopped.is_some() {
                return;
            }
            *stopped = signals.handle().err();
            found[position] = Some(Python::attach(|py| match read {
                Ok(contents) => PyBytes::new(py, contents).into_any().unbind(),
                Err(error) => raised(&error, &paths[position]).into_value(py).into_any(),
            }));
        };
        py.detach(|| self.files().read_many(paths, NonZeroUsize::MIN, visit));
        let (_, stopped, found) = state.into_inner().unwrap_or_else(|held| held.into_inner());
        match stopped {
            Some(error) => Err(error),
            None => Ok(found.into_iter().flatten().collect()),
        }
    }

    fn set_attr(&self, py: Python<'_>, path: &VolumePath, changes: &SetAttr) -> PyResult<()> {
        self.call(py, path, || {
            self.files().set_attr(path, changes)?;
            Ok(())
        })
    }
}
