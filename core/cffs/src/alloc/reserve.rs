//! Reservations for files: how long, and where.

use super::Found;
use super::place::FreeSpace;
use super::reservation::{Holder, MOVED, Reservation, URGENT};
use crate::error::Result;
use crate::tuning::Placing;
use crate::units::{Class, FragRun};

impl FreeSpace {
    /// This many bytes in whole segments, as fragments.
    pub(super) fn segments(&self, bytes: u64) -> u32 {
        Placing::segments(bytes, self.layout.segment_bytes) * self.layout.segment_fragments()
    }

    /// Reserves a run for a key, right after its last run if possible, otherwise at the hot spot or after it.
    /// False if there is no run of `len` fragments.
    pub(super) fn reserve_run(&mut self, holder: Holder, len: u32) -> Result<bool> {
        let segment = self.layout.segment_fragments();
        let previous = self.end_reservation(holder);
        let mut want = self.next_len(holder, previous).max(len.next_multiple_of(segment));
        let mut run = None;
        if let Some(previous) = previous {
            // A shorter run that needs no seek is as good.
            let first = self.segments(self.placing.reservation_bytes_first);
            run = self.groups.run_from(previous.next, want.min(first).max(len)..=want)?;
        }
        loop {
            if run.is_none() {
                run = self.find_near(previous, want)?;
            }
            if run.is_none() {
                run = self.find_from_hot(want, segment)?;
            }
            if let Some(run) = run {
                self.start(holder, run, want);
                return Ok(true);
            }
            if want <= segment {
                return Ok(false);
            }
            want = (want / 2).max(segment);
            if want < len {
                return Ok(false);
            }
        }
    }

    /// The length of a key's next reservation, in whole segments.
    fn next_len(&self, holder: Holder, previous: Option<Reservation>) -> u32 {
        let segment = self.layout.segment_fragments();
        // All file reservations together take at most a part of the free space. Sector reservations are as
        // numerous but short: if they counted, directories would be in twice as many pieces.
        let of_files = self.reservations.of_files() as u64;
        let fair = (self.groups.free / (of_files + 1) * self.placing.reserved_eighths / 8)
            .min(u32::MAX.into()) as u32;
        let most = self.segments(self.placing.reservation_bytes_max);
        let longest = (fair / segment * segment).clamp(segment, most);
        let longer = match (self.key_sizes.of_owner(holder.0), previous) {
            (Some(size), _) => size.min(longest).next_multiple_of(segment),
            (None, Some(last)) => last.made.saturating_mul(self.placing.reservation_growth),
            (None, None) => self.segments(self.placing.reservation_bytes_first),
        };
        longer.clamp(segment, longest)
    }

    /// A run in the group of a key's last reservation, which is a short seek away.
    fn find_near(&mut self, previous: Option<Reservation>, want: u32) -> Found {
        let Some(end) = previous.map(|last| last.end).filter(|end| end.0 < self.layout.fragments())
        else {
            return Ok(None);
        };
        let segment = self.layout.segment_fragments();
        let (cg, at) = self.layout.cg_position(end);
        let files = self.zones.files_start(cg);
        self.groups.find_from(cg, at.max(files), files, want, segment)
    }

    /// Ends a reservation, and releases the rest of its run.
    pub fn end_reservation(&mut self, holder: Holder) -> Option<Reservation> {
        self.reservations.end(&mut self.groups, holder)
    }

    /// Halves every file reservation, or every sector reservation once no file reservation is left. False if
    /// none is left.
    pub fn shrink_reservations(&mut self) -> bool {
        self.reservations.shrink(&mut self.groups)
    }

    /// Starts the reservation of an owner that has none. `made` is the length that was wanted.
    pub(super) fn start(&mut self, holder: Holder, run: FragRun, made: u32) {
        self.reservations.start(&mut self.groups, holder, run, made);
        let (owner, class) = holder;
        if class == Class::Files {
            self.homes.add(owner, run);
        }
    }

    /// Reserves a run for urgent files: in a part of the zone at the hot spot. False if there is no room in
    /// it.
    pub(super) fn reserve_urgent(&mut self) -> Result<bool> {
        if self.zones.is_short(self.groups.free) {
            return Ok(false);
        }
        self.end_reservation(URGENT);
        let want = self.segments(self.placing.urgent_bytes);
        let found = self.zones.find_urgent(&mut self.groups, self.hot, want)?;
        if let Some(run) = found {
            self.start(URGENT, run, want);
        }
        Ok(found.is_some())
    }

    /// Reserves a run for files that are moved together, after the last ones if there is room.
    pub fn reserve_moved(&mut self, len: u32) -> Result<bool> {
        let block = self.layout.block_fragments();
        let len = len.next_multiple_of(block);
        let mut run = None;
        if let Some(last) = self.end_reservation(MOVED) {
            run = self.groups.run_from(last.next, len..=len)?;
        }
        let hot = self.hot;
        if run.is_none() {
            run = self.find_from_hot(len, block)?;
        }
        // New files continue at their new place.
        self.hot = hot;
        if let Some(run) = run {
            self.start(MOVED, run, len);
        }
        Ok(run.is_some())
    }
}
