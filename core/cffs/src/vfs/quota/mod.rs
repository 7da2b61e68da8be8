//! Quotas of directory trees: setting, showing and removing them.
//!
//! A quota belongs to a directory and limits the bytes and the files in it and below. A file has the quota of
//! the nearest directory above it that has one (`members.rs`); changes charge its account (`charge.rs`). The
//! list of quotas is an attribute of the root directory. It has the accounts of the last closing, which are
//! valid if the volume was not opened since; otherwise the trees are counted (`count.rs`) when it is opened.
//!
//! Invariant: the membership of a file changes only with the gate held exclusively.

use std::collections::HashSet;
use std::sync::Arc;

use super::{StatFs, Volume, XattrMode, xattr};
use crate::alloc::Spender;
use crate::error::{Error, Result};
use crate::format::Superblock;
use crate::format::quota::{self, QUOTAS_MAX, QUOTAS_NAME, QuotaRecord};
use crate::format::superblock::RoCompat;
use crate::inode::{Account, Amount, Attributes, InodeCache, Vnode, VnodeGuard, VnodeState};
use crate::namespace::Namespace;
use crate::trace::OpKind;
use crate::units::InodeNo;

mod charge;
mod count;
mod locate;
mod members;

pub(super) use charge::{Charging, Growth, Moving, charge_inline, check_border};
use members::Uncounted;
pub(super) use members::{Accounts, same};

/// A quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The directory.
    pub dir: InodeNo,
    /// Its path from the root, without the first slash. Of a path of several thousand bytes, the beginning is
    /// `...`; `(inode N)` stands for one that cannot be read.
    pub path: Vec<u8>,
    /// The limits; [`Amount::UNLIMITED`] has none.
    pub limits: Amount,
    /// The use of the tree.
    pub used: Amount,
}

/// The quotas of a volume.
#[derive(Clone, Copy)]
pub struct Quotas<'a> {
    volume: &'a Volume,
}

