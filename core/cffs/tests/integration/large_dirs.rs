//! Recovery in large directories: it reads the blocks that changed, whatever the size of the directory, and
//! corrects the buckets of the index that changed.

use std::io::IoSlice;
use std::sync::Arc;

use cffs::device::{BlockDevice, Counts, CrashingDevice, Image, MemoryDevice, TraceDevice};
use cffs::format::Layout;
use cffs::format::intent_log::{self, Position, Record};
use cffs::format::superblock::RoCompat;
use cffs::fsck::{Code, Report};
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::{Caller, OpenOptions, RenameMode, Volume, read_superblock};

use crate::fast_fsck::{Workload, assert_sound, name, preen, recover};
use cffs_testing::golden::listing::decoded_log;
use cffs_testing::random::Random;
use cffs_testing::setup::{DIRECTORY, FILE, open, small_cache};

const ROOT: InodeNo = InodeNo::ROOT;

/// The most bytes that recovery may read after three changes in a large directory.
const READ_BYTES_MAX: u64 = 2 << 20;

/// A closed volume with this many names in the directory "large", and the number of that directory.
fn volume_with(names: u64, embed: bool, has_index: bool) -> (Image, InodeNo) {
    let device = Arc::new(MemoryDevice::new(4 << 30));
    mkfs::make(&*device, &MkfsOptions { embed, ..MkfsOptions::default() }).expect("made");
    if !has_index {
        let mut superblock = read_superblock(&*device).expect("a superblock");
        superblock.ro_compat.remove(RoCompat::DIR_INDEX);
        device.write_at(0, &[IoSlice::new(&superblock.encode())]).expect("written");
    }
    let options = OpenOptions { cache_bytes: 64 << 20, ..OpenOptions::default() };
    let volume = open(device.clone(), options);
    let dir = volume.make(&Caller::ROOT, ROOT, b"large", &DIRECTORY).expect("made").ino;
    for number in 0..names {
        let ino = volume.make(&Caller::ROOT, dir, &name(number), &FILE).expect("made").ino;
        volume.release(ino, 1);
    }
    volume.close().expect("closed");
    (device.snapshot(), dir)
}

/// Three changes of one kind in a directory, each of them durable.
type Change = fn(&Volume, InodeNo, u64);

const CHANGES: [(&str, Change); 5] = [
    ("create", |volume, dir, at| {
        let made = volume.make(&Caller::ROOT, dir, &name(1_000_000 + at), &FILE).expect("made");
        volume.sync_file(made.ino, false).expect("synced");
        volume.release(made.ino, 1);
    }),
    ("unlink", |volume, dir, at| {
        volume.unlink(&Caller::ROOT, dir, &name(at)).expect("removed");
        volume.sync().expect("synced");
    }),
    ("rename", |volume, dir, at| {
        let mode = RenameMode::Replace;
        volume
            .rename(&Caller::ROOT, dir, &name(at), dir, &name(1_000_000 + at), mode)
            .expect("renamed");
        volume.sync().expect("synced");
    }),
    ("replace", |volume, dir, at| {
        let mode = RenameMode::Replace;
        volume.rename(&Caller::ROOT, dir, &name(at), dir, &name(at + 1), mode).expect("renamed");
        volume.sync().expect("synced");
    }),
    ("subdirectory", |volume, dir, at| {
        volume.make(&Caller::ROOT, dir, &name(1_000_000 + at), &DIRECTORY).expect("made");
        volume.sync().expect("synced");
    }),
];

/// Makes the changes and crashes. Returns the names of the directory, the report of recovery, what it read,
/// and the recovered volume.
fn crash_after(
    image: &Image,
    dir: InodeNo,
    names: u64,
    change: Change,
    options: OpenOptions,
) -> (Report, Counts, Image) {
    let device = Arc::new(MemoryDevice::from_image(image.clone()));
    let volume = open(device.clone(), options);
    for third in 0..3 {
        change(&volume, dir, names / 3 * third);
    }
    let crashed = TraceDevice::new(MemoryDevice::from_image(device.snapshot()));
    let report = preen(&crashed);
    (report, crashed.counts(), crashed.inner().snapshot())
}

