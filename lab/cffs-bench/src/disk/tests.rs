//! Compares the model with its own arithmetic, and with the figures of its profiles.

use super::geometry::{Geometry, Zone};
use super::mechanics::Mechanics;
use super::profile::Spec;
use super::seek::SeekCurve;
use super::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const DISKS: [Profile; 5] =
    [Profile::St31200, Profile::HpC3653a, Profile::Barracuda, Profile::AtlasIi, Profile::Hdd7200];

fn disk(profile: Profile) -> profile::DiskSpec {
    match profile.spec() {
        Spec::Disk(spec) => spec,
        _ => panic!("{profile:?} has no arm"),
    }
}

/// A small random generator. The tests need variety, not quality.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

fn blocks(block: u64, count: u64) -> Run {
    Run { first: Sector(block * 8), sectors: count * 8 }
}

/// Sends requests one after the other; returns the time that they took.
fn one_by_one(device: &mut Emulator, requests: impl IntoIterator<Item = Request>) -> Nanos {
    let (start, mut now) = (device.now(), device.now());
    for request in requests {
        let id = device.submit(request, now);
        now = device.complete(id);
    }
    now.since(start)
}

/// Sends all requests at once; returns the time until the last has completed.
fn all_at_once(device: &mut Emulator, requests: impl IntoIterator<Item = Request>) -> Nanos {
    let start = device.now();
    let ids: Vec<_> = requests.into_iter().map(|r| device.submit(r, start)).collect();
    ids.into_iter().map(|id| device.complete(id)).max().unwrap_or(start).since(start)
}

#[test]
fn seek_curve_passes_through_the_data_sheet() {
    for profile in DISKS {
        let d = disk(profile);
        let curve =
            SeekCurve::through(d.cylinders, d.seek_single_ms, d.seek_average_ms, d.seek_full_ms);
        let near = |distance, ms: f64| (curve.time(distance).as_ms() - ms).abs() < 0.01;
        assert_eq!(curve.time(0), Nanos::ZERO);
        assert!(near(1, d.seek_single_ms), "{profile:?}");
        assert!(near(d.cylinders / 3, d.seek_average_ms), "{profile:?}");
        assert!(near(d.cylinders - 1, d.seek_full_ms), "{profile:?}");
        let mut dice = Dice(7);
        let mean = (0..20_000)
            .map(|_| {
                let c = u64::from(d.cylinders);
                let (a, b) = (dice.below(c) as u32, dice.below(c) as u32);
                curve.time(a.abs_diff(b)).as_ms()
            })
            .sum::<f64>()
            / 20_000.0;
        assert!((mean / d.seek_average_ms - 1.0).abs() < 0.06, "{profile:?}: {mean}");
    }
}

#[test]
fn capacities_are_those_of_the_data_sheets() {
    let gigabytes = |p: Profile| (disk(p).geometry(None).sectors() * SECTOR_SIZE) as f64 / 1e9;
    assert!((gigabytes(Profile::St31200) - 1.05).abs() < 0.05);
    assert!((gigabytes(Profile::HpC3653a) - 8.7).abs() < 0.1);
    assert!((gigabytes(Profile::Barracuda) - 9.1).abs() < 0.2);
    assert!((gigabytes(Profile::AtlasIi) - 9.1).abs() < 0.4);
    assert!((gigabytes(Profile::Hdd7200) - 3000.0).abs() < 50.0);
}

#[test]
fn the_7200_rpm_disk_streams_at_160_megabytes() {
    let rate = Profile::Hdd7200.streaming_rate().unwrap();
    assert!((rate / 160e6 - 1.0).abs() < 0.005, "{rate}");
}

#[test]
fn every_sector_has_one_place_and_tracks_follow_each_other() {
    let zones =
        [Zone { cylinders: 3, sectors_per_track: 10 }, Zone { cylinders: 2, sectors_per_track: 6 }];
    let g = Geometry::new(&zones, 2, Nanos(6000), Nanos(700), Nanos(900));
    assert_eq!(g.sectors(), 3 * 2 * 10 + 2 * 2 * 6);
    let p = g.place(Sector(0));
    assert_eq!((p.track.cylinder, p.track.surface, p.index, p.phase), (0, 0, 0, Nanos(0)));
    let p = g.place(Sector(13));
    assert_eq!((p.track.cylinder, p.track.surface, p.index), (0, 1, 3));
    assert_eq!(p.phase, Nanos(700 + 3 * 600));
    let p = g.place(Sector(60));
    assert_eq!((p.track.cylinder, p.track.surface, p.sectors_per_track), (3, 0, 6));
    assert_eq!(p.phase, Nanos(3 * 700 + 3 * 900));
    for s in 0..g.sectors() {
        let p = g.place(Sector(s));
        assert_eq!(g.first_sector(p.track).0 + u64::from(p.index), s);
    }
}

