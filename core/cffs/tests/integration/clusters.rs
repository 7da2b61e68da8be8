//! Volumes with compressed contents: files can be read back, take less space, and free it with the last file
//! of a cluster.

use std::io::IoSlice;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cffs::clock::TestClock;
use cffs::device::{BlockDevice, MemoryDevice};
use cffs::format::Layout;
use cffs::format::superblock::Compression;
use cffs::fsck::{self, CheckOptions, Code, Place, Problem, Repair};
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::{CgIndex, InodeNo};
use cffs::vfs::{
    Caller, NewFile, NewKind, OpenOptions, RegroupOptions, RegroupProgress, Scattered, Volume,
    read_superblock,
};

use cffs_testing::golden::listing;
use cffs_testing::setup::FILE;

pub const ROOT: InodeNo = InodeNo::ROOT;
const MIB: u64 = 1 << 20;

/// A device of 64 MiB with a new volume that compresses contents.
pub fn device() -> Arc<MemoryDevice> {
    device_of(64 * MIB)
}

/// A device with a new volume that compresses contents.
pub fn device_of(bytes: u64) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(bytes));
    let compression = Some(Compression::Zstd(1));
    mkfs::make(&*device, &MkfsOptions { compression, ..MkfsOptions::default() }).expect("mkfs");
    device
}

/// Opens a volume that writes an epoch only when a test asks for one.
pub fn open(device: &Arc<MemoryDevice>) -> Volume {
    let options = OpenOptions {
        epoch_interval: Duration::from_secs(3600),
        early_bytes: 1,
        ..OpenOptions::default()
    };
    Volume::open(device.clone(), Arc::new(TestClock::default()), options).expect("open")
}

/// Contents that compress about as well as source code.
pub fn text(seed: u64, len: usize) -> Vec<u8> {
    let words = ["struct ", "return ", "inode", "block ", "{\n", "}\n", "    ", "let ", "= ", "0x"];
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 16);
    while bytes.len() < len {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let word = words[(state >> 33) as usize % words.len()];
        bytes.extend_from_slice(word.as_bytes());
        if (state >> 40).is_multiple_of(7) {
            bytes.extend_from_slice(format!("{:x}", state >> 48).as_bytes());
        }
    }
    bytes.truncate(len);
    bytes
}

/// The lengths of files: tiny ones stored in the inode, small ones, and pieces of larger ones.
fn len_of(number: u64) -> usize {
    let lens = [300, 700, 1500, 4096, 5000, 9000, 20_000, 65_536, 70_000, 150_000];
    lens[number as usize % lens.len()]
}

pub fn make(volume: &Volume, dir: InodeNo, number: u64) -> InodeNo {
    let name = format!("file {number}");
    let ino = volume.make(&Caller::ROOT, dir, name.as_bytes(), &FILE).expect("made").ino;
    volume.release(ino, 1);
    write(volume, ino, 0, &text(number, len_of(number)));
    ino
}

pub fn write(volume: &Volume, ino: InodeNo, at: u64, bytes: &[u8]) {
    assert_eq!(volume.write(&Caller::ROOT, ino, at, bytes).expect("written"), bytes.len());
}

pub fn read(volume: &Volume, ino: InodeNo) -> Vec<u8> {
    let mut bytes = vec![0; volume.attr(ino).expect("its attributes").size as usize];
    assert_eq!(volume.read(ino, 0, &mut bytes).expect("read"), bytes.len());
    bytes
}

pub fn directories(volume: &Volume) -> Vec<InodeNo> {
    let new = NewFile { kind: NewKind::Directory, ..FILE };
    let make =
        |name: &str| volume.make(&Caller::ROOT, ROOT, name.as_bytes(), &new).expect("made").ino;
    ["a", "b", "c"].into_iter().map(make).collect()
}

pub fn free_bytes(volume: &Volume) -> u64 {
    let stat = volume.stat_fs();
    stat.free_fragments * u64::from(stat.fragment_bytes)
}

pub fn is_sound(device: &Arc<MemoryDevice>) {
    let options = CheckOptions { contents: true, force: true, ..CheckOptions::default() };
    let report = fsck::check(&**device, &options, &()).expect("checked");
    assert_eq!(report.problems, []);
}

#[test]
fn compressed_files_come_back_after_a_remount_and_take_less_space() {
    let device = device();
    let volume = open(&device);
    let before = free_bytes(&volume);
    let dirs = directories(&volume);
    let files: Vec<(u64, InodeNo)> = (0..200)
        .map(|number| (number, make(&volume, dirs[number as usize / 70], number)))
        .collect();
    volume.sync().expect("synced");
    let raw: u64 = files.iter().map(|(number, _)| len_of(*number) as u64).sum();
    let used = before - free_bytes(&volume);
    assert!(used < raw / 2, "{used} bytes are used for {raw}");
    volume.close().expect("closed");
    is_sound(&device);

    let volume = open(&device);
    for (number, ino) in &files {
        assert!(read(&volume, *ino) == text(*number, len_of(*number)), "file {number}");
    }
    volume.close().expect("closed");
}

