//! A cylinder group in memory: its free bitmap, the search in it, and the references to its clusters.

use std::ops::Range;

use crate::format::Layout;
use crate::format::cylinder_group::clusters_in;
use crate::units::{BlockNo, CgIndex};

/// The free bitmap and the references of one group; positions are fragments, counted from the group's first.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// One bit per fragment, set if it is free.
    free_bits: Vec<u64>,
    /// Set for free fragments of a reservation or of the pool.
    reserved_bits: Vec<u64>,
    len: u32,
    free_count: u32,
    /// Set for fragments that were free at the last checkpoint, and for those that the intent log records as
    /// freed.
    logged_bits: Vec<u64>,
    /// The free fragments at the last checkpoint.
    pub free_before: u32,
    /// Whether the intent log records that the group has changed.
    pub marked: bool,
    /// Where the next search begins.
    pub rotor: u32,
    /// Whether the group differs from the device.
    pub dirty: bool,
    /// The references to the cluster that begins in each block; empty while no cluster begins in the group.
    references: Vec<u8>,
    /// The number of clusters that begin in the group.
    pub clusters: u32,
    /// The last search to the group's end that found nothing, while nothing has become free since.
    vain: Option<Search>,
}

/// A search for a run of free fragments outside of reservations.
#[derive(Clone, Copy, Debug)]
struct Search {
    from: u32,
    len: u32,
    align: u32,
}

impl Search {
    /// Whether this search finds nothing if the other one found nothing.
    fn is_narrower(self, other: Search) -> bool {
        self.from >= other.from && self.len >= other.len && self.align.is_multiple_of(other.align)
    }
}

#[cfg(test)]
thread_local! {
    /// The number of bitmap words that searches have read.
    pub(super) static WORDS_READ: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// The free fragments that a search may find.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Among {
    /// Free fragments outside of reservations.
    Unreserved,
    /// All.
    All,
}

impl Group {
    /// A group that was never used.
    pub fn unused(layout: &Layout, cg: CgIndex) -> Group {
        let len = layout.cg_fragments(cg);
        let words = vec![0; len.div_ceil(64) as usize];
        let mut group = Group {
            free_bits: words.clone(),
            logged_bits: words.clone(),
            reserved_bits: words,
            len,
            dirty: true,
            ..Group::default()
        };
        let per_block = layout.block_fragments();
        let start = layout.cg_start(cg);
        for block in layout.cg_reserved_blocks(cg)..layout.cg_len_blocks(cg) {
            if !layout.is_reserved(BlockNo(start.0 + u64::from(block))) {
                group.give(block * per_block, per_block);
            }
        }
        group.logged_bits.clone_from(&group.free_bits);
        group.free_before = group.free_count;
        group
    }

    /// A group from its bitmap on the device; bits after its end count as used.
    pub fn from_bitmap(layout: &Layout, cg: CgIndex, bitmap: &[u8], rotor: u32) -> Group {
        let len = layout.cg_fragments(cg);
        let words = len.div_ceil(64) as usize;
        let (chunks, _) = bitmap.as_chunks::<8>();
        let mut free_bits: Vec<u64> =
            chunks.iter().take(words).map(|chunk| u64::from_le_bytes(*chunk)).collect();
        free_bits.resize(words, 0);
        if let (Some(last), false) = (free_bits.last_mut(), len.is_multiple_of(64)) {
            *last &= (1 << (len % 64)) - 1;
        }
        let free_count = free_bits.iter().map(|word| word.count_ones()).sum();
        Group {
            reserved_bits: vec![0; words],
            logged_bits: free_bits.clone(),
            free_before: free_count,
            free_bits,
            len,
            free_count,
            rotor: rotor.min(len),
            ..Group::default()
        }
    }

