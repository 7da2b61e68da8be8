//! Epochs: writing changes to the device (DESIGN: epochs).
//!
//! An epoch starts with the gate closed: without I/O, changed pages are placed, inodes are encoded into their
//! sectors, and a snapshot of all writes is taken. Then the gate opens, and the snapshot is written, phase by
//! phase, while new changes join the next epoch. Large amounts of new contents are written before that
//! ([`EpochWriter::write_contents_first`]).
//!
//! ```text
//!   gate closed            gate open
//!   place ─ encode ─ seal │ New ┆ Table ┆ Change ┆ Settle ┆ sync │ freed space is allocatable
//!                         │     barriers between                │ pages leave for the cache
//! ```

use std::time::Instant;

use super::EpochWriter;
use super::discard::Trimmed;
use super::fsync::Choice;
use super::prepare::{Preparation, Prepared};
use super::progress::{EpochKind, Progress, finish_writes};
use crate::cache::{Phase, Stage};
use crate::device::Patient;
use crate::error::Result;
use crate::lock::Rule;
use crate::trace::OpKind;
use crate::units::BlockNo;

impl EpochWriter {
    /// Writes an epoch if one is due, and a clean point if nothing has been changed for a while. A thread of
    /// the front end calls this about once a second ([`with_background`](EpochWriter::with_background)).
    ///
    /// # Errors
    ///
    /// Those of the [device](crate::vfs#errors), which latch the volume. On a volume that refuses changes it
    /// does nothing and succeeds.
    pub fn background(&self) -> Result<()> {
        let _op = self.enter_volume(OpKind::Background);
        if self.check_writable().is_err() {
            return Ok(());
        }
        let mut progress = match self.epochs.try_lock() {
            Some(progress) => progress,
            // Others may be waiting for an epoch that begins after the one that is being written.
            None if self.is_filling() => self.epochs.lock(),
            None => return Ok(()),
        };
        self.save_damage()?;
        if self.inodes.queue_len() == 0 {
            progress.waited_from = Instant::now();
            self.forget_reads();
        }
        let is_due = progress.waited_from.elapsed() >= self.options.epoch_interval;
        if !is_due && self.is_early_due() {
            let written = self.run_early(&mut progress)?;
            // Newer contents can be written ahead as well, since an epoch waits for the device more than
            // once. Callers that wait for an epoch can take the lock in between.
            if written >= self.options.early_bytes && self.is_early_due() {
                self.throttle.call();
                return Ok(());
            }
        }
        if (is_due || self.is_filling()) && self.inodes.queue_len() > 0 {
            self.run_epoch(&mut progress, EpochKind::Plain)?;
        }
        if self.is_mark_due(&progress) {
            self.try_mark_clean(&mut progress)?;
        } else if self.is_checkpoint_due(&progress) {
            self.run_checkpoint(&mut progress)?;
        }
        self.discard_some(&mut progress, &mut Trimmed::default());
        Ok(())
    }

    pub(crate) fn run_epoch(&self, progress: &mut Progress, kind: EpochKind) -> Result<()> {
        let _patient = Patient::begin();
        let started = Instant::now();
        let has_changes = self.inodes.queue_len() > 0;
        let result = self.try_epoch(progress, kind);
        self.inodes.cache.stage.set(None);
        // Files that were left behind have waited since an earlier epoch.
        if progress.complete == progress.done {
            progress.waited_from = started;
        }
        if let Err(error) = &result {
            self.health.note_failed(has_changes);
            self.latch(error);
        } else if progress.complete == progress.done {
            self.health.note_durable(started);
        }
        result
    }