#[test]
fn a_few_contents_are_compressed_when_their_epoch_closes_the_gate() {
    let device = device();
    let options = OpenOptions { epoch_interval: Duration::from_secs(3600), ..Default::default() };
    let volume = Volume::open(device, Arc::new(TestClock::default()), options).expect("open");
    let files: Vec<InodeNo> = (0..20).map(|number| make(&volume, ROOT, number)).collect();
    volume.sync().expect("synced");
    let bytes: usize = (0..20).map(len_of).filter(|len| *len > 1024).sum();
    let stats = volume.stats();
    assert_eq!(stats.early_writes, 0, "nothing was written ahead of the epoch");
    assert!(stats.compressed_bytes >= bytes as u64, "{} of {bytes}", stats.compressed_bytes);
    for (number, ino) in files.into_iter().enumerate() {
        assert_eq!(read(&volume, ino), text(number as u64, len_of(number as u64)));
    }
}

/// Regression: if a file grew while its contents were compressed, all that was new was written uncompressed.
#[test]
fn a_file_that_grows_while_it_is_compressed_is_compressed_to_its_end() {
    let device = device_of(256 * MIB);
    let options = OpenOptions { epoch_interval: Duration::from_secs(3600), ..Default::default() };
    let volume = Volume::open(device.clone(), Arc::new(TestClock::default()), options);
    let volume = volume.expect("open");
    let contents = text(1, 48 << 20);
    let file = volume.make(&Caller::ROOT, ROOT, b"file", &FILE).expect("made").ino;
    volume.release(file, 1);
    // Enough to be written ahead while the file grows.
    let (before, after) = contents.split_at(8 << 20);
    write(&volume, file, 0, before);
    thread::scope(|scope| {
        let grow = || {
            for (number, piece) in after.chunks(100_000).enumerate() {
                write(&volume, file, (before.len() + number * 100_000) as u64, piece);
            }
        };
        let writer = scope.spawn(grow);
        loop {
            volume.writer().background().write_early().expect("written early");
            if writer.is_finished() {
                break;
            }
        }
    });
    volume.sync().expect("synced");
    let stats = volume.stats();
    assert!(stats.early_writes > 0);
    assert_eq!(stats.compressed_bytes, contents.len() as u64, "{} early", stats.early_writes);
    assert!(read(&volume, file) == contents);
    volume.close().expect("closed");
    is_sound(&device);
}

#[test]
fn space_is_freed_with_the_last_file_of_a_cluster() {
    let device = device();
    let volume = open(&device);
    let dirs = directories(&volume);
    volume.sync().expect("synced");
    let before = free_bytes(&volume);
    let count = 120;
    for number in 0..count {
        make(&volume, dirs[number as usize % 3], number);
    }
    volume.sync().expect("synced");
    // One file in ten survives.
    for number in (0..count).filter(|number| number % 10 != 3) {
        let name = format!("file {number}");
        volume.unlink(&Caller::ROOT, dirs[number as usize % 3], name.as_bytes()).expect("unlinked");
    }
    volume.close().expect("closed");
    is_sound(&device);
    let volume = open(&device);
    for number in (3..count).step_by(10) {
        let name = format!("file {number}");
        let found = volume.lookup(dirs[number as usize % 3], name.as_bytes()).expect("found");
        assert!(read(&volume, found.ino) == text(number, len_of(number)), "file {number}");
        volume.release(found.ino, 1);
        volume.unlink(&Caller::ROOT, dirs[number as usize % 3], name.as_bytes()).expect("unlinked");
    }
    volume.sync().expect("synced");
    assert!(free_bytes(&volume) >= before - (64 << 10), "{} of {before}", free_bytes(&volume));
    volume.close().expect("closed");
    is_sound(&device);
}

