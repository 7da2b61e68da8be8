//! The clean blocks: those that equal the device's, by number, and the locks of their segments.
//!
//! A segment's version counts the writes that replaced blocks of it. A block that was read is added only if
//! the version is still the same as before the read.

use std::ops::Range;
use std::sync::Arc;

use super::Block;
use crate::format::Layout;
use crate::locality::LocalityHash;
use crate::lock::{Mutex, MutexGuard, Rank, Rule};
use crate::processors;
use crate::units::{BlockNo, Class};

/// Locks that keep two readers from reading one segment twice, and a reader from restoring blocks that a
/// writer has just replaced.
const SEGMENT_LOCKS: usize = 256;
/// The number of parts of the cache; each has a lock.
const PARTS_PER_CORE: usize = 4;
const PART_BLOCKS_MIN: usize = 4096;

/// Blocks by number. Those of a file are mostly adjacent, and so are their hashes.
type Map = quick_cache::sync::Cache<BlockNo, Arc<Block>, quick_cache::UnitWeighter, LocalityHash>;

/// The clean blocks in memory.
pub struct CleanBlocks {
    /// Changed by the methods below alone.
    pub(super) map: Map,
    block_bytes: usize,
    segment_blocks: u64,
    /// Held while a segment is read.
    segments: Vec<Mutex<()>>,
    versions: Vec<Mutex<u64>>,
}

/// The contents of a run, and the versions of its segments before it was read.
pub(super) struct Fetched<'a> {
    pub(super) first: BlockNo,
    pub(super) versions: Vec<u64>,
    pub(super) bytes: &'a [u8],
}

/// Pinned blocks: copies of cached blocks, each with the version of its segment. A caller that reads many
/// blocks before it uses them pins them, since the cache may evict the first while the last are read.
#[derive(Default)]
pub struct PinnedBlocks(Vec<(BlockNo, Arc<Block>, u64)>);

impl CleanBlocks {
    /// At most this many blocks.
    pub(super) fn new(blocks: usize, hot_part: f64, layout: &Layout) -> CleanBlocks {
        // A part gets whole runs of blocks, so it must be large enough for many: otherwise one part is full
        // while others have room.
        let parts = processors::available() * PARTS_PER_CORE;
        let options = quick_cache::OptionsBuilder::new()
            .shards(parts.min(blocks / PART_BLOCKS_MIN).max(1))
            .estimated_items_capacity(blocks)
            .weight_capacity(blocks as u64)
            .hot_allocation(hot_part)
            .build()
            .expect("capacities are given");
        let lifecycle = quick_cache::sync::DefaultLifecycle::default();
        let hash = LocalityHash::new(1);
        CleanBlocks {
            map: Map::with_options(options, quick_cache::UnitWeighter, hash, lifecycle),
            block_bytes: layout.block_bytes as usize,
            segment_blocks: u64::from(layout.segment_blocks()),
            segments: (0..SEGMENT_LOCKS).map(|_| Mutex::new(Rank::Segment, ())).collect(),
            versions: (0..SEGMENT_LOCKS).map(|_| Mutex::new(Rank::Version, 0)).collect(),
        }
    }

    fn segment_of(&self, block: BlockNo) -> u64 {
        block.0 / self.segment_blocks
    }

    /// The end of the segment that has this block.
    pub(super) fn segment_end(&self, block: BlockNo) -> u64 {
        (self.segment_of(block) + 1) * self.segment_blocks
    }

