//! Giving up what a server does not need once it has mounted.
//!
//! A server that runs as root reads data that others wrote on the volume and answers requests of others. If
//! one of them exploits a mistake in it, it must not have root's rights over the whole host. Its files are
//! open already, so at most one capability is left: to unmount when a signal asks for it.

use anyhow::Context;
use rustix::thread::{CapabilitySet, CapabilitySets};

/// The capability that the server of a mount needs. A server without a mount needs none.
pub const TO_UNMOUNT: CapabilitySet = CapabilitySet::SYS_ADMIN;

/// Permanently gives up all capabilities except these, in this thread and in those that it starts. Ordinary
/// users have none; their servers unmount by a set-user-id program, which they must be able to run.
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
