//! Memory of Python objects that is filled without holding the GIL.

use std::{ptr, slice};

use cffs::files::File;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::failing::Failure;
use crate::waiting::Signals;

/// The number of bytes of a file that are read at once. Between two reads, other threads can change the file,
/// and signals are handled.
const STEP_BYTES: usize = (1 << 20) + 1;

/// Memory into which a file is read. Contents are copied once, from the cache.
pub struct Memory {
    to: *mut u8,
    len: usize,
}

// SAFETY: the creator has promised that the memory does not move, whatever thread uses it.
unsafe impl Send for Memory {}

impl Memory {
    /// # Safety
    ///
    /// `to` can be written for `len` bytes as long as this exists.
    pub unsafe fn new(to: *mut u8, len: usize) -> Memory {
        Memory { to, len }
    }

    /// Reads up to `count` bytes of the file from `offset` on, in a detached thread. Returns how many bytes
    /// the file has there; those that do not fit are dropped.
    pub fn read(&mut self, file: &File, offset: u64, count: usize) -> Result<usize, Failure> {
        let mut signals = Signals::new();
        let mut found = 0;
        while found < count {
            let wanted = STEP_BYTES.min(count - found);
            let read = file.read_pieces_at(offset + found as u64, wanted, &mut |piece| {
                let at = found.min(self.len);
                let len = piece.len().min(self.len - at);
                // SAFETY: `to` has room for `len` bytes after `at`, and is not memory of the cache.
                unsafe { ptr::copy_nonoverlapping(piece.as_ptr(), self.to.add(at), len) };
                found += piece.len();
            })?;
            // A short read has reached the end.
            if read < wanted {
                break;
            }
            signals.handle()?;
        }
        Ok(found)
    }
}

/// A `bytes` object for contents of a file. Only its allocation needs the GIL, not filling it.
pub struct Contents {
    object: Py<PyAny>,
    memory: Memory,
    /// The contents, in place of the object, if the file changed after its size was read.
    other: Option<Vec<u8>>,
}

impl Contents {
    /// Allocates an object of this many bytes.
    pub fn new(py: Python<'_>, count: u64) -> PyResult<Contents> {
        let len = ffi::Py_ssize_t::try_from(count)?;
        // SAFETY: without contents, this creates an object of that length, or raises an error.
        let object = unsafe {
            let made = ffi::PyBytes_FromStringAndSize(ptr::null(), len);
            Bound::from_owned_ptr_or_err(py, made)?
        };
        // SAFETY: the object is a `bytes`.
        let to = unsafe { ffi::PyBytes_AsString(object.as_ptr()) };
        // SAFETY: the object has `len` bytes and is kept as long as the memory. No other code gets it before
        // `finish`. Empty objects may be shared, but no byte is written to those.
        let memory = unsafe { Memory::new(to.cast(), len as usize) };
        Ok(Contents { object: object.unbind(), memory, other: None })
    }

    /// Reads the whole file, in a detached thread.
    pub fn fill(&mut self, file: &File) -> Result<(), Failure> {
        // The unlimited count also detects that the file has become longer.
        if self.memory.read(file, 0, usize::MAX)? != self.memory.len {
            self.other = Some(file.contents()?);
        }
        Ok(())
    }

    /// Fills the remaining space from `offset` on, in a detached thread.
    pub fn fill_from(&mut self, file: &File, offset: u64) -> Result<(), Failure> {
        let found = self.memory.read(file, offset, self.memory.len)?;
        if found < self.memory.len {
            // SAFETY: this thread has written that many bytes above.
            let filled = unsafe { slice::from_raw_parts(self.memory.to, found) };
            self.other = Some(filled.to_vec());
        }
        Ok(())
    }

    /// Returns the filled object.
    pub fn finish(self, py: Python<'_>) -> Py<PyAny> {
        match self.other {
            Some(contents) => PyBytes::new(py, &contents).into_any().unbind(),
            None => self.object,
        }
    }
}