    /// The lock under which the segment of this block is read.
    pub(super) fn reading(&self, block: BlockNo) -> MutexGuard<'_, ()> {
        self.segments[self.segment_of(block) as usize % SEGMENT_LOCKS].lock()
    }

    fn version(&self, segment: u64) -> MutexGuard<'_, u64> {
        self.versions[segment as usize % SEGMENT_LOCKS].lock()
    }

    /// The versions of the segments of a run.
    pub(super) fn versions(&self, run: Range<BlockNo>) -> Vec<u64> {
        let segments = self.segment_of(run.start)..=self.segment_of(BlockNo(run.end.0 - 1));
        segments.map(|segment| *self.version(segment)).collect()
    }

    /// Adds the missing blocks of a part of a run; returns the block `wanted`. The first use of one of the
    /// first `marked` blocks of the run triggers the next run of the stream.
    pub(super) fn take_over(
        &self,
        fetched: &Fetched<'_>,
        part: Range<u64>,
        wanted: Option<BlockNo>,
        marked: u64,
    ) -> Option<Arc<Block>> {
        let &Fetched { first, ref versions, bytes } = fetched;
        let block_bytes = self.block_bytes;
        assert!(!part.is_empty() && first.0 <= part.start, "a part of what was read");
        assert!((part.end - first.0) as usize * block_bytes <= bytes.len(), "and no more");
        let mut found = None;
        let from = self.segment_of(BlockNo(part.start));
        let skipped = (from - self.segment_of(first)) as usize;
        let segments = from..=self.segment_of(BlockNo(part.end - 1));
        for (segment, before) in segments.zip(&versions[skipped..]) {
            let now = self.version(segment);
            let first_of = segment * self.segment_blocks;
            let end_of = first_of + self.segment_blocks;
            for number in first_of.max(part.start)..end_of.min(part.end) {
                let at = (number - first.0) as usize * block_bytes;
                if (*now == *before || !Rule::VersionsCompared.holds())
                    && !self.map.contains_key(&BlockNo(number))
                {
                    let image = Block::new(&bytes[at..at + block_bytes]);
                    if number - first.0 < marked {
                        image.mark();
                    }
                    let is_wanted = Some(BlockNo(number)) == wanted;
                    if !is_wanted {
                        image.set_prefetched();
                    }
                    let image = Arc::new(image);
                    if is_wanted {
                        found = Some(image.clone());
                    }
                    self.map.insert(BlockNo(number), image);
                } else if let Some(block) = wanted.filter(|block| block.0 == number) {
                    // A write replaced the block meanwhile: its version in memory counts, or if that was
                    // evicted, the device's.
                    found = self.map.get(&block);
                }
            }
        }
        found
    }

    /// Adds blocks that were just written, as the device's new contents.
    pub(super) fn install(&self, block: BlockNo, image: Arc<Block>) {
        let mut version = self.version(self.segment_of(block));
        *version += 1;
        self.map.insert(block, image);
    }

    /// Forgets a block, so that the next read asks the device.
    pub fn forget(&self, block: BlockNo) {
        let mut version = self.version(self.segment_of(block));
        *version += 1;
        self.map.remove(&block);
    }

    /// Metadata counts as used, so that it outlasts blocks that are used once: it is small, and it is read
    /// before the contents of all directories. It is marked twice, since the cache ignores the first use when
    /// it promotes a block.
    pub(super) fn let_stay(&self, run: Range<u64>, class: Class) {
        if class == Class::Metadata {
            for block in run.map(BlockNo) {
                self.map.get(&block);
                self.map.get(&block);
            }
        }
    }

    /// Pins those of the blocks that are in memory.
    pub fn pin(&self, blocks: Range<u64>, pinned: &mut PinnedBlocks) {
        for block in blocks.map(BlockNo) {
            let version = *self.version(self.segment_of(block));
            pinned.0.extend(self.map.peek(&block).map(|image| (block, image, version)));
        }
    }

    /// Restores evicted ones, unless they were written since.
    pub fn restore(&self, pinned: &PinnedBlocks) {
        for (block, image, version) in &pinned.0 {
            let now = self.version(self.segment_of(*block));
            if *now == *version && !self.map.contains_key(block) {
                self.map.insert(*block, Arc::clone(image));
            }
        }
    }

    /// Drops the pinned blocks from the cache: they will not be read again, and other blocks
    /// stay instead.
    pub fn unpin(&self, pinned: PinnedBlocks) {
        pinned.0.into_iter().for_each(|(block, ..)| self.forget(block));
    }
}
