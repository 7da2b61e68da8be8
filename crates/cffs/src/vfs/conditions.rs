//! Changes that are made if a condition holds in the moment of the change.
//!
//! Offers [`Volume::provided`], for front ends whose protocol has such conditions, or that check permissions
//! themselves. A condition that was checked before the change may no longer hold when it is made; so it is
//! checked with the files of the change locked.

use super::{Attr, RenameMode, SetAttr, Volume};
use crate::error::{Error, Result};
use crate::inode::VnodeState;
use crate::namespace::MayTake;
use crate::units::InodeNo;

/// A volume whose changes depend on a condition. The functions are those of [`Volume`], with their errors;
/// where the condition does not hold they fail with [`Unmet`](Error::Unmet), and nothing has changed.
///
/// The condition is asked with files locked, and must not call the volume. It may be asked more than once.
#[derive(Clone, Copy)]
pub struct Provided<'a, C> {
    volume: &'a Volume,
    condition: C,
}

/// A condition on a file that is about to change.
pub(super) type MayChange<'a> = &'a dyn Fn(&VnodeState) -> Result<()>;

impl Volume {
    /// The volume for changes that depend on this condition.
    pub fn provided<C>(&self, condition: C) -> Provided<'_, C> {
        Provided { volume: self, condition }
    }
}

impl<C: Fn(&Attr) -> bool> Provided<'_, C> {
    /// See [`Volume::set_attr`]. The condition is about the file.
    ///
    /// # Errors
    ///
    /// Those of [`Volume::set_attr`]; [`Unmet`](Error::Unmet).
    pub fn set_attr(&self, ino: InodeNo, changes: &SetAttr) -> Result<Attr> {
        self.volume
            .set_attr_if(ino, changes, &|file| met((self.condition)(&self.volume.attr_of(file))))
    }
}

impl<C: Fn(&Attr, &Attr) -> bool> Provided<'_, C> {
    /// See [`Volume::unlink`]. The condition is about the directory and the file.
    ///
    /// # Errors
    ///
    /// Those of [`Volume::unlink`]; [`Unmet`](Error::Unmet).
    pub fn unlink(&self, dir: InodeNo, name: &[u8]) -> Result<()> {
        self.volume.unlink_if(dir, name, &|dir, file| self.may_take(dir, file))
    }

    /// See [`Volume::remove_dir`]. The condition is about the two directories.
    ///
    /// # Errors
    ///
    /// Those of [`Volume::remove_dir`]; [`Unmet`](Error::Unmet).
    pub fn remove_dir(&self, dir: InodeNo, name: &[u8]) -> Result<()> {
        self.volume.remove_dir_if(dir, name, &|dir, file| self.may_take(dir, file))
    }

    /// See [`Volume::rename`]. The condition is about the old directory and the file, and then about the
    /// new directory and the file that has the new name, if any.
    ///
    /// # Errors
    ///
    /// Those of [`Volume::rename`]; [`Unmet`](Error::Unmet).
    pub fn rename(
        &self,
        dir: InodeNo,
        name: &[u8],
        new_dir: InodeNo,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<bool> {
        let may_take: MayTake<'_> = &|dir, file| self.may_take(dir, file);
        self.volume.rename_if((dir, name), (new_dir, new_name), mode, may_take)
    }

    fn may_take(&self, dir: &VnodeState, file: &VnodeState) -> Result<()> {
        met((self.condition)(&self.volume.attr_of(dir), &self.volume.attr_of(file)))
    }
}

fn met(holds: bool) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::Unmet) }
}
