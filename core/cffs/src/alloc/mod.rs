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
//! Under the allocator's lock are [`FreeSpace`], where places are found; in it [`Groups`], the bitmaps and
//! their counts; and next to it [`Promises`] and the [`References`] to clusters.
//!
//! The allocator's lock is a leaf in the lock order: it calls no layer above it. The caller finds the places
//! of a key's other files beforehand and passes them in ([`Allocator::note_home`]).

mod check;
mod clusters;
mod conventional;
mod group;
mod groups;
mod home;
mod own_keys;
mod place;
mod promise;
mod request;
mod reservation;
mod reserve;
mod sectors;
mod store;
mod zone;

use std::sync::Arc;

pub use clusters::{ChangedCluster, Clusters};
use clusters::{CompactionRun, References};
use group::{Among, Group};
use groups::Groups;
pub use own_keys::KeySizes;
use place::FreeSpace;
use promise::Promises;
pub use promise::Spender;
pub use request::{Kind, Owner, Request};
use store::GroupStore;

use crate::cache::{BufferCache, WriteSet};
use crate::error::{Error, Result};
use crate::format::Superblock;
use crate::lock::{Mutex, Rank};
use crate::units::{BlockNo, CgIndex, Class, FragRun};

/// The result of a search for a run.
type Found = Result<Option<FragRun>>;

/// The parts of the allocator that its lock protects.
struct State {
    space: FreeSpace,
    promises: Promises,
    references: References,
    compaction_run: CompactionRun,
    /// Freed in the open epoch.
    freed: Vec<FragRun>,
    /// Freed in the epoch that is being written.
    freeing: Vec<FragRun>,
}

/// Finds, reserves and frees space, for all threads: each call locks the state once.
pub struct Allocator {
    store: GroupStore,
    /// The sizes of keys of files' own.
    pub key_sizes: Arc<KeySizes>,
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

/// Changes of space that the intent log must record.
#[derive(Debug, Default)]
pub struct Changes {
    /// Groups that changed, with the fragments that were free at the checkpoint.
    pub groups: Vec<(CgIndex, u32)>,
    /// Runs that were in use at the checkpoint and become free.
    pub freed: Vec<FragRun>,
    /// Clusters whose references changed.
    pub clusters: Vec<ChangedCluster>,
}

/// The space of files without a name. Nothing on the device points to it.
#[derive(Debug, Default)]
pub struct NamelessSpace {
    /// Runs of their own.
    pub runs: Vec<FragRun>,
    /// The clusters that they refer to, once for each extent.
    pub clusters: Vec<FragRun>,
}

impl Allocator {
    /// The allocator of a clean volume.
    pub fn new(cache: Arc<BufferCache>, superblock: &Superblock) -> Allocator {
        let tuning = *cache.tuning();
        let store = GroupStore::new(cache, superblock.checksum());
        let layout = store.layout.clone();
        let key_sizes =
            Arc::new(KeySizes::new(layout.segment_fragments(), tuning.placing.key_sizes_max));
        let groups = Groups::new(store.clone(), superblock);
        let state = State {
            space: FreeSpace::new(groups, tuning.placing, key_sizes.clone(), superblock),
            promises: Promises::new(layout, tuning, superblock),
            references: References::default(),
            compaction_run: CompactionRun::default(),
            freed: Vec::new(),
            freeing: Vec::new(),
        };
        Allocator { store, key_sizes, state: Mutex::new(Rank::Allocator, state) }
    }

    /// The present space of the volume.
    pub fn space(&self) -> Space {
        let State { space, promises, freed, freeing, .. } = &*self.lock();
        let pending = freed.iter().chain(freeing).map(|run| u64::from(run.len)).sum::<u64>();
        let free = (space.groups.free + pending).saturating_sub(promises.fragments);
        let available = free.saturating_sub(promises.kept_from(Spender::Anyone));
        Space { total: self.store.layout.allocatable_fragments(), free, available }
    }

    /// Whether the home extents of a key that has grown are known.
    pub fn knows_home(&self, owner: Owner) -> bool {
        self.lock().space.homes.knows(owner)
    }

    /// Records the segments of a grown key's files, unless they are known; holes in them are for its next
    /// files. Finding the segments takes locks that rank above the allocator's, so the caller finds them
    /// before it asks for a place.
    pub fn note_home(&self, owner: Owner, segments: &[u64]) {
        self.lock().space.homes.note(owner, segments);
    }

    /// Finds fragments and marks them as used. Except for metadata, the run may be shorter than the request;
    /// the caller then asks again for the rest.
    pub fn place(&self, request: &Request) -> Result<FragRun> {
        let State { space, promises, .. } = &mut *self.lock();
        space.reservations.clock += 1;
        let is_metadata = request.kind == Kind::Metadata;
        let mut run = None;
        // All free space outside the pool may be promised to data.
        if is_metadata && !promises.can_spare_block(space.groups.free) {
            run = promises.take_block();
        }
        if run.is_none() {
            run = space.find(request)?;
        }
        if run.is_none() && is_metadata {
            run = promises.take_block();
        }
        let run = run.ok_or(Error::NoSpace)?;
        space.take(request, run)?;
        Ok(run)
    }

    /// Frees a run. It becomes allocatable when the epoch that no longer needs it is on the
    /// device.
    pub fn free(&self, run: FragRun) {
        if run.len > 0 {
            self.lock().freed.push(run);
        }
    }

