//! Renames: [`Renaming`].

use super::new::Making;
use super::{Caller, NewFile, NewKind, RenameMode, Volume};
use crate::error::{Error, Result};
use crate::inode::Inode;
use crate::namespace::{Names, Rename};

/// How often an exchange is tried if others keep changing the names meanwhile; then it fails with
/// `EAGAIN`.
const EXCHANGE_TRIES: u32 = 32;

/// One rename.
pub(super) struct Renaming<'a> {
    pub(super) volume: &'a Volume,
    pub(super) caller: &'a Caller<'a>,
    pub(super) names: Names<'a>,
}

impl Renaming<'_> {
    /// See [`Volume::rename`].
    pub(super) fn run(&self, mode: RenameMode) -> Result<bool> {
        let no_replace = match mode {
            RenameMode::Exchange => return self.exchange(),
            RenameMode::Replace => false,
            RenameMode::NoReplace => true,
            RenameMode::Whiteout { no_replace } => no_replace,
        };
        let may_take = self.caller.may_take();
        let (moved, unused) = self.volume.change_alone(|names| {
            let renamed = Rename::new(names, &self.names, &may_take).run(no_replace)?;
            let unused = renamed.replaced.and_then(|vnode| self.volume.note_unnamed(&vnode));
            Ok((renamed.moved, unused))
        })?;
        unused.map_or(Ok(()), |ino| self.volume.delete(ino))?;
        if moved && matches!(mode, RenameMode::Whiteout { .. }) {
            // A separate change: if the old name must leave the device first, only this part is tried again
            // after that epoch, and not the rename.
            self.volume.change(|_| self.leave_whiteout())?;
        }
        Ok(moved)
    }

    fn leave_whiteout(&self) -> Result<()> {
        let kind = NewKind::CharDevice(0);
        let new = NewFile { kind, permissions: 0, uid: 0, gid: 0, times: None };
        let making = Making { names: &self.volume.names, caller: self.caller, new: &new };
        let build = |ino, generation, parent: &Inode| making.build(ino, generation, parent);
        self.volume.names.create(self.names.from, self.names.name, &|_| Ok(()), build).map(|_| ())
    }

    /// Two sectors cannot be written as one, so the inodes first move to the external table, and
    /// when the device has them there, the names are swapped.
    fn exchange(&self) -> Result<bool> {
        // Meanwhile another file may get one of the names, or a lookup may bring an inode home.
        let may_take = self.caller.may_take();
        for _ in 0..EXCHANGE_TRIES {
            let moved = self.volume.change_alone(|names| {
                Rename::new(names, &self.names, &may_take).prepare_exchange()
            })?;
            if moved {
                self.volume.writer.counts.epochs_forced.count();
                self.volume.writer.commit()?;
            }
            if let Some(changed) = self
                .volume
                .change_alone(|names| Rename::new(names, &self.names, &may_take).exchange())?
            {
                return Ok(changed);
            }
        }
        Err(Error::EpochNeeded)
    }
}
