//! A mount that moves with what another program writes.
//!
//! ```text
//!   every few seconds: Newer ── a newer version ──▶ it is current ──▶ what the kernel caches of open files
//!                        └── none                                     that changed is dropped
//! ```
//!
//! Each request is answered from one version. The kernel knows inodes by their numbers, and a number may lead
//! to another file in the next version, or nowhere; and where a volume was not left clean, the table from
//! numbers to inodes is behind. So it is remembered here by which name the kernel came to an inode, and in
//! each version the first request for it goes there by its names. An inode that is not found there, or is of
//! another generation, is stale: the kernel looks its name up again, and an open file fails with `ESTALE`.
//!
//! The kernel believes names and attributes for a second. Contents it keeps until the file is opened again or
//! a version comes, and drops them if the file has changed by then.
//!
//! Invariant: `seen` of a node describes contents at least as old as what the kernel has cached of it.

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

use super::caches::KernelCaches;
use crate::shared::{self, Change, Current, Observer};

#[cfg(test)]
mod tests;

/// More directories than this above a file are a loop.
const ANCESTORS_MAX: usize = 1 << 12;

/// Finds what a volume has become.
pub trait Newer: Send {
    /// The volume as it is now, if it has changed since the last call.
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

/// The volume as it is at each time, and what the kernel knows of it.
pub(super) struct Following {
    follow: Follow,
    current: Current,
    caches: KernelCaches,
    nodes: Mutex<HashMap<InodeNo, Node>>,
}

/// An inode that the kernel knows.
struct Node {
    generation: u32,
    /// By which name it was found last.
    parent: InodeNo,
    name: Box<[u8]>,
    /// How often the kernel was told of it, less what it forgot.
    lookups: u64,
    opened: u64,
    /// What distinguishes the contents that the kernel may have.
    seen: Option<Seen>,
    /// The version in which it was found to be there.
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

/// A name on the way to an inode, and where it led.
struct Step {
    name: Box<[u8]>,
    ino: InodeNo,
    generation: u32,
}

/// A volume for one request that reads.
pub(super) struct View<'a> {
    pub volume: &'a Arc<Volume>,
    /// Who follows it, and which version this is.
    pub following: Option<(&'a Following, u64)>,
}

impl View<'_> {
    /// The kernel is told of an inode by this name.
    pub fn note(&self, parent: InodeNo, name: &[u8], attr: &Attr) {
        if let Some((following, version)) = self.following {
            // Nothing is deleted here for want of references, and the kernel's last longer than a version.
            self.volume.release(attr.ino, 1);
            following.note(version, parent, name, attr);
        }
    }
}

impl Following {
    pub fn new(follow: Follow, current: Current, caches: KernelCaches) -> Following {
        Following { follow, current, caches, nodes: Mutex::default() }
    }

    fn nodes(&self) -> std::sync::MutexGuard<'_, HashMap<InodeNo, Node>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with an inode in the current version.
    pub fn on<T>(&self, ino: InodeNo, mut act: impl FnMut(&View<'_>) -> Result<T>) -> Result<T> {
        let (version, volume) = self.current.version();
        let view = View { volume: &volume, following: Some((self, version)) };
        let is_known = self.nodes().get(&ino).is_none_or(|node| node.version == version);
        if !is_known {
            self.find(version, &volume, ino)?;
        }
        match act(&view) {
            // It was forgotten by now, and the table of numbers is behind.
            Err(Error::Stale | Error::Corruption(Corruption::LocatorEntry { .. })) => {
                self.find(version, &volume, ino)?;
                act(&view)
            }
            done => done,
        }
    }

    /// Goes from the root to an inode by its names.
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
            // It has another name now, and the table of numbers is right.
            (Err(Error::NotFound | Error::NotDirectory | Error::Stale), Some(step))
                if volume.superblock().state == State::Clean =>
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

    /// The kernel is told of an inode by this name.
    pub fn note(&self, version: u64, parent: InodeNo, name: &[u8], attr: &Attr) {
        let mut nodes = self.nodes();
        let node = nodes.entry(attr.ino).or_insert_with(|| Node {
            generation: attr.generation,
            parent,
            name: name.into(),
            lookups: 0,
            opened: 0,
            seen: None,
            version,
        });
        node.lookups += 1;
        // An answer from an older version is late.
        if node.version > version {
            return;
        }
        node.version = version;
        if node.generation != attr.generation {
            // To the kernel this is another inode: it has nothing of it yet, and closes what was open.
            (node.generation, node.seen) = (attr.generation, None);
        }
        if node.parent != parent || *node.name != *name {
            (node.parent, node.name) = (parent, name.into());
        }
    }

    /// The kernel has forgotten so many lookups.
    pub fn forget(&self, ino: InodeNo, lookups: u64) {
        let mut nodes = self.nodes();
        if let Some(node) = nodes.get_mut(&ino) {
            node.lookups = node.lookups.saturating_sub(lookups);
            if node.lookups == 0 {
                nodes.remove(&ino);
            }
        }
    }

    /// A file is opened; whether what the kernel has cached of it is still right.
    pub fn open(&self, ino: InodeNo) -> Result<bool> {
        // Before the version is chosen: one that comes then finds the file open.
        if let Some(node) = self.nodes().get_mut(&ino) {
            node.opened += 1;
        }
        match self.on(ino, |view| view.volume.attr(ino)) {
            Ok(attr) => Ok(!self.see(ino, &attr)),
            Err(error) => {
                self.close(ino);
                Err(error)
            }
        }
    }

    /// A file is closed.
    pub fn close(&self, ino: InodeNo) {
        if let Some(node) = self.nodes().get_mut(&ino) {
            node.opened = node.opened.saturating_sub(1);
        }
    }

    /// From now on the kernel's contents are these; whether they were others before.
    fn see(&self, ino: InodeNo, attr: &Attr) -> bool {
        let seen = Some(Seen::of(attr));
        self.nodes()
            .get_mut(&ino)
            .is_none_or(|node| std::mem::replace(&mut node.seen, seen) != seen)
    }

    /// Does the work of the mount, and beside it that of the volume, version by version.
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

    /// Answers from this version from now on. Of open files that differ the kernel forgets the contents; a
    /// read that is under way holds its pages, so that this waits for it.
    fn show(&self, newer: Arc<Volume>) {
        let superblock = newer.superblock();
        tracing::debug!(epoch = superblock.epoch, "shows a newer version");
        self.current.set(newer);
        let open = |(ino, node): (&InodeNo, &Node)| (node.opened > 0).then_some(*ino);
        let opened: Vec<_> = self.nodes().iter().filter_map(open).collect();
        for ino in opened {
            let Ok(attr) = self.on(ino, |view| view.volume.attr(ino)) else { continue };
            if self.see(ino, &attr) {
                self.caches.changed(Change::Contents(ino, 0, None));
            }
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
