//! The table of vnodes: those in use, and those that were used lately.
//!
//! The table is in parts, each with its own lock, so that unrelated files do not share one. When what
//! is known of inodes takes more memory than it may, the parts are swept in turn until it takes less
//! (the clock algorithm): of what loses nothing by being forgotten, that goes which was not used since
//! the sweep before. What cannot go (it is in use, or waits for an epoch) gives up its attributes if
//! the device has them.
//!
//! Files that were made together have numbers side by side, and a caller that uses one is likely to use the
//! next. So numbers side by side lie side by side in their part: a walk from file to file finds
//! the next one in a line of memory that the processor has.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use foldhash::fast::RandomState;

use super::Vnode;
use crate::line::Line;
use crate::lock::{Mutex, Rank};
use crate::memory::Memory;
use crate::units::InodeNo;

const PARTS: usize = 64;
/// How many numbers lie side by side in a part.
const STRETCH: u64 = 16;
/// Two to the 64, divided by the golden ratio.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// How much of what it may take is free after a sweep, at least: one in so many.
const FREED_PART: u64 = 8;

type Part = HashMap<InodeNo, Arc<Vnode>, ByStretch>;

/// Forgets what a part has that is not in use and was not used since the last sweep.
fn sweep(part: &mut Part) {
    part.retain(|ino, vnode| {
        // A thread that works with a vnode holds a second reference to it, as does the queue.
        let is_free = !ino.is_system() && Arc::strong_count(vnode) == 1;
        if !is_free || vnode.used.swap(false, Ordering::Relaxed) {
            return true;
        }
        let goes = vnode.is_evictable();
        if !goes {
            vnode.forget_attributes();
        }
        !goes
    });
}

/// All vnodes in memory, by number.
pub(super) struct VnodeTable {
    parts: Vec<Line<Mutex<Part>>>,
    memory: Arc<Memory>,
    /// The part that is swept next.
    rotor: AtomicUsize,
    /// Nothing is swept before the account has come to this: the last sweep left as much.
    sweep_from: AtomicU64,
}

impl VnodeTable {
    /// An empty table, which is swept when inodes take more than they may on this account.
    pub(super) fn new(memory: Arc<Memory>) -> VnodeTable {
        VnodeTable {
            parts: (0..PARTS).map(|_| Line(Mutex::new(Rank::Leaf, Part::default()))).collect(),
            sweep_from: AtomicU64::new(memory.inode_bytes_max()),
            memory,
            rotor: AtomicUsize::new(0),
        }
    }

    /// Makes room if what is known of inodes takes more than it may. Any vnode may be locked, but no
    /// part of the table.
    pub(super) fn make_room(&self) {
        if self.memory.inode_bytes() <= self.sweep_from.load(Ordering::Relaxed) {
            return;
        }
        let max = self.memory.inode_bytes_max();
        let target = max - max / FREED_PART;
        // The first round takes the marks away, so that the second one spares nothing.
        for _ in 0..2 * PARTS {
            let part = self.rotor.fetch_add(1, Ordering::Relaxed) % PARTS;
            sweep(&mut self.parts[part].lock());
            if self.memory.inode_bytes() <= target {
                break;
            }
        }
        // If most of it is in use, the next sweep has to wait until there is more.
        let next = self.memory.inode_bytes() + max / FREED_PART;
        self.sweep_from.store(next.max(max), Ordering::Relaxed);
    }

    /// Notes that something may be free that was not: the next sweep need not wait for more.
    pub(super) fn look_again(&self) {
        self.sweep_from.store(self.memory.inode_bytes_max(), Ordering::Relaxed);
    }

    fn part(&self, ino: InodeNo) -> &Mutex<Part> {
        &self.parts[ino.0 as usize % PARTS]
    }

    /// The vnode of an inode.
    pub(super) fn get(&self, ino: InodeNo) -> Option<Arc<Vnode>> {
        let vnode = self.part(ino).lock().get(&ino)?.clone();
        if !vnode.used.load(Ordering::Relaxed) {
            vnode.used.store(true, Ordering::Relaxed);
        }
        Some(vnode)
    }

    /// Enters a vnode, unless the inode has one: then that one counts.
    pub(super) fn insert(&self, vnode: Arc<Vnode>) -> Arc<Vnode> {
        self.part(vnode.ino).lock().entry(vnode.ino).or_insert(vnode).clone()
    }

    /// Forgets a vnode.
    pub(super) fn remove(&self, ino: InodeNo) {
        self.part(ino).lock().remove(&ino);
    }

    /// How many vnodes there are.
    pub(super) fn len(&self) -> usize {
        self.parts.iter().map(|part| part.lock().len()).sum()
    }

    /// The vnodes of a part at a time, without its lock: a thread that holds a vnode's may want that one.
    pub(super) fn parts(&self) -> impl Iterator<Item = Vec<Arc<Vnode>>> {
        self.parts.iter().map(|part| part.lock().values().cloned().collect())
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
        // The lowest bits give a number's place in the table, the highest ones distinguish it from others
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
