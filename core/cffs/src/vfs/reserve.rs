//! The reserve: the last part of the space, which is kept for root, so that an administrator can still work
//! on a volume that a user has filled.
//!
//! Other callers get [`NoSpace`](crate::error::Error::NoSpace) if only the reserve is left. All users can
//! free space and overwrite contents in place.

use std::sync::atomic::{AtomicU32, Ordering};

use super::Caller;
use crate::alloc::Spender;
use crate::format::superblock::Reserve;

/// The users other than root who may use the reserve. Every change of a user reads this, so it has no lock.
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

    /// In both fields 0 means only root.
    pub(super) fn has(&self, Caller { uid, gid, .. }: &Caller<'_>) -> bool {
        let group = self.gid.load(Ordering::Relaxed);
        *uid == 0 || *uid == self.uid.load(Ordering::Relaxed) || group != 0 && group == *gid
    }

    /// In which part of the space the caller may place something.
    pub(super) fn spender(&self, caller: &Caller<'_>) -> Spender {
        if self.has(caller) { Spender::Privileged } else { Spender::Anyone }
    }
}
