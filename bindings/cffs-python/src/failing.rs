//! Conversion of errors to Python exceptions.

use cffs::error::Error;
use cffs::vfs::errno::errno;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::path::VolumePath;
use crate::store::Opened;

/// Why a call ended early.
pub enum Failure {
    /// The volume returned an error.
    Volume(Error),
    /// A signal handler raised an exception.
    Signal(PyErr),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Volume(error)
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Failure {
        Failure::Signal(error)
    }
}

impl Failure {
    /// The exception for a call on a volume that is open or has been closed.
    pub fn of(self, opened: &Opened, path: &VolumePath) -> PyErr {
        match self {
            Failure::Volume(Error::Stale) if opened.is_closed() => closed(),
            Failure::Volume(error) => raised(&error, path),
            Failure::Signal(error) => error,
        }
    }
}

/// The exception for a closed volume: the same as for a closed file of the host.
pub fn closed() -> PyErr {
    PyValueError::new_err("the volume is closed")
}

/// The exception for an error: an `OSError` of the class for its number.
pub fn raised(error: &Error, path: &VolumePath) -> PyErr {
    let text = match error {
        // The message of the system or store, which does not always concern a device.
        Error::Io(error) => error.to_string(),
        _ => error.to_string(),
    };
    // The exception appends the path, so the message need not begin with it.
    let named = format!("{}: ", path.shown().display());
    let text = text.strip_prefix(&named).map(str::to_owned).unwrap_or(text);
    PyOSError::new_err((errno(error), text, path.shown()))
}

/// The same for a call with two paths, both of which the exception contains, as in `os`.
pub fn raised_for_both(
    error: &Error,
    opened: &Opened,
    path: &VolumePath,
    other: &VolumePath,
) -> PyErr {
    if matches!(error, Error::Stale) && opened.is_closed() {
        return closed();
    }
    // The argument between the paths is for Windows only.
    let of_windows: Option<i32> = None;
    PyOSError::new_err((errno(error), error.to_string(), path.shown(), of_windows, other.shown()))
}
