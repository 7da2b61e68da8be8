//! Virtual time is exact and repeatable, and only successful requests take any.

use std::io::IoSlice;

use cffs::device::{BlockDevice, MemoryDevice};

use super::VirtualDisk;
use crate::disk::{Nanos, Profile, Run, Stroke};

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
    // Two requests: each takes a third of a millisecond and 0.7 ms of latency.
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

/// The milliseconds for a record of 12 KiB and its flush, with a gap of `gap` bytes before each record.
fn record_ms(profile: Profile, gap: u64, pause: Nanos) -> f64 {
    const RECORDS: u64 = 100;
    const RECORD: u64 = 12 << 10;
    let disk = VirtualDisk::new(MemoryDevice::new(256 << 20), profile, Stroke::Whole);
    let mut waited = Nanos::ZERO;
    for record in 0..RECORDS {
        let image = vec![1; RECORD as usize];
        disk.write_at((64 << 20) + record * (RECORD + gap), &[IoSlice::new(&image)]).unwrap();
        disk.sync().unwrap();
        disk.idle(pause);
        waited += pause;
    }
    disk.now().since(Nanos::ZERO + waited).as_secs() * 1e3 / RECORDS as f64
}

/// The place right after the last record has just passed under the head, so a gap saves a rotation. Prints
/// the figures of decision 008.
#[test]
fn a_gap_before_a_record_spares_a_turn_of_the_disk() {
    for profile in [Profile::Hdd7200, Profile::Hdd7200WriteThrough] {
        for pause_us in [0, 100, 500, 2000] {
            let pause = Nanos(pause_us * 1000);
            let gaps = [0, 16, 32, 64, 128, 256, 512];
            let taken = gaps.map(|gap| record_ms(profile, gap << 10, pause));
            println!("{profile:?}, {pause_us} us between: {gaps:?} KiB: {taken:.2?} ms");
            let best = taken.into_iter().fold(f64::MAX, f64::min);
            assert!(taken[0] > 2.0 * best, "{profile:?}: {taken:?}");
        }
    }
}

#[test]
fn reads_are_recorded_between_two_calls() {
    let disk = disk(Profile::None);
    let read = |offset| disk.read_at(offset, &mut [0; 4096]).unwrap();
    read(0);
    disk.record_reads();
    read(8192);
    disk.write_at(0, &[IoSlice::new(&[1; 4096])]).unwrap();
    assert_eq!(disk.recorded_reads(), [Run::of_bytes(8192, 4096)]);
    read(4096);
    assert_eq!(disk.recorded_reads(), []);
}
