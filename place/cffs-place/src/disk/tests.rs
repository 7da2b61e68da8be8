use super::*;

/// Completion times of reads that take 4 ms each, except one that is late; those after it are
/// faster, since the drive has read ahead.
fn moments(late: usize) -> Vec<f64> {
    let delay = |number: usize| match number.checked_sub(late) {
        Some(0) => 6.0,
        Some(1) => 4.0,
        Some(2) => 1.0,
        _ => 0.0,
    };
    (0..40).map(|number| number as f64 * 4.0 + delay(number)).collect()
}

#[test]
fn a_delayed_read_does_not_count() {
    for late in 0..40 {
        let found = step(&moments(late));
        assert!((found / 4.0 - 1.0).abs() < 1e-9, "{found} ms if number {late} is late");
    }
}

#[test]
fn switches_between_tracks_count() {
    let switches = |number: usize| 0.9 * (number * 10 / 14) as f64;
    let moments: Vec<f64> = (0..60).map(|number| number as f64 * 4.0 + switches(number)).collect();
    let truth = 4.0 + 0.9 / 1.4;
    assert!((step(&moments) / truth - 1.0).abs() < 0.01, "{} ms, not {truth}", step(&moments));
}

#[test]
fn the_fastest_bandwidth_that_was_seen_twice_is_likely() {
    assert_eq!(likely(&[127.0, 172.0, 127.0]), Some(127.0));
    assert_eq!(likely(&[127.0, 161.0, 127.0, 161.0]), Some(161.0));
    assert_eq!(likely(&[127.0, 161.0]), None);
}

#[test]
fn units_are_within_the_bytes() {
    assert_eq!(units(&(1..8192), 4096), 1..2);
    assert!(units(&(1..4097), 4096).is_empty());
    assert_eq!(units(&(4096..8192), 512), 8..16);
}
