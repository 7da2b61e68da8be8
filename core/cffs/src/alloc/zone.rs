//! Zones: space in which sectors stay close together, even on an aged volume.
//!
//! A growing directory needs sectors at any time. If they went wherever space is free at that time, a walk of
//! an aged tree would seek to each of them. So a part of the space is kept for sectors as long as files find
//! room elsewhere: the beginning of each sixteenth cylinder group. ext4 keeps its tables of inodes together
//! in the same way (flex_bg), NTFS a zone for its table of files.
//!
//! Small files that an fsync waits for may use a part of it: their contents are written before their sectors,
//! and the distance between them is short.
//!
//! A zone is a preference of the allocator and not part of the format: files use it if no other space is
//! left, and sectors that find no room in it go where files go.

use super::group::Among;
use super::{Allocator, Class, Owner, State};
use crate::error::Result;
use crate::units::{CgIndex, FragRun};

impl Allocator {
    /// The group with the zone of this group: the first of those that share it.
    fn zone_of(&self, cg: CgIndex) -> CgIndex {
        CgIndex(cg.0 / self.placing.zone_groups * self.placing.zone_groups)
    }

    /// The length of a group's zone at its beginning, in fragments.
    fn zone_len(&self, cg: CgIndex) -> u32 {
        if self.zone_of(cg) != cg || !self.policy.groups() {
            return 0;
        }
        let last = (cg.0 + self.placing.zone_groups).min(self.layout.cgs());
        let groups = (cg.0..last).map(|cg| u64::from(self.layout.cg_fragments(CgIndex(cg))));
        let segment = self.layout.segment_fragments();
        (groups.sum::<u64>() / self.placing.zone_part) as u32 / segment * segment
    }

    /// Where the search for a file's place begins in a group: after its zone, unless files may use that.
    pub(super) fn files_start(&self, state: &State, cg: CgIndex) -> u32 {
        if state.zones_open { 0 } else { self.zone_len(cg) }
    }

    /// Whether space is too short for reservations of sectors.
    fn is_short(&self, state: &State) -> bool {
        state.free < self.layout.allocatable_fragments() / self.placing.short_part
    }

    /// The fragments to reserve for a directory that grows beyond these. A walk of the tree reads the unused
    /// ones with the sectors of other directories; a reader of this directory alone seeks from one run to the
    /// next.
    pub fn room_to_grow(&self, mapped: u64) -> u64 {
        mapped / self.placing.sectors_part
    }

    /// Reserves a run for the sectors of all directories: in the zone at the hot spot, or wherever there
    /// is room.
    pub(super) fn reserve_sectors(&self, state: &mut State) -> Result<bool> {
        if self.is_short(state) {
            return Ok(false);
        }
        // Files used the zones while no other space was left.
        let part = self.layout.allocatable_fragments() / self.placing.zones_open_part;
        state.zones_open &= state.free < part;
        let all = (Owner::Shared, Class::Metadata);
        if let Some(previous) = state.reservations.remove(&all) {
            self.release_reservation(state, &previous)?;
        }
        let segment = self.layout.segment_fragments();
        let longest = self.segments(self.placing.sectors_bytes_max) * segment;
        let mut want = longest;
        while want >= segment {
            if let Some(run) = self.find_in_zone(state, state.hot, want, segment)? {
                return self.start_reservation(state, all, run, want);
            }
            want /= 2;
        }
        self.reserve_run(state, all, longest)
    }

    /// Reserves a run for urgent files: in the second part of the zone at the hot spot, so that sectors
    /// have the rest. False if there is no room in it.
    pub(super) fn reserve_urgent(&self, state: &mut State) -> Result<bool> {
        if self.is_short(state) {
            return Ok(false);
        }
        let urgent = (Owner::Urgent, Class::Files);
        if let Some(previous) = state.reservations.remove(&urgent) {
            self.release_reservation(state, &previous)?;
        }
        let segment = self.layout.segment_fragments();
        let want = self.segments(self.placing.urgent_bytes) * segment;
        let cg = self.zone_of(state.hot);
        let part = self.zone_len(cg) / self.placing.urgent_zone_parts;
        let group = self.group(state, cg)?;
        match group.find(part, 2 * part, want, segment, Among::Unreserved) {
            Some(at) => self.start_reservation(
                state,
                urgent,
                FragRun::new(self.of_group(cg, at), want),
                want,
            ),
            None => Ok(false),
        }
    }

    /// A block in the zone at the hot spot, if no reservation fits there any more.
    pub(super) fn block_of_zone(&self, state: &mut State) -> Result<Option<FragRun>> {
        let block = self.layout.block_fragments();
        self.find_in_zone(state, state.hot, block, block)
    }

    /// A run in the zone of a group.
    pub(super) fn find_in_zone(
        &self,
        state: &mut State,
        near: CgIndex,
        len: u32,
        align: u32,
    ) -> Result<Option<FragRun>> {
        let cg = self.zone_of(near);
        let end = self.zone_len(cg);
        if end < len {
            return Ok(None);
        }
        let group = self.group(state, cg)?;
        let found = group.find(0, end, len, align, Among::Unreserved);
        Ok(found.map(|at| FragRun::new(self.of_group(cg, at), len)))
    }
}
