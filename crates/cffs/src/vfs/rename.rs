//! Renames: [`Renaming`].

use super::new::Making;
use super::quota::{check_border, same};
use super::{Caller, NewFile, NewKind, RenameMode, Volume};
use crate::error::{Error, Result};
use crate::inode::Inode;
use crate::namespace::{Names, Rename, Renamed};

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
            let rename = || Rename::new(names, &self.names, &may_take).run(no_replace);
            let renamed = self.charge(rename, mode)?;
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

    /// Renames, and moves the charge of the file to the quota of its new directory.
    fn charge(
        &self,
        rename: impl FnOnce() -> Result<Renamed>,
        mode: RenameMode,
    ) -> Result<Renamed> {
        let Volume { accounts, names: space, .. } = self.volume;
        if !accounts.are_any() {
            return rename();
        }
        let (inodes, layout) = (&*space.inodes, &space.inodes.layout);
        let from = accounts.of_changing(inodes, self.names.from)?;
        let to = accounts.of_changing(inodes, self.names.to)?;
        let mut moving = None;
        if same(&from, &to) {
            if let (RenameMode::Whiteout { .. }, Some(account)) = (mode, &from) {
                // The rename must not be done if the whiteout exceeds the quota afterwards.
                account.take_file()?;
                account.add(0, -1);
            }
        } else {
            let source = space.lookup(self.names.from, self.names.name)?;
            let nlink = source.state.read().inode.nlink;
            check_border(&from, &to, &source.state.read(), nlink.saturating_sub(1))?;
            moving = accounts.move_charge(&from, &to, layout, &source)?;
        }
        let renamed = rename();
        if let Err(error) = &renamed {
            from.iter().chain(&to).for_each(|account| account.doubt_after(error));
        }
        if let (Err(_) | Ok(Renamed { moved: false, .. }), Some(moving)) = (&renamed, moving) {
            moving.undo();
        }
        accounts.settle_dir(from.as_ref(), layout, self.names.from);
        accounts.settle_dir(to.as_ref(), layout, self.names.to);
        if let Ok(Renamed { replaced: Some(replaced), .. }) = &renamed {
            accounts.lost_name(to.as_ref(), layout, self.names.to, replaced);
        }
        renamed
    }

    /// Fails if the two directories do not have the same quota.
    fn check_same_quota(&self) -> Result<()> {
        let Volume { accounts, names: space, .. } = self.volume;
        let from = accounts.of_dir(&space.inodes, self.names.from)?;
        let to = accounts.of_dir(&space.inodes, self.names.to)?;
        if same(&from, &to) { Ok(()) } else { Err(Error::OtherQuota) }
    }

    fn leave_whiteout(&self) -> Result<()> {
        let kind = NewKind::CharDevice(0);
        let new = NewFile { kind, permissions: 0, uid: 0, gid: 0, times: None };
        let making = Making { names: &self.volume.names, caller: self.caller, new: &new };
        let build = |ino, generation, parent: &Inode| making.build(ino, generation, parent);
        let Volume { names, accounts, .. } = self.volume;
        let create = || names.create(self.names.from, self.names.name, &|_| Ok(()), build);
        accounts.make(&names.inodes, self.names.from, create).map(drop)
    }

    /// Two sectors cannot be written as one, so the inodes first move to the external table, and
    /// when the device has them there, the names are swapped.
    fn exchange(&self) -> Result<bool> {
        // Meanwhile another file may get one of the names, or a lookup may bring an inode home.
        let may_take = self.caller.may_take();
        for _ in 0..EXCHANGE_TRIES {
            let moved = self.volume.change_alone(|names| {
                self.check_same_quota()?;
                Rename::new(names, &self.names, &may_take).prepare_exchange()
            })?;
            if moved {
                self.volume.writer.counts.epochs_forced.count();
                self.volume.writer.commit()?;
            }
            let exchanged = self.volume.change_alone(|names| {
                self.check_same_quota()?;
                Rename::new(names, &self.names, &may_take).exchange()
            })?;
            if let Some(changed) = exchanged {
                return Ok(changed);
            }
        }
        Err(Error::EpochNeeded)
    }
}