impl<'a> Quotas<'a> {
    /// The quotas of an open volume.
    pub fn of(volume: &'a Volume) -> Quotas<'a> {
        Quotas { volume }
    }

    /// All quotas, in the order of their directories' numbers.
    ///
    /// # Errors
    ///
    /// Those of [reading](super#errors).
    pub fn list(&self) -> Result<Vec<Quota>> {
        let _op = self.volume.writer.enter(OpKind::Maintenance, InodeNo::ROOT);
        self.count_late()?;
        let shown = self.volume.accounts.all().into_iter().map(|account| self.show(&account));
        // A directory can be removed meanwhile.
        let shown = shown.filter(|quota| !matches!(quota, Err(Error::Stale | Error::NotFound)));
        shown.collect()
    }

    /// The quota that a file or directory belongs to.
    ///
    /// # Errors
    ///
    /// `ENODATA` if it has none; those of [reading](super#errors).
    pub fn get(&self, ino: InodeNo) -> Result<Quota> {
        let _op = self.volume.writer.enter(OpKind::Maintenance, ino);
        self.count_late()?;
        let vnode = self.volume.writer.vnode(ino)?;
        let account = self.volume.accounts.of_file(self.volume.inodes(), &vnode)?;
        self.volume.writer.health.noted(self.show(&*account.ok_or(Error::NoAttribute)?))
    }

    /// Sizes of the volume, limited by the quota of a file if it has one.
    ///
    /// Without the limit if the file or a directory above it cannot be read.
    pub fn stat_fs(&self, ino: InodeNo) -> StatFs {
        let whole = self.volume.stat_fs();
        if self.count_late().is_err() || !self.volume.accounts.are_any() {
            return whole;
        }
        let vnode = self.volume.writer.vnode(ino);
        let account =
            vnode.and_then(|vnode| self.volume.accounts.of_file(self.volume.inodes(), &vnode));
        let account = account.ok().flatten();
        account.map_or(whole, |account| whole.limited(account.limits(), account.used()))
    }

    fn show(&self, account: &Account) -> Result<Quota> {
        let path = match count::path_of(self.volume.inodes(), account.dir) {
            // For a reader, no directory is removed.
            Err(error @ (Error::Stale | Error::NotFound)) if !self.volume.options.read_only => {
                return Err(error);
            }
            path => self.volume.writer.health.noted(path),
        };
        let path = path.unwrap_or_else(|_| format!("(inode {})", account.dir).into_bytes());
        Ok(Quota { dir: account.dir, path, limits: account.limits(), used: account.used() })
    }

    /// Sets a quota of a directory, or changes its limits, durably. For a new quota, the tree is counted, and
    /// changes wait meanwhile. The limits may be less than the use: then nothing can be added.
    ///
    /// # Errors
    ///
    /// `ENOTDIR` if it is not a directory; `EINVAL` if a directory above or below it has a quota;
    /// [`Error::Unsupported`] if a file in the tree has a name outside as well, or if the volume has too many
    /// quotas; those of [changes](super#errors).
    pub fn set(&self, dir: InodeNo, limits: Amount) -> Result<Quota> {
        self.change(dir, Some(limits.bytes), Some(limits.files))
    }

    /// Sets one limit or both, as [`set`](Quotas::set) does; `None` keeps a limit; a new quota has none.
    /// [`u64::MAX`] removes a limit.
    ///
    /// # Errors
    ///
    /// Those of [`set`](Quotas::set).
    pub fn change(&self, dir: InodeNo, bytes: Option<u64>, files: Option<u64>) -> Result<Quota> {
        let _op = self.volume.writer.enter(OpKind::Maintenance, dir);
        let Volume { accounts, writer, .. } = self.volume;
        let _turn = super::marking_turn(self.volume);
        let before = accounts.at(dir).map(|account| account.limits());
        let now = before.unwrap_or(Amount::UNLIMITED);
        let limits =
            Amount { bytes: bytes.unwrap_or(now.bytes), files: files.unwrap_or(now.files) };
        let account = self.volume.change_alone(|names| match accounts.at(dir) {
            Some(account) => {
                account.set_limits(limits);
                Ok(account)
            }
            None => self.begin(names, dir, limits),
        })?;
        if let Err(error) = self.add_feature().and_then(|()| self.save(None)) {
            match before {
                Some(before) => account.set_limits(before),
                None => accounts.remove(dir),
            }
            return Err(error);
        }
        writer.commit()?;
        self.show(&account)
    }

    /// Keeps programs that do not know quotas from changing the volume.
    fn add_feature(&self) -> Result<()> {
        let writer = &self.volume.writer;
        if writer.superblock.get().ro_compat.contains(RoCompat::QUOTAS) {
            return Ok(());
        }
        let add = |superblock: &mut Superblock| {
            superblock.ro_compat.insert(RoCompat::QUOTAS);
            Ok(())
        };
        writer.rewrite_superblock(add, |_| ()).map(drop)
    }

    fn begin(&self, names: &Namespace, dir: InodeNo, limits: Amount) -> Result<Arc<Account>> {
        let accounts = &self.volume.accounts;
        let vnode = names.inodes.get(dir)?;
        let generation = {
            let state = vnode.state.read();
            if !state.inode.is_dir() {
                return Err(Error::NotDirectory);
            }
            if state.inode.nlink == 0 {
                return Err(Error::NotFound);
            }
            state.inode.generation
        };
        if accounts.all().len() + accounts.unread().len() >= QUOTAS_MAX {
            return Err(Error::Unsupported(format!("a volume can have {QUOTAS_MAX} quotas")));
        }
        if accounts.of_dir(&names.inodes, &vnode)?.is_some() {
            return Err(Error::Invalid("a directory above has a quota; remove that one first"));
        }
        for below in accounts.all() {
            match count::is_within(&names.inodes, below.dir, dir) {
                Ok(true) => {
                    let what = "a directory below has a quota; cffs quota list shows it";
                    return Err(Error::Invalid(what));
                }
                Ok(false) | Err(Error::Stale) => {}
                Err(error) => return Err(error),
            }
        }
        let account = Arc::new(Account::new(dir, generation, limits, Amount::default()));
        let counted = count::Counting::new(names, accounts, &account).run(&vnode, true)?;
        accounts.insert(account.clone());
        let own = std::slice::from_ref(&account);
        count::correct_parents(names, accounts, own, &counted.externals)
            .inspect_err(|_| accounts.remove(dir))?;
        Ok(account)
    }

    /// Removes the quota of a directory, durably.
    ///
    /// # Errors
    ///
    /// `ENODATA` if the directory has none of its own; those of [changes](super#errors).
    pub fn remove(&self, dir: InodeNo) -> Result<()> {
        let _op = self.volume.writer.enter(OpKind::Maintenance, dir);
        let accounts = &self.volume.accounts;
        let _turn = super::marking_turn(self.volume);
        accounts.at(dir).ok_or(Error::NoAttribute)?;
        self.save(Some(dir))?;
        self.volume.change_alone(|_| {
            accounts.remove(dir);
            Ok(())
        })?;
        self.volume.writer.commit()
    }

    /// Writes the list to the root directory, without the quota of `removed`.
    fn save(&self, removed: Option<InodeNo>) -> Result<()> {
        let root = self.volume.writer.vnode(InodeNo::ROOT)?;
        let list = self.list_for(0, removed);
        self.volume.change_vnode(Spender::Privileged, &root, |inodes, file| {
            write_list(inodes, file, &list)
        })
    }

    /// The list, without the quota of `removed`. `mounts`: that of the superblock if the accounts are to
    /// count, or 0.
    fn list_for(&self, mounts: u32, removed: Option<InodeNo>) -> Vec<u8> {
        let record = |account: &Arc<Account>| {
            let (limits, used) = (account.limits(), account.used());
            QuotaRecord {
                dir: account.dir,
                generation: account.generation,
                mounts: if account.is_doubtful() { 0 } else { mounts },
                limit_bytes: limits.bytes,
                limit_files: limits.files,
                used_bytes: used.bytes,
                used_files: used.files,
            }
        };
        let accounts = &self.volume.accounts;
        let kept = accounts.all().into_iter().filter(|account| Some(account.dir) != removed);
        let mut records: Vec<QuotaRecord> = kept.map(|account| record(&account)).collect();
        records.append(&mut accounts.unread());
        quota::encode(&records)
    }

    /// Reads the list when the volume is opened. `mounts`: how often it had been opened before. Accounts of
    /// another opening are counted.
    pub(super) fn load(&self, mounts: u32, is_clean: bool) -> Result<()> {
        let Volume { accounts, writer, names, options, .. } = self.volume;
        if !writer.superblock.get().ro_compat.contains(RoCompat::QUOTAS) {
            return Ok(());
        }
        let root = writer.vnode(InodeNo::ROOT)?;
        let look = |known: &Attributes| known.get(QUOTAS_NAME).cloned();
        let records = match xattr::look_at(&names.inodes, &root, look) {
            Ok(list) => quota::decode(&list.unwrap_or_default()),
            Err(error) => {
                tracing::warn!("the volume is used without its quotas: {error}");
                return Ok(());
            }
        };
        // The locator table on the device may not have new directories yet.
        let is_searched = options.read_only && !is_clean;
        let mut uncounted = Vec::new();
        let _alone = writer.gate.write();
        for record in records {
            let limits = Amount { bytes: record.limit_bytes, files: record.limit_files };
            let used = Amount { bytes: record.used_bytes, files: record.used_files };
            let account = Arc::new(Account::new(record.dir, record.generation, limits, used));
            let vnode = match names.inodes.get(record.dir) {
                Err(_) if is_searched => {
                    uncounted.push((account, None));
                    continue;
                }
                Ok(vnode) => vnode,
                Err(Error::Stale) => continue,
                Err(error) => {
                    tracing::warn!(dir = record.dir.0, "its quota is not enforced: {error}");
                    accounts.keep_unread(record);
                    continue;
                }
            };
            {
                let state = vnode.state.read();
                if !state.inode.is_dir() || state.inode.generation != record.generation {
                    continue;
                }
            }
            accounts.insert(account.clone());
            if !is_clean || record.mounts != mounts || mounts == 0 {
                uncounted.push((account, Some(vnode)));
            }
        }
        if options.read_only {
            // A reader reopens a volume that another program changes repeatedly.
            accounts.set_uncounted(uncounted);
            return Ok(());
        }
        self.count_all(&uncounted)
    }

    /// Counts trees when the volume is opened.
    fn count_all(&self, uncounted: &[Uncounted]) -> Result<()> {
        let Volume { accounts, names, .. } = self.volume;
        let (mut counted, mut externals, mut is_partial) = (Vec::new(), HashSet::new(), false);
        for (account, vnode) in uncounted {
            let Some(vnode) = vnode else { continue };
            tracing::info!(dir = account.dir.0, "counting the tree of a quota");
            account.set_used(Amount::default());
            let counting = count::Counting::new(names, accounts, account).lenient();
            let tree = counting.run(vnode, false)?;
            if tree.is_partial {
                account.doubt();
            }
            is_partial |= tree.is_partial;
            externals.extend(tree.externals);
            counted.push(account.clone());
        }
        if counted.is_empty() || is_partial {
            return Ok(());
        }
        let corrected = count::correct_parents(names, accounts, &counted, &externals);
        if let Err(error) = corrected {
            tracing::warn!("files with several names may be charged to a wrong quota: {error}");
        }
        Ok(())
    }

    /// Counts the trees of a volume that is open for reading, when they are first needed. Other
    /// callers wait meanwhile.
    fn count_late(&self) -> Result<()> {
        let Volume { accounts, names, .. } = self.volume;
        if accounts.uncounted().is_empty() {
            return Ok(());
        }
        let _turn = super::marking_turn(self.volume);
        let mut uncounted = accounts.uncounted();
        let kept = locate::locate(names, &mut uncounted)?;
        let found: Vec<_> = uncounted.into_iter().filter_map(|(a, dir)| Some((a, dir?))).collect();
        for (account, _) in found.iter().filter(|(account, _)| accounts.at(account.dir).is_none()) {
            accounts.insert(account.clone());
        }
        for (account, vnode) in found {
            account.set_used(Amount::default());
            let counting = count::Counting::new(names, accounts, &account).lenient().read_only();
            counting.run(&vnode, false)?;
        }
        accounts.set_counted(kept);
        Ok(())
    }

    /// Writes the accounts for the next opening, when the volume is being closed. Placing contents can free
    /// reservations after the ends of files, so they have been placed.
    pub(super) fn save_for_next(&self) {
        if let Err(error) = self.try_save_for_next() {
            tracing::warn!("the next opening counts the trees with quotas: {error}");
        }
    }

    fn try_save_for_next(&self) -> Result<()> {
        let Volume { writer, names, .. } = self.volume;
        let root = names.inodes.system(InodeNo::ROOT)?;
        // A change under way may have taken more than it needs.
        let _alone = writer.gate.write();
        let list = self.list_for(writer.superblock.get().mounts, None);
        let mut file = VnodeGuard::new(root);
        let saved = write_list(&names.inodes, &mut file, &list);
        if saved.is_err() {
            names.inodes.space().withdraw_unused(&mut file);
        }
        saved
    }
}

/// Writes the list to the root directory, which does not count as a change of the directory.
fn write_list(inodes: &InodeCache, root: &mut VnodeGuard<'_>, list: &[u8]) -> Result<()> {
    let (ctime, change) = (root.inode.ctime, root.inode.change);
    let written = xattr::unstamped(root, |root| match list.is_empty() {
        true => xattr::remove(inodes, root, QUOTAS_NAME).map(drop),
        false => xattr::set(inodes, root, QUOTAS_NAME, list, XattrMode::Any),
    });
    (root.inode.ctime, root.inode.change) = (ctime, change);
    written
}

/// The error of a change that was to add a name: if the name exists, this is reported rather than the quota.
pub(super) fn unless_exists(
    names: &Namespace,
    dir: &Arc<Vnode>,
    name: &[u8],
    error: Error,
) -> Error {
    let is_of_quota = matches!(error, Error::QuotaExceeded(_) | Error::OtherQuota);
    if is_of_quota && names.lookup(dir, name).is_ok() { Error::Exists } else { error }
}

/// Runs a change again if it exceeds a quota, after files that were just removed are deleted. Only those that
/// this quota is charged with can help.
pub(super) fn retry<T>(volume: &Volume, change: impl Fn() -> Result<T>) -> Result<T> {
    let deletions = |full| {
        let is_charged = |ino| {
            let vnode = volume.inodes().peek(ino);
            let dir = vnode.and_then(|vnode| Some(vnode.state.read().quota.account.as_ref()?.dir));
            dir == Some(full)
        };
        volume.references.await_deletions(&*volume.options.waiter, is_charged)
    };
    match change() {
        Err(Error::QuotaExceeded(Some(full))) if deletions(full) => change(),
        other => other,
    }
}

/// Runs a change of an inode in use, which may need the space that `growth` computes from the file.
pub(super) fn change_contents<T>(
    volume: &Volume,
    spender: Spender,
    vnode: &Arc<Vnode>,
    growth: impl Fn(&VnodeState) -> Result<Growth>,
    change: impl Fn(&InodeCache, &mut VnodeGuard<'_>) -> Result<T>,
) -> Result<T> {
    volume.change(|names| {
        let account = volume.accounts.of_file(&names.inodes, vnode)?;
        let mut file = VnodeGuard::by(vnode, spender);
        let layout = &names.inodes.layout;
        let charging = match &account {
            Some(account) => {
                let growth = growth(&file)?;
                Some(Charging::begin(account, layout, &mut file, &growth)?)
            }
            None => None,
        };
        let changed = change(&names.inodes, &mut file);
        if changed.is_err() {
            names.inodes.space().withdraw_unused(&mut file);
        }
        if let Some(charging) = charging {
            charging.end(&mut file);
        }
        changed
    })
}

#[cfg(test)]
mod tests;