/// Recovery reads no more than 2 MiB after three changes, whichever they are.
fn assert_cheap(names: u64, embed: bool, has_index: bool) {
    let (image, dir) = volume_with(names, embed, has_index);
    for (what, change) in CHANGES {
        let (report, counts, recovered) = crash_after(&image, dir, names, change, small_cache());
        let context = format!("{what} among {names} names, embed {embed}, index {has_index}");
        println!("{context}: {} requests, {} KiB", counts.requests(), counts.read_bytes >> 10);
        assert!(report.fast.is_some(), "{context}: {:?}", report.full_because);
        assert!(counts.read_bytes <= READ_BYTES_MAX, "{context}: {counts:?}");
        let device = MemoryDevice::from_image(recovered);
        assert_sound(&device, &context);
    }
    // The same with a directory that counts as small.
    let small = large_from(u64::MAX);
    let (report, counts, _) = crash_after(&image, dir, names, CHANGES[0].1, small);
    println!("as a whole: {} requests, {} KiB", counts.requests(), counts.read_bytes >> 10);
    assert!(report.fast.is_some() && counts.read_bytes > names * 40, "{counts:?}");
}

#[test]
fn recovery_reads_two_mebibytes_after_three_changes_among_200_000_names() {
    assert_cheap(200_000, true, true);
}

#[test]
fn recovery_in_a_large_directory_without_embedded_inodes_reads_little() {
    assert_cheap(50_000, false, true);
}

#[test]
fn recovery_in_a_large_directory_without_an_index_reads_little() {
    assert_cheap(10_000, true, false);
}

/// Until the next name is added, only the index makes a lookup cheap.
#[test]
fn a_lookup_after_recovery_uses_the_index() {
    let names = 50_000;
    let (image, dir) = volume_with(names, true, true);
    for (what, change) in CHANGES {
        let (report, _, recovered) = crash_after(&image, dir, names, change, small_cache());
        assert_eq!(report.recovered.get(&Code::Index), Some(&1), "{what}: {:?}", report.recovered);
        let device = Arc::new(TraceDevice::new(MemoryDevice::from_image(recovered)));
        let volume = open(device.clone(), small_cache());
        let attr = volume.attr(dir).expect("the directory");
        assert!(attr.allocated_bytes > attr.size, "{what}: the index was removed");
        let before = device.counts();
        for number in [7, 20_000, 49_000] {
            let ino = volume.lookup(dir, &name(number)).expect("it was not changed").ino;
            volume.release(ino, 1);
        }
        let counts = device.counts() - before;
        assert!(counts.requests() < 30 && counts.read_bytes < 4 << 20, "{what}: {counts:?}");
    }
}

/// The intent log of a device as text: the kind and the fields of each record.
fn log_of(device: &dyn BlockDevice) -> String {
    let superblock = read_superblock(device).expect("a superblock");
    let layout = Layout::new(&superblock);
    let half = layout.block_offset(layout.intent_log_half(superblock.generation));
    let mut position = Position { generation: superblock.generation, ..Position::default() };
    let mut text = String::new();
    let mut sector = vec![0; layout.sector_bytes as usize];
    loop {
        let at = u64::from(position.sequence) * u64::from(layout.sector_bytes);
        device.read_at(half + at, &mut sector).expect("read");
        let marks = intent_log::decode(&sector, &mut position, superblock.checksum());
        let Some(marks) = marks else { return text };
        marks.records.iter().for_each(|record| text += &format!("{}\n", line(record)));
    }
}

fn line(record: &Record) -> String {
    match *record {
        Record::Directory(ino) => format!("1 {ino}"),
        Record::Table { position } => format!("2 {position}"),
        Record::External { ino, names } => format!("3 {ino} {names}"),
        Record::Reference { dir, position, ino } => format!("4 {dir} {position} {ino}"),
        Record::Locator { position, used } => format!("5 {position} {used}"),
        Record::Group { cg, free } => format!("6 {} {free}", cg.0),
        Record::Freed(run) => format!("7 {} {}", run.start.0, run.len),
        Record::Settling => "8".into(),
        Record::End => "9".into(),
        Record::Cluster { run, references } => {
            format!("10 {} {} {references}", run.start.0, run.len)
        }
        Record::Referrer { start, ino, extents } => format!("11 {} {ino} {extents}", start.0),
        Record::LargeDirectory { dir, entries, subdirectories, buckets } => {
            format!("12 {dir} {entries} {subdirectories} {buckets}")
        }
        Record::DirectoryBlock { dir, position, names, subdirectories } => {
            format!("13 {dir} {position} {names} {subdirectories}")
        }
        Record::Bucket { dir, bucket } => format!("14 {dir} {bucket}"),
        Record::Nameless(ino) => format!("15 {ino}"),
    }
}

