//! The threads that may read `/dev/fuse`: as many as there are seats.
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
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The seats of a session.
#[derive(Debug)]
pub(crate) struct Seats {
    /// How many are free.
    free: Mutex<usize>,
    /// Serving has ended. Read without the lock, since a thread looks at it for each request.
    ended: AtomicBool,
    /// A seat is free, or no thread needs one any more.
    changed: Condvar,
    /// Serving has ended.
    over: Condvar,
}

/// A seat, which is free again when this is dropped.
struct Seat(Arc<Seats>);

thread_local! {
    /// The seat of this thread.
    static SEAT: RefCell<Option<Seat>> = const { RefCell::new(None) };
}

impl Seats {
    /// `count` seats, all free.
    pub(crate) fn new(count: usize) -> Arc<Seats> {
        Arc::new(Seats {
            free: Mutex::new(count),
            ended: AtomicBool::new(false),
            changed: Condvar::new(),
            over: Condvar::new(),
        })
    }

    /// Waits for a seat for this thread, if it has none; `false` if nothing is left to serve.
    pub(crate) fn take(self: &Arc<Seats>) -> bool {
        if SEAT.with_borrow(Option::is_some) {
            return !self.ended.load(Ordering::Relaxed);
        }
        let mut free = self.lock();
        while *free == 0 && !self.ended.load(Ordering::Relaxed) {
            free = self.changed.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        if self.ended.load(Ordering::Relaxed) {
            return false;
        }
        *free -= 1;
        drop(free);
        SEAT.set(Some(Seat(Arc::clone(self))));
        true
    }

    /// Serving has ended.
    pub(crate) fn end(&self) {
        let free = self.lock();
        self.ended.store(true, Ordering::Relaxed);
        drop(free);
        self.changed.notify_all();
        self.over.notify_all();
    }

    /// Waits until serving has ended.
    pub(crate) fn wait_for_end(&self) {
        let mut free = self.lock();
        while !self.ended.load(Ordering::Relaxed) {
            free = self.over.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        *self.0.lock() += 1;
        self.0.changed.notify_one();
    }
}

/// Leaves this thread's seat to another, if it has one.
pub(crate) fn leave() {
    SEAT.take();
}

#[cfg(test)]
mod tests;
