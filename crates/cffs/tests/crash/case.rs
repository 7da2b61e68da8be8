//! One workload on one kind of volume: runs it, tries the crashes, and says what went wrong.

use std::sync::{Arc, OnceLock};

use cffs::clock::TestClock;
use cffs::device::{BlockDevice, Geometry, Image, MemoryDevice};
use cffs::format::sector::{Body, Sector};
use cffs::format::superblock::State;
use cffs::format::{Layout, locator};
use cffs::fsck::{self, CheckOptions, Repair};
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::{AllocateMode, NewKind, OpenOptions, Volume, XattrMode, read_superblock};

use crate::Random;
use crate::mutants::Mutant;
use crate::ops::{self, Op, Promise};
use crate::record::{self, Timeline};
use crate::states::Crashes;
use crate::tree::{History, Tree};

const DEVICE_BYTES: u64 = 4 << 20;
pub const BLOCK_BYTES: usize = 4096;
pub const UUID: [u8; 16] = [7; 16];
/// One state in so many is crashed twice more while it recovers.
const CRASH_AGAIN: u64 = 8;

/// What was tried.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tried {
    pub workloads: u64,
    /// States after a crash, those of crashed recoveries included.
    pub states: u64,
    /// Crashes while recovering.
    pub recoveries: u64,
    /// States that are, as a whole, one that the workload went through.
    pub moments: u64,
}

impl Tried {
    pub fn add(&mut self, other: Tried) {
        self.workloads += other.workloads;
        self.states += other.states;
        self.recoveries += other.recoveries;
        self.moments += other.moments;
    }
}

/// A kind of volume, with the calls of [`ops::start`] made, closed.
pub struct Start {
    /// Of each disk.
    images: Vec<Image>,
}

/// Embedded inodes or not, on sectors of 4096 or of 512 bytes.
pub const KINDS: u64 = 4;
/// Added to a kind: many files more, and a table of inodes that lies in more pieces than its inode has
/// room for, so that it has an extent tree, and that is full, so that the next inode needs a block
/// more of it.
pub const IN_PIECES: u64 = 4;
/// Pieces that the table lies in then: one too many, with a large attribute in the same sector.
const PIECES: usize = 3;
/// Of so many blocks in a row one is free, so that no two blocks of the table lie side by side.
const HOLES_EVERY: usize = 3;
/// Inodes that stay: the table grows while half of it is in use.
const INODES_LEFT: u64 = 400;

/// Added to a kind: a stable log, so small that it is full again and again.
pub const LOGGED: u64 = 8;
/// The blocks of that log: a record has up to 255 in a larger one.
const LOG_BLOCKS: usize = 40;
/// Added to a kind: such a log on a disk of its own.
pub const LOGGED_ELSEWHERE: u64 = 16;

static STARTS: [OnceLock<Start>; (LOGGED_ELSEWHERE + KINDS) as usize] =
    [const { OnceLock::new() }; (LOGGED_ELSEWHERE + KINDS) as usize];

impl Start {
    /// The kind of this number, which is made once.
    pub fn of(kind: u64) -> &'static Start {
        STARTS[kind as usize].get_or_init(|| Start::new(kind))
    }

    fn new(kind: u64) -> Start {
        let sector_bytes = if kind & 1 == 0 { 4096 } else { 512 };
        let log_bytes = (LOG_BLOCKS * BLOCK_BYTES) as u64;
        let disk = |size_bytes| {
            Arc::new(MemoryDevice::with_geometry(Geometry { size_bytes, sector_bytes }))
        };
        let mut disks = vec![disk(DEVICE_BYTES)];
        if kind & LOGGED_ELSEWHERE != 0 {
            disks.push(disk(log_bytes));
        }
        let each = disks.iter().map(|disk| disk.clone() as Arc<dyn BlockDevice>);
        let device = record::joined(each.collect());
        let options = MkfsOptions {
            embed: kind & 2 == 0,
            cg_blocks: 512,
            uuid: Some(UUID),
            block_bytes: BLOCK_BYTES as u32,
            hash_seed: Some([9; 16]),
            log_bytes: if kind & LOGGED != 0 { log_bytes } else { 0 },
            ..MkfsOptions::default()
        };
        mkfs::make(&*device, &options).expect("mkfs");
        let volume = open(device.clone()).expect("a new volume");
        for (serial, op) in ops::start().iter().enumerate() {
            op.apply(&volume, serial as u8);
        }
        volume.close().expect("close");
        if kind & IN_PIECES != 0 {
            break_table(&device);
            assert!(is_table_in_pieces(&*device), "kind {kind}");
        }
        Start { images: disks.iter().map(|disk| disk.snapshot()).collect() }
    }
}

