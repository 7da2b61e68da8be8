//! Epochs: writing the changes of an open volume to its device.
//!
//! Offers [`EpochWriter`], which runs changes, writes them in epochs, makes them durable on demand, and keeps
//! the superblock. It knows whether the volume still accepts changes. Stands on `namespace` and the layers
//! below.
//!
//! | module | content |
//! | --- | --- |
//! | `change` | a change: the gate, and what happens when there is no space |
//! | `write` | an epoch from its start to its end, and the background |
//! | `prepare`, `placing`, `batch`, `seal` | its preparation in memory: places, inodes, sectors |
//! | `early`, `packing` | contents that are written ahead of it, and compressed before that |
//! | `fsync` | epochs on demand, shared by their callers |
//! | `checkpoint` | checkpoints, and the mark of a clean volume |
//! | `throttle` | writers that wait, and the background thread |
//! | `superblock`, `mark` | the superblock, and the mark of the process that has the volume open |
//! | `health`, `damage` | whether changes are accepted, and the record of damage |
//! | `discard`, `freed` | discards of freed space |
//!
//! Invariants: a change holds the gate shared, and an epoch's start holds it exclusively, so an epoch starts
//! between changes. The lock of epochs is taken before the gate. After a failed write of metadata the volume
//! is latched: it writes nothing more.

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

pub(crate) use discard::BATCH_RUNS;
pub use discard::Trimmed;
pub(crate) use progress::{EpochKind, Progress, finish_writes};

use crate::error::{Error, Result};
use crate::format::Superblock;
use crate::inode::{InodeCache, Vnode};
use crate::lock::{Mutex, Rank, RwLock};
use crate::options::OpenOptions;
use crate::padded::{Counter, Padded};
use crate::trace::{OpKind, Operation};
use crate::units::{EpochNo, InodeNo};
use damage::DamageRecord;
use fsync::Callers;
use health::Health;
use throttle::Throttle;

/// Writes the changes of a volume to its device.
pub struct EpochWriter {
    pub(crate) inodes: Arc<InodeCache>,
    pub(crate) options: Arc<OpenOptions>,
    superblock: Mutex<Superblock>,
    /// Shared by changes, held exclusively by the start of an epoch.
    pub(crate) gate: Padded<RwLock<()>>,
    /// Held while anything is written.
    pub(crate) epochs: Mutex<Progress>,
    callers: Callers,
    throttle: Throttle,
    health: Health,
    damage: DamageRecord,
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
    pub clean_points: Counter,
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
        EpochWriter {
            gate: Padded(RwLock::new(Rank::Gate, ())),
            epochs: Mutex::new(Rank::Epochs, Progress::new(done)),
            callers: Callers::new(done, wait_max),
            throttle: Throttle::new(options.early_bytes),
            health: Health::new(options.read_only),
            damage: DamageRecord::new(&superblock, options.errors),
            superblock: Mutex::new(Rank::Leaf, superblock),
            counts: Counts::default(),
            inodes,
            options,
        }
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
        self.check_open()?;
        if ino.is_system() && ino != InodeNo::ROOT {
            return Err(Error::Stale);
        }
        self.noted(self.inodes.get(ino))
    }
}
