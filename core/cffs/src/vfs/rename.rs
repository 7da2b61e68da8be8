//! Renames: [`Renaming`].

use std::sync::Arc;

use super::new::Making;
use super::quota::{Moving, check_border, same};
use super::references::delete_unused;
use super::{Caller, NewFile, NewKind, RenameMode, SetAttr, Volume};
use crate::error::{Error, Result};
use crate::inode::{Inode, Vnode};
use crate::namespace::{Ends, Names, Prepared, Rename, Renamed};

/// How often an exchange is tried if others keep changing the names meanwhile; then it fails with
/// `EAGAIN`.
const EXCHANGE_TRIES: u32 = 32;

/// The whiteout that a rename left, if it was to leave one.
type Whiteout = Result<Option<Arc<Vnode>>>;

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
        let leaves_whiteout = matches!(mode, RenameMode::Whiteout { .. });
        let may_take = self.caller.may_take();
        let (moved, unused, whiteout) = self.volume.change_alone(|names| {
            let rename = Rename::new(names, &self.names, &may_take);
            // Its errors come before those of the quota.
            let ends = rename.find(no_replace)?;
            let (renamed, whiteout) = self.charge(&rename, ends, leaves_whiteout)?;
            let unused = renamed.replaced.and_then(|vnode| self.volume.note_unnamed(&vnode));
            Ok((renamed.moved, unused, whiteout))
        })?;
        delete_unused(self.volume, unused);
        self.volume.writer.health.noted(whiteout)?;
        Ok(moved)
    }

    /// Renames, and gives the old name to a whiteout. What the whiteout needs is taken before the rename, so
    /// that afterwards only a device error can fail it.
    fn rename(
        &self,
        rename: &Rename<'_>,
        ends: Ends,
        leaves_whiteout: bool,
    ) -> Result<(Renamed, Whiteout)> {
        if !leaves_whiteout {
            return Ok((rename.run(ends)?, Ok(None)));
        }
        let whiteout = self.prepare_whiteout()?;
        match rename.run(ends) {
            Ok(renamed) if renamed.moved => Ok((renamed, whiteout.enter().map(Some))),
            other => {
                let given_up = whiteout.give_up();
                let renamed = other?;
                Ok((renamed, given_up.map(|()| None)))
            }
        }
    }

    fn prepare_whiteout(&self) -> Result<Prepared<'_>> {
        let names = &self.volume.names;
        names.inodes.alloc.check_room(self.volume.reserve.spender(self.caller))?;
        let kind = NewKind::CharDevice(0);
        let Caller { uid, gid, .. } = *self.caller;
        let new = NewFile { kind, permissions: 0, uid, gid, times: None };
        let changes = &SetAttr::default();
        let making = Making { names, caller: self.caller, new: &new, changes };
        let build = |ino, generation, parent: &Inode| making.build(ino, generation, parent);
        Prepared::new(names, self.names.from, self.names.name, build)
    }

    /// Renames, moves the charge of the file to the quota of its new directory, and charges the whiteout.
    fn charge(
        &self,
        rename: &Rename<'_>,
        ends: Ends,
        leaves_whiteout: bool,
    ) -> Result<(Renamed, Whiteout)> {
        let Volume { accounts, names: namespace, .. } = self.volume;
        if !accounts.are_any() {
            return self.rename(rename, ends, leaves_whiteout);
        }
        let (inodes, layout) = (&*namespace.inodes, &namespace.inodes.layout);
        let from = accounts.of_changing(inodes, self.names.from)?;
        let to = accounts.of_changing(inodes, self.names.to)?;
        let mut moving = None;
        if !same(&from, &to) {
            let source = ends.source();
            let nlink = source.state.read().inode.nlink;
            check_border(&from, &to, &source.state.read(), nlink.saturating_sub(1))?;
            moving = accounts.move_charge(&from, &to, layout, source)?;
        }
        let charged = from.as_ref().filter(|_| leaves_whiteout);
        if let Err(error) = charged.map_or(Ok(()), |account| account.take_file()) {
            moving.into_iter().for_each(Moving::undo);
            return Err(error);
        }
        let renamed = self.rename(rename, ends, leaves_whiteout);
        if let Err(error) | Ok((_, Err(error))) = &renamed {
            from.iter().chain(&to).for_each(|account| account.doubt_after(error));
        }
        if let (Err(_) | Ok((Renamed { moved: false, .. }, _)), Some(moving)) = (&renamed, moving) {
            moving.undo();
        }
        match (&renamed, charged) {
            (_, None) => {}
            (Ok((_, Ok(Some(whiteout)))), Some(account)) => {
                accounts.settle_new(account, layout, whiteout);
            }
            (_, Some(account)) => account.add(0, -1),
        }
        accounts.settle_dir(from.as_ref(), layout, self.names.from);
        accounts.settle_dir(to.as_ref(), layout, self.names.to);
        if let Ok((Renamed { replaced: Some(replaced), .. }, _)) = &renamed {
            accounts.lost_name(to.as_ref(), layout, self.names.to, replaced);
        }
        renamed
    }

    /// Fails if the two directories do not have the same quota.
    fn check_same_quota(&self) -> Result<()> {
        let Volume { accounts, names: namespace, .. } = self.volume;
        let from = accounts.of_dir(&namespace.inodes, self.names.from)?;
        let to = accounts.of_dir(&namespace.inodes, self.names.to)?;
        if same(&from, &to) { Ok(()) } else { Err(Error::OtherQuota) }
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
