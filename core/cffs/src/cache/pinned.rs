//! Pinned blocks: a caller that reads many blocks before it uses them pins them, since the cache may
//! evict the first while the last are read.

use std::ops::Range;
use std::sync::Arc;

use super::{Block, BufferCache, SEGMENT_LOCKS};
use crate::lock::MutexGuard;
use crate::units::BlockNo;

/// Copies of cached blocks, each with the version of its segment.
#[derive(Default)]
pub struct PinnedBlocks(Vec<(BlockNo, Arc<Block>, u64)>);

impl BufferCache {
    fn version(&self, block: BlockNo) -> MutexGuard<'_, u64> {
        self.versions[self.segment_of(block) as usize % SEGMENT_LOCKS].lock()
    }

    /// Pins those of the blocks that are in memory.
    pub fn pin(&self, blocks: Range<u64>, pinned: &mut PinnedBlocks) {
        for block in blocks.map(BlockNo) {
            let version = *self.version(block);
            pinned.0.extend(self.clean.peek(&block).map(|image| (block, image, version)));
        }
    }

    /// Restores evicted ones, unless they were written since.
    pub fn restore(&self, pinned: &PinnedBlocks) {
        for (block, image, version) in &pinned.0 {
            let now = self.version(*block);
            if *now == *version && !self.clean.contains_key(block) {
                self.clean.insert(*block, Arc::clone(image));
            }
        }
    }

    /// Drops the pinned blocks from the cache: they will not be read again, and other blocks
    /// stay instead.
    pub fn unpin(&self, pinned: PinnedBlocks) {
        pinned.0.into_iter().for_each(|(block, ..)| self.forget(block));
    }
}
