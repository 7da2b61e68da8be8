//! The user, the groups and the capabilities of a caller.
//!
//! A request contains the user and one group (on a mount that allows id-mapped mounts, only if it creates a
//! file), and no capabilities. The rest is read from the status of the caller's process, which waits for the
//! answer meanwhile. That takes longer than most requests, so it is done only if the answer depends on it. A
//! process that is invisible, because it has ended or is in another namespace, has no groups and
//! capabilities.

use std::fs;

use fuse_ring::protocol::{Context, UNKNOWN_ID};

use crate::access::User;

#[cfg(test)]
mod tests;

/// `CAP_FOWNER`: this process has the rights of the owner of any file.
const FOWNER: u64 = 1 << 3;
/// `CAP_FSETID`: changes of contents by this process keep set-id bits.
const FSETID: u64 = 1 << 4;

/// The caller's user; [`UNKNOWN_ID`], which no user has, if it is unknown.
pub fn uid(cx: &Context<'_>) -> u32 {
    known_or_shown(cx.uid, cx, "Uid:")
}

/// The caller's group; likewise.
pub fn gid(cx: &Context<'_>) -> u32 {
    known_or_shown(cx.gid, cx, "Gid:")
}

fn known_or_shown(id: u32, cx: &Context<'_>, name: &str) -> u32 {
    match id {
        UNKNOWN_ID => status(cx).and_then(|status| id_for_files(&status, name)).unwrap_or(id),
        known => known,
    }
}

/// The caller with all its groups.
pub fn user(cx: &Context<'_>) -> User {
    let status = status(cx);
    let groups = status.iter().flat_map(|status| field(status, "Groups:"));
    let groups = groups.filter_map(|group| group.parse().ok()).collect();
    User { uid: uid(cx), gid: gid(cx), groups }
}

pub fn has_group(cx: &Context<'_>, gid: u32) -> bool {
    self::gid(cx) == gid || status(cx).is_some_and(|status| lists_group(&status, gid))
}

/// Whether the caller's changes keep set-id bits, as root's do unless it has dropped the capability.
pub fn keeps_set_id(cx: &Context<'_>) -> bool {
    status(cx).is_some_and(|status| effective(&status) & FSETID != 0)
}

/// Whether the caller has the rights of the owner of any file.
pub fn acts_as_owner(cx: &Context<'_>) -> bool {
    status(cx).is_some_and(|status| effective(&status) & FOWNER != 0)
}

fn status(cx: &Context<'_>) -> Option<String> {
    fs::read_to_string(format!("/proc/{}/status", cx.pid)).ok()
}

/// The words of a line in a process's `/proc` status.
fn field<'a>(status: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_default().split_whitespace()
}

/// The fourth number of a line: real, effective, saved, and file-system id.
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