#[test]
fn an_access_is_seek_plus_rotation_plus_transfer() {
    let zones = [Zone { cylinders: 100, sectors_per_track: 10 }];
    let g = Geometry::new(&zones, 1, Nanos(6_000_000), Nanos(0), Nanos(1_100_000));
    let curve = SeekCurve::through(100, 1.0, 4.0, 9.0);
    let m = Mechanics::new(g, curve, Nanos(0), Nanos(500_000));
    // Sector 4 of the current track arrives after 4/10 of a rotation; five sectors pass in half of one.
    let a = m.plan(Run { first: Sector(4), sectors: 5 }, false, Nanos(0));
    assert_eq!((a.seek, a.rotation, a.transfer), (Nanos(0), Nanos(2_400_000), Nanos(3_000_000)));
    // The next cylinder: 1 ms away, its first sector 1.1 ms behind; writes settle for 0.5 ms more and
    // therefore miss it by 0.4 ms.
    let next = Run { first: Sector(10), sectors: 1 };
    let a = m.plan(next, false, Nanos(0));
    assert_eq!((a.seek, a.rotation, a.moved), (Nanos(1_000_000), Nanos(100_000), true));
    let a = m.plan(next, true, Nanos(0));
    assert_eq!((a.seek, a.rotation), (Nanos(1_500_000), Nanos(6_000_000 - 400_000)));
    // Over the end of a track: 3 sectors, the switch with its skew, 2 sectors.
    let run = Run { first: Sector(7), sectors: 5 };
    let end = m.sweep(run, Nanos(4_200_000));
    assert_eq!(end, Nanos(4_200_000 + 1_800_000 + 1_100_000 + 1_200_000));
    // `passed` is the inverse of `sweep`.
    assert_eq!(m.passed(Sector(7), Nanos(4_200_000), end, 99), 5);
    assert_eq!(m.passed(Sector(7), Nanos(4_200_000), Nanos(end.0 - 1), 99), 4);
}

#[test]
fn sequential_reads_stream_whatever_the_request_size() {
    for profile in DISKS {
        for blocks_each in [4, 16, 64] {
            let mut device = Emulator::new(profile, 512 * MIB, Stroke::Whole);
            let count = 64 * MIB / (blocks_each * 4096);
            let reads = (0..count).map(|i| Request::Read(blocks(i * blocks_each, blocks_each)));
            let elapsed = one_by_one(&mut device, reads);
            let rate = 64.0 * MIB as f64 / elapsed.as_secs();
            let limit = profile.streaming_rate().unwrap();
            assert!(rate / limit > 0.97 && rate / limit < 1.02, "{profile:?}: {rate} of {limit}");
            assert!(device.counters().seeks <= 1);
        }
    }
}

#[test]
fn random_reads_take_an_average_seek_and_half_a_rotation() {
    for profile in DISKS {
        let d = disk(profile);
        let mut device = Emulator::new(profile, GIB / 2, Stroke::Whole);
        let mut dice = Dice(3);
        let reads: Vec<_> =
            (0..2000).map(|_| Request::Read(blocks(dice.below(GIB / 8192), 1))).collect();
        let mean_ms = one_by_one(&mut device, reads).as_ms() / 2000.0;
        let expected = d.overhead_ms + d.seek_average_ms + 0.5 * 60e3 / d.rpm;
        assert!((mean_ms / expected - 1.0).abs() < 0.12, "{profile:?}: {mean_ms} for {expected}");
    }
}

#[test]
fn a_slice_of_a_large_disk_seeks_less_than_the_whole() {
    let mean = |stroke| {
        let mut device = Emulator::new(Profile::Hdd7200, GIB, stroke);
        let mut dice = Dice(3);
        let reads: Vec<_> =
            (0..500).map(|_| Request::Read(blocks(dice.below(GIB / 4096), 1))).collect();
        one_by_one(&mut device, reads).as_ms() / 500.0
    };
    assert!(mean(Stroke::Slice) < 6.5);
    assert!(mean(Stroke::Whole) > 10.0);
}

#[test]
fn without_a_write_cache_each_sequential_write_waits_for_a_rotation_unless_queued() {
    let writes = || (0..50).map(|i| Request::Write(blocks(i, 1)));
    let mut device = Emulator::new(Profile::St31200, 512 * MIB, Stroke::Whole);
    let alone = one_by_one(&mut device, writes());
    let rotation_ms = 60e3 / 5400.0;
    assert!(alone.as_ms() > 45.0 * rotation_ms, "{alone:?}");
    let mut device = Emulator::new(Profile::St31200, 512 * MIB, Stroke::Whole);
    let queued = all_at_once(&mut device, writes());
    assert!(queued.as_ms() < 9.0 * rotation_ms, "{queued:?}");
}

