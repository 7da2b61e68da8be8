//! Reading a directory, entry after entry, while others change it.
//!
//! A reader goes on after a cookie: the sector and the slot of an entry, and how many sectors of the
//! directory come after it in this reading. That number is fixed when the reading begins, and
//! travels in the cookies since nothing else does: the kernel does not open directories. So a reader does
//! not run after what is appended meanwhile, and each entry that stays where it is comes once.
//!
//! ```text
//!   63        48 47                            16 15           0
//!   ┌──────────┬────────────────────────────────┬──────────────┐
//!   │ to come  │ sector                         │ slot         │
//!   └──────────┴────────────────────────────────┴──────────────┘
//! ```

use std::sync::Arc;

use super::{Namespace, check_named};
use crate::error::{Error, Result};
use crate::format::inode::FileType;
use crate::format::sector::Body;
use crate::inode::{Vnode, VnodeState};
use crate::units::{Container, InodeNo, SectorIndex};

#[cfg(test)]
mod tests;

/// With so many sectors to come or more, their number is taken from the directory each time. Cookies
/// stay below 2^63 with room to spare: to others they are signed, and front ends add some of their own.
const TO_COME_MAX: u32 = 0x7ffe;

/// An entry that a directory is read by.
pub struct Visited<'a> {
    /// The name.
    pub name: &'a [u8],
    /// The inode.
    pub ino: InodeNo,
    /// Its type.
    pub file_type: FileType,
    /// Where reading goes on.
    pub cookie: u64,
    /// Where the entry lies and what it holds.
    pub body: Body<'a>,
    /// The sector of the entry.
    pub container: Container,
}

/// Where a reader is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    sector: u32,
    /// The last slot that was seen of the sector.
    slot: u16,
    /// The end of what is read, if it is known.
    end: Option<u32>,
}

impl Position {
    fn from_cookie(cookie: u64) -> Position {
        let (to_come, sector) = ((cookie >> 48) as u32, (cookie >> 16) as u32);
        let has_end = cookie != 0 && to_come < TO_COME_MAX;
        let end = has_end.then(|| sector.saturating_add(to_come + 1));
        Position { sector, slot: cookie as u16, end }
    }
}

/// The cookie of the entry with this slot, in a reading that ends before the sector `end`.
fn cookie(sector: SectorIndex, slot: u16, end: u32) -> u64 {
    let to_come = (end - sector.0 - 1).min(TO_COME_MAX);
    u64::from(to_come) << 48 | u64::from(sector.0) << 16 | u64::from(slot)
}

impl Namespace {
    /// Visits the entries of a directory after `cookie` (0 for all), until `visit` returns false.
    pub fn read_dir(
        &self,
        dir: &VnodeState,
        cookie: u64,
        visit: &mut dyn FnMut(&Visited<'_>) -> Result<bool>,
    ) -> Result<()> {
        if !dir.inode.is_dir() {
            return Err(Error::NotDirectory);
        }
        let ino = dir.inode.ino;
        let count = self.store.sector_count(dir);
        let Position { sector, slot: mut after, end } = Position::from_cookie(cookie);
        let end = end.unwrap_or(count).min(count);
        for index in (sector..end).map(SectorIndex) {
            let image = self.store.sector(dir, index)?;
            for entry in image.get().entries().filter(|entry| entry.slot > after) {
                let visited = Visited {
                    name: entry.name,
                    ino: entry.ino(),
                    file_type: entry.file_type,
                    cookie: self::cookie(index, entry.slot, end),
                    body: entry.body,
                    container: Container { file: ino, sector: index },
                };
                if !visit(&visited)? {
                    return Ok(());
                }
            }
            after = 0;
        }
        Ok(())
    }

    /// The vnode of the file that a visited entry names. The caller holds the directory.
    pub fn vnode_visited(&self, visited: &Visited<'_>) -> Result<Arc<Vnode>> {
        check_named(visited.container.file, visited.ino)?;
        match &visited.body {
            Body::Embedded(record) => self.store.adopt(record, visited.container),
            Body::Reference { ino, sector } => match self.store.peek(*ino) {
                Some(vnode) => Ok(vnode),
                None => self.external_vnode(visited.container.file, *ino, *sector),
            },
        }
    }
}
