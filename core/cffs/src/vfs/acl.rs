//! POSIX ACLs: keeping them consistent with the mode, and inheritance of default ACLs (POSIX.1e draft 17,
//! 23.3).
//!
//! They are stored in the kernel's format: a version, then entries of tag, permissions and id. The front end
//! checks access by them.

use super::ids::NO_ID;
use crate::error::{Error, Result};
use crate::inode::Inode;

/// The attribute that decides access.
pub(super) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute of a directory that new files inherit.
pub(super) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

#[derive(Clone, Copy)]
struct Ace {
    tag: u16,
    permissions: u16,
    id: [u8; 4],
}

fn decode(bytes: &[u8]) -> Result<Vec<Ace>> {
    let bad = || Error::Invalid("not a POSIX ACL");
    let (version, rest) = bytes.split_at_checked(4).ok_or_else(bad)?;
    let (entries, left) = rest.as_chunks::<8>();
    if version != VERSION.to_le_bytes() || !left.is_empty() {
        return Err(bad());
    }
    let entries: Vec<Ace> = entries
        .iter()
        .map(|e| Ace {
            tag: u16::from_le_bytes([e[0], e[1]]),
            permissions: u16::from_le_bytes([e[2], e[3]]),
            id: [e[4], e[5], e[6], e[7]],
        })
        .collect();
    let known = |ace: &Ace| {
        matches!(ace.tag, USER_OBJ | USER | GROUP_OBJ | GROUP | MASK | OTHER)
            && ace.permissions <= 7
            && !(matches!(ace.tag, USER | GROUP) && u32::from_le_bytes(ace.id) == NO_ID)
    };
    let has = |tag| entries.iter().filter(|ace| ace.tag == tag).count() == 1;
    if !entries.iter().all(known) || ![USER_OBJ, GROUP_OBJ, OTHER].into_iter().all(has) {
        return Err(bad());
    }
    Ok(entries)
}

/// Fails if a value is not an ACL that a file can have.
///
/// # Errors
///
/// [`Error::Invalid`].
pub fn check_acl(value: &[u8]) -> Result<()> {
    decode(value).map(drop)
}

fn encode(entries: &[Ace]) -> Vec<u8> {
    let mut bytes = VERSION.to_le_bytes().to_vec();
    for ace in entries {
        bytes.extend_from_slice(&ace.tag.to_le_bytes());
        bytes.extend_from_slice(&ace.permissions.to_le_bytes());
        bytes.extend_from_slice(&ace.id);
    }
    bytes
}

/// Whether the ACL is equivalent to the mode.
fn is_minimal(entries: &[Ace]) -> bool {
    entries.iter().all(|ace| matches!(ace.tag, USER_OBJ | GROUP_OBJ | OTHER))
}

/// The entry whose permissions are the mode's group bits: the mask if there is one.
fn group_tag(entries: &[Ace]) -> u16 {
    if entries.iter().any(|ace| ace.tag == MASK) { MASK } else { GROUP_OBJ }
}

fn shift_of(entries: &[Ace], tag: u16) -> Option<u32> {
    match tag {
        USER_OBJ => Some(6),
        OTHER => Some(0),
        tag if tag == group_tag(entries) => Some(3),
        _ => None,
    }
}

/// Adapts the access ACL to a changed mode. Returns whether there is one.
pub(super) fn follow_mode(inode: &mut Inode) -> bool {
    let Some(Ok(mut entries)) = inode.attributes().get(ACCESS).map(|bytes| decode(bytes)) else {
        return false;
    };
    let snapshot = entries.clone();
    for ace in &mut entries {
        if let Some(shift) = shift_of(&snapshot, ace.tag) {
            ace.permissions = (inode.permissions >> shift & 7) as u16;
        }
    }
    inode.attributes_mut().insert(ACCESS.to_vec(), encode(&entries));
    true
}

/// Sets the access ACL and the mode that follows from it. An ACL that is equivalent to a mode is not kept.
pub(super) fn set_access(inode: &mut Inode, value: &[u8]) -> Result<()> {
    let entries = decode(value)?;
    let mut mode = inode.permissions & !0o777;
    for ace in &entries {
        if let Some(shift) = shift_of(&entries, ace.tag) {
            mode |= u32::from(ace.permissions) << shift;
        }
    }
    inode.permissions = mode;
    if is_minimal(&entries) {
        inode.attributes_mut().remove(ACCESS);
    } else {
        inode.attributes_mut().insert(ACCESS.to_vec(), value.to_vec());
    }
    Ok(())
}

/// Checks a default ACL, which only a directory can have.
pub(super) fn check_default(inode: &Inode, value: &[u8]) -> Result<()> {
    if !inode.is_dir() {
        return Err(Error::NotPermitted);
    }
    decode(value).map(|_| ())
}

/// Gives a new file the permissions that its directory's default ACL or the umask leave it.
pub(super) fn inherit(inode: &mut Inode, parent: &Inode, umask: u32) {
    let Some(default) = parent.attributes().get(DEFAULT) else {
        inode.permissions &= !(umask & 0o777);
        return;
    };
    if inode.is_dir() {
        inode.attributes_mut().insert(DEFAULT.to_vec(), default.clone());
    }
    let Ok(mut entries) = decode(default) else { return };
    let snapshot = entries.clone();
    let asked = inode.permissions;
    let mut mode = asked & !0o777;
    for ace in &mut entries {
        if let Some(shift) = shift_of(&snapshot, ace.tag) {
            ace.permissions &= (asked >> shift & 7) as u16;
            mode |= u32::from(ace.permissions) << shift;
        }
    }
    inode.permissions = mode;
    if !is_minimal(&entries) {
        inode.attributes_mut().insert(ACCESS.to_vec(), encode(&entries));
    }
}
