//! Clean points: moments at which everything derived on the device matches the truth, and the
//! superblock says so (FORMAT: state).
//!
//! Closing a volume ends with one. So does a pause: when nothing was changed for a while, the
//! background brings the volume to a clean point and marks it, so that a crash of an idle volume
//! leaves nothing to recover. The mark goes with the next epoch's first phase, before any change.
//!
//! ```text
//!            first phase of an epoch: mark, barrier, then the changes
//!   clean ───────────────────────────────────────────────────────────▶ in use
//!     ▲                                                                  │
//!     └── mark, durable ◀── bitmaps ◀── gate closed: nothing changed ◀── epoch with what is derived
//! ```
//!
//! Invariants: the superblock is written under the lock of epochs only, and while it says "clean",
//! nothing is written where something lies. A volume is not clean while an inode without a
//! name is in use: on the device nothing leads to it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Volume;
use super::discard::Trimmed;
use super::prepare::Prepared;
use super::progress::{Attempt, EpochKind, Progress};
use crate::cache::{Block, Phase, WriteSet};
use crate::device::{BlockDevice, Patient};
use crate::error::{Error, Result};
use crate::format::Superblock;
use crate::format::superblock::{LogFlags, State};
use crate::inode::{Fill, space_of};
use crate::log;
use crate::trace::OpKind;
use crate::units::{BlockNo, EpochNo, FragRun};

impl Volume {
    /// Brings the volume to a clean point and marks it, so that it needs no recovery if nothing is
    /// changed after; false if changes came meanwhile, or an inode without a name is in use.
    ///
    /// What was changed before the call is durable in either case.
    ///
    /// # Errors
    ///
    /// `EROFS` if the volume refuses changes; `ESTALE` once it is closed; those of the
    /// [device](super#errors), which latch the volume.
    pub fn clean_point(&self) -> Result<bool> {
        let _op = self.enter_volume(OpKind::Maintenance);
        self.check_open()?;
        if self.options.read_only {
            return Ok(self.superblock().state == State::Clean);
        }
        self.check_writable()?;
        self.reach_clean_point(&mut self.epochs.lock())
    }

    /// Closes the volume: everything is durable, everything derived is written, the volume is marked
    /// clean, and the device is given back. Later calls fail.
    ///
    /// # Errors
    ///
    /// `EROFS` if an earlier write failed or another program has taken the volume over; those of
    /// the [device](super#errors). Then what was changed since the last sync may be lost, and the
    /// next opening recovers the volume. A second call succeeds.
    pub fn close(&self) -> Result<()> {
        let _op = self.enter_volume(OpKind::Maintenance);
        if self.health.close() {
            return Ok(());
        }
        if self.options.read_only {
            return Ok(());
        }
        if let Some(why) = self.latched() {
            return Err(Error::Latched(why));
        }
        self.latch_if_overtaken()?;
        // What cannot be deleted keeps the volume from being clean, and nothing from being written.
        let deleted: Vec<_> = self.references.end().iter().map(|ino| self.delete(*ino)).collect();
        let _patient = Patient::begin();
        let mut progress = self.epochs.lock();
        self.run_epoch(&mut progress, EpochKind::Derived)?;
        deleted.into_iter().collect::<Result<()>>()?;
        while self.discard_some(&mut progress, &mut Trimmed::default()) {}
        self.mark_clean_at_close(&progress)?;
        Ok(self.inodes().cache.device().give_back()?)
    }

    /// Writes everything, with all that is derived, so that after a crash only what changes from here
    /// on is looked at. The volume stays in use, and changes go on meanwhile.
    ///
    /// # Errors
    ///
    /// As of [`sync`](Volume::sync), and `EROFS` if the volume is read-only.
    pub fn checkpoint(&self) -> Result<()> {
        let _op = self.enter_volume(OpKind::Maintenance);
        self.check_writable()?;
        self.pass_clean_point(&mut self.epochs.lock())
    }

    /// How far the busy log is filled.
    pub fn busy_log(&self) -> Fill {
        self.inodes().busy.fill()
    }