    /// Reserves a run of `len` fragments for files that are moved together, after the last ones if there is
    /// room. Returns false if no run is that long; then the files are not moved.
    pub fn reserve_moved(&self, len: u32) -> Result<bool> {
        self.lock().space.reserve_moved(len)
    }

    /// Forgets the places of a key's files, which were moved, or ends moving. The key's size stays.
    pub fn forget(&self, owner: Owner) {
        let space = &mut self.lock().space;
        space.homes.forget(owner);
        space.end_reservation((owner, Class::Files));
    }

    /// The fragments of a block that are in use, as bits from the lowest on. Freed fragments that are not yet
    /// allocatable count as used.
    pub fn used_fragments(&self, block: BlockNo) -> u64 {
        // If the group cannot be read, keeping all of the old block is safe.
        self.lock().space.groups.used_fragments(block).unwrap_or(u64::MAX)
    }

    /// The open epoch goes to the device: the fragments freed until now belong to it.
    ///
    /// # Errors
    ///
    /// If the counts of references to clusters cannot be read, or are wrong.
    pub fn epoch_started(&self) -> Result<()> {
        let State { space, references, freed, freeing, .. } = &mut *self.lock();
        references.count(&mut space.groups, freed)?;
        freeing.append(freed);
        Ok(())
    }

    /// The epoch is on the device: the runs that it freed become allocatable, and are returned.
    pub fn epoch_done(&self) -> Result<Vec<FragRun>> {
        let State { space, freeing, .. } = &mut *self.lock();
        let freed = std::mem::take(freeing);
        space.groups.give(&freed)?;
        space.homes.epoch_done();
        Ok(freed)
    }

    /// Whether anything waits for the epoch to become allocatable.
    pub fn has_freed(&self) -> bool {
        let State { references, freed, freeing, .. } = &*self.lock();
        !freed.is_empty() || !freeing.is_empty() || references.have_changed()
    }

    /// Takes the changes of space for the intent log: groups that changed since the last call, and runs that
    /// were in use at the checkpoint and are freed by the epoch that has started, or belong to files that
    /// lost their last name; and the clusters that are new, or in `touched`. Call only while no change is in
    /// progress.
    pub fn take_changes(&self, nameless: &[FragRun], touched: &[FragRun]) -> Result<Changes> {
        let State { space, references, freeing, .. } = &mut *self.lock();
        let freed = space.groups.log_freed(freeing.iter().chain(nameless))?;
        let clusters = references.take_changed(&mut space.groups, touched)?;
        Ok(Changes { groups: space.groups.log_changed(), freed, clusters })
    }

    /// Whether bitmaps in memory differ from the device.
    pub fn has_changed_groups(&self) -> bool {
        self.lock().space.groups.have_changed()
    }

    /// Adds the changed groups to the writes of an epoch, and their counts to the superblock. The runs that
    /// the epoch frees count as free, and so does the space of files without a name; the references of
    /// such files to clusters do not count. Call with the gate closed.
    pub fn save(
        &self,
        writes: &mut WriteSet,
        superblock: &mut Superblock,
        nameless: &NamelessSpace,
    ) -> Result<()> {
        let State { space, references, freeing, .. } = &mut *self.lock();
        let unreferenced = references.begin_generation(&mut space.groups, &nameless.clusters)?;
        let also_free = freeing.iter().chain(&nameless.runs).chain(&unreferenced);
        space.groups.save(writes, superblock, also_free, &references.before)?;
        superblock.cg_rotor = space.hot.0;
        Ok(())
    }

    /// Makes the volume `blocks` blocks long, for all users of its layout; the new blocks are
    /// free. The caller ensures that no change is under way and no contents wait to be placed.
    pub fn grow(&self, blocks: u64) -> Result<()> {
        self.lock().space.groups.grow(blocks)
    }

    /// The number of groups that the device has. The others were unused when the volume was last clean.
    pub fn groups_made(&self) -> u32 {
        self.lock().space.groups.made
    }

    /// The number of groups that were ever used, on the device or in memory. The others have no bitmap.
    pub fn groups_used(&self) -> u32 {
        self.lock().space.groups.used()
    }

    /// Memory of the bitmaps, in bytes.
    pub fn bitmap_bytes(&self) -> u64 {
        self.lock().space.groups.memory_bytes()
    }

    /// The end of all space that was ever used, from the last group that was made.
    pub fn end_of_used(&self) -> Result<BlockNo> {
        self.lock().space.groups.end_of_used()
    }

    /// Reads a group's header and bitmap from the device and verifies their checksums.
    pub fn verify_group(&self, cg: CgIndex) -> Result<()> {
        self.store.read(cg).map(drop)
    }

    /// Returns up to `max` runs of free whole blocks within a run, which is in one group.
    /// Freed fragments that are not allocatable yet do not count. A group that no allocation has
    /// needed so far is read for this call only and not kept, so going through a large volume
    /// takes no memory.
    pub fn free_blocks(&self, within: FragRun, max: usize) -> Result<Vec<FragRun>> {
        let layout = &self.store.layout;
        let block = layout.block_fragments();
        let (cg, from) = layout.cg_position(within.start);
        let free_in = |group: &Group| {
            let runs = group.runs(from..from + within.len, block, block, Among::All);
            runs.take(max).map(|(at, len)| layout.cg_run(cg, at, len)).collect()
        };
        let state = self.lock();
        if let Some(group) = state.space.groups.loaded(cg) {
            return Ok(free_in(group));
        }
        let made = state.space.groups.made;
        drop(state);
        Ok(free_in(&self.store.load(cg, made)?))
    }
}

#[cfg(test)]
mod tests;
