//! What a crash leaves: random changes on a device that loses what was not synced, a crash at every
//! barrier, recovery, and a look at what is there.
//!
//! The history since the last completed epoch is known. After recovery each name stands for an
//! inode that it stood for in that history, each inode has contents that it had, and whatever was
//! there all the time is there; a check finds nothing; and the volume goes on being used.
//! `CFFS_CRASH_RANDOM_SEEDS` says how many seeds are tried, `CFFS_CRASH_RANDOM_SEED` replays one.

use std::collections::BTreeMap;
use std::sync::Arc;

use cffs::clock::TestClock;
use cffs::device::{BlockDevice, CrashingDevice, Image, MemoryDevice};
use cffs::format::inode::FileType;
use cffs::format::superblock::Policy;
use cffs::fsck::{self, CheckOptions, Repair};
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::{NewFile, NewKind, OpenOptions, RenameMode, SetAttr, Volume};

/// Crash images taken at each barrier and sync.
const IMAGES_PER_BARRIER: usize = 4;
/// Changes per seed.
const CHANGES: usize = 120;
const DEVICE_BYTES: u64 = 16 << 20;
const ROOT: InodeNo = InodeNo::ROOT;

/// What an inode is: a directory, or a file with these contents.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    Dir,
    File(Vec<u8>),
}

/// All names, each by directory and name, and all inodes.
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

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

fn open(device: Arc<dyn BlockDevice>) -> Volume {
    let options = OpenOptions { cache_bytes: 1 << 20, ..OpenOptions::default() };
    Volume::open(device, Arc::new(TestClock::default()), options).expect("open")
}

