//! A record of damage that was found while a volume was in use, so that the volume is checked after it is
//! unmounted (FORMAT: error record).
//!
//! ```text
//!   a call meets a contradiction,
//!   or the device fails to read
//!   metadata ─────────────────────┐
//!   a scrub or a check finds one ─┴▶ the record ──▶ superblock: within a second, at each clean
//!                                        │          point, and when the volume is closed
//!                                        └────────▶ errors=remount-ro: no more changes
//! ```
//!
//! A device that does not answer, such as a store during an outage, is not damaged ([`Failure`]). A volume
//! that is open read-only keeps the record only in memory. Only a check of the whole volume that leaves it
//! sound clears the record.

use std::sync::atomic::{AtomicBool, Ordering};

use super::EpochWriter;
use crate::device::Failure;
use crate::error::{Corruption, Error, Result};
use crate::format::Superblock;
use crate::format::superblock::{Damage, ErrorsPolicy};
use crate::lock::{Mutex, Rank};
use crate::units::InodeNo;

/// The record of damage of an open volume.
pub(crate) struct DamageRecord {
    policy: ErrorsPolicy,
    state: Mutex<State>,
    refuses_changes: AtomicBool,
}

#[derive(Default)]
struct State {
    /// The record that the next superblock will contain.
    damage: Option<Damage>,
    /// The first damage since the volume was opened, in words.
    first: Option<String>,
    /// No superblock on the device records damage since the volume was opened yet.
    is_unsaved: bool,
}

impl DamageRecord {
    /// The record of a volume that is being opened, with its own policy unless the caller has one.
    pub fn new(superblock: &Superblock, policy: ErrorsPolicy) -> DamageRecord {
        let policy = match policy {
            ErrorsPolicy::Default => superblock.errors_policy,
            policy => policy,
        };
        let state = State { damage: superblock.damage, ..State::default() };
        DamageRecord {
            policy,
            state: Mutex::new(Rank::Leaf, state),
            refuses_changes: AtomicBool::new(false),
        }
    }

    /// Damage that was seen since the last full check.
    pub fn get(&self) -> Option<Damage> {
        self.state.lock().damage
    }

    /// Fails if damage is the reason to refuse changes.
    pub fn check(&self) -> Result<()> {
        if !self.refuses_changes.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(Error::Damaged(self.state.lock().first.clone().unwrap_or_default()))
    }

    fn add(&self, code: u16, ino: InodeNo, now: u64, what: &str) {
        let mut state = self.state.lock();
        state.damage = Some(Damage::met_again(state.damage, code, ino, now));
        // A program that repeatedly reads the same bad sector must not fill the log or the device.
        if state.first.is_some() {
            return;
        }
        state.first = Some(what.to_owned());
        state.is_unsaved = true;
        tracing::error!("{what}; the next cffs fsck -p checks the whole volume");
        if self.policy == ErrorsPolicy::RemountReadOnly {
            tracing::error!("changes are refused from now on (errors=remount-ro)");
            self.refuses_changes.store(true, Ordering::Release);
        }
    }
}

/// Whether an error may be damage. Most errors are a caller's, such as a name that does not exist.
#[inline]
fn may_be_damage(error: &Error) -> bool {
    matches!(error, Error::Io(_) | Error::Corruption(_))
}

impl EpochWriter {
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

    /// Records the damage that an error reports, as [`EpochWriter::noted`] does.
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
    pub fn remember_damage(&self, code: u16, ino: InodeNo, what: &str) {
        // A read in progress when the volume is closed finds no device.
        if self.health.is_closed() {
            return;
        }
        let now = self.inodes.clock.now().seconds.max(0) as u64;
        self.damage.add(code, ino, now, what);
    }

    /// Writes the superblock if it lacks damage that was found; under the lock of epochs.
    pub(crate) fn save_damage(&self) -> Result<()> {
        let is_unsaved = std::mem::take(&mut self.damage.state.lock().is_unsaved);
        if self.options.read_only || !is_unsaved {
            return Ok(());
        }
        let written = self.write_superblock(&self.superblock(), false);
        written.inspect_err(|error| self.latch(error))
    }

    /// As [`EpochWriter::check_writable`], for changes: those are also refused after damage, if the volume's
    /// policy says so. Earlier changes still go to the device.
    pub(crate) fn check_changeable(&self) -> Result<()> {
        self.check_writable()?;
        self.damage.check()
    }
}
