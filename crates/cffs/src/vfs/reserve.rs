//! The reserve: the last part of the space, which is kept for root, so that a user who fills the volume does
//! not keep the administrator from working on it.
//!
//! Offers [`Volume::as_user`], through which a front end makes the changes that take space. Calls on
//! [`Volume`] itself may use all of it, as the library's user owns the image. No user is kept from freeing
//! space, nor from overwriting contents in place.

use std::sync::atomic::{AtomicU32, Ordering};

use super::attributes::{GROUP_EXECUTE, SET_GID};
use super::copy::Place;
use super::{AllocateMode, Attr, NewFile, Volume, XattrMode};
use crate::alloc::Spender;
use crate::clock::Timestamp;
use crate::error::Result;
use crate::format::superblock::Reserve;
use crate::inode::Inode;
use crate::units::InodeNo;

/// A volume as a user has it: they get no space beyond what is kept from them. The functions are those
/// of [`Volume`], with their errors; where only the reserve is left they fail with
/// [`NoSpace`](crate::error::Error::NoSpace).
#[derive(Clone, Copy)]
pub struct AsUser<'a> {
    volume: &'a Volume,
    spender: Spender,
}

/// The users other than root who may use the reserve. Every change of a user reads this, and so without a
/// lock.
#[derive(Debug, Default)]
pub(super) struct ReserveUsers {
    uid: AtomicU32,
    gid: AtomicU32,
}

impl ReserveUsers {
    pub(super) fn new(reserve: Reserve) -> ReserveUsers {
        let users = ReserveUsers::default();
        users.set(reserve);
        users
    }

    pub(super) fn set(&self, reserve: Reserve) {
        self.uid.store(reserve.uid, Ordering::Relaxed);
        self.gid.store(reserve.gid, Ordering::Relaxed);
    }

    /// In both fields 0 stands for root alone.
    fn is_for(&self, uid: u32, gid: u32) -> bool {
        let group = self.gid.load(Ordering::Relaxed);
        uid == 0 || uid == self.uid.load(Ordering::Relaxed) || group != 0 && group == gid
    }
}

/// Whether a user may give a program the rights of a group: as a member of it, or by privilege.
pub type MaySetGid<'a> = &'a dyn Fn(u32) -> bool;

/// Takes the set-group-ID bit as Linux does at open(2) and mknod(2).
fn clear_set_gid(inode: &mut Inode, new: &NewFile<'_>, may_set_gid: MaySetGid<'_>) {
    let is_program = !inode.is_dir() && new.permissions & GROUP_EXECUTE != 0;
    let is_inherited = inode.gid != new.gid;
    if inode.permissions & SET_GID != 0 && is_program && is_inherited && !may_set_gid(inode.gid) {
        inode.permissions &= !SET_GID;
    }
}

impl Volume {
    /// The volume as this user has it, who belongs to this group.
    pub fn as_user(&self, uid: u32, gid: u32) -> AsUser<'_> {
        let spender =
            if self.reserve.is_for(uid, gid) { Spender::Privileged } else { Spender::Anyone };
        AsUser { volume: self, spender }
    }
}

impl AsUser<'_> {
    /// Whether this user may have the last part of the space.
    pub fn has_reserve(&self) -> bool {
        self.spender == Spender::Privileged
    }

    /// See [`Volume::make`]. A file that its directory gives a group for which `may_set_gid` is false
    /// does not become a program with that group's rights: it loses the set-group-ID bit.
    ///
    /// # Errors
    ///
    /// Those of [`Volume::make`]; `ENOSPC` if only the reserve is left.
    pub fn make(
        &self,
        dir: InodeNo,
        name: &[u8],
        new: &NewFile<'_>,
        may_set_gid: MaySetGid<'_>,
    ) -> Result<Attr> {
        self.volume.make_with(self.spender, dir, name, new, |inode| {
            clear_set_gid(inode, new, may_set_gid);
        })
    }

    /// As [`make`](AsUser::make), with these times of access and change: no crash shows the file
    /// without them.
    ///
    /// # Errors
    ///
    /// Those of [`make`](AsUser::make).
    pub fn make_at_times(
        &self,
        dir: InodeNo,
        name: &[u8],
        new: &NewFile<'_>,
        atime: Timestamp,
        mtime: Timestamp,
    ) -> Result<Attr> {
        self.volume.make_with(self.spender, dir, name, new, |inode| {
            (inode.atime, inode.mtime) = (atime, mtime);
        })
    }

    /// See [`Volume::make_unnamed`], and [`make`](AsUser::make) for the set-group-ID bit.
    ///
    /// # Errors
    ///
    /// Those of [`Volume::make_unnamed`]; `ENOSPC` if only the reserve is left.
    pub fn make_unnamed(
        &self,
        dir: InodeNo,
        new: &NewFile<'_>,
        may_set_gid: MaySetGid<'_>,
    ) -> Result<Attr> {
        self.volume.make_unnamed_with(self.spender, dir, new, |inode| {
            clear_set_gid(inode, new, may_set_gid);
        })
    }

    /// See [`Volume::write`].
    ///
    /// # Errors
    ///
    /// Those of [`Volume::write`]; `ENOSPC` if only the reserve is left.
    pub fn write(&self, ino: InodeNo, offset: u64, data: &[u8]) -> Result<usize> {
        self.volume.write_by(self.spender, ino, offset, data)
    }

    /// See [`Volume::allocate`].
    ///
    /// # Errors
    ///
    /// Those of [`Volume::allocate`]; `ENOSPC` if only the reserve is left.
    pub fn allocate(&self, ino: InodeNo, offset: u64, len: u64, mode: AllocateMode) -> Result<()> {
        self.volume.allocate_by(self.spender, ino, offset, len, mode)
    }

    /// See [`Volume::copy`].
    ///
    /// # Errors
    ///
    /// Those of [`Volume::copy`]; `ENOSPC` if only the reserve is left.
    pub fn copy(&self, from: Place, to: Place, len: u64) -> Result<u64> {
        self.volume.copy_by(self.spender, from, to, len)
    }

    /// See [`Volume::set_xattr`].
    ///
    /// # Errors
    ///
    /// Those of [`Volume::set_xattr`]; `ENOSPC` if only the reserve is left.
    pub fn set_xattr(
        &self,
        ino: InodeNo,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.volume.set_xattr_by(self.spender, ino, name, value, mode)
    }
}
