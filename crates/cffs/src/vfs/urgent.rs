//! Compaction for a change that finds no space: dead contents of clusters are freed before the change fails.

use super::Volume;
use crate::admin::{Pending, Regrouper};
use crate::error::Result;
use crate::lock::{Mutex, Rank};
use crate::units::InodeNo;

/// The bytes that one change frees before it is tried again. The next one goes on where it stopped.
const WANTED_BYTES: u64 = 4 << 20;

/// Calls `run` with what may free space for a change that finds none: deletions that are under way, and then
/// a compaction.
pub(super) fn with_hopes<T>(volume: &Volume, run: impl FnOnce(&[&dyn Fn() -> bool]) -> T) -> T {
    let deletions = || volume.references.await_deletions(&*volume.options.waiter);
    let regrouper = Regrouper::new(&volume.readahead, &volume.writer);
    run(&[&deletions, &|| volume.urgent.gain_space(&regrouper)])
}

/// The walk of the volume that urgent compactions share.
pub(super) struct UrgentCompaction(Mutex<Walk>);

struct Walk {
    /// The directories that remain.
    pending: Vec<Pending>,
    /// The references to clusters that were removed when the walk began.
    began_at: u64,
    /// The same when the last complete walk began: without more of them, another walk finds nothing.
    complete_at: Option<u64>,
}

impl UrgentCompaction {
    pub(super) fn new() -> UrgentCompaction {
        let walk = Walk { pending: Vec::new(), began_at: 0, complete_at: None };
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
            let removed = regrouper.removed_references();
            if walk.complete_at == Some(removed) {
                return Ok(false);
            }
            walk.began_at = removed;
            walk.pending.push(Pending::tree(InodeNo::ROOT));
        }
        let freed = match regrouper.compact(&mut walk.pending, WANTED_BYTES) {
            Err(error) => {
                walk.pending.clear();
                return Err(error);
            }
            freed => freed?,
        };
        if walk.pending.is_empty() {
            walk.complete_at = Some(walk.began_at);
        }
        Ok(freed > 0)
    }
}
