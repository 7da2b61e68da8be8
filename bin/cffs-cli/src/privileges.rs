//! Drops the privileges that a server does not need after mounting.
//!
//! A server that runs as root reads data on the volume that other users wrote, and answers their requests. If
//! one of them exploits a bug, the server must not have root's privileges over the whole host. Its files are
//! already open, so it keeps at most one capability: to unmount when it receives a signal.

use anyhow::Context;
use rustix::thread::{CapabilitySet, CapabilitySets};

/// The capability that the server of a mount needs. A server without a mount needs none.
pub const TO_UNMOUNT: CapabilitySet = CapabilitySet::SYS_ADMIN;

/// Permanently drops all capabilities except these, in this thread and in those that it starts. Ordinary
/// users have none; their servers unmount with a set-user-id program, which they must be able to run.
pub fn give_up_all_but(needed: CapabilitySet) -> anyhow::Result<()> {
    let held = rustix::thread::capabilities(None).context("reading the capabilities")?;
    if held.permitted.is_empty() {
        return Ok(());
    }
    for capability in held.permitted.difference(needed).iter() {
        // So that they cannot be regained by executing a program. This requires CAP_SETPCAP, without which no
        // relevant capability is held.
        let _ = rustix::thread::remove_capability_from_bounding_set(capability);
    }
    let kept = held.permitted.intersection(needed);
    let sets =
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets).context("dropping capabilities")?;
    rustix::thread::set_no_new_privs(true).context("setting no_new_privs")
}
