//! Checkpoints: moments at which all derived state on the device is correct, and the superblock says so
//! (FORMAT: state).
//!
//! Closing a volume ends with a checkpoint. So does a pause: after some time without changes, the background
//! writes a checkpoint and marks the volume as clean, so that a crash of an idle volume needs no recovery.
//! The mark "in use" goes with the first phase of the next epoch, before any change.
//!
//! ```text
//!            first phase of an epoch: mark, barrier, then the changes
//!   clean ───────────────────────────────────────────────────────────▶ in use
//!     ▲                                                                  │
//!     └── mark, durable ◀── bitmaps ◀── gate closed: nothing changed ◀── epoch with derived state
//! ```
//!
//! Invariants: the superblock is written only under the lock of epochs, and while it says "clean", nothing in
//! use is overwritten. A volume is not clean while an inode without a name is in use: nothing on the device
//! points to it.

use std::sync::Arc;
use std::time::Duration;

use super::EpochWriter;
use super::discard::Discarder;
use super::prepare::Prepared;
use super::progress::{Attempt, EpochKind, Progress};
use crate::cache::WriteSet;
use crate::device::{BlockDevice, Patient};
use crate::error::{Error, Result};
use crate::format::Superblock;
use crate::format::superblock::State;
use crate::inode::{InodeCache, nameless_space};
use crate::trace::OpKind;
use crate::units::EpochNo;

/// Brings a volume to checkpoints ([`EpochWriter::checkpoints`]).
#[derive(Clone, Copy)]
pub struct Checkpoints<'a> {
    pub(super) inodes: &'a InodeCache,
    pub(super) writer: &'a EpochWriter,
}

