//! A failing device: the operations that the volume then refuses, and those that still succeed.

use std::sync::Arc;

use cffs::clock::TestClock;
use cffs::device::MemoryDevice;
use cffs::device::fault::{Effect, Fault, FaultDevice, Strike, Target};
use cffs::error::Error;
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::{Caller, NewFile, NewKind, OpenOptions, Volume};

use cffs_testing::model::runner::pattern;

const ROOT: InodeNo = InodeNo::ROOT;
const FILES: u8 = 40;
const NEW: NewFile<'_> =
    NewFile { kind: NewKind::Regular, permissions: 0o644, uid: 0, gid: 0, times: None };

type Device = FaultDevice<MemoryDevice>;

fn open(device: &Arc<Device>, cache_bytes: u64) -> Volume {
    let options = OpenOptions { cache_bytes, ..OpenOptions::default() };
    Volume::open(device.clone(), Arc::new(TestClock::default()), options).expect("open")
}

fn name(number: u8) -> Vec<u8> {
    format!("file {number}").into_bytes()
}

/// A volume with files of different sizes, all on the device.
fn filled() -> (Arc<Device>, Volume) {
    let device = Arc::new(FaultDevice::new(MemoryDevice::new(32 << 20), 1));
    mkfs::make(&*device, &MkfsOptions::default()).expect("mkfs");
    let volume = open(&device, 8 << 20);
    for number in 0..FILES {
        let ino = volume.make(&Caller::ROOT, ROOT, &name(number), &NEW).expect("make").ino;
        volume
            .write(&Caller::ROOT, ino, 0, &pattern(number, 0, usize::from(number) * 700))
            .expect("write");
    }
    volume.sync().expect("sync");
    (device, volume)
}

fn read(volume: &Volume, number: u8) -> Result<Vec<u8>, Error> {
    let attr = volume.lookup(ROOT, &name(number))?;
    let mut bytes = vec![0; attr.size as usize];
    volume.read(attr.ino, 0, &mut bytes)?;
    Ok(bytes)
}

#[test]
fn a_failed_write_latches_the_volume_and_reads_continue() {
    for nth in 0..6 {
        for target in [Target::writes(), Target::flushes()] {
            let (device, volume) = filled();
            let late = volume.make(&Caller::ROOT, ROOT, b"late", &NEW).expect("make").ino;
            volume.write(&Caller::ROOT, late, 0, &pattern(9, 0, 50_000)).expect("write");
            device.arm(Fault { target, strike: Strike::Nth(nth), effect: Effect::IO_ERROR });
            let synced = volume.sync();
            if device.struck() == 0 {
                synced.expect("nothing failed");
                continue;
            }
            assert!(matches!(synced, Err(Error::Io(_))), "request {nth}: {synced:?}");
            device.disarm();
            assert!(volume.writer().health.latched().is_some());
            // The device works again, but how much of the epoch it has is unknown.
            assert!(matches!(
                volume.make(&Caller::ROOT, ROOT, b"more", &NEW),
                Err(Error::Latched(_))
            ));
            assert!(matches!(
                volume.write(&Caller::ROOT, late, 0, b"more"),
                Err(Error::Latched(_))
            ));
            assert!(matches!(volume.sync(), Err(Error::Latched(_))));
            for number in 0..FILES {
                let bytes = read(&volume, number).expect("reads go on");
                assert!(bytes == pattern(number, 0, usize::from(number) * 700));
            }
            assert!(matches!(volume.close(), Err(Error::Latched(_))));
            drop(volume);
            let options = OpenOptions::default();
            let clock = Arc::new(TestClock::default());
            let volume = cffs::open(device, clock, options).expect("it is recovered");
            for number in 0..FILES {
                let bytes = read(&volume, number).expect("synced data is there");
                assert!(bytes == pattern(number, 0, usize::from(number) * 700));
            }
            volume.close().expect("close");
        }
    }
}

#[test]
fn a_failed_read_is_an_error_of_that_read_only() {
    let (device, volume) = filled();
    volume.close().expect("close");
    let volume = open(&device, 64 << 10);
    let half = Strike::PerMillion(500_000);
    device.arm(Fault { target: Target::reads(), strike: half, effect: Effect::IO_ERROR });
    let mut failed = 0;
    for _ in 0..20 {
        for number in 0..FILES {
            match read(&volume, number) {
                Ok(bytes) => assert!(bytes == pattern(number, 0, usize::from(number) * 700)),
                Err(Error::Io(_)) => failed += 1,
                Err(error) => panic!("file {number}: {error}"),
            }
        }
    }
    assert!(failed > 0 && device.struck() > 0);
    device.disarm();
    for number in 0..FILES {
        let bytes = read(&volume, number).expect("the device is sound again");
        assert!(bytes == pattern(number, 0, usize::from(number) * 700));
    }
    assert!(volume.writer().health.latched().is_none(), "a failed read latches nothing");
    volume.make(&Caller::ROOT, ROOT, b"more", &NEW).expect("changes go on");
    volume.close().expect("close");
}
