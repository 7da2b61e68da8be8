//! Damage that was found while a volume was in use is recorded at unmount: the next check examines
//! everything, and clears the record only when the volume is sound.
//!
//! Regression: a damaged sector caused an error and a finding of a scrub, but after unmounting, the check at
//! the next boot said "clean, not checked".

use std::io::IoSlice;
use std::ops::ControlFlow;
use std::sync::Arc;

use cffs::clock::TestClock;
use cffs::device::fault::{Effect, Fault, Strike, Target};
use cffs::device::{BlockDevice, FaultDevice, MemoryDevice};
use cffs::error::{Error, Result};
use cffs::format::superblock::{Damage, State};
use cffs::fsck::{self, CheckOptions, Code, Repair, Report};
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::types::{ErrorsPolicy, NewFile, NewKind, OpenOptions, SetAttr};
use cffs::vfs::{Caller, Volume, errno, read_superblock};

const ROOT: InodeNo = InodeNo::ROOT;
const FRAGMENT_BYTES: u64 = 1024;
const FILE_BYTES: usize = 5000;

/// A closed volume with a directory of files; and the device offsets of a byte of the directory's sector and
/// of a file's contents.
struct Sample {
    device: Arc<MemoryDevice>,
    sector: u64,
    contents: u64,
}

fn sample() -> Sample {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    mkfs::make(&*device, &MkfsOptions::default()).expect("made");
    let volume = open(&device, OpenOptions::default()).expect("opened");
    let dir = make(&volume, ROOT, "dir", NewKind::Directory).expect("made");
    for index in 0..20 {
        let ino = make(&volume, dir, &format!("file-{index}"), NewKind::Regular).expect("made");
        volume.write(&Caller::ROOT, ino, 0, &[index; FILE_BYTES]).expect("written");
    }
    volume.sync().expect("synced");
    let file = volume.lookup(dir, b"file-7").expect("found").ino;
    let placement = volume.admin().explain(file).expect("explained");
    let sector = placement.container_block.expect("placed").0 * 4096 + 100;
    let contents = placement.pieces[0].run.start.0 * FRAGMENT_BYTES + 10;
    volume.close().expect("closed");
    Sample { device, sector, contents }
}

fn open(device: &Arc<MemoryDevice>, options: OpenOptions) -> Result<Volume> {
    let options = OpenOptions { cache_bytes: 1 << 20, ..options };
    cffs::open(device.clone(), Arc::new(TestClock::default()), options)
}

fn make(volume: &Volume, dir: InodeNo, name: &str, kind: NewKind<'_>) -> Result<InodeNo> {
    let new = NewFile { kind, permissions: 0o755, uid: 0, gid: 0, times: None };
    Ok(volume.make(&Caller::ROOT, dir, name.as_bytes(), &new)?.ino)
}

fn flip(device: &MemoryDevice, offset: u64) {
    let mut byte = [0];
    device.read_at(offset, &mut byte).expect("read");
    device.write_at(offset, &[IoSlice::new(&[byte[0] ^ 0x10])]).expect("written");
}

fn recorded(device: &MemoryDevice) -> Option<Damage> {
    read_superblock(device).expect("a superblock").damage
}

fn check(device: &MemoryDevice, repair: Repair) -> Report {
    let options = CheckOptions { repair, ..CheckOptions::default() };
    fsck::check(device, &options, &()).expect("checked")
}

fn codes(report: &Report) -> Vec<Code> {
    report.problems.iter().map(|problem| problem.code).collect()
}

/// Encounters the damage in a directory's sector; returns the error of a call.
fn look(volume: &Volume) -> Error {
    let dir = volume.lookup(ROOT, b"dir").expect("the root directory is sound").ino;
    volume.lookup(dir, b"file-7").expect_err("its sector is damaged")
}

#[test]
fn damage_outlives_an_unmount_until_it_is_repaired() {
    let Sample { device, sector, .. } = sample();
    flip(&device, sector);
    assert!(check(&device, Repair::Preen).skipped, "it was not seen yet");
    let volume = open(&device, OpenOptions::default()).unwrap();
    for _ in 0..3 {
        assert!(matches!(look(&volume), Error::Corruption(_)));
    }
    let dir = volume.lookup(ROOT, b"dir").unwrap().ino;
    volume.close().unwrap();
    let superblock = read_superblock(&*device).unwrap();
    let damage = superblock.damage.expect("it is remembered");
    assert_eq!((superblock.state, damage.code, damage.ino), (State::Clean, 201, dir));
    assert!(damage.count >= 3, "{damage}");

    // Preening, as at boot, examines everything, and leaves decisions to a person.
    let report = check(&device, Repair::Preen);
    assert!(!report.skipped);
    assert_eq!(report.damage_seen, Some(damage));
    assert_eq!(codes(&report), [Code::SectorLost]);
    assert_eq!((report.exit_code(), report.write_requests), (4, 0));
    assert_eq!(recorded(&device), Some(damage));

    assert_eq!(check(&device, Repair::Yes).exit_code(), 1);
    assert_eq!(recorded(&device), None);
    assert!(check(&device, Repair::Preen).skipped, "it is mended");
}

