//! Open files.

use std::sync::Arc;

use cffs::files;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

use crate::bytes::{Contents, Memory};
use crate::failing::Failure;
use crate::path::VolumePath;
use crate::stat::Stat;
use crate::store::Opened;
use crate::waiting::{Signals, interruptible};

/// The number of bytes of a write after which signals are handled.
const WRITE_BYTES: usize = 8 << 20;

/// An open file, for reading and writing at any offset.
#[pyclass(frozen, module = "pycffs._native")]
pub struct File {
    opened: Arc<Opened>,
    file: Arc<files::File>,
    path: VolumePath,
}

#[pymethods]
impl File {
    /// Read up to `count` bytes from `offset` on; without a count, all bytes up to the end.
    #[pyo3(signature = (count, offset))]
    fn pread(&self, py: Python<'_>, count: Option<usize>, offset: u64) -> PyResult<Py<PyAny>> {
        let size = self.call(py, || Ok(self.file.node().attr()?.size))?;
        let most = size.saturating_sub(offset);
        let count = count.map_or(most, |count| most.min(count as u64));
        let mut contents = Contents::new(py, count)?;
        let contents =
            self.call(py, move || contents.fill_from(&self.file, offset).map(|()| contents))?;
        Ok(contents.finish(py))
    }

    /// Fill a buffer from `offset` on; return the number of bytes read.
    fn preadinto(&self, py: Python<'_>, buffer: PyBuffer<u8>, offset: u64) -> PyResult<usize> {
        if buffer.readonly() || !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the buffer must be writable and contiguous"));
        }
        // SAFETY: the memory stays valid until the buffer is released, which happens later. If another thread
        // accesses it meanwhile, it gets mixed data, as with `readinto` of a file.
        let mut memory = unsafe { Memory::new(buffer.buf_ptr().cast(), buffer.len_bytes()) };
        let count = buffer.len_bytes();
        self.call(py, move || memory.read(&self.file, offset, count))
    }

    /// Write all of `data` at `offset`.
    fn pwrite(&self, py: Python<'_>, data: &[u8], offset: u64) -> PyResult<()> {
        self.call(py, || write_all_at(&self.file, offset, data))
    }

    /// Write all of `data` at the end of the file, and return the new end.
    fn append(&self, py: Python<'_>, data: &[u8]) -> PyResult<u64> {
        self.call(py, || Ok(self.file.append_all(data)?))
    }

    /// Truncate the file, or extend it by a hole.
    fn truncate(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        self.call(py, || Ok(self.file.set_len(size)?))
    }

    /// Return the attributes.
    fn stat(&self, py: Python<'_>) -> PyResult<Stat> {
        self.call(py, || Ok(self.file.node().attr().map(Stat::from)?))
    }

    /// Make contents and attributes durable.
    fn fsync(&self, py: Python<'_>) -> PyResult<()> {
        let file = Arc::clone(&self.file);
        let synced = interruptible(py, move || file.sync(), drop)?;
        synced.map_err(|error| Failure::from(error).of(&self.opened, &self.path))
    }
}

impl File {
    pub fn new(opened: &Arc<Opened>, file: files::File, path: VolumePath) -> File {
        File { opened: Arc::clone(opened), file: Arc::new(file), path }
    }

    fn call<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce() -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        py.detach(work).map_err(|failure| failure.of(&self.opened, &self.path))
    }
}

/// Writes all of `data`, in a detached thread.
pub fn write_all_at(file: &files::File, offset: u64, data: &[u8]) -> Result<(), Failure> {
    let mut signals = Signals::new();
    for (number, piece) in (0..).zip(data.chunks(WRITE_BYTES)) {
        signals.handle()?;
        file.write_all_at(offset + number * WRITE_BYTES as u64, piece)?;
    }
    Ok(())
}
