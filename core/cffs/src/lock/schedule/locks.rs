//! The locks of `parking_lot`, with a choice before each of them is taken.

#![allow(missing_docs, reason = "they are those of `parking_lot`")]

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::{Wait, current, point};

/// Takes a lock: at once if it is free, or when a thread of the schedule has released it.
fn acquire<G>(at: usize, mut try_lock: impl FnMut() -> Option<G>, lock: impl FnOnce() -> G) -> G {
    let Some((schedule, me)) = current() else { return lock() };
    schedule.point(me);
    loop {
        if let Some(guard) = try_lock() {
            return guard;
        }
        if std::thread::panicking() {
            return lock();
        }
        schedule.wait(me, Wait::Lock(at));
    }
}

fn release(at: usize) {
    if let Some((schedule, _)) = current() {
        schedule.state.lock().wake(|wait| wait == Wait::Lock(at), false);
    }
}

fn address<T: ?Sized>(of: &T) -> usize {
    std::ptr::from_ref(of).addr()
}

/// See [`parking_lot::Mutex`].
#[derive(Debug, Default)]
pub struct Mutex<T>(parking_lot::Mutex<T>);

/// See [`parking_lot::MutexGuard`].
pub struct MutexGuard<'a, T> {
    /// `None` while a condition is waited for.
    guard: Option<parking_lot::MutexGuard<'a, T>>,
    lock: &'a Mutex<T>,
}

impl<T> Mutex<T> {
    pub fn new(value: T) -> Mutex<T> {
        Mutex(parking_lot::Mutex::new(value))
    }

    fn acquire(&self) -> parking_lot::MutexGuard<'_, T> {
        acquire(address(self), || self.0.try_lock(), || self.0.lock())
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { guard: Some(self.acquire()), lock: self }
    }

    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        point();
        Some(MutexGuard { guard: Some(self.0.try_lock()?), lock: self })
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.guard.as_ref().expect("held, but while a condition is waited for")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().expect("held, but while a condition is waited for")
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        if self.guard.take().is_some() {
            release(address(self.lock));
        }
    }
}

/// See [`parking_lot::RwLock`]. As there, readers wait for waiting writers.
#[derive(Debug, Default)]
pub struct RwLock<T> {
    lock: parking_lot::RwLock<T>,
    waiting_writers: AtomicUsize,
}

/// See [`parking_lot::RwLockReadGuard`].
pub struct RwLockReadGuard<'a, T> {
    guard: Option<parking_lot::RwLockReadGuard<'a, T>>,
    at: usize,
}

/// See [`parking_lot::RwLockWriteGuard`].
pub struct RwLockWriteGuard<'a, T> {
    guard: Option<parking_lot::RwLockWriteGuard<'a, T>>,
    lock: &'a RwLock<T>,
}

/// Counts a writer while it waits.
struct Writing<'a>(&'a AtomicUsize);

impl<'a> Writing<'a> {
    fn new(count: &'a AtomicUsize) -> Writing<'a> {
        count.fetch_add(1, Ordering::Relaxed);
        Writing(count)
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<T> RwLock<T> {
    pub fn new(value: T) -> RwLock<T> {
        RwLock { lock: parking_lot::RwLock::new(value), waiting_writers: AtomicUsize::new(0) }
    }

    fn try_to_read(&self) -> Option<parking_lot::RwLockReadGuard<'_, T>> {
        let is_wanted = self.waiting_writers.load(Ordering::Relaxed) > 0;
        if is_wanted { None } else { self.lock.try_read() }
    }

    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let at = address(self);
        let guard = acquire(at, || self.try_to_read(), || self.lock.read());
        RwLockReadGuard { guard: Some(guard), at }
    }

    fn acquire(&self) -> parking_lot::RwLockWriteGuard<'_, T> {
        point();
        if let Some(guard) = self.lock.try_write() {
            return guard;
        }
        let _writing = Writing::new(&self.waiting_writers);
        acquire(address(self), || self.lock.try_write(), || self.lock.write())
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        RwLockWriteGuard { guard: Some(self.acquire()), lock: self }
    }

    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        point();
        Some(RwLockReadGuard { guard: Some(self.try_to_read()?), at: address(self) })
    }

    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        point();
        Some(RwLockWriteGuard { guard: Some(self.lock.try_write()?), lock: self })
    }

    pub fn is_locked_exclusive(&self) -> bool {
        self.lock.is_locked_exclusive()
    }

    pub fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut()
    }
}

impl<T> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.guard.as_ref().expect("held until it is dropped")
    }
}

impl<T> Drop for RwLockReadGuard<'_, T> {
    fn drop(&mut self) {
        self.guard = None;
        release(self.at);
    }
}

impl<T> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.guard.as_ref().expect("held until it is dropped")
    }
}

impl<T> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().expect("held until it is dropped")
    }
}

impl<T> RwLockWriteGuard<'_, T> {
    /// Releases the lock for a moment, and takes it again.
    pub fn bump(&mut self) {
        self.guard = None;
        release(address(self.lock));
        self.guard = Some(self.lock.acquire());
    }
}

impl<T> Drop for RwLockWriteGuard<'_, T> {
    fn drop(&mut self) {
        self.guard = None;
        release(address(self.lock));
    }
}

/// See [`parking_lot::Condvar`].
#[derive(Debug, Default)]
pub struct Condvar(parking_lot::Condvar);

/// See [`parking_lot::WaitTimeoutResult`].
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    /// Waits within a schedule; whether it was notified. `None` in other threads.
    fn wait_scheduled<T>(&self, guard: &mut MutexGuard<'_, T>, is_limited: bool) -> Option<bool> {
        let (schedule, me) = current()?;
        guard.guard = None;
        release(address(guard.lock));
        let wait = Wait::Condition { at: address(self), is_limited };
        let is_notified = schedule.wait(me, wait);
        guard.guard = Some(guard.lock.acquire());
        Some(is_notified)
    }

    fn unscheduled<'g, 'a, T>(
        guard: &'g mut MutexGuard<'a, T>,
    ) -> &'g mut parking_lot::MutexGuard<'a, T> {
        guard.guard.as_mut().expect("held, but while a condition is waited for")
    }

    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        if self.wait_scheduled(guard, false).is_none() {
            self.0.wait(Condvar::unscheduled(guard));
        }
    }

    pub fn wait_until<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        until: Instant,
    ) -> WaitTimeoutResult {
        match self.wait_scheduled(guard, true) {
            Some(is_notified) => WaitTimeoutResult(!is_notified),
            None => {
                let waited = self.0.wait_until(Condvar::unscheduled(guard), until);
                WaitTimeoutResult(waited.timed_out())
            }
        }
    }

    pub fn wait_for<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        timeout: Duration,
    ) -> WaitTimeoutResult {
        self.wait_until(guard, Instant::now() + timeout)
    }

    fn notify(&self, only_one: bool) {
        if let Some((schedule, _)) = current() {
            let at = address(self);
            let is_awaited =
                |wait| matches!(wait, Wait::Condition { at: other, .. } if other == at);
            schedule.state.lock().wake(is_awaited, only_one);
        }
    }

    pub fn notify_one(&self) {
        self.notify(true);
        self.0.notify_one();
    }

    pub fn notify_all(&self) {
        self.notify(false);
        self.0.notify_all();
    }
}