/// One file in eight survives in each cluster: compaction brings the survivors together. A second one finds
/// nothing to do.
#[test]
fn regrouping_frees_the_dead_contents_of_clusters() {
    let device = device();
    let volume = open(&device);
    let dirs = directories(&volume);
    let len = |number: u64| 1500 + (number * 37 % 5000) as usize;
    let name = |number: u64| format!("file {number}");
    let dir = |number: u64| dirs[number as usize / 300];
    for number in 0..900 {
        let made = volume.make(&Caller::ROOT, dir(number), name(number).as_bytes(), &FILE);
        let ino = made.expect("made").ino;
        volume.release(ino, 1);
        write(&volume, ino, 0, &text(number, len(number)));
    }
    volume.sync().expect("synced");
    let full = free_bytes(&volume);
    let survives = |number: &u64| number % 8 == 5;
    for number in (0..900).filter(|number| !survives(number)) {
        volume.unlink(&Caller::ROOT, dir(number), name(number).as_bytes()).expect("unlinked");
    }
    volume.sync().expect("synced");
    let before = free_bytes(&volume);
    assert!(before < full + (128 << 10), "clusters stay: {before} bytes are free, {full} before");
    let regroup = || {
        let options = RegroupOptions::default();
        let watch = &mut |_: &RegroupProgress| ControlFlow::Continue(());
        volume.regroup(Scattered::Tree(ROOT), &options, watch).expect("regrouped")
    };
    let freed = regroup().freed_bytes;
    assert!(freed > 500 << 10, "{freed} bytes are freed");
    assert_eq!(free_bytes(&volume), before + freed);
    assert_eq!(regroup().freed_bytes, 0);
    for number in (0..900).filter(survives) {
        let found = volume.lookup(dir(number), name(number).as_bytes()).expect("found");
        assert!(read(&volume, found.ino) == text(number, len(number)), "file {number}");
        volume.release(found.ino, 1);
    }
    volume.close().expect("closed");
    is_sound(&device);
}

/// A volume that is full of the dead contents of clusters has room for new files: a change that finds no
/// space compacts clusters first.
#[test]
fn a_full_volume_compacts_clusters_before_a_change_fails() {
    for survivors in [8, 3] {
        let device = device_of(24 * MIB);
        let volume = open(&device);
        let dirs = directories(&volume);
        let name = |number: u64| format!("file {number}");
        let len = |number: u64| 1500 + (number * 37 % 5000) as usize;
        let dir = |number: u64| dirs[number as usize / 400 % dirs.len()];
        let is_made = |number: &u64| {
            let made = volume.make(&Caller::ROOT, dir(*number), name(*number).as_bytes(), &FILE);
            let Ok(made) = made else { return false };
            volume.release(made.ino, 1);
            let contents = text(*number, len(*number));
            let written = volume.write(&Caller::ROOT, made.ino, 0, &contents);
            written.is_ok_and(|bytes| bytes == contents.len())
        };
        let count = (0..).take_while(is_made).count() as u64;
        assert!(count > 4000, "{count} files");
        volume.sync().expect("synced");
        for number in (0..count).filter(|number| number % survivors != 1) {
            volume.unlink(&Caller::ROOT, dir(number), name(number).as_bytes()).expect("unlinked");
        }
        volume.sync().expect("synced");
        // The last file of the first round may exist, with only part of its contents.
        let first = count + 1;
        let more = (first..).take_while(is_made).count() as u64;
        println!("{count} files, then {more} more");
        assert!(more > count * (survivors - 1) / survivors * 3 / 4, "{more} after {count}");
        for number in (1..count).step_by(survivors as usize).chain(first..first + more) {
            let found = volume.lookup(dir(number), name(number).as_bytes()).expect("found");
            assert!(read(&volume, found.ino) == text(number, len(number)), "file {number}");
            volume.release(found.ino, 1);
        }
        volume.close().expect("closed");
        is_sound(&device);
    }
}

/// A closed compressed volume with some files.
fn filled() -> Arc<MemoryDevice> {
    let device = device();
    let volume = open(&device);
    let dirs = directories(&volume);
    for number in 0..60 {
        make(&volume, dirs[number as usize % 3], number);
    }
    volume.close().expect("closed");
    device
}

/// The first group's reference counts.
fn counts(device: &MemoryDevice) -> (u64, Vec<u8>) {
    let layout = Layout::new(&read_superblock(device).expect("a superblock"));
    let offset = layout.block_offset(layout.cg_counts(CgIndex(0)));
    let mut counts = vec![0; (layout.count_blocks * layout.block_bytes) as usize];
    device.read_at(offset, &mut counts).expect("read");
    (offset, counts)
}

#[test]
fn a_count_of_references_that_is_too_low_is_found_and_repaired() {
    let device = filled();
    let (offset, before) = counts(&device);
    let shared = before.iter().position(|count| *count > 1).expect("a cluster of several files");
    let mut wrong = before.clone();
    wrong[shared] -= 1;
    device.write_at(offset, &[IoSlice::new(&wrong)]).expect("written");
    let check = |repair| {
        let options = CheckOptions { repair, force: true, ..CheckOptions::default() };
        fsck::check(&*device, &options, &()).expect("checked").problems
    };
    let codes: Vec<Code> = check(Repair::Preen).iter().map(|problem| problem.code).collect();
    assert_eq!(codes, [Code::ClusterReferences]);
    assert_eq!(check(Repair::No), []);
    assert_eq!(counts(&device).1, before);
}

