//! Copies of whole trees.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cffs::error::Error;
use cffs::files::{CopyCause, CopyError, CopyOptions, Files, Observer, Summary};
use cffs::vfs::errno::errno;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::failing::closed;
use crate::store::Opened;
use crate::waiting::Call;

/// A failure of a copy, as the arguments of an `OSError`: number, message, and path.
type Failure = (i32, String, OsString);

fn number_of(cause: &CopyCause) -> i32 {
    match cause {
        CopyCause::Volume(error) => errno(error),
        CopyCause::Host(error) => {
            error.raw_os_error().unwrap_or_else(|| errno(&Error::Io(error.kind().into())))
        }
        CopyCause::Attribute { cause, .. } => number_of(cause),
    }
}

fn failure(error: &CopyError) -> Failure {
    let number = number_of(&error.cause);
    (number, error.cause.to_string(), error.path.clone().into_os_string())
}

/// Counts the work of a copy, keeps its first failure, and can end it early.
#[derive(Default)]
struct Watch {
    first: Mutex<Option<Failure>>,
    files: AtomicU64,
    bytes: AtomicU64,
    is_cancelled: AtomicBool,
}

impl Observer for Watch {
    fn copied(&self, _: &Path, bytes: u64) {
        self.files.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn failed(&self, error: &CopyError) {
        if let Ok(mut first) = self.first.lock() {
            first.get_or_insert_with(|| failure(error));
        }
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }
}

impl Watch {
    fn report(&self, py: Python<'_>, progress: &Option<Py<PyAny>>) -> PyResult<()> {
        let Some(progress) = progress else { return Ok(()) };
        let (files, bytes) = (&self.files, &self.bytes);
        let counts = (files.load(Ordering::Relaxed), bytes.load(Ordering::Relaxed));
        progress.call1(py, counts).map(drop)
    }
}

/// Copies a tree, and returns the numbers of files and bytes. If a file could not be copied, the error is
/// raised after all others were copied. `progress` is called repeatedly with the numbers so far. An exception
/// that it or a signal handler raises ends the copy between two files; an exception from a second signal ends
/// the wait for that.
pub fn copied<'py>(
    py: Python<'py>,
    opened: &Arc<Opened>,
    threads: Option<usize>,
    progress: Option<Py<PyAny>>,
    copy: impl FnOnce(&Files, &CopyOptions, &dyn Observer) -> Result<Summary, CopyError>
    + Send
    + 'static,
) -> PyResult<Bound<'py, PyDict>> {
    let owner = opened.files.root().gives_owners();
    let threads = threads.and_then(NonZeroUsize::new);
    let options = CopyOptions { threads, owner, ..CopyOptions::default() };
    let watch = Arc::new(Watch::default());
    let call = {
        let (opened, watch) = (Arc::clone(opened), Arc::clone(&watch));
        Call::start(move || copy(&opened.files, &options, &*watch), drop)?
    };
    let mut cancelled_by = None;
    let ended = loop {
        let waited = call.wait(py).and_then(|ended| match (&ended, &cancelled_by) {
            (None, None) => watch.report(py, &progress).map(|()| ended),
            _ => Ok(ended),
        });
        match waited {
            Ok(Some(ended)) => break ended,
            Ok(None) => {}
            Err(error) if cancelled_by.is_some() => return Err(error),
            Err(error) => {
                watch.is_cancelled.store(true, Ordering::Relaxed);
                cancelled_by = Some(error);
            }
        }
    };
    if let Some(error) = cancelled_by {
        return Err(error);
    }
    let summary = ended.map_err(|error| match error.cause {
        CopyCause::Volume(Error::Stale) if opened.is_closed() => closed(),
        _ => PyOSError::new_err(failure(&error)),
    })?;
    watch.report(py, &progress)?;
    let first = watch.first.lock().ok().and_then(|mut first| first.take());
    if let Some((number, mut words, path)) = first {
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
