//! The cylinder groups of the volume, and the counts of their free space.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};

use foldhash::HashMap;

use super::Found;
use super::group::{Among, Group};
use super::store::GroupStore;
use crate::cache::WriteSet;
use crate::error::{Corruption, Result};
use crate::format::cylinder_group::{CgHeader, bitmap_checksum, clusters_in};
use crate::format::{Layout, LiveLayout, Superblock};
use crate::units::{BlockNo, CgIndex, FragNo, FragRun};

/// All cylinder groups, each read from the device when it is first needed, and the counts of free space.
pub(super) struct Groups {
    store: GroupStore,
    loaded: BTreeMap<CgIndex, Group>,
    /// The number of groups that the device has. The others were unused when the volume was last clean.
    pub made: u32,
    /// Free fragments of the volume, reserved ones included.
    pub free: u64,
    /// Free fragments of groups that are not in memory: the rest of the superblock's count. Negative if that
    /// count is wrong.
    free_elsewhere: i64,
    whole: WholeBlocks,
    /// The number of groups, from the first on, whose clusters are counted.
    clusters_counted: u32,
    /// The number of clusters in those counted groups that are not in memory.
    clusters_elsewhere: u64,
}

/// A lower bound of the free whole blocks.
#[derive(Debug, Default)]
struct WholeBlocks {
    count: u64,
    /// Whether all groups were counted since the last epoch, so that the bound is exact.
    all: bool,
}

impl WholeBlocks {
    /// Records that a run was taken: it breaks at most one block at each end.
    fn taken(&mut self, fragments: u32, per_block: u32) {
        self.count = self.count.saturating_sub(u64::from(fragments / per_block) + 2);
    }
}

impl Groups {
    /// The groups of a clean volume.
    pub fn new(store: GroupStore, superblock: &Superblock) -> Groups {
        let free = superblock.free_fragments.min(store.layout.allocatable_fragments());
        Groups {
            store,
            loaded: BTreeMap::new(),
            made: superblock.cgs_made,
            free,
            free_elsewhere: free as i64,
            whole: WholeBlocks::default(),
            clusters_counted: 0,
            clusters_elsewhere: 0,
        }
    }

    /// The geometry of the volume.
    pub fn layout(&self) -> &LiveLayout {
        &self.store.layout
    }

    /// A group, read from the device when it is first needed, or made if it was never used.
    pub fn get(&mut self, cg: CgIndex) -> Result<&mut Group> {
        if !self.loaded.contains_key(&cg) {
            let group = self.store.load(cg, self.made)?;
            self.free_elsewhere -= i64::from(group.free_count());
            if cg.0 < self.clusters_counted {
                let elsewhere = &mut self.clusters_elsewhere;
                *elsewhere = elsewhere.saturating_sub(group.clusters.into());
            }
            self.loaded.insert(cg, group);
        }
        Ok(self.loaded.get_mut(&cg).expect("it was just inserted"))
    }

    /// The group of a fragment, and the fragment's position in it.
    fn at(&mut self, fragment: FragNo) -> Result<(&mut Group, u32)> {
        let (cg, at) = self.store.layout.cg_position(fragment);
        Ok((self.get(cg)?, at))
    }

    /// The group of a run that a search has found, and the run's position in it.
    fn found(&mut self, run: FragRun) -> (&mut Group, u32) {
        let (cg, at) = self.store.layout.cg_position(run.start);
        (self.loaded.get_mut(&cg).expect("a group that was searched is in memory"), at)
    }

    /// The group, if it is in memory.
    pub fn loaded(&self, cg: CgIndex) -> Option<&Group> {
        self.loaded.get(&cg)
    }

    /// The number of groups that were ever used, on the device or in memory. The others have no bitmap.
    pub fn used(&self) -> u32 {
        let in_memory = self.loaded.keys().next_back().map_or(0, |cg| cg.0 + 1);
        self.made.max(in_memory)
    }

    /// The groups that the device has, or the first if it has none.
    pub fn existing(&self) -> Range<u32> {
        0..self.made.clamp(1, self.store.layout.cgs())
    }

