//! Epochs: writing changes to the device (DESIGN: epochs).
//!
//! An epoch starts with the gate closed: without I/O, changed pages are placed, inodes are encoded into their
//! sectors, and a snapshot of all writes is taken. Then the gate opens, and the snapshot is written, phase by
//! phase, while new changes join the next epoch. Large amounts of new contents are written before that
//! ([`EarlyWriter`]).
//!
//! ```text
//!   gate closed            gate open
//!   place ─ encode ─ seal │ New ┆ Table ┆ Change ┆ Settle ┆ sync │ freed space is allocatable
//!                         │     barriers between                │ pages leave for the cache
//! ```

use std::sync::Arc;

use super::EpochWriter;
use super::early::EarlyWriter;
use super::fsync::{Choice, is_taken};
use super::prepare::{Preparation, Prepared};
use super::progress::{EpochKind, Progress, finish_writes};
use crate::cache::{Phase, Stage};
use crate::device::Patient;
use crate::error::Result;
use crate::inode::Vnode;
use crate::lock::Rule;
use crate::units::{BlockNo, InodeNo};

impl EpochWriter {
    /// Makes files durable together; see [`Volume::sync_files`](crate::vfs::Volume::sync_files).
    pub(crate) fn sync_files(&self, vnodes: &[Arc<Vnode>], data_only: bool) -> Result<()> {
        // While the gate is open no epoch is being prepared: the file is in an earlier one, or waits
        // for one that is not older than `since`.
        let (since, is_taken) = {
            let _gate = self.gate.read();
            let since = self.inodes.epoch();
            // Names of directories above the file may change without it, and so may its former name.
            let all_taken = vnodes.iter().all(|vnode| is_taken(vnode, data_only));
            (since, all_taken && !self.inodes.concerns_unchanged(since))
        };
        if is_taken {
            self.callers.wait_for_epochs_before(since, || self.health.check_writable().is_ok());
            return self.health.check_writable();
        }
        let files: Vec<InodeNo> = vnodes.iter().map(|vnode| vnode.ino).collect();
        if let Some(_lead) = self.callers.ask(&files, since) {
            let mut progress = self.epochs.lock();
            if progress.complete < since {
                self.write_epoch(&mut progress, EpochKind::Wanted)?;
            }
        }
        Ok(())
    }

    /// Writes an epoch with all that was changed before the call. If another thread wrote one meanwhile that
    /// began after the call, that epoch suffices.
    pub(crate) fn commit(&self) -> Result<()> {
        let since = self.inodes.epoch();
        let _gate = (!Rule::EpochsBeforeGate.holds()).then(|| self.gate.read());
        let mut progress = self.epochs.lock();
        if progress.complete >= since {
            return Ok(());
        }
        self.write_epoch(&mut progress, EpochKind::Plain)
    }

    /// Writes an epoch, with a checkpoint if the intent log calls for one.
    fn write_epoch(&self, progress: &mut Progress, kind: EpochKind) -> Result<()> {
        self.health.check_writable()?;
        let is_high = self.inodes.intent_log.fill().is_high();
        if is_high && self.checkpoints().is_due(progress) {
            return self.checkpoints().run_locked(progress);
        }
        self.run_epoch(progress, kind)
    }

    pub(crate) fn run_epoch(&self, progress: &mut Progress, kind: EpochKind) -> Result<()> {
        let _patient = Patient::begin();
        let started = self.inodes.clock.monotonic();
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
            EarlyWriter::new(self).write_contents_first(progress)?;
        }
        stage.set(Some(Stage::Gate));
        let prepared = {
            let _gate = self.gate.write();
            stage.set(Some(Stage::Preparing));
            match kind {
                EpochKind::Checkpoint => self.checkpoints().prepare(progress, |_| {})?,
                _ => self.prepare(progress, kind)?,
            }
        };
        self.throttle.taken_over();
        self.complete(progress, prepared)
    }

    /// With the gate closed, writes an epoch with all derived state.
    pub(crate) fn write_all(&self, progress: &mut Progress) -> Result<()> {
        let _patient = Patient::begin();
        progress.waited_from = self.inodes.clock.monotonic();
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
        let compression = compresses.then(|| self.superblock.get().compression);
        let prepared =
            Preparation::new(&self.inodes, choice, hints, with_derived, derived_bytes_max)
                .compressed(compression)
                .run()?;
        if let Some(error) = &prepared.unread {
            self.superblock.mark_walked();
            self.health.note_error(error);
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
            let mark = self.superblock.in_use();
            if let Some(mark) = &mark {
                self.superblock.check_mark()?;
                writes.put_block(Phase::New, BlockNo(0), self.superblock.encode(mark));
            }
            if std::mem::take(&mut progress.early.is_in_motion) {
                writes.follow();
            }
            inodes.commit(writes)?;
            if let Some(mark) = mark {
                self.superblock.set(mark);
            }
            progress.written = inodes.clock.monotonic();
        }
        if let Some(next) = superblock {
            self.superblock.write(&next, false)?;
            self.superblock.set(next);
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
