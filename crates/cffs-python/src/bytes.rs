//! Objects of Python that are filled without its lock.

use std::ptr;

use cffs::error::Result;
use cffs::files::File;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// A `bytes` for the contents of a file. The interpreter's lock is held to allocate it, not to fill it, and
/// contents are copied once, from where the cache has them.
pub struct Contents {
    object: Py<PyAny>,
    to: *mut u8,
    len: usize,
    /// What the file had instead, which was changed since its size was asked for.
    other: Option<Vec<u8>>,
}

// SAFETY: `to` leads into `object`, of which nobody else knows before `finish`, in whatever thread that is.
unsafe impl Send for Contents {}

impl Contents {
    /// For a file of this size.
    pub fn new(py: Python<'_>, size: u64) -> PyResult<Contents> {
        let len = ffi::Py_ssize_t::try_from(size)?;
        // SAFETY: without contents given, this makes an object of that length, or raises an error.
        let object = unsafe {
            let made = ffi::PyBytes_FromStringAndSize(ptr::null(), len);
            Bound::from_owned_ptr_or_err(py, made)?
        };
        // SAFETY: it is a `bytes`.
        let to = unsafe { ffi::PyBytes_AsString(object.as_ptr()) };
        Ok(Contents { object: object.unbind(), to: to.cast(), len: len as usize, other: None })
    }

    /// Reads the file, from a thread that is detached.
    pub fn fill(&mut self, file: &File) -> Result<()> {
        let (to, len) = (self.to, self.len);
        let mut filled = 0;
        let mut fits = true;
        file.read_pieces(&mut |piece| {
            fits = fits && piece.len() <= len - filled;
            if fits {
                // SAFETY: `to` has room for `len` bytes, of which `filled` and those of the piece are no
                // more. Nobody reads or moves what is in it; of no bytes there may be one object for all,
                // but then no piece with a byte fits.
                unsafe { ptr::copy_nonoverlapping(piece.as_ptr(), to.add(filled), piece.len()) };
                filled += piece.len();
            }
        })?;
        if !fits || filled < len {
            self.other = Some(file.contents()?);
        }
        Ok(())
    }

    /// The object, once it was filled.
    pub fn finish(self, py: Python<'_>) -> Py<PyAny> {
        match self.other {
            Some(contents) => PyBytes::new(py, &contents).into_any().unbind(),
            None => self.object,
        }
    }
}
