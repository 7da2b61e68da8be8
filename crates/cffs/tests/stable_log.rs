//! Volumes with a stable log: what an fsync costs, what goes past the log, and that everything which
//! uses a volume knows what is in it.

use std::io::IoSlice;
use std::sync::Arc;

use cffs::clock::TestClock;
use cffs::device::{
    BlockDevice, Counts, CrashingDevice, Image, LogState, MemoryDevice, TraceDevice,
};
use cffs::error::{Corruption, Error};
use cffs::format::Superblock;
use cffs::format::superblock::State;
use cffs::fsck::{self, CheckOptions, Code, Repair, Report};
use cffs::log::LoggedDevice;
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::{NewFile, NewKind, OpenOptions, Volume, read_superblock};

const ROOT: InodeNo = InodeNo::ROOT;
const MIB: u64 = 1 << 20;
const FILE: NewFile<'static> =
    NewFile { kind: NewKind::Regular, permissions: 0o644, umask: 0, uid: 0, gid: 0 };

type Device = Arc<TraceDevice<MemoryDevice>>;

fn device(log_bytes: u64) -> Device {
    let device = Arc::new(TraceDevice::new(MemoryDevice::new(256 * MIB)));
    let options = MkfsOptions { log_bytes, ..MkfsOptions::default() };
    mkfs::make(&*device, &options).expect("made");
    device
}

fn open_with(device: Arc<dyn BlockDevice>, options: OpenOptions) -> Result<Volume, Error> {
    cffs::open(device, Arc::new(TestClock::default()), options)
}

fn open(device: Arc<dyn BlockDevice>) -> Volume {
    open_with(device, OpenOptions::default()).expect("opened")
}

fn make(volume: &Volume, name: &str, len: usize) -> InodeNo {
    let ino = volume.make(ROOT, name.as_bytes(), &FILE).expect("made").ino;
    assert_eq!(volume.write(ino, 0, &vec![7; len]).expect("written"), len);
    volume.release(ino, 1);
    ino
}

fn cost<T>(device: &Device, work: impl FnOnce() -> T) -> Counts {
    let before = device.counts();
    work();
    device.counts() - before
}

fn is_there(volume: &Volume, name: &str, len: usize) -> bool {
    let Ok(found) = volume.lookup(ROOT, name.as_bytes()) else { return false };
    let mut bytes = vec![0; len + 1];
    let read = volume.read(found.ino, 0, &mut bytes).expect("read");
    volume.release(found.ino, 1);
    read == len && bytes[..len].iter().all(|byte| *byte == 7)
}

/// What is on the device, as after the death of the program that had the volume open.
fn as_it_is(device: &Device) -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::from_image(device.inner().snapshot()))
}

fn check(device: &dyn BlockDevice, repair: Repair) -> Report {
    let options = CheckOptions { repair, force: true, contents: true, ..CheckOptions::default() };
    fsck::check(device, &options, &()).expect("checked")
}

fn codes(report: &Report) -> Vec<Code> {
    report.problems.iter().map(|problem| problem.code).collect()
}

#[test]
fn an_fsync_is_one_write_and_one_flush() {
    for len in [4096, 200, 30_000] {
        let device = device(4 * MIB);
        let volume = open(device.clone());
        let first = make(&volume, "first", len);
        volume.sync_file(first, false).expect("durable");
        for number in 0..20 {
            let ino = make(&volume, &format!("file {number}"), len);
            let cost = cost(&device, || volume.sync_file(ino, false).expect("durable"));
            assert_eq!((cost.writes, cost.syncs, cost.barriers), (1, 1, 0), "{len}, {number}");
        }
        let log = volume.stats().log.expect("it has a log");
        assert_eq!((log.state, log.records), (LogState::On, 21));
        assert!(log.superseded_images >= 10, "the directory's block is in each: {log:?}");
    }
}

#[test]
fn without_a_log_an_fsync_of_a_new_file_is_two_writes_and_two_flushes() {
    let device = device(0);
    let volume = open(device.clone());
    let first = make(&volume, "first", 4096);
    volume.sync_file(first, false).expect("durable");
    let ino = make(&volume, "file", 4096);
    let cost = cost(&device, || volume.sync_file(ino, false).expect("durable"));
    assert_eq!((cost.writes, cost.syncs + cost.barriers), (2, 2));
    assert_eq!(volume.stats().log, None);
}

