//! Loading an inode into memory, from its entry or by its number.

use std::sync::Arc;

use super::{InodeCache, Vnode, VnodeGuard};
use crate::error::{Corruption, Error, Result};
use crate::format::inode::Record;
use crate::format::sector::Body;
use crate::units::{Container, InodeNo};

/// More directories than this above a file are a loop.
const ANCESTORS_MAX: usize = 1 << 20;

/// The result of looking for an inode in the container that the locator table names.
enum Search {
    Found(Arc<Vnode>),
    /// The container does not have it.
    Missing,
}

impl InodeCache {
    /// The vnode of an inode by its number.
    ///
    /// Fails with [`Error::Stale`] if the inode does not exist. This is the slow way, by the locator table; a
    /// walk by names passes the entries that it sees to [`InodeCache::adopt`].
    pub fn get(&self, ino: InodeNo) -> Result<Arc<Vnode>> {
        if let Some(vnode) = self.peek(ino) {
            return Ok(vnode);
        }
        if ino < InodeNo::FIRST_USER {
            return Err(Error::Stale);
        }
        // Loads the containers above it first, each from the one above, beginning with the nearest that is in
        // memory. The root always is.
        let mut chain = vec![(ino, self.locate(ino)?)];
        let mut holder = loop {
            let (_, container) = chain[chain.len() - 1];
            if let Some(vnode) = self.peek(container.file) {
                break vnode;
            }
            if chain.len() > ANCESTORS_MAX {
                return Err(Corruption::Loop { ino }.into());
            }
            let above = container.file;
            chain.push((above, self.locate(above)?));
        };
        while let Some((ino, container)) = chain.pop() {
            holder = match self.get_in(&holder, ino, container)? {
                Search::Found(vnode) => vnode,
                Search::Missing => self.get_moved(ino, container)?,
            };
        }
        Ok(holder)
    }

    /// The vnode of an inode that the locator table placed in `container`, which did not have it: it moved
    /// after the table was read. A thread that moves an inode has its vnode until the table has the new
    /// place.
    fn get_moved(&self, ino: InodeNo, container: Container) -> Result<Arc<Vnode>> {
        match self.peek(ino) {
            Some(vnode) => Ok(vnode),
            None if self.locate(ino)? != container => self.get(ino),
            None => Err(Corruption::LocatorEntry { ino, container }.into()),
        }
    }

    fn locate(&self, ino: InodeNo) -> Result<Container> {
        let container = self.locator_table().find(ino)?.ok_or(Error::Stale)?;
        // The number was taken for a file that is being made.
        if container == self.layout.system_container(InodeNo::ROOT) && ino != InodeNo::ROOT {
            return Err(Error::Stale);
        }
        let itself = container.file == ino;
        let system = container.file.is_system()
            && !matches!(container.file, InodeNo::ROOT | InodeNo::EXTERNAL);
        if itself || system {
            return Err(Corruption::LocatorEntry { ino, container }.into());
        }
        Ok(container)
    }

    /// The vnode of an inode that is in `container`, whose vnode is `holder`.
    fn get_in(&self, holder: &Vnode, ino: InodeNo, container: Container) -> Result<Search> {
        if let Some(vnode) = self.peek(ino) {
            return Ok(Search::Found(vnode));
        }
        let state = holder.state.read();
        if container.sector.0 >= self.containers().sector_count(&state) {
            return Ok(Search::Missing);
        }
        let image = self.containers().sector(&state, container.sector)?;
        match image.get().find_inode(ino).map(|entry| entry.body) {
            Some(Body::Embedded(record)) => self.adopt(&record, container).map(Search::Found),
            _ => Ok(Search::Missing),
        }
    }

    /// The vnode of the inode in this record, which is in `container`.
    ///
    /// The caller holds the lock of the container, so that the record is the inode's latest.
    pub fn adopt(&self, record: &Record<'_>, container: Container) -> Result<Arc<Vnode>> {
        match self.peek(record.inode.number()) {
            Some(vnode) => Ok(vnode),
            None => {
                let inode = self.decoder().decode(record)?;
                Ok(self.insert(self.vnode(inode, Some(container), true)))
            }
        }
    }

    /// Reads the attributes of a file into memory, where they stay while it is locked.
    pub fn load_attributes(&self, file: &mut VnodeGuard<'_>) -> Result<()> {
        if file.inode.attributes.is_none() {
            let known = self.decoder().read_attributes(&file.inode)?;
            file.inode.attributes = Some(known);
            self.weigh(file);
        }
        Ok(())
    }
}
