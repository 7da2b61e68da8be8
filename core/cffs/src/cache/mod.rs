//! The buffer cache: clean blocks by physical address, and changed blocks by logical address.
//!
//! A clean block has a physical identity and lives in [`CleanBlocks`]. A block that was changed has a logical
//! identity, file and position, and lives in the [`Pages`] of its file: it may have no place on the device
//! yet, since placement waits for write-back. Once an epoch has written it, it gets a physical identity
//! (thesis 3; DESIGN: placement at write-back). [`WriteSet`] writes an epoch to the device in phases.
//!
//! Three mechanisms read ahead of requests: a miss reads the rest of its segment (group read); segments that
//! are read in sequence bring the next ones (`streams`); a region with repeated random misses is read as a
//! whole (`density`). A layer that knows more, such as `readahead` with its names, uses three calls:
//! [`BufferCache::prefetch`] reads runs into memory, [`BufferCache::resident`] tells whether a block is
//! there, [`BufferCache::claims`] whether it is there or in flight (`run_queue`).
//!
//! Stands on `device` and `format`. Knows neither inodes nor allocation.
//!
//! Invariants: a block in [`CleanBlocks`] equals the device's, except while pages in flight hide it during an
//! epoch, and except free blocks that were discarded. Each miss costs one request.
//!
//! Lock order: a segment's lock, then the segment's version, then the leaves: streams, density, the run
//! queue.

mod block;
mod clean;
mod cursor;
mod density;
mod expanded;
mod pages;
mod run_queue;
mod stage;
mod streams;
mod unwritten;
mod write_set;

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use block::Block;
pub use clean::{CleanBlocks, PinnedBlocks};
pub use cursor::{Cursor, Cursors, Growth};
pub use pages::Pages;
pub use stage::{CurrentStage, Stage};
pub use write_set::{Phase, WriteSet};

use crate::device::{BlockDevice, Journal};
use crate::error::Result;
use crate::format::LiveLayout;
use crate::padded::Counter;
use crate::runs;
use crate::tuning::Tuning;
use crate::units::{BlockNo, Class};
use crate::waiter::Waiter;
use clean::Fetched;
use density::Density;
pub use expanded::Expanded;
use run_queue::RunQueue;
use streams::Streams;
use unwritten::Unwritten;

/// The fewest blocks of a cache.
const BLOCKS_MIN: u64 = 16;

/// Counters of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Requested blocks that were in memory.
    pub hits: u64,
    /// Requested blocks that were not in memory.
    pub misses: u64,
    /// Read requests to the device.
    pub reads: u64,
    /// Bytes read from the device.
    pub read_bytes: u64,
    /// Write requests to the device.
    pub writes: u64,
    /// Bytes written to the device.
    pub written_bytes: u64,
    /// Barriers and syncs of the device.
    pub syncs: u64,
    /// Discards sent to the device.
    pub discards: u64,
    /// Bytes discarded.
    pub discarded_bytes: u64,
}

/// Hits are counted by every reader, the others only on the way to the device.
#[derive(Default)]
struct Counters {
    hits: Counter,
    misses: AtomicU64,
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    syncs: AtomicU64,
    discards: AtomicU64,
    discarded_bytes: AtomicU64,
}

fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// The cache of blocks that equal the device's, and the access to the device.
pub struct BufferCache {
    device: Arc<dyn BlockDevice>,
    layout: LiveLayout,
    /// The blocks in memory.
    pub clean: CleanBlocks,
    /// Expanded clusters.
    pub expanded: Expanded,
    streams: Streams,
    density: Density,
    queue: RunQueue,
    tuning: Tuning,
    /// Nothing after this block is prefetched.
    horizon: AtomicU64,
    /// The current stage of write-back.
    pub stage: CurrentStage,
    /// Whether a miss reads neighbours.
    groups: bool,
    waiter: Arc<dyn Waiter>,
    /// The fragments that must not be read from the device yet.
    pub unwritten: Unwritten,
    counters: Counters,
}