#[test]
fn a_write_cache_acknowledges_early_and_a_flush_pays() {
    let mut device = Emulator::new(Profile::Hdd7200, GIB, Stroke::Whole);
    let mut dice = Dice(11);
    let writes: Vec<_> =
        (0..200).map(|_| Request::Write(blocks(dice.below(GIB / 4096), 1))).collect();
    let accepted = one_by_one(&mut device, writes);
    assert!(accepted.as_ms() < 200.0 * 0.1, "{accepted:?}");
    let flushed = one_by_one(&mut device, [Request::Flush]);
    assert!(flushed.as_ms() > 200.0 * 2.0, "{flushed:?}");
    assert!(one_by_one(&mut device, [Request::Flush]).as_ms() < 0.1);
    let destages = device.counters().destages;
    assert!((190..=200).contains(&destages), "{destages}");
}

#[test]
fn neighbours_leave_the_write_cache_together() {
    let mut device = Emulator::new(Profile::Hdd7200, GIB, Stroke::Whole);
    let writes: Vec<_> = (0..256).map(|i| Request::Write(blocks(256 - i, 1))).collect();
    one_by_one(&mut device, writes);
    let flush = one_by_one(&mut device, [Request::Flush]);
    assert_eq!(device.counters().destages, 1);
    assert!(flush.as_ms() < 30.0, "{flush:?}");
}

#[test]
fn an_idle_drive_writes_its_cache_out() {
    let mut device = Emulator::new(Profile::Hdd7200, GIB, Stroke::Whole);
    one_by_one(&mut device, [Request::Write(blocks(5000, 1))]);
    device.advance(Nanos::from_ms(1000.0));
    assert_eq!(device.counters().destages, 1);
    assert!(one_by_one(&mut device, [Request::Flush]).as_ms() < 0.1);
}

#[test]
fn a_full_write_cache_slows_writes_to_the_speed_of_the_platter() {
    let mut device = Emulator::new(Profile::Hdd7200, GIB, Stroke::Whole);
    let writes: Vec<_> = (0..256).map(|i| Request::Write(blocks(i * 256, 256))).collect();
    let elapsed = one_by_one(&mut device, writes);
    let rate = 256.0 * MIB as f64 / elapsed.as_secs();
    assert!(rate < 200e6 && rate > 120e6, "{rate}");
}

#[test]
fn a_queue_is_served_shortest_positioning_first() {
    let reads = || {
        let mut dice = Dice(5);
        (0..320).map(move |_| Request::Read(blocks(dice.below(GIB / 4096), 1)))
    };
    let mut device = Emulator::new(Profile::Hdd7200, GIB, Stroke::Whole);
    let alone = one_by_one(&mut device, reads());
    let mut device = Emulator::new(Profile::Hdd7200, GIB, Stroke::Whole);
    let queued = all_at_once(&mut device, reads());
    assert!(queued.0 * 2 < alone.0, "{queued:?} against {alone:?}");
}

#[test]
fn no_caller_starves() {
    let mut device = Emulator::new(Profile::Hdd7200, GIB, Stroke::Whole);
    let far = device.submit(Request::Read(blocks(GIB / 4096 - 1, 1)), Nanos::ZERO);
    let (mut now, mut dice, mut waited) = (Nanos::ZERO, Dice(9), None);
    for _ in 0..2000 {
        // A queue that is never empty, near the arm.
        for _ in 0..8 {
            device.submit(Request::Read(blocks(dice.below(20_000), 1)), now);
        }
        now = device.next_event().unwrap();
        if device.advance(now).iter().any(|c| c.id == far) {
            waited = Some(now);
            break;
        }
    }
    assert!(waited.is_some_and(|w| w.as_ms() < 600.0), "{waited:?}");
}

#[test]
fn a_second_read_comes_from_the_buffer_until_it_is_overwritten() {
    let mut device = Emulator::new(Profile::St31200, 512 * MIB, Stroke::Whole);
    let read = [Request::Read(blocks(1000, 2))];
    let bus_ms = 0.7 + 8192.0 / 10e6 * 1e3;
    assert!(one_by_one(&mut device, read).as_ms() > 2.0 * bus_ms);
    assert!((one_by_one(&mut device, read).as_ms() - bus_ms).abs() < 0.01);
    one_by_one(&mut device, [Request::Write(blocks(1001, 1))]);
    assert!(one_by_one(&mut device, read).as_ms() > 2.0 * bus_ms);
}

/// Regression: after a hit in an older segment, the head seemed to read ahead from the live segment up to the
/// hit, so that sectors near the hit seemed to arrive after half of the disk.
#[test]
fn a_hit_in_an_old_segment_does_not_move_the_live_one() {
    let mut device = Emulator::new(Profile::Hdd7200, GIB, Stroke::Whole);
    let old = blocks(200_000, 1);
    one_by_one(&mut device, [Request::Read(old), Request::Read(blocks(100, 1))]);
    one_by_one(&mut device, [Request::Read(old)]);
    let near_it = one_by_one(&mut device, [Request::Read(blocks(200_100, 1))]);
    assert!(near_it.as_ms() < 30.0, "{near_it:?}");
}

