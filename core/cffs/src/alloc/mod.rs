//! The allocator: cylinder groups, the hot spot, and the co-location policies.
//!
//! Offers [`Allocator::place`], which finds fragments for a file near those of its key;
//! [`Allocator::promise`], which guarantees space for the write-back of a change in memory; and
//! [`Allocator::free`], whose fragments become allocatable when the epoch is on the device. Stands on `cache`
//! and `format`. Knows no inodes: a file is a [`Request`] here.
//!
//! A file of up to 2 MiB is placed, in this order (DESIGN: placement at write-back):
//!
//! 1. in a hole of its key's *home extents*, if the key has grown: the segments of the key's other files, and
//!    its earlier reservations;
//! 2. in the reservation of its key: a run that was reserved when the key outgrew its place;
//! 3. in a new reservation, if the key has grown: 16 times as long as the last, right after it or near it.
//!    Otherwise, or if the key's last files end where it continues, in the *shared reservation* of all keys
//!    at the hot spot, so that files that are made together are contiguous. Files for an fsync go there too,
//!    if they replace as many fragments and the key has no reservation;
//! 4. anywhere: reservations are halved again and again, and files may come in pieces.
//!
//! A directory has grown once files of it were placed in an earlier epoch. A key of files' own has grown once
//! its files fill a segment, and its runs are in proportion to them (module `own_keys`).
//!
//! Holes come first, although they scatter files that are made together: a reader of the directory reads all
//! home extents in device order (`readahead`), and denser extents take fewer requests.
//!
//! A large file continues where it ends, or goes into a long run at the hot spot. Metadata takes whole
//! blocks, of which some are reserved, so that write-back never fails for lack of one. Sectors go into
//! *zones* (module `zone`), which files use only when no space is left elsewhere. The first sectors of all
//! directories share one reservation there; a grown directory has its own in the same zone. So the names of a
//! tree are read and changed in few requests.
//!
//! A *promise* (module `promise`) is a count: write-back will find that much space somewhere. A *reservation*
//! is a place: a run that others use only when no space is left elsewhere.
//!
//! The allocator's lock is a leaf in the lock order: it calls no layer above it. The caller finds the places
//! of a key's other files beforehand and passes them in ([`Allocator::note_home`]).

mod check;
mod clusters;
mod conventional;
mod free_space;
mod group;
mod grow;
mod home;
mod moving;
mod own_keys;
mod owner;
mod place;
mod promise;
mod store;
mod zone;

use std::collections::BTreeMap;
use std::sync::Arc;

use clusters::Turnover;
pub use clusters::{ChangedCluster, Clusters};
use foldhash::HashMap;
pub use group::Group;
use home::HomeExtents;
pub use own_keys::KeySizes;
pub use owner::Owner;
pub use place::{Kind, Request};
pub use promise::Spender;
use promise::WholeBlocks;
pub use store::{Changes, NamelessSpace};

use crate::cache::BufferCache;
use crate::error::{Corruption, Result};
use crate::format::superblock::Policy;
use crate::format::{LiveLayout, Superblock};
use crate::lock::{Mutex, Rank};
use crate::tuning::Placing;
use crate::units::{BlockNo, CgIndex, Class, FragNo, FragRun};

/// A run that is reserved for an owner and used from its beginning on.
#[derive(Clone, Copy, Debug, Default)]
struct Reservation {
    next: FragNo,
    end: FragNo,
    /// Its original length, in fragments.
    made: u32,
    /// When it was last used: the oldest is given up first.
    used: u64,
}

struct State {
    groups: BTreeMap<CgIndex, Group>,
    /// Free fragments of the volume, reserved ones included.
    free: u64,
    /// Free fragments of groups that are not in memory: the rest of the superblock's count. Negative if that
    /// count is wrong.
    free_elsewhere: i64,
    /// Fragments promised to changes that are still in memory.
    promised: u64,
    /// Fragments that are kept for the users of root's reserve.
    root_reserve: u64,
    /// Whole blocks promised to metadata that is still in memory.
    promised_blocks: u64,
    /// Whole blocks promised to extent trees and attributes that may not fit into the sector with their
    /// inode.
    spill_blocks: u64,
    whole: WholeBlocks,
    /// Freed in the open epoch.
    freed: Vec<FragRun>,
    /// Freed in the epoch that is being written.
    freeing: Vec<FragRun>,
    /// References to clusters that were added and removed in the open epoch.
    references: BTreeMap<FragRun, Turnover>,
    /// The references at the last clean point to clusters whose references have changed since.
    references_before: HashMap<FragNo, u8>,
    /// The number of groups, from the first on, whose clusters are counted.
    cgs_counted: u32,
    /// The number of clusters in those counted groups that are not in memory.
    clusters_elsewhere: u64,
    /// Clusters that the intent log does not list yet.
    new_clusters: Vec<FragRun>,
    /// Reserved for compaction.
    compaction_run: FragRun,
    reservations: HashMap<(Owner, Class), Reservation>,
    homes: HashMap<Owner, HomeExtents>,
    /// Blocks reserved for metadata.
    pool: Vec<BlockNo>,
    hot: CgIndex,
    /// Whether files may use the zones of sectors, since no other space was left.
    zones_open: bool,
    cgs_made: u32,
    clock: u64,
}

/// Finds, reserves and frees space.
pub struct Allocator {
    cache: Arc<BufferCache>,
    layout: LiveLayout,
    checksum: crate::format::Checksum,
    policy: Policy,
    placing: Placing,
    /// The sizes of keys of files' own.
    pub key_sizes: KeySizes,
    state: Mutex<State>,
}