/// The decoder in Python is written from FORMAT alone.
#[test]
fn both_readers_agree_on_the_intent_log() {
    for embed in [true, false] {
        let (image, dirs) = volume_with_two(embed, 0);
        let device = Arc::new(MemoryDevice::from_image(image));
        let volume = open(device.clone(), large_from(0));
        let attr = volume.lookup(dirs[1], &name(3)).expect("there");
        volume.unlink(&Caller::ROOT, dirs[1], &name(3)).expect("removed");
        volume.writer().checkpoints().run().expect("a checkpoint");
        for (dir, (_, change)) in [(dirs[0], CHANGES[1]), (dirs[1], CHANGES[2])] {
            change(&volume, dir, 100);
            change(&volume, dir, 200);
        }
        let log = decoded_log(&device.snapshot());
        assert_eq!(log, log_of(&device), "embed {embed}");
        let (large, nameless) = (format!("12 {} 34", dirs[1]), format!("15 {}", attr.ino));
        for record in [&large, &nameless] {
            assert!(
                log.contains(record.as_str()) == (embed || record == &large),
                "{record}: {log}"
            );
        }
        assert!(log.contains("\n13 ") && log.contains("\n14 "), "{log}");
    }
}

/// Replaces the records of the intent log, which has one sector.
fn forge_log(device: &dyn BlockDevice, forge: impl Fn(Record) -> Option<Record>) {
    let superblock = read_superblock(device).expect("a superblock");
    let layout = Layout::new(&superblock);
    let half = layout.block_offset(layout.intent_log_half(superblock.generation));
    let start = Position { generation: superblock.generation, ..Position::default() };
    let mut sector = vec![0; layout.sector_bytes as usize];
    device.read_at(half, &mut sector).expect("read");
    let marks = intent_log::decode(&sector, &mut { start }, superblock.checksum()).expect("a log");
    intent_log::init(&mut sector, start);
    for record in marks.records.into_iter().filter_map(forge) {
        assert!(intent_log::append(&mut sector, &record), "there was room before");
    }
    intent_log::seal(&mut sector, superblock.checksum());
    device.write_at(half, &[IoSlice::new(&sector)]).expect("written");
}

/// A directory cannot have more subdirectories than entries.
#[test]
fn impossible_counts_in_the_intent_log_ask_for_the_full_check() {
    let (image, dirs) = volume_with_two(true, 0);
    let device = Arc::new(MemoryDevice::from_image(image));
    let volume = open(device.clone(), large_from(0));
    volume.unlink(&Caller::ROOT, dirs[1], &name(3)).expect("removed");
    volume.sync().expect("synced");
    for forged in [1, u32::MAX] {
        let device = MemoryDevice::from_image(device.snapshot());
        forge_log(&device, |record| match record {
            Record::LargeDirectory { dir, buckets, .. } => {
                Some(Record::LargeDirectory { dir, entries: 0, subdirectories: forged, buckets })
            }
            Record::DirectoryBlock { .. } | Record::Bucket { .. } => None,
            other => Some(other),
        });
        let report = preen(&device);
        assert!(report.full_because.is_some(), "{forged} subdirectories: {:?}", report.recovered);
        assert_sound(&device, "forged counts");
    }
}

/// A volume with two directories of some blocks, in which the first two buckets are about to be split.
fn volume_with_two(embed: bool, seed: u64) -> (Image, Vec<InodeNo>) {
    let options = MkfsOptions { embed, cg_blocks: 2048, ..MkfsOptions::default() };
    volume_with_two_of(&options, 345 + seed % 10)
}

/// A volume with two directories of this many names.
fn volume_with_two_of(options: &MkfsOptions, names: u64) -> (Image, Vec<InodeNo>) {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    mkfs::make(&*device, options).expect("made");
    let volume = open(device.clone(), large_from(0));
    let other = volume.make(&Caller::ROOT, ROOT, b"other", &DIRECTORY).expect("made").ino;
    for dir in [ROOT, other] {
        for number in 0..names {
            let made = volume.make(&Caller::ROOT, dir, &name(number), &FILE).expect("made");
            volume.release(made.ino, 1);
        }
    }
    volume.close().expect("closed");
    (device.snapshot(), vec![ROOT, other])
}

