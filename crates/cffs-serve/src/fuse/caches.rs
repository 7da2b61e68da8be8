//! The kernel's caches for a mount whose volume another front end changes as well.
//!
//! The kernel is notified of each change (`FUSE_NOTIFY_INVAL_…`). To drop a name or contents it takes locks
//! of the directory or file, which may be held by a program whose request waits for this server: so
//! notifications are sent by a thread of the other front end, which no request of the kernel ever waits for.
//!
//! A name that may still exist is expired, not removed: mounts below it and working directories stay valid if
//! the next lookup of the name finds the same inode.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use cffs::units::InodeNo;
use fuse_ring::protocol::NodeId;
use fuse_ring::{CachedData, CachedName, Notifier, Unmount, Unmounter};
use parking_lot::RwLock;

use crate::shared::{Change, Observer};

/// The kernel's caches of one mount; empty before the volume is mounted.
#[derive(Clone, Debug, Default)]
pub struct KernelCaches {
    mount: Arc<RwLock<Option<(Notifier, Unmounter)>>>,
    /// Whether the mount was read-only when the server last looked.
    is_read_only: Arc<AtomicBool>,
}

impl KernelCaches {
    /// Sets the mount to which the caches belong.
    pub(super) fn fill(&self, notifier: Notifier, unmounter: Unmounter) {
        *self.mount.write() = Some((notifier, unmounter));
    }

    /// Notes whether the mount is read-only.
    pub(super) fn note_read_only(&self, is_read_only: bool) {
        self.is_read_only.store(is_read_only, Ordering::Release);
    }

    /// The notifier, once the volume is mounted.
    pub(super) fn notifier(&self) -> Option<Notifier> {
        self.mount.read().as_ref().map(|(notifier, _)| notifier.clone())
    }

    /// Makes the kernel drop its listings of these directories, in a new thread, since threads that serve
    /// requests must not wait for locks of the kernel.
    pub(super) fn drop_listings(&self, directories: Vec<InodeNo>) {
        // Every lookup calls this, but hardly any has listings to drop.
        if directories.is_empty() {
            return;
        }
        let Some(notifier) = self.notifier() else { return };
        let drop_all = move || {
            for dir in directories {
                // On failure, names are looked up one by one.
                if notifier.inval_inode(NodeId(dir.0), CachedData::From(0)).is_err() {
                    return;
                }
            }
        };
        let spawned = thread::Builder::new().name("listings".into()).spawn(drop_all);
        if let Err(error) = spawned {
            tracing::debug!(%error, "listings of names alone stay in the kernel");
        }
    }
}

impl Observer for KernelCaches {
    fn changed(&self, change: Change<'_>) {
        let Some(notifier) = self.notifier() else { return };
        let notified = match change {
            Change::Attributes(ino) => notifier.inval_inode(NodeId(ino.0), CachedData::Keep),
            Change::Contents(ino, offset, len) => {
                let data =
                    len.map_or(CachedData::From(offset), |len| CachedData::Range(offset, len));
                notifier.inval_inode(NodeId(ino.0), data)
            }
            // The listing is in the directory's pages, which name notifications do not drop.
            Change::Name(dir, name) => notifier
                .inval_entry(NodeId(dir.0), name, CachedName::Expire)
                .and_then(|_| notifier.inval_inode(NodeId(dir.0), CachedData::From(0))),
            // Drops the names below it as well, which programs whose working directory it was would find.
            Change::Removed(dir, name) => {
                notifier.inval_entry(NodeId(dir.0), name, CachedName::Invalidate)
            }
        };
        match notified {
            Ok(_) => {}
            // The volume is no longer mounted, and the caches no longer exist.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => {}
            Err(error) => tracing::warn!(%error, ?change, "the mount may show the state before"),
        }
    }

    fn broken(&self) {
        let Some((_, unmounter)) = self.mount.read().clone() else { return };
        let aborted = unmounter.unmount(Unmount::Force);
        if let Err(error) = aborted.or_else(|_| unmounter.unmount(Unmount::Lazy)) {
            tracing::error!(%error, "the mount cannot be taken away");
        }
    }

    fn refuses_changes(&self) -> bool {
        self.is_read_only.load(Ordering::Acquire)
    }
}
