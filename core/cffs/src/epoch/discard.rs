//! Discards: telling the device which blocks are free.
//!
//! Discards the blocks that epochs have freed (`-o discard`), and the blocks that trim names.
//!
//! Invariants: a system block is never discarded, and neither is a block that a crash could bring back or
//! that is about to be written. [`Layout::next_system_run`](crate::format::Layout::next_system_run) tells
//! trim, allocator and fsck alike which blocks are system blocks. While the lock of epochs is held, blocks
//! that the bitmaps in memory call free are safe to discard: blocks that the open epoch frees are not in the
//! bitmaps yet, those of all earlier epochs are free on the device, too, and nothing is written to free space
//! without that lock. So free space is looked up and discarded under one hold of it; holds are short, because
//! an fsync waits for them.

use std::ops::Range;

use super::EpochWriter;
use super::freed::Freed;
use super::progress::Progress;
use crate::error::Result;
use crate::trace::OpKind;
use crate::units::{BlockNo, FragNo, FragRun};

/// Discards that are sent under one hold of the lock of epochs.
pub(crate) const BATCH_RUNS: usize = 64;

/// The result of a trim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trimmed {
    /// Bytes.
    pub bytes: u64,
    /// Requests to the device.
    pub requests: u64,
}

impl EpochWriter {
    /// With [`OpenOptions::discard`](crate::options::OpenOptions::discard), discards the blocks that epochs
    /// have freed and that are still free, as the background does.
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

    /// Discards one batch of the freed runs; false if none is left.
    pub(crate) fn discard_some(&self, progress: &mut Progress, trimmed: &mut Trimmed) -> bool {
        let freed = &mut progress.freed;
        freed.merge();
        let rest = freed.runs.split_off(freed.runs.len().min(BATCH_RUNS));
        let batch = std::mem::replace(&mut freed.runs, rest);
        for run in batch {
            if let Err(error) = self.discard_still_free(run, trimmed) {
                // A failure only costs room on the device.
                tracing::warn!(%error, "the device failed a discard; no more are sent");
                *freed = Freed { runs: Vec::new(), has_failed: true };
                return false;
            }
        }
        !freed.runs.is_empty()
    }

    /// Discards the free blocks among those in which a run is. The run may go beyond the end of a group;
    /// its first and last block may have been shared with other files, whose parts may be free by now.
    fn discard_still_free(&self, run: FragRun, trimmed: &mut Trimmed) -> Result<()> {
        let layout = &self.inodes.layout;
        let per_block = u64::from(layout.block_fragments());
        let mut from = FragNo(run.start.0 / per_block * per_block);
        let run_end = run.end().0.next_multiple_of(per_block);
        while from.0 < run_end {
            let cg = layout.cg_of_fragment(from);
            let first = layout.block_start(layout.cg_start(cg)).0;
            let end = FragNo(run_end.min(first + u64::from(layout.cg_fragments(cg))));
            let part = FragRun::new(from, (end.0 - from.0) as u32);
            for free in self.inodes.alloc.free_blocks(part, usize::MAX)? {
                self.discard_run(free, 1, trimmed)?;
            }
            from = end;
        }
        Ok(())
    }

    pub(crate) fn next_system_run(&self, from: BlockNo) -> Range<BlockNo> {
        self.inodes.layout.next_system_run(from, self.inodes.alloc.groups_used())
    }

    /// Discards the whole blocks of a run.
    pub(crate) fn discard_run(
        &self,
        run: FragRun,
        least: u64,
        trimmed: &mut Trimmed,
    ) -> Result<()> {
        let layout = &self.inodes.layout;
        let per_block = u64::from(layout.block_fragments());
        let first = layout.block_of(FragNo(run.start.0.next_multiple_of(per_block)));
        self.discard_blocks(first..layout.block_of(run.end()), least, trimmed)
    }

    pub(crate) fn discard_blocks(
        &self,
        blocks: Range<BlockNo>,
        least: u64,
        trimmed: &mut Trimmed,
    ) -> Result<()> {
        let count = blocks.end.0.saturating_sub(blocks.start.0);
        if count >= least.max(1) {
            let system = self.next_system_run(blocks.start);
            assert!(blocks.end <= system.start, "{blocks:?} would be discarded with {system:?}");
            self.inodes.cache.discard(blocks.start, count)?;
            trimmed.bytes += count * u64::from(self.inodes.layout.block_bytes);
            trimmed.requests += 1;
        }
        Ok(())
    }
}
