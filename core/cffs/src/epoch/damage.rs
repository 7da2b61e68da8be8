//! A record of damage that was found while a volume was in use, so that the volume is checked after it is
//! unmounted (FORMAT: error record).
//!
//! ```text
//!   a call meets a contradiction,
//!   or the device fails to read
//!   metadata ─────────────────────┐
//!   a scrub or a check finds one ─┴▶ the record ──▶ superblock: within a second, at each
//!                                        │          checkpoint, and when the volume is closed
//!                                        └────────▶ errors=remount-ro: no more changes
//! ```
//!
//! A device that does not answer, such as a store during an outage, is not damaged
//! ([`Failure`](crate::device::Failure)). A volume that is open read-only keeps the record only in memory.
//! Only a check of the whole volume that leaves it sound clears the record.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};
use crate::format::Superblock;
use crate::format::superblock::{Damage, ErrorsPolicy};
use crate::lock::{Mutex, Rank};
use crate::options::OpenOptions;
use crate::units::InodeNo;

/// Keeps the record of damage of an open volume, and knows whether changes are refused because of it.
pub(crate) struct DamageRecord {
    read_only: bool,
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
    /// No superblock on the device records damage since the volume was opened yet, and one may be written.
    is_unsaved: bool,
}

impl DamageRecord {
    /// The record of a volume that is being opened, with its own policy unless the caller has one.
    pub fn new(superblock: &Superblock, options: &OpenOptions) -> DamageRecord {
        let policy = match options.errors {
            ErrorsPolicy::Default => superblock.errors_policy,
            policy => policy,
        };
        let state = State { damage: superblock.damage, ..State::default() };
        DamageRecord {
            read_only: options.read_only,
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

    /// Whether the device is to get the record: it has damage that no superblock on the device records. The
    /// caller writes the superblock.
    pub fn take_unsaved(&self) -> bool {
        std::mem::take(&mut self.state.lock().is_unsaved)
    }

    /// Adds damage that was found now, in seconds since 1970.
    pub fn add(&self, code: u16, ino: InodeNo, now: u64, what: &str) {
        let mut state = self.state.lock();
        state.damage = Some(Damage::met_again(state.damage, code, ino, now));
        // A program that repeatedly reads the same bad sector must not fill the log or the device.
        if state.first.is_some() {
            return;
        }
        state.first = Some(what.to_owned());
        state.is_unsaved = !self.read_only;
        tracing::error!("{what}; the next cffs fsck -p checks the whole volume");
        if self.policy == ErrorsPolicy::RemountReadOnly {
            tracing::error!("changes are refused from now on (errors=remount-ro)");
            self.refuses_changes.store(true, Ordering::Release);
        }
    }
}
