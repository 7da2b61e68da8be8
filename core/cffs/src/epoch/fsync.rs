//! Epochs for callers of fsync: how callers share them, and what they leave out.
//!
//! An epoch for an fsync ([`EpochKind::Wanted`](super::EpochKind::Wanted)) leaves out the new contents of
//! other files: an fsync of a file of a few kilobytes does not wait for the stream of another program. Names,
//! directories and small changes are always included, since they cost little compared with the rest.
//!
//! Group commit: a caller first enters the file that it waits for. The next epoch takes all that were
//! entered, so callers that come while an epoch is written share the one after it. The leader, which
//! writes that one, waits briefly for the callers of the last epoch, which may be about to come again
//! ([`Callers`]).
//!
//! Invariants: a file is left out only while the device has it, under its name, whole, and on
//! space that is still its own ([`Choice::leaves`]); so a name is never durable before the contents that it
//! was given with, and freed space is not allocated while the inode on the device points there. A file that
//! is left out stays dirty and queued, for the next epoch that takes everything: that of the background at
//! the latest.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::inode::{DirtyLevel, InodeCache, Vnode, VnodeState};
use crate::lock::{Condvar, Mutex, Rank, Rule};
use crate::units::{EpochNo, InodeNo};

#[cfg(test)]
mod tests;

/// The files that an fsync waits for.
pub(crate) type Wanted = HashSet<InodeNo>;

/// Lets threads that wait for files to be durable share epochs. One of them leads: it writes the epoch.
pub(crate) struct Callers {
    state: Mutex<State>,
    /// A caller arrived, for which the leader may be waiting.
    came: Condvar,
    /// An epoch has ended, or there is no leader any more.
    ended: Condvar,
    /// The longest that a leader waits for others.
    wait_max: Duration,
    clock: Arc<dyn Clock>,
}

#[derive(Default)]
struct State {
    wanted: Wanted,
    /// The number of callers that the leader leads, and since when; `None` without a leader.
    led: Option<(usize, Instant)>,
    reached: Reached,
    last: LastGroup,
}

/// The epochs that are durable.
#[derive(Default)]
struct Reached {
    /// The last epoch that is on the device.
    done: EpochNo,
    /// The last one that left nothing out.
    complete: EpochNo,
    /// The files that the last one left out.
    left: HashSet<InodeNo>,
}

impl Reached {
    /// Whether the device has the changes of a file that were made before a moment of the epoch `since`.
    fn has(&self, ino: InodeNo, since: EpochNo) -> bool {
        self.complete >= since || self.done >= since && !self.left.contains(&ino)
    }
}

/// The callers that shared the last epoch with a leader: as many may share the next.
#[derive(Clone, Copy, Default)]
struct LastGroup {
    /// The number of callers that it served, and of those that arrived before it ended.
    callers: usize,
    /// How long it took.
    lasted: Duration,
}

impl Callers {
    /// No callers yet, on a device that has all epochs up to `done`. A leader waits for others no longer
    /// than `wait_max`.
    pub(crate) fn new(done: EpochNo, wait_max: Duration, clock: Arc<dyn Clock>) -> Callers {
        let reached = Reached { done, complete: done, left: HashSet::new() };
        let state = Mutex::new(Rank::Leaf, State { reached, ..State::default() });
        Callers { state, came: Condvar::default(), ended: Condvar::default(), wait_max, clock }
    }

    /// Takes the files that all of them wait for.
    pub(crate) fn take(&self) -> Wanted {
        std::mem::take(&mut self.state.lock().wanted)
    }

    /// Records that the device has an epoch, except the files that it `left` out.
    pub(crate) fn reached(&self, epoch: EpochNo, left: HashSet<InodeNo>) {
        let mut state = self.state.lock();
        state.reached.done = epoch;
        if left.is_empty() {
            state.reached.complete = epoch;
        }
        state.reached.left = left;
        if let Some((served, began)) = state.led {
            let callers = served + state.wanted.len();
            state.last = LastGroup { callers, lasted: self.clock.monotonic() - began };
        }
        if Rule::EpochsWake.holds() {
            self.ended.notify_all();
        }
    }

