//! Holding requests in the rings, so that another session can answer them.
//!
//! No command takes an entry back from the kernel. While the kernel owns an entry, it may put a request into
//! it at any moment, and the request is lost with the ring. But the server owns an entry that has a request
//! until it answers, and requests that find no free entry wait in the kernel, where nothing is lost. So a
//! session that is suspended keeps each arriving request until every entry has one. Then no command is
//! running, and the rings can be closed. A session that has the entries' memory at the same addresses can
//! answer the requests on rings of its own.
//!
//! The kernel fills an entry when a request arrives or when an answer is committed, not when the entry is
//! registered: requests that wait at that time wait for the next answer. A new session therefore
//! [makes requests](crate::start_file) once all entries are registered. A session that holds its requests
//! commits no answers, so it begins to hold them only then.
//!
//! On an idle file system no request arrives. So a process of the session's owner makes as many requests on
//! each core as the core has entries, and waits for the next session to answer them
//! ([`make_requests`](crate::make_requests)).
//!
//! ```text
//!   serving ──begin()──▶ holding: keeps what arrives ──all entries have a request──▶ over: Rings
//!      ▲                    │
//!      └── not in time ─────┘
//! ```

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::entry::Held;

/// How long threads may take to register their entries. The owner of a session that is not served waits no
/// longer.
const START_MAX: Duration = Duration::from_secs(5);

/// How long entries may take to be filled once no thread works on an earlier request. Callers whose requests
/// are held wait meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a thread may work on such a request: a slow disk takes seconds for an `FSYNC`.
const WORK_MAX: Duration = Duration::from_secs(30);

/// Called with the reason if the requests of a session cannot be held and the session continues.
pub(crate) type Failed = Box<dyn FnOnce(String) + Send>;

/// State shared by the threads that serve rings and the thread that suspends them.
pub(crate) struct Hold {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    attempt: Arc<Attempt>,
    /// Set during an attempt.
    failed: Option<Failed>,
    /// Threads that have not registered their entries yet.
    starting: usize,
    /// Threads that have noticed the attempt: those that work on a request have not.
    asked: usize,
    /// Threads whose entries all have a request.
    full: usize,
    /// Requests that threads have left to the next session.
    held: Vec<Held>,
    /// Serving ends, or has not begun with all threads.
    ended: bool,
}

/// One attempt to hold requests. Its descriptors become readable at its beginning and at its end.
pub(crate) struct Attempt {
    has_begun: AtomicBool,
    begun: OwnedFd,
    is_over: AtomicBool,
    decided: OwnedFd,
}

impl Attempt {
    fn new() -> io::Result<Arc<Attempt>> {
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Arc::new(Attempt {
            has_begun: AtomicBool::new(false),
            begun: event()?,
            is_over: AtomicBool::new(false),
            decided: event()?,
        }))
    }

    /// Whether to keep arriving requests.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Acquire)
    }

    /// Readable once it has begun.
    pub(super) fn begun(&self) -> BorrowedFd<'_> {
        self.begun.as_fd()
    }

    /// Readable once it is known whether the session ends or continues.
    pub(super) fn decided(&self) -> BorrowedFd<'_> {
        self.decided.as_fd()
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }
}

impl Hold {
    /// The state for a session of this many threads.
    pub(crate) fn new(threads: usize) -> io::Result<Hold> {
        let state = State {
            attempt: Attempt::new()?,
            failed: None,
            starting: threads,
            asked: 0,
            full: 0,
            held: Vec::new(),
            ended: false,
        };
        Ok(Hold { state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Waits until all entries are registered, for a limited time.
    pub(crate) fn wait_for_start(&self) {
        drop(self.wait(self.lock(), START_MAX, |state| state.starting > 0));
    }

    /// Makes threads keep requests from now on. If the session continues, calls `failed` with the reason.
    ///
    /// Waits until all entries are registered.
    pub(crate) fn begin(&self, failed: Failed) {
        self.wait_for_start();
        let mut state = self.lock();
        if state.failed.is_some() || state.ended {
            return;
        }
        state.failed = Some(failed);
        state.attempt.has_begun.store(true, Ordering::Release);
        signal(&state.attempt.begun);
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until `threads` threads hold a request in each of their entries, or until serving ends. If that
    /// takes too long, the threads continue to serve. Returns whether they have left.
    pub(crate) fn coordinate(&self, threads: usize) -> bool {
        let mut state = self.lock();
        while !state.ended {
            if state.failed.is_none() {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state = self.wait(state, WORK_MAX, |state| state.asked < threads);
            state = self.wait(state, PATIENCE, |state| state.full < threads);
            if state.full >= threads {
                state.attempt.is_over.store(true, Ordering::Release);
                signal(&state.attempt.decided);
                while state.held.len() < threads && !state.ended {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                return state.held.len() == threads;
            }
            if let Some(failed) = state.failed.take() {
                failed(String::from("requests in flight could not be held"));
            }
            (state.asked, state.full) = (0, 0);
            match Attempt::new() {
                Ok(next) => signal(&std::mem::replace(&mut state.attempt, next).decided),
                Err(error) => tracing::error!(%error, "the mount cannot go on"),
            }
        }
        false
    }

    /// Waits while the condition holds and serving continues, for a limited time.
    fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        limit: Duration,
        is_under_way: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        let waits = |state: &mut State| is_under_way(state) && !state.ended;
        let waited = self.changed.wait_timeout_while(state, limit, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Records that a thread has registered its entries.
    pub(super) fn started(&self) {
        self.lock().starting -= 1;
        self.changed.notify_all();
    }

    /// The current or the next attempt.
    pub(super) fn attempt(&self) -> Arc<Attempt> {
        Arc::clone(&self.lock().attempt)
    }

    /// Records that a thread has noticed the attempt.
    pub(super) fn asked(&self, attempt: &Arc<Attempt>) {
        self.count(attempt, |state| &mut state.asked);
    }

    /// Records that all entries of a thread have a request.
    pub(super) fn full(&self, attempt: &Arc<Attempt>) {
        self.count(attempt, |state| &mut state.full);
    }

    /// This may be too late for the attempt, and does not count for the next.
    fn count(&self, attempt: &Arc<Attempt>, counter: impl FnOnce(&mut State) -> &mut usize) {
        let mut state = self.lock();
        if Arc::ptr_eq(attempt, &state.attempt) {
            *counter(&mut state) += 1;
            self.changed.notify_all();
        }
    }

    /// Adds the entries that a thread leaves to the next session.
    pub(super) fn leave(&self, held: Held) {
        self.lock().held.push(held);
        self.changed.notify_all();
    }

    /// Records that a thread has ended. If it has left no entries, the others will not either.
    pub(crate) fn thread_ended(&self) {
        let is_over = self.lock().attempt.is_over();
        if !is_over {
            self.end();
        }
    }

    /// Records that no thread will hold requests any more.
    pub(crate) fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }

    /// The entries that all threads have left.
    pub(crate) fn take(&self) -> Vec<Held> {
        std::mem::take(&mut self.lock().held)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes a descriptor permanently readable, since no thread reads it.
fn signal(event: &OwnedFd) {
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}