#[test]
fn a_damaged_cluster_fails_the_reads_of_its_files_and_fsck_names_them() {
    let device = filled();
    let volume = open(&device);
    let dir = volume.lookup(ROOT, b"a").expect("a directory").ino;
    let found = volume.lookup(dir, b"file 6").expect("a file");
    let place = volume.admin().places(found.ino).expect("its places")[0].clone();
    volume.close().expect("closed");
    let mut bytes = vec![0; 16];
    let at = place.start + 40;
    device.read_at(at, &mut bytes).expect("read");
    bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
    device.write_at(at, &[IoSlice::new(&bytes)]).expect("written");

    let volume = open(&device);
    let error = volume.read(found.ino, 0, &mut [0; 100]).expect_err("damaged");
    assert!(error.to_string().contains("cluster"), "{error}");
    volume.close().expect("closed");
    let options = CheckOptions { contents: true, force: true, ..CheckOptions::default() };
    let report = fsck::check(&*device, &options, &()).expect("checked");
    assert!(report.problems.iter().all(|problem| problem.code == Code::Contents));
    let of_file = |problem: &Problem| problem.place == Place::Inode(found.ino);
    assert!(report.problems.iter().any(of_file), "{:?}", report.problems);
}

/// A crash loses only unsynced changes, and clusters without files are free afterwards.
#[test]
fn a_crash_after_changes_leaves_the_synced_state() {
    let device = filled();
    let volume = open(&device);
    let dir = volume.lookup(ROOT, b"b").expect("a directory").ino;
    for number in (1..60).step_by(3) {
        volume.unlink(&Caller::ROOT, dir, format!("file {number}").as_bytes()).expect("unlinked");
    }
    volume.sync().expect("synced");
    let crashed = Arc::new(MemoryDevice::from_image(device.snapshot()));
    drop(volume);
    let volume =
        cffs::open(crashed.clone(), Arc::new(TestClock::default()), OpenOptions::default());
    let volume = volume.expect("recovered");
    let dir = volume.lookup(ROOT, b"c").expect("a directory").ino;
    for number in (2..60).step_by(3) {
        let found = volume.lookup(dir, format!("file {number}").as_bytes()).expect("found");
        assert!(read(&volume, found.ino) == text(number, len_of(number)), "file {number}");
    }
    volume.close().expect("closed");
    is_sound(&crashed);
}

/// `python/cffs_decode.py`, which is written from FORMAT.md alone, reads clusters, and counts their
/// references as the volume does.
#[test]
fn the_decoder_reads_compressed_volumes() {
    let image = filled().snapshot();
    let volume = open(&Arc::new(MemoryDevice::from_image(image.clone())));
    assert_eq!(listing::decoded(&image), listing::of(&volume).expect("listed"));
}

#[test]
fn the_pieces_of_a_large_file_are_in_its_order() {
    let device = device();
    let volume = open(&device);
    let ino = volume.make(&Caller::ROOT, ROOT, b"large", &FILE).expect("made").ino;
    let contents = text(5, 3 << 20);
    write(&volume, ino, 0, &contents);
    volume.sync().expect("synced");
    let places = volume.admin().places(ino).expect("its places");
    assert!(places.len() > 40, "{} pieces", places.len());
    assert!(places.is_sorted_by_key(|place| place.start), "{places:?}");
    assert!(read(&volume, ino) == contents);
    volume.release(ino, 1);
    volume.close().expect("closed");
    is_sound(&device);
}

/// The contents of a large file have no checksum, but its clusters have.
#[test]
fn a_scrub_finds_a_damaged_cluster_of_a_large_file() {
    let device = device();
    let volume = open(&device);
    let ino = volume.make(&Caller::ROOT, ROOT, b"large", &FILE).expect("made").ino;
    volume.release(ino, 1);
    write(&volume, ino, 0, &text(5, 300_000));
    volume.sync().expect("synced");
    let problems = || {
        let done = volume.admin().scrub(&mut |_| ControlFlow::Continue(())).expect("scrubbed");
        done.problems.len()
    };
    assert_eq!(problems(), 0);
    let place = volume.admin().places(ino).expect("its places")[2].clone();
    let mut bytes = [0; 8];
    device.read_at(place.start + 100, &mut bytes).expect("read");
    bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
    device.write_at(place.start + 100, &[IoSlice::new(&bytes)]).expect("written");
    assert_eq!(problems(), 1);
    volume.close().expect("closed");
}
