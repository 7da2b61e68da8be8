//! The volume that an adapter serves: a fixed one, or the current version of a followed one.

use std::ops::Deref;
use std::sync::Arc;

use cffs::error::Result;
use cffs::units::InodeNo;
use cffs::vfs::Volume;
use fuse_ring::protocol::FileHandle;

use super::follow::{Following, ReadView};
use crate::shared::Current;

/// The volume that is served.
pub(super) enum VolumeHandle {
    /// One volume.
    Fixed(Arc<Volume>),
    /// One that another program changes.
    Following(Current, Arc<Following>),
}

/// The volume that one request sees.
pub(super) enum VolumeRef<'a> {
    Fixed(&'a Arc<Volume>),
    Version(Arc<Volume>),
}

impl Deref for VolumeRef<'_> {
    type Target = Arc<Volume>;

    fn deref(&self) -> &Arc<Volume> {
        match self {
            VolumeRef::Fixed(volume) => volume,
            VolumeRef::Version(volume) => volume,
        }
    }
}

impl VolumeHandle {
    /// The current volume.
    pub fn get(&self) -> VolumeRef<'_> {
        match self {
            VolumeHandle::Fixed(volume) => VolumeRef::Fixed(volume),
            VolumeHandle::Following(current, _) => VolumeRef::Version(current.get()),
        }
    }

    /// The volume, if it can be changed here.
    pub fn to_write(&self) -> Option<&Arc<Volume>> {
        match self {
            VolumeHandle::Fixed(volume) => Some(volume),
            VolumeHandle::Following(..) => None,
        }
    }

    /// Reads something of an inode.
    pub fn on<T>(
        &self,
        ino: InodeNo,
        mut act: impl FnMut(&ReadView<'_>) -> Result<T>,
    ) -> Result<T> {
        match self {
            VolumeHandle::Fixed(volume) => act(&ReadView { volume, following: None }),
            VolumeHandle::Following(_, following) => following.on(ino, act),
        }
    }

    /// The kernel has forgotten this number of lookups.
    pub fn forget(&self, ino: InodeNo, lookups: u64) {
        match self {
            VolumeHandle::Fixed(volume) => volume.release(ino, lookups),
            VolumeHandle::Following(_, following) => following.forget(ino, lookups),
        }
    }

    /// A file is opened. The kernel may keep what it has cached if this is `None`; otherwise it must drop
    /// that, and use this handle.
    pub fn open(&self, ino: InodeNo) -> Result<Option<FileHandle>> {
        match self {
            VolumeHandle::Fixed(_) => Ok(None),
            VolumeHandle::Following(_, following) => following.open(ino),
        }
    }

    /// A request arrived through a handle.
    pub fn used(&self, ino: InodeNo, handle: FileHandle) {
        if let VolumeHandle::Following(_, following) = self {
            following.used(ino, handle);
        }
    }

    /// A file is closed.
    pub fn close(&self, ino: InodeNo, handle: FileHandle) {
        if let VolumeHandle::Following(_, following) = self {
            following.close(ino, handle);
        }
    }
}
