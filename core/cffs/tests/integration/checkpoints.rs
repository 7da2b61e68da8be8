//! Checkpoints: an unchanged volume is marked clean while it is open, so that a crash requires no
//! recovery; and the mark is never set wrongly.

use std::sync::Arc;
use std::time::Duration;

use cffs::clock::{TestClock, VirtualClock};
use cffs::device::{BlockDevice, CrashingDevice, MemoryDevice};
use cffs::format::superblock::State;
use cffs::fsck::{self, CheckOptions, Repair, Report};
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::{AllocateMode, Caller, OpenOptions, RenameMode, SetAttr, Volume, read_superblock};

use cffs_testing::random::Random;
use cffs_testing::setup::FILE;

const ROOT: InodeNo = InodeNo::ROOT;
const DEVICE_BYTES: u64 = 16 << 20;

/// A new volume on a device that keeps some of the images that a crash could leave.
fn made(options: &MkfsOptions, seed: u64) -> Arc<CrashingDevice> {
    let blank = MemoryDevice::new(DEVICE_BYTES);
    mkfs::make(&blank, options).expect("mkfs");
    Arc::new(CrashingDevice::new(blank.snapshot(), 3, seed))
}

/// The device as a crash now would leave it, while no write is in progress.
fn crashed(device: &CrashingDevice) -> MemoryDevice {
    MemoryDevice::from_image(device.inner().crash_seeded(1).expect("an image"))
}

fn open_with(device: Arc<dyn BlockDevice>, options: OpenOptions) -> Volume {
    let options = OpenOptions { cache_bytes: 1 << 20, ..options };
    Volume::open(device, Arc::new(TestClock::default()), options).expect("open")
}

fn open(device: Arc<dyn BlockDevice>) -> Volume {
    open_with(device, OpenOptions::default())
}

fn check(device: &dyn BlockDevice) -> Report {
    let options =
        CheckOptions { repair: Repair::No, force: true, contents: true, ..CheckOptions::default() };
    fsck::check(device, &options, &()).expect("the check can be made")
}

/// Runs a full check of a volume that is marked clean: there must be no problem, not even one that
/// a crash would explain.
fn assert_sound(device: &dyn BlockDevice, context: &str) {
    let report = check(device);
    assert!(report.problems.is_empty(), "{context}: {:?}", report.problems);
    assert!(report.recovered.is_empty(), "{context}: {:?}", report.recovered);
}

fn state(device: &dyn BlockDevice) -> State {
    read_superblock(device).expect("a superblock").state
}

fn make(volume: &Volume, name: &[u8], bytes: &[u8]) -> InodeNo {
    let attr = volume.make(&Caller::ROOT, ROOT, name, &FILE).expect("make");
    assert_eq!(volume.write(&Caller::ROOT, attr.ino, 0, bytes).expect("write"), bytes.len());
    volume.release(attr.ino, 1);
    attr.ino
}

fn exists(volume: &Volume, name: &[u8]) -> bool {
    volume.lookup(ROOT, name).inspect(|attr| volume.release(attr.ino, 1)).is_ok()
}

#[test]
fn a_crash_of_an_idle_volume_leaves_nothing_to_recover() {
    let device = made(&MkfsOptions::default(), 1);
    let volume = open(device.clone());
    make(&volume, b"file", &[1; 9000]);
    assert!(volume.writer().checkpoints().mark_clean().expect("a checkpoint"));
    assert_eq!(volume.stats().checkpoints, 1);

    let crashed = Arc::new(crashed(&device));
    assert_eq!(state(&*crashed), State::Clean);
    assert_sound(&*crashed, "after the crash");
    let reads = volume.stats().device_reads;
    assert!(volume.writer().checkpoints().mark_clean().expect("nothing to do"));
    assert_eq!(volume.stats().checkpoints, 1, "it was one already");
    assert_eq!(volume.stats().device_reads, reads);

    // Without recovery.
    let after = open(crashed);
    assert!(exists(&after, b"file"));
    after.close().expect("close");
}

