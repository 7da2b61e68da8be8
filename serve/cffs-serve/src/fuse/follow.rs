//! A mount that follows the changes of another program.
//!
//! ```text
//!   every few seconds: Newer ── a newer version ──▶ it is current ──▶ the kernel drops the contents of
//!                        └── none                                     open files that changed
//! ```
//!
//! Each request is answered from one version. The kernel identifies inodes by number, and a number may belong
//! to another file in the next version, or to none; and on a volume that was not closed cleanly, the table
//! from numbers to inodes is out of date. So this module remembers the name by which the kernel found each
//! inode, and in each version the first request for an inode looks it up by its names. An inode that is not
//! found, or has another generation, is stale: the kernel looks its name up again, and an open file fails
//! with `ESTALE`.
//!
//! The kernel caches names and attributes for a second. It keeps contents until the file is opened again or a
//! new version is found, and drops them if the file has changed by then.
//!
//! Invariant: `seen` of a node describes contents at least as old as those that the kernel has cached. So it
//! is set after the kernel has dropped older contents, not before: when a notification has returned, or when
//! a request arrives through a handle whose opening told the kernel to drop them.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use cffs::clock::Timestamp;
use cffs::error::{Corruption, Error, Result};
use cffs::format::superblock::State;
use cffs::units::InodeNo;
use cffs::vfs::Volume;
use cffs::vfs::types::Attr;
use fuse_ring::protocol::FileHandle;

use crate::shared::{self, Change, Current, Observer};

#[cfg(test)]
mod tests;

/// A path with more ancestors than this is a loop.
const ANCESTORS_MAX: usize = 1 << 12;

/// Finds new versions of a volume.
pub trait Newer: Send {
    /// The current volume, if it has changed since the last call.
    ///
    /// # Errors
    ///
    /// Why that is unknown at present, in words.
    fn newer(&mut self) -> std::result::Result<Option<Arc<Volume>>, String>;
}

/// How a mount follows its volume.
#[derive(Clone)]
pub struct Follow {
    /// The interval between checks for a new version.
    pub every: Duration,
    /// The source of new versions.
    pub source: Arc<Mutex<dyn Newer>>,
}

impl std::fmt::Debug for Follow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follow").field("every", &self.every).finish_non_exhaustive()
    }
}

/// The current version of the volume, and the inodes that the kernel refers to.
pub(super) struct Following {
    follow: Follow,
    current: Current,
    caches: Box<dyn Observer>,
    nodes: Mutex<HashMap<InodeNo, Node>>,
}

/// An inode that the kernel refers to.
struct Node {
    generation: u32,
    /// The name by which it was last found.
    parent: InodeNo,
    name: Box<[u8]>,
    /// The number of answers that returned it to the kernel, less the lookups that the kernel has forgotten.
    lookups: u64,
    opened: u64,
    /// Identifies the oldest contents that the kernel may have cached; `None` if these are unknown.
    seen: Option<Seen>,
    /// An opening that told the kernel to drop cached contents. The kernel may not have done so yet.
    dropping: Option<(FileHandle, Seen)>,
    /// The newest version in which the inode was found.
    version: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen {
    change: u64,
    size: u64,
    mtime: Timestamp,
    ctime: Timestamp,
}

impl Seen {
    fn of(attr: &Attr) -> Seen {
        Seen { change: attr.change, size: attr.size, mtime: attr.mtime, ctime: attr.ctime }
    }
}

/// A name on the path to an inode, and the inode that the kernel associates with it.
struct Step {
    name: Box<[u8]>,
    ino: InodeNo,
    generation: u32,
}

/// The volume that one read request sees.
pub(super) struct ReadView<'a> {
    pub volume: &'a Arc<Volume>,
    /// For a followed volume: its state, and the number of this version.
    pub following: Option<(&'a Following, u64)>,
}

impl ReadView<'_> {
    /// Records that an answer returns this inode to the kernel.
    pub fn note(&self, parent: InodeNo, name: &[u8], attr: &Attr) {
        if let Some((following, version)) = self.following {
            // Nothing is deleted by this mount, so the volume need not count the kernel's references.
            self.volume.release(attr.ino, 1);
            following.note(version, parent, name, attr);
        }
    }
}

impl Following {
    pub fn new(follow: Follow, current: Current, caches: impl Observer + 'static) -> Following {
        Following { follow, current, caches: Box::new(caches), nodes: Mutex::default() }
    }