    /// Memory of the bitmaps, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.loaded.values().map(Group::memory_bytes).sum()
    }

    /// The first run of `len` free fragments outside of reservations in a part of a group.
    pub fn find(&mut self, cg: CgIndex, within: Range<u32>, len: u32, align: u32) -> Found {
        let found = self.get(cg)?.find(within.start, within.end, len, align, Among::Unreserved);
        Ok(found.map(|at| self.store.layout.cg_run(cg, at, len)))
    }

    /// The first run of `len` free fragments outside of reservations in a group: from `from` on if possible,
    /// otherwise from `start` on.
    pub fn find_from(&mut self, cg: CgIndex, from: u32, start: u32, len: u32, align: u32) -> Found {
        match self.find(cg, from..u32::MAX, len, align)? {
            None => self.find(cg, start..u32::MAX, len, align),
            found => Ok(found),
        }
    }

    /// The longest run outside of reservations that begins here, if its length is in the range.
    pub fn run_from(&mut self, start: FragNo, len: RangeInclusive<u32>) -> Found {
        if start.0 >= self.store.layout.fragments() {
            return Ok(None);
        }
        let (group, at) = self.at(start)?;
        let free = group.run_at(at, *len.end(), Among::Unreserved);
        Ok(len.contains(&free).then(|| FragRun::new(start, free)))
    }

    /// Whether all of a run that was reserved is free.
    pub fn is_free(&mut self, run: FragRun) -> bool {
        let (group, at) = self.found(run);
        group.run_at(at, run.len, Among::All) == run.len
    }

    /// Reserves a run that a search has found.
    pub fn reserve(&mut self, run: FragRun) {
        let (group, at) = self.found(run);
        group.reserve(at, run.len);
    }

    /// Releases a part of a reserved run, which may be empty.
    pub fn release(&mut self, run: FragRun) {
        if run.len > 0 {
            let (group, at) = self.found(run);
            group.release(at, run.len);
        }
    }

    /// Reserves a whole block of a group: one after `from` if possible.
    pub fn reserve_block(&mut self, cg: CgIndex, from: u32) -> Found {
        let block = self.store.layout.block_fragments();
        let found = self.find_from(cg, from, 0, block, block)?;
        if let Some(run) = found {
            self.reserve(run);
            self.whole.taken(block, block);
        }
        Ok(found)
    }

    /// Takes a run that a search has found into use, and out of its reservation.
    pub fn take(&mut self, run: FragRun) {
        let (group, at) = self.found(run);
        group.take(at, run.len);
        let taken = self.free.min(run.len.into());
        self.free -= taken;
        // The superblock's count may be too low.
        self.free_elsewhere += i64::from(run.len) - taken as i64;
        self.whole.taken(run.len, self.store.layout.block_fragments());
    }

    /// Frees the runs of an epoch.
    pub fn give(&mut self, runs: &[FragRun]) -> Result<()> {
        for run in runs {
            let (group, at) = self.at(run.start)?;
            let before = group.free_count();
            let was_used = group.give(at, run.len);
            let given = group.free_count() - before;
            self.free += u64::from(given);
            if !was_used {
                let cg = self.store.layout.cg_of_fragment(run.start);
                let what = "what a file gave back was free already";
                return Err(Corruption::CgHeader { cg, what }.into());
            }
        }
        self.whole = WholeBlocks::default();
        Ok(())
    }

    /// Whether this many whole blocks are free, reservations not counted. They are counted at
    /// most once per epoch, and only as far as necessary.
    pub fn has_whole_blocks(&mut self, wanted: u64) -> Result<bool> {
        if self.whole.count >= wanted {
            return Ok(true);
        }
        if self.whole.all {
            return Ok(false);
        }
        // Groups that were never used come first, since they need not be read.
        let unmade = (self.made..self.store.layout.cgs()).map(CgIndex);
        let mut count = 0;
        for cg in unmade.filter(|cg| !self.loaded.contains_key(cg)) {
            count += never_used(&self.store.layout, cg);
            if count >= 2 * wanted {
                break;
            }
        }
        let known: Vec<CgIndex> = self.loaded.keys().copied().collect();
        let is_new = |cg: &CgIndex| known.binary_search(cg).is_err();
        let others = (0..self.made).map(CgIndex).filter(is_new);
        let block = self.store.layout.block_fragments();
        for cg in known.iter().copied().chain(others) {
            if count >= 2 * wanted {
                break;
            }
            count += self.get(cg)?.whole_blocks(block);
        }
        self.whole = WholeBlocks { count, all: count < 2 * wanted };
        Ok(count >= wanted)
    }

    /// The end of all space that was ever used, from the last group that was made.
    pub fn end_of_used(&mut self) -> Result<BlockNo> {
        let last = CgIndex(self.existing().end - 1);
        let end = self.get(last)?.end_of_used();
        let layout = &self.store.layout;
        Ok(BlockNo(layout.cg_run(last, end, 0).start.0.div_ceil(layout.block_fragments().into())))
    }

    /// The fragments of a block that are in use, as bits from the lowest on.
    pub fn used_fragments(&mut self, block: BlockNo) -> Result<u64> {
        let fragments = self.store.layout.block_fragments();
        let (group, at) = self.at(self.store.layout.block_start(block))?;
        let used = (0..fragments).filter(|i| group.any_used(at + i, 1));
        Ok(used.fold(0, |used, i| used | 1 << i))
    }

    /// Makes the volume `blocks` blocks long, for all users of its layout; the new blocks are free.
    pub fn grow(&mut self, blocks: u64) -> Result<()> {
        let old: Layout = *self.store.layout;
        let last = CgIndex(old.cgs() - 1);
        if last.0 < self.made {
            self.get(last)?;
        }
        self.store.layout.grow(blocks);
        // A group that was never used is made for the size that the volume has then.
        let mut gained_here = 0;
        if let Some(group) = self.loaded.get_mut(&last) {
            let before = group.free_count();
            group.grow(last, &old, &self.store.layout);
            gained_here = group.free_count() - before;
        }
        let gained = self.store.layout.allocatable_fragments() - old.allocatable_fragments();
        self.free += gained;
        self.free_elsewhere += gained as i64 - i64::from(gained_here);
        self.whole = WholeBlocks::default();
        Ok(())
    }

    /// The references to the cluster that begins here.
    pub fn references(&mut self, start: FragNo) -> Result<u8> {
        let block = self.store.layout.block_fragments();
        let (group, at) = self.at(start)?;
        Ok(group.references(at / block))
    }

    /// Sets the count of references to a cluster whose place or count was found before.
    pub fn set_references(&mut self, run: FragRun, count: u8) {
        let block = self.store.layout.block_fragments();
        let (group, at) = self.found(run);
        group.set_references(at / block, count);
    }

    /// The number of clusters on the volume, or the first group whose header must be read to count them.
    pub fn clusters(&mut self) -> std::result::Result<u64, CgIndex> {
        let is_loaded = |cg| self.loaded.contains_key(&CgIndex(cg));
        let uncounted = (self.clusters_counted..self.made).find(|cg| !is_loaded(*cg));
        self.clusters_counted = uncounted.unwrap_or(self.made);
        let here = self.loaded.values().map(|group| u64::from(group.clusters));
        let count = self.clusters_elsewhere + here.sum::<u64>();
        uncounted.map_or(Ok(count), |cg| Err(CgIndex(cg)))
    }

    /// Adds the clusters in the header of that group, unless it was read meanwhile.
    pub fn count_clusters(&mut self, cg: CgIndex, clusters: u32) {
        if self.clusters_counted == cg.0 && !self.loaded.contains_key(&cg) {
            self.clusters_counted += 1;
            self.clusters_elsewhere += u64::from(clusters);
        }
    }

    /// The parts of these runs that were in use at the checkpoint, and are not in the intent log yet.
    pub fn log_freed<'a>(
        &mut self,
        runs: impl Iterator<Item = &'a FragRun>,
    ) -> Result<Vec<FragRun>> {
        let mut freed = Vec::new();
        for run in runs {
            let (cg, at) = self.store.layout.cg_position(run.start);
            let group = self.get(cg)?;
            let parts = group.log_freed(at, run.len);
            group.dirty |= !parts.is_empty();
            let layout = &self.store.layout;
            freed.extend(parts.into_iter().map(|(start, len)| layout.cg_run(cg, start, len)));
        }
        Ok(freed)
    }

    /// Counts the group of a fragment as changed, so that the next checkpoint writes it.
    pub fn mark_dirty(&mut self, fragment: FragNo) -> Result<()> {
        self.at(fragment)?.0.dirty = true;
        Ok(())
    }

    /// Whether bitmaps in memory differ from the device.
    pub fn have_changed(&self) -> bool {
        self.loaded.values().any(|group| group.dirty)
    }

    /// The groups that changed since the last call, with the fragments that were free at the checkpoint.
    pub fn log_changed(&mut self) -> Vec<(CgIndex, u32)> {
        let changed = self.loaded.iter_mut().filter(|(_, group)| group.dirty && !group.marked);
        let mark = |(cg, group): (&CgIndex, &mut Group)| {
            group.marked = true;
            (*cg, group.free_before)
        };
        changed.map(mark).collect()
    }

    /// Adds the changed groups to the writes of an epoch, and their counts to the superblock. The runs of
    /// `also_free` count as free; the clusters in `references` have other references than in memory.
    pub fn save<'a>(
        &mut self,
        writes: &mut WriteSet,
        superblock: &mut Superblock,
        also_free: impl Iterator<Item = &'a FragRun>,
        references: &HashMap<FragNo, u8>,
    ) -> Result<()> {
        let per_block = self.store.layout.block_fragments();
        let mut before: HashMap<CgIndex, Vec<(u32, u8)>> = HashMap::default();
        for (start, count) in references {
            let (cg, at) = self.store.layout.cg_position(*start);
            before.entry(cg).or_default().push((at / per_block, *count));
            self.get(cg)?.dirty = true;
        }
        let mut freed: HashMap<CgIndex, Vec<(u32, u32)>> = HashMap::default();
        for run in also_free {
            let (cg, at) = self.store.layout.cg_position(run.start);
            freed.entry(cg).or_default().push((at, run.len));
            self.get(cg)?.dirty = true;
        }
        // Groups are made in order, without gaps.
        let used = self.used();
        for cg in (self.made..used).map(CgIndex) {
            self.get(cg)?;
        }
        self.made = used;
        let (bitmap_bytes, count_bytes) =
            (self.store.bitmap_bytes(), self.store.layout.count_bytes());
        superblock.free_fragments = self.free;
        superblock.cgs_made = self.made;
        for (cg, group) in self.loaded.iter_mut().filter(|(_, group)| group.dirty) {
            let runs = freed.get(cg).map_or(&[][..], |runs| runs);
            let (bitmap, free_fragments) = group.save(bitmap_bytes, runs);
            superblock.free_fragments += u64::from(free_fragments - group.free_count());
            let before = before.get(cg).map_or(&[][..], |before| before);
            let counts = group.save_references(count_bytes, before);
            let header = CgHeader {
                cg: *cg,
                clusters: clusters_in(&counts),
                counts_checksum: bitmap_checksum(&counts),
                free_fragments,
                rotor: group.rotor,
                bitmap_checksum: bitmap_checksum(&bitmap),
                generation: superblock.generation,
            };
            self.store.write(writes, &header, &bitmap, &counts);
        }
        Ok(())
    }

    /// Fails if the counts contradict each other.
    pub fn check(&self) {
        let loaded: u64 = self.loaded.values().map(|group| u64::from(group.free_count())).sum();
        let sum = self.free_elsewhere + loaded as i64;
        assert_eq!(self.free as i64, sum, "the free fragments are the sum of the groups");
    }
}

/// The free blocks of a group that was never used, at least.
fn never_used(layout: &Layout, cg: CgIndex) -> u64 {
    // The volume ends with two more reserved blocks.
    u64::from(layout.cg_len_blocks(cg)).saturating_sub(u64::from(layout.cg_reserved_blocks(cg)) + 2)
}
