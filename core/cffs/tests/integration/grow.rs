//! Growing: from any size to any other, during use, with a crash at every barrier, and on failing devices.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use cffs::clock::TestClock;
use cffs::device::fault::{Effect, Fault, Strike, Target};
use cffs::device::{
    BlockDevice, CrashingDevice, FaultDevice, FileDevice, Geometry, Image, MemoryDevice,
};
use cffs::error::Error;
use cffs::format::superblock::State;
use cffs::format::{Layout, Superblock};
use cffs::fsck::{self, CheckOptions, Repair};
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::{Caller, OpenOptions, Volume, read_superblock};

use cffs_testing::setup::FILE;

const ROOT: InodeNo = InodeNo::ROOT;
const BLOCK: u64 = 4096;
/// The blocks of a cylinder group: few, so that small volumes have many groups.
const CG_BLOCKS: u32 = 128;

fn open(device: Arc<dyn BlockDevice>) -> Result<Volume, Error> {
    let options = OpenOptions { cache_bytes: 1 << 20, ..OpenOptions::default() };
    cffs::open(device, Arc::new(TestClock::default()), options)
}

/// The image of a volume of `blocks` blocks with some files, on a larger device.
fn small_on_large(blocks: u64, device_blocks: u64, files: u64) -> Image {
    let small = Arc::new(MemoryDevice::new(blocks * BLOCK));
    let options = MkfsOptions { cg_blocks: CG_BLOCKS, ..MkfsOptions::default() };
    mkfs::make(&*small, &options).expect("mkfs");
    let volume = open(small.clone()).expect("open");
    fill(&volume, 0..files);
    volume.close().expect("closed");
    let sector_bytes = small.geometry().sector_bytes;
    let geometry = Geometry { size_bytes: device_blocks * BLOCK, sector_bytes };
    // The rest contains old data of other programs.
    let large = MemoryDevice::with_geometry(geometry);
    let garbage = vec![0x5a; BLOCK as usize];
    for block in blocks..device_blocks {
        large.write_at(block * BLOCK, &[IoSlice::new(&garbage)]).expect("written");
    }
    let mut bytes = vec![0; (blocks * BLOCK) as usize];
    small.read_at(0, &mut bytes).expect("read");
    large.write_at(0, &[IoSlice::new(&bytes)]).expect("written");
    large.snapshot()
}

fn contents(file: u64) -> Vec<u8> {
    vec![file as u8 | 1; (file * 1777 % 30_000) as usize + 1]
}

fn fill(volume: &Volume, files: std::ops::Range<u64>) {
    for file in files {
        let ino = volume
            .make(&Caller::ROOT, ROOT, format!("{file}").as_bytes(), &FILE)
            .expect("made")
            .ino;
        let contents = contents(file);
        assert_eq!(
            volume.write(&Caller::ROOT, ino, 0, &contents).expect("written"),
            contents.len()
        );
        volume.release(ino, 1);
    }
}

fn available_bytes(volume: &Volume) -> u64 {
    let space = volume.stat_fs();
    space.available_fragments * u64::from(space.fragment_bytes)
}

fn assert_filled(volume: &Volume, files: std::ops::Range<u64>) {
    for file in files {
        let ino = volume.lookup(ROOT, format!("{file}").as_bytes()).expect("there").ino;
        let expected = contents(file);
        let mut found = vec![0; expected.len() + 1];
        assert_eq!(volume.read(ino, 0, &mut found).expect("read"), expected.len());
        assert!(found[..expected.len()] == expected, "file {file}");
        volume.release(ino, 1);
    }
}

fn assert_sound(device: &dyn BlockDevice, when: &str) {
    let options = CheckOptions { force: true, contents: true, ..CheckOptions::default() };
    let report = fsck::check(device, &options, &()).expect("checked");
    assert!(report.problems.is_empty(), "{when}: {:?}", report.problems);
    assert!(report.recovered.is_empty(), "{when}: {:?}", report.recovered);
}

fn blocks_of(device: &dyn BlockDevice) -> u64 {
    read_superblock(device).expect("a superblock").blocks
}

