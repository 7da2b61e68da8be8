//! The place of the next record in the journal.
//!
//! Gaps leave most of the journal free when its end is reached, so the next records are written between the
//! existing ones, lap after lap: each a gap after the last one, or at the next place with room.
//!
//! ```text
//!   first lap:  0 · · · · 1 · · · · 2 · · · · 3 · · · ·
//!   second:     0 4 · · · 1 5 · · · 2 6 · · · 3 7 · · ·
//! ```

use std::collections::BTreeMap;

use super::area::Area;
use crate::format::journal::HEADER_BLOCKS;

#[cfg(test)]
mod tests;

/// Which blocks of the journal have records of its era.
pub(super) struct Space {
    /// The used runs, as the block after each run by its first block; adjacent records are joined.
    taken: BTreeMap<u32, u32>,
    /// The block after the last record.
    next: u32,
    blocks: u32,
    /// How far after the gap a record may be placed. One record in fifty needs this, and waits at most for a
    /// turn of the disk. If no room is found up to here, hardly any is left.
    detour_max: u32,
}

impl Space {
    /// A journal without records.
    pub fn new(area: &Area) -> Space {
        Space {
            taken: BTreeMap::new(),
            next: HEADER_BLOCKS,
            blocks: area.blocks,
            detour_max: 4 * area.gap_max,
        }
    }

    /// Runs are after the headers, in the journal, and apart from each other.
    pub fn check(&self) {
        let mut before = 0;
        for (from, to) in &self.taken {
            assert!(from < to, "a run from {from} to {to}");
            assert!(*from >= HEADER_BLOCKS, "a record overlaps a header");
            assert!(*from > before, "neighbours are one run");
            before = *to;
        }
        assert!(before <= self.blocks, "a record ends after the journal");
        assert!((HEADER_BLOCKS..=self.blocks).contains(&self.next), "the end of the last record");
    }

    /// Drops all records.
    pub fn clear(&mut self) {
        self.taken.clear();
        self.next = HEADER_BLOCKS;
    }

    /// The place for a record of `len` blocks; none if there is no room for it.
    pub fn place(&self, gap: u32, len: u32) -> Option<u32> {
        let ahead = self.room_from(self.next + gap, len);
        ahead.or_else(|| self.room_from(HEADER_BLOCKS, len))
    }

    /// Whether a place is after the last record, with just the gap between them.
    pub fn is_behind(&self, at: u32, gap: u32) -> bool {
        !self.taken.is_empty() && at == self.next + gap
    }

    /// Notes a record.
    pub fn take(&mut self, at: u32, len: u32) {
        debug_assert!(
            self.taken.range(..at + len).next_back().is_none_or(|(_, end)| *end <= at),
            "the record at {at} overlaps another"
        );
        let (mut from, mut to) = (at, at + len);
        if let Some((before, end)) = self.taken.range(..at).next_back()
            && *end == at
        {
            from = *before;
        }
        if let Some(end) = self.taken.remove(&to) {
            to = end;
        }
        self.taken.insert(from, to);
        self.next = at + len;
    }

    /// The first place with room from here on, if that is not far.
    fn room_from(&self, from: u32, len: u32) -> Option<u32> {
        let mut at = from;
        while let Some((_, end)) =
            self.taken.range(..at + len).next_back().filter(|run| *run.1 > at)
        {
            at = *end;
        }
        (at - from <= self.detour_max && at + len <= self.blocks).then_some(at)
    }
}
