//! Crashes during random changes, and operations on a mounted volume between them: the device loses unsynced
//! writes, with a crash at every barrier, followed by recovery and a check.
//!
//! The history since the last completed epoch is known. After recovery each name refers to an inode that it
//! referred to in that history, each inode has contents from the history, and every name and inode that
//! existed throughout exists; a check finds no problem; and the volume remains usable. A file that is or was
//! large is overwritten in place, so its sectors may be from different states. `CFFS_CRASH_RANDOM_SEEDS` sets
//! the number of seeds, `CFFS_CRASH_RANDOM_SEED` replays one.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use cffs::device::{CrashingDevice, Image, MemoryDevice};
use cffs::format::inode::FileType;
use cffs::format::superblock::Policy;
use cffs::fsck::{self, CheckOptions, Repair};
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::{
    Caller, NewKind, RegroupOptions, RegroupProgress, RenameMode, Scattered, SetAttr, SetVolume,
    Volume,
};

use cffs_testing::random::Random;
use cffs_testing::setup::{new, open, small_cache};

/// The number of crash images taken at each barrier and sync.
const IMAGES_PER_BARRIER: usize = 4;
/// The number of changes per seed.
const CHANGES: usize = 120;
const DEVICE_BYTES: u64 = 16 << 20;
/// One in this many changes is followed by an operation on the volume in use.
const MAINTENANCE_EVERY: u64 = 6;
/// The blocks of a cylinder group, most of which stay unused, and the size of a journal in one of them.
const CG_BLOCKS: u32 = 512;
const JOURNAL_BYTES: u64 = 64 * 4096;
/// The size above which a file is overwritten in place from then on.
const SMALL_BYTES: usize = 65_536;
const BLOCK_BYTES: usize = 4096;
/// The size of an atomic write of the device.
const SECTOR_BYTES: usize = 512;
const ROOT: InodeNo = InodeNo::ROOT;

/// An inode: a directory, or a file with these contents.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    Dir,
    File(Vec<u8>),
}

/// All names, by directory and name, and all inodes.
#[derive(Clone, Default)]
struct Tree {
    names: BTreeMap<(InodeNo, Vec<u8>), InodeNo>,
    inodes: BTreeMap<InodeNo, Node>,
}

fn walk(volume: &Volume) -> Tree {
    let mut tree = Tree::default();
    let mut todo = vec![ROOT];
    while let Some(dir) = todo.pop() {
        let mut entries = Vec::new();
        volume
            .read_dir(dir, 0, true, &mut |entry| {
                entries.push((entry.name.to_vec(), entry.attr.expect("attributes")));
                true
            })
            .expect("read_dir");
        for (name, attr) in entries {
            let node = if attr.file_type == FileType::Directory {
                todo.push(attr.ino);
                Node::Dir
            } else {
                let mut bytes = vec![0; attr.size as usize];
                assert_eq!(volume.read(attr.ino, 0, &mut bytes).expect("read"), bytes.len());
                Node::File(bytes)
            };
            assert!(tree.names.insert((dir, name), attr.ino).is_none(), "a name is there twice");
            tree.inodes.insert(attr.ino, node);
            volume.release(attr.ino, 1);
        }
    }
    tree
}

/// The states since the last completed epoch, and the files that were large in one of them or earlier.
struct History {
    states: Vec<Tree>,
    were_large: BTreeSet<InodeNo>,
}

impl History {
    fn new(volume: &Volume) -> History {
        let mut history = History { states: Vec::new(), were_large: BTreeSet::new() };
        history.note(volume);
        history
    }

    /// Adds the current state of a volume.
    fn note(&mut self, volume: &Volume) {
        let state = walk(volume);
        let is_large = |node: &Node| matches!(node, Node::File(bytes) if bytes.len() > SMALL_BYTES);
        let large = state.inodes.iter().filter(|(_, node)| is_large(node)).map(|(ino, _)| *ino);
        self.were_large.extend(large);
        self.states.push(state);
    }

    /// Records the end of an epoch that began with this state or a later one.
    fn begin_with(&mut self, first: usize) {
        self.states.drain(..first);
        let states = &self.states;
        self.were_large.retain(|ino| states.iter().any(|state| state.inodes.contains_key(ino)));
    }

    /// Whether an inode may have this state after a crash.
    fn allows(&self, ino: InodeNo, found: &Node) -> bool {
        let was: Vec<&Node> =
            self.states.iter().filter_map(|state| state.inodes.get(&ino)).collect();
        match found {
            Node::File(found) if self.were_large.contains(&ino) => is_of_sectors(&was, found),
            _ => was.contains(&found),
        }
    }
}

/// Whether a file has the size of one of its states, and each sector is from one of them. The last block of a
/// state is padded with zeros.
fn is_of_sectors(was: &[&Node], found: &[u8]) -> bool {
    let states: Vec<&Vec<u8>> = was
        .iter()
        .filter_map(|node| if let Node::File(bytes) = node { Some(bytes) } else { None })
        .collect();
    let of_size = states.iter().any(|state| state.len() == found.len());
    let is_of = |state: &[u8], from: usize, sector: &[u8]| {
        let zeros = state.len()..state.len().next_multiple_of(BLOCK_BYTES);
        sector.iter().zip(from..).all(|(byte, at)| match state.get(at) {
            Some(was) => byte == was,
            None => *byte == 0 && zeros.contains(&at),
        })
    };
    of_size
        && found.chunks(SECTOR_BYTES).enumerate().all(|(number, sector)| {
            states.iter().any(|state| is_of(state, number * SECTOR_BYTES, sector))
        })
}

