//! Epochs: writing the changes of an open volume to its device.
//!
//! Offers [`EpochWriter`], which runs changes, writes them in epochs, makes them durable on demand, and keeps
//! the superblock. It knows whether the volume still accepts changes. Stands on `namespace` and the layers
//! below.
//!
//! | module | content |
//! | --- | --- |
//! | `change` | a change: the gate, and what happens when there is no space |
//! | `write` | an epoch, also on demand, from its start to its end |
//! | `prepare`, `placing`, `batch`, `seal` | its preparation in memory: places, inodes, sectors |
//! | `early`, `packing` | contents that are written ahead of it, and compressed before that |
//! | `fsync` | callers that share an epoch, and the files that it leaves out |
//! | `checkpoint` | checkpoints, and the mark of a clean volume |
//! | `background`, `throttle` | the background thread, when it is called, and writers that wait for it |
//! | `live_superblock`, `superblock`, `mark` | the superblock, and the mark of the process that has the volume open |
//! | `health`, `damage` | whether changes are accepted, and the record of damage |
//! | `discard`, `freed` | discards of freed space |
//!
//! Invariants: a change holds the gate shared, and an epoch's start holds it exclusively, so an epoch starts
//! between changes. The lock of epochs is taken before the gate. After a failed write of metadata the volume
//! is latched: it writes nothing more.

mod background;
mod batch;
mod change;
mod checkpoint;
mod chosen;
mod damage;
mod discard;
mod early;
mod freed;
mod fsync;
mod health;
mod live_superblock;
pub mod mark;
mod packing;
mod placing;
mod prepare;
mod progress;
mod seal;
mod stamping;
pub mod superblock;
mod throttle;
mod write;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

pub use background::Background;
pub use checkpoint::Checkpoints;
pub(crate) use checkpoint::EndOfUse;
pub use discard::Trimmed;
pub(crate) use discard::{BATCH_RUNS, Discarder};
pub use health::Health;
pub use live_superblock::LiveSuperblock;
pub(crate) use progress::{EpochKind, Progress, finish_writes};

use crate::device::Patient;
use crate::error::{Error, Result};
use crate::format::Superblock;
use crate::inode::{InodeCache, Vnode};
use crate::lock::{Mutex, Rank, RwLock};
use crate::options::OpenOptions;
use crate::padded::{Counter, Padded};
use crate::trace::{OpKind, Operation};
use crate::units::{EpochNo, InodeNo};
use fsync::Callers;
use throttle::Throttle;

/// Runs the changes of a volume, and writes them to its device in epochs.
pub struct EpochWriter {
    pub(crate) inodes: Arc<InodeCache>,
    pub(crate) options: Arc<OpenOptions>,
    /// The superblock of the volume.
    pub superblock: LiveSuperblock,
    /// Whether the volume accepts changes.
    pub health: Arc<Health>,
    /// Shared by changes, held exclusively by the start of an epoch.
    pub(crate) gate: Padded<RwLock<()>>,
    /// Held while anything is written.
    pub(crate) epochs: Mutex<Progress>,
    callers: Callers,
    throttle: Throttle,
    pub(crate) counts: Counts,
}

/// Counts of epochs and the like since the volume was opened.
#[derive(Default)]
pub(crate) struct Counts {
    pub epochs: Counter,
    pub epochs_forced: Counter,
    pub early_writes: Counter,
    pub clusters: AtomicU64,
    pub compressed_bytes: AtomicU64,
    pub compressed_to_bytes: AtomicU64,
    pub checkpoints: Counter,
}

impl EpochWriter {
    /// The writer of a volume that is being opened.
    pub(crate) fn new(
        inodes: Arc<InodeCache>,
        options: Arc<OpenOptions>,
        superblock: Superblock,
    ) -> EpochWriter {
        let done = EpochNo(inodes.epoch().0.saturating_sub(1));
        let wait_max = inodes.cache.tuning().writing.group_commit_wait_max;
        let health = Arc::new(Health::new(&superblock, &options, inodes.clock.clone()));
        EpochWriter {
            gate: Padded(RwLock::new(Rank::Gate, ())),
            epochs: Mutex::new(Rank::Epochs, Progress::new(done, inodes.clock.monotonic())),
            callers: Callers::new(done, wait_max, inodes.clock.clone()),
            throttle: Throttle::new(inodes.clone(), options.early_bytes),
            superblock: LiveSuperblock::new(inodes.clone(), health.clone(), superblock),
            health,
            counts: Counts::default(),
            inodes,
            options,
        }
    }

    /// Brings the volume to checkpoints.
    pub fn checkpoints(&self) -> Checkpoints<'_> {
        Checkpoints(self)
    }

    /// Does the jobs of the background.
    pub fn background(&self) -> Background<'_> {
        Background(self)
    }

    /// Begins an operation on a file, for a recording of operations and their requests.
    pub(crate) fn enter(&self, kind: OpKind, ino: InodeNo) -> Operation<'_> {
        self.options.recorder.enter(kind, ino)
    }

    /// Begins an operation on the volume.
    pub(crate) fn enter_volume(&self, kind: OpKind) -> Operation<'_> {
        self.enter(kind, InodeNo::ROOT)
    }

    /// The vnode of a file that callers may use. Damage found on the way is recorded.
    pub(crate) fn vnode(&self, ino: InodeNo) -> Result<Arc<Vnode>> {
        self.health.check_open()?;
        if ino.is_system() && ino != InodeNo::ROOT {
            return Err(Error::Stale);
        }
        self.health.noted(self.inodes.get(ino))
    }

    /// Changes the superblock and its copies, durably, and returns it. `follow` takes over the new values,
    /// before the next change of the superblock.
    pub(crate) fn rewrite_superblock(
        &self,
        change: impl FnOnce(&mut Superblock) -> Result<()>,
        follow: impl FnOnce(&Superblock),
    ) -> Result<Superblock> {
        self.health.check_writable()?;
        let _patient = Patient::begin();
        let _epochs = self.epochs.lock();
        let mut next = self.superblock.get();
        change(&mut next)?;
        let copied = self.superblock.write_copies(&next, |_| true);
        let written = copied.and_then(|()| self.superblock.write(&next, false));
        written.inspect_err(|error| self.latch(error))?;
        self.superblock.set(next.clone());
        follow(&next);
        Ok(next)
    }

    /// The age of the oldest change that may be lost, if changes are lost because a write failed: earlier
    /// changes are on the device, and so is all that an fsync made durable since. Until the volume is closed,
    /// lost changes can still be read.
    pub fn lost(&self) -> Option<Duration> {
        self.health.lost(self.inodes.queue_len() > 0)
    }

    /// Latches the volume, so that it refuses changes and writes nothing more: for a front end in which a
    /// call panicked, since the state in memory may be half changed.
    pub fn distrust(&self, why: &str) {
        self.latch(&Error::Latched(why.to_owned()));
    }

    /// Latches the volume after an error, and wakes callers that wait for an epoch, since none will be
    /// written.
    pub(crate) fn latch(&self, error: &Error) {
        self.health.note_latched(error);
        if let Error::Corruption(corruption) = error {
            // The device works, so the record of damage can still be written. If not, it is in the log.
            self.health.note_damage(corruption);
            let _ = self.superblock.save_damage();
        }
        self.health.refuse_changes();
        self.throttle.let_go();
        self.callers.give_up();
    }

    /// Before longer writes: latches the volume if another process has taken it over.
    fn latch_if_overtaken(&self) -> Result<()> {
        let _patient = Patient::begin();
        self.superblock.check_mark().inspect_err(|error| self.latch(error))
    }
}
