//! A mount that moves with what another program writes.
//!
//! ```text
//!   every few seconds: Newer ── a newer version ──▶ it is current ──▶ the kernel drops the contents of
//!                        └── none                                     open files that changed
//! ```
//!
//! Each request is answered from one version. The kernel knows inodes by their numbers, and a number may
//! belong to another file in the next version, or to none; and on a volume that was not left clean, the table
//! from numbers to inodes is out of date. So this module remembers the name by which the kernel found each
//! inode, and in each version the first request for an inode looks it up by its names. An inode that is not
//! found, or has another generation, is stale: the kernel looks its name up again, and an open file fails
//! with `ESTALE`.
//!
//! The kernel trusts names and attributes for a second. It keeps contents until the file is opened again or
//! a version comes, and drops them if the file has changed by then.
//!
//! Invariant: `seen` of a node describes contents at least as old as what the kernel has cached of it. So it
//! is set after the kernel has dropped older contents, not before: after a notification returns, or when a
//! request arrives through a handle whose opening told the kernel to drop them.

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

/// More directories than this above a file are a loop.
const ANCESTORS_MAX: usize = 1 << 12;

/// Finds what a volume has become.
pub trait Newer: Send {
    /// The current volume, if it has changed since the last call.
    ///
    /// # Errors
    ///
    /// Why that cannot be known at present, in words.
    fn newer(&mut self) -> std::result::Result<Option<Arc<Volume>>, String>;
}

/// How a mount follows its volume.
#[derive(Clone)]
pub struct Follow {
    /// How often it is asked for what is new.
    pub every: Duration,
    /// Whom to ask.
    pub source: Arc<Mutex<dyn Newer>>,
}

impl std::fmt::Debug for Follow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follow").field("every", &self.every).finish_non_exhaustive()
    }
}

/// The current version of the volume, and what the kernel knows of it.
pub(super) struct Following {
    follow: Follow,
    current: Current,
    caches: Box<dyn Observer>,
    nodes: Mutex<HashMap<InodeNo, Node>>,
}

/// An inode that the kernel knows.
struct Node {
    generation: u32,
    /// The name by which it was found last.
    parent: InodeNo,
    name: Box<[u8]>,
    /// The number of answers that named it to the kernel, less those that the kernel has forgotten.
    lookups: u64,
    opened: u64,
    /// Identifies the oldest contents that the kernel may have cached; `None` if these are unknown.
    seen: Option<Seen>,
    /// An opening that told the kernel to drop what it has cached. The kernel may not have done so yet.
    dropping: Option<(FileHandle, Seen)>,
    /// The newest version in which it was found.
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

/// A name on the path to an inode, and the inode that the kernel knows by it.
struct Step {
    name: Box<[u8]>,
    ino: InodeNo,
    generation: u32,
}

/// The volume that one reading request sees.
pub(super) struct ReadView<'a> {
    pub volume: &'a Arc<Volume>,
    /// Of a volume that is followed: what the kernel knows, and the number of this version.
    pub following: Option<(&'a Following, u64)>,
}

impl ReadView<'_> {
    /// Records that an answer names this inode to the kernel.
    pub fn note(&self, parent: InodeNo, name: &[u8], attr: &Attr) {
        if let Some((following, version)) = self.following {
            // Nothing is deleted here, so the volume need not count the kernel's references.
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

    /// Reads something of an inode in the current version.
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
            // The volume has dropped the inode from memory, and the table of numbers is out of date.
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
            // It has another name now, and the table of numbers is up to date.
            (Err(Error::NotFound | Error::NotDirectory | Error::Stale), Some(step))
                if volume.writer().superblock().state == State::Clean =>
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

    /// The names that lead to an inode, the last one first.
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

    /// Records that an answer from this version names an inode to the kernel.
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

    /// The kernel has forgotten this number of lookups.
    pub fn forget(&self, ino: InodeNo, lookups: u64) {
        let mut nodes = self.nodes();
        if let Some(node) = nodes.get_mut(&ino) {
            node.lookups = node.lookups.saturating_sub(lookups);
            if node.lookups == 0 {
                nodes.remove(&ino);
            }
        }
    }

    /// A file is opened. The kernel may keep what it has cached if this is `None`; otherwise it must drop
    /// that, and use this handle.
    pub fn open(&self, ino: InodeNo) -> Result<Option<FileHandle>> {
        // Before the version is chosen: a newer one then finds the file open.
        if let Some(node) = self.nodes().get_mut(&ino) {
            node.opened += 1;
        }
        let read = self.on(ino, |view| {
            let version = view.following.map_or(0, |(_, version)| version);
            Ok((version, view.volume.attr(ino)?))
        });
        let (version, attr) = read.inspect_err(|_| self.close(ino, FileHandle(0)))?;
        // Zero is the handle of files whose contents were kept.
        let handle = FileHandle(version + 1);
        let seen = Seen::of(&attr);
        let mut nodes = self.nodes();
        let Some(node) = nodes.get_mut(&ino) else { return Ok(Some(handle)) };
        // This version may have been replaced meanwhile, and what the kernel has may be of the newer one.
        if node.version == version {
            if node.seen == Some(seen) {
                return Ok(None);
            }
            (node.seen, node.dropping) = (None, Some((handle, seen)));
        }
        Ok(Some(handle))
    }

    /// A request arrived through a handle: the kernel has processed the answer that named the handle.
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

    /// A file is closed.
    pub fn close(&self, ino: InodeNo, handle: FileHandle) {
        self.used(ino, handle);
        if let Some(node) = self.nodes().get_mut(&ino) {
            node.opened = node.opened.saturating_sub(1);
        }
    }

    /// Has the kernel drop the contents of an open file if they may have changed. A read that is under way
    /// holds its pages, so this waits for it.
    fn refresh(&self, ino: InodeNo) {
        let now = match self.on(ino, |view| view.volume.attr(ino)) {
            Ok(attr) => Some(Seen::of(&attr)),
            // What the kernel has is of the file that was opened, which is gone.
            Err(Error::Stale) => return,
            // It may have changed.
            Err(_) => None,
        };
        if let Some(node) = self.nodes().get_mut(&ino) {
            if node.seen == now && now.is_some() {
                return;
            }
            // Until the kernel has dropped its pages, nothing is known of them.
            (node.seen, node.dropping) = (None, None);
        }
        self.caches.changed(Change::Contents(ino, 0, None));
        if let Some(node) = self.nodes().get_mut(&ino) {
            node.seen = now;
        }
    }

    /// Runs the work of the mount, and at the same time the background work of each version.
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

    /// The next version; `None` if the mount ends before.
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

    /// Answers from this version from now on, and has the kernel drop the contents of open files that
    /// changed.
    fn show(&self, newer: Arc<Volume>) {
        let superblock = newer.writer().superblock();
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
    /// Fails unless what was found is the inode that the kernel knows.
    fn check(&self, found: &Attr) -> Result<()> {
        match (found.ino, found.generation) == (self.ino, self.generation) {
            true => Ok(()),
            false => Err(Error::Stale),
        }
    }
}
