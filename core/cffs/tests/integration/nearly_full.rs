//! A compressed volume that stays nearly full for a long time: files are replaced at random, and each change
//! that fits succeeds, because compaction frees the dead contents of clusters.
//!
//! `CFFS_CHURN_SECONDS` sets how long the volume is changed, and `CFFS_CHURN_SEED` sets the seed.

use std::env;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cffs::device::MemoryDevice;
use cffs::error::Error;
use cffs::format::superblock::Compression;
use cffs::fsck::{self, CheckOptions};
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::{Caller, OpenOptions, RegroupOptions, RegroupProgress, Scattered, Volume};

use cffs_testing::random::Random;
use cffs_testing::setup::{self, DIRECTORY, FILE};

const VOLUME_BYTES: u64 = 48 << 20;
const DIRECTORIES: u64 = 40;
/// Changes that are made if no time is given.
const CHANGES: u64 = 6000;
/// A change must succeed while this much is free.
const FREE_PERCENT_MIN: u64 = 5;
/// When less is free, one file in this many is removed.
const REMOVED_PART: u64 = 50;
/// The minimum percentage of contents that must fit while files are replaced at random, relative to the
/// contents when the volume was filled in order. It was 38 at the worst moment of an hour.
const LIVE_PERCENT_MIN: u64 = 33;

/// A file: its number is its name and decides its contents.
#[derive(Clone, Copy)]
struct File {
    number: u64,
    bytes: usize,
}

struct Churn {
    volume: Volume,
    random: Random,
    dirs: Vec<InodeNo>,
    files: Vec<File>,
    /// Bytes of all files, each rounded up to fragments.
    bytes: u64,
    made: u64,
    regrouped: u64,
}

impl Churn {
    fn new(device: Arc<MemoryDevice>, seed: u64) -> Churn {
        let options = OpenOptions {
            epoch_interval: Duration::from_secs(3600),
            cache_bytes: 8 << 20,
            early_bytes: 1 << 20,
            ..OpenOptions::default()
        };
        let volume = setup::open(device, options);
        let make_dir = |number: u64| {
            let name = format!("d{number}");
            let made = volume.make(&Caller::ROOT, InodeNo::ROOT, name.as_bytes(), &DIRECTORY);
            made.expect("made").ino
        };
        let dirs = (0..DIRECTORIES).map(make_dir).collect();
        Churn {
            volume,
            random: Random(seed),
            dirs,
            files: Vec::new(),
            bytes: 0,
            made: 0,
            regrouped: 0,
        }
    }

    fn dir(&self, number: u64) -> InodeNo {
        self.dirs[(number % DIRECTORIES) as usize]
    }

    /// A file like those of a source tree, or one that is larger than a cluster.
    fn size(&mut self) -> usize {
        let most = self.random.pick(&[800, 3000, 3000, 9000, 9000, 30_000, 200_000]);
        1 + self.random.below(most) as usize
    }

    /// Makes a file of this size.
    fn make(&mut self, bytes: usize) -> Result<(), Error> {
        self.made += 1;
        let file = File { number: self.made, bytes };
        let (dir, name) = (self.dir(file.number), file.number.to_string());
        let made = self.volume.make(&Caller::ROOT, dir, name.as_bytes(), &FILE)?;
        let contents = text(file);
        let written = self.volume.write(&Caller::ROOT, made.ino, 0, &contents);
        self.volume.release(made.ino, 1);
        let is_whole = matches!(written, Ok(len) if len == bytes);
        if !is_whole {
            self.volume.unlink(&Caller::ROOT, dir, name.as_bytes())?;
            return Err(written.err().unwrap_or(Error::NoSpace));
        }
        self.files.push(file);
        self.bytes += taken(file);
        Ok(())
    }

    fn remove(&mut self) {
        let at = self.random.below(self.files.len() as u64) as usize;
        let file = self.files.swap_remove(at);
        let (dir, name) = (self.dir(file.number), file.number.to_string());
        self.volume.unlink(&Caller::ROOT, dir, name.as_bytes()).expect("unlinked");
        self.bytes -= taken(file);
    }

