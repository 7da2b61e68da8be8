//! One workload on one kind of volume: runs it, tries the crashes, and reports violations.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use cffs::clock::TestClock;
use cffs::device::BlockDevice;
use cffs::format::superblock::{Compression, State};
use cffs::fsck::{self, CheckOptions, Repair};
use cffs::mkfs::{self, MkfsOptions};
use cffs::tuning::{BREAK_EVEN_BYTES, LARGE_DIR_BYTES};
use cffs::units::InodeNo;
use cffs::vfs::{
    AllocateMode, Amount, Caller, JournalMode, Marks, NewKind, OpenOptions, Quotas, Volume,
    read_superblock,
};

use super::ops::{self, Op, Promise};
use super::tree::{History, Tree};
use crate::quota;
use crate::random::Random;

pub const DEVICE_BYTES: u64 = 4 << 20;
pub const BLOCK_BYTES: usize = 4096;
pub const UUID: [u8; 16] = [7; 16];
/// In one state of this many, two more crashes happen during recovery.
const CRASH_AGAIN: u64 = 8;

/// Added to a kind: files of several units that are moved together, and free runs that are too short for a
/// unit, so that halves are moved.
pub const SCATTERED: u64 = 32;
/// The length of a unit on such a volume: the longest request.
pub const UNIT_BYTES_MAX: u64 = 16 * BLOCK_BYTES as u64;
/// The bytes that the disk of such a volume streams in the time of an access, so that halves of units have
/// at least four blocks.
const BREAK_EVEN_SCATTERED_BYTES: u64 = UNIT_BYTES_MAX / 4;
/// The files, and the length of each: together more than two units.
const SCATTERED_FILES: u8 = 14;
const SCATTERED_FILE_BYTES: usize = 9000;
/// The blocks of each run of free space, and between two of them.
const SCATTERED_RUN_BLOCKS: u64 = 11;

/// Added to a kind: the device has room for the volume to grow.
pub const ROOMY: u64 = 64;
/// Added to a roomy kind: the volume has grown.
pub const GROWN: u64 = 128;
/// Added to a kind: free space is in runs of `HOLE_BLOCKS`.
pub const HOLES: u64 = 256;
/// Added to a kind: nearly all space is taken.
pub const FULL: u64 = 512;
/// Added to a kind with a journal: the journal is not used, until a crash.
pub const STOPPED: u64 = 1024;
/// Added to a kind: contents are compressed.
pub const COMPRESSED: u64 = 2048;
/// Added to a compressed kind: copies of a small and of a large file share the clusters of these files.
pub const SHARED: u64 = 16_384;
/// Added to a kind: each directory with a block counts as large, so it has an index, and the intent log lists
/// its changes by block and bucket. `d` has several blocks.
pub const LARGE: u64 = 4096;
/// Added to a kind: the volume has a mark, and all that changes is listed.
pub const MARKED: u64 = 8192;
/// Added to a kind: `d` has a quota, whose account is compared with a count.
pub const QUOTA: u64 = 32_768;
/// The name of that mark.
const MARK: &str = "start";
/// The files that make `d` large: with five more names, its index has another bucket.
const LARGE_FILES: usize = 170;
/// The names that `d` then has, and its minimum number of blocks, with embedded inodes and without.
const LARGE_NAMES: usize = LARGE_FILES + 3;
const LARGE_BLOCKS_MIN: [u64; 2] = [8, 2];
const HOLE_BLOCKS: u64 = 3;
/// The free blocks of a full volume: fewer than some of the calls need.
const FULL_LEFT_BLOCKS: u64 = 40;
/// The bytes that a grown volume has gained.
pub const GROWN_BYTES: u64 = 1 << 20;

/// Counts of an exploration.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tried {
    pub workloads: u64,
    /// States after a crash, those of crashed recoveries included.
    pub states: u64,
    /// Crashes while recovering.
    pub recoveries: u64,
    /// States that equal, as a whole, a state that the workload went through.
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

/// A medium for volumes, which can be crashed.
pub trait Medium: Sized + Sync {
    /// The state that a crash leaves.
    type Left: Clone;
    type Record: Record<Self::Left>;
    /// The command that runs one workload.
    const AGAIN: &'static str;

    /// A volume of a kind, with the calls of [`ops::start`] made, closed.
    fn start(&self, kind: u64) -> Self::Left;
    /// The same medium without a mutant.
    fn sound(&self) -> Self;
    /// Whether freed space has to be discarded at once.
    fn discards_at_once(&self) -> bool {
        false
    }
    /// Changes a volume that was recovered, as a mutant of recovery would.
    fn recovered(&self, _: &dyn BlockDevice) {}
    /// Continues from a state.
    fn put(&self, left: Self::Left) -> Opener;
    /// Continues from a state, and records the changes that follow.
    fn record(&self, left: Self::Left) -> Result<(Arc<dyn BlockDevice>, Self::Record), String>;
}

