//! The invariants of the allocator. Debug builds check them each time its lock is released.

use std::ops::{Deref, DerefMut};

use super::{Allocator, State};
use crate::lock::MutexGuard;

/// The allocator's state, locked.
pub(super) struct StateGuard<'a>(MutexGuard<'a, State>);

impl Allocator {
    pub(super) fn lock(&self) -> StateGuard<'_> {
        StateGuard(self.state.lock())
    }
}

impl Deref for StateGuard<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.0
    }
}

impl DerefMut for StateGuard<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.0
    }
}

impl Drop for StateGuard<'_> {
    fn drop(&mut self) {
        if cfg!(debug_assertions) && !std::thread::panicking() {
            self.space.groups.check();
            self.promises.check();
            self.space.reservations.check();
        }
    }
}
