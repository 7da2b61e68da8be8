//! New files: their inodes ([`Making`]).

use std::sync::Arc;

use super::attributes::{GROUP_EXECUTE, SET_GID, apply_to, check_size};
use super::ids::check_id;
use super::xattr::HINT;
use super::{Caller, NewFile, NewKind, SetAttr, acl};
use crate::error::{Error, Result};
use crate::format::SYMLINK_BYTES_MAX;
use crate::format::inode::{FileType, InodeFlags};
use crate::inode::{Content, Inode, Vnode, VnodeGuard, keys};
use crate::namespace::Namespace;
use crate::units::InodeNo;

/// A file that a caller makes.
#[derive(Clone, Copy)]
pub(super) struct Making<'a> {
    pub(super) names: &'a Namespace,
    pub(super) caller: &'a Caller<'a>,
    pub(super) new: &'a NewFile<'a>,
    /// Attributes that it has from the beginning, in place of those of `new` and those that it inherits.
    pub(super) changes: &'a SetAttr,
}

impl Making<'_> {
    /// Fails if it cannot be made anywhere.
    pub(super) fn check(&self) -> Result<()> {
        let Making { new, changes, .. } = *self;
        let ids = [Some(new.uid), Some(new.gid), changes.uid, changes.gid];
        ids.into_iter().flatten().try_for_each(check_id)?;
        changes.size.map_or(Ok(()), |size| check_size(self.file_type(), size))?;
        match self.new.kind {
            NewKind::Symlink(target) => check_target(target),
            _ => Ok(()),
        }
    }

    fn file_type(&self) -> FileType {
        match self.new.kind {
            NewKind::Regular => FileType::Regular,
            NewKind::Directory => FileType::Directory,
            NewKind::Symlink(_) => FileType::Symlink,
            NewKind::Fifo => FileType::Fifo,
            NewKind::Socket => FileType::Socket,
            NewKind::CharDevice(_) => FileType::CharDevice,
            NewKind::BlockDevice(_) => FileType::BlockDevice,
        }
    }

    /// Its inode.
    pub(super) fn build(&self, ino: InodeNo, generation: u32, parent: &Inode) -> Inode {
        let Making { names, caller, new, changes } = *self;
        let (features, file_type) = (&names.inodes.features, self.file_type());
        let now = names.inodes.clock.now();
        let mut inode = Inode::new(ino, generation, file_type, parent.ino, now);
        inode.permissions = new.permissions & 0o7777;
        inode.uid = new.uid;
        inode.gid = new.gid;
        if parent.permissions & SET_GID != 0 {
            inode.gid = parent.gid;
            if inode.is_dir() {
                inode.permissions |= SET_GID;
            }
        }
        if file_type == FileType::Symlink {
            inode.permissions = 0o777;
        } else {
            acl::inherit(&mut inode, parent, caller.umask);
        }
        if matches!(new.kind, NewKind::Regular | NewKind::Directory) {
            inode.flags = parent.flags & InodeFlags::COMPRESSION;
        }
        if let Some(hint) = parent.attributes().get(HINT) {
            inode.key = parent.key;
            if inode.is_dir() {
                inode.attributes_mut().insert(HINT.to_vec(), hint.clone());
            }
        }
        if inode.key.is_none() {
            inode.key = keys::policy_key(names.inodes.policy(), &inode, caller.process);
        }
        let size = changes.size.unwrap_or(0);
        match new.kind {
            NewKind::Regular if features.inline_bytes_max > 0 && size == 0 => {
                inode.content = Content::Inline(Vec::new());
            }
            NewKind::Regular => inode.size = size,
            NewKind::Directory => inode.nlink = 2,
            NewKind::CharDevice(number) | NewKind::BlockDevice(number) => inode.device = number,
            NewKind::Symlink(target) if target.len() <= self.symlink_inline_max() => {
                inode.size = target.len() as u64;
                inode.content = Content::Inline(target.to_vec());
            }
            _ => {}
        }
        (inode.atime, inode.mtime) = new.times.unwrap_or((inode.atime, inode.mtime));
        keys::follow_access(names.inodes.policy(), &mut inode);
        clear_set_gid(&mut inode, new, caller);
        if *changes != SetAttr::default() {
            apply_to(&mut inode, names.inodes.policy(), now, changes);
        }
        inode
    }

    fn symlink_inline_max(&self) -> usize {
        if self.names.inodes.features.inline_bytes_max == 0 {
            return 0;
        }
        self.names.symlink_inline_max()
    }

    /// A target that is too long for the inode goes to a page.
    pub(super) fn fill_long_target(&self, vnode: &Arc<Vnode>) -> Result<()> {
        match self.new.kind {
            NewKind::Symlink(target) if target.len() > self.symlink_inline_max() => {
                self.names.inodes.writer().write(&mut VnodeGuard::new(vnode), 0, target)
            }
            _ => Ok(()),
        }
    }
}

/// Clears the set-group-ID bit as Linux does at open(2) and mknod(2).
fn clear_set_gid(inode: &mut Inode, new: &NewFile<'_>, caller: &Caller<'_>) {
    let is_program = !inode.is_dir() && new.permissions & GROUP_EXECUTE != 0;
    let is_inherited = inode.gid != new.gid;
    let is_set = inode.permissions & SET_GID != 0;
    if is_set && is_program && is_inherited && !caller.may_act_for(inode.gid) {
        inode.permissions &= !SET_GID;
    }
}

fn check_target(target: &[u8]) -> Result<()> {
    if target.is_empty() {
        return Err(Error::NotFound);
    }
    if target.len() > SYMLINK_BYTES_MAX {
        return Err(Error::NameTooLong);
    }
    if target.contains(&0) {
        return Err(Error::Invalid("the target of a symbolic link with a zero byte"));
    }
    Ok(())
}
