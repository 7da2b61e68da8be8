//! The volumes of the schedules.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cffs::clock::TestClock;
use cffs::device::Image;
use cffs::format::superblock::{Compression, Policy};
use cffs::mkfs::{self, MkfsOptions};
use cffs::tuning::LARGE_DIR_BYTES;
use cffs::units::InodeNo;
use cffs::vfs::{AllocateMode, Caller, NewKind, OpenOptions, Volume};

use crate::device::SlowDevice;
use crate::work::{self, Work};

/// The number of threads that change files.
const CHANGERS: usize = 3;
const DEVICE_BYTES: u64 = 16 << 20;
/// The size to which the device can grow.
pub const DEVICE_BYTES_MAX: u64 = 20 << 20;
const JOURNAL_BYTES: u64 = 40 * 4096;
/// The space that is left on a full volume, and on one that can still write clusters, which compaction
/// reserves a part of.
const LEFT_BYTES: u64 = 16 * 4096;
const LEFT_FOR_CLUSTERS_BYTES: u64 = 40 * 4096;
/// The space that its filler takes at once.
const FILL_BYTES: u64 = 16 << 10;

/// A kind of volume.
struct Kind {
    options: MkfsOptions,
    /// The free bytes, if the volume is nearly full.
    left_bytes: Option<u64>,
}

/// The kinds of volumes: with inodes in directories or in a table, with small sectors, with and without
/// grouping of files, with a journal that is repeatedly full, with space for a part of the files.
fn kinds() -> Vec<Kind> {
    let mut kinds = Vec::new();
    for (embed, sector_bytes, policy, journal_bytes, left_bytes) in [
        (true, 4096, Policy::Directory, 0, None),
        (true, 512, Policy::Directory, 0, None),
        (false, 4096, Policy::Directory, 0, None),
        (true, 4096, Policy::None, 0, None),
        (true, 4096, Policy::Directory, JOURNAL_BYTES, None),
        (true, 4096, Policy::Directory, 0, Some(LEFT_BYTES)),
        (true, 512, Policy::Directory, 0, Some(LEFT_BYTES)),
    ] {
        let (sector_bytes, default) = (Some(sector_bytes), MkfsOptions::default());
        let options = MkfsOptions { embed, sector_bytes, policy, journal_bytes, ..default };
        kinds.push(Kind { options, left_bytes });
    }
    kinds
}

/// The kinds of volumes with compressed contents: with inodes in directories or in a table, with small
/// sectors and a journal, with segments so short that most files are large, and are compressed in pieces,
/// with space for a part of the files.
fn compressed_kinds() -> Vec<Kind> {
    let mut kinds = Vec::new();
    for (embed, sector_bytes, segment_bytes, journal_bytes, left_bytes) in [
        (true, 4096, 64 << 10, 0, None),
        (true, 512, 64 << 10, JOURNAL_BYTES, None),
        (false, 4096, 64 << 10, 0, None),
        (true, 4096, 4096, 0, None),
        (true, 4096, 64 << 10, 0, Some(LEFT_BYTES)),
        (true, 4096, 64 << 10, 0, Some(LEFT_FOR_CLUSTERS_BYTES)),
    ] {
        let (sector_bytes, default) = (Some(sector_bytes), MkfsOptions::default());
        let compression = Some(Compression::Zstd(1));
        let options = MkfsOptions {
            embed,
            sector_bytes,
            segment_bytes,
            journal_bytes,
            compression,
            ..default
        };
        kinds.push(Kind { options, left_bytes });
    }
    kinds
}

/// A volume on which a schedule begins, and its directories: shared ones, and those of single threads.
#[derive(Clone)]
pub struct Start {
    image: Image,
    pub shared: [InodeNo; 2],
    pub own: Vec<InodeNo>,
    /// Space may run out.
    pub is_full: bool,
}

/// The volumes of the schedules with this work.
pub fn starts(work: Work) -> &'static [Start] {
    static PLAIN: OnceLock<Vec<Start>> = OnceLock::new();
    static COMPRESSED: OnceLock<Vec<Start>> = OnceLock::new();
    let (starts, kinds): (_, fn() -> Vec<Kind>) = match work {
        Work::Plain => (&PLAIN, kinds),
        Work::WithClusters => (&COMPRESSED, compressed_kinds),
    };
    starts.get_or_init(|| kinds().iter().map(Start::new).collect())
}

impl Start {
    fn new(kind: &Kind) -> Start {
        let device = Arc::new(SlowDevice::new(DEVICE_BYTES, DEVICE_BYTES_MAX));
        mkfs::make(&*device, &kind.options).expect("mkfs");
        let volume = Opening::default().open(&device);
        let make = |name: &str, kind| {
            let made = volume.make(&Caller::ROOT, InodeNo::ROOT, name.as_bytes(), &work::new(kind));
            let ino = made.expect("made").ino;
            volume.release(ino, 1);
            ino
        };
        let directory = |name: &str| make(name, NewKind::Directory);
        let shared = [directory("shared"), directory("shared too")];
        let own = (0..CHANGERS).map(|number| directory(&format!("own {number}"))).collect();
        if let Some(left_bytes) = kind.left_bytes {
            let (filler, left) = (make("filler", NewKind::Regular), make("left", NewKind::Regular));
            let mode = AllocateMode::ReserveKeepSize;
            let reserve = |ino, from, len| volume.allocate(&Caller::ROOT, ino, from, len, mode);
            reserve(left, 0, left_bytes).expect("reserved");
            let filled = (0..).step_by(FILL_BYTES as usize);
            let taken = filled.take_while(|from| reserve(filler, *from, FILL_BYTES).is_ok());
            assert!(taken.count() > 0, "nothing is filled");
            volume.unlink(&Caller::ROOT, InodeNo::ROOT, b"left").expect("removed");
        }
        volume.close().expect("closed");
        Start { image: device.snapshot(), shared, own, is_full: kind.left_bytes.is_some() }
    }

    /// A device with the volume.
    pub fn device(&self) -> Arc<SlowDevice> {
        Arc::new(SlowDevice::of(self.image.clone(), DEVICE_BYTES))
    }
}

/// How a volume is opened.
#[derive(Clone, Copy, Default)]
pub struct Opening {
    /// The cache can keep more than a few blocks.
    pub has_memory: bool,
    pub has_indexes: bool,
    pub discards: bool,
}

impl Opening {
    /// Opens a volume.
    pub fn open(self, device: &Arc<SlowDevice>) -> Volume {
        open(device, self.options())
    }

    pub fn options(self) -> OpenOptions {
        OpenOptions {
            cache_bytes: if self.has_memory { 1 << 20 } else { 64 << 10 },
            large_dir_bytes: if self.has_indexes { 0 } else { LARGE_DIR_BYTES },
            discard: self.discards,
            dirty_bytes_max: 64 << 10,
            early_bytes: 8 << 10,
            epoch_interval: Duration::ZERO,
            clean_after: Duration::MAX,
            clean_every: Duration::MAX,
            ..OpenOptions::default()
        }
    }
}

/// Opens a volume.
pub fn open(device: &Arc<SlowDevice>, options: OpenOptions) -> Volume {
    Volume::open(device.clone(), Arc::new(TestClock::default()), options).expect("opened")
}
