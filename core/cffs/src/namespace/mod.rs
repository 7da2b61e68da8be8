//! Names: directory sectors, lookup, create, link, rename, unlink.
//!
//! Stands on `inode` and the layers below. The functions here change memory only; each leaves directories,
//! inodes and the locator table in agreement, and marks the entries that must wait for the last phase of the
//! epoch (DESIGN: epochs). The caller of a function that changes something keeps epochs from starting
//! meanwhile; a [`Rename`] and [`Namespace::link`] must be the only change in progress.
//!
//! Locks are taken from the directory to the file; a reader holds a directory while it takes a
//! file, never two directories.

mod dir;
mod entry;
mod index;
mod listing;
mod make;
mod prepared;
mod recent;
mod rename;
mod scan;

use std::sync::Arc;

pub use entry::Found;
pub use listing::{Visited, read_dir};
pub use prepared::Prepared;
pub use rename::{Ends, Names, Rename, Renamed};
pub use scan::scan;

use crate::error::{Corruption, Error, Result};
use crate::format::NAME_BYTES_MAX;
use crate::format::checksum::name_hash;
use crate::format::sector::Body;
use crate::inode::{InodeCache, Vnode, VnodeState};
use crate::lock::Rule;
use crate::units::{Container, InodeNo};
use index::DirIndex;
use recent::RecentNames;

/// A condition on a directory and on a file that loses a name there, or gets one, both locked.
pub type MayTake<'a> = &'a dyn Fn(&VnodeState, &VnodeState) -> Result<()>;

/// The names of a volume.
pub struct Namespace {
    /// The inodes that have them.
    pub inodes: Arc<InodeCache>,
    recent: RecentNames,
}

impl Namespace {
    /// The names of these inodes; at most `recent_max` of them are kept in memory.
    pub fn new(inodes: Arc<InodeCache>, recent_max: usize) -> Namespace {
        let recent = RecentNames::new(recent_max);
        Namespace { inodes, recent }
    }

    /// The memory of the recent names, and its limit, in bytes.
    pub fn recent_bytes(&self) -> (u64, u64) {
        (self.recent.memory_bytes(), self.recent.memory_bytes_max())
    }

    /// The hash of a name, after a check that it can be one.
    fn hash(&self, name: &[u8]) -> Result<u32> {
        check_name(name)?;
        Ok(self.hash_unchecked(name))
    }

    fn hash_unchecked(&self, name: &[u8]) -> u32 {
        name_hash(&self.inodes.features.hash_seed, name)
    }

    /// The indexes of the directories.
    fn index(&self) -> DirIndex<'_> {
        DirIndex { inodes: &self.inodes }
    }

    /// Fails unless the inode is a directory with a name.
    fn check_dir(&self, dir: &VnodeState) -> Result<()> {
        if !dir.inode.is_dir() {
            return Err(Error::NotDirectory);
        }
        if dir.inode.nlink == 0 {
            return Err(Error::NotFound);
        }
        Ok(())
    }

    /// The file with this name.
    pub fn lookup(&self, dir: &Arc<Vnode>, name: &[u8]) -> Result<Arc<Vnode>> {
        let state = dir.state.read();
        self.check_dir(&state)?;
        // A name that was found is valid, so the check can wait.
        let hash = self.hash_unchecked(name);
        let recent = self.recent.get(dir.ino, hash, name);
        if let Some(vnode) = recent.and_then(|ino| self.inodes.peek(ino)) {
            return Ok(vnode);
        }
        check_name(name)?;
        let found = self.find_hashed(&state, hash, name)?.ok_or(Error::NotFound)?;
        let vnode = self.vnode_of(&state, &found)?;
        let _held = Rule::DirectoryHeld.holds().then_some(state);
        Rule::DirectoryHeld.linger();
        self.recent.note(dir.ino, hash, name, found.ino);
        Ok(vnode)
    }

    /// The vnode of the file that an entry names. The caller holds the directory.
    fn vnode_of(&self, dir: &VnodeState, found: &Found) -> Result<Arc<Vnode>> {
        check_named(dir.inode.ino, found.ino)?;
        if let Some(vnode) = self.inodes.peek(found.ino) {
            return Ok(vnode);
        }
        let container = Container { file: dir.inode.ino, sector: found.sector };
        match found.reference {
            None => {
                let image = self.inodes.containers().sector(dir, found.sector)?;
                match image.get().find_inode(found.ino).map(|entry| entry.body) {
                    Some(Body::Embedded(record)) => self.inodes.adopt(&record, container),
                    _ => Err(Error::Stale),
                }
            }
            Some(sector) => self.external_vnode(dir.inode.ino, found.ino, sector),
        }
    }

    /// The vnode of the file that a visited entry names. The caller holds the directory.
    pub fn vnode_visited(&self, visited: &Visited<'_>) -> Result<Arc<Vnode>> {
        check_named(visited.container.file, visited.ino)?;
        match &visited.body {
            Body::Embedded(record) => self.inodes.adopt(record, visited.container),
            Body::Reference { ino, sector } => match self.inodes.peek(*ino) {
                Some(vnode) => Ok(vnode),
                None => self.external_vnode(visited.container.file, *ino, *sector),
            },
        }
    }

    fn external_vnode(
        &self,
        dir: InodeNo,
        ino: InodeNo,
        sector: crate::units::SectorIndex,
    ) -> Result<Arc<Vnode>> {
        let missing = || Error::from(Corruption::Reference { dir, ino, sector });
        let table = self.inodes.system(InodeNo::EXTERNAL)?;
        let state = table.state.read();
        if sector.0 >= self.inodes.containers().sector_count(&state) {
            return Err(missing());
        }
        let image = self.inodes.containers().sector(&state, sector)?;
        match image.get().find_inode(ino).map(|entry| entry.body) {
            Some(Body::Embedded(record)) => {
                self.inodes.adopt(&record, Container { file: InodeNo::EXTERNAL, sector })
            }
            _ => self.inodes.peek(ino).ok_or_else(missing),
        }
    }
}

/// Fails unless these bytes can be the name of a file.
fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::NameTooLong);
    }
    if matches!(name, b"" | b"." | b"..") || name.iter().any(|b| matches!(b, 0 | b'/')) {
        return Err(Error::Invalid("not the name of a file"));
    }
    Ok(())
}

/// Fails if an entry names its own directory or the system's inodes, which only damage can cause. A thread
/// that holds the directory while it takes the file would wait for itself.
fn check_named(dir: InodeNo, ino: InodeNo) -> Result<()> {
    if ino == dir || ino.is_system() { Err(Corruption::Loop { ino }.into()) } else { Ok(()) }
}
