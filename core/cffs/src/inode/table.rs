//! The table of vnodes: those in use, and recently used ones.
//!
//! The table is in parts, each with its own lock, so that unrelated files do not share one. When inodes take
//! more memory than their limit, the parts are swept in turn until they take less (the clock algorithm): a
//! sweep evicts the vnodes that equal the device and were not used since the sweep before. A vnode that must
//! stay (it is in use, or waits for an epoch) drops its attributes if the device has them. The writes of an
//! epoch in flight are not on the device yet, so a sweep needs to know the last epoch that is.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::Vnode;
use crate::locality::LocalityHash;
use crate::lock::{Mutex, Rank, Rule};
use crate::memory::Memory;
use crate::padded::Padded;
use crate::units::{EpochNo, InodeNo};

const PARTS: usize = 64;

/// A sweep frees at least one part in this many of the limit.
const FREED_PART: u64 = 8;

type Part = HashMap<InodeNo, Arc<Vnode>, LocalityHash>;

/// Evicts the vnodes of a part that are not in use, were not used since the last sweep, and equal a device
/// that has all epochs up to `done`.
fn sweep(part: &mut Part, done: EpochNo) {
    part.retain(|ino, vnode| {
        // A thread that works with a vnode holds a second reference to it, as does the queue.
        let is_free = !ino.is_system() && Arc::strong_count(vnode) == 1;
        if !is_free || vnode.used.swap(false, Ordering::Relaxed) {
            return true;
        }
        let goes = vnode.is_evictable(done);
        if !goes {
            vnode.forget_attributes(done);
        }
        !goes
    });
}

/// All vnodes in memory, by number.
pub(super) struct VnodeTable {
    parts: Vec<Padded<Mutex<Part>>>,
    memory: Arc<Memory>,
    /// The part that is swept next.
    rotor: AtomicUsize,
    /// The next sweep begins when the account reaches this.
    sweep_from: AtomicU64,
    /// The last epoch that is on the device.
    done: AtomicU64,
}

impl VnodeTable {
    /// An empty table, which is swept when inodes take more than they may on this account. The device has all
    /// epochs up to `done`.
    pub(super) fn new(memory: Arc<Memory>, done: EpochNo) -> VnodeTable {
        // Files that were made together are adjacent in their parts.
        let part = || Part::with_hasher(LocalityHash::new(PARTS as u64));
        VnodeTable {
            parts: (0..PARTS).map(|_| Padded(Mutex::new(Rank::Leaf, part()))).collect(),
            sweep_from: AtomicU64::new(memory.inode_bytes_max()),
            memory,
            rotor: AtomicUsize::new(0),
            done: AtomicU64::new(done.0),
        }
    }

    /// Sweeps if inodes exceed their memory limit. The caller may hold any vnode, but no part of the table.
    pub(super) fn make_room(&self) {
        if self.memory.inode_bytes() <= self.sweep_from.load(Ordering::Relaxed) {
            return;
        }
        let max = self.memory.inode_bytes_max();
        let target = max - max / FREED_PART;
        // The first round clears the marks, so that the second one spares no vnode.
        for _ in 0..2 * PARTS {
            let part = self.rotor.fetch_add(1, Ordering::Relaxed) % PARTS;
            sweep(&mut self.parts[part].lock(), EpochNo(self.done.load(Ordering::Acquire)));
            if self.memory.inode_bytes() <= target {
                break;
            }
        }
        // If most vnodes are in use, the next sweep waits until there are more.
        let next = self.memory.inode_bytes() + max / FREED_PART;
        self.sweep_from.store(next.max(max), Ordering::Relaxed);
    }

    /// Notes that more vnodes may be evictable: the next sweep need not wait for more of them.
    pub(super) fn look_again(&self) {
        self.sweep_from.store(self.memory.inode_bytes_max(), Ordering::Relaxed);
    }

    /// Notes that the device has all epochs up to this one, so that their vnodes may be evicted.
    pub(super) fn epoch_done(&self, epoch: EpochNo) {
        self.done.store(epoch.0, Ordering::Release);
        self.look_again();
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

    /// Enters a vnode, unless the inode has one already, which then counts.
    pub(super) fn insert(&self, vnode: Arc<Vnode>) -> Arc<Vnode> {
        let mut part = self.part(vnode.ino).lock();
        if !Rule::OneVnode.holds() {
            part.remove(&vnode.ino);
        }
        part.entry(vnode.ino).or_insert(vnode).clone()
    }

    /// Forgets a vnode.
    pub(super) fn remove(&self, ino: InodeNo) {
        self.part(ino).lock().remove(&ino);
    }

    /// The count of vnodes.
    pub(super) fn len(&self) -> usize {
        self.parts.iter().map(|part| part.lock().len()).sum()
    }

    /// The vnodes of a part at a time, without its lock: a thread that holds a vnode's lock may be waiting
    /// for that one.
    pub(super) fn parts(&self) -> impl Iterator<Item = Vec<Arc<Vnode>>> {
        self.parts.iter().map(|part| part.lock().values().cloned().collect())
    }
}

#[cfg(test)]
mod tests;
