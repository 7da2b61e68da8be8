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

use super::Found;
use super::groups::Groups;
use crate::format::LiveLayout;
use crate::format::superblock::Policy;
use crate::tuning::Placing;
use crate::units::CgIndex;

/// The zones of a volume, each at the beginning of the first of the groups that share it.
pub(super) struct Zones {
    layout: LiveLayout,
    placing: Placing,
    policy: Policy,
    /// Whether files may use the zones, since no other space was left.
    pub are_open: bool,
}

impl Zones {
    /// Zones of this volume, which has none if the policy does not group files.
    pub fn new(layout: LiveLayout, placing: Placing, policy: Policy) -> Zones {
        Zones { layout, placing, policy, are_open: false }
    }

    /// The group with the zone of this group: the first of those that share it.
    fn group_of(&self, cg: CgIndex) -> CgIndex {
        CgIndex(cg.0 / self.placing.zone_groups * self.placing.zone_groups)
    }

    /// The length of a group's zone at its beginning, in fragments.
    fn len(&self, cg: CgIndex) -> u32 {
        if self.group_of(cg) != cg || !self.policy.groups() {
            return 0;
        }
        let last = (cg.0 + self.placing.zone_groups).min(self.layout.cgs());
        let groups = (cg.0..last).map(|cg| u64::from(self.layout.cg_fragments(CgIndex(cg))));
        let segment = self.layout.segment_fragments();
        (groups.sum::<u64>() / self.placing.zone_part) as u32 / segment * segment
    }

    /// Where the search for a file's place begins in a group: after its zone, unless files may use that.
    pub fn files_start(&self, cg: CgIndex) -> u32 {
        if self.are_open { 0 } else { self.len(cg) }
    }

    /// Keeps the zones for sectors again if this much space is free.
    pub fn close_if_free(&mut self, free: u64) {
        self.are_open &= free < self.layout.allocatable_fragments() / self.placing.zones_open_part;
    }

    /// Whether space is too short for reservations of sectors.
    pub fn is_short(&self, free: u64) -> bool {
        free < self.layout.allocatable_fragments() / self.placing.short_part
    }

    /// The first run of `len` free fragments in the zone of a group.
    pub fn find(&self, groups: &mut Groups, near: CgIndex, len: u32, align: u32) -> Found {
        let cg = self.group_of(near);
        let end = self.len(cg);
        if end < len { Ok(None) } else { groups.find(cg, 0..end, len, align) }
    }

    /// The first run of `len` free fragments in the second part of the zone of a group: urgent files go
    /// there, so that sectors have the rest.
    pub fn find_urgent(&self, groups: &mut Groups, near: CgIndex, len: u32) -> Found {
        let cg = self.group_of(near);
        let part = self.len(cg) / self.placing.urgent_zone_parts;
        groups.find(cg, part..2 * part, len, self.layout.segment_fragments())
    }
}
