//! The progress of epochs, which changes under the lock of epochs only.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::freed::Freed;
use super::placing::Hints;
use crate::inode::Vnode;
use crate::units::{EpochNo, FileBlock};

/// The progress of epochs.
pub(crate) struct Progress {
    /// The last epoch that is on the device.
    pub(crate) done: EpochNo,
    /// The last one that left nothing behind.
    pub(crate) complete: EpochNo,
    /// The earliest time of changes that may wait for the next one: when the last one that left nothing
    /// behind started, or when nothing waited.
    pub(crate) waited_from: Instant,
    /// The time of the last one that wrote anything; at first, when the volume was opened.
    pub(crate) written: Instant,
    /// The last attempt to reach a checkpoint.
    pub(crate) attempt: Option<Attempt>,
    /// When the volume was opened.
    pub(crate) opened: Instant,
    /// The part of the open epoch that is already written.
    pub(crate) early: Early,
    /// Space to be discarded.
    pub(crate) freed: Freed,
}

impl Progress {
    /// The progress of a device that has all epochs up to `done`.
    pub(crate) fn new(done: EpochNo, now: Instant) -> Progress {
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

/// The changes and the derived state that an epoch writes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum EpochKind {
    /// All changes, except contents of files for which no caller waits (see `fsync`).
    Wanted,
    /// All changes, and nothing else, unless changed pages of derived state take much memory.
    Plain,
    /// The locator table and the indexes too.
    Derived,
    /// And all other derived state: once on the device, the epoch is the new checkpoint.
    Checkpoint,
}

/// Pages that are being written, by file.
pub(crate) type InFlight = Vec<(Arc<Vnode>, Vec<FileBlock>)>;

/// The last attempt to reach a checkpoint.
#[derive(Clone, Copy)]
pub(crate) struct Attempt {
    pub(crate) ended: Instant,
    pub(crate) cost: Duration,
}

/// The part of the open epoch that was written ahead of it.
#[derive(Default)]
pub(crate) struct Early {
    /// Whether any part was, without a flush since.
    pub(crate) is_in_motion: bool,
    /// The directories whose files were placed.
    pub(crate) hints: Hints,
}

/// Drops the pages that were written and not changed since: the cache has them.
pub(crate) fn finish_writes(in_flight: InFlight, epoch: EpochNo) {
    for (vnode, positions) in in_flight {
        let mut state = vnode.state.write();
        for position in positions {
            state.pages.finish_write(position, epoch);
        }
    }
}
