//! Who uses an inode: references by number, and inodes whose last name is gone.

use foldhash::{HashMap, HashSet};
use parking_lot::Mutex;

use crate::units::InodeNo;

const SHARDS: usize = 64;

#[derive(Default)]
struct Shard {
    counts: HashMap<InodeNo, u64>,
    /// Inodes without a name that are still in use.
    orphans: HashSet<InodeNo>,
}

/// References on inodes. Kept apart from vnodes, so that a file that is known but not in use takes
/// a few bytes.
pub(super) struct References(Vec<Mutex<Shard>>);

impl Default for References {
    fn default() -> References {
        References((0..SHARDS).map(|_| Mutex::default()).collect())
    }
}

impl References {
    fn shard(&self, ino: InodeNo) -> &Mutex<Shard> {
        &self.0[ino.0 as usize % SHARDS]
    }

    /// Takes one reference.
    pub(super) fn take(&self, ino: InodeNo) {
        *self.shard(ino).lock().counts.entry(ino).or_insert(0) += 1;
    }

    /// Gives references back; true if the inode has no name and none is left.
    pub(super) fn release(&self, ino: InodeNo, references: u64) -> bool {
        let mut shard = self.shard(ino).lock();
        let Some(count) = shard.counts.get_mut(&ino) else { return false };
        *count = count.saturating_sub(references);
        if *count > 0 {
            return false;
        }
        shard.counts.remove(&ino);
        shard.orphans.contains(&ino)
    }

    /// Notes that an inode has no name. It is an orphan until it gets one or is deleted.
    pub(super) fn orphan(&self, ino: InodeNo) {
        self.shard(ino).lock().orphans.insert(ino);
    }

    /// Notes that an inode without a name got one.
    pub(super) fn adopted(&self, ino: InodeNo) {
        self.shard(ino).lock().orphans.remove(&ino);
    }

    /// Takes an orphan that nobody uses, to delete it: true for one caller only.
    pub(super) fn take_unused(&self, ino: InodeNo) -> bool {
        let mut shard = self.shard(ino).lock();
        !shard.counts.contains_key(&ino) && shard.orphans.remove(&ino)
    }

    /// Ends all use: the inodes without a name, which nobody uses any more.
    pub(super) fn end(&self) -> Vec<InodeNo> {
        let end = |shard: &Mutex<Shard>| {
            let mut shard = shard.lock();
            shard.counts.clear();
            shard.orphans.iter().copied().collect::<Vec<_>>()
        };
        self.0.iter().flat_map(end).collect()
    }
}