    fn nodes(&self) -> std::sync::MutexGuard<'_, HashMap<InodeNo, Node>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a property of an inode in the current version.
    pub fn on<T>(
        &self,
        ino: InodeNo,
        mut act: impl FnMut(&ReadView<'_>) -> Result<T>,
    ) -> Result<T> {
        let (version, volume) = self.current.version();
        let view = ReadView { volume: &volume, following: Some((self, version)) };
        let is_known = self.nodes().get(&ino).is_none_or(|node| node.version == version);
        if !is_known {
            self.find(version, &volume, ino)?;
        }
        match act(&view) {
            // The volume has evicted the inode from memory, and the table of numbers is out of date.
            Err(Error::Stale | Error::Corruption(Corruption::LocatorEntry { .. })) => {
                self.find(version, &volume, ino)?;
                act(&view)
            }
            done => done,
        }
    }

    /// Looks an inode up by its names, from the root.
    fn find(&self, version: u64, volume: &Volume, ino: InodeNo) -> Result<()> {
        let path = self.path(ino)?;
        let mut dir = InodeNo::ROOT;
        let walked = path.iter().rev().try_for_each(|step| {
            let found = volume.lookup(dir, &step.name)?;
            volume.release(found.ino, 1);
            dir = step.ino;
            step.check(&found)
        });
        match (walked, path.first()) {
            // The inode has another name now, and the table of numbers is up to date.
            (Err(Error::NotFound | Error::NotDirectory | Error::Stale), Some(step))
                if volume.writer().superblock.get().state == State::Clean =>
            {
                step.check(&volume.attr(step.ino)?)?;
            }
            (Err(Error::NotFound | Error::NotDirectory), _) => return Err(Error::Stale),
            (walked, _) => walked?,
        }
        if let Some(node) = self.nodes().get_mut(&ino) {
            node.version = node.version.max(version);
        }
        Ok(())
    }

    /// The names on the path to an inode, the last one first.
    fn path(&self, mut ino: InodeNo) -> Result<Vec<Step>> {
        let nodes = self.nodes();
        let mut path = Vec::new();
        while ino != InodeNo::ROOT {
            let node = nodes.get(&ino).ok_or(Error::Stale)?;
            path.push(Step { name: node.name.clone(), ino, generation: node.generation });
            if path.len() > ANCESTORS_MAX {
                return Err(Error::Stale);
            }
            ino = node.parent;
        }
        Ok(path)
    }

    /// Records that an answer from this version returns an inode to the kernel.
    pub fn note(&self, version: u64, parent: InodeNo, name: &[u8], attr: &Attr) {
        let mut nodes = self.nodes();
        let node = nodes.entry(attr.ino).or_insert_with(|| Node {
            generation: attr.generation,
            parent,
            name: name.into(),
            lookups: 0,
            opened: 0,
            seen: None,
            dropping: None,
            version,
        });
        node.lookups += 1;
        // A newer version has answered meanwhile.
        if node.version > version {
            return;
        }
        node.version = version;
        if node.generation != attr.generation {
            // To the kernel this is another inode, of which it has cached nothing.
            (node.generation, node.seen, node.dropping) = (attr.generation, None, None);
        }
        if node.parent != parent || *node.name != *name {
            (node.parent, node.name) = (parent, name.into());
        }
    }

    /// Subtracts lookups that the kernel has forgotten.
    pub fn forget(&self, ino: InodeNo, lookups: u64) {
        let mut nodes = self.nodes();
        if let Some(node) = nodes.get_mut(&ino) {
            node.lookups = node.lookups.saturating_sub(lookups);
            if node.lookups == 0 {
                nodes.remove(&ino);
            }
        }
    }

    /// Records that a file is opened. The kernel may keep its cached contents if this returns `None`;
    /// otherwise it must drop them, and use this handle.
    pub fn open(&self, ino: InodeNo) -> Result<Option<FileHandle>> {
        // Before the version is chosen, so that a newer version finds the file open.
        if let Some(node) = self.nodes().get_mut(&ino) {
            node.opened += 1;
        }
        let read = self.on(ino, |view| {
            let version = view.following.map_or(0, |(_, version)| version);
            Ok((version, view.volume.attr(ino)?))
        });
        let (version, attr) = read.inspect_err(|_| self.close(ino, FileHandle(0)))?;
        // Zero is the handle of openings that keep cached contents.
        let handle = FileHandle(version + 1);
        let seen = Seen::of(&attr);
        let mut nodes = self.nodes();
        let Some(node) = nodes.get_mut(&ino) else { return Ok(Some(handle)) };
        // This version may have been replaced meanwhile, and the kernel's contents may be from the newer one.
        if node.version == version {
            if node.seen == Some(seen) {
                return Ok(None);
            }
            (node.seen, node.dropping) = (None, Some((handle, seen)));
        }
        Ok(Some(handle))
    }

    /// A request arrived through a handle, so the kernel has processed the answer to its opening.
    pub fn used(&self, ino: InodeNo, handle: FileHandle) {
        if handle == FileHandle(0) {
            return;
        }
        if let Some(node) = self.nodes().get_mut(&ino)
            && let Some((_, seen)) = node.dropping.take_if(|(dropping, _)| *dropping == handle)
        {
            node.seen = Some(seen);
        }
    }

    /// Records that a file is closed.
    pub fn close(&self, ino: InodeNo, handle: FileHandle) {
        self.used(ino, handle);
        if let Some(node) = self.nodes().get_mut(&ino) {
            node.opened = node.opened.saturating_sub(1);
        }
    }

    /// Makes the kernel drop the contents of an open file if they may have changed. A running read holds its
    /// pages, so this waits for it.
    fn refresh(&self, ino: InodeNo) {
        let now = match self.on(ino, |view| view.volume.attr(ino)) {
            Ok(attr) => Some(Seen::of(&attr)),
            // The cached contents belong to the opened file, which no longer exists.
            Err(Error::Stale) => return,
            // The file may have changed.
            Err(_) => None,
        };
        if let Some(node) = self.nodes().get_mut(&ino) {
            if node.seen == now && now.is_some() {
                return;
            }
            // Until the kernel has dropped its pages, their version is unknown.
            (node.seen, node.dropping) = (None, None);
        }
        self.caches.changed(Change::Contents(ino, 0, None));
        if let Some(node) = self.nodes().get_mut(&ino) {
            node.seen = now;
        }
    }

    /// Runs the mount, and concurrently the background work of each version.
    pub fn keep<T>(&self, work: impl FnOnce() -> T) -> T {
        thread::scope(|scope| {
            let (end, ended) = channel();
            scope.spawn(move || self.run(&ended));
            let done = work();
            drop(end);
            done
        })
    }

    fn run(&self, ended: &Receiver<()>) {
        let mut failure = None;
        loop {
            let volume = self.current.get();
            let newer = shared::keep(&volume, || self.wait_for_newer(ended, &mut failure));
            drop(volume);
            match newer {
                Some(newer) => self.show(newer),
                None => return,
            }
        }
    }

    /// The next version; `None` if the mount ends first.
    fn wait_for_newer(
        &self,
        ended: &Receiver<()>,
        failure: &mut Option<String>,
    ) -> Option<Arc<Volume>> {
        while ended.recv_timeout(self.follow.every) == Err(RecvTimeoutError::Timeout) {
            let asked = self.follow.source.lock().unwrap_or_else(PoisonError::into_inner).newer();
            match asked {
                Ok(newer) => {
                    if failure.take().is_some() {
                        tracing::info!("the volume is followed again");
                    }
                    if newer.is_some() {
                        return newer;
                    }
                }
                Err(error) if failure.as_ref() == Some(&error) => {}
                Err(error) => {
                    tracing::warn!(
                        error,
                        "the volume is shown as it was: it cannot be followed now"
                    );
                    *failure = Some(error);
                }
            }
        }
        None
    }

    /// Switches to this version, and makes the kernel drop the contents of open files that changed.
    fn show(&self, newer: Arc<Volume>) {
        let superblock = newer.writer().superblock.get();
        tracing::debug!(epoch = superblock.epoch, "shows a newer version");
        self.current.set(newer);
        let open = |(ino, node): (&InodeNo, &Node)| (node.opened > 0).then_some(*ino);
        let opened: Vec<_> = self.nodes().iter().filter_map(open).collect();
        for ino in opened {
            self.refresh(ino);
        }
    }
}

impl Step {
    /// Fails unless the found inode is the one that the kernel refers to.
    fn check(&self, found: &Attr) -> Result<()> {
        match (found.ino, found.generation) == (self.ino, self.generation) {
            true => Ok(()),
            false => Err(Error::Stale),
        }
    }
}
