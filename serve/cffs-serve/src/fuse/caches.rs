//! The kernel's caches for a mount whose volume another front end changes as well.
//!
//! The kernel is notified of each change (`FUSE_NOTIFY_INVAL_…`). To drop a name or contents it takes locks
//! of the directory or file, which may be held by a program whose request waits for this server: so
//! notifications are sent by a thread of the other front end, which no request of the kernel ever waits for.
//!
//! A name that may still exist is expired, not removed: mounts below it and working directories stay valid if
//! the next lookup of the name finds the same inode.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use cffs::units::InodeNo;
use fuse_ring::protocol::NodeId;
use fuse_ring::{CachedData, CachedName, Notifier, Unmount, Unmounter};
use parking_lot::{Mutex, RwLock};

use super::mount_state::MountState;
use crate::shared::{Change, Observer};

/// The most threads that drop data. Each can wait for a lock of the kernel, which a read of an object
/// store may hold.
const THREADS_MAX: usize = 4;

/// The mount to which the caches belong.
type Mount = (Notifier, Unmounter, Arc<MountState>);

/// The kernel's caches of one mount; empty before the volume is mounted.
#[derive(Clone, Debug, Default)]
pub struct KernelCaches {
    mount: Arc<RwLock<Option<Mount>>>,
    /// Whether the mount was read-only when the server last looked.
    was_read_only: Arc<AtomicBool>,
    /// Whether another front end has begun, which may change the size of files that the kernel knows.
    is_shared: Arc<AtomicBool>,
    dropping: Arc<Mutex<Dropping>>,
}

impl KernelCaches {
    /// Sets the mount to which the caches belong.
    pub(super) fn fill(&self, notifier: Notifier, unmounter: Unmounter, state: Arc<MountState>) {
        *self.mount.write() = Some((notifier, unmounter, state));
    }

    /// Whether the mount was read-only within the last second. Costs next to nothing.
    pub(super) fn was_read_only(&self) -> bool {
        self.was_read_only.load(Ordering::Relaxed)
    }

    /// Whether the size of a file may differ from what the kernel knows.
    pub(super) fn is_shared(&self) -> bool {
        self.is_shared.load(Ordering::Acquire)
    }

    /// The notifier, once the volume is mounted.
    pub(super) fn notifier(&self) -> Option<Notifier> {
        self.mount.read().as_ref().map(|(notifier, ..)| notifier.clone())
    }

    /// Makes the kernel drop its listings of these directories.
    pub(super) fn drop_listings(&self, directories: Vec<InodeNo>) {
        // Every lookup calls this, but hardly any has listings to drop. On failure, names are looked up one
        // by one.
        if !directories.is_empty() {
            self.drop_cached(directories, 0);
        }
    }

    /// Makes the kernel drop data of these files from an offset on, and their attributes, in other
    /// threads, since those that serve requests must not wait for locks of the kernel.
    pub(super) fn drop_cached(&self, files: Vec<InodeNo>, offset: u64) {
        let Some(notifier) = self.notifier() else { return };
        if !self.dropping.lock().add(files, offset) {
            return;
        }
        let dropping = Arc::clone(&self.dropping);
        let drop_all = move || {
            let next = || dropping.lock().take_next();
            while let Some((file, offset)) = next() {
                let dropped = notifier.inval_inode(NodeId(file.0), CachedData::From(offset));
                if let Err(error) = dropped {
                    tracing::debug!(%error, file = file.0, "the kernel keeps cached data");
                }
            }
        };
        let spawned = thread::Builder::new().name("kernel-caches".into()).spawn(drop_all);
        if let Err(error) = spawned {
            self.dropping.lock().threads -= 1;
            tracing::debug!(%error, "the kernel keeps cached data for longer");
        }
    }
}

/// The data that the kernel is to drop.
#[derive(Debug, Default)]
struct Dropping {
    /// From which offset on, by file.
    files: BTreeMap<InodeNo, u64>,
    /// The file that was taken last: each file has its turn.
    last: Option<InodeNo>,
    /// The number of threads that take files.
    threads: usize,
}

impl Dropping {
    /// Adds files. Returns whether the caller must start a thread to take them, which is counted here.
    fn add(&mut self, files: Vec<InodeNo>, offset: u64) -> bool {
        for file in files {
            self.files.entry(file).and_modify(|from| *from = offset.min(*from)).or_insert(offset);
        }
        let starts = self.threads < THREADS_MAX;
        self.threads += usize::from(starts);
        starts
    }

    /// Takes the next file. After `None`, the thread must end.
    fn take_next(&mut self) -> Option<(InodeNo, u64)> {
        let after = (self.last.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let next = self.files.range(after).next().or_else(|| self.files.first_key_value());
        let Some(file) = next.map(|(file, _)| *file) else {
            self.threads -= 1;
            return None;
        };
        self.last = Some(file);
        self.files.remove_entry(&file)
    }
}

impl Observer for KernelCaches {
    fn joined(&self) {
        self.is_shared.store(true, Ordering::Release);
    }

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
        let Some((_, unmounter, _)) = self.mount.read().clone() else { return };
        let aborted = unmounter.unmount(Unmount::Force);
        if let Err(error) = aborted.or_else(|_| unmounter.unmount(Unmount::Lazy)) {
            tracing::error!(%error, "cannot unmount");
        }
    }

    fn refuses_changes(&self) -> bool {
        let state = self.mount.read().as_ref().map(|(.., state)| Arc::clone(state));
        let is_read_only = state.is_some_and(|state| state.is_read_only());
        self.was_read_only.store(is_read_only, Ordering::Relaxed);
        is_read_only
    }
}

#[cfg(test)]
mod tests;
