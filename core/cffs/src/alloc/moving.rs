//! Space for files that are moved together.

use super::{Allocator, Class, Owner};
use crate::error::Result;
use crate::units::FragRun;

/// The files that are being moved, which take their places from one run.
const MOVED: (Owner, Class) = (Owner::Moved, Class::Files);

impl Allocator {
    /// Reserves a run of `len` fragments for files that are moved together, after the last ones if there is
    /// room. Returns false if no run is that long; then the files are not moved.
    pub fn reserve_moved(&self, len: u32) -> Result<bool> {
        let state = &mut *self.lock();
        let block = self.layout.block_fragments();
        let len = len.next_multiple_of(block);
        let last = state.reservations.remove(&MOVED);
        let mut run = None;
        if let Some(last) = last {
            self.release_reservation(state, &last)?;
            run = self.run_after(state, last.next, len..=len)?;
        }
        let hot = state.hot;
        if run.is_none() {
            run = self.find_from_hot(state, len, block)?;
        }
        // New files continue at their new place.
        state.hot = hot;
        match run {
            Some(run) => self.start_reservation(state, MOVED, run, len),
            None => Ok(false),
        }
    }

    /// Releases the rest of the reservation.
    pub fn end_moving(&self) -> Result<()> {
        let state = &mut *self.lock();
        match state.reservations.remove(&MOVED) {
            Some(rest) => self.release_reservation(state, &rest),
            None => Ok(()),
        }
    }

    /// Forgets the places of a key's files, which were moved. The key's size stays.
    pub fn forget(&self, owner: Owner) -> Result<()> {
        let state = &mut *self.lock();
        state.homes.remove(&owner);
        match state.reservations.remove(&(owner, Class::Files)) {
            Some(reservation) => self.release_reservation(state, &reservation),
            None => Ok(()),
        }
    }

    /// Takes the next fragments of the reservation.
    pub(super) fn take_moved(&self, state: &mut super::State, len: u32) -> Option<FragRun> {
        self.take_reserved(state, MOVED, len)
    }
}