#[test]
fn contents_that_were_damaged_are_read_by_the_check() {
    let Sample { device, contents, .. } = sample();
    flip(&device, contents);
    let volume = open(&device, OpenOptions::default()).unwrap();
    let dir = volume.lookup(ROOT, b"dir").unwrap().ino;
    let file = volume.lookup(dir, b"file-7").unwrap().ino;
    volume.read(file, 0, &mut [0; FILE_BYTES]).unwrap_err();
    volume.close().unwrap();
    let damage = recorded(&device).expect("it is remembered");
    assert_eq!((damage.code, damage.ino), (226, file));
    assert_eq!(codes(&check(&device, Repair::Preen)), [Code::Contents]);
}

/// A cable that failed for a moment: the check finds no problem, and the volume counts as sound again.
#[test]
fn damage_that_is_gone_is_forgotten_by_a_full_check() {
    let Sample { device, sector, .. } = sample();
    flip(&device, sector);
    let volume = open(&device, OpenOptions::default()).unwrap();
    look(&volume);
    volume.close().unwrap();
    flip(&device, sector);
    let report = check(&device, Repair::No);
    assert!(report.damage_seen.is_some());
    assert!(recorded(&device).is_some(), "a check that changes nothing forgets nothing");
    let report = check(&device, Repair::Preen);
    assert_eq!((report.skipped, report.exit_code(), codes(&report)), (false, 0, vec![]));
    assert_eq!(recorded(&device), None);
    assert!(check(&device, Repair::Preen).skipped);
}

/// The next check examines metadata that the device failed to read, but not contents.
#[test]
fn metadata_that_the_device_failed_to_read_is_checked_later() {
    let Sample { device, sector, contents } = sample();
    for (place, is_remembered) in [(contents, false), (sector, true)] {
        let faulty = Arc::new(FaultDevice::new(Arc::clone(&device), 1));
        let target = Target::reads().within(place..place + 1);
        let options = OpenOptions { cache_bytes: 1 << 20, ..OpenOptions::default() };
        let volume = cffs::open(faulty.clone(), Arc::new(TestClock::default()), options).unwrap();
        if !is_remembered {
            // Data that is read only for the contents.
            let dir = volume.lookup(ROOT, b"dir").unwrap().ino;
            let file = volume.lookup(dir, b"file-7").unwrap().ino;
            faulty.arm(Fault { target, strike: Strike::Always, effect: Effect::IO_ERROR });
            let error = volume.read(file, 0, &mut [0; FILE_BYTES]).unwrap_err();
            assert!(matches!(error, Error::Io(_)), "{error}");
        } else {
            faulty.arm(Fault { target, strike: Strike::Always, effect: Effect::IO_ERROR });
            assert!(matches!(look(&volume), Error::Io(_)));
        }
        faulty.disarm();
        volume.close().unwrap();
        assert_eq!(recorded(&device).is_some(), is_remembered);
    }
    let damage = recorded(&device).unwrap();
    assert_eq!(damage.code, Damage::UNREADABLE);
    assert!(damage.to_string().contains("a read that the device failed"), "{damage}");
    let report = check(&device, Repair::Preen);
    assert_eq!((report.skipped, report.exit_code(), codes(&report)), (false, 0, vec![]));
    assert_eq!(recorded(&device), None);
}