/// The volume's space, in fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Fragments of a volume of this size that can be allocated.
    pub total: u64,
    /// Free fragments: freed but not yet allocatable ones count as free, promised ones as used.
    pub free: u64,
    /// Free fragments for files of any user: all but the metadata pool and root's reserve.
    pub available: u64,
}

impl Allocator {
    /// The allocator of a clean volume.
    pub fn new(cache: Arc<BufferCache>, superblock: &Superblock) -> Allocator {
        let layout = cache.layout().clone();
        let placing = cache.tuning().placing;
        let free = superblock.free_fragments.min(layout.allocatable_fragments());
        let key_sizes = KeySizes::new(layout.segment_fragments(), placing.key_sizes_max);
        Allocator {
            cache,
            layout,
            checksum: superblock.checksum(),
            policy: superblock.policy,
            placing,
            key_sizes,
            state: Mutex::new(
                Rank::Allocator,
                State {
                    groups: BTreeMap::new(),
                    free,
                    free_elsewhere: free as i64,
                    promised: 0,
                    root_reserve: superblock.reserve.fragments,
                    promised_blocks: 0,
                    spill_blocks: 0,
                    whole: WholeBlocks::default(),
                    freed: Vec::new(),
                    freeing: Vec::new(),
                    references: BTreeMap::new(),
                    references_before: HashMap::default(),
                    cgs_counted: 0,
                    clusters_elsewhere: 0,
                    new_clusters: Vec::new(),
                    compaction_run: FragRun::default(),
                    reservations: HashMap::default(),
                    homes: HashMap::default(),
                    pool: Vec::new(),
                    hot: CgIndex(superblock.cg_rotor),
                    zones_open: false,
                    cgs_made: superblock.cgs_made,
                    clock: 0,
                },
            ),
        }
    }

    /// The number of blocks reserved for metadata: enough for one epoch, or a share of a tiny volume.
    fn pool_blocks(&self) -> usize {
        let (least, most) = self.placing.pool_blocks;
        (self.layout.blocks / self.placing.pool_part).clamp(least, most) as usize
    }

    fn pool_fragments(&self) -> u64 {
        self.pool_blocks() as u64 * u64::from(self.layout.block_fragments())
    }

    /// The present space of the volume.
    pub fn space(&self) -> Space {
        let state = self.lock();
        let pending = |runs: &[FragRun]| runs.iter().map(|run| u64::from(run.len)).sum::<u64>();
        let free = (state.free + pending(&state.freed) + pending(&state.freeing))
            .saturating_sub(state.promised);
        let available = free.saturating_sub(
            self.pool_fragments() + Clusters::of(self).reserve_fragments() + state.root_reserve,
        );
        Space { total: self.layout.allocatable_fragments(), free, available }
    }

    /// Frees a run. It becomes allocatable when the epoch that no longer needs it is on the
    /// device.
    pub fn free(&self, run: FragRun) {
        if run.len > 0 {
            self.lock().freed.push(run);
        }
    }

    /// The open epoch goes to the device: the fragments freed until now belong to it.
    ///
    /// # Errors
    ///
    /// If the counts of references to clusters cannot be read, or are wrong.
    pub fn epoch_started(&self) -> Result<()> {
        let mut state = self.lock();
        Clusters::of(self).count(&mut state)?;
        let freed = std::mem::take(&mut state.freed);
        state.freeing.extend(freed);
        Ok(())
    }

    /// The epoch is on the device: the runs that it freed become allocatable, and are returned.
    pub fn epoch_done(&self) -> Result<Vec<FragRun>> {
        let mut state = self.lock();
        let freed = std::mem::take(&mut state.freeing);
        for run in &freed {
            let cg = self.layout.cg_of_fragment(run.start);
            let at = self.in_group(cg, run.start);
            let group = self.group(&mut state, cg)?;
            let before = group.free_count();
            let was_used = group.give(at, run.len);
            let given = group.free_count() - before;
            state.free += u64::from(given);
            if !was_used {
                let what = "what a file gave back was free already";
                return Err(Corruption::CgHeader { cg, what }.into());
            }
        }
        state.whole = WholeBlocks::default();
        state.homes.values_mut().for_each(|home| home.no_hole = None);
        Ok(freed)
    }

    /// Whether anything waits for the epoch to become allocatable.
    pub fn has_freed(&self) -> bool {
        let state = self.lock();
        !state.freed.is_empty() || !state.freeing.is_empty() || !state.references.is_empty()
    }

    /// The fragments of a block that are in use, as bits from the lowest on. Freed fragments that are not yet
    /// allocatable count as used.
    pub fn used_fragments(&self, block: BlockNo) -> u64 {
        let mut state = self.lock();
        let cg = self.layout.cg_of(block);
        let at = self.in_group(cg, self.layout.block_start(block));
        let fragments = self.layout.block_fragments();
        // If the group cannot be read, keeping all of the old block is safe.
        self.group(&mut state, cg).map_or(u64::MAX, |group| {
            (0..fragments).filter(|i| group.any_used(at + i, 1)).fold(0, |used, i| used | 1 << i)
        })
    }

    fn in_group(&self, cg: CgIndex, fragment: FragNo) -> u32 {
        (fragment.0 - self.layout.block_start(self.layout.cg_start(cg)).0) as u32
    }

    fn of_group(&self, cg: CgIndex, at: u32) -> FragNo {
        FragNo(self.layout.block_start(self.layout.cg_start(cg)).0 + u64::from(at))
    }
}

#[cfg(test)]
mod tests;
