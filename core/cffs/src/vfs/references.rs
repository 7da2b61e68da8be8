//! The uses of an inode: references by number, and inodes that have lost their last name.
//!
//! The kernel keeps a reference on every inode that it remembers, which may be millions. Files that were made
//! together have numbers side by side, so counts are kept by blocks of numbers, with a byte for each. The
//! excess over a byte is kept in a table of its own.

use std::collections::hash_map::Entry;
use std::time::{Duration, Instant};

use foldhash::{HashMap, HashSet};

use super::Volume;
use crate::lock::{self, Mutex, Rank};
use crate::padded::Padded;
use crate::units::InodeNo;
use crate::waiter::Waiter;

/// How long a call that finds no space waits for the kernel to release files that were just removed, and how
/// often it checks.
const LETTING_GO_MAX: Duration = Duration::from_secs(1);
const LETTING_GO_POLL: Duration = Duration::from_millis(1);

const SHARDS: usize = 64;

/// The numbers in a block. If few of many files are in use, so that each number is alone in its block, a
/// block takes one and a half times the memory of a single number with its count.
const BLOCK: usize = 16;

#[derive(Default)]
struct Counts {
    blocks: HashMap<u64, [u8; BLOCK]>,
    /// The excess of counts over 255.
    beyond: HashMap<InodeNo, u64>,
}

impl Counts {
    fn place(ino: InodeNo) -> (u64, usize) {
        (ino.0 / BLOCK as u64, ino.0 as usize % BLOCK)
    }

    fn get(&self, ino: InodeNo) -> u64 {
        let (block, at) = Counts::place(ino);
        match self.blocks.get(&block).map_or(0, |counts| counts[at]) {
            u8::MAX => u64::from(u8::MAX) + self.beyond.get(&ino).copied().unwrap_or(0),
            count => count.into(),
        }
    }

    /// Calls `visit` with each number that has a count, and the count.
    fn for_each(&self, mut visit: impl FnMut(InodeNo, u64)) {
        for (block, counts) in &self.blocks {
            for (at, count) in (0..).zip(counts) {
                let ino = InodeNo(block * BLOCK as u64 + at);
                if *count > 0 {
                    visit(ino, self.get(ino));
                }
            }
        }
    }

    fn increment(&mut self, ino: InodeNo) {
        let (block, at) = Counts::place(ino);
        let count = &mut self.blocks.entry(block).or_default()[at];
        match count.checked_add(1) {
            Some(more) => *count = more,
            None => *self.beyond.entry(ino).or_default() += 1,
        }
    }

    /// Subtracts `fewer` from a count, or all of it if it is smaller. Returns the rest; `None` if there was
    /// no count.
    fn decrease(&mut self, ino: InodeNo, fewer: u64) -> Option<u64> {
        let (block, at) = Counts::place(ino);
        let Entry::Occupied(mut counts) = self.blocks.entry(block) else { return None };
        let count = match counts.get()[at] {
            0 => return None,
            u8::MAX => u64::from(u8::MAX) + self.beyond.remove(&ino).unwrap_or(0),
            count => count.into(),
        };
        let left = count.saturating_sub(fewer);
        let beyond = left.saturating_sub(u8::MAX.into());
        if beyond > 0 {
            self.beyond.insert(ino, beyond);
        }
        counts.get_mut()[at] = (left - beyond) as u8;
        if *counts.get() == [0; BLOCK] {
            counts.remove();
        }
        Some(left)
    }
}

#[derive(Default)]
struct Shard {
    counts: Counts,
    /// Inodes without a name that are still in use.
    orphans: HashSet<InodeNo>,
    /// Former ones that are being deleted: their space is not free yet.
    deleting: HashSet<InodeNo>,
    /// When the last orphan lost its name.
    orphaned: Option<Instant>,
}

/// References on inodes. Separate from vnodes, so that a file that is referenced but not in use takes a few
/// bytes.
pub(super) struct References(Vec<Padded<Mutex<Shard>>>);

impl Default for References {
    fn default() -> References {
        let shard = |_| Padded(Mutex::new(Rank::Leaf, Shard::default()));
        References((0..SHARDS).map(shard).collect())
    }
}

