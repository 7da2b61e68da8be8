//! What an adapter serves: one volume, or what it has become by now (`follow`).

use std::ops::Deref;
use std::sync::Arc;

use cffs::error::Result;
use cffs::units::InodeNo;
use cffs::vfs::Volume;

use super::follow::{Following, View};
use crate::shared::Current;

/// What is served.
pub(super) enum Shown {
    /// One volume.
    Fixed(Arc<Volume>),
    /// What another program makes of it.
    Following(Current, Arc<Following>),
}

/// A volume for one request.
pub(super) enum Held<'a> {
    Fixed(&'a Arc<Volume>),
    Version(Arc<Volume>),
}

impl Deref for Held<'_> {
    type Target = Arc<Volume>;

    fn deref(&self) -> &Arc<Volume> {
        match self {
            Held::Fixed(volume) => volume,
            Held::Version(volume) => volume,
        }
    }
}

impl Shown {
    /// The volume as it is now.
    pub fn hold(&self) -> Held<'_> {
        match self {
            Shown::Fixed(volume) => Held::Fixed(volume),
            Shown::Following(current, _) => Held::Version(current.get()),
        }
    }

    /// The volume, if it can be changed here.
    pub fn to_write(&self) -> Option<&Arc<Volume>> {
        match self {
            Shown::Fixed(volume) => Some(volume),
            Shown::Following(..) => None,
        }
    }

    /// Reads something of an inode.
    pub fn on<T>(&self, ino: InodeNo, mut act: impl FnMut(&View<'_>) -> Result<T>) -> Result<T> {
        match self {
            Shown::Fixed(volume) => act(&View { volume, following: None }),
            Shown::Following(_, following) => following.on(ino, act),
        }
    }

    /// The kernel has forgotten so many lookups.
    pub fn forget(&self, ino: InodeNo, lookups: u64) {
        match self {
            Shown::Fixed(volume) => volume.release(ino, lookups),
            Shown::Following(_, following) => following.forget(ino, lookups),
        }
    }

    /// A file is opened; whether what the kernel has cached of it is still right.
    pub fn open(&self, ino: InodeNo) -> Result<bool> {
        match self {
            Shown::Fixed(_) => Ok(true),
            Shown::Following(_, following) => following.open(ino),
        }
    }

    /// A file is closed.
    pub fn close(&self, ino: InodeNo) {
        if let Shown::Following(_, following) = self {
            following.close(ino);
        }
    }
}
