//! Attributes of files, and changes of them.

use super::ids::shown_id;
use super::{Attr, SetAttr, SetTime, Unprivileged, acl};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::format::inode::FileType;
use crate::format::superblock::Policy;
use crate::format::{FILE_BYTES_MAX, Layout};
use crate::inode::{DirtyLevel, Inode, InodeCache, VnodeGuard, VnodeState, keys};

const SET_UID: u32 = 0o4000;
pub(super) const SET_GID: u32 = 0o2000;
pub(super) const GROUP_EXECUTE: u32 = 0o010;

impl Attr {
    /// The present attributes of a file. Counting the space that it occupies visits all of its changed pages.
    pub(super) fn of(layout: &Layout, file: &VnodeState) -> Attr {
        Attr { allocated_bytes: file.allocated_bytes(layout), ..Attr::without_allocation(file) }
    }

    /// The present attributes of a file, except that `allocated_bytes` is 0. This takes constant time.
    pub(super) fn without_allocation(file: &VnodeState) -> Attr {
        let inode = &file.inode;
        Attr {
            ino: inode.ino,
            generation: inode.generation,
            file_type: inode.file_type,
            permissions: inode.permissions,
            nlink: inode.nlink,
            uid: shown_id(inode.uid),
            gid: shown_id(inode.gid),
            device: inode.device,
            size: inode.size,
            allocated_bytes: 0,
            atime: inode.atime,
            mtime: inode.mtime,
            ctime: inode.ctime,
            btime: inode.btime,
            change: inode.change,
            flags: inode.flags,
        }
    }
}

/// Fails unless a file of this type can have this size.
pub(super) fn check_size(file_type: FileType, size: u64) -> Result<()> {
    match file_type {
        _ if size > FILE_BYTES_MAX => Err(Error::TooLarge),
        FileType::Regular => Ok(()),
        FileType::Directory => Err(Error::IsDirectory),
        _ => Err(Error::Invalid("only a regular file can be truncated")),
    }
}

/// Makes the changes but for that of the size.
pub(super) fn apply(inodes: &InodeCache, file: &mut VnodeGuard<'_>, changes: &SetAttr) {
    let inode = &mut file.inode;
    let before = (inode.permissions, inode.uid, inode.gid);
    let has_acl = apply_to(inode, inodes.policy(), inodes.clock.now(), changes);
    file.changes.xattrs |= has_acl;
    let inode = &file.inode;
    let times_alone = before == (inode.permissions, inode.uid, inode.gid) && !file.changes.xattrs;
    let changed = if times_alone { DirtyLevel::Times } else { DirtyLevel::Anything };
    inodes.mark_changed(file, changed);
}

/// The same for an inode alone. Returns whether its access ACL has followed the mode.
pub(super) fn apply_to(
    inode: &mut Inode,
    policy: Policy,
    now: Timestamp,
    changes: &SetAttr,
) -> bool {
    let mut has_acl = false;
    if let Some(permissions) = changes.permissions {
        inode.permissions = permissions & 0o7777;
        has_acl = acl::follow_mode(inode);
    }
    if let Some(caller) = changes.clear_privileges
        && inode.file_type != FileType::Directory
    {
        inode.permissions &= !SET_UID;
        if inode.permissions & GROUP_EXECUTE != 0 || caller == Unprivileged::Stranger {
            inode.permissions &= !SET_GID;
        }
    }
    if let Some(owner) = changes.uid {
        keys::give_to(inode, owner);
    }
    inode.gid = changes.gid.unwrap_or(inode.gid);
    let time = |set: SetTime| match set {
        SetTime::Now => now,
        SetTime::To(time) => time,
    };
    if let Some(atime) = changes.atime {
        inode.atime = time(atime);
        keys::follow_access(policy, inode);
    }
    inode.mtime = changes.mtime.map_or(inode.mtime, time);
    inode.touch(changes.ctime.unwrap_or(now));
    has_acl
}
