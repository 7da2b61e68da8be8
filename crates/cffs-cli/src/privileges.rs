//! Giving up what a server does not need once it has mounted.
//!
//! A server of root's reads what others wrote on the volume and answers what others ask. Should one of
//! them find a mistake in it, it is not to have root's rights over the whole host. What it serves from
//! is open by then, so one capability is left at most: that to unmount, when a signal asks for it.

use anyhow::Context;
use rustix::thread::{CapabilitySet, CapabilitySets};

/// The capability that the server of a mount needs. A server without a mount needs none.
pub const TO_UNMOUNT: CapabilitySet = CapabilitySet::SYS_ADMIN;

/// Gives up all capabilities but these of this thread, and of those that it starts, for good. Ordinary users
/// have none; their servers unmount by a program that has, which they must be able to run.
pub fn give_up_all_but(needed: CapabilitySet) -> anyhow::Result<()> {
    let held = rustix::thread::capabilities(None).context("reading the capabilities")?;
    if held.permitted.is_empty() {
        return Ok(());
    }
    for capability in held.permitted.difference(needed).iter() {
        // Not to be had again by way of a program that is executed either. Takes CAP_SETPCAP, without
        // which nothing that matters is held.
        let _ = rustix::thread::remove_capability_from_bounding_set(capability);
    }
    let kept = held.permitted.intersection(needed);
    let sets =
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets).context("giving up capabilities")?;
    rustix::thread::set_no_new_privs(true).context("giving up new privileges")
}
