//! Accounts of quotas, and the charge of a vnode.
//!
//! The charge of a file is one file, and the bytes that stat(2) reports for its contents.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::units::InodeNo;

/// An amount of bytes and files: a limit, or the use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Bytes of contents, as `st_blocks` counts them.
    pub bytes: u64,
    /// Files, directories and others.
    pub files: u64,
}

impl Amount {
    /// As a limit: none.
    pub const UNLIMITED: Amount = Amount { bytes: u64::MAX, files: u64::MAX };
}

/// The account of a directory with a quota.
#[derive(Debug)]
pub struct Account {
    /// The directory.
    pub dir: InodeNo,
    /// Distinguishes the directory from earlier ones of the same number.
    pub generation: u32,
    limit_bytes: AtomicU64,
    limit_files: AtomicU64,
    used_bytes: AtomicU64,
    used_files: AtomicU64,
    is_doubtful: AtomicBool,
}

impl Account {
    /// The account of a directory.
    pub fn new(dir: InodeNo, generation: u32, limits: Amount, used: Amount) -> Account {
        Account {
            dir,
            generation,
            limit_bytes: AtomicU64::new(limits.bytes),
            limit_files: AtomicU64::new(limits.files),
            used_bytes: AtomicU64::new(used.bytes),
            used_files: AtomicU64::new(used.files),
            is_doubtful: AtomicBool::new(false),
        }
    }

    /// Records that the amount in use may be wrong, so that the next opening of the volume counts the tree.
    pub fn doubt(&self) {
        self.is_doubtful.store(true, Ordering::Relaxed);
    }

    /// The same if this is an error that can leave a change half made.
    pub fn doubt_after(&self, error: &Error) {
        if matches!(error, Error::Io(_) | Error::Corruption(_)) {
            self.doubt();
        }
    }

    /// Whether the amount in use may be wrong.
    pub fn is_doubtful(&self) -> bool {
        self.is_doubtful.load(Ordering::Relaxed)
    }

    /// The limits.
    pub fn limits(&self) -> Amount {
        Amount {
            bytes: self.limit_bytes.load(Ordering::Relaxed),
            files: self.limit_files.load(Ordering::Relaxed),
        }
    }

    /// Sets the limits, which may be less than the use.
    pub fn set_limits(&self, limits: Amount) {
        self.limit_bytes.store(limits.bytes, Ordering::Relaxed);
        self.limit_files.store(limits.files, Ordering::Relaxed);
    }

    /// The amount in use.
    pub fn used(&self) -> Amount {
        Amount {
            bytes: self.used_bytes.load(Ordering::Relaxed),
            files: self.used_files.load(Ordering::Relaxed),
        }
    }

    /// Replaces the amount in use by a new count.
    pub fn set_used(&self, used: Amount) {
        self.used_bytes.store(used.bytes, Ordering::Relaxed);
        self.used_files.store(used.files, Ordering::Relaxed);
    }

    /// Charges an amount, if it fits. A limit does not apply if nothing of its kind is added.
    pub fn take(&self, more: Amount) -> Result<()> {
        let limits = self.limits();
        if !take_of(&self.used_bytes, more.bytes, limits.bytes) {
            return Err(self.exceeded());
        }
        if !take_of(&self.used_files, more.files, limits.files) {
            add_to(&self.used_bytes, -(more.bytes as i64));
            return Err(self.exceeded());
        }
        Ok(())
    }

    /// Fails if no byte is left: the name of a new file may take a block of its directory.
    pub fn check_room(&self) -> Result<()> {
        let (used, limit) = (self.used().bytes, self.limits().bytes);
        if used < limit { Ok(()) } else { Err(self.exceeded()) }
    }

    fn exceeded(&self) -> Error {
        Error::QuotaExceeded(Some(self.dir))
    }

    /// Adds a file that is about to be made, unless that exceeds a limit.
    pub fn take_file(&self) -> Result<()> {
        self.check_room()?;
        self.take(Amount { bytes: 0, files: 1 })
    }

    /// Changes the amount in use, whatever the limits are.
    pub fn add(&self, bytes: i64, files: i64) {
        add_to(&self.used_bytes, bytes);
        add_to(&self.used_files, files);
    }
}

/// Whether this fitted.
fn take_of(used: &AtomicU64, more: u64, limit: u64) -> bool {
    let fits = |now: u64| now.checked_add(more).filter(|then| *then <= limit);
    more == 0 || used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
}

fn add_to(used: &AtomicU64, more: i64) {
    let then = |now: u64| Some(now.saturating_add_signed(more));
    let _ = used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, then);
}

/// The quota of a vnode.
#[derive(Debug, Default)]
pub struct Membership {
    /// Of a directory: the version of the quotas for which `account` is valid; 0 for none.
    pub version: u32,
    /// Of a directory: the account of its contents. Of a file without a name: its account until deletion.
    /// Of another file: the account that was charged with `charged`. Changes of it charge the account of its
    /// directory, which is the same unless the quota was removed.
    pub account: Option<Arc<Account>>,
    /// The bytes that the account was charged with for this inode; `None` while they are those of the inode.
    pub charged: Option<u64>,
}
