//! Safeguards that matter only after a crash or on a failing device, each with its case.

use std::collections::HashSet;
use std::sync::Arc;

use cffs::clock::TestClock;
use cffs::device::{BlockDevice, CrashingDevice, MemoryDevice, VolatileDevice};
use cffs::error::Error;
use cffs::fsck::{self, CheckOptions, Repair};
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::{Caller, NewFile, NewKind, OpenOptions, RenameMode, Volume};

use cffs_testing::setup::{FILE, make_with};

const ROOT: InodeNo = InodeNo::ROOT;

fn blank(size_bytes: u64) -> MemoryDevice {
    let device = MemoryDevice::new(size_bytes);
    mkfs::make(&device, &MkfsOptions::default()).expect("mkfs");
    device
}

fn open(device: Arc<dyn BlockDevice>) -> Volume {
    let clock = Arc::new(TestClock::default());
    cffs::open(device, clock, OpenOptions::default()).expect("open")
}

/// The contents of a small file have a checksum, and no reader gets other contents.
#[test]
fn contents_that_the_device_changed_are_not_read() {
    const LEN: usize = 20_000;
    let device = Arc::new(blank(64 << 20));
    let volume = open(device.clone());
    let file = make_with(&volume, "file", &[7; LEN]);
    let other = make_with(&volume, "other", &[8; LEN]);
    volume.sync().expect("sync");
    let run = volume.admin().explain(file).expect("explained").pieces[0].run;
    let at = run.start.0 * u64::from(volume.writer().superblock.get().fragment_bytes) + 5000;
    volume.close().expect("close");

    let mut sector = [0; 4096];
    let (start, within) = (at / 4096 * 4096, (at % 4096) as usize);
    device.read_at(start, &mut sector).expect("read");
    assert_eq!(sector[within], 7);
    sector[within] ^= 1;
    device.write_at(start, &[std::io::IoSlice::new(&sector)]).expect("write");
    let volume = open(device);
    let mut bytes = [0; 100];
    for offset in [0, 4990, 19_000] {
        let read = volume.read(file, offset, &mut bytes);
        assert!(matches!(read, Err(Error::Corruption(_))), "at {offset}: {read:?}");
    }
    let changed = volume.write(&Caller::ROOT, file, 1, b"part");
    assert!(matches!(changed, Err(Error::Corruption(_))), "a new checksum over it: {changed:?}");
    assert_eq!(volume.read(other, 0, &mut bytes).expect("read"), bytes.len());
    assert_eq!(bytes, [8; 100]);
}

/// When space has run out, a small file is overwritten in place. Its checksum must be removed from the device
/// before, or a crash in between leaves contents that cannot be read.
#[test]
fn a_checksum_goes_before_what_it_is_of_is_overwritten() {
    let device = Arc::new(CrashingDevice::new(blank(8 << 20).snapshot(), 12, 3));
    let volume = open(device.clone());
    let small = make_with(&volume, "small", &[1; 9000]);
    let large = make_with(&volume, "large", &[]);
    let mut size = 0;
    // An epoch's allocations take less than was reserved, so there may be space again.
    loop {
        let before = size;
        while let Ok(len) = volume.write(&Caller::ROOT, large, size, &[3; 1024]) {
            size += len as u64;
        }
        volume.sync().expect("sync");
        if size == before {
            break;
        }
    }
    device.take_images();
    let place = volume.admin().explain(small).expect("explained").pieces;
    assert_eq!(volume.write(&Caller::ROOT, small, 0, &[2; 9000]).expect("write"), 9000);
    volume.sync().expect("sync");
    assert_eq!(
        volume.admin().explain(small).expect("explained").pieces,
        place,
        "overwritten in place"
    );
    let images = device.take_images();
    assert!(images.len() > 12, "{} states", images.len());
    for image in images {
        let device = Arc::new(MemoryDevice::from_image(image));
        let preen = CheckOptions { repair: Repair::Preen, ..CheckOptions::default() };
        fsck::check(&*device, &preen, &()).expect("recovery");
        let full = CheckOptions { force: true, contents: true, ..CheckOptions::default() };
        let report = fsck::check(&*device, &full, &()).expect("a check");
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        let mut bytes = vec![0; 9000];
        open(device).read(small, 0, &mut bytes).expect("read");
        assert!(bytes.iter().all(|byte| [1, 2].contains(byte)));
    }
}