/// A volume that a crash left with a full log is opened without it, and with it again.
#[test]
fn a_log_that_is_not_wanted_is_made_empty_and_not_written() {
    let device = device(4 * MIB);
    let volume = open(device.clone());
    let ino = make(&volume, "logged", 4096);
    volume.sync_file(ino, false).expect("durable");
    let left = Arc::new(TraceDevice::new(MemoryDevice::from_image(device.inner().snapshot())));
    let volume = open_with(left.clone(), OpenOptions { stable: false, ..OpenOptions::default() });
    let volume = volume.expect("opened");
    assert!(is_there(&volume, "logged", 4096));
    let first = make(&volume, "first", 4096);
    volume.sync_file(first, false).expect("durable");
    let ino = make(&volume, "file", 4096);
    let cost = cost(&left, || volume.sync_file(ino, false).expect("durable"));
    assert_eq!((cost.writes, cost.syncs + cost.barriers), (2, 2));
    let log = volume.stats().log.expect("it has a log");
    assert_eq!((log.state, log.records, log.live_bytes), (LogState::Off, 0, 0));
    let superblock = read_superblock(&*left).expect("there");
    assert_eq!(superblock.state, State::InUse);
    let (logged, doubt) = LoggedDevice::open(&*left, &superblock);
    assert_eq!((logged.live_blocks(), doubt), (0, None));

    let volume = open(as_it_is(&left));
    assert!(["logged", "first", "file"].iter().all(|name| is_there(&volume, name, 4096)));
    let ino = make(&volume, "again", 4096);
    volume.sync_file(ino, false).expect("durable");
    assert!(volume.stats().log.is_some_and(|log| log.state == LogState::On && log.records > 0));
}

#[test]
fn what_is_large_goes_past_the_log() {
    let device = device(4 * MIB);
    let volume = open(device.clone());
    let first = make(&volume, "first", 4096);
    volume.sync_file(first, false).expect("durable");
    let bytes = 16 * MIB;
    let ino = make(&volume, "large", bytes as usize);
    let cost = cost(&device, || volume.sync_file(ino, false).expect("durable"));
    assert!(cost.written_bytes < bytes + MIB / 4, "{} bytes", cost.written_bytes);
    let found = open(as_it_is(&device));
    assert!(is_there(&found, "large", bytes as usize));
}

/// What an fsync promised is in the log alone, and every reader of a volume finds it.
#[test]
fn what_is_in_the_log_is_found_by_every_reader_of_the_volume() {
    let device = device(4 * MIB);
    let volume = open(device.clone());
    let ino = make(&volume, "file", 5000);
    volume.sync_file(ino, false).expect("durable");
    let left = as_it_is(&device);
    let image = left.snapshot();
    let superblock = read_superblock(&*left).expect("there");
    assert_eq!(superblock.state, State::InUse);
    let (logged, doubt) = LoggedDevice::open(&*left, &superblock);
    assert!(doubt.is_none() && logged.live_blocks() > 0);

    let reader = OpenOptions { read_only: true, ..OpenOptions::default() };
    let volume = open_with(left.clone(), reader).expect("opened");
    assert!(is_there(&volume, "file", 5000));
    let report = check(&*left, Repair::No);
    assert_eq!((codes(&report), report.inodes), (vec![], 1));
    assert!(same(&left.snapshot(), &image), "a reader leaves the log as it is");

    let volume = open(left.clone());
    assert!(is_there(&volume, "file", 5000));
    volume.close().expect("closed");
    let superblock = read_superblock(&*left).expect("there");
    assert_eq!(superblock.state, State::Clean);
    let (logged, _) = LoggedDevice::open(&*left, &superblock);
    assert_eq!(logged.live_blocks(), 0, "clean means that the log is empty");
    assert_eq!(codes(&check(&*left, Repair::No)), []);
}