fn new_file(kind: NewKind<'static>) -> NewFile<'static> {
    NewFile { kind, permissions: 0o755, umask: 0, uid: 0, gid: 0 }
}

fn find(volume: &Volume, dir: InodeNo, name: &[u8]) -> Option<InodeNo> {
    let attr = volume.lookup(dir, name).ok()?;
    volume.release(attr.ino, 1);
    Some(attr.ino)
}

const DIRS: [&[u8]; 3] = [b"d0", b"d1", b"d2"];

/// A directory, made if it is not there, and a name for a file in it.
fn pick_place(volume: &Volume, random: &mut Random) -> (InodeNo, Vec<u8>) {
    let name = format!("f{}", random.below(6)).into_bytes();
    let dir = random.pick(&[&b""[..], DIRS[0], DIRS[1], DIRS[2]]);
    if dir.is_empty() {
        return (ROOT, name);
    }
    let ino = find(volume, ROOT, dir).unwrap_or_else(|| {
        let attr = volume.make(ROOT, dir, &new_file(NewKind::Directory)).expect("make");
        volume.release(attr.ino, 1);
        attr.ino
    });
    (ino, name)
}

/// One random change. Some fail, as they do in life: what is asked for is not there.
fn change(volume: &Volume, random: &mut Random) {
    let (dir, name) = pick_place(volume, random);
    let (other_dir, other_name) = pick_place(volume, random);
    match random.below(12) {
        0..=3 => {
            let made = volume.make(dir, &name, &new_file(NewKind::Regular));
            let Ok(attr) = made.or_else(|_| volume.lookup(dir, &name)) else { return };
            let len = random.pick(&[0, 3, 300, 2000, 9000, 70_000]);
            let fill = random.below(255) as u8;
            volume.write(attr.ino, 0, &vec![fill; len]).expect("write");
            volume.release(attr.ino, 1);
        }
        4 => {
            let Some(ino) = find(volume, dir, &name) else { return };
            let size = Some(random.below(5000));
            volume.set_attr(ino, &SetAttr { size, ..SetAttr::default() }).expect("truncate");
        }
        5 => {
            let _ = volume.unlink(dir, &name);
        }
        6..=8 => {
            let _ = volume.rename(dir, &name, other_dir, &other_name, RenameMode::Replace);
        }
        9 => {
            let Some(ino) = find(volume, dir, &name) else { return };
            if volume.link(ino, other_dir, &other_name).is_ok() {
                volume.release(ino, 1);
            }
        }
        10 => {
            let (from, to) = (random.pick(&DIRS), random.pick(&DIRS));
            let _ = volume.rename(ROOT, from, ROOT, to, RenameMode::Replace);
        }
        _ => {
            let _ = volume.remove_dir(ROOT, random.pick(&DIRS));
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

/// Runs the changes of one seed and returns how many states after a crash were tried.
fn run(seed: u64, options: &MkfsOptions) -> usize {
    let blank = MemoryDevice::new(DEVICE_BYTES);
    mkfs::make(&blank, options).expect("mkfs");
    let device = Arc::new(CrashingDevice::new(blank.snapshot(), IMAGES_PER_BARRIER, seed));
    let volume = open(device.clone());
    device.take_images();
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut history: Vec<Tree> = vec![walk(&volume)];
    let mut tried = 0;
    for step in 0..CHANGES {
        change(&volume, &mut random);
        history.push(walk(&volume));
        let synced = random.below(8) == 0 || step == CHANGES - 1;
        if synced {
            volume.sync().expect("sync");
        }
        let images = device.take_images();
        if images.is_empty() {
            continue;
        }
        for (number, image) in images.into_iter().enumerate() {
            let context = format!("seed {seed} step {step} image {number}");
            recover_and_compare(image, &history, &context);
            tried += 1;
        }
        // An epoch that the change itself needed ended before the change was made.
        let keep = if synced { 1 } else { 2 };
        history.drain(..history.len() - keep);
    }
    tried
}

fn recover_and_compare(image: Image, history: &[Tree], context: &str) {
    let device = MemoryDevice::from_image(image);
    let report = check(&device, Repair::Preen, context);
    assert!(report.exit_code() <= 1, "{context}: not recovered: {:?}", report.problems);
    let report = check(&device, Repair::No, context);
    assert!(report.problems.is_empty(), "{context}: left over: {:?}", report.problems);
    let device = Arc::new(device);
    let volume = open(device.clone());
    let found = walk(&volume);
    for (name, ino) in &found.names {
        let was = history.iter().any(|tree| tree.names.get(name) == Some(ino));
        assert!(was, "{context}: {} never stood for inode {ino}", shown(name));
    }
    for (ino, node) in &found.inodes {
        let was = history.iter().any(|tree| tree.inodes.get(ino).is_some_and(|n| like(n, node)));
        assert!(was, "{context}: inode {ino} has a state that it never had: {}", sketch(node));
    }
    for name in history[0].names.keys() {
        let always = history.iter().all(|tree| tree.names.contains_key(name));
        let there = found.names.contains_key(name);
        assert!(there || !always, "{context}: {} is gone", shown(name));
    }
    for ino in history[0].inodes.keys() {
        let always = history.iter().all(|tree| tree.inodes.contains_key(ino));
        let there = found.inodes.contains_key(ino);
        assert!(there || !always, "{context}: inode {ino} is gone\n{}", path_of(history, *ino));
    }
    let after = volume.make(ROOT, b"after the crash", &new_file(NewKind::Regular)).expect("make");
    volume.write(after.ino, 0, &[7; 5000]).expect("write");
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

/// Whether a state that was found is that of the history. A large file is overwritten in place, so
/// a crash may leave old and new pages side by side: of such a file only the size is compared.
fn like(was: &Node, found: &Node) -> bool {
    match (was, found) {
        (Node::File(was), Node::File(found)) if found.len() > 65_536 => was.len() == found.len(),
        _ => was == found,
    }
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
        let options = MkfsOptions { embed, sector_bytes, policy, ..MkfsOptions::default() };
        tried += run(seed, &options);
    }
    println!("{tried} states after a crash, all recovered");
    assert!(tried > 100);
}
