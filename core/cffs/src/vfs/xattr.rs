//! Extended attributes.

use std::sync::Arc;

use super::{Caller, Volume, XattrMode, acl};
use crate::error::{Error, Result};
use crate::format::xattr::{self, XATTR_LIST_BYTES_MAX, XATTR_VALUE_BYTES_MAX};
use crate::inode::{Attributes, InodeCache, Vnode, VnodeGuard, keys};
use crate::trace::OpKind;
use crate::units::InodeNo;

/// The attribute that names a file's co-location key: files and directories with the same value are stored
/// together, wherever their names are. A new file inherits that of its directory.
pub const HINT: &[u8] = b"user.cffs.key";

/// The longest name of an attribute in bytes.
const XATTR_NAME_BYTES_MAX: usize = 255;

/// The names of a file's attributes, each with a zero byte: Linux lists no more (`XATTR_LIST_MAX`). Room for
/// those of the two ACLs is always left, since chmod(1) and `cp -p` set an ACL as well.
const XATTR_NAMES_BYTES_MAX: usize =
    (64 << 10) - (acl::ACCESS.len() + 1) - (acl::DEFAULT.len() + 1);

/// The prefix of attributes that belong to the file system, such as the key of NFS handles. They are not
/// listed, read or set like others, and copies and archives do not have them. They can be removed.
const OWN: &[u8] = b"trusted.cffs.";

/// The value of an attribute of the file system, whose name begins with `trusted.cffs.`.
///
/// # Errors
///
/// Those of [`xattr`](Volume::xattr).
pub fn own_xattr(volume: &Volume, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
    debug_assert!(is_own(name), "not an attribute of the file system");
    value_of(volume, ino, name)
}

/// Sets an attribute of the file system, whose name begins with `trusted.cffs.`.
///
/// # Errors
///
/// Those of [`set_xattr`](Volume::set_xattr).
pub fn set_own_xattr(
    volume: &Volume,
    ino: InodeNo,
    name: &[u8],
    value: &[u8],
    mode: XattrMode,
) -> Result<()> {
    debug_assert!(is_own(name), "not an attribute of the file system");
    set_value(volume, &Caller::ROOT, ino, name, value, mode)
}

/// The value of any attribute.
pub(super) fn value_of(volume: &Volume, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
    let _op = volume.writer.enter(OpKind::Xattr, ino);
    look_at(volume.inodes(), &volume.writer.vnode(ino)?, |known| known.get(name).cloned())?
        .ok_or(Error::NoAttribute)
}

/// Sets any attribute.
pub(super) fn set_value(
    volume: &Volume,
    caller: &Caller<'_>,
    ino: InodeNo,
    name: &[u8],
    value: &[u8],
    mode: XattrMode,
) -> Result<()> {
    let _op = volume.writer.enter(OpKind::Xattr, ino);
    check_name(name)?;
    let vnode = volume.writer.vnode(ino)?;
    volume.protections.check_unprotected(&vnode)?;
    if value.len() > XATTR_VALUE_BYTES_MAX {
        return Err(Error::Range);
    }
    // A change that finds no space frees some, which too large attributes must not cause.
    look_at(volume.inodes(), &vnode, |known| check_new(known, name, value, mode))??;
    volume.change_vnode(volume.reserve.spender(caller), &vnode, |inodes, file| {
        caller.check(file, None)?;
        set(inodes, file, name, value, mode)
    })
}

pub(crate) fn is_own(name: &[u8]) -> bool {
    name.starts_with(OWN)
}

pub(crate) fn is_acl(name: &[u8]) -> bool {
    name == acl::ACCESS || name == acl::DEFAULT
}

/// Whether an attribute is the ACL that decides who may use the file.
pub fn is_access_acl(name: &[u8]) -> bool {
    name == acl::ACCESS
}

pub(super) fn check_name(name: &[u8]) -> Result<()> {
    let namespaces: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"system."];
    if name.len() > XATTR_NAME_BYTES_MAX {
        return Err(Error::Range);
    }
    let known =
        namespaces.iter().any(|prefix| name.starts_with(prefix) && name.len() > prefix.len());
    let system = name.starts_with(b"system.") && !is_acl(name);
    if !known || system || name.contains(&0) { Err(Error::NotSupported) } else { Ok(()) }
}

/// Whether a copy must not have this attribute if its source does not.
pub fn follows_source(name: &[u8]) -> bool {
    is_acl(name) || name.starts_with(b"user.") && name != HINT
}

