//! Batches: files that are known to be read next, in device order.
//!
//! No guess is needed here. The missing blocks of the files are read in one sweep, with the gaps that are
//! cheaper to read than to skip, as far as the cache has room: a block that is evicted before it is used is
//! read twice.
//!
//! While the cache is not full, read-ahead evicts nothing and serves later batches, so until then a batch is
//! read with the usual read-ahead. If the whole volume fits in the cache, the directories of the files, or
//! the regions around them, are read whole instead, since later batches will need the rest; but only if that
//! takes at most twice the time of the batch alone.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use super::survey::{Listed, Survey};
use crate::inode::Vnode;
use crate::units::InodeNo;

/// The absent runs of as many of these files as the cache has room for (at least one), and their number.
pub(super) fn gather(
    survey: &Survey<'_>,
    files: impl Iterator<Item = Arc<Vnode>>,
) -> (Vec<Range<u64>>, usize) {
    let tuning = survey.inodes.cache.tuning();
    if survey.inodes.cache.resident_bytes() + tuning.plan_room() < tuning.device.cache_bytes {
        return if fits(survey) { more_than_these(survey, files) } else { (Vec::new(), 1) };
    }
    let room = tuning.plan_room() / u64::from(survey.inodes.layout.block_bytes);
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

/// Whether the cache has room for the whole volume, and a plan.
fn fits(survey: &Survey<'_>) -> bool {
    let (inodes, tuning) = (survey.inodes, survey.inodes.cache.tuning());
    let space = inodes.alloc.space();
    let used = space.total.saturating_sub(space.free) * u64::from(inodes.layout.fragment_bytes);
    used + tuning.plan_room() <= tuning.device.cache_bytes
}

/// The absent runs of these files' directories, or of the regions around them, and the number of files; none
/// if few files are spread over many directories and regions, or all are in memory.
fn more_than_these(
    survey: &Survey<'_>,
    files: impl Iterator<Item = Arc<Vnode>>,
) -> (Vec<Range<u64>>, usize) {
    let (mut wanted, mut directories, mut count) = (Vec::new(), BTreeSet::new(), 0);
    for file in files {
        let state = file.state.read();
        let absent = survey.absent_runs_of_whole(&state);
        if !absent.is_empty() {
            directories.extend(state.container.map(|container| container.file));
            wanted.extend(absent);
        }
        count += 1;
    }
    let allowed = 2 * cost(survey, &survey.merged(wanted.clone()));
    let is_worth = |runs: &Vec<Range<u64>>| cost(survey, runs) <= allowed;
    let more = of_directories(survey, &directories, allowed).filter(is_worth);
    let more = more.or_else(|| Some(regions_around(survey, &wanted)).filter(is_worth));
    (more.unwrap_or_default(), count)
}

/// The cost of reading these runs, in blocks: a seek costs as much as the longest gap that is read rather
/// than skipped.
fn cost(survey: &Survey<'_>, runs: &[Range<u64>]) -> u64 {
    runs.iter().map(|run| run.end - run.start + survey.gap_blocks()).sum()
}

/// The absent runs of all files in these directories, unless they have more than `blocks_max` blocks.
fn of_directories(
    survey: &Survey<'_>,
    directories: &BTreeSet<InodeNo>,
    blocks_max: u64,
) -> Option<Vec<Range<u64>>> {
    let mut absent: Vec<Range<u64>> = Vec::new();
    for dir in directories.iter().filter_map(|ino| survey.inodes.peek(*ino)) {
        let dir = dir.state.read();
        let sectors = survey.inodes.containers().sector_count(&dir);
        // A directory has at least one name per sector, and so at least as many blocks of contents.
        if u64::from(sectors) > blocks_max {
            return None;
        }
        for file in survey.candidates(&dir, 0..sectors, Listed::Files) {
            absent.extend(file.blocks.iter().filter_map(|run| survey.absent_of_whole(run)));
        }
        if absent.iter().map(|run| run.end - run.start).sum::<u64>() > blocks_max {
            return None;
        }
    }
    Some(survey.merged(absent))
}

/// The absent runs of the regions around these runs.
fn regions_around(survey: &Survey<'_>, wanted: &[Range<u64>]) -> Vec<Range<u64>> {
    let blocks = survey.reading.batch_region_gaps * survey.gap_blocks();
    let around = |run: &Range<u64>| run.start / blocks..run.end.div_ceil(blocks);
    let whole = |region: u64| {
        let first = region * blocks;
        survey.absent_of(&(first..survey.inodes.layout.blocks.min(first + blocks)))
    };
    let regions: BTreeSet<u64> = wanted.iter().flat_map(around).collect();
    survey.merged(regions.into_iter().filter_map(whole).collect())
}
