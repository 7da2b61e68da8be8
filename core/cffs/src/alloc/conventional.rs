//! FreeSpace without co-location: the baseline for measurements of the other policies.
//!
//! A directory has a home group, and its files go there one by one. With [`Policy::None`] each takes the
//! first free place, as on a new volume. [`Policy::Scattered`] searches as in USENIX'97 (4.1), which
//! reproduces the layout seen on file servers: half of the files from the last placed file on, the other half
//! from a random place on.

use super::Found;
use super::groups::Groups;
use super::request::{Owner, Request};
use crate::format::superblock::Policy;
use crate::units::CgIndex;

/// Spreads the bits of a counter: an odd number near 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The first free run from the policy's starting point in the group of the file's directory, or in a later
/// group. `nth` is the number of the request.
pub(super) fn find(groups: &mut Groups, policy: Policy, nth: u64, request: &Request) -> Found {
    let cgs = groups.layout().cgs();
    let key = match request.owner {
        Owner::Key(key) => key.0,
        // A file without a directory: the first group.
        Owner::Shared | Owner::Urgent | Owner::Moved => 0,
    };
    let home = (key.wrapping_mul(SPREAD) >> 32) as u32 % cgs;
    let dice = nth.wrapping_mul(SPREAD) >> 32;
    for step in 0..cgs {
        let cg = CgIndex((home + step) % cgs);
        let group = groups.get(cg)?;
        let from = match policy {
            Policy::Scattered if dice.is_multiple_of(2) => group.rotor,
            Policy::Scattered => (dice / 2) as u32 % group.fragments(),
            _ => 0,
        };
        let found = groups.find_from(cg, from, 0, request.len, 1)?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}