#[test]
fn the_first_epoch_after_a_checkpoint_marks_the_volume_first() {
    let device = made(&MkfsOptions::default(), 2);
    let volume = open(device.clone());
    make(&volume, b"before", &[1; 3000]);
    assert!(volume.writer().checkpoints().mark_clean().expect("a checkpoint"));
    device.take_images();
    make(&volume, b"after", &[2; 3000]);
    assert_eq!(state(&crashed(&device)), State::Clean, "a change in memory alone");
    volume.sync().expect("sync");
    assert_eq!(state(&crashed(&device)), State::InUse);
    for image in device.take_images() {
        let image = MemoryDevice::from_image(image);
        if state(&image) == State::Clean {
            assert_sound(&image, "a crash before the mark");
        }
    }
}

#[test]
fn an_inode_in_use_without_a_name_keeps_the_volume_from_being_clean() {
    let device = made(&MkfsOptions::default(), 3);
    let volume = open(device.clone());
    let held = volume.make(&Caller::ROOT, ROOT, b"held", &FILE).expect("make").ino;
    volume.write(&Caller::ROOT, held, 0, &[3; 20_000]).expect("write");
    assert!(volume.writer().checkpoints().mark_clean().expect("a checkpoint"));

    volume.unlink(&Caller::ROOT, ROOT, b"held").expect("unlink");
    assert!(!volume.writer().checkpoints().mark_clean().expect("no checkpoint"));
    assert_eq!(state(&crashed(&device)), State::InUse);
    volume.release(held, 1);
    assert!(volume.writer().checkpoints().mark_clean().expect("a checkpoint"));
    assert_sound(&crashed(&device), "after its last user");

    let unnamed = volume.make_unnamed(&Caller::ROOT, ROOT, &FILE).expect("make").ino;
    assert!(!volume.writer().checkpoints().mark_clean().expect("no checkpoint"));
    volume.link(unnamed, ROOT, b"named").expect("link");
    volume.release(unnamed, 2);
    assert!(volume.writer().checkpoints().mark_clean().expect("a checkpoint"));
    assert_sound(&crashed(&device), "after it got a name");
}

#[test]
fn the_background_reaches_a_checkpoint_when_nothing_changes() {
    let device = made(&MkfsOptions::default(), 4);
    let soon = OpenOptions {
        epoch_interval: Duration::ZERO,
        clean_after: Duration::ZERO,
        clean_share_percent: 100,
        ..OpenOptions::default()
    };
    let volume = open_with(device.clone(), soon);
    make(&volume, b"file", &[4; 100]);
    volume.writer().background().run_once().expect("background");
    assert_eq!(state(&crashed(&device)), State::Clean);
    assert_sound(&crashed(&device), "idle");
    let syncs = volume.stats().device_syncs;
    volume.writer().background().run_once().expect("background");
    assert_eq!(volume.stats().device_syncs, syncs, "an idle volume costs nothing");
    volume.close().expect("close");

    let never = OpenOptions { epoch_interval: Duration::ZERO, ..OpenOptions::default() };
    let volume =
        open_with(device.clone(), OpenOptions { clean_after: Duration::MAX, ..never.clone() });
    make(&volume, b"other", &[4; 100]);
    volume.writer().background().run_once().expect("background");
    assert_eq!(state(&crashed(&device)), State::InUse, "switched off");
    volume.close().expect("close");

    let clock = Arc::new(VirtualClock::default());
    let volume = Volume::open(device.clone(), clock.clone(), never).expect("open");
    make(&volume, b"third", &[4; 100]);
    for (seconds, expected) in [(0, State::InUse), (9, State::InUse), (1, State::Clean)] {
        clock.advance(Duration::from_secs(seconds));
        volume.writer().background().run_once().expect("background");
        assert_eq!(state(&crashed(&device)), expected, "it has to be idle for ten seconds");
    }
}

#[test]
fn a_volume_that_is_held_still_can_be_checked() {
    let device = made(&MkfsOptions::default(), 5);
    let volume = open(device.clone());
    for number in 0..50 {
        make(&volume, format!("file {number}").as_bytes(), &[5; 5000]);
    }
    assert!(volume.writer().checkpoints().mark_clean().expect("a checkpoint"));
    let report = volume.writer().checkpoints().freeze(|device, _| check(device)).expect("held");
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    assert!(!report.recovery, "at a checkpoint");
    assert_eq!(report.inodes, 50);
    make(&volume, b"and on", &[5; 5000]);
    let state_held = volume.writer().checkpoints().freeze(|device, _| state(device)).expect("held");
    assert_eq!(state_held, State::InUse, "looking does not make it clean");
    assert_eq!(
        volume.writer().checkpoints().freeze(|device, _| check(device)).expect("held").inodes,
        51
    );
    volume.close().expect("close");
    assert_sound(&crashed(&device), "at the end");
}