    /// Memory of the bitmaps and of the counts of references, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let words =
            self.free_bits.capacity() + self.reserved_bits.capacity() + self.logged_bits.capacity();
        words as u64 * 8 + self.references.capacity() as u64
    }

    /// The bitmap that a checkpoint writes, padded with used fragments to `bytes`, and the number of free
    /// fragments in it. The runs of `also_free` count as free, whatever their state in memory.
    pub fn save(&mut self, bytes: usize, also_free: &[(u32, u32)]) -> (Vec<u8>, u32) {
        self.logged_bits.clone_from(&self.free_bits);
        for (start, len) in also_free {
            for (index, mask) in masks(*start, *len) {
                self.logged_bits[index] |= mask;
            }
        }
        self.marked = false;
        // The fragments that are in use in memory remain to be written.
        self.dirty = !also_free.is_empty();
        let free = self.logged_bits.iter().map(|word| word.count_ones()).sum();
        self.free_before = free;
        let mut bitmap: Vec<u8> =
            self.logged_bits.iter().flat_map(|word| word.to_le_bytes()).collect();
        bitmap.resize(bytes, 0);
        (bitmap, free)
    }

    /// The parts of a run that were in use at the last checkpoint, and are not in the intent log yet.
    pub fn log_freed(&mut self, start: u32, len: u32) -> Vec<(u32, u32)> {
        let mut parts: Vec<(u32, u32)> = Vec::new();
        for (index, mask) in masks(start, len) {
            let mut fresh = mask & !self.logged_bits[index];
            self.logged_bits[index] |= mask;
            while fresh != 0 {
                let bit = fresh.trailing_zeros();
                let count = (fresh >> bit).trailing_ones();
                let at = index as u32 * 64 + bit;
                match parts.last_mut() {
                    Some((start, len)) if *start + *len == at => *len += count,
                    _ => parts.push((at, count)),
                }
                fresh &= !(u64::MAX >> (64 - count) << bit);
            }
        }
        parts
    }

    /// The count of free fragments, reserved ones included.
    pub fn free_count(&self) -> u32 {
        self.free_count
    }

    /// The fragments of the group.
    pub fn fragments(&self) -> u32 {
        self.len
    }

    fn word(&self, index: usize, among: Among) -> u64 {
        #[cfg(test)]
        WORDS_READ.set(WORDS_READ.get() + 1);
        match among {
            Among::Unreserved => self.free_bits[index] & !self.reserved_bits[index],
            Among::All => self.free_bits[index],
        }
    }

    /// The first free fragment at or after `from`.
    fn next_free(&self, from: u32, among: Among) -> Option<u32> {
        let mut index = (from / 64) as usize;
        if from >= self.len {
            return None;
        }
        let mut word = self.word(index, among) & (u64::MAX << (from % 64));
        while word == 0 {
            index += 1;
            if index == self.free_bits.len() {
                return None;
            }
            word = self.word(index, among);
        }
        Some(index as u32 * 64 + word.trailing_zeros())
    }

    /// The number of free fragments from `from` on, at most `max`.
    pub fn run_at(&self, from: u32, max: u32, among: Among) -> u32 {
        let end = from.saturating_add(max).min(self.len);
        let mut at = from;
        while at < end {
            let word = !self.word((at / 64) as usize, among) & (u64::MAX << (at % 64));
            if word != 0 {
                let used = at / 64 * 64 + word.trailing_zeros();
                return used.min(end) - from;
            }
            at = (at / 64 + 1) * 64;
        }
        end.saturating_sub(from)
    }

    /// The first run of `len` free fragments in `[from, to)` whose start is a multiple of `align`.
    pub fn find(&self, from: u32, to: u32, len: u32, align: u32, among: Among) -> Option<u32> {
        let mut at = from;
        while let Some(free) = self.next_free(at, among) {
            let run = free + self.run_at(free, self.len, among);
            let start = free.next_multiple_of(align);
            if start + len <= run.min(to) {
                return Some(start);
            }
            if run >= to {
                return None;
            }
            at = run;
        }
        None
    }

    /// The first run of `len` free fragments outside of reservations, from the rotor on, otherwise from
    /// `from` on.
    ///
    /// A large file searches for long runs first, for each of its pieces. With fragmented free space this
    /// would scan the whole bitmap for each length and piece, so a search that found nothing is remembered
    /// until something becomes free.
    pub fn find_from_rotor(&mut self, from: u32, len: u32, align: u32) -> Option<u32> {
        let search = Search { from, len, align };
        if self.vain.is_some_and(|vain| search.is_narrower(vain)) {
            return None;
        }
        let rotor = self.rotor.max(from);
        let found = self
            .find(rotor, self.len, len, align, Among::Unreserved)
            .or_else(|| self.find(from, self.len, len, align, Among::Unreserved));
        if found.is_none() {
            self.vain = Some(search);
        }
        found
    }

    /// The longest run of free fragments, its start a multiple of `align`; length 0 if there is
    /// none.
    pub fn longest(&self, align: u32, among: Among) -> (u32, u32) {
        let mut best = (0, 0);
        let mut at = 0;
        while let Some(free) = self.next_free(at, among) {
            let end = free + self.run_at(free, self.len, among);
            let start = free.next_multiple_of(align);
            if end.saturating_sub(start) > best.1 {
                best = (start, end - start);
            }
            at = end;
        }
        best
    }

    /// The end of the last fragment in use; 0 if none is.
    pub fn end_of_used(&self) -> u32 {
        let last = self.free_bits.len().saturating_sub(1);
        let beyond = |index| if index == last { last as u32 * 64 + 64 - self.len } else { 0 };
        let used = |index: usize| !self.free_bits[index] & (u64::MAX >> beyond(index));
        let word = (0..self.free_bits.len()).rev().find(|index| used(*index) != 0);
        word.map_or(0, |index| index as u32 * 64 + 64 - used(index).leading_zeros())
    }

    /// The count of free whole blocks of `per_block` fragments outside of reservations.
    pub fn whole_blocks(&self, per_block: u32) -> u64 {
        let first_of_each =
            (0..64).step_by(per_block as usize).fold(0, |bits, at| bits | 1u64 << at);
        let whole = |index| {
            let mut word = self.word(index, Among::Unreserved);
            let mut step = 1;
            while step < per_block {
                word &= word >> step;
                step *= 2;
            }
            u64::from((word & first_of_each).count_ones())
        };
        (0..self.free_bits.len()).map(whole).sum()
    }

    /// The runs of at least `least` free fragments in a part of the group. Their starts and lengths are
    /// multiples of `align`.
    pub fn runs(
        &self,
        within: Range<u32>,
        least: u32,
        align: u32,
        among: Among,
    ) -> impl Iterator<Item = (u32, u32)> {
        let (mut from, end) = (within.start, within.end.min(self.len));
        std::iter::from_fn(move || {
            let at = self.find(from, end, least, align, among)?;
            let len = self.run_at(at, end - at, among) / align * align;
            from = at + len;
            Some((at, len))
        })
    }

    /// Adds the new blocks of the volume's former last group: those after its end, and those that were cut
    /// off by the old end of the volume.
    pub fn grow(&mut self, cg: CgIndex, old: &Layout, new: &Layout) {
        let per_block = new.block_fragments();
        self.len = new.cg_fragments(cg);
        let words = self.len.div_ceil(64) as usize;
        for bits in [&mut self.free_bits, &mut self.reserved_bits, &mut self.logged_bits] {
            bits.resize(words, 0);
        }
        let start = new.cg_start(cg).0;
        for block in (0..old.cg_len_blocks(cg)).rev() {
            let number = BlockNo(start + u64::from(block));
            if !old.is_reserved(number) || block < old.cg_reserved_blocks(cg) {
                break;
            }
            self.give(block * per_block, per_block);
        }
        for block in old.cg_len_blocks(cg)..new.cg_len_blocks(cg) {
            if !new.is_reserved(BlockNo(start + u64::from(block))) {
                self.give(block * per_block, per_block);
            }
        }
        self.vain = None;
    }

    /// Takes free fragments into use, and out of their reservation.
    pub fn take(&mut self, start: u32, len: u32) {
        for (index, mask) in masks(start, len) {
            debug_assert_eq!(self.free_bits[index] & mask, mask, "taking what is in use");
            self.free_bits[index] &= !mask;
            self.reserved_bits[index] &= !mask;
        }
        assert!(len <= self.free_count, "taking more than is free");
        self.free_count -= len;
        self.dirty = true;
    }

    /// Frees fragments. False if any of them was free already: then the bitmap was wrong.
    pub fn give(&mut self, start: u32, len: u32) -> bool {
        let mut given = 0;
        for (index, mask) in masks(start, len) {
            given += (mask & !self.free_bits[index]).count_ones();
            self.free_bits[index] |= mask;
        }
        self.free_count += given;
        self.dirty = true;
        self.vain = None;
        given == len
    }

    /// Reserves free fragments.
    pub fn reserve(&mut self, start: u32, len: u32) {
        for (index, mask) in masks(start, len) {
            self.reserved_bits[index] |= mask & self.free_bits[index];
        }
    }

    /// Releases reserved fragments.
    pub fn release(&mut self, start: u32, len: u32) {
        for (index, mask) in masks(start, len) {
            self.reserved_bits[index] &= !mask;
        }
        self.vain = None;
    }

    /// Whether any of the fragments is in use.
    pub fn any_used(&self, start: u32, len: u32) -> bool {
        masks(start, len).any(|(index, mask)| self.free_bits[index] & mask != mask)
    }

    /// The references to the cluster that begins in this block of the group.
    pub fn references(&self, block: u32) -> u8 {
        self.references.get(block as usize).copied().unwrap_or(0)
    }

    /// Sets the count of references to the cluster that begins in this block of the group.
    pub fn set_references(&mut self, block: u32, count: u8) {
        let block = block as usize;
        if block >= self.references.len() {
            self.references.resize(block + 1, 0);
        }
        let before = std::mem::replace(&mut self.references[block], count);
        self.clusters = self.clusters + u32::from(count > 0) - u32::from(before > 0);
        self.dirty = true;
    }

    /// Takes over the counts of references that the device has.
    pub fn load_references(&mut self, counts: &[u8]) {
        if counts.iter().any(|count| *count > 0) {
            self.references = counts.to_vec();
            self.clusters = clusters_in(counts);
        }
    }

    /// The counts of references as they go to the device, in `bytes` bytes. `before` has the counts of
    /// blocks for which the device keeps another count than memory.
    pub fn save_references(&self, bytes: usize, before: &[(u32, u8)]) -> Vec<u8> {
        assert!(self.references.len() <= bytes, "a count for each block");
        let mut counts = self.references.clone();
        counts.resize(bytes, 0);
        for (block, count) in before {
            counts[*block as usize] = *count;
        }
        counts
    }
}

/// The words of a bitmap that a run touches, with the bits of the run in each.
fn masks(start: u32, len: u32) -> impl Iterator<Item = (usize, u64)> {
    let end = start + len;
    (start / 64..end.div_ceil(64)).map(move |index| {
        let low = start.saturating_sub(index * 64);
        let high = (end - index * 64).min(64);
        let upper = if high == 64 { u64::MAX } else { (1 << high) - 1 };
        (index as usize, upper & (u64::MAX << low))
    })
}
