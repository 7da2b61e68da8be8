//! Virtual time: exact, repeatable, and charged for what succeeded only.

use std::io::IoSlice;

use cffs::device::{BlockDevice, MemoryDevice};

use super::VirtualDisk;
use crate::disk::{Nanos, Profile, Stroke};

const MIB: u64 = 1 << 20;

fn disk(profile: Profile) -> VirtualDisk<MemoryDevice> {
    VirtualDisk::new(MemoryDevice::new(64 * MIB), profile, Stroke::Whole)
}

#[test]
fn data_passes_and_time_adds_up() {
    let disk = disk(Profile::Net3000);
    disk.write_at(8192, &[IoSlice::new(&[7; 4096]), IoSlice::new(&[9; 4096])]).unwrap();
    let mut back = [0; 8192];
    disk.read_at(8192, &mut back).unwrap();
    assert_eq!((back[0], back[8191]), (7, 9));
    // Two requests: a three-thousandth of a second and 0.7 ms on the way, each.
    assert_eq!(disk.now(), Nanos(2 * (333_333 + 700_000)));
    let counters = disk.counters();
    assert_eq!((counters.reads, counters.writes, counters.write_bytes), (1, 1, 8192));
}

#[test]
fn a_request_that_fails_costs_nothing() {
    let disk = disk(Profile::Hdd7200);
    disk.read_at(64 * MIB, &mut [0; 512]).unwrap_err();
    assert_eq!((disk.now(), disk.counters().reads), (Nanos::ZERO, 0));
}

#[test]
fn sync_pays_for_cached_writes_and_idle_time_pays_instead() {
    let time_of_sync = |idle| {
        let disk = disk(Profile::Hdd7200);
        for i in 0..32 {
            disk.write_at(i * 2 * MIB, &[IoSlice::new(&[1; 4096])]).unwrap();
        }
        disk.idle(idle);
        let before = disk.now();
        disk.sync().unwrap();
        disk.now().since(before)
    };
    assert!(time_of_sync(Nanos::ZERO) > Nanos::from_ms(30.0));
    assert!(time_of_sync(Nanos::from_ms(2000.0)) < Nanos::from_ms(0.1));
}

#[test]
fn the_same_run_takes_the_same_time() {
    let run = || {
        let disk = disk(Profile::St31200);
        for i in 0..200u64 {
            disk.read_at((i * 7919 % 16_000) * 4096, &mut [0; 4096]).unwrap();
        }
        (disk.now(), disk.counters())
    };
    assert_eq!(run(), run());
}
