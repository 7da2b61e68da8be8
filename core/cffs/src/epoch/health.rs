//! Whether an open volume accepts changes. It refuses them if it is read-only, after a failed write of
//! metadata (it is *latched*), and once it is closed.
//!
//! Invariants: a volume stays latched until it is opened again; a latched volume writes nothing but the
//! record of damage.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::EpochWriter;
use crate::device::Failure;
use crate::error::{Error, Result};
use crate::lock::{Mutex, Rank};

/// Whether a volume accepts changes, and the loss if it no longer does.
pub(crate) struct Health {
    latched: Mutex<Option<Latched>>,
    /// Whether the epoch that failed had changes in it.
    loses_changes: AtomicBool,
    /// The device has all changes before this moment.
    durable_until: Mutex<Instant>,
    refuses_changes: AtomicBool,
    closed: AtomicBool,
}

/// Why a volume is latched.
#[derive(Clone)]
struct Latched {
    why: String,
    failure: Failure,
}

impl Health {
    /// The health of a volume that is being opened.
    pub fn new(read_only: bool) -> Health {
        Health {
            latched: Mutex::new(Rank::Latch, None),
            loses_changes: AtomicBool::new(false),
            durable_until: Mutex::new(Rank::Latch, Instant::now()),
            refuses_changes: AtomicBool::new(read_only),
            closed: AtomicBool::new(false),
        }
    }

    /// Records that all changes before `until` are on the device.
    pub fn note_durable(&self, until: Instant) {
        *self.durable_until.lock() = until;
    }

    /// Notes that an epoch failed.
    pub fn note_failed(&self, has_changes: bool) {
        self.loses_changes.fetch_or(has_changes, Ordering::AcqRel);
    }

    /// Whether the volume is closed, or being closed.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Makes later calls fail; returns whether the volume was closed before.
    pub fn close(&self) -> bool {
        self.closed.swap(true, Ordering::AcqRel)
    }
}

impl EpochWriter {
    /// Why the volume refuses changes, if a failed write is the reason.
    pub fn latched(&self) -> Option<String> {
        self.health.latched.lock().as_ref().map(|latched| latched.why.clone())
    }

    /// The kind of failure of the device, if a failed write is why the volume refuses changes.
    pub fn latched_by(&self) -> Option<Failure> {
        self.health.latched.lock().as_ref().map(|latched| latched.failure)
    }

    /// The age of the oldest change that may be lost, if changes are lost because a write failed: earlier
    /// changes are on the device, and so is all that an fsync made durable since. Until the volume is closed,
    /// lost changes can still be read.
    pub fn lost(&self) -> Option<Duration> {
        let is_over = self.health.latched.lock().is_some() || self.health.is_closed();
        let loses =
            self.health.loses_changes.load(Ordering::Acquire) || self.inodes.queue_len() > 0;
        (is_over && loses).then(|| self.health.durable_until.lock().elapsed())
    }

    /// Latches the volume, so that it refuses changes and writes nothing more: for a front end in which a
    /// call panicked, since the state in memory may be half changed.
    pub fn distrust(&self, why: &str) {
        self.latch(&Error::Latched(why.to_owned()));
    }

    pub(crate) fn latch(&self, error: &Error) {
        let mut latched = self.health.latched.lock();
        if latched.is_none() {
            tracing::error!("{error}; the volume is read-only from now on");
            let failure = match error {
                Error::Io(error) => Failure::of(error),
                Error::InUse(_) => Failure::TakenOver,
                _ => Failure::Medium,
            };
            *latched = Some(Latched { why: error.to_string(), failure });
        }
        drop(latched);
        if let Error::Corruption(corruption) = error {
            // The device works, so the record of damage can still be written. If that fails, the log says so.
            self.note_damage(corruption);
            let _ = self.save_damage();
        }
        self.health.refuses_changes.store(true, Ordering::Release);
        // Wakes callers that wait for an epoch, since none will be written.
        self.throttle.let_go();
        self.callers.give_up();
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.health.is_closed() { Err(Error::Stale) } else { Ok(()) }
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        if !self.health.refuses_changes.load(Ordering::Acquire) {
            return Ok(());
        }
        match &*self.health.latched.lock() {
            Some(latched) => Err(Error::Latched(latched.why.clone())),
            None => Err(Error::ReadOnly),
        }
    }
}