    /// Calls `look` while the device has one consistent state of the volume, with everything that is
    /// derived, and keeps it. Reads and changes go on meanwhile, in memory; a caller that needs an epoch
    /// waits. `look` learns whether files without a name are in use: the space of these is taken,
    /// and nothing on the device says by whom.
    ///
    /// # Errors
    ///
    /// As of [`sync`](Volume::sync). Then `look` was not called.
    pub fn hold_still<T>(&self, look: impl FnOnce(&Arc<dyn BlockDevice>, bool) -> T) -> Result<T> {
        let _op = self.enter_volume(OpKind::Maintenance);
        self.check_open()?;
        if self.options.read_only {
            self.options.waiter.about_to_wait();
            return Ok(look(self.inodes().cache.device(), false));
        }
        self.check_writable()?;
        let mut progress = self.epochs.lock();
        let written = {
            let _gate = self.gate.write();
            self.settle(&mut progress).map(|()| self.inodes().has_nameless())
        };
        if let Err(error) = &written {
            self.latch(error);
        }
        let has_nameless = written?;
        self.options.waiter.about_to_wait();
        Ok(look(self.inodes().cache.device(), has_nameless))
    }

    /// With the gate closed, writes everything; the volume stays in use if it is.
    fn settle(&self, progress: &mut Progress) -> Result<()> {
        let _patient = Patient::begin();
        self.write_all(progress)?;
        let mut next = self.superblock();
        let mut writes = WriteSet::default();
        if !self.collect_derived(progress.done, &mut writes, &mut next)? {
            return Ok(());
        }
        next.state = State::InUse;
        self.write_derived(writes, &next, false)
    }

    /// Whether the volume has been idle for long enough, and clean points would not take more than
    /// their share of the time.
    pub(super) fn is_clean_point_due(&self, progress: &Progress) -> bool {
        let wait = self.options.clean_after;
        let idle = progress.written.elapsed() >= wait;
        let spent = progress.attempt.is_some_and(|last| {
            let share = self.options.clean_share_percent.clamp(1, 100);
            last.ended.elapsed() < wait.max(last.cost * 100 / share)
        });
        idle && !spent && self.superblock.lock().state != State::Clean
    }

    /// Whether a volume that is changed all the time needs a clean point, so that a crash leaves
    /// little to recover: the busy log fills up, or the last one is long ago.
    pub(super) fn is_busy_clean_point_due(&self, progress: &Progress) -> bool {
        let fill = self.inodes().busy.fill();
        let every = if fill.is_high() { Duration::ZERO } else { self.options.clean_every };
        let spent = progress.attempt.is_some_and(|last| {
            let share = self.options.clean_share_percent.clamp(1, 100);
            last.ended.elapsed() < every.max(last.cost * 100 / share)
        });
        let began = progress.attempt.map_or(progress.opened, |last| last.ended);
        !spent && (fill.is_high() || fill.sectors > 0 && began.elapsed() >= every)
    }

    /// Writes an epoch with everything that is derived, and the superblock that makes it the new
    /// clean point, while changes go on. The volume stays in use.
    pub(super) fn pass_clean_point(&self, progress: &mut Progress) -> Result<()> {
        let started = Instant::now();
        self.latch_if_overtaken()?;
        self.run_epoch(progress, EpochKind::CleanPoint)?;
        let ended = Instant::now();
        progress.attempt = Some(Attempt { ended, cost: ended - started });
        self.calls.clean_points.count();
        Ok(())
    }