/// Opens the device of a volume that is not open.
pub type Opener = Box<dyn Fn() -> Result<Arc<dyn BlockDevice>, String>>;

/// The changes that reached a medium.
pub trait Record<Left> {
    /// Moves to the next change, if any, and returns the states that a crash during it could leave.
    fn follow(&mut self, random: &mut Random) -> Option<Vec<Left>>;
    /// The states that a crash could leave now.
    fn now(&self, random: &mut Random) -> Vec<Left>;
    /// One of the states that a crash could leave, if there was any change.
    fn anywhere(self, random: &mut Random) -> Option<Left>;
}

pub fn sector_bytes(kind: u64) -> u32 {
    if kind & 1 == 0 { 4096 } else { 512 }
}

/// Makes a volume of a kind, makes the calls of [`ops::start`], and closes it.
pub fn make(device: Arc<dyn BlockDevice>, kind: u64, journal_bytes: u64) {
    let options = MkfsOptions {
        embed: kind & 2 == 0,
        cg_blocks: 512,
        uuid: Some(UUID),
        block_bytes: BLOCK_BYTES as u32,
        hash_seed: Some([9; 16]),
        journal_bytes,
        compression: (kind & COMPRESSED != 0).then_some(Compression::Zstd(1)),
        ..MkfsOptions::default()
    };
    mkfs::make(&*device, &options).expect("mkfs");
    let volume = open(device, kind).expect("a new volume");
    for (serial, op) in ops::start().iter().enumerate() {
        op.apply(&volume, serial as u8);
    }
    if kind & SCATTERED != 0 {
        scatter_files(&volume);
    }
    if kind & COMPRESSED != 0 {
        for op in [Op::MakeDir("c"), Op::Fill("c", 6, 3000), Op::WriteEarly] {
            op.apply(&volume, 99);
        }
    }
    if kind & SHARED != 0 {
        share_clusters(&volume);
    }
    if kind & LARGE != 0 {
        enlarge_directory(&volume, kind);
    }
    if kind & MARKED != 0 {
        Marks::of(&volume).set(MARK).expect("marked");
    }
    if kind & QUOTA != 0 {
        // All names of a file have one quota, and it has another name in `d`.
        Op::Unlink("h").apply(&volume, 99);
        let dir = volume.lookup(InodeNo::ROOT, b"d").expect("made").ino;
        volume.release(dir, 1);
        Quotas::of(&volume).set(dir, Amount::UNLIMITED).expect("set");
    }
    volume.close().expect("close");
}

/// Fills `d`, which has files with the first of the names already.
fn enlarge_directory(volume: &Volume, kind: u64) {
    for op in [Op::Empty("d", LARGE_FILES), Op::Fill("d", LARGE_FILES, 0)] {
        op.apply(volume, 99);
    }
    let dir = volume.lookup(InodeNo::ROOT, b"d").expect("made");
    volume.release(dir.ino, 1);
    let mut names = 0;
    let read = volume.read_dir(dir.ino, 0, false, &mut |_| {
        names += 1;
        true
    });
    read.expect("read");
    assert_eq!(names, LARGE_NAMES, "names of a large directory");
    let blocks = dir.size / BLOCK_BYTES as u64;
    let blocks_min = LARGE_BLOCKS_MIN[usize::from(kind & 2 != 0)];
    assert!(blocks >= blocks_min, "a large directory has {blocks} blocks, kind {kind}");
}

/// Copies two files whose contents are in clusters.
fn share_clusters(volume: &Volume) {
    let placed = |path| {
        let ino = ops::find(volume, path).expect("made");
        volume.admin().explain(ino).expect("explained")
    };
    volume.sync().expect("durable");
    for (from, to) in [("c/one of many files, number 1", "c/copy"), ("big", "c/big copy")] {
        Op::Copy(from, to).apply(volume, 99);
        let (from, to) = (placed(from), placed(to));
        assert!(!from.clusters.is_empty(), "contents are not compressed");
        assert_eq!(from.pieces, to.pieces, "a copy has contents of its own");
    }
    assert!(volume.admin().clusters().expect("counted") > Some(1), "both are in one cluster");
}

