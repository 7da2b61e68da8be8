//! Recovery by the intent log: it finds everything that a full check would find, after crashes of a volume
//! that reaches checkpoints while in use; it detects when the log is not enough; and its cost is independent
//! of the volume's size.

use std::sync::Arc;

use cffs::clock::TestClock;
use cffs::device::{BlockDevice, Counts, CrashingDevice, Image, MemoryDevice, TraceDevice};
use cffs::error::Error;
use cffs::format::Layout;
use cffs::format::sector::{Body, Sector};
use cffs::fsck::{self, CheckOptions, Code, Repair, Report};
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::{
    AllocateMode, Caller, NewFile, OpenOptions, RenameMode, SetAttr, Volume, read_superblock,
};

use cffs_testing::random::Random;
use cffs_testing::setup::{DIRECTORY, FILE, made, open, small_cache};

const ROOT: InodeNo = InodeNo::ROOT;

pub fn preen(device: &dyn BlockDevice) -> Report {
    let options = CheckOptions { repair: Repair::Preen, threads: 1, ..CheckOptions::default() };
    fsck::check(device, &options, &()).expect("recovered")
}

/// After recovery, a full check of the volume finds no problem.
pub fn assert_sound(device: &dyn BlockDevice, context: &str) {
    let options =
        CheckOptions { force: true, contents: true, threads: 1, ..CheckOptions::default() };
    let report = fsck::check(device, &options, &()).expect("checked");
    assert!(report.problems.is_empty(), "{context}: {:?}", report.problems);
    assert!(report.recovered.is_empty(), "{context}: {:?}", report.recovered);
}

/// One of the names of a workload.
pub fn name(number: u64) -> Vec<u8> {
    format!("name {number}").into_bytes()
}

/// Recovers a volume for which the intent log must be enough.
pub fn recover(image: Image, context: &str) -> Image {
    let device = MemoryDevice::from_image(image);
    let report = preen(&device);
    assert_eq!(report.full_because, None, "{context}");
    assert!(report.problems.iter().all(|p| p.fixed), "{context}: {:?}", report.problems);
    assert_sound(&device, context);
    device.snapshot()
}

/// Changes of all kinds in a few directories, including files that lose their names while in use.
pub struct Workload {
    pub volume: Volume,
    pub random: Random,
    pub dirs: Vec<InodeNo>,
    pub orphans: Vec<InodeNo>,
    /// How many names are used.
    pub names: u64,
}

impl Workload {
    fn name(&mut self) -> Vec<u8> {
        name(self.random.below(self.names))
    }

    fn dir(&mut self) -> InodeNo {
        let index = self.random.below(self.dirs.len() as u64);
        self.dirs[index as usize]
    }

