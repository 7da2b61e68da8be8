//! Files that are not to change: `chattr +i` and `chattr +a`.
//!
//! Offers [`Protection`], [`Volume::protect`], and the checks that the operations make. The
//! kernel knows nothing of these flags on a FUSE mount but who may set them, so they are enforced here,
//! and for everybody: root has to take them away first.
//!
//! | | immutable | append-only |
//! | --- | --- | --- |
//! | contents | do not change | grow at their end |
//! | attributes | do not change | do not change, but both times can be set to now |
//! | its names | none comes, goes or changes | the same |
//! | names in it (of a directory) | none comes or goes | come, and do not go |

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::data::Start;
use super::{SetAttr, SetTime, Volume};
use crate::error::{Error, Result};
use crate::format::inode::{FileType, InodeFlags};
use crate::format::superblock::Incompat;
use crate::inode::Vnode;
use crate::namespace::Names;
use crate::trace::OpKind;
use crate::units::InodeNo;

/// The protection of a file against changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Protection {
    /// Nothing of it changes.
    pub immutable: bool,
    /// Its contents grow at their end alone.
    pub append_only: bool,
}

impl Protection {
    pub(super) fn of(flags: InodeFlags) -> Protection {
        Protection {
            immutable: flags.contains(InodeFlags::IMMUTABLE),
            append_only: flags.contains(InodeFlags::APPEND_ONLY),
        }
    }

    fn flags(self) -> InodeFlags {
        let mut flags = InodeFlags::empty();
        flags.set(InodeFlags::IMMUTABLE, self.immutable);
        flags.set(InodeFlags::APPEND_ONLY, self.append_only);
        flags
    }

    pub(super) fn any(self) -> bool {
        self != Protection::default()
    }
}

impl Volume {
    /// Protects a regular file or a directory, or no longer. Whether the caller may is for the front
    /// end to check. The first time, the volume gets the feature PROTECTION, durably.
    ///
    /// # Errors
    ///
    /// [`Error::NotSupported`] for other files, which have no such flags; otherwise as for changes.
    pub fn protect(&self, ino: InodeNo, protection: Protection) -> Result<()> {
        let _op = self.enter(OpKind::SetAttributes, ino);
        let file_type = self.vnode(ino)?.state.read().inode.file_type;
        if !matches!(file_type, FileType::Regular | FileType::Directory) {
            return Err(Error::NotSupported);
        }
        if protection.any() && !self.protects.load(Ordering::Acquire) {
            self.writer.rewrite_superblock(|superblock| {
                superblock.incompat.insert(Incompat::PROTECTION);
                Ok(())
            })?;
            self.protects.store(true, Ordering::Release);
        }
        self.change_inode(ino, |inodes, file| {
            file.inode.protection = protection.flags();
            file.inode.touch(inodes.clock.now());
            inodes.mark_dirty(file);
            Ok(())
        })
    }

    /// The protection of a file; on most volumes there is none, which costs nothing to know.
    fn protection_of(&self, vnode: &Arc<Vnode>) -> Protection {
        if self.protects.load(Ordering::Acquire) {
            Protection::of(vnode.state.read().inode.protection)
        } else {
            Protection::default()
        }
    }

    /// Fails if the file may not change except by appends.
    pub(super) fn check_unprotected(&self, ino: InodeNo) -> Result<()> {
        refuse_if(self.protection_of(&self.vnode(ino)?).any())
    }

    /// Fails if these attributes may not change. An append sets an append-only file's times and takes its
    /// set-id bits, so a call may do the same without one.
    pub(super) fn check_set_attr(&self, ino: InodeNo, changes: &SetAttr) -> Result<()> {
        let protection = self.protection_of(&self.vnode(ino)?);
        let now = Some(SetTime::Now);
        let touch = SetAttr { atime: now, mtime: now, ..SetAttr::default() };
        let clear = SetAttr { clear_privileges: changes.clear_privileges, ..SetAttr::default() };
        let comes_with_appends = *changes == touch || *changes == clear;
        refuse_if(protection.immutable || protection.append_only && !comes_with_appends)
    }

    /// Fails if contents may not be written there.
    pub(super) fn check_write(&self, vnode: &Arc<Vnode>, start: Start) -> Result<()> {
        let protection = self.protection_of(vnode);
        let is_behind = || match start {
            Start::At(offset) => offset >= vnode.state.read().inode.size,
            Start::End => true,
        };
        refuse_if(protection.immutable || protection.append_only && !is_behind())
    }

    /// Fails if no name may come into the directory.
    pub(super) fn check_new_name(&self, dir: &Arc<Vnode>) -> Result<()> {
        refuse_if(self.protection_of(dir).immutable)
    }

    /// Fails if this name may not go: it is kept by its directory, or by its file.
    pub(super) fn check_old_name(&self, dir: &Arc<Vnode>, name: &[u8]) -> Result<()> {
        if !self.protects.load(Ordering::Acquire) {
            return Ok(());
        }
        match self.names.lookup(dir, name) {
            Ok(vnode) => {
                refuse_if(self.protection_of(dir).any() || self.protection_of(&vnode).any())
            }
            Err(Error::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Fails if a rename takes or gives a name that it may not.
    pub(super) fn check_rename(&self, names: &Names<'_>) -> Result<()> {
        self.check_old_name(names.from, names.name)?;
        self.check_old_name(names.to, names.new_name)?;
        self.check_new_name(names.to)
    }
}

fn refuse_if(protected: bool) -> Result<()> {
    if protected { Err(Error::NotPermitted) } else { Ok(()) }
}