#[test]
fn a_quota_is_kept_and_not_wasted() {
    let mut device = Emulator::new(Profile::Net3000, GIB, Stroke::Whole);
    let elapsed = all_at_once(&mut device, (0..3000).map(|i| Request::Read(blocks(i * 7, 1))));
    assert!((elapsed.as_secs() - 1.0007).abs() < 1e-3, "{elapsed:?}");
    let mut device = Emulator::new(Profile::Net3000, GIB, Stroke::Whole);
    let elapsed = all_at_once(&mut device, (0..125).map(|i| Request::Write(blocks(i * 256, 256))));
    let expected = 125.0 * MIB as f64 / 125e6 + 0.0007;
    assert!((elapsed.as_secs() - expected).abs() < 1e-3, "{elapsed:?}");
}

#[test]
fn a_solid_state_disk_serves_reads_side_by_side_until_its_link_is_full() {
    let disk = || Emulator::new(Profile::Nvme, GIB, Stroke::Whole);
    let reads = |count: u64, blocks_each| {
        (0..count).map(move |i| Request::Read(blocks(i * 777 % 60_000, blocks_each)))
    };
    // 80 µs for each request, and 4 KiB at 3 GB/s.
    let alone = one_by_one(&mut disk(), reads(1000, 1)).as_ms();
    assert!((alone - 1000.0 * (0.080 + 4096.0 / 3e6)).abs() < 0.1, "{alone}");
    // 32 requests at a time.
    let queued = all_at_once(&mut disk(), reads(3200, 1)).as_ms();
    assert!((queued - 100.0 * 0.080).abs() < 0.1, "{queued}");
    let streamed = all_at_once(&mut disk(), reads(3000, 256)).as_ms();
    assert!((streamed - 3000.0 * MIB as f64 / 3e6).abs() < 0.1, "{streamed}");
}

#[test]
fn a_solid_state_disk_acknowledges_writes_from_its_cache_and_flushes_it() {
    let mut device = Emulator::new(Profile::Nvme, GIB, Stroke::Whole);
    let written = one_by_one(&mut device, [Request::Write(blocks(0, 1))]).as_ms();
    assert!((written - 0.0214).abs() < 1e-3, "{written}");
    let flushed = one_by_one(&mut device, [Request::Flush]).as_ms();
    assert!((flushed - 0.5).abs() < 1e-3, "{flushed}");
    let clean = one_by_one(&mut device, [Request::Flush]).as_ms();
    assert!((clean - 0.02).abs() < 1e-3, "{clean}");
    // A flush that finds another on its way waits for it.
    let (write, flush) = (Request::Write(blocks(9, 1)), Request::Flush);
    one_by_one(&mut device, [write]);
    let two = [(); 2].map(|()| device.submit(flush, device.now()));
    let [first, second] = two.map(|id| device.complete(id));
    assert_eq!(first, second);
}

#[test]
fn everything_completes_once_and_the_same_way_each_time() {
    for profile in
        [Profile::St31200, Profile::Hdd7200, Profile::Nvme, Profile::Net500, Profile::None]
    {
        let run = || {
            let mut device = Emulator::new(profile, 256 * MIB, Stroke::Whole);
            let (mut dice, mut now, mut done, mut sent) = (Dice(21), Nanos::ZERO, vec![], 0);
            for _ in 0..3000 {
                now += Nanos(dice.below(4_000_000));
                let run = blocks(dice.below(60_000), 1 + dice.below(64));
                let request = match dice.below(20) {
                    0 => Request::Flush,
                    1 => Request::Discard(run),
                    2..=9 => Request::Write(run),
                    _ => Request::Read(run),
                };
                device.submit(request, now);
                sent += 1;
                done.extend(device.advance(now));
            }
            while let Some(at) = device.next_event() {
                done.extend(device.advance(at));
            }
            (sent, done, device.counters(), device.now())
        };
        let (sent, done, counters, end) = run();
        assert!(done.windows(2).all(|w| w[0].at <= w[1].at), "{profile:?}: out of order");
        let mut ids: Vec<_> = done.iter().map(|c| c.id).collect();
        ids.sort();
        ids.dedup();
        assert_eq!((ids.len(), done.len()), (sent, sent), "{profile:?}");
        assert!(counters.busy_ns <= end.0);
        assert!(
            counters.seek_ns + counters.rotation_ns + counters.transfer_ns <= counters.busy_ns,
            "{profile:?}: the arm moved while the drive was idle"
        );
        assert_eq!((done, counters), (run().1, counters), "{profile:?}");
    }
}