impl BufferCache {
    /// A cache over the device, of the size in the tuning. With `groups`, a miss reads neighbours as well.
    /// The `waiter` learns of each thread that waits for the device.
    pub fn new(
        device: Arc<dyn BlockDevice>,
        layout: impl Into<LiveLayout>,
        tuning: Tuning,
        groups: bool,
        waiter: Arc<dyn Waiter>,
    ) -> BufferCache {
        let layout = layout.into();
        let block_bytes = layout.block_bytes;
        let (cache_bytes, expanded) =
            Expanded::divide(tuning.device.cache_bytes, layout.has_clusters());
        let blocks = tuning.cache_blocks(block_bytes).min(cache_bytes / u64::from(block_bytes));
        let blocks = blocks.max(BLOCKS_MIN) as usize;
        BufferCache {
            device,
            clean: CleanBlocks::new(blocks, tuning.reading.hot_cache_part, &layout),
            expanded,
            tuning,
            horizon: AtomicU64::new(layout.blocks),
            stage: CurrentStage::default(),
            groups,
            waiter,
            streams: Streams::new(&tuning, block_bytes, layout.segment_blocks()),
            density: Density::new(&tuning, block_bytes),
            queue: RunQueue::new(&tuning, block_bytes),
            layout,
            unwritten: Unwritten::default(),
            counters: Counters::default(),
        }
    }

    /// The device below.
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// The layout of the volume, shared by all its users.
    pub fn layout(&self) -> &LiveLayout {
        &self.layout
    }