impl Checkpoints<'_> {
    /// Writes a checkpoint and marks the volume as clean, so that it needs no recovery unless it is changed.
    /// Returns false if it was changed meanwhile, or an inode without a name is in use.
    ///
    /// Earlier changes are durable in either case.
    ///
    /// # Errors
    ///
    /// `EROFS` if the volume refuses changes; `ESTALE` once it is closed; those of the
    /// [device](crate::vfs#errors), which latch the volume.
    pub fn mark_clean(&self) -> Result<bool> {
        let _op = self.writer.enter_volume(OpKind::Maintenance);
        self.writer.health.check_open()?;
        if self.writer.options.read_only {
            return Ok(self.writer.superblock.get().state == State::Clean);
        }
        self.writer.health.check_writable()?;
        self.try_mark_clean(&mut self.writer.epochs.lock())
    }

    /// Writes all changes and all derived state, so that recovery only looks at later changes. The volume
    /// stays in use, and changes continue meanwhile.
    ///
    /// # Errors
    ///
    /// As of [`sync`](crate::vfs::Volume::sync), and `EROFS` if the volume is read-only.
    pub fn run(&self) -> Result<()> {
        let _op = self.writer.enter_volume(OpKind::Maintenance);
        self.writer.health.check_writable()?;
        self.run_locked(&mut self.writer.epochs.lock())
    }

    /// Begins to close the volume: calls fail from now on. Returns whether anything remains to be written.
    ///
    /// # Errors
    ///
    /// [`Error::Latched`] if an earlier write failed; [`Error::InUse`] if another program has taken the
    /// volume over.
    pub(crate) fn begin_close(&self) -> Result<bool> {
        if self.writer.health.close() || self.writer.options.read_only {
            return Ok(false);
        }
        if let Some(why) = self.writer.health.latched() {
            return Err(Error::Latched(why));
        }
        self.writer.latch_if_overtaken()?;
        Ok(true)
    }

    /// Writes everything, marks the volume as clean and releases the device. `deleted` says whether the files
    /// without a name could be deleted: if not, everything is written, but the volume is not marked as clean.
    /// `save` is called in between, when all contents have places.
    pub(crate) fn finish_close(&self, deleted: Result<()>, save: Option<&dyn Fn()>) -> Result<()> {
        let _patient = Patient::begin();
        let mut progress = self.writer.epochs.lock();
        if let Some(save) = save {
            self.writer.run_epoch(&mut progress, EpochKind::Plain)?;
            save();
        }
        self.writer.run_epoch(&mut progress, EpochKind::Derived)?;
        deleted?;
        let mut discarder = Discarder::new(self.inodes, 1);
        while discarder.discard_some(&mut progress.freed) {}
        self.mark_clean_at_close(&progress)?;
        Ok(self.inodes.cache.device().control().give_back()?)
    }

    /// Writes a consistent state of the volume with all derived state, and calls `look` while the device
    /// keeps it. Reads and changes continue meanwhile, in memory; a caller that needs an epoch waits. The
    /// second argument of `look` tells whether files without a name are in use: their space is taken,
    /// although no inode on the device has it.
    ///
    /// # Errors
    ///
    /// As of [`Volume::sync`](crate::vfs::Volume::sync). Then `look` was not called.
    pub fn freeze<T>(&self, look: impl FnOnce(&Arc<dyn BlockDevice>, bool) -> T) -> Result<T> {
        let _op = self.writer.enter_volume(OpKind::Maintenance);
        self.writer.health.check_open()?;
        if self.writer.options.read_only {
            self.writer.options.waiter.about_to_wait();
            return Ok(look(self.inodes.cache.device(), false));
        }
        self.writer.health.check_writable()?;
        let mut progress = self.writer.epochs.lock();
        let written = {
            let _gate = self.writer.gate.write();
            self.write_consistent(&mut progress).map(|()| self.inodes.has_nameless())
        };
        let has_nameless = written.inspect_err(|error| self.writer.latch(error))?;
        self.writer.options.waiter.about_to_wait();
        Ok(look(self.inodes.cache.device(), has_nameless))
    }

    /// With the gate closed, writes everything; the volume stays in use if it is.
    fn write_consistent(&self, progress: &mut Progress) -> Result<()> {
        let _patient = Patient::begin();
        self.writer.write_all(progress)?;
        let mut next = self.writer.superblock.get();
        let mut writes = WriteSet::default();
        if !self.collect_derived(progress.done, &mut writes, &mut next)? {
            return Ok(());
        }
        next.state = State::InUse;
        self.write_derived(writes, next, false)
    }

    /// Whether the volume has been idle for long enough, and checkpoints stay within their share of the
    /// time.
    pub(super) fn is_mark_due(&self, progress: &Progress) -> bool {
        let wait = self.writer.options.clean_after;
        let now = self.inodes.clock.monotonic();
        let idle = now - progress.written >= wait;
        let spent = progress.attempt.is_some_and(|last| {
            let share = self.writer.options.clean_share_percent.clamp(1, 100);
            now - last.ended < wait.max(last.cost * 100 / share)
        });
        idle && !spent && !self.writer.superblock.is_clean()
    }

    /// Whether a volume that is constantly changed needs a checkpoint to keep recovery short: the intent log
    /// fills up, or the last checkpoint is long ago.
    pub(super) fn is_due(&self, progress: &Progress) -> bool {
        let fill = self.inodes.intent_log.fill();
        let now = self.inodes.clock.monotonic();
        let every = if fill.is_high() { Duration::ZERO } else { self.writer.options.clean_every };
        let spent = progress.attempt.is_some_and(|last| {
            let share = self.writer.options.clean_share_percent.clamp(1, 100);
            now - last.ended < every.max(last.cost * 100 / share)
        });
        let began = progress.attempt.map_or(progress.opened, |last| last.ended);
        !spent && (fill.is_high() || fill.sectors > 0 && now - began >= every)
    }

    /// Writes an epoch with all derived state, and the superblock that makes it the new checkpoint, while
    /// changes continue. The volume stays in use.
    pub(super) fn run_locked(&self, progress: &mut Progress) -> Result<()> {
        let started = self.inodes.clock.monotonic();
        self.writer.latch_if_overtaken()?;
        self.writer.run_epoch(progress, EpochKind::Checkpoint)?;
        let ended = self.inodes.clock.monotonic();
        progress.attempt = Some(Attempt { ended, cost: ended - started });
        self.writer.counts.checkpoints.count();
        Ok(())
    }

    /// With the gate closed, prepares an epoch with all derived state, and the superblock of the checkpoint,
    /// with a change applied to it.
    pub(crate) fn prepare(
        &self,
        progress: &mut Progress,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<Prepared> {
        let mut prepared = self.writer.prepare(progress, EpochKind::Checkpoint)?;
        let mut next = self.writer.superblock.get();
        next.state = State::InUse;
        change(&mut next);
        self.collect_derived(prepared.epoch, &mut prepared.writes, &mut next)?;
        prepared.superblock = Some(next);
        Ok(prepared)
    }

    pub(super) fn try_mark_clean(&self, progress: &mut Progress) -> Result<bool> {
        let _patient = Patient::begin();
        let started = self.inodes.clock.monotonic();
        self.writer.latch_if_overtaken()?;
        self.writer.run_epoch(progress, EpochKind::Derived)?;
        let result = self.mark_clean_unless_changed(progress);
        let result = result.inspect_err(|error| self.writer.latch(error));
        let ended = self.inodes.clock.monotonic();
        progress.attempt = Some(Attempt { ended, cost: ended - started });
        result
    }

    fn mark_clean_unless_changed(&self, progress: &Progress) -> Result<bool> {
        let inodes = self.inodes;
        let mut next = self.writer.superblock.get();
        let mut writes = WriteSet::default();
        {
            let _gate = self.writer.gate.write();
            if inodes.queue_len() > 0 || inodes.alloc.has_freed() || inodes.has_nameless() {
                return Ok(false);
            }
            if !self.collect_derived(progress.done, &mut writes, &mut next)? {
                return Ok(true);
            }
        }
        next.state = State::Clean;
        self.write_derived(writes, next, false)?;
        self.writer.counts.checkpoints.count();
        Ok(true)
    }

    /// Writes the last checkpoint of a volume, even if inodes without a name are left.
    fn mark_clean_at_close(&self, progress: &Progress) -> Result<()> {
        let mut next = self.writer.superblock.get();
        let mut writes = WriteSet::default();
        self.collect_derived(progress.done, &mut writes, &mut next)?;
        next.state = State::Clean;
        next.holder = None;
        self.write_derived(writes, next, true)
    }

    /// With the gate closed, adds the bitmaps and the counts of the superblock to the writes, and begins a
    /// new generation of the intent log. Returns false, and begins nothing, if the device has them already.
    fn collect_derived(
        &self,
        epoch: EpochNo,
        writes: &mut WriteSet,
        next: &mut Superblock,
    ) -> Result<bool> {
        let inodes = self.inodes;
        let before = writes.is_empty();
        let nameless = inodes.nameless();
        let space = nameless_space(&nameless, &inodes.layout);
        next.generation = next.generation.wrapping_add(1);
        inodes.alloc.save(writes, next, &space)?;
        next.epoch = epoch.0;
        next.inodes = inodes.locator.inodes();
        next.inode_rotor = inodes.locator.rotor();
        if next.state == State::Clean && before && writes.is_empty() {
            return Ok(false);
        }
        inodes.intent_log.begin(next.generation);
        for vnode in nameless {
            inodes.locator_table().note_nameless(vnode.ino)?;
        }
        inodes.intent_log.write(writes);
        Ok(true)
    }

    /// Writes bitmaps, and then the superblock that refers to them.
    fn write_derived(&self, writes: WriteSet, next: Superblock, copies: bool) -> Result<()> {
        if copies || !writes.is_empty() {
            self.writer.superblock.mark_in_use(false)?;
        }
        self.inodes.commit(writes)?;
        self.writer.superblock.write(&next, copies)?;
        self.writer.superblock.set(next);
        Ok(())
    }
}