impl References {
    /// Approximate memory of the references, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        let bytes = |shard: &Padded<Mutex<Shard>>| {
            let Shard { counts, orphans, .. } = &*shard.lock();
            counts.blocks.capacity() * (BLOCK + 9)
                + counts.beyond.capacity() * 17
                + orphans.capacity() * 9
        };
        self.0.iter().map(bytes).sum::<usize>() as u64
    }

    fn shard(&self, ino: InodeNo) -> &Mutex<Shard> {
        &self.0[Counts::place(ino).0 as usize % SHARDS]
    }

    /// Takes one reference.
    pub(super) fn take(&self, ino: InodeNo) {
        self.shard(ino).lock().counts.increment(ino);
    }

    /// The number of references on an inode.
    pub(super) fn count(&self, ino: InodeNo) -> u64 {
        self.shard(ino).lock().counts.get(ino)
    }

    /// Takes this many references.
    pub(super) fn take_many(&self, ino: InodeNo, references: u64) {
        let mut shard = self.shard(ino).lock();
        (0..references).for_each(|_| shard.counts.increment(ino));
    }

    /// All inodes with references and their counts, in no order.
    pub(super) fn all(&self) -> Vec<(InodeNo, u64)> {
        let mut all = Vec::new();
        for shard in &self.0 {
            shard.lock().counts.for_each(|ino, count| all.push((ino, count)));
        }
        all
    }

    /// The inodes without a name.
    pub(super) fn orphans(&self) -> Vec<InodeNo> {
        self.0
            .iter()
            .flat_map(|shard| shard.lock().orphans.iter().copied().collect::<Vec<_>>())
            .collect()
    }

    /// Releases references; returns true if the inode has no name and no references are left.
    pub(super) fn release(&self, ino: InodeNo, references: u64) -> bool {
        let mut shard = self.shard(ino).lock();
        shard.counts.decrease(ino, references) == Some(0) && shard.orphans.contains(&ino)
    }

    /// Records that an inode has no name. It is an orphan until it gets one or is deleted. Returns true if it
    /// has no references; otherwise the last user learns of it from [`References::release`].
    pub(super) fn orphan(&self, ino: InodeNo) -> bool {
        let mut shard = self.shard(ino).lock();
        shard.orphans.insert(ino);
        let is_used = shard.counts.get(ino) > 0;
        if is_used {
            shard.orphaned = Some(Instant::now());
        }
        !is_used
    }

    /// Waits for the deletion of files that have just lost their last name. The kernel releases them by a
    /// message that may arrive after the call that removed them has returned, and after the next call.
    /// Returns whether to try again. This is the case even if none is left, since their space may only be
    /// waiting for an epoch. Files that are not `wanted` are not waited for.
    pub(super) fn await_deletions(
        &self,
        waiter: &dyn Waiter,
        wanted: impl Fn(InodeNo) -> bool,
    ) -> bool {
        let begun = Instant::now();
        let is_recent = |shard: &Shard, age| shard.orphaned.is_some_and(|at| at.elapsed() <= age);
        let has_recent = |shard: &Padded<Mutex<Shard>>| {
            let orphans: Vec<InodeNo> = {
                let shard = shard.lock();
                let are_recent = is_recent(&shard, LETTING_GO_MAX);
                let all = shard.orphans.iter().chain(&shard.deleting);
                all.copied().filter(|_| are_recent).collect()
            };
            orphans.into_iter().any(&wanted)
        };
        while !lock::has_passed(LETTING_GO_MAX, begun) && self.0.iter().any(has_recent) {
            waiter.about_to_wait();
            lock::sleep(LETTING_GO_POLL);
        }
        self.0.iter().any(|shard| is_recent(&shard.lock(), 2 * LETTING_GO_MAX))
    }

    /// Records that an inode without a name got one.
    pub(super) fn adopted(&self, ino: InodeNo) {
        self.shard(ino).lock().orphans.remove(&ino);
    }

    /// Takes an unreferenced orphan, to delete it; returns true for one caller only, which calls
    /// [`References::deleted`] afterwards.
    pub(super) fn take_unused(&self, ino: InodeNo) -> bool {
        let mut shard = self.shard(ino).lock();
        let is_taken = shard.counts.get(ino) == 0 && shard.orphans.remove(&ino);
        if is_taken {
            shard.deleting.insert(ino);
        }
        is_taken
    }

    /// The space of an orphan that was taken is free, or the deletion failed.
    pub(super) fn deleted(&self, ino: InodeNo) {
        let was_taken = self.shard(ino).lock().deleting.remove(&ino);
        debug_assert!(was_taken, "inode {ino} was not being deleted");
    }

    /// Drops all references and returns the orphans, which can now be deleted.
    pub(super) fn end(&self) -> Vec<InodeNo> {
        let end = |shard: &Padded<Mutex<Shard>>| {
            let mut shard = shard.lock();
            shard.counts = Counts::default();
            shard.orphans.iter().copied().collect::<Vec<_>>()
        };
        self.0.iter().flat_map(end).collect()
    }
}

/// Deletes a file that the preceding change left without a name. That change has been made, so a failure goes
/// to the log: the next check of the volume finds the file.
pub(super) fn delete_unused(volume: &Volume, unused: Option<InodeNo>) {
    let Some(ino) = unused else { return };
    if let Err(error) = volume.delete(ino) {
        tracing::warn!("inode {ino} could not be deleted: {error}");
    }
}

#[cfg(test)]
mod tests;
