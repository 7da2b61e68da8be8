//! The drive's volatile write cache.
//!
//! A write that fits is acknowledged as soon as it has crossed the bus. The cache is written to the platter
//! later, neighbours together, in the best order for the arm. A flush waits until everything that was
//! acknowledged before it is on the platter.
//!
//! Invariants: ranges never overlap or touch; a range has the stamp of its oldest write, so for a flush a
//! merged range is never newer than its oldest part.

use std::collections::BTreeMap;

use super::{Run, Sector};

/// A number that orders writes and flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp(pub u64);

#[derive(Clone, Copy, Debug)]
struct Dirty {
    sectors: u64,
    stamp: Stamp,
}

/// Ranges that were acknowledged and are not on the platter yet.
#[derive(Clone, Debug)]
pub struct WriteCache {
    capacity: u64,
    dirty: BTreeMap<u64, Dirty>,
    sectors: u64,
    /// The range that is being written out. It still takes space, and a flush still waits for it.
    leaving: Option<(Run, Stamp)>,
}

/// The longest run that is written to the platter in one movement.
const DESTAGE_SECTORS_MAX: u64 = 8192;

/// The number of ranges on either side of the arm that are considered next.
const CANDIDATES_EACH_WAY: usize = 32;

impl WriteCache {
    /// An empty cache for `capacity` sectors; zero for no cache.
    pub fn new(capacity: u64) -> WriteCache {
        WriteCache { capacity, dirty: BTreeMap::new(), sectors: 0, leaving: None }
    }

    /// Whether the drive has a write cache.
    pub fn is_enabled(&self) -> bool {
        self.capacity > 0
    }

    /// Whether `run` would fit into the empty cache.
    pub fn can_ever_hold(&self, run: Run) -> bool {
        run.sectors <= self.capacity
    }

    /// Whether `run` can be acknowledged now.
    pub fn has_room(&self, run: Run) -> bool {
        self.used() + run.sectors <= self.capacity
    }

    /// Whether the cache is so full that it must be written out at once.
    pub fn is_pressed(&self) -> bool {
        self.used() * 2 > self.capacity
    }

    /// Whether no range waits to be written out or is being written.
    pub fn is_clean(&self) -> bool {
        self.dirty.is_empty() && self.leaving.is_none()
    }

    /// Whether any range waits to be written out.
    pub fn has_waiting(&self) -> bool {
        !self.dirty.is_empty()
    }

    pub fn holds(&self, run: Run) -> bool {
        let held = self.dirty.range(..=run.first.0).next_back();
        held.is_some_and(|(&first, d)| run.end().0 <= first + d.sectors)
    }

    /// Adds a write, merging it with the ranges that it overlaps or touches.
    pub fn insert(&mut self, run: Run, stamp: Stamp) {
        let (mut first, mut end, mut oldest) = (run.first.0, run.end().0, stamp);
        while let Some((&at, &d)) = self.dirty.range(..=end).next_back() {
            if at + d.sectors < first {
                break;
            }
            self.dirty.remove(&at);
            self.sectors -= d.sectors;
            first = first.min(at);
            end = end.max(at + d.sectors);
            oldest = oldest.min(d.stamp);
        }
        self.dirty.insert(first, Dirty { sectors: end - first, stamp: oldest });
        self.sectors += end - first;
    }

    /// Drops the ranges that a discard covers. Partly covered ranges stay whole.
    pub fn discard(&mut self, run: Run) {
        let inside: Vec<u64> = self
            .dirty
            .range(run.first.0..run.end().0)
            .filter(|(at, d)| *at + d.sectors <= run.end().0)
            .map(|(at, _)| *at)
            .collect();
        for at in inside {
            self.sectors -= self.dirty.remove(&at).map_or(0, |d| d.sectors);
        }
    }

    /// The runs that may be written next: those around `near`, acknowledged no later than `until`.
    pub fn candidates(&self, near: Sector, until: Stamp) -> impl Iterator<Item = Run> {
        let eligible = move |(&at, d): (&u64, &Dirty)| {
            let sectors = d.sectors.min(DESTAGE_SECTORS_MAX);
            (d.stamp <= until).then_some(Run { first: Sector(at), sectors })
        };
        let above = self.dirty.range(near.0..).filter_map(eligible).take(CANDIDATES_EACH_WAY);
        let below = self.dirty.range(..near.0).rev().filter_map(eligible).take(CANDIDATES_EACH_WAY);
        above.chain(below)
    }

    /// Begins to write out `run`, one of [`WriteCache::candidates`].
    pub fn take(&mut self, run: Run) {
        if let Some(d) = self.dirty.remove(&run.first.0) {
            self.sectors -= d.sectors;
            self.leaving = Some((run, d.stamp));
            if d.sectors > run.sectors {
                let rest = Dirty { sectors: d.sectors - run.sectors, stamp: d.stamp };
                self.dirty.insert(run.end().0, rest);
                self.sectors += rest.sectors;
            }
        }
    }

    /// The run that was taken is on the platter.
    pub fn settled(&mut self) {
        self.leaving = None;
    }

    /// Whether everything acknowledged up to `stamp` is on the platter.
    pub fn is_durable(&self, stamp: Stamp) -> bool {
        self.leaving.is_none_or(|(_, s)| s > stamp) && self.dirty.values().all(|d| d.stamp > stamp)
    }

    fn used(&self) -> u64 {
        self.sectors + self.leaving.map_or(0, |(run, _)| run.sectors)
    }
}
