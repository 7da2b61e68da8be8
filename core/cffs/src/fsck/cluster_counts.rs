//! References to clusters after a crash: recovery counts those that the intent log lists.
//!
//! The count of a cluster that existed at the checkpoint is the count of then, less the references that the
//! listed files had, plus those that the walk found in them. Only files that the walk has found refer to a
//! cluster that is new or in reused space.

use std::collections::BTreeMap;

use super::claims::Space;
use super::scope::Scope;
use crate::format::Layout;
use crate::units::{CgIndex, FragNo, FragRun, InodeNo};

const FIRST: InodeNo = InodeNo(0);
const LAST: InodeNo = InodeNo(u64::MAX);

/// The counts of references to the clusters that the log lists.
#[derive(Debug, Default)]
pub(super) struct ClusterCounts(pub(super) BTreeMap<FragNo, u8>);

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
            let count = u8::try_from(count).map_err(
                |_| "the count of references to a cluster would be negative or above 255",
            )?;
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
        // Two clusters may have begun in one block at different fragments, one after the other was freed.
        let mut in_blocks: BTreeMap<usize, u8> = BTreeMap::new();
        for (at, count) in self.0.range(first..end) {
            let block = (layout.block_of(*at).0 - start.0) as usize;
            let kept = in_blocks.entry(block).or_default();
            *kept = (*kept).max(*count);
        }
        let mut is_different = false;
        for (block, count) in in_blocks {
            is_different |= std::mem::replace(&mut counts[block], count) != count;
        }
        is_different
    }
}
