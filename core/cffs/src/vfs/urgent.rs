//! Compaction for a change that finds no space: dead contents of clusters are freed before the change fails.

use std::time::Instant;

use super::Volume;
use crate::admin::{Pending, Regrouper};
use crate::error::Result;
use crate::lock::{Mutex, Rank};
use crate::units::InodeNo;

/// A compaction ends when it has freed this many bytes. The next one continues from there.
const WANTED_BYTES: u64 = 4 << 20;

/// Calls `run` with the ways to free space for a change that finds none: deletions in progress, and then a
/// compaction.
pub(super) fn with_hopes<T>(volume: &Volume, run: impl FnOnce(&[&dyn Fn() -> bool]) -> T) -> T {
    let deletions = || volume.references.await_deletions(&*volume.options.waiter, |_| true);
    let regrouper = Regrouper::new(&volume.readahead, &volume.writer);
    run(&[&deletions, &|| volume.urgent.gain_space(&regrouper)])
}

/// A walk compacts clusters of which at least one in this many fragments is dead. If a walk frees less than
/// [`WANTED_BYTES`], the next one includes clusters with half as many dead fragments, down to
/// [`DEAD_PART_LAST`]. These come later, because they cost more for each byte that they free.
const DEAD_PART_FIRST: u32 = 4;
const DEAD_PART_LAST: u32 = 64;
/// If a walk for the least dead contents freed nothing, the next one begins after this many times its
/// duration, or when this many references have changed.
const REST_FACTOR: u32 = 10;
const WORTHWHILE_CHANGES: u64 = 256;

/// The walk of the volume that urgent compactions share.
pub(super) struct UrgentCompaction(Mutex<Walk>);

struct Walk {
    /// The directories that remain.
    pending: Vec<Pending>,
    dead_part: u32,
    /// Bytes that the walk has freed.
    freed: u64,
    /// The count of reference changes when the walk began.
    began_at: u64,
    /// That count when the last walk for the least dead contents began. While the count is the same, another
    /// walk finds nothing.
    complete_at: Option<u64>,
    /// After a walk that freed nothing, no other one begins until then if few references have changed.
    rests_until: Option<Instant>,
}

impl UrgentCompaction {
    pub(super) fn new() -> UrgentCompaction {
        let walk = Walk {
            pending: Vec::new(),
            dead_part: DEAD_PART_FIRST,
            freed: WANTED_BYTES,
            began_at: 0,
            complete_at: None,
            rests_until: None,
        };
        UrgentCompaction(Mutex::new(Rank::Compaction, walk))
    }

    /// Compacts clusters until enough is free; false if nothing could be freed. After an error, the change
    /// fails for lack of space.
    fn gain_space(&self, regrouper: &Regrouper<'_>) -> bool {
        self.try_gain(regrouper).unwrap_or(false)
    }

    fn try_gain(&self, regrouper: &Regrouper<'_>) -> Result<bool> {
        if !regrouper.has_clusters() {
            return Ok(false);
        }
        let walk = &mut *self.0.lock();
        let begun = regrouper.now();
        loop {
            if walk.pending.is_empty() && !walk.begin(regrouper) {
                return Ok(false);
            }
            let freed = regrouper.compact(&mut walk.pending, walk.dead_part, WANTED_BYTES);
            if freed.is_err() {
                walk.pending.clear();
            }
            let freed = freed?;
            walk.freed += freed;
            if freed > 0 {
                return Ok(true);
            }
            if walk.pending.is_empty() && walk.dead_part == DEAD_PART_LAST {
                // Other threads may have changed references meanwhile, but a change does not wait for them.
                let now = regrouper.now();
                walk.rests_until = Some(now + (now - begun) * REST_FACTOR);
                return Ok(false);
            }
        }
    }
}

impl Walk {
    /// Begins a walk, unless too few references have changed for it to find enough. Returns whether it began.
    fn begin(&mut self, regrouper: &Regrouper<'_>) -> bool {
        let changes = regrouper.reference_changes();
        if self.freed >= WANTED_BYTES {
            self.dead_part = DEAD_PART_FIRST.max(self.dead_part / 2);
        } else if self.dead_part < DEAD_PART_LAST {
            self.dead_part *= 2;
        } else {
            self.complete_at = Some(self.began_at);
            (self.dead_part, self.freed) = (DEAD_PART_FIRST, WANTED_BYTES);
        }
        let more = self.complete_at.map_or(u64::MAX, |before| changes.saturating_sub(before));
        let rests = self.rests_until.is_some_and(|until| regrouper.now() < until);
        if self.dead_part == DEAD_PART_FIRST && (more == 0 || more < WORTHWHILE_CHANGES && rests) {
            return false;
        }
        (self.began_at, self.freed) = (changes, 0);
        self.pending.push(Pending::tree(InodeNo::ROOT));
        true
    }
}
