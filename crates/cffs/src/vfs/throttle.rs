//! Holding back whoever changes more than the device takes.
//!
//! Changes gather in memory. When they take half of what they may, the background is called to
//! write an epoch, and changes go on; when they take all of it, who makes more waits until an epoch
//! has begun that takes them over. So a stream of changes keeps the device busy and is not stopped
//! for the time of a write. Without a background, whoever reaches the limit writes the epoch.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::Volume;
use crate::error::Result;

/// How long somebody waits for the background before he does its work himself.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct Throttle {
    /// Whether the background is called. Kept outside of the lock, since every change looks.
    is_called: AtomicBool,
    /// Whether anybody has ever waited to be called.
    has_background: AtomicBool,
    lock: Mutex<()>,
    called: Condvar,
    taken: Condvar,
}

impl Throttle {
    fn call(&self) {
        if !self.is_called.swap(true, Ordering::AcqRel) {
            drop(self.lock.lock());
            self.called.notify_all();
        }
    }

    /// An epoch has taken over what was changed before, or there will be none any more.
    pub(super) fn taken_over(&self) {
        drop(self.lock.lock());
        self.taken.notify_all();
    }
}

impl Volume {
    /// Waits until there is work for [`Volume::background`], at most for `timeout`. Whoever calls
    /// the two in a loop is the volume's background.
    pub fn wait_for_work(&self, timeout: Duration) {
        let throttle = &self.throttle;
        throttle.has_background.store(true, Ordering::Release);
        let mut guard = throttle.lock.lock();
        if !throttle.is_called.swap(false, Ordering::AcqRel) {
            throttle.called.wait_for(&mut guard, timeout);
            throttle.is_called.store(false, Ordering::Release);
        }
    }

    /// Wakes whoever waits for work.
    pub fn call_background(&self) {
        self.throttle.call();
    }

    /// Whether changes take so much memory that an epoch should be written.
    pub(super) fn is_filling(&self) -> bool {
        self.changed_bytes() > self.options.dirty_bytes_max / 2
    }

    /// Holds a change back that is done, as far as needed.
    pub(super) fn after_change(&self) -> Result<()> {
        if self.options.sync {
            return self.commit();
        }
        let throttle = &self.throttle;
        let has_background = throttle.has_background.load(Ordering::Acquire);
        if has_background && self.is_filling() {
            throttle.call();
        }
        if !self.is_full() {
            return Ok(());
        }
        if !has_background {
            return self.commit();
        }
        let until = Instant::now() + PATIENCE;
        let mut guard = throttle.lock.lock();
        while self.is_full() && self.check_writable().is_ok() {
            if throttle.taken.wait_until(&mut guard, until).timed_out() {
                drop(guard);
                return self.commit();
            }
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.changed_bytes() > self.options.dirty_bytes_max
    }
}
