//! Compaction for a change that finds no space: dead contents of clusters are freed before the change fails.

use std::time::Instant;

use super::Volume;
use crate::admin::{Pending, Regrouper};
use crate::error::Result;
use crate::lock::{Mutex, Rank};
use crate::units::InodeNo;

/// A compaction ends when it has freed this many bytes. The next one continues from there.
const WANTED_BYTES: u64 = 4 << 20;

/// Calls `run` with what may free space for a change that finds none: deletions that are under way, and then
/// a compaction.
pub(super) fn with_hopes<T>(volume: &Volume, run: impl FnOnce(&[&dyn Fn() -> bool]) -> T) -> T {
    let deletions = || volume.references.await_deletions(&*volume.options.waiter);
    let regrouper = Regrouper::new(&volume.readahead, &volume.writer);
    run(&[&deletions, &|| volume.urgent.gain_space(&regrouper)])
}

/// A walk that frees nothing is followed by a rest of this many times its duration, unless this many
/// references change.
const REST_FACTOR: u32 = 10;
const WORTHWHILE_CHANGES: u64 = 256;

/// The walk of the volume that urgent compactions share.
pub(super) struct UrgentCompaction(Mutex<Walk>);

struct Walk {
    /// The directories that remain.
    pending: Vec<Pending>,
    /// The count of reference changes when the walk began.
    began_at: u64,
    /// That count when the last complete walk began: while it is the same, another walk finds nothing.
    complete_at: Option<u64>,
    /// After a walk that freed nothing, no other one begins until then if few references have changed.
    rests_until: Option<Instant>,
}

impl UrgentCompaction {
    pub(super) fn new() -> UrgentCompaction {
        let walk = Walk { pending: Vec::new(), began_at: 0, complete_at: None, rests_until: None };
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
        if walk.pending.is_empty() {
            let changes = regrouper.reference_changes();
            let more = walk.complete_at.map_or(u64::MAX, |before| changes.saturating_sub(before));
            let rests = walk.rests_until.is_some_and(|until| Instant::now() < until);
            if more == 0 || more < WORTHWHILE_CHANGES && rests {
                return Ok(false);
            }
            walk.began_at = changes;
            walk.pending.push(Pending::tree(InodeNo::ROOT));
        }
        let begun = Instant::now();
        let freed = regrouper.compact(&mut walk.pending, WANTED_BYTES);
        if freed.is_err() {
            walk.pending.clear();
        }
        if walk.pending.is_empty() {
            walk.complete_at = Some(walk.began_at);
        }
        if *freed.as_ref().unwrap_or(&0) == 0 {
            walk.rests_until = Some(Instant::now() + begun.elapsed() * REST_FACTOR);
        }
        Ok(freed? > 0)
    }
}
