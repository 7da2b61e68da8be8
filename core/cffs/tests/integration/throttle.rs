//! A writer continues while an epoch is written, up to the memory limit for changes.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cffs::clock::TestClock;
use cffs::device::{HoldDevice, MemoryDevice, RequestKind};
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::types::{NewFile, NewKind, OpenOptions};
use cffs::vfs::{Caller, Volume};

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 8 * MIB;

#[test]
fn a_writer_waits_at_the_limit_and_not_before() {
    let inner = MemoryDevice::new(256 * MIB);
    mkfs::make(&inner, &MkfsOptions::default()).expect("made");
    let device = Arc::new(HoldDevice::new(inner));
    let options = OpenOptions { dirty_bytes_max: LIMIT, ..OpenOptions::default() };
    let volume = Volume::open(device.clone(), Arc::new(TestClock::default()), options);
    let volume = volume.expect("opened");
    let new = NewFile { kind: NewKind::Regular, permissions: 0o644, uid: 0, gid: 0, times: None };
    let file = volume.make(&Caller::ROOT, InodeNo::ROOT, b"file", &new).expect("made").ino;
    let write = |mib: u64| {
        let piece = vec![mib as u8; MIB as usize];
        assert_eq!(
            volume.write(&Caller::ROOT, file, mib * MIB, &piece).expect("written"),
            piece.len()
        );
    };
    volume.sync().expect("synced");
    let work = || {
        let held = device.hold(RequestKind::Write);
        (0..6).for_each(write);
        assert!(device.wait_for_request(Duration::from_secs(60)), "no epoch was written");
        // The epoch has at least four of these, and is held; seven more fit into memory.
        (6..11).for_each(write);
        assert!(volume.stats().dirty_bytes <= LIMIT);

        thread::scope(|scope| {
            let waiter = scope.spawn(|| (11..40).for_each(write));
            let until = Instant::now() + Duration::from_secs(60);
            while volume.stats().dirty_bytes <= LIMIT {
                assert!(Instant::now() < until, "the writer stopped before the limit");
                thread::yield_now();
            }
            thread::sleep(Duration::from_millis(50));
            assert!(!waiter.is_finished(), "the writer was not stopped");
            assert!(volume.stats().dirty_bytes <= LIMIT + MIB);
            drop(held);
        });
    };
    let observe = |result: cffs::error::Result<()>| result.expect("background");
    volume.writer().background().run_during(Duration::from_secs(60), observe, work);
    let mut byte = [0];
    for mib in 0..40 {
        volume.read(file, mib * MIB + 17, &mut byte).expect("read");
        assert_eq!(u64::from(byte[0]), mib);
    }
    volume.close().expect("closed");
}
