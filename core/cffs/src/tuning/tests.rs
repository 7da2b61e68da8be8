//! The figures of a disk of today are those that were measured; those of another follow from one number.

use super::*;

const MIB: u64 = 1 << 20;

#[test]
fn a_disk_of_today_has_the_figures_that_were_measured() {
    let tuning = Tuning::for_cache(256 * MIB);
    let Tuning { reading, placing, writing, .. } = tuning;
    assert_eq!(tuning.request_blocks(4096), 1024);
    assert_eq!(reading.request_bytes_first, MIB);
    assert_eq!((reading.window_bytes_max, reading.marked_bytes), (4 * MIB, MIB / 4));
    assert_eq!(reading.region_bytes, 4 * MIB);
    assert_eq!((tuning.plan_bytes_max(), tuning.plan_room()), (16 * MIB, 32 * MIB));
    assert_eq!((reading.tree_bytes_first, reading.planned_file_bytes_max), (MIB, 4 * MIB));
    assert_eq!((reading.gap_bytes, reading.sibling_bytes_max), (MIB, 2 * MIB));
    assert_eq!(reading.window_bytes_sufficient, MIB / 4);
    assert_eq!(placing.medium_bytes_max, 2 * MIB);
    let segments = |bytes| Placing::segments(bytes, 64 << 10);
    assert_eq!(segments(placing.reservation_bytes_first), 16);
    assert_eq!(segments(placing.reservation_bytes_max), 128);
    assert_eq!((segments(placing.sectors_bytes_max), segments(placing.urgent_bytes)), (16, 16));
    assert_eq!(placing.sectors_bytes_first, MIB / 32);
    assert_eq!((writing.run_bytes, writing.piece_bytes), (8 * MIB, MIB));
    assert_eq!(writing.derived_bytes_max, 16 * MIB);
    assert_eq!((EARLY_BYTES, FSYNC_LEAVES_BYTES), (4 * MIB, MIB));
}

#[test]
fn another_device_needs_one_number() {
    let of = |break_even_bytes| {
        let (request_bytes_max, cache_bytes) = (None, 4 << 30);
        let device = Device { break_even_bytes, request_bytes_max, parallel: 1, cache_bytes };
        Tuning::new(device)
    };
    let sizes = |t: Tuning| {
        let Tuning { reading: r, placing: p, writing: w, .. } = t;
        let reading = [
            r.request_bytes,
            r.request_bytes_first,
            r.window_bytes_max,
            r.marked_bytes,
            r.region_bytes,
            r.plan_bytes_max,
            r.tree_bytes_first,
            r.planned_file_bytes_max,
            r.gap_bytes,
            r.window_bytes_sufficient,
            r.sibling_bytes_max,
            t.plan_bytes_max(),
            t.request_blocks(4096) * 4096,
        ];
        let placing = [
            p.medium_bytes_max,
            p.reservation_bytes_first,
            p.reservation_bytes_max,
            p.sectors_bytes_first,
            p.sectors_bytes_max,
            p.urgent_bytes,
        ];
        let writing = [w.run_bytes, w.piece_bytes, w.derived_bytes_max];
        reading.into_iter().chain(placing).chain(writing).collect::<Vec<u64>>()
    };
    let today = sizes(of(MIB));
    for times in [2, 4] {
        let expected: Vec<u64> = today.iter().map(|bytes| bytes * times).collect();
        assert_eq!(sizes(of(times * MIB)), expected);
    }
    // Nothing is zero, whatever a device says of itself.
    assert!(of(0).request_blocks(4096) > 0);
    assert_eq!(Placing::segments(of(0).placing.urgent_bytes, 64 << 10), 1);
}

/// A request that the kernel has to cut comes to the disk in pieces of any order.
#[test]
fn requests_are_as_long_as_the_device_takes() {
    let blocks = |limit: Option<u64>, cache_bytes| {
        let (break_even_bytes, request_bytes_max) = (BREAK_EVEN_BYTES, limit);
        let device = Device { break_even_bytes, request_bytes_max, parallel: 1, cache_bytes };
        Tuning::new(device).request_blocks(4096)
    };
    assert_eq!(blocks(None, 256 * MIB), 1024);
    assert_eq!(blocks(Some(4 * MIB), 256 * MIB), 1024);
    assert_eq!(blocks(Some(1280 << 10), 256 * MIB), 320);
    assert_eq!(blocks(Some(120 << 10), 256 * MIB), 240);
    assert_eq!(blocks(Some(100), 256 * MIB), 256);
    assert_eq!(blocks(None, MIB), 256);
}

/// A stream of a device that answers many requests at once has several under way: one that is answered
/// after a delay would else leave the line idle.
#[test]
fn streams_have_several_requests_in_flight_if_the_device_answers_them_at_once() {
    let window = |parallel| {
        let (break_even_bytes, request_bytes_max) = (BREAK_EVEN_BYTES, None);
        let cache_bytes = 256 * MIB;
        let device = Device { break_even_bytes, request_bytes_max, parallel, cache_bytes };
        Tuning::new(device).reading.window_bytes_max
    };
    assert_eq!([0, 1, 2, 4, 16].map(|parallel| window(parallel) / MIB), [4, 4, 8, 16, 16]);
}
