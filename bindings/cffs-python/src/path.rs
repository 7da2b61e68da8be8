//! Paths from Python: `str`, `bytes` or any object that `os.fspath` accepts.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

/// A path or a name in a volume. In a `str`, bytes that are not UTF-8 become surrogates, as with
/// `os.fsdecode`.
#[derive(Clone)]
pub struct VolumePath(Cow<'static, [u8]>);

impl VolumePath {
    /// The root of the volume.
    pub const ROOT: VolumePath = VolumePath(Cow::Borrowed(b"/"));

    /// The form shown in messages.
    pub fn shown(&self) -> OsString {
        OsStr::from_bytes(&self.0).to_owned()
    }
}

impl AsRef<[u8]> for VolumePath {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl From<Vec<u8>> for VolumePath {
    fn from(path: Vec<u8>) -> VolumePath {
        VolumePath(Cow::Owned(path))
    }
}

impl From<&Path> for VolumePath {
    fn from(path: &Path) -> VolumePath {
        path.as_os_str().as_bytes().to_vec().into()
    }
}

impl<'py> FromPyObject<'_, 'py> for VolumePath {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<VolumePath> {
        if let Ok(bytes) = given.cast::<PyBytes>() {
            return Ok(bytes.as_bytes().to_vec().into());
        }
        let path: PathBuf = given.extract()?;
        Ok(path.into_os_string().into_vec().into())
    }
}

impl<'py> IntoPyObject<'py> for VolumePath {
    type Target = PyString;
    type Output = Bound<'py, PyString>;
    type Error = std::convert::Infallible;

    fn into_pyobject(self, py: Python<'py>) -> Result<Bound<'py, PyString>, Self::Error> {
        self.shown().into_pyobject(py)
    }
}
