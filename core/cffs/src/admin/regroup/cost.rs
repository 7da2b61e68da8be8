//! The cost of reading files at given places, in bytes that the device could stream meanwhile.

use std::ops::Range;

use crate::inode::InodeCache;
use crate::runs;

/// The figures of a device, in blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    /// Bytes that the device streams in the time of a seek.
    pub access: u64,
    /// The longest gap that is read.
    pub gap: u64,
    /// The longest request: the files that are moved at once, which the cache must hold until then.
    pub request: u64,
}

impl Cost {
    pub fn of(inodes: &InodeCache) -> Cost {
        let tuning = inodes.cache.tuning();
        let block_bytes = u64::from(inodes.layout.block_bytes);
        let access_bytes = tuning.device.break_even_bytes;
        let kept_bytes = tuning.device.cache_bytes / tuning.reading.window_cache_part;
        let request_bytes = tuning.reading.request_bytes.min(kept_bytes.max(access_bytes));
        Cost {
            access: (access_bytes / block_bytes).max(1),
            gap: tuning.reading.gap_bytes / block_bytes,
            request: (request_bytes / block_bytes).max(1),
        }
    }

    /// The seeks for reading runs of blocks, and their cost.
    fn reading(&self, runs: Vec<Range<u64>>) -> (u64, u64) {
        let merged = runs::merged(runs, self.gap);
        let accesses = merged.iter().map(|run| (run.end - run.start).div_ceil(self.request)).sum();
        let blocks: u64 = merged.iter().map(|run| run.end - run.start).sum();
        (accesses, accesses * self.access + blocks)
    }

    /// The accesses before and after these runs are moved into one run of `blocks` blocks; `None` if that
    /// makes reading them less than `gain` times as cheap.
    pub fn gain(&self, runs: Vec<Range<u64>>, blocks: u64, gain: u64) -> Option<(u64, u64)> {
        let (before, cost_before) = self.reading(runs);
        let after = blocks.div_ceil(self.request).max(1);
        (cost_before >= gain * (after * self.access + blocks)).then_some((before, after))
    }
}