    /// Makes one change, which may fail.
    pub fn step(&mut self) {
        match self.change() {
            Ok(())
            | Err(
                Error::NotFound
                | Error::Exists
                | Error::NotEmpty
                | Error::IsDirectory
                | Error::NotDirectory
                | Error::Invalid(_)
                | Error::NotPermitted
                | Error::Stale
                | Error::NoSpace,
            ) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn change(&mut self) -> Result<(), Error> {
        let (dir, name) = (self.dir(), self.name());
        let (other, new_name) = (self.dir(), self.name());
        let len = self.random.below(20_000) as usize;
        let volume = &self.volume;
        let released = |ino| volume.release(ino, 1);
        match self.random.below(14) {
            0..=2 => {
                let attr = volume.make(&Caller::ROOT, dir, &name, &FILE)?;
                let written = volume.write(&Caller::ROOT, attr.ino, 0, &vec![7; len]).map(drop);
                released(attr.ino);
                written
            }
            3 => {
                let attr = volume.make(&Caller::ROOT, dir, &name, &DIRECTORY)?;
                self.dirs.push(attr.ino);
                Ok(())
            }
            4 | 5 => {
                let attr = volume.lookup(dir, &name)?;
                match volume.unlink(&Caller::ROOT, dir, &name) {
                    // Still in use.
                    Ok(()) if len.is_multiple_of(2) => self.orphans.push(attr.ino),
                    _ => released(attr.ino),
                }
                Ok(())
            }
            6 => volume.remove_dir(&Caller::ROOT, dir, &name),
            7 => volume
                .rename(&Caller::ROOT, dir, &name, other, &new_name, RenameMode::Replace)
                .map(drop),
            8 => volume
                .rename(&Caller::ROOT, dir, &name, other, &new_name, RenameMode::Exchange)
                .map(drop),
            9 | 10 => {
                let attr = volume.lookup(dir, &name)?;
                let changed = match self.random.below(4) {
                    0 => volume.write(&Caller::ROOT, attr.ino, len as u64, &[9; 500]).map(drop),
                    1 => volume
                        .set_attr(
                            &Caller::ROOT,
                            attr.ino,
                            &SetAttr { size: Some(len as u64), ..SetAttr::default() },
                        )
                        .map(drop),
                    2 => volume.allocate(
                        &Caller::ROOT,
                        attr.ino,
                        0,
                        30_000,
                        AllocateMode::ReserveKeepSize,
                    ),
                    _ => volume.link(attr.ino, other, &new_name).map(|attr| released(attr.ino)),
                };
                released(attr.ino);
                changed
            }
            11 => {
                let attr = volume.make_unnamed(&Caller::ROOT, dir, &FILE)?;
                volume.write(&Caller::ROOT, attr.ino, 0, &vec![5; len])?;
                if len.is_multiple_of(2) {
                    volume.link(attr.ino, dir, &name).map(|attr| released(attr.ino))?;
                }
                self.orphans.push(attr.ino);
                Ok(())
            }
            12 => {
                let Some(ino) = self.orphans.pop() else { return Ok(()) };
                // It may get a name before.
                let named = match len.is_multiple_of(2) {
                    true => volume.link(ino, dir, &name).map(|attr| released(attr.ino)),
                    false => Ok(()),
                };
                released(ino);
                named
            }
            _ => volume.sync(),
        }
    }
}

/// Crashes of a volume that is continuously changed and reaches checkpoints.
fn crashes(embed: bool, seed: u64) -> u64 {
    let blank = MemoryDevice::new(64 << 20);
    let options = MkfsOptions { embed, cg_blocks: 2048, ..MkfsOptions::default() };
    mkfs::make(&blank, &options).expect("made");
    let device = Arc::new(CrashingDevice::new(blank.snapshot(), 1, seed));
    let volume = open(device.clone(), small_cache());
    let (random, dirs, orphans, names) = (Random(seed), vec![ROOT], Vec::new(), 40);
    let mut work = Workload { volume, random, dirs, orphans, names };
    let mut states = 0;
    for step in 0..300 {
        work.step();
        if work.random.below(20) == 0 {
            work.volume.writer().checkpoints().run().expect("a checkpoint");
        }
        for image in device.take_images() {
            states += 1;
            recover(image, &format!("seed {seed}, step {step}"));
        }
    }
    states
}

#[test]
fn the_intent_log_suffices_after_checkpoints_in_use() {
    let seeds = std::env::var("CFFS_FAST_SEEDS").map_or(12, |seeds| seeds.parse().unwrap());
    let states: u64 = (0..seeds).map(|seed| crashes(seed % 3 != 0, seed)).sum();
    println!("{states} states were recovered from what was busy");
    assert!(states > 0);
}

/// A volume with a directory "dir" and a name of an external inode "file" in the first block of the root, to
/// which no name is added any more. Returns the directory, and an inode whose record is in the same block
/// as that of "file".
fn volume_with_an_external_name() -> (Image, InodeNo, InodeNo) {
    let device = made(64 << 20);
    let volume = open(device.clone(), small_cache());
    let make = |dir, name: &[u8], kind: &NewFile<'_>| {
        let ino = volume.make(&Caller::ROOT, dir, name, kind).expect("made").ino;
        volume.release(ino, 1);
        ino
    };
    let (dir, other) = (make(ROOT, b"dir", &DIRECTORY), make(ROOT, b"other", &DIRECTORY));
    make(dir, b"old", &FILE);
    let (file, neighbour) = (make(ROOT, b"file", &FILE), make(other, b"neighbour", &FILE));
    for (ino, name) in [(file, &b"file"[..]), (neighbour, &b"neighbour again"[..])] {
        volume.link(ino, other, name).expect("linked");
        volume.release(ino, 1);
    }
    let block_bytes = 4096;
    let mut names = (0..).map(name);
    while volume.attr(ROOT).expect("the root").size == block_bytes {
        make(ROOT, &names.next().expect("a name"), &FILE);
    }
    volume.close().expect("closed");
    (device.snapshot(), dir, neighbour)
}

/// Recovery corrects a directory in a sector that also has a name of an external inode, and crashes. The next
/// recovery must not count that name twice.
#[test]
fn a_name_in_a_sector_that_an_interrupted_recovery_corrected_is_counted_once() {
    let (image, dir, neighbour) = volume_with_an_external_name();
    let device = Arc::new(MemoryDevice::from_image(image));
    let volume = open(device.clone(), small_cache());
    let changes = SetAttr { permissions: Some(0o600), ..SetAttr::default() };
    volume.set_attr(&Caller::ROOT, neighbour, &changes).expect("changed");
    volume.make(&Caller::ROOT, ROOT, b"new", &FILE).expect("made");
    volume.sync().expect("synced");
    // This leaves out the counts of the directory.
    let new = volume.make(&Caller::ROOT, dir, b"new", &FILE).expect("made").ino;
    volume.sync_file(new, false).expect("synced");
    let mut crashed_again = 0;
    for seed in 0..16 {
        let recovering = CrashingDevice::new(device.snapshot(), 2, seed);
        let report = preen(&recovering);
        assert!(report.recovered.contains_key(&Code::DirectoryCounts), "{:?}", report.recovered);
        for image in recovering.take_images() {
            crashed_again += 1;
            recover(image, &format!("seed {seed}, crash {crashed_again}"));
        }
    }
    assert!(crashed_again > 0);
}

#[test]
fn a_log_that_is_full_asks_for_the_full_check() {
    let device = MemoryDevice::new(4 << 20);
    mkfs::make(&device, &MkfsOptions::default()).expect("made");
    let device = Arc::new(device);
    let volume = open(device.clone(), small_cache());
    for index in 0..600 {
        volume.make(&Caller::ROOT, ROOT, format!("{index}").as_bytes(), &DIRECTORY).expect("made");
    }
    for index in 0..600 {
        let dir = volume.lookup(ROOT, format!("{index}").as_bytes()).expect("there").ino;
        volume.make(&Caller::ROOT, dir, b"file", &FILE).expect("made");
    }
    volume.sync().expect("synced");
    assert!(volume.admin().intent_log().incomplete);
    let crashed = MemoryDevice::from_image(device.snapshot());
    let report = preen(&crashed);
    assert_eq!(report.fast, None);
    assert_eq!(report.full_because.as_deref(), Some("the intent log is incomplete"));
    assert_sound(&crashed, "full log");
    // The next epoch is a checkpoint, at which the log restarts.
    volume.make(&Caller::ROOT, ROOT, b"more", &FILE).expect("made");
    volume.sync().expect("synced");
    assert!(!volume.admin().intent_log().incomplete);
    recover(device.snapshot(), "restarted log");
}

/// Regression: a torn sector was taken for the end of the log: recovery ignored all entries after it,
/// reported success, and reused allocated inode numbers and space.
#[test]
fn a_torn_sector_of_the_log_asks_for_the_full_check() {
    let device = Arc::new(MemoryDevice::new(32 << 20));
    mkfs::make(&*device, &MkfsOptions::default()).expect("made");
    let volume = open(device.clone(), small_cache());
    let make = |dirs: std::ops::Range<u32>| {
        for dir in dirs {
            let name = format!("{dir}");
            let dir =
                volume.make(&Caller::ROOT, ROOT, name.as_bytes(), &DIRECTORY).expect("made").ino;
            volume.make(&Caller::ROOT, dir, b"file", &FILE).expect("made");
            volume.sync().expect("synced");
        }
    };
    make(0..160);
    let before = device.snapshot();
    make(160..164);
    let superblock = read_superblock(&*device).expect("a superblock");
    let layout = Layout::new(&superblock);
    let sector = layout.block_offset(layout.intent_log_half(superblock.generation));
    let torn = MemoryDevice::from_image(device.snapshot());
    let mut rest = vec![0; layout.sector_bytes as usize - 512];
    MemoryDevice::from_image(before).read_at(sector + 512, &mut rest).expect("read");
    torn.write_at(sector + 512, &[std::io::IoSlice::new(&rest)]).expect("written");
    let report = preen(&torn);
    let why = "a sector of the intent log was written in part";
    assert_eq!((report.fast, report.full_because.as_deref()), (None, Some(why)));
    assert_sound(&torn, "torn log");
    let volume = open(Arc::new(torn), small_cache());
    for dir in 0..164 {
        let dir = volume.lookup(ROOT, format!("{dir}").as_bytes()).expect("it was synced").ino;
        volume.lookup(dir, b"file").expect("it was synced");
    }
}

/// The size of the inode table on the device, and whether an extent tree maps it.
fn table_of_inodes(device: &dyn BlockDevice) -> (u64, bool) {
    let layout = Layout::new(&read_superblock(device).expect("a superblock"));
    let place = layout.system_container(InodeNo::LOCATOR);
    let start = u64::from(place.sector.0 * layout.sector_bytes);
    let mut image = vec![0; layout.sector_bytes as usize];
    device.read_at(layout.block_offset(layout.system_area()) + start, &mut image).expect("read");
    let entry = Sector::new(&image).find_inode(InodeNo::LOCATOR).expect("the table");
    let Body::Embedded(record) = entry.body else { panic!("the table has no inode") };
    (record.inode.size.get(), record.inode.map_root.get() != 0)
}

/// Creates a directory with enough files to need another block of the inode table.
fn fill_a_block_of_the_table(volume: &Volume, name: &str) {
    let dir = volume.make(&Caller::ROOT, ROOT, name.as_bytes(), &DIRECTORY).expect("made").ino;
    for index in 0..256 {
        let ino = volume
            .make(&Caller::ROOT, dir, format!("{index}").as_bytes(), &FILE)
            .expect("made")
            .ino;
        volume.release(ino, 1);
    }
}

/// A volume whose inode table has more extents than fit into its inode: it has grown while no two adjacent
/// blocks were free.
fn volume_with_a_table_in_pieces() -> Image {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    mkfs::make(&*device, &MkfsOptions::default()).expect("made");
    {
        let volume = open(device.clone(), small_cache());
        let filler = volume.make(&Caller::ROOT, ROOT, b"filler", &FILE).expect("made").ino;
        let block = 4096;
        let take = |nth: &u64| {
            volume
                .allocate(&Caller::ROOT, filler, nth * block, block, AllocateMode::Reserve)
                .is_ok()
        };
        let blocks = (0..).take_while(take).count() as u64;
        for hole in (0..blocks).step_by(3) {
            volume
                .allocate(&Caller::ROOT, filler, hole * block, block, AllocateMode::PunchHole)
                .expect("punched");
        }
        volume.release(filler, 1);
        volume.close().expect("closed");
    }
    for round in 0..8 {
        let volume = open(device.clone(), small_cache());
        fill_a_block_of_the_table(&volume, &format!("mount {round}"));
        volume.close().expect("closed");
    }
    let (_, has_tree) = table_of_inodes(&device);
    assert!(has_tree, "the table lies in few pieces");
    device.snapshot()
}

/// Recovery allocates the blocks of the table that no checkpoint has allocated yet, and maps the table by a
/// new extent tree. The blocks of the old tree must then be free: they are marked as used in the bitmaps, and
/// no record of the log lists them.
#[test]
fn recovery_that_extends_a_table_in_pieces_frees_its_old_extent_tree() {
    let mut image = volume_with_a_table_in_pieces();
    for round in 0..3 {
        let (before, _) = table_of_inodes(&MemoryDevice::from_image(image.clone()));
        let device = Arc::new(CrashingDevice::new(image, 1, round));
        let volume = open(device.clone(), small_cache());
        fill_a_block_of_the_table(&volume, &format!("crash {round}"));
        volume.sync().expect("synced");
        for image in device.take_images() {
            recover(image, &format!("a crash before sync {round} is done"));
        }
        let crashed = device.inner().durable();
        let context = format!("a crash after sync {round}");
        let recovering = CrashingDevice::new(crashed.clone(), 1, round);
        preen(&recovering);
        for image in recovering.take_images() {
            recover(image, &format!("{context}, and one of its recovery"));
        }
        image = recover(crashed, &context);
        let (after, has_tree) = table_of_inodes(&MemoryDevice::from_image(image.clone()));
        assert!(after > before && has_tree, "{context}: the table was not extended");
    }
}

/// Directories of 100 files, in a tree with a fan-out of ten.
fn tree_of(files: u64) -> (Arc<TraceDevice<MemoryDevice>>, Volume) {
    let device = Arc::new(TraceDevice::new(MemoryDevice::new(1 << 40)));
    mkfs::make(&*device, &MkfsOptions::default()).expect("made");
    let options = OpenOptions { cache_bytes: 64 << 20, ..OpenOptions::default() };
    let volume =
        Volume::open(device.clone(), Arc::new(TestClock::default()), options).expect("opened");
    let mut level = vec![ROOT];
    while (level.len() as u64) < files / 100 {
        let mut below = Vec::new();
        for dir in level {
            for index in 0..10 {
                let name = format!("directory {index}");
                below.push(
                    volume.make(&Caller::ROOT, dir, name.as_bytes(), &DIRECTORY).expect("made").ino,
                );
            }
        }
        level = below;
    }
    for dir in &level {
        for index in 0..100 {
            let name = format!("file {index}");
            let ino = volume.make(&Caller::ROOT, *dir, name.as_bytes(), &FILE).expect("made").ino;
            volume.write(&Caller::ROOT, ino, 0, &[1; 1500]).expect("written");
            volume.release(ino, 1);
        }
    }
    volume.writer().checkpoints().run().expect("a checkpoint");
    // The same work at each size.
    for dir in [level[0], level[level.len() / 2]] {
        for index in 0..20 {
            let name = format!("new {index}");
            let ino = volume.make(&Caller::ROOT, dir, name.as_bytes(), &FILE).expect("made").ino;
            volume.write(&Caller::ROOT, ino, 0, &[2; 3000]).expect("written");
            volume.release(ino, 1);
            volume.unlink(&Caller::ROOT, dir, format!("file {index}").as_bytes()).expect("gone");
        }
    }
    volume.sync().expect("synced");
    (device, volume)
}

/// The requests of recovery after a crash: by the intent log, and by a full check.
fn costs(files: u64) -> [Counts; 2] {
    let (device, _volume) = tree_of(files);
    let image = device.inner().snapshot();
    [false, true].map(|force| {
        let crashed = TraceDevice::new(MemoryDevice::from_image(image.clone()));
        let options = CheckOptions { repair: Repair::Preen, force, ..CheckOptions::default() };
        let report = fsck::check(&crashed, &options, &()).expect("recovered");
        assert_eq!(report.fast.is_some(), !force, "{:?}", report.full_because);
        let counts = crashed.counts();
        if !force {
            assert_sound(&crashed, "recovered");
        }
        println!(
            "{files} files, {}: {} requests, {} KiB",
            if force { "full" } else { "fast" },
            counts.requests(),
            (counts.read_bytes + counts.written_bytes) >> 10
        );
        counts
    })
}

fn bytes(counts: &Counts) -> u64 {
    counts.read_bytes + counts.written_bytes
}

#[test]
fn recovery_costs_the_same_at_ten_times_the_size() {
    let [small, _] = costs(10_000);
    let [large, full] = costs(100_000);
    // The tree is one level deeper.
    assert!(large.requests() <= small.requests() + 8, "{small:?} {large:?}");
    assert!(bytes(&large) <= bytes(&small) + (256 << 10), "{small:?} {large:?}");
    assert!(bytes(&large) * 20 < bytes(&full), "{large:?} {full:?}");
}

#[test]
#[ignore = "makes a million files"]
fn recovery_of_a_million_files_reads_less_than_a_hundredth_of_the_full_check() {
    let [small, _] = costs(10_000);
    let [large, full] = costs(1_000_000);
    assert!(large.requests() <= small.requests() + 16, "{small:?} {large:?}");
    assert!(bytes(&large) <= bytes(&small) + (512 << 10), "{small:?} {large:?}");
    assert!(bytes(&large) * 100 < bytes(&full), "{large:?} {full:?}");
    // The full check reads many adjacent directories by one request.
    assert!(large.requests() * 10 < full.requests(), "{large:?} {full:?}");
}
