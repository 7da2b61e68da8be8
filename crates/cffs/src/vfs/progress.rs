//! How far epochs are, and what is under way. All of it is changed under the lock of epochs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::freed::Freed;
use super::placing::Hints;
use crate::inode::Vnode;
use crate::units::{EpochNo, FileBlock};

/// How far epochs have come.
pub(super) struct Progress {
    /// The last epoch that is on the device.
    pub(super) done: EpochNo,
    /// The last one that left nothing behind.
    pub(super) complete: EpochNo,
    /// From when on changes may have waited for the next one: since the last one that left nothing behind
    /// started, or since nothing waited.
    pub(super) waited_from: Instant,
    /// When the last one that wrote anything did; at first, when the volume was opened.
    pub(super) written: Instant,
    /// The last attempt to reach a clean point.
    pub(super) attempt: Option<Attempt>,
    /// When the volume was opened.
    pub(super) opened: Instant,
    /// The part of the open epoch that is already written.
    pub(super) early: Early,
    /// Space to be discarded.
    pub(super) freed: Freed,
}

impl Progress {
    /// As it is on a device that has all epochs up to `done`.
    pub(super) fn new(done: EpochNo) -> Progress {
        let now = Instant::now();
        Progress {
            done,
            complete: done,
            waited_from: now,
            written: now,
            attempt: None,
            opened: now,
            early: Early::default(),
            freed: Freed::default(),
        }
    }
}

/// Which changes an epoch writes, and what else.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum EpochKind {
    /// All changes, except contents of files for which no caller waits (see `fsync`).
    Wanted,
    /// All changes, and nothing else, unless changed pages of derived state take much memory.
    Plain,
    /// The locator table and the indexes too.
    Derived,
    /// And all else that is derived: when the epoch is on the device, it is the new clean point.
    CleanPoint,
}

/// Pages that are being written, by file.
pub(super) type InFlight = Vec<(Arc<Vnode>, Vec<FileBlock>)>;

/// The last attempt to reach a clean point.
#[derive(Clone, Copy)]
pub(super) struct Attempt {
    pub(super) ended: Instant,
    pub(super) cost: Duration,
}

/// The part of the open epoch that was written ahead of it.
#[derive(Default)]
pub(super) struct Early {
    /// Whether anything was, for which nothing has waited yet.
    pub(super) is_in_motion: bool,
    /// The directories of which files were placed.
    pub(super) hints: Hints,
}

/// Lets go of pages that were written and not changed since: the cache has them.
pub(super) fn finish_writes(in_flight: InFlight, epoch: EpochNo) {
    for (vnode, positions) in in_flight {
        let mut state = vnode.state.write();
        for position in positions {
            state.pages.finish_write(position, epoch);
        }
    }
}
