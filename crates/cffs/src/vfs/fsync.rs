//! Making changes durable on demand: all of them, or those of one file.
//!
//! Offers [`Volume::sync`], which writes an epoch with everything, and [`Volume::sync_file`], which
//! writes one that leaves behind what others have of new contents ([`EpochKind::Wanted`]): who
//! waits for a file of a few kilobytes does not wait for what a neighbour streams. Names,
//! directories and small changes always go, since they cost next to nothing beside the rest.
//!
//! Who waits tells first what he waits for. The next epoch takes what all have told of, so those
//! who came while an epoch was written share the one after it.
//!
//! Invariants: a file is left behind only while the device has it, under its name, whole, and on
//! space that is still its own ([`Choice::leaves`]); so a name is never durable before the contents
//! that it was given with, and what a file gave back is not given out while the inode on the device
//! leads there. What is left behind stays dirty and queued, for the next epoch that takes
//! everything: that of the background at the latest.

use std::collections::HashSet;

use super::epoch::{EpochKind, Progress};
use super::{Volume, count};
use crate::error::Result;
use crate::inode::{Changed, Store, Vnode, VnodeState};
use crate::units::{EpochNo, InodeNo};

/// The files that somebody waits for.
pub(super) type Wanted = HashSet<InodeNo>;

/// Which files an epoch leaves behind.
pub(super) struct Choice {
    /// Files that somebody waits for.
    pub(super) wanted: Wanted,
    /// The bytes of new contents up to which a file is taken in any case.
    pub(super) leaves_bytes: u64,
}

impl Choice {
    /// Whether a file waits for a later epoch: nobody wants it, it has much to write, and nothing was
    /// changed of it but its contents since the device has it where it lies.
    pub(super) fn leaves(&self, store: &Store, ino: InodeNo, file: &VnodeState) -> bool {
        let new_bytes = file.pages.dirty_count() as u64 * u64::from(store.layout.block_bytes);
        let is_in_place = file.container.is_some() && file.container == file.durable;
        new_bytes > self.leaves_bytes
            && !file.inode.is_dir()
            && !ino.is_system()
            && !self.wanted.contains(&ino)
            && is_in_place
            && file.changed <= Changed::Contents
    }
}

impl Progress {
    /// Whether the device has what was changed of a file before a moment of the epoch `since`.
    fn has(&self, ino: InodeNo, since: EpochNo) -> bool {
        self.complete >= since || self.done >= since && !self.left.contains(&ino)
    }
}

impl Volume {
    /// Makes everything that was changed before the call durable.
    pub fn sync(&self) -> Result<()> {
        count(&self.calls.syncs);
        self.check_open()?;
        if self.options.read_only { Ok(()) } else { self.commit() }
    }

    /// Makes one file durable, with its name. `data_only` leaves out what is not needed to read the
    /// contents back: if only times were changed, nothing is written.
    pub fn sync_file(&self, ino: InodeNo, data_only: bool) -> Result<()> {
        count(&self.calls.syncs);
        let vnode = self.vnode(ino)?;
        if self.options.read_only {
            return Ok(());
        }
        if is_taken(&vnode, data_only) {
            // The last change of the file may be in an epoch that is still being written.
            drop(self.epochs.lock());
            return self.check_writable();
        }
        // In this order: an epoch that takes the wish away is not older than `since`.
        let since = self.store().epoch();
        self.wanted.lock().insert(ino);
        let mut progress = self.epochs.lock();
        if progress.has(ino, since) {
            return Ok(());
        }
        self.write_epoch(&mut progress, EpochKind::Wanted)
    }

    /// Writes an epoch with all that was changed before the call. If another thread wrote one
    /// meanwhile that began after the call, that one served.
    pub(super) fn commit(&self) -> Result<()> {
        let since = self.store().epoch();
        let mut progress = self.epochs.lock();
        if progress.complete >= since {
            return Ok(());
        }
        self.write_epoch(&mut progress, EpochKind::Plain)
    }

    /// Writes an epoch, with a clean point if the busy log calls for one.
    fn write_epoch(&self, progress: &mut Progress, kind: EpochKind) -> Result<()> {
        self.check_writable()?;
        let is_high = self.store().busy.fill().is_high();
        if is_high && self.is_busy_clean_point_due(progress) {
            return self.pass_clean_point(progress);
        }
        self.run_epoch(progress, kind)
    }
}

/// Whether an epoch that has begun takes all that was changed of a file, as far as it counts.
fn is_taken(vnode: &Vnode, data_only: bool) -> bool {
    let file = vnode.state.read();
    let times_alone = data_only && file.changed == Changed::Times;
    file.container == file.durable
        && file.pages.dirty_count() == 0
        && (times_alone || !file.dirty && !vnode.is_queued())
}
