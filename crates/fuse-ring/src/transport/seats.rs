//! Who may read `/dev/fuse`: as many threads as there are seats.
//!
//! The kernel gives a request to the thread that has waited longest. Were there many, the requests of
//! one caller would go round all of them and all cores, and each would pay for waking another thread.
//! So few threads read, and the others are spares: a thread whose request is about to wait leaves its
//! seat to one of them, and takes the next free one when it has answered.
//!
//! ```text
//!   spare ──▶ seated: reads, serves, answers, reads ... ──▶ waits, then answers ──▶ spare
//!                                                 leave()
//! ```

use std::cell::RefCell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
struct State {
    free: usize,
    ended: bool,
}

/// The seats of a session.
#[derive(Debug)]
pub(crate) struct Seats {
    state: Mutex<State>,
    /// A seat is free, or nobody needs one any more.
    changed: Condvar,
}

/// A seat, which is free again when this is dropped.
struct Seat(Arc<Seats>);

thread_local! {
    /// The seat of this thread.
    static SEAT: RefCell<Option<Seat>> = const { RefCell::new(None) };
}

impl Seats {
    /// So many seats, all of them free.
    pub(crate) fn new(count: usize) -> Arc<Seats> {
        Arc::new(Seats {
            state: Mutex::new(State { free: count, ended: false }),
            changed: Condvar::new(),
        })
    }

    /// Waits for a seat for this thread, if it has none; `false` if nothing is left to serve.
    pub(crate) fn take(self: &Arc<Seats>) -> bool {
        if SEAT.with_borrow(Option::is_some) {
            return true;
        }
        let mut state = self.lock();
        while state.free == 0 && !state.ended {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.ended {
            return false;
        }
        state.free -= 1;
        drop(state);
        SEAT.set(Some(Seat(Arc::clone(self))));
        true
    }

    /// Nothing more is to be served.
    pub(crate) fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.lock().free += 1;
        self.0.changed.notify_one();
    }
}

/// Leaves this thread's seat to another, if it has one.
pub(crate) fn leave() {
    SEAT.take();
}

#[cfg(test)]
mod tests;