/// Leaves free space in single blocks, and has each mount fill a block of the table.
fn break_table(device: &Arc<dyn BlockDevice>) {
    scatter_free_space(&open(device.clone()).expect("a volume"));
    let per_block = u64::from(locator::entries_per_block(BLOCK_BYTES as u32));
    let mut made = Vec::new();
    for piece in 0..PIECES {
        let volume = open(device.clone()).expect("a volume");
        volume.set_xattr(InodeNo::ROOT, ops::XATTR, &[7; 3400], XattrMode::Any).expect("set");
        let make =
            |dir, name: &str, kind| ops::make(&volume, dir, name.as_bytes(), kind).expect("made");
        let dir = make(InodeNo::ROOT, &format!("piece {piece}"), NewKind::Directory);
        loop {
            let name = format!("pipe {}", made.len());
            // Which nobody reads, so that looking at the volume changes no times.
            let ino = make(dir, &name, NewKind::Fifo);
            made.push((dir, name));
            if ino.0 + 1 == (piece as u64 + 1) * per_block {
                break;
            }
        }
        volume.close().expect("close");
    }
    let volume = open(device.clone()).expect("a volume");
    // Of each directory as many.
    let spare = (volume.stat_fs().inodes - INODES_LEFT) as usize;
    let all = made.len();
    for (number, (dir, name)) in made.into_iter().enumerate() {
        if (number + 1) * spare / all > number * spare / all {
            volume.unlink(dir, name.as_bytes()).expect("unlink");
        }
    }
    volume.close().expect("close");
}

/// Has one file take all space, and give every few blocks back.
fn scatter_free_space(volume: &Volume) {
    let filler = ops::make(volume, InodeNo::ROOT, b"filler", NewKind::Regular).expect("made");
    let block = BLOCK_BYTES as u64;
    let take =
        |nth: &u64| volume.allocate(filler, nth * block, block, AllocateMode::Reserve).is_ok();
    let blocks = (0..).take_while(take).count() as u64;
    for hole in (0..blocks).step_by(HOLES_EVERY) {
        volume.allocate(filler, hole * block, block, AllocateMode::PunchHole).expect("punched");
    }
    volume.close().expect("close");
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

fn open(device: Arc<dyn BlockDevice>) -> Result<Volume, String> {
    // An fsync leaves behind whatever it may, what may be written early is, and what was freed is
    // discarded.
    let options = OpenOptions {
        cache_bytes: 1 << 20,
        fsync_leaves_bytes: 0,
        early_bytes: BLOCK_BYTES as u64,
        discard: true,
        ..OpenOptions::default()
    };
    Volume::open(device, Arc::new(TestClock::default()), options)
        .map_err(|error| format!("it cannot be opened: {error}"))
}

/// Recovers, as opening for writing does: what was left clean is left alone. It has to be enough to
/// look at what was busy.
fn recover(device: &dyn BlockDevice) -> Result<(), String> {
    let superblock = read_superblock(device).map_err(|error| format!("superblock: {error}"))?;
    if superblock.state == State::Clean {
        return Ok(());
    }
    let options = CheckOptions { repair: Repair::Preen, threads: 1, ..CheckOptions::default() };
    let report =
        fsck::check(device, &options, &()).map_err(|error| format!("recovery: {error}"))?;
    match report.problems.iter().find(|problem| !problem.fixed) {
        Some(problem) => Err(format!("not recovered: {problem}")),
        None => match report.full_because {
            Some(why) => Err(format!("all had to be checked: {why}")),
            None => Ok(()),
        },
    }
}

fn check(device: &dyn BlockDevice, when: &str) -> Result<(), String> {
    let options =
        CheckOptions { force: true, contents: true, threads: 1, ..CheckOptions::default() };
    let report = fsck::check(device, &options, &()).map_err(|error| format!("{when}: {error}"))?;
    match report.problems.first() {
        Some(problem) => Err(format!("{when}: {problem}")),
        None if !report.recovered.is_empty() => {
            Err(format!("{when}: left to recover: {:?}", report.recovered))
        }
        None => Ok(()),
    }
}

/// The run of one workload.
struct Run<'a> {
    all: &'a [Op],
    random: Random,
    history: History,
    tried: Tried,
}

