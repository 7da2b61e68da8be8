//! The account to which a file belongs.
//!
//! A directory remembers its account until quotas are set or removed; other files have that of their
//! directory. An inode with several names counts as a file of `parent`; changes of its names keep `parent` on
//! a directory of the same quota. A file without a name stays with the account of its last directory.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Corruption, Error, Result};
use crate::format::quota::QuotaRecord;
use crate::inode::{Account, InodeCache, Membership, Vnode};
use crate::lock::{Mutex, Rank};
use crate::units::InodeNo;

/// More directories than this above a file are a loop.
pub(super) const ANCESTORS_MAX: usize = 1 << 20;

/// The accounts of a volume.
pub(in crate::vfs) struct Accounts {
    /// 0 without accounts; otherwise it grows with each quota that is set or removed.
    version: AtomicU32,
    by_dir: Mutex<Table>,
    uncounted: Mutex<Vec<Uncounted>>,
    /// The directories with quotas and those above them, which a reader keeps in memory.
    kept: Mutex<Vec<Arc<Vnode>>>,
}

/// An account that is not counted yet, with its directory. Without one, the directory is not found yet, and
/// the account is in no table.
pub(super) type Uncounted = (Arc<Account>, Option<Arc<Vnode>>);

#[derive(Default)]
struct Table {
    /// How often it changed.
    changes: u32,
    accounts: HashMap<InodeNo, Arc<Account>>,
    /// Quotas of directories that could not be read: they stay in the list.
    unread: Vec<QuotaRecord>,
}

impl Default for Accounts {
    fn default() -> Accounts {
        Accounts {
            version: AtomicU32::new(0),
            by_dir: Mutex::new(Rank::Leaf, Table::default()),
            uncounted: Mutex::new(Rank::Leaf, Vec::new()),
            kept: Mutex::new(Rank::Leaf, Vec::new()),
        }
    }
}

impl Accounts {
    /// Whether the volume has quotas.
    pub fn are_any(&self) -> bool {
        self.version.load(Ordering::Acquire) != 0
    }

    /// The account of a directory itself.
    pub fn at(&self, dir: InodeNo) -> Option<Arc<Account>> {
        self.by_dir.lock().accounts.get(&dir).cloned()
    }

    /// All accounts, in the order of their directories.
    pub fn all(&self) -> Vec<Arc<Account>> {
        let mut all: Vec<_> = self.by_dir.lock().accounts.values().cloned().collect();
        all.sort_unstable_by_key(|account| account.dir);
        all
    }

    /// Keeps the quota of a directory that could not be read.
    pub fn keep_unread(&self, record: QuotaRecord) {
        self.by_dir.lock().unread.push(QuotaRecord { mounts: 0, ..record });
    }

    /// The quotas of directories that could not be read.
    pub fn unread(&self) -> Vec<QuotaRecord> {
        self.by_dir.lock().unread.clone()
    }

    /// Records accounts that are to be counted when they are first needed.
    pub fn set_uncounted(&self, accounts: Vec<Uncounted>) {
        *self.uncounted.lock() = accounts;
    }

    /// These accounts.
    pub fn uncounted(&self) -> Vec<Uncounted> {
        self.uncounted.lock().clone()
    }

    /// The accounts are counted. Keeps directories in memory, which may not be found by their numbers again.
    pub fn set_counted(&self, kept: Vec<Arc<Vnode>>) {
        *self.kept.lock() = kept;
        self.uncounted.lock().clear();
    }

    /// Adds an account. The gate is held exclusively.
    pub fn insert(&self, account: Arc<Account>) {
        self.change(|accounts| drop(accounts.insert(account.dir, account)));
    }

    /// Removes the account of a directory.
    pub fn remove(&self, dir: InodeNo) {
        self.change(|accounts| drop(accounts.remove(&dir)));
    }

    fn change(&self, change: impl FnOnce(&mut HashMap<InodeNo, Arc<Account>>)) {
        let Table { changes, accounts, .. } = &mut *self.by_dir.lock();
        change(accounts);
        *changes = changes.wrapping_add(1).max(1);
        self.version.store(if accounts.is_empty() { 0 } else { *changes }, Ordering::Release);
    }

    /// The account of a directory and of the files in it. Call without locks of vnodes, and with the gate
    /// held if the volume can change.
    pub fn of_dir(&self, inodes: &InodeCache, dir: &Arc<Vnode>) -> Result<Option<Arc<Account>>> {
        let version = self.version.load(Ordering::Acquire);
        if version == 0 {
            return Ok(None);
        }
        let mut path: Vec<Arc<Vnode>> = Vec::new();
        let mut at = dir.clone();
        let account = loop {
            let parent = {
                let state = at.state.read();
                if state.quota.version == version || state.inode.nlink == 0 {
                    break state.quota.account.clone();
                }
                state.inode.parent
            };
            if path.len() > ANCESTORS_MAX {
                return Err(Corruption::Loop { ino: dir.ino }.into());
            }
            let (ino, own) = (at.ino, self.at(at.ino));
            path.push(at);
            if own.is_some() || ino == InodeNo::ROOT {
                break own;
            }
            at = inodes.get(parent)?;
        };
        for vnode in path {
            let quota = &mut vnode.state.write().quota;
            let charged = quota.charged;
            *quota = Membership { version, account: account.clone(), charged };
        }
        Ok(account)
    }

    /// The account of any file.
    pub fn of_file(&self, inodes: &InodeCache, file: &Arc<Vnode>) -> Result<Option<Arc<Account>>> {
        if !self.are_any() {
            return Ok(None);
        }
        let (is_dir, nlink, parent, charged) = {
            let state = file.state.read();
            let inode = &state.inode;
            (inode.is_dir(), inode.nlink, inode.parent, state.quota.account.clone())
        };
        if is_dir {
            return self.of_dir(inodes, file);
        }
        if nlink == 0 {
            // Unless the quota was removed.
            let own = charged
                .and_then(|charged| self.at(charged.dir).filter(|own| Arc::ptr_eq(own, &charged)));
            return Ok(own);
        }
        match inodes.get(parent) {
            Ok(dir) if dir.state.read().inode.is_dir() => self.of_dir(inodes, &dir),
            // A file with several names, of which an earlier program removed one.
            Ok(_) | Err(Error::Stale) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Whether two files have the same account.
pub(in crate::vfs) fn same(one: &Option<Arc<Account>>, other: &Option<Arc<Account>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (None, None) => true,
        _ => false,
    }
}