    /// With the gate closed, prepares an epoch after which everything that is derived is on the device,
    /// and the superblock that says so, with a change of it.
    pub(super) fn prepare_clean_point(
        &self,
        progress: &mut Progress,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<Prepared> {
        let mut prepared = self.prepare(progress, EpochKind::CleanPoint)?;
        let mut next = self.superblock();
        next.state = State::InUse;
        change(&mut next);
        self.collect_derived(prepared.epoch, &mut prepared.writes, &mut next)?;
        prepared.superblock = Some(next);
        Ok(prepared)
    }

    pub(super) fn reach_clean_point(&self, progress: &mut Progress) -> Result<bool> {
        let _patient = Patient::begin();
        let started = Instant::now();
        self.latch_if_overtaken()?;
        self.run_epoch(progress, EpochKind::Derived)?;
        let result = self.mark_clean_unless_changed(progress);
        if let Err(error) = &result {
            self.latch(error);
        }
        let ended = Instant::now();
        progress.attempt = Some(Attempt { ended, cost: ended - started });
        result
    }

    fn mark_clean_unless_changed(&self, progress: &Progress) -> Result<bool> {
        let inodes = self.inodes();
        let mut next = self.superblock();
        let mut writes = WriteSet::default();
        {
            let _gate = self.gate.write();
            if inodes.queue_len() > 0 || inodes.alloc.has_freed() || inodes.has_nameless() {
                return Ok(false);
            }
            if !self.collect_derived(progress.done, &mut writes, &mut next)? {
                return Ok(true);
            }
        }
        next.state = State::Clean;
        self.write_derived(writes, &next, false)?;
        self.calls.clean_points.count();
        Ok(true)
    }

    /// What the last clean point of an open volume writes, whatever became of inodes in use.
    pub(super) fn mark_clean_at_close(&self, progress: &Progress) -> Result<()> {
        let mut next = self.superblock();
        let mut writes = WriteSet::default();
        self.collect_derived(progress.done, &mut writes, &mut next)?;
        next.state = State::Clean;
        next.holder = None;
        self.write_derived(writes, &next, true)
    }

    /// With the gate closed, adds what is derived beside the locator table and the indexes to what
    /// is written, and begins a new generation of the busy log. False, and nothing is begun, if the
    /// device has all that is derived already.
    pub(super) fn collect_derived(
        &self,
        epoch: EpochNo,
        writes: &mut WriteSet,
        next: &mut Superblock,
    ) -> Result<bool> {
        let inodes = self.inodes();
        let before = writes.is_empty();
        let nameless = inodes.nameless();
        let space: Vec<FragRun> = nameless
            .iter()
            .flat_map(|vnode| space_of(&vnode.state.read(), &inodes.layout))
            .collect();
        next.generation = next.generation.wrapping_add(1);
        inodes.alloc.save(writes, next, &space)?;
        next.epoch = epoch.0;
        next.inodes = inodes.locator.inodes();
        next.inode_rotor = inodes.locator.rotor();
        if next.state == State::Clean && before && writes.is_empty() {
            return Ok(false);
        }
        inodes.busy.begin(next.generation);
        for vnode in nameless {
            inodes.locator_table().note_nameless(vnode.ino)?;
        }
        inodes.busy.write(writes);
        Ok(true)
    }

    /// Writes bitmaps, and then the superblock that refers to them.
    fn write_derived(&self, writes: WriteSet, next: &Superblock, copies: bool) -> Result<()> {
        if copies || !writes.is_empty() {
            self.mark_in_use()?;
        }
        self.inodes().commit(writes)?;
        self.write_superblock(next, copies)?;
        *self.superblock.lock() = next.clone();
        Ok(())
    }

    /// Marks the volume as in use, durably, before anything else is written.
    pub(super) fn mark_in_use(&self) -> Result<()> {
        if let Some(next) = self.in_use() {
            self.write_superblock(&next, false)?;
            *self.superblock.lock() = next;
        }
        Ok(())
    }

    /// The superblock that marks the volume as in use; `None` if it is marked.
    pub(super) fn in_use(&self) -> Option<Superblock> {
        let superblock = self.superblock();
        (superblock.state != State::InUse)
            .then_some(Superblock { state: State::InUse, ..superblock })
    }

    /// Notes that the volume is opened for writing, and marks it as in use.
    pub(super) fn mark_mounted(&self) -> Result<()> {
        {
            let mut superblock = self.superblock.lock();
            superblock.mounts = superblock.mounts.saturating_add(1);
            superblock.mounted_at = self.inodes().clock.now().seconds.max(0) as u64;
        }
        self.mark_in_use()
    }

    pub(super) fn write_superblock(&self, superblock: &Superblock, copies: bool) -> Result<()> {
        let _patient = Patient::begin();
        self.check_mark()?;
        let inodes = self.inodes();
        let block = self.superblock_block(superblock);
        let mut writes = WriteSet::default();
        if copies {
            let system = inodes.cache.read(inodes.layout.system_area())?;
            // The nearest copies are enough to come back from a lost superblock; the others keep
            // what mkfs wrote, which has the geometry.
            for copy in inodes.layout.superblock_copies().into_iter().take(2) {
                writes.put_block(Phase::New, copy, block.clone());
                writes.put_block(Phase::New, BlockNo(copy.0 + 1), system.clone());
            }
        }
        writes.put_block(Phase::Change, BlockNo(0), block);
        inodes.commit(writes)
    }

    pub(super) fn superblock_block(&self, superblock: &Superblock) -> Arc<Block> {
        let mut block = Block::zeroed(self.inodes().layout.block_bytes as usize);
        // Damage may be met while the rest of the superblock was put together.
        let mut superblock = Superblock { damage: self.damage.get(), ..superblock.clone() };
        if log::has_log(&superblock) && self.inodes().cache.device().log_stats().is_none() {
            // It lies on a device that is not there. A log that is there sets this by itself.
            superblock.log.flags |= LogFlags::UNUSED;
        }
        let bytes = superblock.encode();
        block[..bytes.len()].copy_from_slice(&bytes);
        Arc::new(block)
    }
}
