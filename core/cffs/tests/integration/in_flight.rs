//! Readers and the evictor while an epoch is being written: data that is not yet on the device is found in
//! memory, however little memory there is.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cffs::clock::TestClock;
use cffs::device::{HoldDevice, MemoryDevice, RequestKind};
use cffs::fsck::{self, CheckOptions};
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::{AllocateMode, Caller, NewFile, NewKind, OpenOptions, Volume, XattrMode};

const ROOT: InodeNo = InodeNo::ROOT;
const PATIENCE: Duration = Duration::from_secs(60);
const NAME: &[u8] = b"user.large";
/// Each list of attributes has a separate block run, and a few of them exceed the limit for all inodes.
const ATTRIBUTE_BYTES: usize = 60_000;
const FILES: u8 = 40;
const BLOCK_BYTES: u64 = 4096;

type Device = HoldDevice<MemoryDevice>;

fn make(volume: &Volume, name: &str) -> InodeNo {
    let new = NewFile { kind: NewKind::Regular, permissions: 0o644, uid: 0, gid: 0, times: None };
    volume.make(&Caller::ROOT, ROOT, name.as_bytes(), &new).expect("made").ino
}

fn set(volume: &Volume, ino: InodeNo, fill: u8) {
    let value = [fill; ATTRIBUTE_BYTES];
    volume.set_xattr(&Caller::ROOT, ino, NAME, &value, XattrMode::Any).expect("set");
}

/// Repeatedly makes room for inodes: evicts their attributes, or the inodes themselves.
fn evict(volume: &Volume) {
    let ino = make(volume, "large");
    for fill in 0..FILES {
        let other = make(volume, &format!("evicting {fill}"));
        set(volume, ino, fill);
        set(volume, other, fill);
    }
}

/// Runs `meanwhile` while an epoch with the changes of `change` is in flight.
fn with_epoch_in_flight(change: impl FnOnce(&Volume), meanwhile: impl FnOnce(&Volume, &Device)) {
    let device = Arc::new(Device::new(MemoryDevice::new(64 << 20)));
    mkfs::make(&*device, &MkfsOptions::default()).expect("mkfs");
    let options = OpenOptions { cache_bytes: 1 << 20, ..OpenOptions::default() };
    let volume = Volume::open(device.clone(), Arc::new(TestClock::default()), options);
    let volume = volume.expect("open");
    change(&volume);
    thread::scope(|scope| {
        let held = device.hold(RequestKind::Write);
        let syncing = scope.spawn(|| volume.sync());
        assert!(device.wait_for_request(PATIENCE), "the epoch has come to the device");
        meanwhile(&volume, &device);
        drop(held);
        syncing.join().expect("no panic").expect("sync");
    });
    volume.close().expect("close");
    let options = CheckOptions { contents: true, force: true, ..CheckOptions::default() };
    let report = fsck::check(&*device, &options, &()).expect("the check runs");
    assert_eq!(report.problems, []);
}

/// Regression: attributes in separate blocks were dropped from memory as soon as an epoch had encoded them. A
/// reader that arrived before the epoch was on the device read the old data there, and reported damage.
#[test]
fn attributes_that_an_epoch_writes_are_found_in_memory() {
    let files = |volume: &Volume| -> Vec<InodeNo> {
        let ino = |number| volume.lookup(ROOT, format!("{number}").as_bytes()).expect("found").ino;
        (0..FILES).map(ino).collect()
    };
    let change = |volume: &Volume| {
        (0..FILES).for_each(|number| set(volume, make(volume, &number.to_string()), number));
    };
    with_epoch_in_flight(change, |volume, _| {
        evict(volume);
        for (number, ino) in (0..FILES).zip(files(volume)) {
            let value = volume.xattr(ino, NAME).expect("read");
            assert!(value == [number; ATTRIBUTE_BYTES], "of file {number}");
        }
    });
}

/// The same for the extents of a file: after a hole was punched, the epoch writes nodes of the extent tree
/// and no page of the file, so the inode could be evicted while its tree was being written.
#[test]
fn extents_that_an_epoch_writes_are_found_in_memory() {
    const PIECES: u64 = 600;
    let expected = |piece: u64| if piece.is_multiple_of(4) { [0; 16] } else { [piece as u8; 16] };
    let change = |volume: &Volume| {
        let ino = make(volume, "pieces");
        for piece in 0..PIECES {
            let bytes = [piece as u8; BLOCK_BYTES as usize];
            volume.write(&Caller::ROOT, ino, 2 * piece * BLOCK_BYTES, &bytes).expect("written");
        }
        volume.sync().expect("synced");
        for piece in (0..PIECES).step_by(4) {
            let mode = AllocateMode::PunchHole;
            volume
                .allocate(&Caller::ROOT, ino, 2 * piece * BLOCK_BYTES, BLOCK_BYTES, mode)
                .expect("punched");
        }
        volume.release(ino, 1);
    };
    with_epoch_in_flight(change, |volume, _| {
        evict(volume);
        let ino = volume.lookup(ROOT, b"pieces").expect("found").ino;
        for piece in 0..PIECES {
            let mut bytes = [1; 16];
            volume.read(ino, 2 * piece * BLOCK_BYTES, &mut bytes).expect("read");
            assert_eq!(bytes, expected(piece), "piece {piece}");
        }
    });
}

