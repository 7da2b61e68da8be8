//! Walks.

use std::sync::{Arc, Mutex, PoisonError};

use cffs::error::Error;
use cffs::files;
use cffs::format::inode::FileType;
use pyo3::prelude::*;

use crate::failing::{Failure, closed};
use crate::path::VolumePath;
use crate::stat::Stat;
use crate::store::Opened;
use crate::waiting::Signals;

/// How many entries a call returns: few enough that a caller who stops early has not waited for many.
const ENTRIES: usize = 512;

/// A walk below a directory.
#[pyclass(frozen, module = "pycffs._native")]
pub struct Walk {
    opened: Arc<Opened>,
    state: Mutex<State>,
}

struct State {
    walk: files::Walk,
    /// The entries that the next call returns, as far as a call that a signal has ended has found them.
    found: Vec<(VolumePath, Stat)>,
    /// The directory that could not be read, and why.
    failed: Option<(VolumePath, Error)>,
}

#[pymethods]
impl Walk {
    /// Return the next entries, each with its path and its attributes; none at the end.
    fn next(&self, py: Python<'_>) -> PyResult<Vec<(VolumePath, Stat)>> {
        if self.opened.is_closed() {
            return Err(closed());
        }
        py.detach(|| {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.next(&self.opened)
        })
    }
}

impl Walk {
    /// A walk that began at `top`, which it does not return. It reads the directory, without the GIL.
    pub fn new(opened: &Arc<Opened>, mut walk: files::Walk, top: VolumePath) -> Walk {
        let failed = match walk.next() {
            Some(Ok(entry)) if entry.attr.file_type != FileType::Directory => {
                Some(Error::NotDirectory)
            }
            _ => None,
        };
        let failed = failed.map(|error| (top, error));
        let state = State { walk, found: Vec::new(), failed };
        Walk { opened: Arc::clone(opened), state: Mutex::new(state) }
    }
}

impl State {
    fn next(&mut self, opened: &Opened) -> PyResult<Vec<(VolumePath, Stat)>> {
        let mut signals = Signals::new();
        while self.found.len() < ENTRIES && self.failed.is_none() {
            signals.handle()?;
            match self.walk.next() {
                Some(Ok(entry)) => self.found.push((entry.path.into(), entry.attr.into())),
                // The entries before come first.
                Some(Err(error)) => {
                    self.failed = Some((self.walk.unread().to_vec().into(), error));
                }
                None => break,
            }
        }
        match self.failed.take_if(|_| self.found.is_empty()) {
            Some((dir, error)) => Err(Failure::from(error).of(opened, &dir)),
            None => Ok(std::mem::take(&mut self.found)),
        }
    }
}
