//! Volumes, trees in them, and readers.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cffs_bench::disk::{Profile, Stroke};
use cffs_bench::peer::{Peer, Transport, Volume, VolumeSpec};
use cffs_bench::workload::Site;
use cffs_bench::workload::random::Random;

/// The file systems that place works on.
pub const PEERS: [Peer; 3] = [Peer::Ext4, Peer::Xfs, Peer::Btrfs];

/// Serializes the tests: a program that one test starts inherits files that another has open until it
/// executes, and volumes in use cannot be unmounted.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A new volume on an emulated current disk; `None` if this process may not mount.
pub fn volume(peer: Peer) -> Option<Volume> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not run: {peer} has to be mounted, which needs root");
        return None;
    }
    let spec = VolumeSpec {
        peer,
        profile: Profile::Hdd7200,
        stroke: Stroke::Whole,
        size: 1 << 30,
        scratch: PathBuf::from("/dev/shm"),
        cffs: PathBuf::from("cffs"),
        transport: Transport::default(),
    };
    let volume = Volume::make(spec).expect("a volume");
    volume.set_free(true);
    Some(volume)
}

/// A kind of tree.
#[derive(Clone, Copy, Debug)]
pub enum Tree {
    /// Written directory by directory, as an archive is unpacked.
    Fresh,
    /// Directories that grew at the same time, file by file.
    Interleaved,
    /// Files removed, created and appended to for some time, with syncs in between.
    Aged,
    /// One large directory of small files, out of five that grew at the same time.
    OneOfMany,
}

const DIRECTORIES: u64 = 11;
const FILES_EACH: u64 = 100;

impl Tree {
    /// Creates a tree, and returns its root.
    pub fn make(self, volume: &Volume) -> PathBuf {
        if let Tree::OneOfMany = self {
            return interleaved(volume, 2000, 5).join("d0");
        }
        let root = volume.root().join("tree");
        let mut random = Random::new(7);
        let path = |directory: u64, file: u64| root.join(format!("d{directory:02}/file-{file:04}"));
        for directory in 0..DIRECTORIES {
            fs::create_dir_all(root.join(format!("d{directory:02}"))).expect("a directory");
        }
        for i in 0..DIRECTORIES * FILES_EACH {
            let (directory, file) = match self {
                Tree::Fresh => (i / FILES_EACH, i % FILES_EACH),
                _ => (i % DIRECTORIES, i / DIRECTORIES),
            };
            write(&path(directory, file), size(&mut random), &mut random);
        }
        volume.settle().expect("settle");
        if let Tree::Aged = self {
            for _ in 0..6 {
                for _ in 0..DIRECTORIES * FILES_EACH / 3 {
                    let at = path(random.below(DIRECTORIES), random.below(FILES_EACH * 2));
                    let bytes = size(&mut random);
                    match random.below(4) {
                        0 => drop(fs::remove_file(&at)),
                        1 => append(&at, bytes, &mut random),
                        _ => write(&at, bytes, &mut random),
                    }
                }
                volume.settle().expect("settle");
            }
        }
        root
    }
}

/// A tree whose directories have grown together; the first of them is the one to pack. Contents become
/// durable while the tree grows, so that they are placed in this order.
pub fn interleaved(volume: &Volume, files: u64, directories: u64) -> PathBuf {
    let length = |directory, random: &mut Random| match directory {
        0 => 8192 - random.below(3000),
        _ => 1 + random.below(20_000),
    };
    grown_together(volume, files, directories, length)
}

/// The same with files of these lengths.
pub fn grown_together(
    volume: &Volume,
    files: u64,
    directories: u64,
    length: impl Fn(u64, &mut Random) -> u64,
) -> PathBuf {
    let root = volume.root().join("tree");
    let mut random = Random::new(3);
    for directory in 0..directories {
        fs::create_dir_all(root.join(format!("d{directory}"))).expect("a directory");
    }
    for file in 0..files {
        for directory in 0..directories {
            let length = length(directory, &mut random);
            write(&root.join(format!("d{directory}/f{file:04}")), length, &mut random);
        }
        if file % 100 == 99 {
            volume.settle().expect("settle");
        }
    }
    volume.settle().expect("settle");
    root
}

/// Mostly small, some large, as in typical trees.
fn size(random: &mut Random) -> u64 {
    match random.below(20) {
        0 => random.below(600 << 10),
        1..=4 => random.below(64 << 10),
        _ => 1 + random.below(16 << 10),
    }
}

/// Incompressible bytes.
pub fn bytes(length: u64, random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![0; length as usize];
    for word in bytes.chunks_mut(8) {
        word.copy_from_slice(&random.number().to_le_bytes()[..word.len()]);
    }
    bytes
}

pub fn write(path: &Path, length: u64, random: &mut Random) {
    fs::write(path, bytes(length, random)).expect("write");
}

fn append(path: &Path, length: u64, random: &mut Random) {
    let mut file = File::options().append(true).create(true).open(path).expect("open");
    file.write_all(&bytes(length, random)).expect("append");
}

/// The plain reader: names in order, each file from its beginning to its end.
pub fn read_plainly(directory: &Path) {
    let entries = fs::read_dir(directory).expect("list");
    let mut names: Vec<PathBuf> = entries.map(|entry| entry.expect("entry").path()).collect();
    names.sort();
    let mut buffer = vec![0; 128 << 10];
    for path in &names {
        if path.is_dir() {
            continue;
        }
        let mut file = File::open(path).expect("open");
        while file.read(&mut buffer).expect("read") > 0 {}
    }
    names.iter().filter(|path| path.is_dir()).for_each(|path| read_plainly(path));
}

/// The reads that a disk counts while `work` runs with cold caches, except of the path to the tree.
pub fn cold_reads(volume: &mut Volume, work: impl FnOnce(&Path)) -> u64 {
    volume.chill().expect("chill");
    let before = volume.counters().expect("counters");
    work(&volume.root().join("tree"));
    volume.counters().expect("counters").since(&before).reads
}
