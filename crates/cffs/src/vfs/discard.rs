//! Discards: the device learns what is free, so that an image gives its space back to the host, and an
//! SSD or a thin volume has less to keep.
//!
//! Offers [`Volume::trim`], which discards all that is free, and what `-o discard` does: the background
//! discards what epochs have freed.
//!
//! Invariants: a system block is never discarded, and neither is a block that a crash could bring back or
//! that is about to be written. [`Layout::next_system_run`](crate::format::Layout::next_system_run) tells
//! trim, allocator and fsck alike which blocks are system blocks. While the lock of epochs is held, blocks
//! that the bitmaps in memory call free are safe to discard: blocks that the open epoch frees are not in the
//! bitmaps yet, those of all earlier epochs are free on the device, too, and nothing is written to free space
//! without that lock. So free space is looked up and discarded under one hold of it; holds are short, because
//! an fsync waits for them.

use std::ops::Range;

use super::Volume;
use super::freed::Freed;
use super::progress::Progress;
use crate::error::Result;
use crate::trace::OpKind;
use crate::units::{BlockNo, CgIndex, FragNo, FragRun};

/// Discards that are sent under one hold of the lock of epochs.
const BATCH_RUNS: usize = 64;

/// The result of a trim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trimmed {
    /// Bytes.
    pub bytes: u64,
    /// Requests to the device.
    pub requests: u64,
}

impl Volume {
    /// Discards the free space of a range of the volume, in bytes, but for runs shorter than
    /// `least_bytes`. What was freed before the call counts as free, and is durably so.
    ///
    /// Takes the longer the more cylinder groups were ever used; space that never was is discarded in
    /// a few requests. Changes go on meanwhile.
    ///
    /// # Errors
    ///
    /// [`ReadOnly`](crate::error::Error::ReadOnly) and [`Latched`](crate::error::Error::Latched) as for
    /// changes; [`Io`](crate::error::Error::Io) where the device failed
    /// a discard, and then the rest is left as it is.
    pub fn trim(&self, range: Range<u64>, least_bytes: u64) -> Result<Trimmed> {
        let _op = self.enter_volume(OpKind::Maintenance);
        self.commit()?;
        let mut trimmed = Trimmed::default();
        let block_bytes = u64::from(self.inodes().layout.block_bytes);
        let least = least_bytes.div_ceil(block_bytes).max(1);
        let mut from = BlockNo(range.start.div_ceil(block_bytes));
        let until = BlockNo((range.end / block_bytes).min(self.inodes().layout.blocks));
        while from < until {
            let _epochs = self.epochs.lock();
            self.check_writable()?;
            let cg = self.inodes().layout.cg_of(from);
            from = if cg.0 < self.inodes().alloc.groups_used() {
                self.trim_used(cg, from..until, least, &mut trimmed)?
            } else {
                self.trim_unused(from..until, least, &mut trimmed)?
            };
        }
        Ok(trimmed)
    }

    /// Discards the next free runs of a group, and returns where to go on.
    fn trim_used(
        &self,
        cg: CgIndex,
        part: Range<BlockNo>,
        least: u64,
        trimmed: &mut Trimmed,
    ) -> Result<BlockNo> {
        let layout = &self.inodes().layout;
        let group_end = layout.cg_start(cg).0 + u64::from(layout.cg_len_blocks(cg));
        let end = BlockNo(part.end.0.min(group_end));
        let start = layout.block_start(part.start);
        let len = (layout.block_start(end).0 - start.0) as u32;
        let runs = self.inodes().alloc.free_blocks(FragRun::new(start, len), BATCH_RUNS)?;
        for run in &runs {
            self.discard_run(*run, least, trimmed)?;
        }
        match runs.last() {
            Some(last) if runs.len() == BATCH_RUNS => Ok(layout.block_of(last.end())),
            _ => Ok(end),
        }
    }