/// Makes files with gaps between them, and takes two of three remaining free runs.
fn scatter_files(volume: &Volume) {
    let dir = ops::make(volume, InodeNo::ROOT, b"scattered", NewKind::Directory).expect("made");
    for number in 0..SCATTERED_FILES {
        let name = format!("file {number}");
        let file = ops::make(volume, dir, name.as_bytes(), NewKind::Regular).expect("made");
        volume.write(&Caller::ROOT, file, 0, &[number; SCATTERED_FILE_BYTES]).expect("written");
        volume.sync().expect("durable");
        reserve(volume, dir, &format!("gap {number}"), 1).expect("room");
    }
    leave_holes(volume, dir, SCATTERED_RUN_BLOCKS);
}

/// Gives a new volume the size and the free space of its kind, and closes it.
pub fn shape(device: Arc<dyn BlockDevice>, kind: u64) {
    let volume = open(device, kind).expect("a volume");
    if kind & GROWN != 0 {
        let size_bytes = DEVICE_BYTES + GROWN_BYTES;
        assert_eq!(volume.admin().grow(Some(size_bytes)).expect("grown"), size_bytes);
    }
    let dir = ops::make(&volume, InodeNo::ROOT, b"shape", NewKind::Directory).expect("made");
    if kind & HOLES != 0 {
        leave_holes(&volume, dir, HOLE_BLOCKS);
    }
    if kind & FULL != 0 {
        let left = reserve(&volume, dir, "left", FULL_LEFT_BLOCKS);
        assert!(left.is_some(), "no room");
        while reserve(&volume, dir, "filler", 1).is_some() {}
        volume.unlink(&Caller::ROOT, dir, b"left").expect("removed");
    }
    volume.close().expect("close");
}

/// Takes all space in runs of this many blocks, and frees every third run.
fn leave_holes(volume: &Volume, dir: InodeNo, run_blocks: u64) {
    let run = |number: &u64| reserve(volume, dir, &format!("run {number}"), run_blocks);
    let runs = (0..).take_while(|number| run(number).is_some()).count() as u64;
    assert!(runs > 8, "{runs} runs of free space");
    for number in (0..runs).step_by(3) {
        volume.unlink(&Caller::ROOT, dir, format!("run {number}").as_bytes()).expect("removed");
    }
}

/// Allocates this many more blocks after the end of a file, where no reader reads.
fn reserve(volume: &Volume, dir: InodeNo, name: &str, blocks: u64) -> Option<()> {
    let file = match volume.lookup(dir, name.as_bytes()) {
        Ok(found) => {
            volume.release(found.ino, 1);
            found.ino
        }
        Err(_) => ops::make(volume, dir, name.as_bytes(), NewKind::Regular)?,
    };
    let from = volume.attr(file).ok()?.allocated_bytes;
    let bytes = blocks * BLOCK_BYTES as u64;
    volume.allocate(&Caller::ROOT, file, from, bytes, AllocateMode::ReserveKeepSize).ok()
}

pub fn open(device: Arc<dyn BlockDevice>, kind: u64) -> Result<Volume, String> {
    // An fsync leaves out everything that it may, contents are written early where permitted, and freed space
    // is discarded.
    let options = OpenOptions {
        cache_bytes: 1 << 20,
        fsync_leaves_bytes: 0,
        early_bytes: BLOCK_BYTES as u64,
        break_even_bytes: match kind & SCATTERED {
            0 => BREAK_EVEN_BYTES,
            _ => BREAK_EVEN_SCATTERED_BYTES,
        },
        large_dir_bytes: match kind & LARGE {
            0 => LARGE_DIR_BYTES,
            _ => 0,
        },
        discard: true,
        journal: match kind & STOPPED {
            0 => JournalMode::On,
            _ => JournalMode::Off,
        },
        ..OpenOptions::default()
    };
    Volume::open(device, Arc::new(TestClock::default()), options)
        .map_err(|error| format!("it cannot be opened: {error}"))
}

/// Recovers, as opening for writing does: a volume that was left clean is not changed. The intent log must be
/// sufficient.
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
struct Run<'a, M> {
    medium: &'a M,
    kind: u64,
    all: &'a [Op],
    random: Random,
    history: History,
    /// The marks that were set, each with the tree of its moment.
    marks: Vec<(String, Tree)>,
    tried: Tried,
}

