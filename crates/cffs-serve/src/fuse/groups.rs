//! The groups of a caller.
//!
//! A request carries one of them. The others are asked of the caller's process, which waits for the answer
//! meanwhile.

use std::fs;

use fuse_ring::protocol::Context;

#[cfg(test)]
mod tests;

/// Whether the caller is in a group. Not, if its process cannot be seen: one in another namespace, or one
/// that has gone.
pub fn has(cx: &Context<'_>, gid: u32) -> bool {
    cx.gid == gid || {
        let status = fs::read_to_string(format!("/proc/{}/status", cx.pid));
        status.is_ok_and(|status| lists(&status, gid))
    }
}

/// Whether the status of a process, as `/proc` shows it, lists a group.
fn lists(status: &str, gid: u32) -> bool {
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    groups.is_some_and(|groups| groups.split_whitespace().any(|group| group.parse() == Ok(gid)))
}
