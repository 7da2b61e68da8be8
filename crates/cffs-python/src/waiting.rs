//! Long calls, which Ctrl-C ends: signals are handled while they are under way.
//!
//! Python handles a signal in its main thread, between two steps of the interpreter, so a call that does not
//! return keeps every handler from running. This module has two remedies: a [`Call`] works in a thread of its
//! own, while the caller waits for it and handles signals; [`Signals`] handles them between the steps of a
//! call that works in the caller's thread.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SendError};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// How often signals are handled: no slower than people notice.
const INTERVAL: Duration = Duration::from_millis(50);

/// Work in a thread of its own. The work goes on if this is dropped.
pub struct Call<T> {
    ended: Receiver<T>,
}

impl<T: Send + 'static> Call<T> {
    /// Starts the work. `abandoned` gets its result if no caller waits for that any more.
    pub fn start(
        work: impl FnOnce() -> T + Send + 'static,
        abandoned: impl FnOnce(T) + Send + 'static,
    ) -> PyResult<Call<T>> {
        let (sender, ended) = mpsc::sync_channel(0);
        let work = move || {
            if let Err(SendError(result)) = sender.send(work()) {
                abandoned(result);
            }
        };
        thread::Builder::new().name("pycffs".to_owned()).spawn(work)?;
        Ok(Call { ended })
    }

    /// Waits for a moment and handles signals; `None` if the work goes on.
    ///
    /// # Errors
    ///
    /// The exception of a signal handler, above all `KeyboardInterrupt`.
    pub fn wait(&self, py: Python<'_>) -> PyResult<Option<T>> {
        // The receiver may be used by one thread at a time, and is by this one alone.
        struct Alone<'a, T>(&'a Receiver<T>);
        // SAFETY: the reference goes to no other thread: `detach` runs its closure in the thread of the
        // caller.
        unsafe impl<T: Send> Send for Alone<'_, T> {}
        let ended = Alone(&self.ended);
        let ended = py.detach(move || {
            let alone = ended;
            alone.0.recv_timeout(INTERVAL)
        });
        match ended {
            Ok(result) => Ok(Some(result)),
            Err(RecvTimeoutError::Timeout) => py.check_signals().map(|()| None),
            Err(RecvTimeoutError::Disconnected) => {
                Err(PyRuntimeError::new_err("the call panicked"))
            }
        }
    }
}

/// Does `work` in a thread of its own, and returns what it returns. A signal whose handler raises ends the
/// wait, not the work.
pub fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
    abandoned: impl FnOnce(T) + Send + 'static,
) -> PyResult<T> {
    let call = Call::start(work, abandoned)?;
    loop {
        if let Some(result) = call.wait(py)? {
            return Ok(result);
        }
    }
}

/// When signals were handled last in a call that works in the caller's thread, without the interpreter's
/// lock.
pub struct Signals(Instant);

impl Signals {
    /// For a call that begins now.
    pub fn new() -> Signals {
        Signals(Instant::now())
    }

    /// Handles signals if that was not done lately.
    ///
    /// # Errors
    ///
    /// The exception of a handler.
    pub fn handle(&mut self) -> PyResult<()> {
        if self.0.elapsed() < INTERVAL {
            return Ok(());
        }
        self.0 = Instant::now();
        Python::attach(|py| py.check_signals())
    }
}
