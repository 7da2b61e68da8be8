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

use super::freed::Freed;
use crate::error::Result;
use crate::inode::InodeCache;
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

/// Tells the device which blocks are free, and counts what it tells.
pub(crate) struct Discarder<'a> {
    inodes: &'a InodeCache,
    /// Shorter runs are left out, in blocks.
    least: u64,
    pub(crate) trimmed: Trimmed,
}

impl<'a> Discarder<'a> {
    pub(crate) fn new(inodes: &'a InodeCache, least: u64) -> Discarder<'a> {
        Discarder { inodes, least: least.max(1), trimmed: Trimmed::default() }
    }

    /// Discards one batch of the freed runs; false if none is left.
    pub(super) fn discard_some(&mut self, freed: &mut Freed) -> bool {
        freed.merge();
        let rest = freed.runs.split_off(freed.runs.len().min(BATCH_RUNS));
        let batch = std::mem::replace(&mut freed.runs, rest);
        for run in batch {
            if let Err(error) = self.discard_still_free(run) {
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
    fn discard_still_free(&mut self, run: FragRun) -> Result<()> {
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
                self.discard_run(free)?;
            }
            from = end;
        }
        Ok(())
    }

    /// Discards the whole blocks of a run.
    pub(crate) fn discard_run(&mut self, run: FragRun) -> Result<()> {
        let layout = &self.inodes.layout;
        let per_block = u64::from(layout.block_fragments());
        let first = layout.block_of(FragNo(run.start.0.next_multiple_of(per_block)));
        self.discard_blocks(first..layout.block_of(run.end()))
    }

    pub(crate) fn discard_blocks(&mut self, blocks: Range<BlockNo>) -> Result<()> {
        let count = blocks.end.0.saturating_sub(blocks.start.0);
        if count >= self.least {
            let system = self.next_system_run(blocks.start);
            assert!(blocks.end <= system.start, "{blocks:?} would be discarded with {system:?}");
            self.inodes.cache.discard(blocks.start, count)?;
            self.trimmed.bytes += count * u64::from(self.inodes.layout.block_bytes);
            self.trimmed.requests += 1;
        }
        Ok(())
    }

    pub(crate) fn next_system_run(&self, from: BlockNo) -> Range<BlockNo> {
        self.inodes.layout.next_system_run(from, self.inodes.alloc.groups_used())
    }
}