fn find(volume: &Volume, dir: InodeNo, name: &[u8]) -> Option<InodeNo> {
    let attr = volume.lookup(dir, name).ok()?;
    volume.release(attr.ino, 1);
    Some(attr.ino)
}

const DIRS: [&[u8]; 3] = [b"d0", b"d1", b"d2"];

/// A directory, created if it does not exist, and a name for a file in it.
fn pick_place(volume: &Volume, random: &mut Random, history: &mut History) -> (InodeNo, Vec<u8>) {
    let name = format!("f{}", random.below(6)).into_bytes();
    let dir = random.pick(&[&b""[..], DIRS[0], DIRS[1], DIRS[2]]);
    if dir.is_empty() {
        return (ROOT, name);
    }
    let ino = find(volume, ROOT, dir).unwrap_or_else(|| {
        let attr = volume.make(&Caller::ROOT, ROOT, dir, &new(NewKind::Directory)).expect("make");
        volume.release(attr.ino, 1);
        history.note(volume);
        attr.ino
    });
    (ino, name)
}

/// Makes one random change. Some fail, since their file does not exist.
fn change(volume: &Volume, random: &mut Random, history: &mut History) {
    let (dir, name) = pick_place(volume, random, history);
    let (other_dir, other_name) = pick_place(volume, random, history);
    match random.below(12) {
        0..=3 => {
            let made = volume.make(&Caller::ROOT, dir, &name, &new(NewKind::Regular));
            let Ok(attr) = made.or_else(|_| volume.lookup(dir, &name)) else { return };
            history.note(volume);
            let len = random.pick(&[0, 3, 300, 2000, 9000, 70_000]);
            let fill = random.below(255) as u8;
            volume.write(&Caller::ROOT, attr.ino, 0, &vec![fill; len]).expect("write");
            volume.release(attr.ino, 1);
        }
        4 => {
            let Some(ino) = find(volume, dir, &name) else { return };
            let size = Some(random.below(5000));
            volume
                .set_attr(&Caller::ROOT, ino, &SetAttr { size, ..SetAttr::default() })
                .expect("truncate");
        }
        5 => {
            let _ = volume.unlink(&Caller::ROOT, dir, &name);
        }
        6..=8 => {
            let _ = volume.rename(
                &Caller::ROOT,
                dir,
                &name,
                other_dir,
                &other_name,
                RenameMode::Replace,
            );
        }
        9 => {
            let Some(ino) = find(volume, dir, &name) else { return };
            if volume.link(ino, other_dir, &other_name).is_ok() {
                volume.release(ino, 1);
            }
        }
        10 => {
            let (from, to) = (random.pick(&DIRS), random.pick(&DIRS));
            let _ = volume.rename(&Caller::ROOT, ROOT, from, ROOT, to, RenameMode::Replace);
        }
        _ => {
            let _ = volume.remove_dir(&Caller::ROOT, ROOT, random.pick(&DIRS));
        }
    }
}

/// An operation on a volume in use that changes nothing visible. Returns whether it makes earlier changes
/// durable.
fn maintain(volume: &Volume, random: &mut Random) -> bool {
    match random.below(8) {
        0 | 1 => {
            volume.admin().trim(0..u64::MAX, 0).expect("trimmed");
            true
        }
        2 => {
            volume.writer().background().discard_freed().expect("discarded");
            false
        }
        3 => {
            let all = RegroupOptions { gain: 0, ..RegroupOptions::default() };
            let go_on = &mut |_: &RegroupProgress| ControlFlow::Continue(());
            // Some volumes do not group files.
            volume.regroup(Scattered::Tree(ROOT), &all, go_on).is_ok()
        }
        4 => {
            let found = volume.admin().scrub(&mut |_| ControlFlow::Continue(())).expect("scrubbed");
            assert!(found.problems.is_empty(), "{:?}", found.problems);
            false
        }
        5 => {
            let label = Some(format!("name {}", random.below(100)).into_bytes());
            volume.tune(&SetVolume { label, ..SetVolume::default() }).expect("tuned");
            false
        }
        6 => {
            let report = cffs::check_in_use(volume, true, &()).expect("checked");
            assert!(report.problems.is_empty(), "{:?}", report.problems);
            true
        }
        _ => {
            volume.writer().checkpoints().mark_clean().expect("checkpoint");
            true
        }
    }
}

fn check(image: &MemoryDevice, repair: Repair, context: &str) -> fsck::Report {
    let options =
        CheckOptions { repair, force: true, contents: true, threads: 1, ..CheckOptions::default() };
    match fsck::check(image, &options, &()) {
        Ok(report) => report,
        Err(error) => panic!("{context}: the check failed: {error}"),
    }
}