/// Makes the calls on a volume and tries the crashes. The error says what a crash did.
pub fn run(
    start: &Start,
    all: &[Op],
    workload: &[Op],
    seed: u64,
    mutant: Option<Mutant>,
) -> Result<Tried, String> {
    let (device, timeline) = Timeline::of(&start.images, mutant);
    let mut crashes = Crashes::new(&start.images);
    let volume = open(device)?;
    let mut run = Run {
        all,
        random: Random::new(seed),
        history: History::new(Tree::of(&volume)?),
        tried: Tried { workloads: 1, ..Tried::default() },
    };
    // As the background would at any moment; in about half of all workloads only closing does.
    let digits = format!("{workload:?}").bytes().fold(seed, |sum, byte| sum + u64::from(byte));
    let discards_at_once = digits % 2 == 1 || mutant == Some(Mutant::EarlyDiscard);
    for (step, op) in workload.iter().enumerate() {
        let promise = op.apply(&volume, step as u8 + 100);
        if discards_at_once {
            volume.discard_freed().map_err(|error| format!("call {step}: {error}"))?;
        }
        run.history.push(Tree::of(&volume)?);
        run.crash_in(&timeline, &mut crashes).map_err(|why| format!("in call {step}: {why}"))?;
        match promise {
            Promise::Nothing => continue,
            Promise::File(ino) => run.history.file_synced(ino),
            Promise::Everything => run.history.synced(),
        }
        // What was promised must be there whatever the device has not synced yet.
        for images in crashes.now(&mut run.random) {
            run.try_state(images).map_err(|why| format!("after call {step}: {why}"))?;
        }
    }
    volume.close().map_err(|error| format!("closing: {error}"))?;
    run.crash_in(&timeline, &mut crashes).map_err(|why| format!("closing: {why}"))?;
    run.history.synced();
    for images in crashes.now(&mut run.random) {
        run.try_state(images).map_err(|why| format!("closed: {why}"))?;
    }
    Ok(run.tried)
}

impl Run<'_> {
    fn crash_in(&mut self, timeline: &Timeline, crashes: &mut Crashes) -> Result<(), String> {
        for (disk, event) in timeline.take() {
            for images in crashes.follow(disk, event, &mut self.random) {
                self.try_state(images)?;
            }
        }
        Ok(())
    }

    fn try_state(&mut self, mut images: Vec<Image>) -> Result<(), String> {
        if self.random.below(CRASH_AGAIN) == 0 {
            for _ in 0..2 {
                images = self.crash_recovery(images)?;
            }
        }
        self.tried.states += 1;
        let disk = |image| Arc::new(MemoryDevice::from_image(image)) as Arc<dyn BlockDevice>;
        let device = record::joined(images.into_iter().map(disk).collect());
        recover(&device)?;
        check(&device, "after recovery")?;
        let volume = open(device.clone())?;
        let found = Tree::of(&volume)?;
        self.history.refuse(&found)?;
        self.tried.moments += u64::from(self.history.is_moment(&found));
        for serial in 0..2 {
            self.all[self.random.below(self.all.len() as u64) as usize].apply(&volume, serial);
        }
        let going_on = Tree::of(&volume)?;
        volume.close().map_err(|error| format!("going on: {error}"))?;
        check(&device, "after going on")?;
        let volume = open(device)?;
        if History::new(going_on).is_moment(&Tree::of(&volume)?) {
            Ok(())
        } else {
            Err("what was done after recovery is not there".into())
        }
    }

    /// Recovers, and crashes meanwhile.
    fn crash_recovery(&mut self, images: Vec<Image>) -> Result<Vec<Image>, String> {
        let (device, timeline) = Timeline::of(&images, None);
        recover(&device)?;
        let events = timeline.take();
        if events.is_empty() {
            return Ok(images);
        }
        self.tried.states += 1;
        self.tried.recoveries += 1;
        Ok(Crashes::anywhere(&images, events, &mut self.random))
    }
}
