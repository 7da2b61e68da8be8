//! Checks that precede an operation of a volume.

use cffs::error::{Error, Result};
use cffs::vfs::Volume;
use cffs::vfs::types::{Attr, SetAttr, SetTime, Unprivileged};

use super::{ACL, User};

const SET_ID_GROUP: u32 = 0o2000;

/// Whether the user has all of the `wanted` permissions on a file.
///
/// # Errors
///
/// The access ACL cannot be read.
pub fn may(volume: &Volume, user: &User, attr: &Attr, wanted: u32) -> Result<bool> {
    let acl = match volume.xattr(attr.ino, ACL) {
        Ok(acl) => Some(acl),
        Err(Error::NoAttribute) => None,
        Err(error) => return Err(error),
    };
    Ok(user.may(attr, acl.as_deref(), wanted))
}

/// Fails with [`Error::AccessDenied`] if the user lacks any of these permissions.
///
/// # Errors
///
/// Those of [`may`].
pub fn check(volume: &Volume, user: &User, attr: &Attr, wanted: u32) -> Result<()> {
    if may(volume, user, attr, wanted)? { Ok(()) } else { Err(Error::AccessDenied) }
}

/// Fails if only the owner, or a privileged user, may make these changes.
///
/// # Errors
///
/// [`Error::NotPermitted`].
pub fn check_owner(user: &User, attr: &Attr, changes: &SetAttr) -> Result<()> {
    let sets_owner = changes.uid.is_some_and(|uid| uid != attr.uid)
        || changes.gid.is_some_and(|gid| gid != attr.gid && !user.is_member(gid));
    let needs_owner = changes.permissions.is_some()
        || changes.uid.is_some()
        || changes.gid.is_some()
        || [changes.atime, changes.mtime].iter().any(|time| matches!(time, Some(SetTime::To(_))));
    match sets_owner && !user.privileges.chown || needs_owner && !user.owns(attr) {
        true => Err(Error::NotPermitted),
        false => Ok(()),
    }
}

/// Completes changes with those of the set-id bits that follow from them.
pub fn complete(user: &User, attr: &Attr, changes: &mut SetAttr) {
    if let Some(permissions) = &mut changes.permissions {
        let group = changes.gid.unwrap_or(attr.gid);
        if !user.privileges.fsetid && !user.is_member(group) {
            *permissions &= !SET_ID_GROUP;
        }
    }
    // Changing the owner clears the bits, for every caller.
    if changes.uid.is_some() || changes.gid.is_some() {
        changes.clear_privileges = Some(Unprivileged::Member);
    } else if changes.size.is_some() {
        changes.clear_privileges = user.unprivileged(attr);
    }
}