    fn try_epoch(&self, progress: &mut Progress, kind: EpochKind) -> Result<()> {
        let stage = &self.inodes.cache.stage;
        // An fsync leaves behind the streams of other files, which are only known once the gate is closed.
        if kind != EpochKind::Wanted {
            stage.set(Some(Stage::Writing(Phase::New)));
            self.write_contents_first(progress)?;
        }
        stage.set(Some(Stage::Gate));
        let prepared = {
            let _gate = self.gate.write();
            stage.set(Some(Stage::Preparing));
            match kind {
                EpochKind::Checkpoint => self.prepare_checkpoint(progress, |_| {})?,
                _ => self.prepare(progress, kind)?,
            }
        };
        self.taken_over();
        self.complete(progress, prepared)
    }

    /// With the gate closed, writes an epoch with all derived state.
    pub(crate) fn write_all(&self, progress: &mut Progress) -> Result<()> {
        let _patient = Patient::begin();
        progress.waited_from = Instant::now();
        let prepared = self.prepare(progress, EpochKind::Derived)?;
        self.complete(progress, prepared)
    }

    pub(crate) fn prepare(&self, progress: &mut Progress, kind: EpochKind) -> Result<Prepared> {
        assert!(self.gate.is_locked_exclusive(), "no change is under way");
        let wanted = self.callers.take();
        let leaves_bytes = self.options.fsync_leaves_bytes;
        let derived_bytes_max = self.inodes.cache.tuning().writing.derived_bytes_max;
        let choice = (kind == EpochKind::Wanted).then_some(Choice { wanted, leaves_bytes });
        let hints = std::mem::take(&mut progress.early.hints);
        let with_derived = matches!(kind, EpochKind::Derived | EpochKind::Checkpoint);
        let derived_bytes_max = derived_bytes_max.min(self.options.dirty_bytes_max / 4);
        // A caller of fsync waits for an epoch of this kind, so it compresses nothing.
        let compresses = kind != EpochKind::Wanted && self.inodes.layout.has_clusters();
        let compression = compresses.then(|| self.superblock().compression);
        let prepared =
            Preparation::new(&self.inodes, choice, hints, with_derived, derived_bytes_max)
                .compressed(compression)
                .run()?;
        if let Some(error) = &prepared.unread {
            // Directories above changes have old stamps. Lists since earlier marks enter all directories.
            {
                let mut superblock = self.superblock.lock();
                superblock.marks_walked = superblock.stamp();
            }
            self.note_error(error);
        }
        self.counts.note_clusters(prepared.clusters, self.inodes.layout.fragment_bytes);
        Ok(prepared)
    }

    /// Writes an epoch that was prepared.
    pub(crate) fn complete(&self, progress: &mut Progress, prepared: Prepared) -> Result<()> {
        let inodes = &*self.inodes;
        let Prepared { epoch, mut writes, mut in_flight, left, superblock, .. } = prepared;
        if !Rule::PagesStay.holds() {
            finish_writes(std::mem::take(&mut in_flight), epoch);
        }
        if !writes.is_empty() {
            // Nothing points to the blocks of the first phase yet, so the mark may be written with them.
            let mark = self.in_use();
            if let Some(mark) = &mark {
                self.check_mark()?;
                writes.put_block(Phase::New, BlockNo(0), self.superblock_block(mark));
            }
            if std::mem::take(&mut progress.early.is_in_motion) {
                writes.follow();
            }
            inodes.commit(writes)?;
            if let Some(mark) = mark {
                *self.superblock.lock() = mark;
            }
            progress.written = Instant::now();
        }
        if let Some(next) = superblock {
            self.write_superblock(&next, false)?;
            *self.superblock.lock() = next;
        }
        finish_writes(in_flight, epoch);
        inodes.epoch_done(epoch);
        let freed = inodes.alloc.epoch_done()?;
        if self.options.discard {
            progress.freed.add(freed);
        }
        inodes.locator.epoch_done();
        inodes.alloc.fill_pool()?;
        progress.done = epoch;
        if left.is_empty() {
            progress.complete = epoch;
        }
        self.callers.reached(epoch, left);
        self.counts.epochs.count();
        Ok(())
    }
}
