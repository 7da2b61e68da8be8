//! Checking, repairing and making a volume on a device that fails at each step: no report of an incomplete
//! run claims success, and the next repair on a working device completes it.

use std::io::IoSlice;
use std::sync::Arc;

use cffs::clock::TestClock;
use cffs::device::fault::{Effect, Fault, FaultDevice, Strike, Target};
use cffs::device::{BlockDevice, Image, MemoryDevice};
use cffs::error::Error;
use cffs::fsck::{self, CheckOptions, Repair, Report};
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::types::{NewFile, NewKind, OpenOptions};
use cffs::vfs::{Caller, Volume, read_superblock};

const ROOT: InodeNo = InodeNo::ROOT;

fn fill(volume: &Volume, from: u64) {
    let new = |kind| NewFile { kind, permissions: 0o755, uid: 0, gid: 0, times: None };
    let name = format!("dir-{from}");
    let dir =
        volume.make(&Caller::ROOT, ROOT, name.as_bytes(), &new(NewKind::Directory)).unwrap().ino;
    for index in from..from + 20 {
        let name = format!("file-{index}");
        let ino =
            volume.make(&Caller::ROOT, dir, name.as_bytes(), &new(NewKind::Regular)).unwrap().ino;
        volume.write(&Caller::ROOT, ino, 0, &vec![index as u8; 3000]).unwrap();
    }
}

fn open(device: &Arc<MemoryDevice>) -> Volume {
    let options = OpenOptions { cache_bytes: 1 << 20, ..OpenOptions::default() };
    cffs::open(device.clone(), Arc::new(TestClock::default()), options).unwrap()
}

/// Volumes in the states that a check may find: clean, after a crash, damaged.
fn volumes() -> Vec<(&'static str, Image)> {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    mkfs::make(&*device, &MkfsOptions::default()).unwrap();
    let volume = open(&device);
    fill(&volume, 0);
    volume.close().unwrap();
    let clean = device.snapshot();

    let volume = open(&device);
    fill(&volume, 100);
    volume.sync().unwrap();
    let crashed = device.snapshot();
    drop(volume);

    let device = Arc::new(MemoryDevice::from_image(clean.clone()));
    let volume = open(&device);
    let dir = volume.lookup(ROOT, b"dir-0").unwrap().ino;
    let file = volume.lookup(dir, b"file-3").unwrap().ino;
    let block = volume.admin().explain(file).unwrap().container_block.unwrap();
    volume.close().unwrap();
    device.write_at(block.0 * 4096, &[IoSlice::new(&[0xaa; 512])]).unwrap();
    vec![("clean", clean), ("crashed", crashed), ("damaged", device.snapshot())]
}

fn check(device: &dyn BlockDevice, repair: Repair) -> Result<Report, Error> {
    let options = CheckOptions { repair, contents: true, threads: 1, ..CheckOptions::default() };
    let force = repair != Repair::Preen;
    fsck::check(device, &CheckOptions { force, ..options }, &())
}

/// One case: a volume, a kind of check, and requests that fail from the `nth` on (or only that one).
fn row(name: &str, image: &Image, repair: Repair, target: &Target, strike: Strike) -> bool {
    let what = format!("{name}, {repair:?}, {:?} {strike:?}", target.kinds);
    let sound = check(&MemoryDevice::from_image(image.clone()), repair).unwrap();
    let device = FaultDevice::new(MemoryDevice::from_image(image.clone()), 1);
    device.arm(Fault { target: target.clone(), strike, effect: Effect::IO_ERROR });
    let result = check(&device, repair);
    let was_struck = device.struck() > 0;
    device.disarm();
    match result {
        Err(Error::Io(_) | Error::Corruption(_)) => assert!(was_struck, "{what}"),
        Err(error) => panic!("{what}: {error}"),
        Ok(report) if was_struck && *target != Target::reads() => {
            panic!("{what}: a request was lost, and the report is {report:?}");
        }
        // A failed read is repeated sector by sector.
        Ok(report) if report.unreadable_sectors == 0 => {
            assert_eq!(report.exit_code(), sound.exit_code(), "{what}");
        }
        Ok(report) => assert_ne!(report.exit_code(), 0, "{what}: {report:?}"),
    }
    if *target != Target::reads() {
        let report = check(&device, Repair::Yes).unwrap();
        assert!(report.exit_code() <= 1, "{what}: {report:?}");
        assert_eq!(check(&device, Repair::No).unwrap().exit_code(), 0, "{what}");
    }
    was_struck
}

#[test]
fn no_check_on_a_failing_device_says_that_all_is_well() {
    for (name, image) in volumes() {
        for repair in [Repair::No, Repair::Preen, Repair::Yes] {
            for target in [Target::writes(), Target::flushes(), Target::reads()] {
                for strike in [Strike::Nth, Strike::From] {
                    let mut nth = 0;
                    while row(name, &image, repair, &target, strike(nth)) {
                        nth += 1;
                    }
                }
            }
        }
    }
}

#[test]
fn mkfs_on_a_failing_device_fails() {
    for target in [Target::writes(), Target::flushes()] {
        for nth in 0.. {
            let device = FaultDevice::new(MemoryDevice::new(16 << 20), 1);
            let strike = Strike::Nth(nth);
            device.arm(Fault { target: target.clone(), strike, effect: Effect::IO_ERROR });
            let made = mkfs::make(&device, &MkfsOptions::default());
            if device.struck() == 0 {
                made.unwrap();
                read_superblock(&device).unwrap();
                assert!(nth > 0, "{target:?}: mkfs makes such requests");
                break;
            }
            assert!(matches!(made, Err(Error::Io(_))), "{target:?} {nth}: {made:?}");
        }
    }
}
