//! Objects of Python that are filled without its lock.

use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;

/// A `bytes` with these contents, from a thread that is detached. The interpreter's lock is held to allocate,
/// not to copy: threads that read files at the same time fill theirs at the same time.
pub fn copied(contents: &[u8]) -> PyResult<Py<PyAny>> {
    let len = ffi::Py_ssize_t::try_from(contents.len())?;
    let (object, to) = Python::attach(|py| {
        // SAFETY: without contents given, this makes an object of that length, or raises an error.
        let object = unsafe {
            let made = ffi::PyBytes_FromStringAndSize(ptr::null(), len);
            Bound::from_owned_ptr_or_err(py, made)?
        };
        // SAFETY: it is a `bytes`.
        let to = unsafe { ffi::PyBytes_AsString(object.as_ptr()) };
        PyResult::Ok((object.unbind(), to))
    })?;
    // SAFETY: `to` has room for `len` bytes. Nobody else has the object, which `object` keeps alive, and so
    // nobody reads or moves what is in it; of no bytes there may be one object for all, but nothing to copy.
    unsafe { ptr::copy_nonoverlapping(contents.as_ptr(), to.cast(), contents.len()) };
    Ok(object)
}
