//! Placement of metadata: sectors go into zones, and all metadata has whole blocks.

use super::Found;
use super::place::FreeSpace;
use super::request::Request;
use super::reservation::{SHARED_FILES, SHARED_SECTORS};
use crate::error::Result;
use crate::units::Class;

impl FreeSpace {
    /// A block in a zone, or where files go if space is short.
    pub(super) fn place_metadata(&mut self, request: &Request) -> Found {
        let block = self.layout.block_fragments();
        debug_assert_eq!(request.len, block, "metadata comes in blocks");
        if let Some(run) = self.place_sectors(request)? {
            return Ok(Some(run));
        }
        // If space is short, metadata goes where files go: to the next whole block of the key's reservation
        // or of the shared one.
        if let Some(run) =
            self.reservations.take_block(&mut self.groups, (request.owner, Class::Files))
        {
            return Ok(Some(run));
        }
        if let Some(run) = self.reservations.take_block(&mut self.groups, SHARED_FILES) {
            return Ok(Some(run));
        }
        if self.reserve_run(SHARED_FILES, block)? {
            return Ok(self.reservations.take_block(&mut self.groups, SHARED_FILES));
        }
        if let Some(run) = self.find_from_hot(block, block)? {
            return Ok(Some(run));
        }
        self.find_without_reservations(block, block)
    }

    /// The first sectors of all directories go next to each other, into one reservation. A directory's later
    /// sectors go right after its first ones, or into a reservation of its own in the same zone, or else into
    /// one that is cut from the common reservation. So few requests read the names of a directory or of a
    /// tree.
    fn place_sectors(&mut self, request: &Request) -> Found {
        let Some(goal) = request.goal.filter(|goal| goal.0 < self.layout.fragments()) else {
            return self.place_first_sector();
        };
        let block = self.layout.block_fragments();
        let own = (request.owner, Class::Metadata);
        if let Some(run) = self.reservations.take_block(&mut self.groups, own) {
            return Ok(Some(run));
        }
        if let Some(run) = self.groups.run_from(goal, block..=block)? {
            return Ok(Some(run));
        }
        let longest = self.segments(self.placing.sectors_bytes_max);
        let first = self.placing.sectors_bytes_first / u64::from(self.layout.fragment_bytes);
        let first = u32::try_from(first).unwrap_or(u32::MAX).clamp(block, longest);
        let want = request.room.clamp(first, longest).next_multiple_of(block);
        let near = self.layout.cg_of_fragment(goal);
        let mut run = self.zones.find(&mut self.groups, near, want, block)?;
        if run.is_none() {
            run = self.reservations.take(SHARED_SECTORS, want);
        }
        if run.is_none() && self.reserve_sectors()? {
            run = self.reservations.take(SHARED_SECTORS, want);
        }
        let Some(run) = run else { return self.find_block_in_zone() };
        self.end_reservation(own);
        self.start(own, run, want);
        Ok(self.reservations.take_block(&mut self.groups, own))
    }

    fn place_first_sector(&mut self) -> Found {
        if let Some(run) = self.reservations.take_block(&mut self.groups, SHARED_SECTORS) {
            return Ok(Some(run));
        }
        if self.reserve_sectors()? {
            return Ok(self.reservations.take_block(&mut self.groups, SHARED_SECTORS));
        }
        self.find_block_in_zone()
    }

    /// A block in the zone at the hot spot, if no reservation fits there any more.
    fn find_block_in_zone(&mut self) -> Found {
        let block = self.layout.block_fragments();
        self.zones.find(&mut self.groups, self.hot, block, block)
    }

    /// Reserves a run for the sectors of all directories: in the zone at the hot spot, or wherever there
    /// is room.
    fn reserve_sectors(&mut self) -> Result<bool> {
        if self.zones.is_short(self.groups.free) {
            return Ok(false);
        }
        // Files used the zones while no other space was left.
        self.zones.close_if_free(self.groups.free);
        self.end_reservation(SHARED_SECTORS);
        let segment = self.layout.segment_fragments();
        let longest = self.segments(self.placing.sectors_bytes_max);
        let mut want = longest;
        while want >= segment {
            if let Some(run) = self.zones.find(&mut self.groups, self.hot, want, segment)? {
                self.start(SHARED_SECTORS, run, want);
                return Ok(true);
            }
            want /= 2;
        }
        self.reserve_run(SHARED_SECTORS, longest)
    }
}
