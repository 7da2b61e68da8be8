//! Density: a region with a few random misses is read as a whole.
//!
//! In the time of a miss, a seek and half a rotation, a current disk reads a mebibyte or more. So after a few
//! misses in a region, reading the rest of it costs no more than the misses did, and saves all later ones
//! (ski rental: rent until that has cost as much as buying, then buy; decision 006 names the exceptions). If
//! the data is much larger than a few regions, several recent misses in one region are rare, and a miss stays
//! a single read.
//!
//! If a region is missed in again soon after it was read, it did not stay in the cache. Reading it once more
//! would evict as much as it brings, so misses there are single reads until the cache has been refilled
//! several times.

use std::collections::VecDeque;
use std::ops::Range;

use crate::lock::{Mutex, Rank};
use crate::tuning::{Reading, Tuning};

/// The recent random misses.
pub(super) struct Density {
    /// The length of a region in blocks.
    blocks: u64,
    cache_blocks: u64,
    reading: Reading,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The regions of the latest misses, the oldest first.
    missed: VecDeque<u64>,
    /// The regions that were read, with the count of blocks that the cache had read before.
    read: VecDeque<(u64, u64)>,
}

impl Density {
    /// No misses yet.
    pub(super) fn new(tuning: &Tuning, block_bytes: u32) -> Density {
        let reading = tuning.reading;
        let cache_blocks = tuning.cache_blocks(block_bytes);
        let longest = (reading.region_bytes / u64::from(block_bytes)).max(1);
        let blocks = (cache_blocks / reading.window_cache_part).clamp(1, longest);
        Density { blocks, cache_blocks, reading, state: Mutex::new(Rank::Leaf, State::default()) }
    }

    /// Records a random miss, before which the cache had read `blocks_read` blocks; returns the
    /// region around it if that should be read.
    pub(super) fn missed(&self, block: u64, blocks_read: u64) -> Option<Range<u64>> {
        let region = block / self.blocks;
        let State { missed, read } = &mut *self.state.lock();
        let Reading { misses_before_first, misses_before_next, region_caches, .. } = self.reading;
        let forgotten_after = region_caches * self.cache_blocks;
        let is_old = |then: u64| blocks_read.saturating_sub(then) > forgotten_after;
        while read.front().is_some_and(|&(_, then)| is_old(then)) {
            read.pop_front();
        }
        if read.iter().any(|&(other, _)| other == region) {
            return None;
        }
        let before = if read.is_empty() { misses_before_first } else { misses_before_next };
        if missed.iter().filter(|&&other| other == region).count() < before {
            remember(missed, region, self.reading.misses_max);
            return None;
        }
        missed.retain(|&other| other != region);
        remember(read, (region, blocks_read), self.reading.regions_max);
        Some(region * self.blocks..(region + 1) * self.blocks)
    }
}

fn remember<T>(latest: &mut VecDeque<T>, one: T, most: usize) {
    if latest.len() >= most {
        latest.pop_front();
    }
    latest.push_back(one);
}
