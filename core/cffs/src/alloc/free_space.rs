//! Free space, for discarding.

use super::Allocator;
use super::group::{Among, Group};
use crate::error::Result;
use crate::units::{CgIndex, FragRun};

impl Allocator {
    /// The number of groups that were ever used, on the device or in memory. The others have no bitmap.
    pub fn groups_used(&self) -> u32 {
        let state = self.lock();
        let in_memory = state.groups.keys().next_back().map_or(0, |cg| cg.0 + 1);
        state.cgs_made.max(in_memory)
    }

    /// Returns up to `max` runs of free whole blocks within a run, which is in one group.
    /// Freed fragments that are not allocatable yet do not count. A group that no allocation has
    /// needed so far is read for this call only and not kept, so going through a large volume
    /// takes no memory.
    pub fn free_blocks(&self, within: FragRun, max: usize) -> Result<Vec<FragRun>> {
        let cg = self.layout.cg_of_fragment(within.start);
        let state = self.lock();
        if let Some(group) = state.groups.get(&cg) {
            return Ok(self.free_blocks_of(group, cg, within, max));
        }
        let is_made = cg.0 < state.cgs_made;
        drop(state);
        let group = if is_made { self.read_group(cg)? } else { Group::unused(&self.layout, cg) };
        Ok(self.free_blocks_of(&group, cg, within, max))
    }

    fn free_blocks_of(
        &self,
        group: &Group,
        cg: CgIndex,
        within: FragRun,
        max: usize,
    ) -> Vec<FragRun> {
        let block = self.layout.block_fragments();
        let mut from = self.in_group(cg, within.start);
        let end = (from + within.len).min(group.fragments());
        let mut runs = Vec::new();
        while runs.len() < max
            && let Some(at) = group.find(from, end, block, block, Among::All)
        {
            let len = group.run_at(at, end - at, Among::All) / block * block;
            runs.push(FragRun::new(self.of_group(cg, at), len));
            from = at + len;
        }
        runs
    }
}
