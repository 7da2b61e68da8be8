//! Attributes of files.

use super::data::written;
use super::{Attr, Caller, Protection, SetAttr, SetTime, Unprivileged, Volume, acl, keys};
use crate::error::{Error, Result};
use crate::format::inode::FileType;
use crate::format::{FILE_BYTES_MAX, Layout};
use crate::inode::{Content, DirtyLevel, InodeCache, Mapping, VnodeGuard, VnodeState};
use crate::trace::OpKind;
use crate::units::{FileBlock, FileFrag, InodeNo};

const SET_UID: u32 = 0o4000;
pub(super) const SET_GID: u32 = 0o2000;
pub(super) const GROUP_EXECUTE: u32 = 0o010;

impl Volume {
    /// The attributes of a file as of now.
    pub(super) fn attr_of(&self, file: &VnodeState) -> Attr {
        let inode = &file.inode;
        let layout = &self.inodes().layout;
        // An epoch must not change the sum by itself, since no front end is notified of it: contents
        // count whether they are placed or not, extent blocks and attributes do not.
        let waiting = file.promised.blocks * u64::from(layout.block_fragments());
        let fragments = contents_fragments(layout, file) + waiting;
        // Contents in the inode count too: a file with a size and no blocks is a hole for tar and others,
        // which then do not read it.
        let inline_bytes = match &inode.content {
            Content::Inline(bytes) if inode.file_type == FileType::Regular => bytes.len() as u64,
            _ => 0,
        };
        Attr {
            ino: inode.ino,
            generation: inode.generation,
            file_type: inode.file_type,
            permissions: inode.permissions,
            nlink: inode.nlink,
            uid: inode.uid,
            gid: inode.gid,
            device: inode.device,
            size: inode.size,
            allocated_bytes: fragments * u64::from(layout.fragment_bytes) + inline_bytes,
            atime: inode.atime,
            mtime: inode.mtime,
            ctime: inode.ctime,
            btime: inode.btime,
            change: inode.change,
            protection: Protection::of(inode.protection),
        }
    }

    /// The attributes of a file.
    ///
    /// # Errors
    ///
    /// Those of [reading](super#errors).
    pub fn attr(&self, ino: InodeNo) -> Result<Attr> {
        let _op = self.enter(OpKind::Stat, ino);
        let vnode = self.vnode(ino)?;
        let state = vnode.state.read();
        Ok(self.attr_of(&state))
    }

    /// Changes attributes and returns the new ones.
    ///
    /// # Errors
    ///
    /// Of a size, `EFBIG` above the largest size of a file, `EISDIR` for a directory, `EINVAL` for
    /// other files that have no contents; `EPERM` if the file is immutable, or append-only and
    /// more changes than both times to now; those of [changes](super#errors). If the size was
    /// changed and the rest could not be, the size stays.
    pub fn set_attr(&self, caller: &Caller<'_>, ino: InodeNo, changes: &SetAttr) -> Result<Attr> {
        let _op = self.enter(OpKind::SetAttributes, ino);
        self.check_set_attr(ino, changes)?;
        if let Some(size) = changes.size {
            self.truncate(caller, ino, size)?;
        }
        self.change_inode(ino, |inodes, file| {
            // Setting the size was a separate change, which came first.
            if changes.size.is_none() {
                self.check_condition(caller, file, None)?;
            }
            if changes.permissions.is_some() {
                inodes.load_attributes(file)?;
                // The access ACL follows the mode, in a new place.
                let attributes = file.inode.attributes();
                if attributes.has(acl::ACCESS) {
                    inodes.space().take_xattr_space(file, attributes.encoded_len())?;
                }
            }
            apply(inodes, file, changes);
            Ok(self.attr_of(file))
        })
    }

    fn truncate(&self, caller: &Caller<'_>, ino: InodeNo, size: u64) -> Result<()> {
        if size > FILE_BYTES_MAX {
            return Err(Error::TooLarge);
        }
        let file_type = self.vnode(ino)?.state.read().inode.file_type;
        match file_type {
            FileType::Regular => {}
            FileType::Directory => return Err(Error::IsDirectory),
            _ => return Err(Error::Invalid("only a regular file can be truncated")),
        }
        if self.truncate_inline(caller, ino, size)? {
            return Ok(());
        }
        self.change_inode(ino, |inodes, file| {
            self.check_condition(caller, file, None)?;
            inodes.writer().leave_inline(file)?;
            inodes.writer().set_size(file, size)?;
            written(inodes, file);
            Ok(())
        })
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is not a symbolic link; those of [reading](super#errors).
    pub fn read_link(&self, ino: InodeNo) -> Result<Vec<u8>> {
        let _op = self.enter(OpKind::Read, ino);
        let vnode = self.vnode(ino)?;
        let state = vnode.state.read();
        if state.inode.file_type != FileType::Symlink {
            return Err(Error::Invalid("not a symbolic link"));
        }
        let len = state.inode.size as usize;
        let mut target = Vec::with_capacity(len);
        self.writer.noted(
            self.inodes().contents().read(&state, 0, len, &mut |piece| target.extend(piece)),
        )?;
        Ok(target)
    }
}

/// The fragments that the contents of a file have, with those that its changed pages will be given.
fn contents_fragments(layout: &Layout, file: &VnodeState) -> u64 {
    let Some(map) = file.inode.map() else { return 0 };
    if file.promised.fragments == 0 {
        return map.mapped();
    }
    let end = layout.fragments_for(file.inode.size);
    let unmapped = |page: FileBlock| {
        let fragments = layout.file_frags(page);
        let fragments = (fragments.start.0..fragments.end.0.min(end)).map(FileFrag);
        fragments.filter(|fragment| matches!(map.find(*fragment), Mapping::Hole(_))).count()
    };
    let waiting: usize = file.pages.dirty_in(FileBlock::ALL).map(unmapped).sum();
    map.mapped() + waiting as u64
}

fn apply(inodes: &InodeCache, file: &mut VnodeGuard<'_>, changes: &SetAttr) {
    let now = inodes.clock.now();
    let inode = &mut file.inode;
    let before = (inode.permissions, inode.uid, inode.gid);
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
        keys::give_to(inodes.features.policy, inode, owner);
    }
    inode.gid = changes.gid.unwrap_or(inode.gid);
    let time = |set: SetTime| match set {
        SetTime::Now => now,
        SetTime::To(time) => time,
    };
    inode.atime = changes.atime.map_or(inode.atime, time);
    inode.mtime = changes.mtime.map_or(inode.mtime, time);
    inode.touch(changes.ctime.unwrap_or(now));
    file.changes.xattrs |= has_acl;
    let inode = &file.inode;
    let times_alone = before == (inode.permissions, inode.uid, inode.gid) && !file.changes.xattrs;
    let changed = if times_alone { DirtyLevel::Times } else { DirtyLevel::Anything };
    inodes.mark_changed(file, changed);
}
