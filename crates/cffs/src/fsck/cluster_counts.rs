//! References to clusters after a crash: recovery counts those that the intent log lists.
//!
//! A cluster that existed at the clean point has the references of then, without those of files that the log
//! lists for it, and with those that the walk found these files to have now. All references to a cluster that
//! is new, or whose place was used again, are of files that the walk has found.

use std::collections::BTreeMap;

use super::claims::Space;
use super::scope::Scope;
use crate::format::Layout;
use crate::units::{CgIndex, FragNo, FragRun, InodeNo};

const FIRST: InodeNo = InodeNo(0);
const LAST: InodeNo = InodeNo(u64::MAX);

/// The references to all clusters for which they may have changed.
#[derive(Debug, Default)]
pub(super) struct ClusterCounts(BTreeMap<FragNo, u8>);

impl ClusterCounts {
    /// Counts the references to the clusters that the log lists. Also returns those that lost their last one.
    /// An error says why the log cannot be right.
    pub fn of(
        scope: &Scope,
        space: &Space,
        layout: &Layout,
    ) -> Result<(ClusterCounts, Vec<FragRun>), &'static str> {
        let mut counts = BTreeMap::new();
        let mut unreferenced = Vec::new();
        for (start, (run, before)) in &scope.clusters {
            let is_listed = layout.is_allocatable(run.start, run.len)
                && scope.groups.contains_key(&layout.cg_of_fragment(*start).0);
            if !is_listed {
                return Err("the intent log lists a cluster in a group that it does not list");
            }
            let found = space.used.cluster(*start);
            let count = if *before == 0 {
                found.map_or(0, |(_, references)| i64::from(references))
            } else {
                if found.is_some_and(|(found, _)| found != *run) {
                    return Err("a cluster is longer or shorter than the intent log says");
                }
                let files = scope.referrers.range((*start, FIRST)..=(*start, LAST));
                let change = |(file, extents): (&(FragNo, InodeNo), &u8)| {
                    let now = space.referrers.get(file).copied().unwrap_or(0);
                    i64::from(now) - i64::from(*extents)
                };
                i64::from(*before) + files.map(change).sum::<i64>()
            };
            let count = u8::try_from(count)
                .map_err(|_| "a cluster has fewer references than its files, or too many")?;
            if count == 0 && *before > 0 {
                unreferenced.push(*run);
            }
            counts.insert(*start, count);
        }
        Ok((ClusterCounts(counts), unreferenced))
    }

    /// Sets the counts of a group; true if any was different.
    pub fn apply(&self, layout: &Layout, cg: CgIndex, counts: &mut [u8]) -> bool {
        let start = layout.cg_start(cg);
        let first = layout.block_start(start);
        let end = FragNo(first.0 + u64::from(layout.cg_fragments(cg)));
        let mut is_different = false;
        for (at, count) in self.0.range(first..end) {
            let block = (layout.block_of(*at).0 - start.0) as usize;
            is_different |= std::mem::replace(&mut counts[block], *count) != *count;
        }
        is_different
    }
}
