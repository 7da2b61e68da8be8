//! Discards: what a trim and `-o discard` return to the device, their cost, and what they spare. The crash
//! explorer shows that they never discard data that a crash brings back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use cffs::clock::TestClock;
use cffs::device::fault::{Effect, Fault, Strike, Target};
use cffs::device::{BlockDevice, FaultDevice, MemoryDevice, TraceDevice};
use cffs::fsck::{self, CheckOptions};
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::{Caller, OpenOptions, Volume};

use cffs_testing::setup::{FILE, made};

const ROOT: InodeNo = InodeNo::ROOT;
const MIB: u64 = 1 << 20;

fn open<D: BlockDevice + 'static>(device: &Arc<D>, discard: bool) -> Volume {
    let options = OpenOptions {
        cache_bytes: MIB,
        discard,
        clean_after: Duration::MAX,
        ..OpenOptions::default()
    };
    Volume::open(device.clone(), Arc::new(TestClock::default()), options).expect("open")
}

fn write(volume: &Volume, name: &str, len: u64) -> InodeNo {
    let ino = volume.make(&Caller::ROOT, ROOT, name.as_bytes(), &FILE).expect("made").ino;
    for from in (0..len).step_by(MIB as usize) {
        let piece = vec![from as u8 | 1; MIB.min(len - from) as usize];
        assert_eq!(volume.write(&Caller::ROOT, ino, from, &piece).expect("written"), piece.len());
    }
    ino
}

fn remove(volume: &Volume, name: &str, ino: InodeNo) {
    volume.unlink(&Caller::ROOT, ROOT, name.as_bytes()).expect("unlinked");
    volume.release(ino, 1);
}

fn read(volume: &Volume, ino: InodeNo) -> Vec<u8> {
    let mut bytes = vec![0; volume.attr(ino).expect("attr").size as usize];
    assert_eq!(volume.read(ino, 0, &mut bytes).expect("read"), bytes.len());
    bytes
}

fn assert_sound(device: &dyn BlockDevice) {
    let options = CheckOptions { force: true, contents: true, ..CheckOptions::default() };
    let report = fsck::check(device, &options, &()).expect("checked");
    assert!(report.problems.is_empty() && report.recovered.is_empty(), "{report:?}");
}

#[test]
fn a_trim_discards_deleted_data_and_nothing_else() {
    let device = made(256 * MIB);
    let volume = open(&device, false);
    let kept = write(&volume, "kept", 3 * MIB + 5);
    let gone = write(&volume, "gone", 40 * MIB);
    volume.sync().expect("synced");
    let full = device.snapshot().resident_bytes();
    assert!(full > 43 * MIB);
    remove(&volume, "gone", gone);
    let trimmed = volume.admin().trim(0..u64::MAX, 0).expect("trimmed");
    let left = device.snapshot().resident_bytes();
    assert!(left < 5 * MIB, "{left}");
    assert!(trimmed.bytes > 250 * MIB - 5 * MIB, "{trimmed:?}");
    let contents = read(&volume, kept);
    volume.close().expect("closed");
    assert_sound(&*device);
    let volume = open(&device, false);
    assert!(read(&volume, kept) == contents, "of what was kept");
}

#[test]
fn a_trim_keeps_to_its_range_and_skips_short_runs() {
    let device = made(256 * MIB);
    let volume = open(&device, false);
    let files: Vec<InodeNo> =
        (0..64).map(|index| write(&volume, &index.to_string(), 64 << 10)).collect();
    volume.sync().expect("synced");
    for index in (0..64).step_by(2) {
        remove(&volume, &index.to_string(), files[index]);
    }
    let trimmed = volume.admin().trim(0..u64::MAX, MIB).expect("trimmed");
    let long = trimmed.requests;
    assert!(trimmed.bytes > 240 * MIB, "{trimmed:?}");
    let trimmed = volume.admin().trim(0..u64::MAX, 0).expect("trimmed");
    assert!(trimmed.requests >= long + 16, "the holes between the files: {trimmed:?}");
    let trimmed = volume.admin().trim(128 * MIB..130 * MIB + 5, 0).expect("trimmed");
    assert!(trimmed.bytes <= 2 * MIB, "{trimmed:?}");
    assert_eq!(volume.admin().trim(256 * MIB..u64::MAX, 0).expect("trimmed").bytes, 0);
    volume.close().expect("closed");
    assert_sound(&*device);
}

/// Regression: a trim discarded the journal, which is in an unused group: the next crash lost every change
/// that only the journal had, and even a closed volume could not be opened without a repair.
#[test]
fn a_trim_does_not_discard_the_journal() {
    let device = Arc::new(MemoryDevice::new(512 * MIB));
    let options = MkfsOptions { journal_bytes: 32 * MIB, ..MkfsOptions::default() };
    mkfs::make(&*device, &options).expect("mkfs");
    let volume = open(&device, false);
    let durable = |volume: &Volume, name: &str| {
        let ino = write(volume, name, 3000);
        volume.sync_file(ino, false).expect("durable");
        ino
    };
    let mut files = vec![durable(&volume, "before")];
    let trimmed = volume.admin().trim(0..u64::MAX, 0).expect("trimmed");
    assert!(trimmed.bytes > 470 * MIB, "{trimmed:?}");
    let assert_kept = |device: &Arc<MemoryDevice>, files: &[InodeNo]| {
        let options = OpenOptions::default();
        let volume = cffs::open(device.clone(), Arc::new(TestClock::default()), options);
        let volume = volume.expect("opened");
        for ino in files {
            assert!(read(&volume, *ino) == vec![1; 3000], "{ino}");
        }
        volume.close().expect("closed");
        assert_sound(&**device);
    };
    let crashed = || Arc::new(MemoryDevice::from_image(device.snapshot()));
    assert_kept(&crashed(), &files);
    files.push(durable(&volume, "after"));
    assert_kept(&crashed(), &files);
    volume.close().expect("closed");
    assert_kept(&device, &files);
}

