//! Recently found names: a cache from names to inodes that bypasses the directory's sectors.
//!
//! Only existing names are cached, each with its inode. The table is in parts, each with its own lock; a part
//! that is full is emptied, so that the names of a part take a bounded space.
//!
//! Invariants: a name is here only while its directory has it, with this inode. A thread that caches a name
//! has kept the directory locked since it found it there; one that removes the name, or gives it to another
//! inode, also holds the lock and makes the table forget it.

use foldhash::HashMap;

use crate::lock::{Mutex, Rank};
use crate::padded::Padded;
use crate::units::InodeNo;

const PARTS: usize = 16;
/// The longest cached name. With it, an entry of the table takes 64 bytes.
const NOTED_BYTES_MAX: usize = 39;

struct Noted {
    ino: InodeNo,
    len: u8,
    name: [u8; NOTED_BYTES_MAX],
}

/// By directory and hash: where two names share these, the one that was found last.
type Part = HashMap<(InodeNo, u32), Noted>;

/// Memory of an entry, with its place in the table.
const ENTRY_BYTES: usize = size_of::<((InodeNo, u32), Noted)>() + 1;

/// The recently found names of all directories.
pub(super) struct RecentNames {
    parts: Vec<Padded<Mutex<Part>>>,
    part_names_max: usize,
}

impl RecentNames {
    /// An empty table for at most `names_max` names.
    pub(super) fn new(names_max: usize) -> RecentNames {
        // A higher fill makes a table take more space, up to the next power of two.
        let part_names_max = (names_max / PARTS).max(16) / 8 * 7;
        RecentNames {
            parts: (0..PARTS).map(|_| Padded(Mutex::new(Rank::Leaf, Part::default()))).collect(),
            part_names_max,
        }
    }

    /// Approximate memory of the table, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        let capacity = |part: &Padded<Mutex<Part>>| part.lock().capacity() * ENTRY_BYTES;
        self.parts.iter().map(capacity).sum::<usize>() as u64
    }

    /// The limit of that memory.
    pub(super) fn memory_bytes_max(&self) -> u64 {
        let part = (self.part_names_max * 8 / 7).next_power_of_two() * ENTRY_BYTES;
        (part * self.parts.len()) as u64
    }

    fn part(&self, hash: u32) -> &Mutex<Part> {
        &self.parts[hash as usize % PARTS]
    }

    /// The inode with this name in a directory, if it is cached.
    pub(super) fn get(&self, dir: InodeNo, hash: u32, name: &[u8]) -> Option<InodeNo> {
        let part = self.part(hash).lock();
        let noted = part.get(&(dir, hash))?;
        (noted.name[..noted.len.into()] == *name).then_some(noted.ino)
    }

    /// Notes the inode that has this name in a directory.
    pub(super) fn note(&self, dir: InodeNo, hash: u32, name: &[u8], ino: InodeNo) {
        if name.len() > NOTED_BYTES_MAX {
            return;
        }
        let mut noted = Noted { ino, len: name.len() as u8, name: [0; NOTED_BYTES_MAX] };
        noted.name[..name.len()].copy_from_slice(name);
        let mut part = self.part(hash).lock();
        if part.len() >= self.part_names_max {
            part.clear();
        }
        part.insert((dir, hash), noted);
    }

    /// Forgets the names of a directory that have this hash.
    pub(super) fn forget(&self, dir: InodeNo, hash: u32) {
        self.part(hash).lock().remove(&(dir, hash));
    }
}

#[cfg(test)]
mod tests;