    /// No epoch will end any more.
    pub(crate) fn give_up(&self) {
        drop(self.state.lock());
        self.ended.notify_all();
    }

    /// Waits until all epochs before `since` are on the device, or the volume is not `writable` any more.
    pub(super) fn wait_for_epochs_before(&self, since: EpochNo, is_writable: impl Fn() -> bool) {
        let mut state = self.state.lock();
        while state.reached.done.0 + 1 < since.0 && is_writable() {
            self.ended.wait(&mut state);
        }
    }

    /// Requests files to be made durable as of the epoch `since`, and waits until they are, or until the
    /// caller becomes the leader: then waits briefly for other callers.
    ///
    /// With several threads in an fsync loop, the first would get an epoch to itself and the others the
    /// next, so the leader waits for the threads of the last epoch. Those that are in such a loop come
    /// within a fraction of the time that an epoch takes.
    pub(super) fn ask(&self, files: &[InodeNo], since: EpochNo) -> Option<Lead<'_>> {
        let mut state = self.state.lock();
        state.wanted.extend(files);
        self.came.notify_one();
        while !files.iter().all(|ino| state.reached.has(*ino, since)) {
            if state.led.is_none() {
                let LastGroup { callers, lasted } = state.last;
                state.led = Some((0, self.clock.monotonic()));
                let until = Instant::now() + self.wait_max.min(lasted / 2);
                while state.wanted.len() < callers && self.came.wait_until(&mut state, until) {}
                state.led = Some((state.wanted.len(), self.clock.monotonic()));
                return Some(Lead(self));
            }
            self.ended.wait(&mut state);
        }
        None
    }
}

/// The role of the caller that writes an epoch for all. Dropping it gives the role up.
pub(super) struct Lead<'a>(&'a Callers);

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        self.0.state.lock().led = None;
        if Rule::EpochsWake.holds() {
            self.0.ended.notify_all();
        }
    }
}

/// The choice of files that an epoch leaves out.
pub(crate) struct Choice {
    /// Files for which an fsync waits.
    pub(crate) wanted: Wanted,
    /// The bytes of new contents up to which a file is taken in any case.
    pub(crate) leaves_bytes: u64,
}

impl Choice {
    /// Whether a file waits for a later epoch: no fsync waits for it, it has much to write, its inode on the
    /// device is at its present place, and only its contents have changed since.
    pub(crate) fn leaves(&self, inodes: &InodeCache, ino: InodeNo, file: &VnodeState) -> bool {
        let new_bytes = file.pages.dirty_count() as u64 * u64::from(inodes.layout.block_bytes);
        new_bytes > self.leaves_bytes
            && !file.inode.is_dir()
            && !ino.is_system()
            && !self.wanted.contains(&ino)
            && is_in_place(file)
            && file.changes.level <= DirtyLevel::Contents
    }

    /// Whether an inode waits for a later epoch, independent of the file's pages: no fsync waits for it, and
    /// only its times were changed, or those of a directory in which names came and went. An inode in the
    /// external table does not wait, since recovery counts its names.
    pub(crate) fn leaves_times(&self, ino: InodeNo, file: &VnodeState) -> bool {
        let is_embedded = file.container.is_some_and(|place| place.file != InodeNo::EXTERNAL);
        is_embedded
            && (!ino.is_system() || ino == InodeNo::ROOT)
            && !self.wanted.contains(&ino)
            && is_in_place(file)
            && file.changes.level == DirtyLevel::Times
    }
}

/// Whether the inode on the device is at the same place as in memory.
fn is_in_place(file: &VnodeState) -> bool {
    file.container.is_some() && file.container == file.durable
}

/// Whether an epoch that has begun includes all changes of a file that matter.
pub(super) fn is_taken(vnode: &Vnode, data_only: bool) -> bool {
    let file = vnode.state.read();
    let times_alone = data_only && file.changes.level == DirtyLevel::Times;
    file.container == file.durable
        && file.pages.dirty_count() == 0
        && (times_alone || !file.changes.dirty && !vnode.is_queued())
}