/// Makes the calls on a volume and tries the crashes. An error describes a violation.
pub fn run<M: Medium>(
    medium: &M,
    kind: u64,
    all: &[Op],
    workload: &[Op],
    seed: u64,
) -> Result<Tried, String> {
    let (device, mut record) = medium.record(medium.start(kind))?;
    let volume = open(device, kind)?;
    let start = Tree::of(&volume)?;
    let is_marked = kind & MARKED != 0;
    let marks = is_marked.then(|| (MARK.to_owned(), start.clone())).into_iter().collect();
    let mut run = Run {
        medium,
        kind,
        all,
        random: Random(seed),
        history: History::new(start),
        marks,
        tried: Tried { workloads: 1, ..Tried::default() },
    };
    // In about half of all workloads, freed space is discarded after each call, as the background may at any
    // moment; in the others, only closing discards.
    let digits = format!("{workload:?}").bytes().fold(seed, |sum, byte| sum + u64::from(byte));
    let discards_at_once = digits % 2 == 1 || medium.discards_at_once();
    for (step, op) in workload.iter().enumerate() {
        let promise = op.apply(&volume, step as u8 + 100);
        if discards_at_once {
            volume
                .writer()
                .background()
                .discard_freed()
                .map_err(|error| format!("call {step}: {error}"))?;
        }
        quota::check(&volume).map_err(|why| format!("call {step}: {why}"))?;
        run.history.push(Tree::of(&volume)?);
        run.crash_in(&mut record).map_err(|why| format!("in call {step}: {why}"))?;
        match promise {
            Promise::Nothing => continue,
            Promise::File(ino) => run.history.file_synced(ino),
            Promise::Everything => run.history.synced(),
        }
        if matches!(op, Op::Mark) {
            run.marks.push((ops::mark_name(step as u8 + 100), Tree::of(&volume)?));
        }
        // Promised data must be there, even if the device has not synced other data.
        for left in record.now(&mut run.random) {
            run.try_state(left).map_err(|why| format!("after call {step}: {why}"))?;
        }
    }
    volume.close().map_err(|error| format!("closing: {error}"))?;
    run.crash_in(&mut record).map_err(|why| format!("closing: {why}"))?;
    run.history.synced();
    for left in record.now(&mut run.random) {
        run.try_state(left).map_err(|why| format!("closed: {why}"))?;
    }
    Ok(run.tried)
}

impl<M: Medium> Run<'_, M> {
    fn crash_in(&mut self, record: &mut M::Record) -> Result<(), String> {
        while let Some(states) = record.follow(&mut self.random) {
            for left in states {
                self.try_state(left)?;
            }
        }
        Ok(())
    }

    fn try_state(&mut self, mut left: M::Left) -> Result<(), String> {
        if self.random.below(CRASH_AGAIN) == 0 {
            for _ in 0..2 {
                left = self.crash_recovery(left)?;
            }
        }
        self.tried.states += 1;
        let opener = self.medium.put(left);
        let device = opener()?;
        recover(&device)?;
        self.medium.recovered(&device);
        check(&device, "after recovery")?;
        // A journal that was not in use is used again.
        let volume = open(device.clone(), self.kind & !STOPPED)?;
        let found = Tree::of(&volume)?;
        self.history.refuse(&found)?;
        self.tried.moments += u64::from(self.history.is_moment(&found));
        self.check_marks(&volume, &found)?;
        quota::check(&volume).map_err(|why| format!("after recovery: {why}"))?;
        for serial in 0..2 {
            self.all[self.random.below(self.all.len() as u64) as usize].apply(&volume, serial);
        }
        let going_on = Tree::of(&volume)?;
        self.check_marks(&volume, &going_on)?;
        volume.close().map_err(|error| format!("going on: {error}"))?;
        check(&device, "after going on")?;
        let volume = open(opener()?, self.kind)?;
        if History::new(going_on).is_moment(&Tree::of(&volume)?) {
            Ok(())
        } else {
            Err("changes made after recovery are missing".into())
        }
    }

    /// Compares the changes since each mark with the list.
    fn check_marks(&self, volume: &Volume, found: &Tree) -> Result<(), String> {
        for (mark, marked) in &self.marks {
            let mut listed = BTreeSet::new();
            let walked = Marks::of(volume).changes(InodeNo::ROOT, mark, &mut |change| {
                listed.insert(change.path.to_vec());
                ControlFlow::Continue(())
            });
            walked.map_err(|error| format!("mark {mark}: {error}"))?;
            self.history.check_listed(marked, found, &listed)?;
        }
        Ok(())
    }

    /// Recovers, and crashes meanwhile.
    fn crash_recovery(&mut self, left: M::Left) -> Result<M::Left, String> {
        let (device, record) = self.medium.sound().record(left.clone())?;
        recover(&device)?;
        let Some(left) = record.anywhere(&mut self.random) else { return Ok(left) };
        self.tried.states += 1;
        self.tried.recoveries += 1;
        Ok(left)
    }
}
