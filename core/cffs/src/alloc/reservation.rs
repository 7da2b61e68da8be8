//! Reservations: runs that are kept for the next files or metadata of their owners.

use foldhash::HashMap;

use super::groups::Groups;
use super::request::Owner;
use crate::format::LiveLayout;
use crate::units::{Class, FragNo, FragRun};

/// An owner has one reservation for files and one for sectors.
pub(super) type Holder = (Owner, Class);

/// The files of all keys that have no reservation.
pub(super) const SHARED_FILES: Holder = (Owner::Shared, Class::Files);
/// The sectors of all directories that have no reservation.
pub(super) const SHARED_SECTORS: Holder = (Owner::Shared, Class::Metadata);
/// Small files that an fsync waits for.
pub(super) const URGENT: Holder = (Owner::Urgent, Class::Files);
/// Files that are being moved together.
pub(super) const MOVED: Holder = (Owner::Moved, Class::Files);

/// A run that is reserved for an owner and used from its beginning on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reservation {
    pub next: FragNo,
    pub end: FragNo,
    /// Its original length, in fragments.
    pub made: u32,
    /// When it was last used: the oldest is given up first.
    used: u64,
}

impl Reservation {
    fn rest(&self) -> FragRun {
        FragRun::new(self.next, (self.end.0 - self.next.0) as u32)
    }
}

/// The reservations of all owners.
pub(super) struct Reservations {
    layout: LiveLayout,
    max: usize,
    by_holder: HashMap<Holder, Reservation>,
    /// The number of requests so far: the time of the last use of a reservation.
    pub clock: u64,
}

impl Reservations {
    /// At most `max` reservations.
    pub fn new(layout: LiveLayout, max: usize) -> Reservations {
        Reservations { layout, max, by_holder: HashMap::default(), clock: 0 }
    }

    pub fn get(&self, holder: Holder) -> Option<&Reservation> {
        self.by_holder.get(&holder)
    }

    /// The number of reservations for files.
    pub fn of_files(&self) -> usize {
        self.by_holder.keys().filter(|(_, class)| *class == Class::Files).count()
    }

    /// Reserves a run for an owner without a reservation, instead of the oldest one if there are too many.
    pub fn start(&mut self, groups: &mut Groups, holder: Holder, run: FragRun, made: u32) {
        if self.by_holder.len() >= self.max {
            let oldest = self.by_holder.iter().min_by_key(|(_, reservation)| reservation.used);
            if let Some(oldest) = oldest.map(|(holder, _)| *holder) {
                self.end(groups, oldest);
            }
        }
        let cg_of = |at| self.layout.cg_of_fragment(at);
        let last = FragNo(run.end().0 - 1);
        assert_eq!(cg_of(run.start), cg_of(last), "a reservation is in one group");
        groups.reserve(run);
        let reservation = Reservation { next: run.start, end: run.end(), made, used: self.clock };
        self.by_holder.insert(holder, reservation);
    }

    /// Ends a reservation, and releases the rest of its run.
    pub fn end(&mut self, groups: &mut Groups, holder: Holder) -> Option<Reservation> {
        let reservation = self.by_holder.remove(&holder)?;
        groups.release(reservation.rest());
        Some(reservation)
    }

    /// Takes the next fragments of a reservation, which stay marked as reserved.
    pub fn take(&mut self, holder: Holder, len: u32) -> Option<FragRun> {
        let reservation = self.by_holder.get_mut(&holder)?;
        let run = reservation.rest().take_front(len)?;
        reservation.next = run.end();
        reservation.used = self.clock;
        Some(run)
    }

    /// Takes the next whole block of a reservation; skipped fragments are released.
    pub fn take_block(&mut self, groups: &mut Groups, holder: Holder) -> Option<FragRun> {
        let block = self.layout.block_fragments();
        let reservation = self.by_holder.get_mut(&holder)?;
        let mut rest = reservation.rest();
        let start = rest.start.0.next_multiple_of(block.into());
        let skipped = rest.take_front((start - rest.start.0) as u32)?;
        let run = rest.take_front(block)?;
        reservation.next = run.end();
        reservation.used = self.clock;
        groups.release(skipped);
        Some(run)
    }

    /// Halves every reservation of one class.
    pub fn shrink(&mut self, groups: &mut Groups) -> bool {
        self.shrink_class(groups, Class::Files) || self.shrink_class(groups, Class::Metadata)
    }

    fn shrink_class(&mut self, groups: &mut Groups, class: Class) -> bool {
        let segment = self.layout.segment_fragments();
        let mut any = false;
        for (_, reservation) in self.by_holder.iter_mut().filter(|((_, of), _)| *of == class) {
            let mut rest = reservation.rest();
            any |= rest.len > 0;
            rest.take_front(if rest.len > segment { rest.len / 2 } else { 0 });
            reservation.end = rest.start;
            groups.release(rest);
        }
        any
    }

    /// Fails if two reservations overlap.
    pub fn check(&self) {
        let runs = self.by_holder.values().map(|reservation| (reservation.next, reservation.end));
        let mut runs: Vec<_> = runs.filter(|(next, end)| next < end).collect();
        runs.sort_unstable();
        let overlaps = runs.windows(2).any(|pair| pair[0].1 > pair[1].0);
        assert!(!overlaps, "two reservations overlap: {runs:?}");
    }
}