    /// Discards the next piece of the groups that were never used, up to the next system blocks, and
    /// returns where to go on.
    fn trim_unused(
        &self,
        part: Range<BlockNo>,
        least: u64,
        trimmed: &mut Trimmed,
    ) -> Result<BlockNo> {
        let system = self.next_system_run(part.start);
        if system.start <= part.start {
            return Ok(system.end);
        }
        let end = system.start.min(part.end);
        self.discard_blocks(part.start..end, least, trimmed)?;
        Ok(end)
    }

    fn next_system_run(&self, from: BlockNo) -> Range<BlockNo> {
        self.inodes().layout.next_system_run(from, self.inodes().alloc.groups_used())
    }

    /// Discards the whole blocks of a run.
    fn discard_run(&self, run: FragRun, least: u64, trimmed: &mut Trimmed) -> Result<()> {
        let layout = &self.inodes().layout;
        let per_block = u64::from(layout.block_fragments());
        let first = layout.block_of(FragNo(run.start.0.next_multiple_of(per_block)));
        self.discard_blocks(first..layout.block_of(run.end()), least, trimmed)
    }

    fn discard_blocks(
        &self,
        blocks: Range<BlockNo>,
        least: u64,
        trimmed: &mut Trimmed,
    ) -> Result<()> {
        let count = blocks.end.0.saturating_sub(blocks.start.0);
        if count >= least.max(1) {
            let system = self.next_system_run(blocks.start);
            assert!(blocks.end <= system.start, "{blocks:?} would be discarded with {system:?}");
            self.inodes().cache.discard(blocks.start, count)?;
            trimmed.bytes += count * u64::from(self.inodes().layout.block_bytes);
            trimmed.requests += 1;
        }
        Ok(())
    }

    /// With [`OpenOptions::discard`](super::OpenOptions::discard), discards what epochs have freed and
    /// nobody has taken since, as the background and [`Volume::close`] do. Returns what was discarded.
    ///
    /// # Errors
    ///
    /// `EROFS` if the volume refuses changes; `ESTALE` once it is closed. A device that fails a
    /// discard is no error.
    pub fn discard_freed(&self) -> Result<Trimmed> {
        let _op = self.enter_volume(OpKind::Maintenance);
        let mut trimmed = Trimmed::default();
        loop {
            let mut progress = self.epochs.lock();
            self.check_writable()?;
            if !self.discard_some(&mut progress, &mut trimmed) {
                return Ok(trimmed);
            }
        }
    }

    /// Discards one batch of what epochs have freed; false if there is nothing left.
    pub(super) fn discard_some(&self, progress: &mut Progress, trimmed: &mut Trimmed) -> bool {
        let freed = &mut progress.freed;
        freed.merge();
        let rest = freed.runs.split_off(freed.runs.len().min(BATCH_RUNS));
        let batch = std::mem::replace(&mut freed.runs, rest);
        for run in batch {
            if let Err(error) = self.discard_still_free(run, trimmed) {
                // Nothing is lost by it but room on the device.
                tracing::warn!(%error, "the device failed a discard; no more are sent");
                *freed = Freed { runs: Vec::new(), has_failed: true };
                return false;
            }
        }
        !freed.runs.is_empty()
    }

    /// Discards what is free of the blocks in which a run lies. The run may go beyond the end of a
    /// group; of its first and its last block others may have had a part that is free by now.
    fn discard_still_free(&self, run: FragRun, trimmed: &mut Trimmed) -> Result<()> {
        let layout = &self.inodes().layout;
        let per_block = u64::from(layout.block_fragments());
        let mut from = FragNo(run.start.0 / per_block * per_block);
        let run_end = run.end().0.next_multiple_of(per_block);
        while from.0 < run_end {
            let cg = layout.cg_of_fragment(from);
            let first = layout.block_start(layout.cg_start(cg)).0;
            let end = FragNo(run_end.min(first + u64::from(layout.cg_fragments(cg))));
            let part = FragRun::new(from, (end.0 - from.0) as u32);
            for free in self.inodes().alloc.free_blocks(part, usize::MAX)? {
                self.discard_run(free, 1, trimmed)?;
            }
            from = end;
        }
        Ok(())
    }
}
