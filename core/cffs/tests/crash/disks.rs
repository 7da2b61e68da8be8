//! Volumes on disks that keep the order of writes, and the states that a crash leaves of them.

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;
use std::sync::{Arc, Mutex};

use cffs::device::{BlockDevice, Geometry, Image, MemoryDevice};
use cffs::format::sector::{Body, Sector};
use cffs::format::{Layout, locator};
use cffs::units::InodeNo;
use cffs::vfs::{AllocateMode, Caller, NewKind, Volume, XattrMode, read_superblock};

use crate::mutants::Mutant;
use crate::record::{self, Disk, Event, HOME, Timeline};
use crate::states::Crashes;
use cffs_testing::crash::case::{
    self, BLOCK_BYTES, DEVICE_BYTES, FULL, GROWN_BYTES, HOLES, LARGE, Medium, Opener, ROOMY,
    Record, STOPPED,
};
use cffs_testing::crash::ops;
use cffs_testing::random::Random;

/// Added to a kind: many more files, and an inode table in more pieces than fit into its inode, so that it
/// has an extent tree. The table is full, so the next inode needs another block of it.
pub const IN_PIECES: u64 = 4;
/// The pieces of that table: one too many for its inode, with a large attribute in the same sector.
const PIECES: usize = 3;
/// Inodes that stay: the table grows while half of it is in use.
const INODES_LEFT: u64 = 400;

/// One in this many blocks is free, so that no two blocks of the table are adjacent.
const HOLES_EVERY: usize = 3;

/// Added to a kind: a journal, so small that it fills up repeatedly.
pub const JOURNALED: u64 = 8;
/// The blocks of that journal: a record has up to 255 in a larger one.
const JOURNAL_BLOCKS: usize = 40;
/// Added to a kind: such a journal on a separate disk.
pub const JOURNALED_ELSEWHERE: u64 = 16;

/// The size of a disk with a large directory: the intent log has room for all its names.
const LARGE_DEVICE_BYTES: u64 = 32 << 20;

/// Disks, and mutations of them that must be detected.
#[derive(Default)]
pub struct Disks {
    pub mutant: Option<Mutant>,
}

/// The state that a crash leaves: an image of each disk.
type Images = Vec<Image>;

/// The volumes made so far, by kind.
static STARTS: Mutex<BTreeMap<u64, Images>> = Mutex::new(BTreeMap::new());
/// The space of a device after a volume that will grow.
const ROOM_BYTES: u64 = GROWN_BYTES + 4 * ops::GAIN_BYTES;

impl Medium for Disks {
    type Left = Images;
    type Record = Reached;
    const AGAIN: &'static str = "cargo test -p cffs --test crash one";

    fn start(&self, kind: u64) -> Images {
        let kind = kind & !STOPPED;
        STARTS.lock().unwrap().entry(kind).or_insert_with(|| start(kind)).clone()
    }

    fn sound(&self) -> Disks {
        Disks::default()
    }

    fn discards_at_once(&self) -> bool {
        self.mutant == Some(Mutant::EarlyDiscard)
    }

    fn recovered(&self, device: &dyn BlockDevice) {
        if self.mutant != Some(Mutant::NotWalked) {
            return;
        }
        let mut superblock = read_superblock(device).expect("read");
        superblock.marks_walked = 0;
        device.write_at(0, &[IoSlice::new(&superblock.encode())]).expect("written");
    }

    fn put(&self, images: Images) -> Opener {
        let disk = |image| Arc::new(MemoryDevice::from_image(image)) as Arc<dyn BlockDevice>;
        let device = record::joined(images.into_iter().map(disk).collect());
        Box::new(move || Ok(device.clone()))
    }

    fn record(&self, images: Images) -> Result<(Arc<dyn BlockDevice>, Reached), String> {
        let (device, timeline) = Timeline::of(&images, self.mutant);
        let crashes = Crashes::new(&images);
        Ok((device, Reached { images, timeline, crashes, events: VecDeque::new() }))
    }
}

/// The events that reached the disks.
pub struct Reached {
    /// The images before.
    images: Images,
    timeline: Arc<Timeline>,
    crashes: Crashes,
    /// Events taken from the timeline that are not applied yet.
    events: VecDeque<(Disk, Event)>,
}

impl Record<Images> for Reached {
    fn follow(&mut self, random: &mut Random) -> Option<Vec<Images>> {
        if self.events.is_empty() {
            self.events = self.timeline.take().into();
        }
        let (disk, event) = self.events.pop_front()?;
        Some(self.crashes.follow(disk, event, random))
    }

    fn now(&self, random: &mut Random) -> Vec<Images> {
        self.crashes.now(random)
    }

    fn anywhere(self, random: &mut Random) -> Option<Images> {
        let events = self.timeline.take();
        (!events.is_empty()).then(|| Crashes::anywhere(&self.images, events, random))
    }
}

