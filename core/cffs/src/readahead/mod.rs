//! Read-ahead by names: prefetches data that is likely to be read next.
//!
//! Churn scatters the files of a directory over its segments, so that the next file is rarely stored right
//! after this one. But the directory's sectors contain the inodes, which have the places of the files. So a
//! miss plans the files that are listed after it (`plan`), if they are near enough (`way`), adds the files of
//! the walk's next directories near them (`walk`), and requests all in the order of the device. Before a
//! directory is listed with attributes, the extent trees of the inodes that it lists are read (`trees`).
//!
//! If the next files are known, no guess is needed (`batch`). Another thread expands the clusters that a walk
//! reads next (`expansion`).
//!
//! The cache itself follows sequential readers of blocks and random readers of regions (`cache::streams`,
//! `cache::density`); this module asks it to [`prefetch`](crate::cache::BufferCache::prefetch) runs.
//!
//! Stands on `namespace` and the layers below; `survey` reads directory sectors. Changes nothing but the
//! cache.
//!
//! Invariants: no lock is held when the cache is asked to prefetch; a directory's lock is held while its
//! sectors are looked at, and never one of its files with it, except to try it. An error is left to the
//! following read.

mod batch;
mod expansion;
mod plan;
mod survey;
mod trees;
mod walk;
mod way;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::inode::{InodeCache, Vnode, VnodeState};
use crate::tuning::Tuning;
use crate::units::{Class, InodeNo};
use expansion::Expansion;
use plan::Plans;
use survey::{Listed, Survey};
use walk::Walk;

/// Predicts the next reads from recent reads of a volume's directories.
pub struct ReadAhead {
    plans: Plans,
    walk: Walk,
    expansion: Expansion,
    /// The block at which the last plan ended.
    arm: AtomicU64,
}

impl ReadAhead {
    /// Nothing was read yet.
    pub fn new(tuning: &Tuning) -> ReadAhead {
        ReadAhead {
            plans: Plans::new(tuning),
            walk: Walk::default(),
            expansion: Expansion::default(),
            arm: AtomicU64::new(0),
        }
    }

    /// Before the first read of a file or directory: if it is not in memory, prefetches it with the next
    /// files of its directory, as far as that was useful so far. No locks may be held.
    pub fn before_read(&self, inodes: &InodeCache, vnode: &Arc<Vnode>) {
        if !inodes.features.groups || !vnode.is_first_read() {
            return;
        }
        let survey = Survey::new(inodes);
        let own = own_runs(&survey, vnode);
        self.before_read_as_listed(&survey, vnode);
        inodes.cache.prefetch(own, Class::Metadata);
        self.expansion.before_read(inodes, vnode, self.walk.is_on());
    }

    /// Does `work` while threads read ahead, and one expands clusters ahead.
    pub fn during<T>(&self, inodes: &InodeCache, threads: usize, work: impl FnOnce() -> T) -> T {
        inodes.cache.with_prefetch(threads, || self.expansion.during(inodes, work))
    }

    /// The same, using only the directory of the file or directory.
    fn before_read_as_listed(&self, survey: &Survey<'_>, vnode: &Arc<Vnode>) {
        let inodes = survey.inodes;
        let (container, listed, continues) = {
            let state = vnode.state.read();
            let Some(container) = state.container else { return };
            if container.file.is_system() && container.file != InodeNo::ROOT {
                return;
            }
            let listed = if state.inode.is_dir() { Listed::Directories } else { Listed::Files };
            let continues = self.plans.is_due(survey, container.file, listed, vnode.ino);
            let begins = || self.plans.begins_tree(container, listed);
            if !continues && !survey.is_missing(&state) && !begins() {
                return;
            }
            (container, listed, continues)
        };
        let Some(dir) = inodes.peek(container.file) else { return };
        let mut runs = {
            let state = dir.state.read();
            if continues {
                self.plans.continue_plan(survey, &state, listed)
            } else {
                self.plans.plan(survey, &state, container, vnode.ino, listed)
            }
        };
        if listed == Listed::Files {
            let next =
                if continues && runs.is_empty() { self.plan_next(survey, &dir) } else { None };
            let (planned, of_next) = next.unwrap_or((dir, runs));
            runs = self.walk.with_siblings(survey, &planned, of_next);
            self.begin_at_nearer_end(&mut runs);
        }
        let class = if listed == Listed::Files { Class::Files } else { Class::Metadata };
        match &runs[..] {
            [_] => inodes.cache.prefetch_in_sequence(runs, class),
            _ => inodes.cache.prefetch(runs, class),
        }
    }

    /// Before files are read that are known in advance, in device order: prefetches as many of them as there
    /// is room for, and returns their number: at least one, if any were given. No locks may be held.
    pub fn before_batch(
        &self,
        inodes: &InodeCache,
        files: impl Iterator<Item = Arc<Vnode>>,
    ) -> usize {
        let (runs, count) = batch::gather(&Survey::new(inodes), files);
        match inodes.cache.tuning().device.is_parallel() {
            true => inodes.cache.prefetch_in_sequence(runs, Class::Files),
            false => inodes.cache.prefetch(runs, Class::Files),
        }
        count
    }

    /// Before a directory is listed with attributes: prefetches the extent trees of the listed inodes.
    pub fn before_listing(&self, inodes: &InodeCache, dir: &VnodeState) {
        if inodes.features.groups {
            trees::prefetch(inodes, dir);
        }
    }

    /// Plans the directory that a walk reads after this one.
    fn plan_next(
        &self,
        survey: &Survey<'_>,
        dir: &Arc<Vnode>,
    ) -> Option<(Arc<Vnode>, Vec<Range<u64>>)> {
        let extent = self.plans.extent_of(dir.ino)?;
        let container = dir.state.read().container?;
        if !self.walk.is_on() {
            return None;
        }
        let next = walk::next_directories(survey, dir.ino, container).into_iter().next()?;
        let state = next.state.read();
        let runs = self.plans.plan_whole(survey, &state, extent)?;
        drop(state);
        Some((next, runs))
    }

    /// Orders runs from the end that is nearer to the arm.
    fn begin_at_nearer_end(&self, runs: &mut [Range<u64>]) {
        let arm = self.arm.load(Ordering::Relaxed);
        if let [first, .., last] = &*runs
            && arm.abs_diff(last.end) < arm.abs_diff(first.start)
        {
            runs.reverse();
        }
        if let Some(last) = runs.last() {
            self.arm.store(last.end, Ordering::Relaxed);
        }
    }
}

/// All missing blocks of a directory, on a device that answers many requests at once: its index and the
/// pieces of its sectors are then read concurrently instead of one after the other.
fn own_runs(survey: &Survey<'_>, vnode: &Vnode) -> Vec<Range<u64>> {
    let cache = &survey.inodes.cache;
    if !cache.has_prefetchers() || !cache.tuning().device.is_parallel() {
        return Vec::new();
    }
    let state = vnode.state.read();
    if state.inode.is_dir() { survey.merged(survey.absent_runs(&state)) } else { Vec::new() }
}
