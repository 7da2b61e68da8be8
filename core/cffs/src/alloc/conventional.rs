//! Placement without co-location: the baseline for measurements of the other policies.
//!
//! A directory has a home group, and its files go there one by one. With [`Policy::None`] each takes the
//! first free place, as on a new volume. [`Policy::Scattered`] searches as in USENIX'97 (4.1), which
//! reproduces the layout seen on file servers: half of the files from the last placed file on, the other half
//! from a random place on.

use super::group::Among;
use super::place::{Kind, Request};
use super::{Allocator, Owner, State};
use crate::error::Result;
use crate::format::superblock::Policy;
use crate::units::{CgIndex, FragRun};

/// Spreads the bits of a counter: an odd number near 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

impl Allocator {
    /// Right after the file, or from the policy's starting point in the group of its directory, or in a later
    /// group.
    pub(super) fn place_conventionally(
        &self,
        state: &mut State,
        request: &Request,
    ) -> Result<Option<FragRun>> {
        if request.goal.is_some() && request.kind == Kind::Large {
            return self.place_large(state, request);
        }
        let cgs = self.layout.cgs();
        let key = match request.owner {
            Owner::Key(key) => key.0,
            // A file without a directory: the first group.
            Owner::Shared | Owner::Urgent | Owner::Moved => 0,
        };
        let home = (key.wrapping_mul(SPREAD) >> 32) as u32 % cgs;
        let dice = state.clock.wrapping_mul(SPREAD) >> 32;
        for step in 0..cgs {
            let cg = CgIndex((home + step) % cgs);
            let group = self.group(state, cg)?;
            let end = group.fragments();
            let from = match self.policy {
                Policy::Scattered if dice.is_multiple_of(2) => group.rotor,
                Policy::Scattered => (dice / 2) as u32 % end,
                _ => 0,
            };
            let found = group
                .find(from, end, request.len, 1, Among::Unreserved)
                .or_else(|| group.find(0, end, request.len, 1, Among::Unreserved));
            if let Some(at) = found {
                return Ok(Some(FragRun::new(self.of_group(cg, at), request.len)));
            }
        }
        Ok(None)
    }
}