/// Sizes with every kind of last group: full, short, minimal; one group and many; unused and in use.
#[test]
fn a_volume_grows_from_any_size_to_any_other() {
    let cg = u64::from(CG_BLOCKS);
    let sizes = [64, 100, cg, cg + 15, 2 * cg, 3 * cg - 1, 3 * cg, 8 * cg + 40, 30 * cg + 77];
    for (index, from) in sizes.into_iter().enumerate() {
        for to in sizes[index + 1..].iter().copied().chain([from + 2, from + 3]) {
            let files = from / 20;
            let device = Arc::new(MemoryDevice::from_image(small_on_large(from, to, files)));
            let volume = open(device.clone()).expect("open");
            let before = volume.stat_fs();
            fill(&volume, files..files + 2);
            let size = volume.admin().grow(None).expect("grown");
            assert!(size <= to * BLOCK, "{from} to {to}");
            let after = volume.stat_fs();
            let gained = (size / BLOCK - from) * BLOCK / u64::from(after.fragment_bytes);
            assert!(after.fragments >= before.fragments, "{from} to {to}");
            assert!(after.fragments - before.fragments <= gained, "{from} to {to}");
            fill(&volume, files + 2..files + 4);
            volume.sync().expect("synced");
            assert_filled(&volume, 0..files + 4);
            volume.close().expect("closed");
            assert_sound(&*device, &format!("{from} to {to}"));
            assert_eq!(blocks_of(&*device) * BLOCK, size);
            // All of it is usable.
            let volume = open(device.clone()).expect("open again");
            assert_filled(&volume, 0..files + 4);
            let ino = volume.make(&Caller::ROOT, ROOT, b"all", &FILE).expect("made").ino;
            let piece = vec![9; 64 << 10];
            let mut at = 0;
            while let Ok(len @ 1..) = volume.write(&Caller::ROOT, ino, at, &piece) {
                at += len as u64;
            }
            volume.sync().expect("synced");
            assert!(volume.stat_fs().available_fragments < 64 + 4, "{from} to {to}");
            volume.close().expect("closed");
            assert_sound(&*device, &format!("{from} to {to}, full"));
        }
    }
}

/// Images are kept at every barrier and sync.
#[test]
fn a_crash_leaves_the_old_size_or_the_new_one() {
    let cg = u64::from(CG_BLOCKS);
    let mut seen = [0; 2];
    for (from, to, files) in [
        (100, 5 * cg, 4),
        (3 * cg - 40, 3 * cg - 38, 50),
        (2 * cg + 20, 9 * cg + 33, 4),
        (3 * cg - 30, 30 * cg, 60),
    ] {
        for seed in 0..6 {
            let image = small_on_large(from, to, files);
            let device = Arc::new(CrashingDevice::new(image, 8, seed));
            let volume = open(device.clone()).expect("open");
            // Either there are changed and pending files, or none.
            let made = if seed % 3 == 0 { 0 } else { 3 };
            fill(&volume, files..files + made);
            if seed % 3 == 1 {
                volume.sync().expect("synced");
            }
            if seed % 3 == 0 {
                assert!(volume.writer().checkpoints().mark_clean().expect("a checkpoint"));
            }
            device.take_images();
            volume.admin().grow(None).expect("grown");
            let grown = device.take_images();
            fill(&volume, files + made..files + made + 3);
            volume.close().expect("closed");
            let images = grown.into_iter().map(|image| (image, true));
            for (image, cut_short) in
                images.chain(device.take_images().into_iter().map(|i| (i, false)))
            {
                let durable = if seed % 3 == 1 { files + 3 } else { files };
                let durable = if cut_short { durable } else { files + made };
                let blocks = try_crash(image, durable);
                assert!(blocks == to || cut_short && blocks == from, "{blocks}");
                seen[usize::from(blocks == to)] += 1;
            }
        }
    }
    assert!(seen[0] > 100 && seen[1] > 100, "{seen:?}");
}

