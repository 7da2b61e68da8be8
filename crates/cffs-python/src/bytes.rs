//! Memory of Python that is filled without the interpreter's lock.

use std::{ptr, slice};

use cffs::files::File;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::failing::Failure;
use crate::waiting::Signals;

/// This much of a file is read at once: between that others can change it, and signals are handled.
const STEP_BYTES: usize = (1 << 20) + 1;

/// Memory to read a file into. Contents are copied once, from where the cache has them.
pub struct Memory {
    to: *mut u8,
    len: usize,
}

// SAFETY: its creator promised that the memory does not move, in whatever thread it is used.
unsafe impl Send for Memory {}

impl Memory {
    /// # Safety
    ///
    /// `to` can be written for `len` bytes as long as this exists.
    pub unsafe fn new(to: *mut u8, len: usize) -> Memory {
        Memory { to, len }
    }

    /// Reads up to `count` bytes of the file from `offset` on, from a thread that is detached. Returns how
    /// many the file has there; what the memory has no room for is dropped.
    pub fn read(&mut self, file: &File, offset: u64, count: usize) -> Result<usize, Failure> {
        let mut signals = Signals::new();
        let mut found = 0;
        while found < count {
            let wanted = STEP_BYTES.min(count - found);
            let read = file.read_pieces_at(offset + found as u64, wanted, &mut |piece| {
                let at = found.min(self.len);
                let len = piece.len().min(self.len - at);
                // SAFETY: `to` has room for `len` bytes behind `at`, and is no memory of the cache.
                unsafe { ptr::copy_nonoverlapping(piece.as_ptr(), self.to.add(at), len) };
                found += piece.len();
            })?;
            // A read that is short has met the end.
            if read < wanted {
                break;
            }
            signals.handle()?;
        }
        Ok(found)
    }
}

/// A `bytes` for contents of a file. The interpreter's lock is held to allocate it, not to fill it.
pub struct Contents {
    object: Py<PyAny>,
    memory: Memory,
    /// The contents instead, if the file changed after its size was read.
    other: Option<Vec<u8>>,
}

impl Contents {
    /// For this many bytes.
    pub fn new(py: Python<'_>, count: u64) -> PyResult<Contents> {
        let len = ffi::Py_ssize_t::try_from(count)?;
        // SAFETY: without contents given, this makes an object of that length, or raises an error.
        let object = unsafe {
            let made = ffi::PyBytes_FromStringAndSize(ptr::null(), len);
            Bound::from_owned_ptr_or_err(py, made)?
        };
        // SAFETY: it is a `bytes`.
        let to = unsafe { ffi::PyBytes_AsString(object.as_ptr()) };
        // SAFETY: the object has `len` bytes and is kept as long as the memory. No other part of the program
        // has it before `finish`. Empty ones may be shared, but no byte is written to those.
        let memory = unsafe { Memory::new(to.cast(), len as usize) };
        Ok(Contents { object: object.unbind(), memory, other: None })
    }

    /// Reads the whole file, from a thread that is detached.
    pub fn fill(&mut self, file: &File) -> Result<(), Failure> {
        // All of it is asked for, so that the file may not have become longer unnoticed.
        if self.memory.read(file, 0, usize::MAX)? != self.memory.len {
            self.other = Some(file.contents()?);
        }
        Ok(())
    }

    /// Fills the free room from `offset` on, from a detached thread.
    pub fn fill_from(&mut self, file: &File, offset: u64) -> Result<(), Failure> {
        let found = self.memory.read(file, offset, self.memory.len)?;
        if found < self.memory.len {
            // SAFETY: that much was written above, by this thread.
            let filled = unsafe { slice::from_raw_parts(self.memory.to, found) };
            self.other = Some(filled.to_vec());
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
