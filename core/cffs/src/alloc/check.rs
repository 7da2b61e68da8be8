//! The invariants of the allocator. Debug builds check them each time its lock is released.

use std::ops::{Deref, DerefMut};

use super::{Allocator, State};
use crate::format::LiveLayout;
use crate::lock::MutexGuard;

/// The allocator's state, locked.
pub(super) struct StateGuard<'a> {
    layout: &'a LiveLayout,
    state: MutexGuard<'a, State>,
}

impl Allocator {
    pub(super) fn lock(&self) -> StateGuard<'_> {
        StateGuard { layout: &self.layout, state: self.state.lock() }
    }
}

impl Deref for StateGuard<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for StateGuard<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for StateGuard<'_> {
    fn drop(&mut self) {
        if cfg!(debug_assertions) && !std::thread::panicking() {
            self.state.check(self.layout.block_fragments());
        }
    }
}

impl State {
    /// Fails if the counts contradict each other, or two reservations overlap.
    pub(super) fn check(&self, block_fragments: u32) {
        let in_groups: u64 = self.groups.values().map(|group| u64::from(group.free_count())).sum();
        let sum = self.free_elsewhere + in_groups as i64;
        assert_eq!(self.free as i64, sum, "the free fragments are the sum of the groups");
        let blocks = self.promised_blocks * u64::from(block_fragments);
        assert!(blocks <= self.promised, "promised blocks are promised fragments");
        let runs =
            self.reservations.values().map(|reservation| (reservation.next, reservation.end));
        let mut runs: Vec<_> = runs.filter(|(next, end)| next < end).collect();
        runs.sort_unstable();
        let overlaps = runs.windows(2).any(|pair| pair[0].1 > pair[1].0);
        assert!(!overlaps, "two reservations overlap: {runs:?}");
    }
}