/// Recovers, checks, completes the growth, and uses the volume. Returns the size after the crash.
fn try_crash(image: Image, durable: u64) -> u64 {
    let device = Arc::new(MemoryDevice::from_image(image));
    if read_superblock(&*device).expect("a superblock").state != State::Clean {
        let options = CheckOptions { repair: Repair::Preen, ..CheckOptions::default() };
        let report = fsck::check(&*device, &options, &()).expect("recovered");
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        assert!(report.full_because.is_none(), "{:?}", report.full_because);
    }
    assert_sound(&*device, "after a crash");
    let blocks = blocks_of(&*device);
    let volume = open(device.clone()).expect("open");
    assert_filled(&volume, 0..durable);
    volume.admin().grow(None).expect("grown again");
    fill(&volume, 1000..1003);
    volume.close().expect("closed");
    assert_sound(&*device, "grown again");
    assert_filled(&open(device).expect("open"), 1000..1003);
    blocks
}

#[test]
fn a_volume_grows_while_it_is_used() {
    let cg = u64::from(CG_BLOCKS);
    let device = Arc::new(MemoryDevice::from_image(small_on_large(3 * cg + 40, 60 * cg, 10)));
    let volume = open(device.clone()).expect("open");
    let done = AtomicBool::new(false);
    let written = AtomicU64::new(0);
    let last = thread::scope(|scope| {
        let writers: Vec<_> = (1..3)
            .map(|writer| {
                let (volume, done, written) = (&volume, &done, &written);
                scope.spawn(move || {
                    let mut file = writer * 1000;
                    for _ in 0..5000 {
                        if done.load(Ordering::Acquire) || file == writer * 1000 + 200 {
                            break;
                        }
                        // The volume may be full before it grows for the first time.
                        if available_bytes(volume) < 128 << 10 {
                            thread::sleep(Duration::from_millis(1));
                            continue;
                        }
                        fill(volume, file..file + 1);
                        written.fetch_add(1, Ordering::Relaxed);
                        file += 1;
                        if file % 5 == 0 {
                            volume.sync().expect("synced");
                        }
                    }
                    file
                })
            })
            .collect();
        for (step, groups) in (1..).zip([4, 5, 9, 17, 40, 60]) {
            // Some files were written before each step, and so some during it.
            let has_some = || written.load(Ordering::Relaxed) >= step * 4;
            for _ in (0..5000).take_while(|_| !has_some()) {
                thread::sleep(Duration::from_millis(1));
            }
            assert!(has_some(), "{written:?} files before step {step}");
            volume.admin().grow(Some(groups * cg * BLOCK)).expect("grown");
            assert!(volume.writer().health.latched().is_none());
        }
        done.store(true, Ordering::Release);
        writers.into_iter().map(|writer| writer.join().expect("wrote")).collect::<Vec<_>>()
    });
    for (writer, last) in (1..3).zip(last) {
        assert_filled(&volume, writer * 1000..last);
    }
    volume.close().expect("closed");
    assert_sound(&*device, "grown while it was used");
    assert_eq!(blocks_of(&*device), 60 * cg);
}

#[test]
fn an_impossible_size_is_refused_and_changes_nothing() {
    let device = Arc::new(MemoryDevice::from_image(small_on_large(400, 1000, 3)));
    let volume = open(device.clone()).expect("open");
    let refused = |size| match volume.admin().grow(Some(size)) {
        Err(Error::Unsupported(why)) => why,
        other => panic!("{other:?}"),
    };
    assert!(refused(399 * BLOCK).contains("cannot shrink"));
    assert!(refused(1001 * BLOCK).contains("make it larger first"));
    assert_eq!(volume.admin().grow(Some(401 * BLOCK)).expect("nothing to gain"), 400 * BLOCK);
    assert_eq!(volume.writer().health.latched(), None);
    volume.close().expect("closed");
    assert_eq!(blocks_of(&*device), 400);
    assert_sound(&*device, "refused");
}

/// The intent log is followed by the first files, so it cannot grow with the volume.
#[test]
fn the_intent_log_keeps_its_size_when_a_volume_grows() {
    let device = Arc::new(MemoryDevice::new(1 << 30));
    let small = MemoryDevice::new(64 << 20);
    mkfs::make(&small, &MkfsOptions::default()).expect("mkfs");
    let mut bytes = vec![0; 64 << 20];
    small.read_at(0, &mut bytes).expect("read");
    device.write_at(0, &[IoSlice::new(&bytes)]).expect("written");
    let before = Layout::new(&read_superblock(&*device).expect("a superblock"));
    let volume = open(device.clone()).expect("open");
    fill(&volume, 0..40);
    volume.admin().grow(None).expect("grown");
    fill(&volume, 40..80);
    volume.close().expect("closed");
    let superblock = read_superblock(&*device).expect("a superblock");
    let after = Layout::new(&superblock);
    assert_eq!(after, before.with_blocks(after.blocks));
    let Superblock { blocks, block_bytes, cg_blocks, .. } = superblock;
    let usual = Layout::usual_intent_log_half_blocks(blocks, block_bytes, cg_blocks);
    assert_ne!(usual, before.intent_log_half_blocks, "a new volume of this size has a longer one");
    assert_sound(&*device, "grown");
}

