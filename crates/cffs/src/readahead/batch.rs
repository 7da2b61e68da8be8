//! Batches: files of which it is known that they are read next, in the order of the device.
//!
//! Nothing has to be guessed here. What the files lack in memory is read in one sweep, with the gaps that are
//! cheaper to read than to skip, as far as there is room: what is evicted before it is used is read twice.
//!
//! While the cache still fills, what is guessed evicts nothing, and serves the batches that follow. So until
//! then a batch is read as if nothing were known of it.

use std::ops::Range;
use std::sync::Arc;

use super::survey::Survey;
use crate::inode::Vnode;

/// What the first of these files lack, and how many of them there is room for: one at least.
pub(super) fn gather(
    survey: &Survey<'_>,
    files: impl Iterator<Item = Arc<Vnode>>,
) -> (Vec<Range<u64>>, usize) {
    let tuning = survey.store.cache.tuning();
    if survey.store.cache.resident_bytes() + tuning.plan_room() < tuning.device.cache_bytes {
        return (Vec::new(), 1);
    }
    let room = tuning.plan_room() / u64::from(survey.store.layout.block_bytes);
    let mut runs: Vec<Range<u64>> = Vec::new();
    let (mut taken, mut count) = (0, 0);
    for file in files {
        let mut with_it = taken;
        let before = runs.len();
        for run in survey.absent_runs(&file.state.read()) {
            let end = runs.last().map_or(run.start, |last| last.end);
            let gap = run.start.saturating_sub(end);
            with_it += run.end - run.start + if gap <= survey.gap_blocks() { gap } else { 0 };
            runs.push(run);
        }
        if count > 0 && with_it > room {
            runs.truncate(before);
            break;
        }
        (taken, count) = (with_it, count + 1);
    }
    (survey.merged(runs), count)
}
