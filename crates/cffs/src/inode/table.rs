//! The table of vnodes: those in use, and those that were used lately.
//!
//! The table is in parts, each with its own lock, so that unrelated files do not share one. A part
//! that is full is swept: of what loses nothing by being forgotten, that goes which was not used
//! since the sweep before; and if that is too little, all of it.
//!
//! Files that were made together have numbers side by side, and who uses one is likely to use the
//! next. So numbers side by side lie side by side in their part: who goes from file to file finds
//! the next one in a line of memory that the processor has.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use super::Vnode;
use crate::units::InodeNo;

const PARTS: usize = 64;
/// How many numbers lie side by side in a part.
const STRETCH: u64 = 16;
/// Two to the 64, divided by the golden ratio.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

#[derive(Default)]
struct Part {
    vnodes: HashMap<InodeNo, Arc<Vnode>, ByStretch>,
    sweep_at: usize,
}

impl Part {
    /// Forgets what is not in use, so that at least a quarter of `vnodes_max` comes free, or as much
    /// as can be.
    fn sweep(&mut self, vnodes_max: usize) {
        // The first round takes the marks away, so that the second one spares nothing.
        for _ in 0..2 {
            if self.vnodes.len() > vnodes_max / 4 * 3 {
                // Whoever has a vnode in hand holds a second reference to it, as does the queue.
                self.vnodes.retain(|ino, vnode| {
                    ino.is_system()
                        || Arc::strong_count(vnode) > 1
                        || vnode.used.swap(false, Ordering::Relaxed)
                        || !vnode.is_evictable()
                });
            }
        }
        self.sweep_at = self.vnodes.len() * 2;
    }
}

/// All vnodes in memory, by number.
pub(super) struct VnodeTable {
    parts: Vec<Mutex<Part>>,
    part_vnodes_max: usize,
}

impl VnodeTable {
    /// An empty table, in which about `vnodes_max` vnodes may stay that are not in use.
    pub(super) fn new(vnodes_max: usize) -> VnodeTable {
        VnodeTable {
            parts: (0..PARTS).map(|_| Mutex::default()).collect(),
            part_vnodes_max: (vnodes_max / PARTS).max(16),
        }
    }

    fn part(&self, ino: InodeNo) -> &Mutex<Part> {
        &self.parts[ino.0 as usize % PARTS]
    }

    /// The vnode of an inode.
    pub(super) fn get(&self, ino: InodeNo) -> Option<Arc<Vnode>> {
        let vnode = self.part(ino).lock().vnodes.get(&ino)?.clone();
        if !vnode.used.load(Ordering::Relaxed) {
            vnode.used.store(true, Ordering::Relaxed);
        }
        Some(vnode)
    }

    /// Enters a vnode, unless the inode has one: then that one counts.
    pub(super) fn insert(&self, vnode: Arc<Vnode>) -> Arc<Vnode> {
        let mut part = self.part(vnode.ino).lock();
        if part.vnodes.len() >= part.sweep_at.max(self.part_vnodes_max) {
            part.sweep(self.part_vnodes_max);
        }
        part.vnodes.entry(vnode.ino).or_insert(vnode).clone()
    }

    /// Forgets a vnode.
    pub(super) fn remove(&self, ino: InodeNo) {
        self.part(ino).lock().vnodes.remove(&ino);
    }

    /// How many vnodes there are.
    pub(super) fn len(&self) -> usize {
        self.parts.iter().map(|part| part.lock().vnodes.len()).sum()
    }

    /// The vnodes of a part at a time, without its lock: whoever holds a vnode's may want that one.
    pub(super) fn parts(&self) -> impl Iterator<Item = Vec<Arc<Vnode>>> {
        self.parts.iter().map(|part| part.lock().vnodes.values().cloned().collect())
    }
}

/// Makes the hashes of numbers, which differ from volume to volume.
struct ByStretch(u64);

impl Default for ByStretch {
    fn default() -> ByStretch {
        ByStretch(RandomState::default().hash_one(0))
    }
}

impl BuildHasher for ByStretch {
    type Hasher = StretchHasher;

    fn build_hasher(&self) -> StretchHasher {
        StretchHasher(self.0)
    }
}

struct StretchHasher(u64);

impl Hasher for StretchHasher {
    fn write_u64(&mut self, number: u64) {
        let in_part = number / PARTS as u64;
        let (stretch, at) = (in_part / STRETCH, in_part % STRETCH);
        let product = u128::from(stretch ^ self.0) * u128::from(MULTIPLIER);
        let mixed = (product >> 64) as u64 ^ product as u64;
        // The lowest bits tell a number's place in the table, the highest ones tell it from others
        // at that place.
        self.0 = ((mixed & !(STRETCH - 1)) | at) ^ (at << 60);
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests;