    /// Counters of the cache.
    pub fn stats(&self) -> CacheStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CacheStats {
            hits: self.counters.hits.get(),
            misses: get(&self.counters.misses),
            reads: get(&self.counters.reads),
            read_bytes: get(&self.counters.read_bytes),
            writes: get(&self.counters.writes),
            written_bytes: get(&self.counters.written_bytes),
            syncs: get(&self.counters.syncs),
            discards: get(&self.counters.discards),
            discarded_bytes: get(&self.counters.discarded_bytes),
        }
    }

    /// An empty set of writes. Its blocks must not be read from the device before they are written.
    pub fn write_set(&self) -> WriteSet {
        WriteSet::expecting(self.unwritten.clone())
    }

    /// The tuning figures for this device.
    pub fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// Whether the block is in memory.
    pub fn resident(&self, block: BlockNo) -> bool {
        self.clean.map.contains_key(&block)
    }

    /// The block; a miss reads its neighbours in the segment as well, where files are grouped.
    pub fn read(&self, block: BlockNo) -> Result<Arc<Block>> {
        match self.clean.map.get(&block) {
            Some(hit) => Ok(self.found(block, hit, BlockNo(self.layout.blocks))),
            None => self.read_missing(block, 1, BlockNo(self.layout.blocks)),
        }
    }

    /// A block of contents; a miss reads at least the `wanted` blocks from it on, in one request, and
    /// nothing is prefetched from `until` on. The first hit on a prefetched block does not count as a
    /// use: a scan touches each block of contents once and must not evict sectors, which are hit
    /// repeatedly.
    pub fn read_near(&self, block: BlockNo, wanted: u32, until: BlockNo) -> Result<Arc<Block>> {
        match self.clean.map.peek(&block) {
            Some(hit) if hit.take_prefetched() => Ok(self.found(block, hit, until)),
            Some(hit) => {
                self.clean.map.get(&block);
                Ok(self.found(block, hit, until))
            }
            None => self.read_missing(block, wanted, until),
        }
    }

    fn found(&self, block: BlockNo, hit: Arc<Block>, until: BlockNo) -> Arc<Block> {
        self.counters.hits.count();
        if hit.take_mark() {
            self.continue_stream(block.0, until);
        }
        hit
    }

    fn read_missing(&self, block: BlockNo, wanted: u32, until: BlockNo) -> Result<Arc<Block>> {
        count(&self.counters.misses, 1);
        self.queue.wait_for(block.0, || self.waiter.about_to_wait());
        let _reading = self.clean.reading(block);
        // Another thread may have read the segment while this one waited.
        match self.clean.map.get(&block) {
            Some(hit) => {
                if hit.take_mark() {
                    self.continue_stream(block.0, until);
                }
                Ok(hit)
            }
            None => self.read_group(block, wanted, until),
        }
    }

    /// Records that no block from here on was ever used. Blocks that are written there later count as used.
    pub fn set_horizon(&self, end_of_used: BlockNo) {
        self.horizon.store(end_of_used.0.min(self.layout.blocks), Ordering::Relaxed);
    }

    fn horizon(&self) -> u64 {
        self.horizon.load(Ordering::Relaxed)
    }

    /// The bytes that a miss of this block would read if it continues a stream; otherwise 0.
    pub fn window_bytes(&self, block: BlockNo) -> u64 {
        let (first, segment_end) = self.group_start(block);
        self.streams.window(first, segment_end) * u64::from(self.layout.block_bytes)
    }

    /// The first of the blocks before a missing one, in its segment, that are missing as well; and
    /// the end of that segment.
    fn group_start(&self, block: BlockNo) -> (u64, u64) {
        let segment_blocks = u64::from(self.layout.segment_blocks());
        let start = block.0 / segment_blocks * segment_blocks;
        let missing = |number: &u64| !self.resident(BlockNo(*number));
        let start = start.max(self.queue.idle_around(block.0).0.min(block.0));
        let first = (start..block.0).rev().take_while(missing).last().unwrap_or(block.0);
        (first, self.clean.segment_end(block))
    }

    /// The bytes of the blocks that are in memory.
    pub fn resident_bytes(&self) -> u64 {
        self.clean.map.weight() * u64::from(self.layout.block_bytes) + self.expanded.memory_bytes()
    }

    fn read_group(&self, block: BlockNo, wanted: u32, until: BlockNo) -> Result<Arc<Block>> {
        let (first, end) = self.group_around(block, wanted, until);
        self.queue.wait_for(block.0, || self.waiter.about_to_wait());
        if let Some(found) = self.clean.map.get(&block) {
            return Ok(found);
        }
        match self.read_between(first, end, Some(block), 0) {
            Ok(Some(found)) => Ok(found),
            // A neighbour that cannot be read is not an error.
            Ok(None) | Err(_) => self.read_alone(block),
        }
    }

    /// Reads a run with one request and adds its missing blocks to the cache; returns the block `wanted`. The
    /// first use of one of the first `marked` blocks triggers the next run of the stream.
    fn read_between(
        &self,
        first: BlockNo,
        end: BlockNo,
        wanted: Option<BlockNo>,
        marked: u64,
    ) -> Result<Option<Arc<Block>>> {
        let mut buffer = vec![0; (end.0 - first.0) as usize * self.layout.block_bytes as usize];
        let fetched = self.fetch(first, end, &mut buffer)?;
        Ok(self.clean.take_over(&fetched, first.0..end.0, wanted, marked))
    }

    /// Reads a run with one request, into a buffer that is as long at least.
    fn fetch<'a>(&self, first: BlockNo, end: BlockNo, buffer: &'a mut [u8]) -> Result<Fetched<'a>> {
        assert!(first < end, "a request has a block at least");
        let versions = self.clean.versions(first..end);
        let bytes = &mut buffer[..(end.0 - first.0) as usize * self.layout.block_bytes as usize];
        self.read_uncached(first, bytes)?;
        Ok(Fetched { first, versions, bytes })
    }

    fn read_alone(&self, block: BlockNo) -> Result<Arc<Block>> {
        let mut bytes = vec![0; self.layout.block_bytes as usize];
        self.read_uncached(block, &mut bytes)?;
        Ok(Arc::new(Block::new(&bytes)))
    }

    /// The run to read for a miss: the missing blocks of the segment around it, and later ones if segments
    /// are read in sequence or more is wanted. Reads or queues the region around a random miss, and queues
    /// the next run of a stream.
    fn group_around(&self, block: BlockNo, wanted: u32, until: BlockNo) -> (BlockNo, BlockNo) {
        let segment_blocks = u64::from(self.layout.segment_blocks());
        let missing = |number: &u64| !self.resident(BlockNo(*number));
        let is_large = u64::from(wanted) >= segment_blocks;
        if !self.groups && !is_large {
            let end = block.0 + u64::from(wanted);
            let end = (block.0 + 1..end).take_while(missing).last().map_or(block.0 + 1, |b| b + 1);
            return (block, BlockNo(end));
        }
        let (first, segment_end) = if self.groups {
            self.group_start(block)
        } else {
            (block.0, self.clean.segment_end(block))
        };
        let window = self.streams.window(first, segment_end);
        let limit = (segment_end - segment_blocks + window.max(segment_blocks))
            .min(self.horizon())
            .min(until.0)
            .max(block.0 + u64::from(wanted))
            .min(self.queue.idle_around(block.0).1)
            .min(self.layout.blocks);
        let end = (block.0 + 1..limit).take_while(missing).last().map_or(block.0 + 1, |b| b + 1);
        self.streams.read(first, first..end);
        // Opening a volume reads the system area, which is no sign of a sequential reader.
        let is_opening = block <= self.layout.system_area();
        if window == 0 && !is_large && !is_opening {
            self.read_region(block);
        }
        if window > segment_blocks && self.has_prefetchers() {
            // Sequentially: if the arm served the second request first, it would have to return for this one.
            self.queue_run(first..end, Class::Files);
            self.continue_stream(first, until);
        }
        assert!((first..end).contains(&block.0), "a miss reads the block that was missed");
        (BlockNo(first), BlockNo(end))
    }

    /// Reads the missing blocks of the region around a random miss, if it is dense with misses, including
    /// short gaps. Errors are left to the readers that need the blocks.
    fn read_region(&self, block: BlockNo) {
        let bytes_read = self.read_bytes();
        let blocks_read = bytes_read / u64::from(self.layout.block_bytes);
        let Some(region) = self.density.missed(block.0, blocks_read) else { return };
        let gap = u64::from(self.layout.segment_blocks());
        let missing = |number: &u64| !self.claims(BlockNo(*number));
        let mut missed = Vec::new();
        for number in (region.start..region.end.min(self.horizon())).filter(missing) {
            runs::append(&mut missed, number..number + 1, gap);
        }
        self.prefetch(missed, Class::Files);
    }

    /// Reads past the cache, for structures that their user keeps decoded.
    pub fn read_uncached(&self, block: BlockNo, bytes: &mut [u8]) -> Result<()> {
        self.waiter.about_to_wait();
        self.device.read_at(self.layout.block_offset(block), bytes)?;
        count(&self.counters.reads, 1);
        count(&self.counters.read_bytes, bytes.len() as u64);
        Ok(())
    }

    fn write_run(&self, first: BlockNo, images: &[Arc<Block>]) -> Result<()> {
        let slices: Vec<IoSlice<'_>> = images.iter().map(|image| IoSlice::new(image)).collect();
        self.waiter.about_to_wait();
        self.device.write_at(self.layout.block_offset(first), &slices)?;
        count(&self.counters.writes, 1);
        self.horizon.fetch_max(first.0 + images.len() as u64, Ordering::Relaxed);
        let bytes = images.len() as u64 * u64::from(self.layout.block_bytes);
        count(&self.counters.written_bytes, bytes);
        Ok(())
    }

    /// The most blocks that the device writes atomically; 0 if it cannot.
    fn atomic_blocks_max(&self) -> usize {
        let bytes_max = self.device.journal().map_or(0, Journal::commit_bytes_max);
        (bytes_max / u64::from(self.layout.block_bytes)) as usize
    }

    /// Writes the blocks atomically and durably; returns false if the device cannot.
    fn write_atomic(&self, images: &BTreeMap<BlockNo, Arc<Block>>) -> Result<bool> {
        let pieces: Vec<(u64, &[u8])> = images
            .iter()
            .map(|(number, image)| (self.layout.block_offset(*number), &image[..]))
            .collect();
        let Some(journal) = self.device.journal() else { return Ok(false) };
        self.waiter.about_to_wait();
        if !journal.commit(&pieces)? {
            return Ok(false);
        }
        count(&self.counters.writes, 1);
        count(&self.counters.syncs, 1);
        let bytes = images.len() as u64 * u64::from(self.layout.block_bytes);
        count(&self.counters.written_bytes, bytes);
        if let Some((last, _)) = images.last_key_value() {
            self.horizon.fetch_max(last.0 + 1, Ordering::Relaxed);
        }
        Ok(true)
    }

    /// Writes whole blocks past the cache, through which they are not read while the volume is open.
    pub fn write_uncached(&self, first: BlockNo, bytes: &[u8]) -> Result<()> {
        self.waiter.about_to_wait();
        self.device.write_at(self.layout.block_offset(first), &[IoSlice::new(bytes)])?;
        count(&self.counters.writes, 1);
        count(&self.counters.written_bytes, bytes.len() as u64);
        for number in first.0..first.0 + bytes.len() as u64 / u64::from(self.layout.block_bytes) {
            self.clean.forget(BlockNo(number));
        }
        Ok(())
    }

    /// Discards a run of free blocks: the device need not keep them. Their cached contents stay, and are not
    /// read before they are written.
    pub fn discard(&self, first: BlockNo, blocks: u64) -> Result<()> {
        let bytes = blocks * u64::from(self.layout.block_bytes);
        self.waiter.about_to_wait();
        self.device.discard(self.layout.block_offset(first), bytes)?;
        count(&self.counters.discards, 1);
        count(&self.counters.discarded_bytes, bytes);
        Ok(())
    }

    /// The bytes read from the device so far.
    pub fn read_bytes(&self) -> u64 {
        self.counters.read_bytes.load(Ordering::Relaxed)
    }

    /// Waits until all earlier writes are durable.
    pub fn sync(&self) -> Result<()> {
        self.waiter.about_to_wait();
        self.device.sync()?;
        count(&self.counters.syncs, 1);
        Ok(())
    }

    fn barrier(&self) -> Result<()> {
        self.waiter.about_to_wait();
        self.device.barrier()?;
        count(&self.counters.syncs, 1);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