/// Reads a file's attributes into memory if necessary, and passes them on.
pub(super) fn look_at<T>(
    inodes: &InodeCache,
    vnode: &Arc<Vnode>,
    look: impl FnOnce(&Attributes) -> T,
) -> Result<T> {
    if let Some(known) = vnode.state.read().inode.known_attributes() {
        return Ok(look(known));
    }
    let mut file = VnodeGuard::new(vnode);
    inodes.load_attributes(&mut file)?;
    Ok(look(file.inode.attributes()))
}

/// Sets an attribute.
pub(super) fn set(
    inodes: &InodeCache,
    file: &mut VnodeGuard<'_>,
    name: &[u8],
    value: &[u8],
    mode: XattrMode,
) -> Result<()> {
    inodes.load_attributes(file)?;
    let total = check_new(file.inode.attributes(), name, value, mode)?;
    inodes.space().take_xattr_space(file, total)?;
    match name {
        acl::ACCESS => acl::set_access(&mut file.inode, value)?,
        acl::DEFAULT => {
            acl::check_default(&file.inode, value)?;
            file.inode.attributes_mut().insert(name.to_vec(), value.to_vec());
        }
        _ => {
            file.inode.attributes_mut().insert(name.to_vec(), value.to_vec());
        }
    }
    if name == HINT {
        file.inode.key = Some(keys::hint_key(value));
    }
    attributes_changed(inodes, file);
    Ok(())
}

/// Makes a change of attributes of the file system, which does not count as a change of the file.
pub(super) fn unstamped<T>(
    file: &mut VnodeGuard<'_>,
    change: impl FnOnce(&mut VnodeGuard<'_>) -> T,
) -> T {
    let before = file.inode.unstamped;
    let changed = change(file);
    file.inode.unstamped = before;
    changed
}

/// Removes an attribute; false if there is none of this name.
pub(super) fn remove(inodes: &InodeCache, file: &mut VnodeGuard<'_>, name: &[u8]) -> Result<bool> {
    inodes.load_attributes(file)?;
    let known = file.inode.attributes();
    let Some(value) = known.get(name) else { return Ok(false) };
    let left = known.encoded_len() - xattr::encoded_len(name, value);
    inodes.space().take_xattr_space(file, left)?;
    file.inode.attributes_mut().remove(name);
    if name == HINT {
        file.inode.key = keys::policy_key(inodes.policy(), &file.inode, 0);
    }
    attributes_changed(inodes, file);
    Ok(true)
}

/// Gives a copy the attributes of its source: sets them, and removes the ACLs and the attributes of
/// `user.` that the source does not have, such as an ACL that the copy inherited from its directory.
/// A placement key stays, as do attributes of `security.` and `trusted.`, which other programs of the
/// machine set. Attributes of the file system are not copied.
///
/// # Errors
///
/// Those of [`set_xattr`](Volume::set_xattr).
pub fn copy_xattrs(
    volume: &Volume,
    caller: &Caller<'_>,
    ino: InodeNo,
    source: &[(Vec<u8>, Vec<u8>)],
) -> Result<()> {
    for name in volume.xattr_names(ino)?.iter().filter(|name| follows_source(name)) {
        if source.iter().all(|(wanted, _)| wanted != name) {
            volume.remove_xattr_by(caller, ino, name)?;
        }
    }
    let set = |(name, value): &(Vec<u8>, Vec<u8>)| {
        volume.set_xattr(caller, ino, name, value, XattrMode::Any)
    };
    source.iter().filter(|(name, _)| !is_own(name)).try_for_each(set)
}

/// The bytes of all attributes including this one, if it may be set, the sum is allowed, and the names can be
/// listed.
pub(super) fn check_new(
    known: &Attributes,
    name: &[u8],
    value: &[u8],
    mode: XattrMode,
) -> Result<usize> {
    match mode {
        XattrMode::Create if known.has(name) => return Err(Error::Exists),
        XattrMode::Replace if !known.has(name) => return Err(Error::NoAttribute),
        _ => {}
    }
    if !known.has(name) && !is_acl(name) {
        let others = known.names().filter(|name| !is_acl(name));
        let listed: usize = others.map(|name| name.len() + 1).sum();
        if listed + name.len() + 1 > XATTR_NAMES_BYTES_MAX {
            return Err(Error::NoSpace);
        }
    }
    let replaced = known.get(name).map_or(0, |value| xattr::encoded_len(name, value));
    let total = known.encoded_len() - replaced + xattr::encoded_len(name, value);
    if total > XATTR_LIST_BYTES_MAX { Err(Error::NoSpace) } else { Ok(total) }
}

/// Notes a change of attributes.
fn attributes_changed(inodes: &InodeCache, file: &mut VnodeGuard<'_>) {
    file.changes.xattrs = true;
    file.inode.touch(inodes.clock.now());
    inodes.mark_dirty(file);
}
