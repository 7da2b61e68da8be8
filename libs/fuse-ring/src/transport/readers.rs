//! Makes the threads that read `/dev/fuse` return from the kernel without a request.
//!
//! A thread that waits in `read(2)` there is woken by a request, by the end of the connection, or by a
//! signal. So each gets a signal whose handler does nothing: the read fails with `EINTR`, and the thread
//! notices that serving has ended. A signal has no effect on a thread that is just about to read, so it is
//! repeated until all threads have left. No request is lost: the kernel checks for signals only if it has no
//! request for the thread.

use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::pthread::{Pthread, pthread_kill, pthread_self};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// Ignored by default, so that a late one does no harm, even after an `exec`.
const SIGNAL: Signal = Signal::SIGURG;

/// The first and the longest pause between signals: a thread may serve a request for long.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(64);

/// The threads that are currently reading.
#[derive(Debug)]
pub(crate) struct Readers {
    threads: Mutex<Vec<Pthread>>,
    left: Condvar,
}

/// Registers this thread as a reader until it is dropped.
pub(crate) struct Reader<'r>(&'r Readers);

impl Readers {
    /// Without threads. From now on the process handles the signal.
    pub(crate) fn new() -> io::Result<Readers> {
        // Without `SA_RESTART`, with which the kernel would restart the read.
        let action =
            SigAction::new(SigHandler::Handler(do_nothing), SaFlags::empty(), SigSet::empty());
        // SAFETY: the handler accesses nothing, and the previous action is not used.
        unsafe { sigaction(SIGNAL, &action) }?;
        Ok(Readers { threads: Mutex::new(Vec::new()), left: Condvar::new() })
    }

    /// Registers this thread as a reader.
    pub(crate) fn enter(&self) -> Reader<'_> {
        self.lock().push(pthread_self());
        Reader(self)
    }

    /// Returns when no thread is reading. After a read without a request, each thread must itself check
    /// whether to end.
    pub(crate) fn recall(&self) {
        let mut pause = PAUSE_MIN;
        let mut threads = self.lock();
        while !threads.is_empty() {
            // While the lock is held, no thread can end.
            for thread in &*threads {
                let _ = pthread_kill(*thread, SIGNAL);
            }
            let waited = self.left.wait_timeout_while(threads, pause, |left| !left.is_empty());
            threads = waited.unwrap_or_else(PoisonError::into_inner).0;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Pthread>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.0.lock().retain(|thread| *thread != pthread_self());
        self.0.left.notify_all();
    }
}

extern "C" fn do_nothing(_: nix::libc::c_int) {}
