//! Long calls that Ctrl-C can end: signals are handled while they run.
//!
//! Python handles a signal in its main thread, between two steps of the interpreter, so during a native call
//! no handler runs. This module has two remedies: a [`Call`] works in a new thread, while the caller waits
//! for it and handles signals; [`Signals`] handles them between the steps of a call that works in the
//! caller's thread.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SendError};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// The interval at which signals are handled: too short for users to notice.
const INTERVAL: Duration = Duration::from_millis(50);

/// A call that runs in a new thread, which continues if this is dropped.
pub struct Call<T> {
    ended: Receiver<T>,
}

impl<T: Send + 'static> Call<T> {
    /// Starts the work. If no caller waits for the result any more, `abandoned` gets it.
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

    /// Waits for a short time and handles signals; `None` while the work continues.
    ///
    /// # Errors
    ///
    /// The exception of a signal handler, above all `KeyboardInterrupt`.
    pub fn wait(&self, py: Python<'_>) -> PyResult<Option<T>> {
        // A receiver may be used by only one thread at a time; only this thread uses it.
        struct Alone<'a, T>(&'a Receiver<T>);
        // SAFETY: the reference is not passed to another thread: `detach` runs its closure in the caller's
        // thread.
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

/// Does `work` in a new thread, and returns its result. A signal whose handler raises ends the wait, not the
/// work.
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

/// The time when signals were last handled in a call that works in the caller's thread without the GIL.
pub struct Signals(Instant);

impl Signals {
    /// The state for a call that begins now.
    pub fn new() -> Signals {
        Signals(Instant::now())
    }

    /// Handles signals unless that was done recently.
    ///
    /// # Errors
    ///
    /// The exception of a signal handler.
    pub fn handle(&mut self) -> PyResult<()> {
        if self.0.elapsed() < INTERVAL {
            return Ok(());
        }
        self.0 = Instant::now();
        Python::attach(|py| py.check_signals())
    }
}
