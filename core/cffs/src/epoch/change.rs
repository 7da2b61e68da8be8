//! Changes: each runs with the gate held, and is tried again after an epoch if it needs one.

use super::EpochWriter;
use crate::error::{Error, Result};
use crate::lock::Rule;

/// Epochs that one call waits for before it fails; it takes one or two without other threads, and more if
/// compactions free space for it.
const EPOCHS_FORCED_MAX: u32 = 64;

/// Tries to free space for a change that found none; true if a retry may succeed. If that fails as well, the
/// next one is called; the last one is called until it frees nothing.
type Hope<'a> = &'a dyn Fn() -> bool;

impl EpochWriter {
    /// Runs a change. If it finds no space, an epoch makes allocatable what earlier changes freed, and the
    /// change is tried again. The same happens if the change depends on an epoch that must come before it.
    pub(crate) fn change<T>(
        &self,
        change: impl Fn() -> Result<T>,
        hopes: &[Hope<'_>],
    ) -> Result<T> {
        self.health.check_changeable()?;
        let run = || {
            let _gate = Rule::GateForChanges.holds().then(|| self.gate.read());
            change()
        };
        let result = self.health.noted(self.retry(run, hopes));
        self.after_change()?;
        result
    }

    /// Runs a change while no other change is in progress.
    pub(crate) fn change_alone<T>(
        &self,
        change: impl Fn() -> Result<T>,
        hopes: &[Hope<'_>],
    ) -> Result<T> {
        self.health.check_changeable()?;
        let run = || {
            let is_alone = Rule::GateAlone.holds();
            let _alone = is_alone.then(|| self.gate.write());
            let _shared = (!is_alone).then(|| self.gate.read());
            change()
        };
        let result = self.health.noted(self.retry(run, hopes));
        self.after_change()?;
        result
    }

    fn retry<T>(&self, run: impl Fn() -> Result<T>, mut hopes: &[Hope<'_>]) -> Result<T> {
        let (mut is_after_epoch, mut is_committed) = (false, false);
        let mut epochs = 0;
        loop {
            match run() {
                // Other threads may undo the effect of the epoch, but not forever.
                Err(Error::EpochNeeded) if epochs < EPOCHS_FORCED_MAX => is_after_epoch = true,
                Err(Error::NoSpace) if !is_committed && self.may_gain_space() => {
                    is_committed = true;
                }
                Err(Error::NoSpace) if epochs < EPOCHS_FORCED_MAX && gain_space(&mut hopes) => {}
                other => {
                    if is_after_epoch {
                        self.inodes.note_concerns_unchanged();
                    }
                    return other;
                }
            }
            self.counts.epochs_forced.count();
            self.commit()?;
            epochs += 1;
        }
    }

    /// Delays the return of a change, as far as needed.
    fn after_change(&self) -> Result<()> {
        if self.options.sync {
            return self.commit();
        }
        self.throttle.call_if_due();
        if !self.inodes.memory.is_full() {
            return Ok(());
        }
        self.options.waiter.about_to_wait();
        let has_room = self.throttle.wait_for_room(|| self.health.check_writable().is_ok());
        if has_room { Ok(()) } else { self.commit() }
    }

    fn may_gain_space(&self) -> bool {
        self.inodes.queue_len() > 0 || self.inodes.alloc.has_freed()
    }
}

/// Calls the hopes in order until one frees space, and drops those that are not to be called again.
fn gain_space(hopes: &mut &[Hope<'_>]) -> bool {
    while let [hope, rest @ ..] = *hopes {
        let has_gained = hope();
        if !has_gained || !rest.is_empty() {
            *hopes = rest;
        }
        if has_gained {
            return true;
        }
    }
    false
}
