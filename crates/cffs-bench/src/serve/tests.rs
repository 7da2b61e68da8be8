//! The pacer against the clock. Lower bounds are exact; upper ones allow for a loaded machine.

use std::time::{Duration, Instant};

use super::pacer::Pacer;
use crate::disk::{Profile, Request, Run, Stroke};

fn read(at: u64) -> Request {
    Request::Read(Run::of_bytes(at, 4096))
}

#[test]
fn a_request_takes_at_least_its_time() {
    let pacer = Pacer::new(Profile::Net500, 1 << 30, Stroke::Whole);
    let started = Instant::now();
    for i in 0..50 {
        pacer.perform(read(i << 20));
    }
    let elapsed = started.elapsed();
    // One at a time: 2 ms for the quota and 1.5 ms on the way, each.
    assert!(elapsed >= Duration::from_micros(50 * 3500), "{elapsed:?}");
    assert_eq!(pacer.counters().reads, 50);
}

#[test]
fn concurrent_requests_share_the_device_and_none_is_forgotten() {
    for profile in [Profile::Net3000, Profile::Hdd7200, Profile::None] {
        let pacer = Pacer::new(profile, 1 << 30, Stroke::Whole);
        std::thread::scope(|scope| {
            for thread in 0..16u64 {
                let pacer = &pacer;
                scope.spawn(move || {
                    for i in 0..6 {
                        let at = (thread * 6151 + i * 911) << 12;
                        pacer.perform(Request::Write(Run::of_bytes(at, 8192)));
                        pacer.perform(read(at));
                    }
                    pacer.perform(Request::Flush);
                });
            }
        });
        let counters = pacer.counters();
        assert_eq!((counters.reads, counters.writes, counters.flushes), (96, 96, 16));
        assert_eq!(counters.write_bytes, 96 * 8192);
    }
}

#[test]
fn lateness_does_not_add_up() {
    // 300 requests in a queue of 16: the quota alone decides, however late each thread wakes.
    let pacer = Pacer::new(Profile::Net500, 1 << 30, Stroke::Whole);
    let started = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..16u64 {
            let pacer = &pacer;
            scope.spawn(move || (0..19).for_each(|i| pacer.perform(read((thread + i * 16) << 12))));
        }
    });
    let ideal = Duration::from_millis(16 * 19 * 2);
    let elapsed = started.elapsed();
    assert!(elapsed >= ideal && elapsed < ideal * 2, "{elapsed:?}");
}

#[test]
fn a_device_can_be_exchanged_and_goes_on_counting() {
    let pacer = Pacer::new(Profile::Hdd7200, 1 << 30, Stroke::Whole);
    pacer.perform(read(900 << 20));
    pacer.become_profile(Profile::None);
    let started = Instant::now();
    for i in 0..1000 {
        pacer.perform(read(i << 19));
    }
    assert!(started.elapsed() < Duration::from_secs(1), "a device without delays was slow");
    assert_eq!((pacer.counters().reads, pacer.counters().seeks), (1001, 1));
    assert_eq!(pacer.profile(), Profile::None);
}
