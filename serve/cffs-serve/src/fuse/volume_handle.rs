//! The volume that an adapter serves: a fixed one, or the current version of a followed one.

use std::ops::Deref;
use std::sync::Arc;

use cffs::error::Result;
use cffs::units::InodeNo;
use cffs::vfs::Volume;
use fuse_ring::protocol::FileHandle;

use super::follow::{Following, ReadView};
use crate::shared::Current;

pub(super) enum VolumeHandle {
    Fixed(Arc<Volume>),
    /// A volume that another program changes.
    Following(Current, Arc<Following>),
}

/// The volume as one request sees it.
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
    pub fn get(&self) -> VolumeRef<'_> {
        match self {
            VolumeHandle::Fixed(volume) => VolumeRef::Fixed(volume),
            VolumeHandle::Following(current, _) => VolumeRef::Version(current.get()),
        }
    }

    /// The volume, if this mount can change it.
    pub fn to_write(&self) -> Option<&Arc<Volume>> {
        match self {
            VolumeHandle::Fixed(volume) => Some(volume),
            VolumeHandle::Following(..) => None,
        }
    }

    /// Reads a property of an inode.
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

    /// Subtracts lookups that the kernel has forgotten.
    pub fn forget(&self, ino: InodeNo, lookups: u64) {
        match self {
            VolumeHandle::Fixed(volume) => volume.release(ino, lookups),
            VolumeHandle::Following(_, following) => following.forget(ino, lookups),
        }
    }

    /// Records that a file is opened. The kernel may keep its cached contents if this returns `None`;
    /// otherwise it must drop them, and use this handle.
    pub fn open(&self, ino: InodeNo) -> Result<Option<FileHandle>> {
        match self {
            VolumeHandle::Fixed(_) => Ok(None),
            VolumeHandle::Following(_, following) => following.open(ino),
        }
    }

    /// Records that a request arrived through a handle.
    pub fn used(&self, ino: InodeNo, handle: FileHandle) {
        if let VolumeHandle::Following(_, following) = self {
            following.used(ino, handle);
        }
    }

    /// Records that a file is closed.
    pub fn close(&self, ino: InodeNo, handle: FileHandle) {
        if let VolumeHandle::Following(_, following) = self {
            following.close(ino, handle);
        }
    }
}