/// One request per copy of the superblock in unused groups, and no group is read.
#[test]
fn a_trim_of_a_huge_empty_volume_takes_a_few_requests() {
    let inner = MemoryDevice::new(16 << 40);
    mkfs::make(&inner, &MkfsOptions::default()).expect("mkfs");
    let device = Arc::new(TraceDevice::new(inner));
    let volume = open(&device, false);
    let before = device.counts();
    let trimmed = volume.admin().trim(0..u64::MAX, 0).expect("trimmed");
    let counts = device.counts() - before;
    assert!(trimmed.requests < 50 && counts.requests() < 60, "{trimmed:?} {counts:?}");
    volume.close().expect("closed");
    assert_sound(&*device);
}

#[test]
fn with_the_option_deleted_space_goes_back_by_itself() {
    let device = made(256 * MIB);
    let volume = open(&device, true);
    let gone = write(&volume, "gone", 40 * MIB);
    let small: Vec<InodeNo> =
        (0..512).map(|index| write(&volume, &format!("small {index}"), 1100)).collect();
    volume.sync().expect("synced");
    assert!(device.snapshot().resident_bytes() > 40 * MIB);
    remove(&volume, "gone", gone);
    // Each removal frees two fragments; the block is free after the last one.
    for (index, ino) in small.into_iter().enumerate() {
        remove(&volume, &format!("small {index}"), ino);
        if index % 100 == 0 {
            volume.sync().expect("synced");
        }
    }
    let early = volume.stats().device_discarded_bytes;
    volume.sync().expect("synced");
    assert_eq!(volume.stats().device_discarded_bytes, early, "fsync and sync do not wait for it");
    let discarded = volume.writer().background().discard_freed().expect("discarded");
    assert!(discarded.bytes > 40 * MIB, "{discarded:?}");
    assert_eq!(volume.stats().device_discarded_bytes, early + discarded.bytes);
    let left = device.snapshot().resident_bytes();
    assert!(left < 3 * MIB, "{left}");
    assert_eq!(
        volume.writer().background().discard_freed().expect("discarded").requests,
        0,
        "all was discarded"
    );
    volume.close().expect("closed");
    assert_sound(&*device);
}

#[test]
fn closing_discards_what_is_left() {
    for discard in [false, true] {
        let device = made(256 * MIB);
        let volume = open(&device, discard);
        let gone = write(&volume, "gone", 20 * MIB);
        volume.sync().expect("synced");
        remove(&volume, "gone", gone);
        volume.close().expect("closed");
        assert_eq!(device.snapshot().resident_bytes() < 2 * MIB, discard);
        assert_sound(&*device);
    }
}

/// Writers allocate free space while it is being discarded.
#[test]
fn blocks_written_meanwhile_are_not_discarded() {
    let device = made(64 * MIB);
    let volume = open(&device, true);
    let done = AtomicBool::new(false);
    let kept: Vec<(InodeNo, u64)> = thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                volume.admin().trim(0..u64::MAX, 0).expect("trimmed");
                volume.writer().background().discard_freed().expect("discarded");
            }
        });
        let writers: Vec<_> = (0..2)
            .map(|writer| {
                let volume = &volume;
                scope.spawn(move || {
                    let mut kept = Vec::new();
                    for round in 0..40 {
                        let len = 1000 + round * 9000;
                        let name = format!("{writer} {round}");
                        let ino = write(volume, &name, len);
                        if round % 3 == 0 {
                            volume.sync_file(ino, false).expect("synced");
                        }
                        if round % 2 == 0 {
                            remove(volume, &name, ino);
                        } else {
                            kept.push((ino, len));
                        }
                    }
                    kept
                })
            })
            .collect();
        let kept = writers.into_iter().flat_map(|writer| writer.join().expect("wrote")).collect();
        done.store(true, Ordering::Release);
        kept
    });
    volume.close().expect("closed");
    assert_sound(&*device);
    let volume = open(&device, false);
    for (ino, len) in kept {
        assert!(read(&volume, ino) == vec![1; len as usize], "{ino}");
    }
}

/// A device whose discards fail only wastes space, and a trim reports that.
#[test]
fn a_failed_discard_loses_nothing() {
    let inner = MemoryDevice::new(64 * MIB);
    mkfs::make(&inner, &MkfsOptions::default()).expect("mkfs");
    let device = Arc::new(FaultDevice::new(inner, 1));
    let volume = open(&device, true);
    let gone = write(&volume, "gone", 5 * MIB);
    volume.sync().expect("synced");
    remove(&volume, "gone", gone);
    volume.sync().expect("synced");
    let target = Target::discards();
    device.arm(Fault { target, strike: Strike::Always, effect: Effect::IO_ERROR });
    volume.writer().background().discard_freed().expect("not an error of the volume");
    volume.admin().trim(0..u64::MAX, 0).expect_err("the trim failed");
    device.disarm();
    assert!(volume.writer().health.latched().is_none());
    let kept = write(&volume, "kept", MIB);
    volume.close().expect("closed");
    assert_sound(&*device);
    assert!(read(&open(&device, false), kept) == vec![1; MIB as usize]);
}
