//! Batches: files of which it is known that they are read next, in the order of the device.
//!
//! Nothing has to be guessed here. What the files lack in memory is read in one sweep, with the gaps that are
//! cheaper to read than to skip, as far as there is room: what is evicted before it is used is read twice.
//!
//! While the cache still fills, what is guessed evicts nothing, and serves the batches that follow. So until
//! then a batch is read as if nothing were known of it. Where the cache has room for all that the volume
//! holds, the regions around the files are read whole instead, since batches that follow will want the rest
//! of them: as long as that takes no more than twice what the batch alone would.

use std::collections::BTreeSet;
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
        return if fits(survey) { regions_around(survey, files) } else { (Vec::new(), 1) };
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

/// Whether the cache has room for all that the volume holds, and a plan.
fn fits(survey: &Survey<'_>) -> bool {
    let (store, tuning) = (survey.store, survey.store.cache.tuning());
    let space = store.alloc.space();
    let used = space.total.saturating_sub(space.free) * u64::from(store.layout.fragment_bytes);
    used + tuning.plan_room() <= tuning.device.cache_bytes
}

/// What the regions around these files lack, and how many files there are; nothing if they are few in many
/// regions, or in memory.
fn regions_around(
    survey: &Survey<'_>,
    files: impl Iterator<Item = Arc<Vnode>>,
) -> (Vec<Range<u64>>, usize) {
    let region_blocks = survey.reading.batch_region_gaps * survey.gap_blocks();
    let (mut wanted, mut regions, mut count) = (Vec::new(), BTreeSet::new(), 0);
    for file in files {
        for run in survey.absent_runs(&file.state.read()) {
            regions.extend(run.start / region_blocks..run.end.div_ceil(region_blocks));
            wanted.push(run);
        }
        count += 1;
    }
    let whole = |region: u64| {
        let first = region * region_blocks;
        survey.absent_of(&(first..survey.store.layout.blocks.min(first + region_blocks)))
    };
    let around = survey.merged(regions.into_iter().filter_map(whole).collect());
    let alone = survey.merged(wanted);
    let cost = |runs: &[Range<u64>]| -> u64 {
        runs.iter().map(|run| run.end - run.start + survey.gap_blocks()).sum()
    };
    if cost(&around) > 2 * cost(&alone) {
        return (Vec::new(), count);
    }
    (around, count)
}
