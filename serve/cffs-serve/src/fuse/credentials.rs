//! The user, the groups and the capabilities of a caller.
//!
//! A request contains the user and one group (on a mount that allows id-mapped mounts, only if it creates a
//! file), and no capabilities. The rest is read from the status of the caller's process, which waits for the
//! answer meanwhile. That takes longer than most requests, so it is done only if the answer depends on it. A
//! process that is invisible, because it has ended or is in another namespace, has no groups and
//! capabilities.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use cffs::device::Access;
use cffs::vfs::types::Attr;
use fuse_ring::protocol::{Context, UNKNOWN_ID};

use crate::access::{Privileges, User};
use crate::attached::Asking;

#[cfg(test)]
mod tests;

/// The longest list of mounts that is read.
const MOUNTS_BYTES_MAX: u64 = 1 << 20;

const CHOWN: u64 = 1;
const DAC_OVERRIDE: u64 = 1 << 1;
const DAC_READ_SEARCH: u64 = 1 << 2;
/// `CAP_FOWNER`: this process has the rights of the owner of any file.
const FOWNER: u64 = 1 << 3;
/// `CAP_FSETID`: changes of contents by this process keep set-id bits.
const FSETID: u64 = 1 << 4;
const SETFCAP: u64 = 1 << 31;

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
    User::new(uid(cx), gid(cx), groups)
}

/// The caller with its groups and capabilities, for calls that the kernel does not check; or why it may not
/// make such calls. The capabilities are those that the kernel accepts in any user namespace with the ids of
/// the server's: CAP_MKNOD and CAP_SYS_ADMIN count only in the first one, which the server cannot recognise.
pub fn user_apart(cx: &Context<'_>, access: Access) -> Result<Asking, &'static str> {
    let status = status(cx).ok_or("its server cannot see the process that asks")?;
    let user = user_shown(&status, cx.uid)?;
    if !has_ids_of_server(cx.pid) {
        return Err("this program runs in another user namespace");
    }
    match File::open(format!("/proc/{}/mountinfo", cx.pid)).and_then(Mounts::read) {
        Ok(Mounts { are_mapped: false, are_covered }) => Ok(Asking { user, are_covered, access }),
        Ok(_) => Err("a volume is mounted here with other user ids (an id-mapped mount)"),
        Err(_) => Err("its server cannot read the mounts of this program, or they are too many"),
    }
}

/// Whether a process is in a user namespace with the ids of the server's. In others, a process may have
/// capabilities over few files, or hide mounts.
fn has_ids_of_server(pid: u32) -> bool {
    ["uid_map", "gid_map"].into_iter().all(|map| {
        let own = fs::read(format!("/proc/self/{map}"));
        own.is_ok_and(|own| fs::read(format!("/proc/{pid}/{map}")).is_ok_and(|map| map == own))
    })
}

/// The mounts of C-FFS volumes in the view of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mounts {
    /// Whether one is id-mapped.
    are_mapped: bool,
    /// Whether something is mounted on one, or below its directory.
    are_covered: bool,
}

impl Mounts {
    /// Reads a list of mounts. Fails for a longer one than [`MOUNTS_BYTES_MAX`], and for one without the root
    /// directory: after a chroot(2) into a directory of a mount, the list does not contain that mount.
    fn read(list: impl Read) -> io::Result<Mounts> {
        let mut bytes = Vec::new();
        list.take(MOUNTS_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MOUNTS_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let (mut volumes, mut parents) = (HashSet::new(), HashSet::new());
        let (mut are_mapped, mut has_root) = (false, false);
        for mount in mount_list::parse(&bytes) {
            has_root |= mount.point == Path::new("/");
            // The mount of the root directory may be its own parent.
            if mount.parent != mount.id {
                parents.insert(mount.parent);
            }
            if mount.kind.ends_with(b".cffs") {
                volumes.insert(mount.id);
                are_mapped |=
                    mount_list::options(mount.options).any(|option| option == b"idmapped");
            }
        }
        if !has_root {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(Mounts { are_mapped, are_covered: !volumes.is_disjoint(&parents) })
    }
}

/// The user of a process with this status.
fn user_shown(status: &str, asking: u32) -> Result<User, &'static str> {
    let ids = (id_for_files(status, "Uid:"), id_for_files(status, "Gid:"));
    let (Some(uid), Some(gid)) = ids else {
        return Err("its server cannot see the user that asks");
    };
    // The caller may have been killed, and another process may have its number.
    if uid == UNKNOWN_ID || ![UNKNOWN_ID, uid].contains(&asking) {
        return Err("the process that asked has ended");
    }
    if field(status, "NoNewPrivs:").next() != Some("0") {
        return Err("this program is restricted (no_new_privs), and its server cannot know how");
    }
    let capabilities = effective(status);
    let has = |capability| capabilities & capability != 0;
    let privileges = Privileges {
        dac_override: has(DAC_OVERRIDE),
        dac_read_search: has(DAC_READ_SEARCH),
        fowner: has(FOWNER),
        chown: has(CHOWN),
        fsetid: has(FSETID),
        setfcap: has(SETFCAP),
    };
    let groups = field(status, "Groups:").filter_map(|group| group.parse().ok()).collect();
    Ok(User { uid, gid, groups, privileges })
}

pub fn has_group(cx: &Context<'_>, gid: u32) -> bool {
    self::gid(cx) == gid || status(cx).is_some_and(|status| lists_group(&status, gid))
}

/// Whether the caller's changes keep set-id bits, as root's do unless it has dropped the capability.
pub fn keeps_set_id(cx: &Context<'_>) -> bool {
    has(cx, FSETID)
}

/// Whether the caller has the rights of the owner of any file.
pub fn acts_as_owner(cx: &Context<'_>) -> bool {
    has(cx, FOWNER)
}

/// Whether the caller may do what only the file's owner may.
pub fn owns(cx: &Context<'_>, attr: &Attr) -> bool {
    uid(cx) == attr.uid || acts_as_owner(cx)
}

/// Whether the caller has a capability over all files. One in another user namespace has none: any user can
/// make a namespace in which it has all capabilities.
fn has(cx: &Context<'_>, capability: u64) -> bool {
    status(cx).is_some_and(|status| effective(&status) & capability != 0)
        && has_ids_of_server(cx.pid)
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