fn start(kind: u64) -> Images {
    let sector_bytes = case::sector_bytes(kind);
    let journal_bytes = (JOURNAL_BLOCKS * BLOCK_BYTES) as u64;
    let disk =
        |size_bytes| Arc::new(MemoryDevice::with_geometry(Geometry { size_bytes, sector_bytes }));
    let mut disks = vec![disk(if kind & LARGE == 0 { DEVICE_BYTES } else { LARGE_DEVICE_BYTES })];
    if kind & JOURNALED_ELSEWHERE != 0 {
        disks.push(disk(journal_bytes));
    }
    let each = disks.iter().map(|disk| disk.clone() as Arc<dyn BlockDevice>);
    let device = record::joined(each.collect());
    case::make(device.clone(), kind, if kind & JOURNALED != 0 { journal_bytes } else { 0 });
    if kind & IN_PIECES != 0 {
        break_table(&device, kind);
        assert!(is_table_in_pieces(&*device), "kind {kind}");
    }
    if kind & ROOMY != 0 {
        disks[HOME] = enlarged(&disks[HOME].snapshot());
    }
    if kind & (ROOMY | HOLES | FULL) != 0 {
        let each = disks.iter().map(|disk| disk.clone() as Arc<dyn BlockDevice>);
        case::shape(record::joined(each.collect()), kind);
    }
    disks.iter().map(|disk| disk.snapshot()).collect()
}

/// A larger disk that begins with the contents of another.
fn enlarged(image: &Image) -> Arc<MemoryDevice> {
    let old = image.geometry();
    let mut bytes = vec![0; old.size_bytes as usize];
    image.read(0, &mut bytes).expect("read");
    let geometry = Geometry { size_bytes: old.size_bytes + ROOM_BYTES, ..old };
    let disk = Arc::new(MemoryDevice::with_geometry(geometry));
    disk.write_at(0, &[IoSlice::new(&bytes)]).expect("written");
    disk
}

/// Leaves free space only in single blocks, and makes each mount fill a block of the table.
fn break_table(device: &Arc<dyn BlockDevice>, kind: u64) {
    let volume = case::open(device.clone(), kind).expect("a volume");
    scatter_free_space(&volume);
    volume.close().expect("close");
    let per_block = u64::from(locator::entries_per_block(BLOCK_BYTES as u32));
    let mut made = Vec::new();
    for piece in 0..PIECES {
        let volume = case::open(device.clone(), kind).expect("a volume");
        volume
            .set_xattr(&Caller::ROOT, InodeNo::ROOT, ops::XATTR, &[7; 3400], XattrMode::Any)
            .expect("set");
        let make =
            |dir, name: &str, kind| ops::make(&volume, dir, name.as_bytes(), kind).expect("made");
        let dir = make(InodeNo::ROOT, &format!("piece {piece}"), NewKind::Directory);
        loop {
            let name = format!("pipe {}", made.len());
            // A pipe is never read, so that examining the volume changes no times.
            let ino = make(dir, &name, NewKind::Fifo);
            made.push((dir, name));
            if ino.0 + 1 == (piece as u64 + 1) * per_block {
                break;
            }
        }
        volume.close().expect("close");
    }
    let volume = case::open(device.clone(), kind).expect("a volume");
    // The same number in each directory.
    let spare = (volume.stat_fs().inodes - INODES_LEFT) as usize;
    let all = made.len();
    for (number, (dir, name)) in made.into_iter().enumerate() {
        if (number + 1) * spare / all > number * spare / all {
            volume.unlink(&Caller::ROOT, dir, name.as_bytes()).expect("unlink");
        }
    }
    volume.close().expect("close");
}

/// Makes one file take all space, and frees every few blocks.
fn scatter_free_space(volume: &Volume) {
    let filler = ops::make(volume, InodeNo::ROOT, b"filler", NewKind::Regular).expect("made");
    let block = BLOCK_BYTES as u64;
    let take = |nth: &u64| {
        volume.allocate(&Caller::ROOT, filler, nth * block, block, AllocateMode::Reserve).is_ok()
    };
    let blocks = (0..).take_while(take).count() as u64;
    for hole in (0..blocks).step_by(HOLES_EVERY) {
        volume
            .allocate(&Caller::ROOT, filler, hole * block, block, AllocateMode::PunchHole)
            .expect("punched");
    }
}

/// Whether the table of inodes has an extent tree.
fn is_table_in_pieces(device: &dyn BlockDevice) -> bool {
    let layout = Layout::new(&read_superblock(device).expect("a superblock"));
    let mut area = vec![0; BLOCK_BYTES];
    device.read_at(layout.block_offset(layout.system_area()), &mut area).expect("read");
    let sectors = area.chunks_exact(layout.sector_bytes as usize).map(Sector::new);
    let entry = sectors.filter_map(|sector| sector.find_inode(InodeNo::LOCATOR)).next();
    match entry.expect("the table").body {
        Body::Embedded(record) => record.inode.map_root.get() != 0,
        Body::Reference { .. } => false,
    }
}