/// Regression: a write that found space for only a part of the pages made these dirty, and kept the checksum
/// of the file. It waits for the epoch, which frees the earlier place of the file.
#[test]
fn a_write_without_space_for_all_pages_in_flight_drops_the_checksum() {
    const SMALL_BYTES: usize = 15 * BLOCK_BYTES as usize;
    const LEFT_BLOCKS: u64 = 20;
    let reserve = |volume: &Volume, name: &str, blocks: u64| {
        let ino =
            volume.lookup(ROOT, name.as_bytes()).map_or_else(|_| make(volume, name), |f| f.ino);
        let from = volume.attr(ino).expect("read").allocated_bytes;
        let mode = AllocateMode::ReserveKeepSize;
        volume.allocate(&Caller::ROOT, ino, from, blocks * BLOCK_BYTES, mode).is_ok()
    };
    let change = |volume: &Volume| {
        let small = make(volume, "small");
        let write = |fill| volume.write(&Caller::ROOT, small, 0, &[fill; SMALL_BYTES]);
        write(1).expect("written");
        volume.sync().expect("synced");
        assert!(reserve(volume, "left", LEFT_BLOCKS));
        for blocks in [1024, 64, 1] {
            while reserve(volume, &format!("filler of {blocks}"), blocks) {}
        }
        let left = volume.lookup(ROOT, b"left").expect("made").ino;
        volume.release(left, 2);
        volume.unlink(&Caller::ROOT, ROOT, b"left").expect("removed");
        volume.sync().expect("synced");
        write(2).expect("written");
    };
    with_epoch_in_flight(change, |volume, device| {
        let small = volume.lookup(ROOT, b"small").expect("made").ino;
        let before = volume.stats().epochs_forced;
        thread::scope(|scope| {
            let writing = scope.spawn(|| volume.write(&Caller::ROOT, small, 5, &[3]));
            // Its first attempt fails, and it waits for the epoch.
            let began = Instant::now();
            let is_waiting = || volume.stats().epochs_forced > before;
            while !is_waiting() && began.elapsed() < PATIENCE {
                thread::yield_now();
            }
            let has_waited = is_waiting();
            device.release();
            writing.join().expect("no panic").expect("written");
            assert!(has_waited, "the write needs no epoch");
        });
        let mut bytes = [0; 7];
        volume.read(small, 0, &mut bytes).expect("read");
        assert_eq!(bytes, [2, 2, 2, 2, 2, 3, 2]);
    });
}

/// Regression: the step of an epoch stayed recorded until the next epoch, even after a checkpoint had ended
/// it: on an idle volume the log reported that the device hangs.
#[test]
fn a_step_is_noted_while_the_device_is_waited_for_and_no_longer() {
    let device = Arc::new(Device::new(MemoryDevice::new(64 << 20)));
    mkfs::make(&*device, &MkfsOptions::default()).expect("mkfs");
    let options = OpenOptions::default();
    let volume = Volume::open(device.clone(), Arc::new(TestClock::default()), options);
    let volume = volume.expect("open");
    let calls: [&(dyn Fn(&Volume) + Sync); 3] = [
        &|volume| volume.sync().expect("synced"),
        &|volume| volume.writer().checkpoints().run().expect("written"),
        &|volume| assert!(volume.writer().checkpoints().mark_clean().expect("written")),
    ];
    for (number, call) in calls.iter().enumerate() {
        make(&volume, &format!("file {number}"));
        thread::scope(|scope| {
            let held = device.hold(RequestKind::Sync);
            let calling = scope.spawn(|| call(&volume));
            assert!(device.wait_for_request(PATIENCE), "the call has come to the device");
            let step = volume.admin().step().expect("the device is waited for");
            assert!(step.contains("flush"), "{step}");
            drop(held);
            calling.join().expect("no panic");
        });
        assert_eq!(volume.admin().step(), None, "after call {number}");
    }
}

/// Regression: a page that was changed and then dropped by a hole kept its reservations, and so did a page
/// truncated while others of its file were in flight: the volume lost more and more space until it was
/// closed.
#[test]
fn promises_of_dropped_pages_are_released() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    mkfs::make(&*device, &MkfsOptions::default()).expect("mkfs");
    let options = OpenOptions::default();
    let volume = Volume::open(device, Arc::new(TestClock::default()), options).expect("open");
    let ino = make(&volume, "page");
    let available = volume.stat_fs().available_fragments;
    volume.write(&Caller::ROOT, ino, 0, &[1; BLOCK_BYTES as usize]).expect("written");
    assert!(volume.stat_fs().available_fragments < available, "a place is promised");
    volume.allocate(&Caller::ROOT, ino, 0, BLOCK_BYTES, AllocateMode::PunchHole).expect("punched");
    assert_eq!(volume.stat_fs().available_fragments, available);
    volume.close().expect("closed");
}
