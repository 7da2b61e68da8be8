//! Who may see and change which extended attributes, as in the kernel.

use cffs::error::{Error, Result};
use cffs::format::inode::FileType;
use cffs::vfs::Volume;
use cffs::vfs::types::Attr;

use crate::access::{READ, STICKY, User, WRITE, checks};

/// The attribute with the capabilities of a program.
const CAPABILITY: &[u8] = b"security.capability";

/// Whether a program sees that a file has the attribute. The kernel shows the others only to CAP_SYS_ADMIN of
/// its first user namespace, which the server cannot recognise.
pub(super) fn is_shown(name: &[u8]) -> bool {
    !name.starts_with(b"trusted.")
}

/// Fails if a user may not read an attribute of a file.
///
/// # Errors
///
/// [`Error::AccessDenied`]; [`Error::NoAttribute`] for attributes that the user does not see;
/// [`Error::NotSupported`] for attributes that the file system does not store.
pub(super) fn check_read(volume: &Volume, user: &User, attr: &Attr, name: &[u8]) -> Result<()> {
    let has_prefix = |prefix: &str| name.starts_with(prefix.as_bytes());
    if has_prefix("system.posix_acl_") || has_prefix("security.") {
        return Ok(());
    }
    if !is_shown(name) {
        return Err(Error::NoAttribute);
    }
    if !has_prefix("user.") {
        return Err(Error::NotSupported);
    }
    match attr.file_type {
        FileType::Regular | FileType::Directory => checks::check(volume, user, attr, READ),
        _ => Err(Error::NoAttribute),
    }
}

/// Fails if a user may not change an attribute of a file. The owner may set the mode of a file that the
/// program has made (`is_own`) before or after, so it does not matter.
///
/// # Errors
///
/// [`Error::NotPermitted`]; [`Error::AccessDenied`]; [`Error::NotSupported`] for attributes that the file
/// system does not store.
pub(super) fn check_change(
    volume: &Volume,
    user: &User,
    (attr, is_own): (&Attr, bool),
    name: &[u8],
) -> Result<()> {
    let permitted = |is_permitted| if is_permitted { Ok(()) } else { Err(Error::NotPermitted) };
    let has_prefix = |prefix: &str| name.starts_with(prefix.as_bytes());
    if has_prefix("system.posix_acl_") {
        return permitted(user.owns(attr));
    }
    if name == CAPABILITY {
        return permitted(user.privileges.setfcap);
    }
    if has_prefix("trusted.") || has_prefix("security.") {
        return permitted(false);
    }
    if !has_prefix("user.") {
        return Err(Error::NotSupported);
    }
    let is_dir = attr.file_type == FileType::Directory;
    permitted(is_dir || attr.file_type == FileType::Regular)?;
    let is_sticky = is_dir && attr.permissions & STICKY != 0;
    permitted(!is_sticky || user.owns(attr))?;
    if is_own && user.owns(attr) { Ok(()) } else { checks::check(volume, user, attr, WRITE) }
}
