//! How a volume is opened.

use std::sync::Arc;
use std::time::Duration;

use crate::format::superblock::ErrorsPolicy;
use crate::host::Host;
use crate::trace::Recorder;
use crate::tuning::{BREAK_EVEN_BYTES, EARLY_BYTES, FSYNC_LEAVES_BYTES, LARGE_DIR_BYTES, Tuning};
use crate::waiter::{InPlace, Waiter};

/// When a read sets the access time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtimeMode {
    /// If it is before the last change, or more than a day old.
    #[default]
    Relative,
    /// Always.
    Strict,
    /// Never.
    Never,
}

impl AtimeMode {
    /// The mount option for it.
    pub fn name(self) -> &'static str {
        match self {
            AtimeMode::Relative => "relatime",
            AtimeMode::Strict => "strictatime",
            AtimeMode::Never => "noatime",
        }
    }
}

/// The use of the journal of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JournalMode {
    /// Epochs go through it.
    #[default]
    On,
    /// It is made empty, and each epoch takes its phases.
    Off,
    /// The same; if the journal is empty and on another device, that device may be missing.
    None,
}

/// How a volume is opened.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// No change is accepted and nothing is written to the device.
    pub read_only: bool,
    /// The bytes of the cache for clean blocks.
    pub cache_bytes: u64,
    /// The bytes of changes in memory at which an epoch goes to the device at once.
    pub dirty_bytes_max: u64,
    /// The bytes of new contents of files at which the background begins to write them, ahead of
    /// their epoch; [`u64::MAX`] for never.
    pub early_bytes: u64,
    /// An fsync of one file leaves the new contents of other files in memory for the next epoch, if they have
    /// more bytes than this; [`u64::MAX`] for never.
    pub fsync_leaves_bytes: u64,
    /// A directory with more bytes of sectors gets an index, and the intent log lists its changes by block.
    pub large_dir_bytes: u64,
    /// Bytes that the device streams in the time of a seek: the sizes of reads, places and writes are
    /// multiples of it ([`Tuning`]).
    pub break_even_bytes: u64,
    /// Changes the figures derived from this, for measurements of single ones.
    pub tune: fn(&mut Tuning),
    /// How long changes stay in memory before the background epoch.
    pub epoch_interval: Duration,
    /// How long nothing is changed before the background writes derived state and marks the volume as clean;
    /// [`Duration::MAX`] for never.
    pub clean_after: Duration,
    /// The longest time between checkpoints of a volume that is constantly changed. A checkpoint writes all
    /// derived state, so that little has to be recovered after a crash.
    pub clean_every: Duration,
    /// The most time that these checkpoints may take, in percent.
    pub clean_share_percent: u32,
    /// When a read sets the access time.
    pub atime: AtimeMode,
    /// Observes which files are read together, so that they can be moved together
    /// ([`Scattered::Used`](crate::vfs::Scattered::Used)).
    pub observe: bool,
    /// Every change is durable before its call returns.
    pub sync: bool,
    /// Freed blocks are discarded, once their epoch is on the device.
    pub discard: bool,
    /// The use of the journal, if the volume has one.
    pub journal: JournalMode,
    /// The reaction to damage; by default that of the superblock, or else to continue.
    pub errors: ErrorsPolicy,
    /// The identity of this process, with which a volume is marked while it is open for writing. The mark of
    /// another process prevents opening it. With `None`, no mark is made or checked.
    pub host: Option<Arc<dyn Host>>,
    /// Opens the volume for writing although another process has it open, or may have it open.
    pub take_over: bool,
    /// Learns when a thread that called is about to wait.
    pub waiter: Arc<dyn Waiter>,
    /// Records operations, and the requests that they cause of a
    /// [`RecordedDevice`](crate::trace::RecordedDevice) of the same recorder.
    pub recorder: Arc<Recorder>,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            read_only: false,
            cache_bytes: 256 << 20,
            dirty_bytes_max: 64 << 20,
            early_bytes: EARLY_BYTES,
            fsync_leaves_bytes: FSYNC_LEAVES_BYTES,
            large_dir_bytes: LARGE_DIR_BYTES,
            break_even_bytes: BREAK_EVEN_BYTES,
            tune: |_| (),
            epoch_interval: Duration::from_secs(5),
            clean_after: Duration::from_secs(10),
            clean_every: Duration::from_secs(30),
            clean_share_percent: 10,
            atime: AtimeMode::default(),
            observe: false,
            sync: false,
            discard: false,
            journal: JournalMode::On,
            errors: ErrorsPolicy::Default,
            host: None,
            take_over: false,
            waiter: Arc::new(InPlace),
            recorder: Arc::default(),
        }
    }
}
