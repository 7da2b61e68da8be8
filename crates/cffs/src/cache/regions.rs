//! Readers at random: the region in which they have missed a few times is read as a whole.
//!
//! In the time of a miss, a seek and half a rotation, a disk of today reads a mebibyte or more. So where
//! somebody misses again and again, reading the rest soon costs what was spent there already, and saves
//! all misses that follow, if any do (ski rental: rent until that has cost as much as buying, then
//! buy; decision 011 tells where that does not hold). Among much more data than the latest misses could
//! cover, several in the same region are rare, and a miss stays a single read.
//!
//! A region that was read and is missed in again soon did not fit into the cache. Reading it once more
//! would throw out as much as it brings, so there a miss stays a single read, too, until the cache has
//! been filled several times over.

use std::collections::VecDeque;
use std::ops::Range;

use parking_lot::Mutex;

/// How long a region is, and which part of the cache at most.
const REGION_BYTES: u64 = 4 << 20;
const REGION_CACHE_PART: u64 = 16;
/// How many misses in a region come before the one that reads it: the first region, and those that follow.
const MISSES_BEFORE: usize = 2;
const MISSES_BEFORE_NEXT: usize = 1;
/// How many misses, and how many regions that were read, are remembered.
const MISSES_MAX: usize = 32;
const READ_MAX: usize = 256;
/// A region that was read is forgotten when as many times the cache's bytes were read since.
const CACHES_READ: u64 = 4;

/// Where readers at random have missed lately.
pub(super) struct Regions {
    blocks: u64,
    cache_blocks: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The regions of the latest misses, the oldest first.
    missed: VecDeque<u64>,
    /// The regions that were read, and how many blocks the cache had read by then.
    read: VecDeque<(u64, u64)>,
}

impl Regions {
    /// The regions of a cache of so many blocks.
    pub(super) fn new(block_bytes: u32, cache_blocks: u64) -> Regions {
        let longest = REGION_BYTES / u64::from(block_bytes);
        let blocks = (cache_blocks / REGION_CACHE_PART).clamp(1, longest);
        Regions { blocks, cache_blocks, state: Mutex::default() }
    }

    /// Takes note of a miss at random, before which the cache has read so many blocks; returns the
    /// region around it if that is to be read.
    pub(super) fn missed(&self, block: u64, blocks_read: u64) -> Option<Range<u64>> {
        let region = block / self.blocks;
        let State { missed, read } = &mut *self.state.lock();
        let is_old = |then: u64| blocks_read.saturating_sub(then) > CACHES_READ * self.cache_blocks;
        while read.front().is_some_and(|&(_, then)| is_old(then)) {
            read.pop_front();
        }
        if read.iter().any(|&(other, _)| other == region) {
            return None;
        }
        let before = if read.is_empty() { MISSES_BEFORE } else { MISSES_BEFORE_NEXT };
        if missed.iter().filter(|&&other| other == region).count() < before {
            remember(missed, region, MISSES_MAX);
            return None;
        }
        missed.retain(|&other| other != region);
        remember(read, (region, blocks_read), READ_MAX);
        Some(region * self.blocks..(region + 1) * self.blocks)
    }
}

fn remember<T>(latest: &mut VecDeque<T>, one: T, most: usize) {
    if latest.len() >= most {
        latest.pop_front();
    }
    latest.push_back(one);
}
