//! Reading cylinder groups from the device, and writing them back.

use std::collections::HashMap;
use std::sync::Arc;

use super::group::Group;
use super::{Allocator, ChangedCluster, Clusters, State};
use crate::cache::{Block, Phase, WriteSet};
use crate::error::{Corruption, Result};
use crate::format::Superblock;
use crate::format::cylinder_group::{CgHeader, bitmap_checksum, clusters_in};
use crate::units::{BlockNo, CgIndex, FragRun};

/// Changes of space that the intent log must record.
#[derive(Debug, Default)]
pub struct Changes {
    /// Groups that changed, with the fragments that were free at the clean point.
    pub groups: Vec<(CgIndex, u32)>,
    /// Runs that were in use at the clean point and become free.
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
    /// The group, read from the device when it is first needed, or made if it was never used.
    pub(super) fn group<'a>(&self, state: &'a mut State, cg: CgIndex) -> Result<&'a mut Group> {
        if !state.groups.contains_key(&cg) {
            let group = if cg.0 < state.cgs_made {
                self.read_group(cg)?
            } else {
                Group::unused(&self.layout, cg)
            };
            state.free_elsewhere -= i64::from(group.free_count());
            if cg.0 < state.cgs_counted {
                let elsewhere = &mut state.clusters_elsewhere;
                *elsewhere = elsewhere.saturating_sub(group.clusters.into());
            }
            state.groups.insert(cg, group);
        }
        Ok(state.groups.get_mut(&cg).expect("it was just inserted"))
    }

    /// The number of groups that the device has. The others were unused when the volume was last clean.
    pub fn groups_made(&self) -> u32 {
        self.lock().cgs_made
    }

    /// Memory of the bitmaps, in bytes.
    pub fn bitmap_bytes(&self) -> u64 {
        self.lock().groups.values().map(Group::memory_bytes).sum()
    }

    /// Reads a group's header and bitmap from the device and verifies their checksums.
    pub fn verify_group(&self, cg: CgIndex) -> Result<()> {
        self.read_group(cg).map(drop)
    }

    pub(super) fn read_group(&self, cg: CgIndex) -> Result<Group> {
        let block_bytes = self.layout.block_bytes as usize;
        let bitmap_bytes = self.layout.bitmap_blocks() as usize * block_bytes;
        let count_bytes = self.layout.count_bytes();
        let mut bytes = vec![0; block_bytes + bitmap_bytes + count_bytes];
        self.cache.read_uncached(self.layout.cg_header(cg), &mut bytes)?;
        let (header, rest) = bytes.split_at(block_bytes);
        let (bitmap, counts) = rest.split_at(bitmap_bytes);
        let header = CgHeader::decode(header, cg, self.checksum)?;
        if bitmap_checksum(bitmap) != header.bitmap_checksum {
            return Err(Corruption::CgBitmap { cg }.into());
        }
        let mut group = Group::from_bitmap(&self.layout, cg, bitmap, header.rotor);
        if bitmap_checksum(counts) != header.counts_checksum {
            let what = "checksum mismatch of the counts of references";
            return Err(Corruption::CgHeader { cg, what }.into());
        }
        group.load_references(counts);
        if group.free_count() != header.free_fragments {
            return Err(Corruption::CgHeader { cg, what: "wrong count of free fragments" }.into());
        }
        Ok(group)
    }

    /// Takes the changes of space for the intent log: groups that changed since the last call, and runs that
    /// were in use at the clean point and are freed by the epoch that has started, or belong to files that
    /// lost their last name; and the clusters that are new, or in `touched`. Call only while no change is in
    /// progress.
    pub fn take_changes(&self, nameless: &[FragRun], touched: &[FragRun]) -> Result<Changes> {
        let mut state = self.lock();
        let runs: Vec<FragRun> = state.freeing.iter().chain(nameless).copied().collect();
        let mut freed = Vec::new();
        for run in runs {
            let cg = self.layout.cg_of_fragment(run.start);
            let at = self.in_group(cg, run.start);
            let group = self.group(&mut state, cg)?;
            let parts = group.log_freed(at, run.len);
            group.dirty |= !parts.is_empty();
            let run = |(start, len)| FragRun::new(self.of_group(cg, start), len);
            freed.extend(parts.into_iter().map(run));
        }
        let clusters = Clusters::of(self).take_changed(&mut state, touched)?;
        let changed = state.groups.iter_mut().filter(|(_, group)| group.dirty && !group.marked);
        let mark = |(cg, group): (&CgIndex, &mut Group)| {
            group.marked = true;
            (*cg, group.free_before)
        };
        Ok(Changes { groups: changed.map(mark).collect(), freed, clusters })
    }

    /// Whether bitmaps in memory differ from the device.
    pub fn has_changed_groups(&self) -> bool {
        self.lock().groups.values().any(|group| group.dirty)
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
        let mut state = self.lock();
        let unreferenced = Clusters::of(self).begin_generation(&mut state, &nameless.clusters)?;
        let freeing = state.freeing.iter();
        let runs: Vec<FragRun> =
            freeing.chain(&nameless.runs).chain(&unreferenced).copied().collect();
        let mut before: HashMap<CgIndex, Vec<(u32, u8)>> = HashMap::new();
        for (start, count) in state.references_before.clone() {
            let cg = self.layout.cg_of_fragment(start);
            let block = Clusters::of(self).block_in_group(start);
            before.entry(cg).or_default().push((block, count));
            self.group(&mut state, cg)?.dirty = true;
        }
        let mut also_free: HashMap<CgIndex, Vec<(u32, u32)>> = HashMap::new();
        for run in &runs {
            let cg = self.layout.cg_of_fragment(run.start);
            self.group(&mut state, cg)?.dirty = true;
            also_free.entry(cg).or_default().push((self.in_group(cg, run.start), run.len));
        }
        let block_bytes = self.layout.block_bytes as usize;
        let bitmap_bytes = self.layout.bitmap_blocks() as usize * block_bytes;
        let count_bytes = self.layout.count_bytes();
        // Groups are made in order, without gaps.
        let last_used = state.groups.keys().next_back().map_or(0, |cg| cg.0 + 1);
        for cg in (state.cgs_made..last_used).map(CgIndex) {
            self.group(&mut state, cg)?;
        }
        state.cgs_made = state.cgs_made.max(last_used);
        let mut free = state.free;
        for (cg, group) in state.groups.iter_mut().filter(|(_, group)| group.dirty) {
            let runs = also_free.get(cg).map_or(&[][..], |runs| runs);
            let (bitmap, free_fragments) = group.save(bitmap_bytes, runs);
            free += u64::from(free_fragments - group.free_count());
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
            let mut block = Block::zeroed(block_bytes);
            header.encode_into(&mut block, self.checksum);
            writes.put_block(Phase::Derived, self.layout.cg_header(*cg), Arc::new(block));
            let first = self.layout.cg_bitmap(*cg).0;
            let images = bitmap.chunks_exact(block_bytes).chain(counts.chunks_exact(block_bytes));
            for (number, image) in (first..).zip(images) {
                writes.put_block(Phase::Derived, BlockNo(number), Arc::new(Block::new(image)));
            }
        }
        superblock.free_fragments = free;
        superblock.cgs_made = state.cgs_made;
        superblock.cg_rotor = state.hot.0;
        Ok(())
    }
}
