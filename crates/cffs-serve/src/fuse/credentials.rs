//! The user, the groups and the capabilities of a caller.
//!
//! A request carries the user and one group, on a mount that allows id-mapped mounts only if it creates a
//! file, and no capabilities. The others are read from the status of the caller's process, which waits for
//! the answer meanwhile. That takes longer than most requests, so it is done only where the answer depends on
//! it. A process that cannot be seen, because it is in another namespace or gone, has none.

use std::fs;

use fuse_ring::protocol::{Context, UNKNOWN_ID};

#[cfg(test)]
mod tests;

/// `CAP_FSETID`: set-id bits survive changes of the contents by this process.
const FSETID: u64 = 1 << 4;

/// The caller's user; [`UNKNOWN_ID`], which is not a user, if it is unknown.
pub fn uid(cx: &Context<'_>) -> u32 {
    known_or_shown(cx.uid, cx, "Uid:")
}

/// The caller's group, in the same way.
pub fn gid(cx: &Context<'_>) -> u32 {
    known_or_shown(cx.gid, cx, "Gid:")
}

fn known_or_shown(id: u32, cx: &Context<'_>, name: &str) -> u32 {
    match id {
        UNKNOWN_ID => status(cx).and_then(|status| id_for_files(&status, name)).unwrap_or(id),
        known => known,
    }
}

/// Whether the caller is in a group.
pub fn has_group(cx: &Context<'_>, gid: u32) -> bool {
    self::gid(cx) == gid || status(cx).is_some_and(|status| lists_group(&status, gid))
}

/// Whether the caller's changes keep set-id bits, as root's do unless it has dropped this capability.
pub fn keeps_set_id(cx: &Context<'_>) -> bool {
    status(cx).is_some_and(|status| effective(&status) & FSETID != 0)
}

fn status(cx: &Context<'_>) -> Option<String> {
    fs::read_to_string(format!("/proc/{}/status", cx.pid)).ok()
}

/// The words of a line in the status of a process, as `/proc` shows it.
fn field<'a>(status: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_default().split_whitespace()
}

/// The fourth of the numbers in a line: real, effective, saved, and that for files.
fn id_for_files(status: &str, name: &str) -> Option<u32> {
    const FOR_FILES: usize = 3;
    field(status, name).nth(FOR_FILES)?.parse().ok()
}

fn lists_group(status: &str, gid: u32) -> bool {
    field(status, "Groups:").any(|group| group.parse() == Ok(gid))
}

fn effective(status: &str) -> u64 {
    let set = field(status, "CapEff:").next().and_then(|set| u64::from_str_radix(set, 16).ok());
    set.unwrap_or(0)
}
