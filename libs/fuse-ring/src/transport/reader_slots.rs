//! Slots for the threads that may read `/dev/fuse`.
//!
//! The kernel gives a request to the thread that has waited longest. With many readers, the requests of one
//! caller would be distributed over all threads and cores, and each would have to wake another thread. So few
//! threads read, and the others are spares: a thread whose request is about to wait passes its slot to a
//! spare one, and takes the next free slot after its answer.
//!
//! ```text
//!   spare ──▶ reading: reads, serves, answers, reads ... ──▶ waits, then answers ──▶ spare
//!                                                 leave()
//! ```

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The slots of a session.
#[derive(Debug)]
pub(crate) struct ReaderSlots {
    /// The number of free slots.
    free: Mutex<usize>,
    /// Whether serving has ended. Read without the lock, since each request checks it.
    ended: AtomicBool,
    /// Notified when a slot becomes free, and at the end.
    changed: Condvar,
    /// Notified when serving has ended.
    over: Condvar,
}

/// A slot, which is freed when this is dropped.
struct Slot(Arc<ReaderSlots>);

thread_local! {
    /// The slot of this thread.
    static SLOT: RefCell<Option<Slot>> = const { RefCell::new(None) };
}

impl ReaderSlots {
    /// `count` slots, all free.
    pub(crate) fn new(count: usize) -> Arc<ReaderSlots> {
        Arc::new(ReaderSlots {
            free: Mutex::new(count),
            ended: AtomicBool::new(false),
            changed: Condvar::new(),
            over: Condvar::new(),
        })
    }

    /// Waits for a slot for this thread, unless it has one; `false` if serving has ended.
    pub(crate) fn take(self: &Arc<ReaderSlots>) -> bool {
        if SLOT.with_borrow(Option::is_some) {
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
        SLOT.set(Some(Slot(Arc::clone(self))));
        true
    }

    /// Records that serving has ended.
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

impl Drop for Slot {
    fn drop(&mut self) {
        *self.0.lock() += 1;
        self.0.changed.notify_one();
    }
}

/// Passes this thread's slot to another thread, if it has one.
pub(crate) fn leave() {
    SLOT.take();
}

#[cfg(test)]
mod tests;
