//! Slowing down threads that make changes faster than the device writes them.
//!
//! Changes collect in memory. Once their contents suffice for one long write, the background is woken to
//! write them ahead of their epoch (`early`). When changes take half of their memory limit, or nearly all of
//! it if much is read meanwhile (decision 002), the background is woken to write an epoch, and changes
//! continue; when they reach the limit, a thread that makes more waits until an epoch has taken over the
//! earlier ones. So a stream of changes keeps the device busy and does not stop during writes. Without a
//! background, the thread that reaches the limit writes the epoch.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::EpochWriter;
use crate::error::Result;
use crate::lock::{self, Condvar, Mutex, Rank};

pub(crate) struct Throttle {
    /// Whether the background is called. Outside of the lock, since every change reads it.
    is_called: AtomicBool,
    /// The number of threads that wait to be called.
    backgrounds: AtomicUsize,
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
    pub(crate) fn new(early_bytes: u64) -> Throttle {
        Throttle {
            is_called: AtomicBool::new(false),
            backgrounds: AtomicUsize::new(0),
            lock: Mutex::new(Rank::Leaf, ()),
            called: Condvar::default(),
            taken: Condvar::default(),
            early_from: AtomicU64::new(early_bytes),
            read_before: AtomicU64::new(0),
        }
    }

    /// Waits to be called, at most for `timeout`.
    fn wait(&self, timeout: Duration) {
        let mut guard = self.lock.lock();
        if !self.is_called.swap(false, Ordering::AcqRel) {
            self.called.wait_for(&mut guard, timeout);
            self.is_called.store(false, Ordering::Release);
        }
    }

    /// Wakes the background, or makes it run again right after its present run.
    pub(crate) fn call(&self) {
        if !self.is_called.load(Ordering::Acquire) && !self.is_called.swap(true, Ordering::AcqRel) {
            drop(self.lock.lock());
            self.called.notify_all();
        }
    }

    /// Wakes the threads that wait for memory: an epoch has taken changes over, or none will any more.
    pub(crate) fn let_go(&self) {
        drop(self.lock.lock());
        self.taken.notify_all();
    }
}

/// Ends a background when its work ends, also by a panic.
struct End<'a> {
    throttle: &'a Throttle,
    ended: &'a AtomicBool,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.throttle.backgrounds.fetch_sub(1, Ordering::AcqRel);
        self.ended.store(true, Ordering::Release);
        self.throttle.call();
        self.throttle.let_go();
    }
}

impl EpochWriter {
    /// Does `work` while another thread calls [`background`](EpochWriter::background) every `interval`, or
    /// as often as epochs are due if that is more often, and whenever changes take much memory. `observe`
    /// learns how each call went.
    pub fn with_background<T>(
        &self,
        interval: Duration,
        mut observe: impl FnMut(Result<()>) + Send,
        work: impl FnOnce() -> T,
    ) -> T {
        let throttle = &self.throttle;
        let interval = interval.min(self.options.epoch_interval);
        let ended = AtomicBool::new(false);
        throttle.backgrounds.fetch_add(1, Ordering::AcqRel);
        lock::scope(|scope| {
            let _end = End { throttle, ended: &ended };
            scope.spawn(|| {
                loop {
                    throttle.wait(interval);
                    if ended.load(Ordering::Acquire) {
                        return;
                    }
                    observe(self.background());
                }
            });
            work()
        })
    }

    fn has_background(&self) -> bool {
        self.throttle.backgrounds.load(Ordering::Acquire) > 0
    }

    /// Whether changes take so much memory that an epoch should be written. If callers read much meanwhile,
    /// each epoch makes the device seek back and forth, so epochs should be few.
    pub(crate) fn is_filling(&self) -> bool {
        let memory = &self.inodes.memory;
        memory.is_filling() && (memory.is_nearly_full() || !self.is_read_meanwhile())
    }

    /// Whether contents should be written ahead of their epoch: there are enough, and little is read
    /// meanwhile.
    pub(crate) fn is_early_due(&self) -> bool {
        let early_from = self.throttle.early_from.load(Ordering::Relaxed);
        self.inodes.dirty_bytes() >= early_from && !self.is_read_meanwhile()
    }

    /// Whether much was read from the device while changes waited.
    fn is_read_meanwhile(&self) -> bool {
        let cache = &self.inodes.cache;
        let read_before = self.throttle.read_before.load(Ordering::Relaxed);
        let read = cache.read_bytes().saturating_sub(read_before);
        read > self.inodes.dirty_bytes() / cache.tuning().writing.reads_part
    }

    /// An epoch, or a write ahead of it, has taken changes over.
    pub(crate) fn taken_over(&self) {
        let from = self.inodes.dirty_bytes().saturating_add(self.options.early_bytes);
        self.throttle.early_from.store(from, Ordering::Relaxed);
        self.forget_reads();
        self.throttle.let_go();
    }

    /// Forgets earlier reads: no changes were waiting then.
    pub(crate) fn forget_reads(&self) {
        let read = self.inodes.cache.read_bytes();
        self.throttle.read_before.store(read, Ordering::Relaxed);
    }

    /// Delays the return of a change, as far as needed.
    pub(crate) fn after_change(&self) -> Result<()> {
        if self.options.sync {
            return self.commit();
        }
        let throttle = &self.throttle;
        if self.has_background() && (self.is_filling() || self.is_early_due()) {
            throttle.call();
        }
        if !self.is_full() {
            return Ok(());
        }
        self.options.waiter.about_to_wait();
        let until = Instant::now() + self.inodes.cache.tuning().writing.background_wait_max;
        let mut guard = throttle.lock.lock();
        while self.is_full() && self.check_writable().is_ok() {
            if !self.has_background() || !throttle.taken.wait_until(&mut guard, until) {
                drop(guard);
                return self.commit();
            }
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.inodes.memory.is_full()
    }
}
