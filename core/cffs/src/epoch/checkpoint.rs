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

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::EpochWriter;
use super::discard::Discarder;
use super::prepare::Prepared;
use super::progress::{Attempt, EpochKind, Progress};
use crate::cache::WriteSet;
use crate::device::{BlockDevice, Control, Patient};
use crate::error::{Error, Result};
use crate::format::Superblock;
use crate::format::superblock::State;
use crate::inode::nameless_space;
use crate::trace::OpKind;
use crate::units::EpochNo;

/// The last call of a volume to its device.
pub(crate) type EndOfUse = fn(&dyn Control) -> io::Result<()>;

/// Brings a volume to checkpoints ([`EpochWriter::checkpoints`]).
#[derive(Clone, Copy)]
pub struct Checkpoints<'a>(pub(super) &'a EpochWriter);

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
        let _op = self.0.enter_volume(OpKind::Maintenance);
        self.0.health.check_open()?;
        if self.0.options.read_only {
            return Ok(self.0.superblock.get().state == State::Clean);
        }
        self.0.health.check_writable()?;
        self.try_mark_clean(&mut self.0.epochs.lock())
    }

    /// Writes all changes and all derived state, so that recovery only looks at later changes. The volume
    /// stays in use, and changes continue meanwhile.
    ///
    /// # Errors
    ///
    /// As of [`sync`](crate::vfs::Volume::sync), and `EROFS` if the volume is read-only.
    pub fn run(&self) -> Result<()> {
        let _op = self.0.enter_volume(OpKind::Maintenance);
        self.0.health.check_writable()?;
        self.run_locked(&mut self.0.epochs.lock())
    }

    /// Begins to close the volume: calls fail from now on. Returns whether anything remains to be written.
    ///
    /// # Errors
    ///
    /// [`Error::Latched`] if an earlier write failed; [`Error::InUse`] if another program has taken the
    /// volume over.
    pub(crate) fn begin_close(&self) -> Result<bool> {
        if self.0.health.close() || self.0.options.read_only {
            return Ok(false);
        }
        if let Some(why) = self.0.health.latched() {
            return Err(Error::Latched(why));
        }
        self.0.latch_if_overtaken()?;
        Ok(true)
    }

    /// Writes everything, marks the volume as clean and calls `end`. `deleted` says whether the files without
    /// a name could be deleted: if not, everything is written, but the volume is not marked as clean. `save`
    /// is called in between, when all contents have places.
    pub(crate) fn finish_close(
        &self,
        deleted: Result<()>,
        save: Option<&dyn Fn()>,
        end: EndOfUse,
    ) -> Result<()> {
        let _patient = Patient::begin();
        let mut progress = self.0.epochs.lock();
        if let Some(save) = save {
            self.0.run_epoch(&mut progress, EpochKind::Plain)?;
            save();
        }
        self.0.run_epoch(&mut progress, EpochKind::Derived)?;
        deleted?;
        let mut discarder = Discarder::new(&self.0.inodes, 1);
        while discarder.discard_some(&mut progress.freed) {}
        self.mark_clean_at_close(&progress)?;
        Ok(end(self.0.inodes.cache.device().control())?)
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
        let _op = self.0.enter_volume(OpKind::Maintenance);
        self.0.health.check_open()?;
        if self.0.options.read_only {
            self.0.options.waiter.about_to_wait();
            return Ok(look(self.0.inodes.cache.device(), false));
        }
        self.0.health.check_writable()?;
        let mut progress = self.0.epochs.lock();
        let written = {
            let _gate = self.0.gate.write();
            self.write_consistent(&mut progress).map(|()| self.0.inodes.has_nameless())
        };
        let has_nameless = written.inspect_err(|error| self.0.latch(error))?;
        self.0.options.waiter.about_to_wait();
        Ok(look(self.0.inodes.cache.device(), has_nameless))
    }

    /// With the gate closed, writes everything; the volume stays in use if it is.
    fn write_consistent(&self, progress: &mut Progress) -> Result<()> {
        let _patient = Patient::begin();
        self.0.write_all(progress)?;
        let mut next = self.0.superblock.get();
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
        let wait = self.0.options.clean_after;
        let now = self.0.inodes.clock.monotonic();
        let idle = now - progress.written >= wait;
        let spent = progress.attempt.is_some_and(|last| now - last.ended < self.pause(last, wait));
        idle && !spent && !self.0.superblock.is_clean()
    }

    /// The time after an attempt, at least this long, that keeps checkpoints within their share.
    fn pause(&self, last: Attempt, least: Duration) -> Duration {
        let share = self.0.options.clean_share_percent.clamp(1, 100);
        least.max(last.cost * 100 / share)
    }

    /// Whether a volume that is constantly changed needs a checkpoint to keep recovery short: the intent log
    /// fills up, or the last checkpoint is long ago.
    pub(super) fn is_due(&self, progress: &Progress) -> bool {
        let fill = self.0.inodes.intent_log.fill();
        let now = self.0.inodes.clock.monotonic();
        let every = if fill.is_high() { Duration::ZERO } else { self.0.options.clean_every };
        let spent = progress.attempt.is_some_and(|last| now - last.ended < self.pause(last, every));
        let began = progress.attempt.map_or(progress.opened, |last| last.ended);
        !spent && (fill.is_high() || fill.sectors > 0 && now - began >= every)
    }

    /// Writes an epoch with all derived state, and the superblock that makes it the new checkpoint, while
    /// changes continue. The volume stays in use.
    pub(super) fn run_locked(&self, progress: &mut Progress) -> Result<()> {
        let started = self.0.inodes.clock.monotonic();
        self.0.latch_if_overtaken()?;
        self.0.run_epoch(progress, EpochKind::Checkpoint)?;
        let ended = self.0.inodes.clock.monotonic();
        progress.attempt = Some(Attempt { ended, cost: ended - started });
        self.0.counts.checkpoints.count();
        Ok(())
    }

    /// With the gate closed, prepares an epoch with all derived state, and the superblock of the checkpoint,
    /// with a change applied to it.
    pub(crate) fn prepare(
        &self,
        progress: &mut Progress,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<Prepared> {
        let mut prepared = self.0.prepare(progress, EpochKind::Checkpoint)?;
        let mut next = self.0.superblock.get();
        next.state = State::InUse;
        change(&mut next);
        self.collect_derived(prepared.epoch, &mut prepared.writes, &mut next)?;
        prepared.superblock = Some(next);
        Ok(prepared)
    }

    pub(super) fn try_mark_clean(&self, progress: &mut Progress) -> Result<bool> {
        let _patient = Patient::begin();
        let started = self.0.inodes.clock.monotonic();
        self.0.latch_if_overtaken()?;
        self.0.run_epoch(progress, EpochKind::Derived)?;
        let result = self.mark_clean_unless_changed(progress);
        let result = result.inspect_err(|error| self.0.latch(error));
        let ended = self.0.inodes.clock.monotonic();
        progress.attempt = Some(Attempt { ended, cost: ended - started });
        result
    }

    fn mark_clean_unless_changed(&self, progress: &Progress) -> Result<bool> {
        let inodes = &*self.0.inodes;
        let mut next = self.0.superblock.get();
        let mut writes = WriteSet::default();
        {
            let _gate = self.0.gate.write();
            if inodes.queue_len() > 0 || inodes.alloc.has_freed() || inodes.has_nameless() {
                return Ok(false);
            }
            if !self.collect_derived(progress.done, &mut writes, &mut next)? {
                return Ok(true);
            }
        }
        next.state = State::Clean;
        self.write_derived(writes, next, false)?;
        self.0.counts.checkpoints.count();
        Ok(true)
    }

    /// Writes the last checkpoint of a volume, even if inodes without a name are left.
    fn mark_clean_at_close(&self, progress: &Progress) -> Result<()> {
        let mut next = self.0.superblock.get();
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
        let inodes = &*self.0.inodes;
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
            self.0.superblock.mark_in_use(false)?;
        }
        self.0.inodes.commit(writes)?;
        self.0.superblock.write(&next, copies)?;
        self.0.superblock.set(next);
        Ok(())
    }
}
