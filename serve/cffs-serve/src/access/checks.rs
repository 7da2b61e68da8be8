//! Operations of a volume with the rights of a user: the checks that precede them, and what the kernel adds.

use cffs::error::{Error, Result};
use cffs::units::InodeNo;
use cffs::vfs::types::{Attr, SetAttr, SetTime, Unprivileged};
use cffs::vfs::{Caller, Volume};

use super::{ACL, User};

const SET_ID_USER: u32 = 0o4000;
const SET_ID_GROUP: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;
/// How often a write is retried because the file got set-id bits.
const TRIES_MAX: u32 = 4;

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

/// Writes to a file, after clearing its set-id bits unless the user may keep them, as the kernel does.
/// Returns how many bytes were written.
///
/// # Errors
///
/// Those of [`Volume::write`].
pub fn write(volume: &Volume, user: &User, ino: InodeNo, at: u64, data: &[u8]) -> Result<usize> {
    losing_set_id(volume, user, ino, |caller| volume.write(caller, ino, at, data))
}

/// Writes to the end of a file, as [`write()`] does. Returns how many bytes were written, and the new end.
///
/// # Errors
///
/// Those of [`Volume::append`].
pub fn append(volume: &Volume, user: &User, ino: InodeNo, data: &[u8]) -> Result<(usize, u64)> {
    losing_set_id(volume, user, ino, |caller| volume.append(caller, ino, data))
}

/// Makes a write to a file that has no set-id bits to lose.
fn losing_set_id<T>(
    volume: &Volume,
    user: &User,
    ino: InodeNo,
    write: impl Fn(&Caller<'_>) -> Result<T>,
) -> Result<T> {
    let has_none = |file: &Attr, _: Option<&Attr>| lost_set_id(user, file).is_none();
    for _ in 0..TRIES_MAX {
        // For a user who may keep the bits, reading them under the file's lock would be a waste.
        let caller =
            if user.privileges.fsetid { user.caller(None) } else { user.caller(Some(&has_none)) };
        match write(&caller) {
            Err(Error::Unmet) => {}
            written => return written,
        }
        let clear_privileges = lost_set_id(user, &volume.attr(ino)?);
        if clear_privileges.is_some() {
            let changes = SetAttr { clear_privileges, ..SetAttr::default() };
            volume.set_attr(&user.caller(None), ino, &changes)?;
        }
    }
    Err(Error::NotPermitted)
}

/// The change that clears the set-id bits of a file when the user writes to it; `None` if none are to be
/// cleared.
fn lost_set_id(user: &User, attr: &Attr) -> Option<Unprivileged> {
    let unprivileged = user.unprivileged(attr)?;
    let loses_group =
        attr.permissions & GROUP_EXECUTE != 0 || unprivileged == Unprivileged::Stranger;
    let lost = if loses_group { SET_ID_USER | SET_ID_GROUP } else { SET_ID_USER };
    (attr.permissions & lost != 0).then_some(unprivileged)
}
