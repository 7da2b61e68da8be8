//! Whether an open volume accepts changes. It refuses them if it is read-only, after a failed write of
//! metadata (it is *latched*), after damage if its policy says so, and once it is closed.
//!
//! Invariants: a volume stays latched until it is opened again ([`EpochWriter::latch`]); a latched volume
//! writes nothing but the record of damage.
//!
//! [`EpochWriter::latch`]: super::EpochWriter::latch

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::damage::DamageRecord;
use crate::clock::Clock;
use crate::device::Failure;
use crate::error::{Corruption, Error, Result};
use crate::format::Superblock;
use crate::format::superblock::Damage;
use crate::lock::{Mutex, Rank};
use crate::options::OpenOptions;
use crate::units::InodeNo;

/// Knows whether a volume accepts changes, why not, and the damage that was found in it.
pub struct Health {
    latched: Mutex<Option<Latched>>,
    /// Whether the epoch that failed had changes in it.
    loses_changes: AtomicBool,
    /// The device has all changes before this moment.
    durable_until: Mutex<Instant>,
    refuses_changes: AtomicBool,
    closed: AtomicBool,
    pub(crate) damage: DamageRecord,
    clock: Arc<dyn Clock>,
}

/// Why a volume is latched.
#[derive(Clone)]
struct Latched {
    why: String,
    failure: Failure,
}

/// Whether an error may be damage. Most errors are a caller's, such as a name that does not exist.
#[inline]
fn may_be_damage(error: &Error) -> bool {
    matches!(error, Error::Io(_) | Error::Corruption(_))
}

impl Health {
    /// The health of a volume that is being opened.
    pub(crate) fn new(
        superblock: &Superblock,
        options: &OpenOptions,
        clock: Arc<dyn Clock>,
    ) -> Health {
        Health {
            latched: Mutex::new(Rank::Latch, None),
            loses_changes: AtomicBool::new(false),
            durable_until: Mutex::new(Rank::Latch, clock.monotonic()),
            refuses_changes: AtomicBool::new(options.read_only),
            closed: AtomicBool::new(false),
            damage: DamageRecord::new(superblock, options),
            clock,
        }
    }

    /// Why the volume refuses changes, if a failed write is the reason.
    pub fn latched(&self) -> Option<String> {
        self.latched.lock().as_ref().map(|latched| latched.why.clone())
    }

    /// The kind of failure of the device, if a failed write is why the volume refuses changes.
    pub fn latched_by(&self) -> Option<Failure> {
        self.latched.lock().as_ref().map(|latched| latched.failure)
    }

    /// The age of the oldest change that may be lost, if any is; `has_changes` tells whether some are in
    /// memory alone.
    pub(super) fn lost(&self, has_changes: bool) -> Option<Duration> {
        let is_over = self.latched.lock().is_some() || self.closed.load(Ordering::Acquire);
        let loses = self.loses_changes.load(Ordering::Acquire) || has_changes;
        (is_over && loses).then(|| self.clock.monotonic() - *self.durable_until.lock())
    }

    /// Fails once the volume is closed.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(Error::Stale) } else { Ok(()) }
    }

    /// Fails if nothing may be written any more.
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        if !self.refuses_changes.load(Ordering::Acquire) {
            return Ok(());
        }
        match &*self.latched.lock() {
            Some(latched) => Err(Error::Latched(latched.why.clone())),
            None => Err(Error::ReadOnly),
        }
    }

    /// As [`check_writable`](Health::check_writable), for changes: those are also refused after damage, if
    /// the volume's policy says so. Earlier changes still go to the device.
    pub(crate) fn check_changeable(&self) -> Result<()> {
        self.check_writable()?;
        self.damage.check()
    }

    /// Records that all changes before `until` are on the device.
    pub(super) fn note_durable(&self, until: Instant) {
        *self.durable_until.lock() = until;
    }

    /// Notes that an epoch failed.
    pub(super) fn note_failed(&self, has_changes: bool) {
        self.loses_changes.fetch_or(has_changes, Ordering::AcqRel);
    }

    /// Records the first error that latches the volume.
    pub(super) fn note_latched(&self, error: &Error) {
        let mut latched = self.latched.lock();
        if latched.is_none() {
            tracing::error!("{error}; the volume is read-only from now on");
            let failure = match error {
                Error::Io(error) => Failure::of(error),
                Error::InUse(_) => Failure::TakenOver,
                _ => Failure::Medium,
            };
            *latched = Some(Latched { why: error.to_string(), failure });
        }
    }

    /// Makes later changes fail.
    pub(super) fn refuse_changes(&self) {
        self.refuses_changes.store(true, Ordering::Release);
    }

    /// Makes later calls fail; returns whether the volume was closed before.
    pub(super) fn close(&self) -> bool {
        self.closed.swap(true, Ordering::AcqRel)
    }

    /// Passes a result on, and records the damage that it reports. Metadata that the device failed to read
    /// counts as damage, since the device may have lost more. A missing answer does not.
    #[inline]
    pub(crate) fn noted<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| {
            if may_be_damage(error) {
                self.note_error(error);
            }
        })
    }

    /// The same for contents. The caller gets the error, and a check could do nothing about it.
    #[inline]
    pub(crate) fn noted_contents<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| {
            if may_be_damage(error) {
                self.note_error_of_contents(error);
            }
        })
    }

    /// Records the damage that an error reports, as [`Health::noted`] does.
    #[cold]
    pub(super) fn note_error(&self, error: &Error) {
        if let Error::Io(error) = error
            && Failure::of(error).is_of_data()
            && self.latched().is_none()
        {
            let what = format!("the device failed a read of metadata: {error}");
            self.remember_damage(Damage::UNREADABLE, InodeNo(0), &what);
        }
        self.note_error_of_contents(error);
    }

    #[cold]
    fn note_error_of_contents(&self, error: &Error) {
        if let Error::Corruption(corruption) = error {
            self.note_damage(corruption);
        }
    }

    pub(crate) fn note_damage(&self, corruption: &Corruption) {
        self.remember_damage(corruption.code(), corruption.ino(), &corruption.to_string());
    }

    /// Remembers that damage was found: the number of its kind in `docs/FSCK.md`, the inode that has it (0
    /// for none), and a description. A volume that is open read-only remembers it as long as it is open.
    pub(crate) fn remember_damage(&self, code: u16, ino: InodeNo, what: &str) {
        // A read in progress when the volume is closed finds no device.
        if self.check_open().is_ok() {
            let now = self.clock.now().seconds.max(0) as u64;
            self.damage.add(code, ino, now, what);
        }
    }
}