#[test]
fn recovery_reads_blocks_of_several_sectors_as_a_whole() {
    let names = 345;
    let requests = [4096, 512].map(|sector_bytes| {
        let sector_bytes = Some(sector_bytes);
        let options = MkfsOptions { sector_bytes, cg_blocks: 2048, ..MkfsOptions::default() };
        let (image, dirs) = volume_with_two_of(&options, names);
        let (report, counts, _) = crash_after(&image, dirs[1], names, CHANGES[1].1, large_from(0));
        assert!(report.fast.is_some(), "{sector_bytes:?}: {:?}", report.full_because);
        counts.requests()
    });
    println!("{requests:?} requests with sectors of 4096 and of 512 bytes");
    assert!(requests[1] < requests[0] + 8, "{requests:?}");
}

/// Damages all buckets of the index of a directory.
fn damage_index(image: Image, dir: InodeNo) -> Image {
    let device = MemoryDevice::from_image(image);
    let mut block = vec![0; 4096];
    let mut damaged = 0;
    for offset in (0..device.geometry().size_bytes).step_by(block.len()) {
        device.read_at(offset, &mut block).expect("read");
        if block.starts_with(b"CFix") && block[8..16] == dir.0.to_le_bytes() {
            device.write_at(offset + 100, &[IoSlice::new(b"damage")]).expect("written");
            damaged += 1;
        }
    }
    assert!(damaged > 1, "{damaged} buckets");
    device.snapshot()
}

/// The index is dropped when the first name is removed, so its buckets are not listed one by one.
#[test]
fn an_index_that_is_dropped_is_recovered_with_its_directory() {
    let (image, dirs) = volume_with_two(true, 0);
    let image = damage_index(image, dirs[1]);
    let device = Arc::new(CrashingDevice::new(image, 4, 1));
    let volume = open(device.clone(), large_from(0));
    volume.unlink(&Caller::ROOT, dirs[1], &name(3)).expect("removed");
    volume.sync().expect("synced");
    let mut listed = 0;
    for image in device.take_images() {
        let crashed = MemoryDevice::from_image(image.clone());
        // While the log does not list the directory, its index is not examined.
        let lists = |kind: u32| log_of(&crashed).contains(&format!("{kind} {}", dirs[1]));
        if lists(1) || lists(12) {
            listed += 1;
            recover(image, &format!("state {listed}"));
        }
    }
    assert!(listed > 0);
}

/// Options with which directories of more than these bytes count as large.
fn large_from(large_dir_bytes: u64) -> OpenOptions {
    OpenOptions { large_dir_bytes, ..small_cache() }
}

/// Crashes of a volume with large directories that is continuously changed and reaches checkpoints. Some
/// crash again while they recover.
fn crashes(seed: u64) -> [u64; 2] {
    let (image, dirs) = volume_with_two(!seed.is_multiple_of(3), seed);
    let device = Arc::new(CrashingDevice::new(image, 1, seed));
    let volume = open(device.clone(), large_from(if seed % 4 == 1 { 16 << 10 } else { 0 }));
    let (random, orphans, names) = (Random(seed), Vec::new(), 700);
    let mut work = Workload { volume, random, dirs, orphans, names };
    let mut states = [0; 2];
    for step in 0..200 {
        work.step();
        if work.random.below(20) == 0 {
            work.volume.writer().checkpoints().run().expect("a checkpoint");
        }
        for image in device.take_images() {
            let context = format!("seed {seed}, step {step}");
            states[0] += 1;
            if work.random.below(4) == 0 {
                let recovering = CrashingDevice::new(image.clone(), 1, seed + step);
                preen(&recovering);
                for image in recovering.take_images() {
                    states[1] += 1;
                    recover(image, &format!("{context}, and a crash of its recovery"));
                }
            }
            recover(image, &context);
        }
    }
    states
}

#[test]
fn what_the_log_lists_of_large_directories_suffices() {
    let seeds = std::env::var("CFFS_FAST_SEEDS").map_or(12, |seeds| seeds.parse().unwrap());
    let states: Vec<[u64; 2]> = (0..seeds).map(crashes).collect();
    let sum = |at: usize| states.iter().map(|states| states[at]).sum::<u64>();
    println!("{} states, and {} of crashed recoveries, were recovered", sum(0), sum(1));
    assert!(sum(0) > 0 && sum(1) > 0);
}