#[test]
fn damage_found_by_a_scrub_and_a_check_of_an_open_volume_is_remembered() {
    let Sample { device, contents, .. } = sample();
    flip(&device, contents);
    let scrub = |volume: &Volume| {
        let progress = volume.admin().scrub(&mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(progress.problem_count, 1);
    };
    let online = |volume: &Volume| {
        assert_eq!(codes(&cffs::check_in_use(volume, true, &()).unwrap()), [Code::Contents]);
    };
    for look in [&scrub as &dyn Fn(&Volume), &online] {
        let copy = Arc::new(MemoryDevice::from_image(device.snapshot()));
        let volume = open(&copy, OpenOptions::default()).unwrap();
        look(&volume);
        volume.close().unwrap();
        assert_eq!(recorded(&copy).map(|damage| damage.code), Some(226));
    }
}

#[test]
fn a_volume_that_is_open_read_only_is_not_written_to() {
    let Sample { device, sector, .. } = sample();
    flip(&device, sector);
    let before = device.snapshot();
    let volume = open(&device, OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
    look(&volume);
    assert!(
        volume.writer().superblock.get().damage.is_some(),
        "it has the record as long as it is open"
    );
    volume.writer().background().run_once().unwrap();
    volume.close().unwrap();
    assert_eq!(device.snapshot(), before);
}

/// The background writes the record, so that a crash does not lose it; and a volume with a record is not
/// recovered by its intent log alone.
#[test]
fn a_crash_keeps_the_record() {
    let Sample { device, sector, .. } = sample();
    flip(&device, sector);
    let volume = open(&device, OpenOptions::default()).unwrap();
    look(&volume);
    volume.writer().background().run_once().unwrap();
    let crashed = Arc::new(MemoryDevice::from_image(device.snapshot()));
    drop(volume);
    assert_eq!(recorded(&crashed).map(|damage| damage.code), Some(201));
    let report = check(&crashed, Repair::Preen);
    assert_eq!((report.fast, codes(&report)), (None, vec![Code::SectorLost]));
    let error = open(&crashed, OpenOptions::default()).err().expect("it is damaged");
    assert!(error.to_string().contains("damaged beyond what a crash explains"), "{error}");
}

/// The system area is required to open the volume.
#[test]
fn a_volume_that_cannot_be_opened_remembers_why() {
    let Sample { device, .. } = sample();
    flip(&device, 4096 + 100);
    assert!(open(&device, OpenOptions::default()).is_err());
    assert_eq!(recorded(&device).map(|damage| damage.code), Some(104));
    assert_eq!(codes(&check(&device, Repair::Preen)), [Code::SystemArea]);
    assert_eq!(check(&device, Repair::Yes).exit_code(), 1);
    open(&device, OpenOptions::default()).unwrap().close().unwrap();
}

/// Changes from before the damage was found are not lost; later changes are refused.
#[test]
fn after_damage_changes_are_refused_if_so_asked() {
    let refuse = OpenOptions { errors: ErrorsPolicy::RemountReadOnly, ..OpenOptions::default() };
    let Sample { device, sector, .. } = sample();
    flip(&device, sector);
    let volume = open(&device, refuse).unwrap();
    make(&volume, ROOT, "before", NewKind::Regular).unwrap();
    look(&volume);
    let error = make(&volume, ROOT, "after", NewKind::Regular).unwrap_err();
    assert!(matches!(error, Error::Damaged(_)), "{error}");
    assert_eq!(errno(&error), rustix::io::Errno::ROFS.raw_os_error());
    let before = volume.lookup(ROOT, b"before").unwrap().ino;
    for refused in [
        volume.write(&Caller::ROOT, before, 0, b"data").map(drop),
        volume
            .set_attr(&Caller::ROOT, before, &SetAttr { uid: Some(7), ..SetAttr::default() })
            .map(drop),
        volume.unlink(&Caller::ROOT, ROOT, b"before"),
    ] {
        assert!(matches!(refused, Err(Error::Damaged(_))), "{refused:?}");
    }
    volume.sync().unwrap();
    volume.close().unwrap();
    let superblock = read_superblock(&*device).unwrap();
    assert_eq!(superblock.state, State::Clean);
    assert!(superblock.damage.is_some());
    let volume = open(&device, OpenOptions::default()).unwrap();
    volume.lookup(ROOT, b"before").unwrap();
    volume.lookup(ROOT, b"after").unwrap_err();
}

#[test]
fn the_volume_has_a_policy_of_its_own_and_a_mount_may_have_another() {
    for (own, asked, refuses) in [
        (ErrorsPolicy::Default, ErrorsPolicy::Default, false),
        (ErrorsPolicy::RemountReadOnly, ErrorsPolicy::Default, true),
        (ErrorsPolicy::RemountReadOnly, ErrorsPolicy::Continue, false),
        (ErrorsPolicy::Continue, ErrorsPolicy::RemountReadOnly, true),
    ] {
        let Sample { device, sector, .. } = sample();
        let superblock = read_superblock(&*device).unwrap();
        let superblock = cffs::format::Superblock { errors_policy: own, ..superblock };
        device.write_at(0, &[IoSlice::new(&superblock.encode())]).unwrap();
        flip(&device, sector);
        let volume = open(&device, OpenOptions { errors: asked, ..OpenOptions::default() });
        let volume = volume.unwrap();
        look(&volume);
        let made = make(&volume, ROOT, "after", NewKind::Regular);
        assert_eq!(made.is_err(), refuses, "{own:?}, {asked:?}");
        volume.close().unwrap();
    }
}
