//! The fragments that files use, found by the walk.
//!
//! Offers a bitmap of the volume, a bit per fragment, that exists only for the cylinder groups in which
//! something is used. Stands on `format::Layout`. Pass 4 compares the bitmaps on the device with it, and
//! repairs allocate space from it.

use std::collections::BTreeMap;

use crate::format::Layout;
use crate::format::cluster::REFERENCES_MAX;
use crate::units::{BlockNo, CgIndex, FragNo, FragRun};

pub(super) struct UsedMap {
    layout: Layout,
    groups: BTreeMap<u32, Vec<u64>>,
    total: u64,
    released: Vec<FragRun>,
    /// Clusters: their lengths and the extents that refer to them, by their first fragments.
    clusters: BTreeMap<FragNo, (u32, u32)>,
}

impl UsedMap {
    pub fn new(layout: Layout) -> UsedMap {
        UsedMap {
            layout,
            groups: BTreeMap::new(),
            total: 0,
            released: Vec::new(),
            clusters: BTreeMap::new(),
        }
    }

    /// Fragments in use, the reserved ones not counted.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The last group in which something is used.
    pub fn last_cg(&self) -> Option<CgIndex> {
        self.groups.last_key_value().map(|(cg, _)| CgIndex(*cg))
    }

    /// Marks an allocatable run as used; true if all of it was free before.
    pub fn claim(&mut self, run: FragRun) -> bool {
        let before = self.total;
        self.apply(run, |word, mask| {
            let fresh = mask & !*word;
            *word |= mask;
            i64::from(fresh.count_ones())
        });
        self.total - before == u64::from(run.len)
    }

    /// Counts a reference to the cluster in an allocatable run; true if all of the run was free before, or
    /// belongs to this cluster and another reference is possible.
    pub fn claim_cluster(&mut self, run: FragRun) -> bool {
        if let Some((len, references)) = self.clusters.get_mut(&run.start)
            && *len == run.len
        {
            let has_room = *references < u32::from(REFERENCES_MAX);
            *references += u32::from(has_room);
            return has_room;
        }
        let is_free = self.claim(run);
        if is_free {
            self.clusters.insert(run.start, (run.len, 1));
        }
        is_free
    }

    /// Removes a reference to a cluster; without references its run is free again. In a fast check, files
    /// outside of the walk may refer to it, so the run is not added to those released.
    pub fn release_cluster(&mut self, run: FragRun) {
        let found = self.clusters.get_mut(&run.start).filter(|(len, _)| *len == run.len);
        let Some((_, references)) = found else { return };
        *references -= 1;
        if *references == 0 {
            self.clusters.remove(&run.start);
            self.clear(run);
        }
    }

    /// The cluster that begins with this fragment, with the references to it.
    pub fn cluster(&self, start: FragNo) -> Option<(FragRun, u32)> {
        let (len, references) = self.clusters.get(&start)?;
        Some((FragRun::new(start, *len), *references))
    }

    /// The counts of references to the clusters of a group as they should be on the device.
    pub fn references(&self, cg: CgIndex) -> Vec<u8> {
        let layout = &self.layout;
        let mut counts = vec![0; layout.count_bytes()];
        let start = layout.cg_start(cg);
        let first = layout.block_start(start);
        let end = FragNo(first.0 + u64::from(layout.cg_fragments(cg)));
        for (at, (_, references)) in self.clusters.range(first..end) {
            let block = (layout.block_of(*at).0 - start.0) as usize;
            counts[block] =
                u8::try_from(*references).expect("no more are counted than a byte holds");
        }
        counts
    }

    /// Marks an allocatable run as used if all of it is free, and nothing of it otherwise.
    pub fn claim_free(&mut self, run: FragRun) -> bool {
        let mut used = 0;
        self.apply(run, |word, mask| {
            used += (*word & mask).count_ones();
            0
        });
        used == 0 && self.claim(run)
    }