/// Until an epoch has freed it on the device, a number belongs to the removed file: if it were reused at
/// once, a crash could leave two files with one number.
#[test]
fn the_number_of_a_file_is_free_after_the_epoch_that_removed_it() {
    let volume = open(Arc::new(blank(64 << 20)));
    let make_and_remove = || {
        let ino = make_with(&volume, "a", b"");
        volume.unlink(&Caller::ROOT, ROOT, b"a").expect("unlink");
        ino
    };
    let kept = make_with(&volume, "kept", b"");
    volume.sync().expect("sync");
    volume.unlink(&Caller::ROOT, ROOT, b"kept").expect("unlink");
    let mut seen = HashSet::from([kept]);
    // More than one block of the table, so that the search reaches the number again.
    for _ in 0..2000 {
        let ino = make_and_remove();
        assert!(seen.insert(ino), "{ino} twice in an epoch");
    }
    volume.sync().expect("sync");
    let again = (0..2000).any(|_| seen.contains(&make_and_remove()));
    assert!(again, "numbers are given again at last");
}

/// Epochs stamp what they write. An epoch interrupted by a crash has left some of its blocks, perhaps
/// unreferenced: the same number must not identify another state.
#[test]
fn no_epoch_has_the_number_of_one_that_a_crash_took() {
    let volatile = Arc::new(VolatileDevice::new(blank(64 << 20).snapshot()));
    let volume = open(volatile.clone());
    let first = volume.writer().superblock.get().epoch;
    for round in 0..3 {
        make_with(&volume, &format!("{round}"), &[1; 5000]);
        volume.sync().expect("sync");
    }
    drop(volume);
    let volume = open(Arc::new(MemoryDevice::from_image(volatile.durable())));
    let second = volume.writer().superblock.get().epoch;
    assert!(second >= first + (1 << 32), "{second:#x} after {first:#x}");
}

/// A linktag has room for one previous place of an inode, so an inode moves once in an epoch: before it moves
/// again, the first move must be on the device, together with the name that it took from another file.
#[test]
fn an_inode_moves_once_in_an_epoch() {
    let volatile = Arc::new(VolatileDevice::new(blank(64 << 20).snapshot()));
    let volume = open(volatile.clone());
    let directory = NewFile { kind: NewKind::Directory, permissions: 0o755, ..FILE };
    let dir = volume.make(&Caller::ROOT, ROOT, b"dir", &directory).expect("make").ino;
    let file = make_with(&volume, "file", b"moves");
    let other = volume.make(&Caller::ROOT, dir, b"taken", &FILE).expect("make").ino;
    volume.release(other, 1);
    volume.sync().expect("sync");
    let device_has = |dir, name: &[u8]| {
        let volume = open(Arc::new(MemoryDevice::from_image(volatile.durable())));
        volume.lookup(dir, name).is_ok_and(|attr| attr.ino == file)
    };

    volume
        .rename(&Caller::ROOT, ROOT, b"file", dir, b"taken", RenameMode::Replace)
        .expect("rename");
    assert!(device_has(ROOT, b"file"), "one move waits for the next epoch");
    volume
        .rename(&Caller::ROOT, dir, b"taken", ROOT, b"last", RenameMode::Replace)
        .expect("rename");
    assert!(device_has(dir, b"taken"), "the second move ends the epoch of the first");
    volume.sync().expect("sync");
    assert!(device_has(ROOT, b"last") && !device_has(dir, b"taken"));
}