/// Runs the changes of one seed and returns the number of tried crash states.
fn run(seed: u64, options: &MkfsOptions) -> usize {
    let blank = MemoryDevice::new(DEVICE_BYTES);
    mkfs::make(&blank, options).expect("mkfs");
    let device = Arc::new(CrashingDevice::new(blank.snapshot(), IMAGES_PER_BARRIER, seed));
    let volume = open(device.clone(), small_cache());
    device.take_images();
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut history = History::new(&volume);
    let mut tried = 0;
    for step in 0..CHANGES {
        // An epoch that the change itself needs may begin with any state from here on.
        let before = history.states.len() - 1;
        change(&volume, &mut random, &mut history);
        history.note(&volume);
        let synced = random.below(8) == 0 || step == CHANGES - 1;
        if synced {
            volume.sync().expect("sync");
        }
        let mut judge = |history: &History, when: &str| {
            let images = device.take_images();
            for (number, image) in images.iter().enumerate() {
                let context = format!("seed {seed} step {step}{when} image {number}");
                recover_and_compare(image.clone(), history, &context);
            }
            tried += images.len();
            !images.is_empty()
        };
        if judge(&history, "") {
            history.begin_with(if synced { history.states.len() - 1 } else { before });
        }
        if random.below(MAINTENANCE_EVERY) == 0 {
            let is_durable = maintain(&volume, &mut random);
            judge(&history, " maintenance");
            if is_durable {
                history.begin_with(history.states.len() - 1);
            }
        }
    }
    tried
}

fn recover_and_compare(image: Image, history: &History, context: &str) {
    let device = MemoryDevice::from_image(image);
    let report = check(&device, Repair::Preen, context);
    assert!(report.exit_code() <= 1, "{context}: not recovered: {:?}", report.problems);
    let report = check(&device, Repair::No, context);
    assert!(report.problems.is_empty(), "{context}: left over: {:?}", report.problems);
    let device = Arc::new(device);
    let volume = open(device.clone(), small_cache());
    let found = walk(&volume);
    let states = &history.states;
    for (name, ino) in &found.names {
        let was = states.iter().any(|tree| tree.names.get(name) == Some(ino));
        assert!(was, "{context}: {} never stood for inode {ino}", shown(name));
    }
    for (ino, node) in &found.inodes {
        let was = history.allows(*ino, node);
        assert!(was, "{context}: inode {ino} has a state that it never had: {}", sketch(node));
    }
    for name in states[0].names.keys() {
        let always = states.iter().all(|tree| tree.names.contains_key(name));
        let there = found.names.contains_key(name);
        assert!(there || !always, "{context}: {} is gone", shown(name));
    }
    for ino in states[0].inodes.keys() {
        let always = states.iter().all(|tree| tree.inodes.contains_key(ino));
        let there = found.inodes.contains_key(ino);
        assert!(there || !always, "{context}: inode {ino} is gone\n{}", path_of(states, *ino));
    }
    let after =
        volume.make(&Caller::ROOT, ROOT, b"after the crash", &new(NewKind::Regular)).expect("make");
    volume.write(&Caller::ROOT, after.ino, 0, &[7; 5000]).expect("write");
    volume.close().expect("close");
    let report = check(&device, Repair::No, context);
    assert!(report.problems.is_empty(), "{context}: after going on: {:?}", report.problems);
}

/// The names of an inode in each state of the history.
fn path_of(history: &[Tree], ino: InodeNo) -> String {
    let names = |tree: &Tree| -> Vec<String> {
        tree.names.iter().filter(|(_, i)| **i == ino).map(|(name, _)| shown(name)).collect()
    };
    history.iter().map(|tree| format!("{:?}\n", names(tree))).collect()
}

fn shown((dir, name): &(InodeNo, Vec<u8>)) -> String {
    format!("{} in directory {dir}", String::from_utf8_lossy(name))
}

fn sketch(node: &Node) -> String {
    match node {
        Node::Dir => "a directory".into(),
        Node::File(bytes) => format!("{} bytes, first {:?}", bytes.len(), bytes.first()),
    }
}

fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
    match number("CFFS_CRASH_RANDOM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..1 + number("CFFS_CRASH_RANDOM_SEEDS").unwrap_or(12),
    }
}

#[test]
fn every_crash_leaves_a_state_that_was() {
    let mut tried = 0;
    for seed in seeds() {
        let embed = !seed.is_multiple_of(4);
        let sector_bytes = Some(if seed.is_multiple_of(3) { 512 } else { 4096 });
        let policy = Policy::ALL[seed as usize % Policy::ALL.len()];
        let (cg_blocks, journal_bytes) = match seed % 2 {
            0 => (MkfsOptions::default().cg_blocks, 0),
            _ => (CG_BLOCKS, JOURNAL_BYTES),
        };
        let options = MkfsOptions {
            embed,
            sector_bytes,
            policy,
            cg_blocks,
            journal_bytes,
            ..MkfsOptions::default()
        };
        tried += run(seed, &options);
    }
    println!("{tried} states after a crash, all recovered");
    assert!(tried > 100);
}