    /// Marks a run as free again.
    pub fn release(&mut self, run: FragRun) {
        self.released.push(run);
        self.clear(run);
    }

    fn clear(&mut self, run: FragRun) {
        self.apply(run, |word, mask| {
            let gone = mask & *word;
            *word &= !mask;
            -i64::from(gone.count_ones())
        });
    }

    /// The total is the sum of the groups, and no group has more fragments than the layout gives it. Debug
    /// builds check this after a round.
    pub fn check(&self) {
        let mut total = 0;
        for (cg, words) in &self.groups {
            assert!(*cg < self.layout.cgs(), "group {cg} exists");
            let fragments = self.layout.cg_fragments(CgIndex(*cg)) as usize;
            assert_eq!(words.len(), fragments.div_ceil(64), "the size of group {cg}");
            let tail = words.last().filter(|_| !fragments.is_multiple_of(64));
            let beyond = tail.map_or(0, |word| word >> (fragments % 64));
            assert_eq!(beyond, 0, "group {cg} has no fragments after its end");
            total += words.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
        }
        assert_eq!(self.total, total, "the total is the sum of the groups");
    }

    /// The runs released since the last call.
    pub fn take_released(&mut self) -> Vec<FragRun> {
        std::mem::take(&mut self.released)
    }

    fn locate(&self, fragment: FragNo) -> (u32, usize) {
        let cg = self.layout.cg_of_fragment(fragment);
        let first = self.layout.block_start(self.layout.cg_start(cg));
        (cg.0, (fragment.0 - first.0) as usize)
    }

    fn apply(&mut self, run: FragRun, mut change: impl FnMut(&mut u64, u64) -> i64) {
        let (cg, first) = self.locate(run.start);
        let words = (self.layout.cg_fragments(CgIndex(cg)) as usize).div_ceil(64);
        let group = self.groups.entry(cg).or_insert_with(|| vec![0; words]);
        let end = first + run.len as usize;
        let mut bit = first;
        let mut sum = 0;
        while bit < end {
            let upto = (bit / 64 + 1) * 64;
            let count = upto.min(end) - bit;
            let mask = (u64::MAX >> (64 - count)) << (bit % 64);
            sum += change(&mut group[bit / 64], mask);
            bit += count;
        }
        self.total = self.total.wrapping_add_signed(sum);
    }

    /// The free bitmap of a group as it should be on the device: a set bit is a free fragment,
    /// and the reserved blocks are not free.
    pub fn free_bitmap(&self, cg: CgIndex) -> Vec<u8> {
        let layout = &self.layout;
        let bytes = (layout.bitmap_blocks() * layout.block_bytes) as usize;
        let mut bitmap = vec![0; bytes];
        let fragments = layout.cg_fragments(cg) as usize;
        bitmap[..fragments / 8].fill(0xff);
        if !fragments.is_multiple_of(8) {
            bitmap[fragments / 8] = (1u8 << (fragments % 8)) - 1;
        }
        if let Some(words) = self.groups.get(&cg.0) {
            for (eight, word) in bitmap.chunks_exact_mut(8).zip(words) {
                let free = u64::from_le_bytes(std::array::from_fn(|index| eight[index])) & !word;
                eight.copy_from_slice(&free.to_le_bytes());
            }
        }
        let start = layout.cg_start(cg);
        let reserved = u64::from(layout.cg_reserved_blocks(cg));
        let tail = (0..u64::from(layout.cg_len_blocks(cg)))
            .rev()
            .take_while(|block| *block >= reserved && layout.is_reserved(BlockNo(start.0 + block)));
        for block in (0..reserved).chain(tail) {
            let first = block as usize * layout.block_fragments() as usize;
            for bit in first..first + layout.block_fragments() as usize {
                bitmap[bit / 8] &= !(1 << (bit % 8));
            }
        }
        bitmap
    }
}