fn same(left: &Image, right: &Image) -> bool {
    let bytes = |image: &Image| {
        let mut bytes = vec![0; image.geometry().size_bytes as usize];
        image.read(0, &mut bytes).expect("read");
        bytes
    };
    bytes(left) == bytes(right)
}

fn damage(device: &MemoryDevice, superblock: &Superblock, block: u64) {
    let at = (superblock.log.start + block) * u64::from(superblock.block_bytes);
    device.write_at(at + 40, &[IoSlice::new(b"damage")]).expect("written");
}

#[test]
fn a_log_that_is_damaged_on_a_clean_volume_is_made_anew_and_nothing_is_lost() {
    let device = device(4 * MIB);
    let volume = open(device.clone());
    make(&volume, "file", 5000);
    volume.close().expect("closed");
    let left = as_it_is(&device);
    let superblock = read_superblock(&*left).expect("there");
    (0..2).for_each(|block| damage(&left, &superblock, block));
    let error = open_with(left.clone(), OpenOptions::default()).map(drop).expect_err("refused");
    assert!(matches!(error, Error::Corruption(Corruption::LogHeader { .. })), "{error}");
    assert_eq!(codes(&check(&*left, Repair::No)), [Code::LogHeader]);
    assert_eq!(check(&*left, Repair::Preen).exit_code(), 1);
    assert_eq!(codes(&check(&*left, Repair::No)), []);
    assert!(is_there(&open(left), "file", 5000));
}

#[test]
fn a_log_that_is_damaged_in_use_is_not_passed_over() {
    let device = device(4 * MIB);
    let volume = open(device.clone());
    for name in ["one", "two", "three"] {
        let ino = make(&volume, name, 5000);
        volume.sync_file(ino, false).expect("durable");
    }
    let left = as_it_is(&device);
    let superblock = read_superblock(&*left).expect("there");
    // The second record: behind two headers and the first, which has at least two images.
    let second = (5..).find(|block| is_record(&left, &superblock, *block)).expect("there");
    damage(&left, &superblock, second);
    let error = open_with(left.clone(), OpenOptions::default()).map(drop).expect_err("refused");
    assert!(matches!(error, Error::Corruption(Corruption::LogRecord { .. })), "{error}");
    assert_eq!(codes(&check(&*left, Repair::No)), [Code::LogLost]);
    let report = check(&*left, Repair::Preen);
    assert!(report.problems.iter().all(|problem| !problem.fixed), "it lost something");
    let crashing = CrashingDevice::new(left.snapshot(), 2, 1);
    check(&crashing, Repair::Yes);
    for image in crashing.take_images() {
        // A repair that was cut short is made again, by a person.
        let device = Arc::new(MemoryDevice::from_image(image));
        if read_superblock(&*device).expect("there").state == State::Clean {
            continue;
        }
        let superblock = read_superblock(&*device).expect("there");
        let (_, doubt) = LoggedDevice::open(&*device, &superblock);
        assert!(doubt.is_some() || superblock.damage.is_some(), "it passes for a crash");
        check(&*device, Repair::Yes);
        assert_eq!(codes(&check(&*device, Repair::No)), []);
        assert!(is_there(&open(device), "one", 5000));
    }
    assert_eq!(check(&*left, Repair::Yes).exit_code(), 1);
    assert_eq!(codes(&check(&*left, Repair::No)), []);
    let volume = open(left);
    assert!(is_there(&volume, "one", 5000), "what comes before the damage is used");
}

fn is_record(device: &MemoryDevice, superblock: &Superblock, block: u64) -> bool {
    let at = (superblock.log.start + block) * u64::from(superblock.block_bytes);
    let mut magic = [0; 4];
    device.read_at(at, &mut magic).expect("read");
    magic == *b"CFlr"
}

#[test]
fn a_log_that_the_volume_has_no_room_for_is_refused() {
    for log_bytes in [4096, 200 * MIB] {
        let device = MemoryDevice::new(256 * MIB);
        let options = MkfsOptions { log_bytes, ..MkfsOptions::default() };
        let error = mkfs::make(&device, &options).expect_err("refused");
        assert!(error.to_string().contains("a log of"), "{error}");
    }
}