/// Makes one random change; some fail, since their file does not exist. Returns an inode that stays
/// in use.
fn change(volume: &Volume, random: &mut Random) -> Option<InodeNo> {
    let name = format!("f{}", random.below(8)).into_bytes();
    let other = format!("f{}", random.below(8)).into_bytes();
    match random.below(9) {
        0..=2 => {
            let Ok(attr) = volume.make(&Caller::ROOT, ROOT, &name, &FILE) else { return None };
            let len = [0, 3, 300, 2000, 9000, 70_000][random.below(6) as usize];
            volume.write(&Caller::ROOT, attr.ino, 0, &vec![7; len]).expect("write");
            return Some(attr.ino);
        }
        3 => drop(volume.unlink(&Caller::ROOT, ROOT, &name)),
        4 => drop(volume.rename(&Caller::ROOT, ROOT, &name, ROOT, &other, RenameMode::Replace)),
        5 => {
            let Ok(attr) = volume.lookup(ROOT, &name) else { return None };
            if volume.link(attr.ino, ROOT, &other).is_ok() {
                volume.release(attr.ino, 1);
            }
            return Some(attr.ino);
        }
        6 => {
            let Ok(attr) = volume.lookup(ROOT, &name) else { return None };
            let mode = AllocateMode::ReserveKeepSize;
            let _ = volume.allocate(&Caller::ROOT, attr.ino, 0, random.below(100_000) + 1, mode);
            return Some(attr.ino);
        }
        7 => {
            let Ok(attr) = volume.lookup(ROOT, &name) else { return None };
            let size = Some(random.below(5000));
            volume
                .set_attr(&Caller::ROOT, attr.ino, &SetAttr { size, ..SetAttr::default() })
                .expect("truncate");
            return Some(attr.ino);
        }
        _ => return volume.make_unnamed(&Caller::ROOT, ROOT, &FILE).ok().map(|attr| attr.ino),
    }
    None
}

/// Whatever happens between checkpoints and whichever write a crash interrupts: an image marked
/// clean is clean, and the others are recovered.
#[test]
fn an_image_that_says_it_is_clean_is_so() {
    let (mut clean, mut recovered) = (0, 0);
    for seed in 1..=12u64 {
        let embed = !seed.is_multiple_of(4);
        let sector_bytes = Some(if seed.is_multiple_of(3) { 512 } else { 4096 });
        let options = MkfsOptions { embed, sector_bytes, ..MkfsOptions::default() };
        let device = made(&options, seed);
        let volume = open(device.clone());
        device.take_images();
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut used: Vec<InodeNo> = Vec::new();
        for step in 0..60 {
            used.extend(change(&volume, &mut random));
            if random.below(3) > 0
                && let Some(ino) = used.pop()
            {
                volume.release(ino, 1);
            }
            match random.below(8) {
                0 => used.drain(..).for_each(|ino| volume.release(ino, 1)),
                1 => volume.sync().expect("sync"),
                2 | 3 => drop(volume.writer().checkpoints().mark_clean().expect("checkpoint")),
                _ => {}
            }
            for image in device.take_images() {
                let image = MemoryDevice::from_image(image);
                let context = format!("seed {seed} step {step}");
                if state(&image) == State::Clean {
                    clean += 1;
                } else {
                    let preen = CheckOptions { repair: Repair::Preen, ..CheckOptions::default() };
                    let report = fsck::check(&image, &preen, &()).expect("recovery");
                    assert!(report.exit_code() <= 1, "{context}: {:?}", report.problems);
                    recovered += 1;
                }
                assert_sound(&image, &context);
                let after = open(Arc::new(image));
                make(&after, b"after the crash", &[9; 5000]);
                after.close().expect("close");
            }
        }
        volume.close().expect("close");
        assert_sound(&crashed(&device), "closed");
    }
    println!("{clean} images that were clean, {recovered} that were recovered");
    assert!(clean > 100 && recovered > 100, "{clean} clean, {recovered} recovered");
}
