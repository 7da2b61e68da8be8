//! Slowing down threads that make changes faster than the device writes them.
//!
//! Changes collect in memory. Once their contents suffice for one long write, the background is woken to
//! write them ahead of their epoch (`early`). When changes take half of their memory limit, or nearly all of
//! it if much is read meanwhile (decision 002), the background is woken to write an epoch, and changes
//! continue; when they reach the limit, a thread that makes more waits until an epoch has taken over the
//! earlier ones. So a stream of changes keeps the device busy and does not stop during writes. Without a
//! background, the thread that reaches the limit writes the epoch.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::inode::InodeCache;
use crate::lock::{Condvar, Mutex, Rank};

/// Decides when the background is called and when a thread that makes changes waits.
pub(crate) struct Throttle {
    inodes: Arc<InodeCache>,
    /// New contents that suffice for one long write.
    early_bytes: u64,
    /// Whether the background is called. Outside of the lock, since every change reads it.
    is_called: AtomicBool,
    /// The number of threads that wait to be called.
    pub(super) backgrounds: AtomicUsize,
    lock: Mutex<()>,
    called: Condvar,
    taken: Condvar,
    /// The bytes of changed pages at which the background is called to write them ahead of their epoch.
    early_from: AtomicU64,
    /// Bytes read from the device when changes were last taken over.
    read_before: AtomicU64,
}

impl Throttle {
    /// The state of a volume without changes in memory.
    pub(super) fn new(inodes: Arc<InodeCache>, early_bytes: u64) -> Throttle {
        Throttle {
            inodes,
            early_bytes,
            is_called: AtomicBool::new(false),
            backgrounds: AtomicUsize::new(0),
            lock: Mutex::new(Rank::Leaf, ()),
            called: Condvar::default(),
            taken: Condvar::default(),
            early_from: AtomicU64::new(early_bytes),
            read_before: AtomicU64::new(0),
        }
    }

    fn has_background(&self) -> bool {
        self.backgrounds.load(Ordering::Acquire) > 0
    }

    /// Waits to be called, at most for `timeout`.
    pub(super) fn wait(&self, timeout: Duration) {
        let mut guard = self.lock.lock();
        if !self.is_called.swap(false, Ordering::AcqRel) {
            self.called.wait_for(&mut guard, timeout);
            self.is_called.store(false, Ordering::Release);
        }
    }

    /// Wakes the background, or makes it run again right after its present run.
    pub(super) fn call(&self) {
        if !self.is_called.load(Ordering::Acquire) && !self.is_called.swap(true, Ordering::AcqRel) {
            drop(self.lock.lock());
            self.called.notify_all();
        }
    }

    /// Wakes the threads that wait for memory: an epoch has taken changes over, or none will any more.
    pub(super) fn let_go(&self) {
        drop(self.lock.lock());
        self.taken.notify_all();
    }

    /// Whether changes take so much memory that an epoch should be written. If callers read much meanwhile,
    /// each epoch makes the device seek back and forth, so epochs should be few.
    pub(super) fn is_filling(&self) -> bool {
        let memory = &self.inodes.memory;
        memory.is_filling() && (memory.is_nearly_full() || !self.is_read_meanwhile())
    }

    /// Whether contents should be written ahead of their epoch: there are enough, and little is read
    /// meanwhile.
    pub(super) fn is_early_due(&self) -> bool {
        let early_from = self.early_from.load(Ordering::Relaxed);
        self.inodes.dirty_bytes() >= early_from && !self.is_read_meanwhile()
    }

    /// Whether much was read from the device while changes waited.
    fn is_read_meanwhile(&self) -> bool {
        let cache = &self.inodes.cache;
        let read_before = self.read_before.load(Ordering::Relaxed);
        let read = cache.read_bytes().saturating_sub(read_before);
        read > self.inodes.dirty_bytes() / cache.tuning().writing.reads_part
    }

    /// An epoch, or a write ahead of it, has taken changes over.
    pub(super) fn taken_over(&self) {
        let from = self.inodes.dirty_bytes().saturating_add(self.early_bytes);
        self.early_from.store(from, Ordering::Relaxed);
        self.forget_reads();
        self.let_go();
    }

    /// Forgets earlier reads: no changes were waiting then.
    pub(super) fn forget_reads(&self) {
        let read = self.inodes.cache.read_bytes();
        self.read_before.store(read, Ordering::Relaxed);
    }

    /// Calls the background, if there is one, once changes suffice for a write.
    pub(super) fn call_if_due(&self) {
        if self.has_background() && (self.is_filling() || self.is_early_due()) {
            self.call();
        }
    }

    /// Waits for the background until changes are below their limit, or the volume is not `writable` any
    /// more. Returns false if the caller has to write an epoch itself: there is no background, or it takes
    /// too long.
    pub(super) fn wait_for_room(&self, is_writable: impl Fn() -> bool) -> bool {
        let until = Instant::now() + self.inodes.cache.tuning().writing.background_wait_max;
        let mut guard = self.lock.lock();
        while self.inodes.memory.is_full() && is_writable() {
            if !self.has_background() || !self.taken.wait_until(&mut guard, until) {
                return false;
            }
        }
        true
    }
}