/// The copies have the new size: the one at the new end, and the earlier ones.
#[test]
fn a_lost_superblock_comes_back_with_the_new_size() {
    let cg = u64::from(CG_BLOCKS);
    let device = Arc::new(MemoryDevice::from_image(small_on_large(3 * cg + 9, 20 * cg, 20)));
    let volume = open(device.clone()).expect("open");
    volume.admin().grow(None).expect("grown");
    fill(&volume, 20..90);
    volume.close().expect("closed");
    let whole = device.snapshot();
    let layout = Layout::new(&read_superblock(&*device).expect("a superblock"));
    let copies = layout.superblock_copies();
    assert!(copies.len() > 4);
    for kept in &copies {
        device.restore(&whole).expect("restored");
        let zeros = vec![0; BLOCK as usize];
        for lost in copies.iter().filter(|copy| *copy != kept).map(|copy| copy.0).chain([0]) {
            device.write_at(lost * BLOCK, &[IoSlice::new(&zeros)]).expect("written");
        }
        let options = CheckOptions { repair: Repair::Yes, ..CheckOptions::default() };
        fsck::check(&*device, &options, &()).expect("repaired");
        let found: Superblock = read_superblock(&*device).expect("a superblock");
        assert_eq!(found.blocks, 20 * cg, "from the copy in block {kept}");
        assert_sound(&*device, "repaired");
        assert_filled(&open(device.clone()).expect("open"), 0..90);
    }
}

/// Whichever request fails, the call returns an error, and the volume is consistent afterwards.
#[test]
fn a_device_that_fails_leaves_the_old_size_or_the_new_one() {
    let image = small_on_large(300, 1500, 12);
    let mut grown = 0;
    for target in [Target::writes(), Target::flushes(), Target::reads()] {
        for nth in 0..200 {
            let device = Arc::new(FaultDevice::new(MemoryDevice::from_image(image.clone()), 7));
            let volume = open(device.clone()).expect("open");
            fill(&volume, 12..14);
            let strike = Strike::From(nth);
            device.arm(Fault { target: target.clone(), strike, effect: Effect::IO_ERROR });
            let outcome = volume.admin().grow(None);
            let struck = device.struck();
            device.disarm();
            assert_eq!(outcome.is_err(), struck > 0, "request {nth} of {target:?}");
            let closed = volume.close();
            drop(volume);
            let volume = open(device.clone()).expect("recovered");
            assert_filled(&volume, 0..12);
            let blocks = volume.writer().superblock.get().blocks;
            volume.close().expect("closed");
            assert_sound(&*device, "after a failure");
            assert!(blocks == 300 || blocks == 1500, "{blocks}");
            if struck == 0 {
                closed.expect("closed");
                assert_eq!(blocks, 1500);
                grown += 1;
                break;
            }
        }
    }
    assert_eq!(grown, 3, "each kind of request comes to an end");
}

#[test]
fn an_image_file_is_extended_first() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("image");
    let device = Arc::new(FileDevice::create(&path, 8 << 20).expect("made"));
    mkfs::make(&*device, &MkfsOptions::default()).expect("mkfs");
    let volume = open(device.clone()).expect("open");
    fill(&volume, 0..20);
    assert_eq!(volume.admin().grow(Some(1 << 30)).expect("grown"), 1 << 30);
    assert_eq!(device.geometry().size_bytes, 1 << 30);
    fill(&volume, 20..40);
    volume.close().expect("closed");
    assert_eq!(std::fs::metadata(&path).expect("there").len(), 1 << 30);
    assert_sound(&*device, "extended");
}