    fn check(&self) {
        for file in &self.files {
            let (dir, name) = (self.dir(file.number), file.number.to_string());
            let found = self.volume.lookup(dir, name.as_bytes()).expect("found");
            let mut bytes = vec![0; file.bytes + 1];
            let len = self.volume.read(found.ino, 0, &mut bytes).expect("read");
            assert!(bytes[..len] == text(*file), "file {name}");
            self.volume.release(found.ino, 1);
        }
    }
}

fn taken(file: File) -> u64 {
    (file.bytes as u64).next_multiple_of(1024)
}

/// Contents that compress about as well as source code; one file in eight has noise.
fn text(file: File) -> Vec<u8> {
    let mut random = Random(file.number);
    let mut bytes = Vec::with_capacity(file.bytes + 8);
    while bytes.len() < file.bytes {
        let number = random.below(u64::MAX);
        match file.number % 8 {
            0 => bytes.extend_from_slice(&number.to_le_bytes()),
            _ => bytes.extend_from_slice(
                [b"return ", b"struct ", b"inode_ ", b"u32 = 0"][number as usize % 4],
            ),
        }
    }
    bytes.truncate(file.bytes);
    bytes
}

impl Churn {
    fn free_percent(&self) -> u64 {
        let space = self.volume.stat_fs();
        space.available_fragments * 100 / space.fragments
    }

    /// Removes files until enough of the volume is free, and compacts it if that does not suffice.
    fn make_room(&mut self) {
        self.volume.sync().expect("synced");
        while self.free_percent() < FREE_PERCENT_MIN {
            let files = self.files.len() as u64;
            (0..files / REMOVED_PART).for_each(|_| self.remove());
            self.volume.sync().expect("synced");
            if self.free_percent() < FREE_PERCENT_MIN {
                let options = RegroupOptions::default();
                let watch = &mut |_: &RegroupProgress| ControlFlow::Continue(());
                let tree = Scattered::Tree(InodeNo::ROOT);
                self.volume.regroup(tree, &options, watch).expect("regrouped");
                self.regrouped += 1;
            }
        }
    }
}

/// Fills a volume, and then replaces files while nearly all of it is in use.
fn churn(seed: u64, time: Option<Duration>) {
    let device = Arc::new(MemoryDevice::new(VOLUME_BYTES));
    let compression = Some(Compression::Zstd(1));
    mkfs::make(&*device, &MkfsOptions { compression, ..MkfsOptions::default() }).expect("mkfs");
    let mut churn = Churn::new(device.clone(), seed);
    let full = loop {
        let size = churn.size();
        match churn.make(size) {
            Ok(()) => {}
            Err(Error::NoSpace) => break churn.bytes,
            Err(error) => panic!("{error}"),
        }
    };
    let (begin, mut changes, mut least) = (Instant::now(), 0_u64, 100);
    while time.map_or(changes < CHANGES, |time| begin.elapsed() < time) {
        if churn.free_percent() < FREE_PERCENT_MIN {
            churn.make_room();
            least = least.min(churn.bytes * 100 / full);
        }
        let size = churn.size();
        if let Err(error) = churn.make(size) {
            panic!("change {changes}: {error}, and {:?}", churn.volume.stat_fs());
        }
        changes += 1;
    }
    println!(
        "seed {seed}: {changes} changes, {} regroupings; at least {least}% of the first contents",
        churn.regrouped
    );
    churn.check();
    churn.volume.close().expect("closed");
    let options = CheckOptions { force: true, contents: true, ..CheckOptions::default() };
    let report = fsck::check(&device, &options, &()).expect("checked");
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    assert!(least >= LIVE_PERCENT_MIN, "{least}%: dead contents take the space");
}

#[test]
fn a_compressed_volume_that_stays_nearly_full_refuses_no_change_that_fits() {
    let number = |name: &str| env::var(name).ok().and_then(|value| value.parse().ok());
    let time = number("CFFS_CHURN_SECONDS").map(Duration::from_secs);
    churn(number("CFFS_CHURN_SEED").unwrap_or(1), time);
}
