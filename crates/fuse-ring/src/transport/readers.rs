//! Makes the threads that read `/dev/fuse` leave the kernel although no request comes.
//!
//! A thread that waits in `read(2)` there is woken by a request, by the end of the connection, or by a
//! signal. So each gets a signal whose handler does nothing: the read fails with `EINTR`, and the thread sees
//! that serving has ended. A signal is lost on a thread that is just about to read, so it is sent again until
//! all have left. No request is lost: the kernel checks for signals only if it has no request for the thread.

use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::pthread::{Pthread, pthread_kill, pthread_self};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// Ignored by default, so that one that comes late harms nothing, also after an `exec`.
const SIGNAL: Signal = Signal::SIGURG;

/// How long the signal is given at first, and at last: a thread may serve a request for long.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(64);

/// The threads that read now.
#[derive(Debug)]
pub(crate) struct Readers {
    threads: Mutex<Vec<Pthread>>,
    left: Condvar,
}

/// This thread is one of them until this is dropped.
pub(crate) struct Reader<'r>(&'r Readers);

impl Readers {
    /// None yet. From here on the process handles the signal.
    pub(crate) fn new() -> io::Result<Readers> {
        // Without `SA_RESTART`, which would have the kernel take up the read again.
        let action =
            SigAction::new(SigHandler::Handler(do_nothing), SaFlags::empty(), SigSet::empty());
        // SAFETY: the handler touches nothing, and the action that was there before is not used.
        unsafe { sigaction(SIGNAL, &action) }?;
        Ok(Readers { threads: Mutex::new(Vec::new()), left: Condvar::new() })
    }

    /// This thread reads from here on.
    pub(crate) fn enter(&self) -> Reader<'_> {
        self.lock().push(pthread_self());
        Reader(self)
    }

    /// Returns when no thread reads. Each has to see for itself, after a read that brought it nothing,
    /// that it should leave.
    pub(crate) fn recall(&self) {
        let mut pause = PAUSE_MIN;
        let mut threads = self.lock();
        while !threads.is_empty() {
            // With the lock held none of them ends.
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
