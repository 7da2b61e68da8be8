use super::*;

#[test]
fn a_range_has_what_it_should() {
    for micros in (0..5000).chain([1 << 20, (1 << 30) + 12345, 1 << 31]) {
        let range = range_of(micros);
        assert!(last_of(range) >= micros && last_of(range) <= micros + micros / 4, "{micros}");
        assert!(range == 0 || last_of(range - 1) < micros, "{micros}");
    }
    assert_eq!(range_of(u64::MAX), RANGES - 1);
}

#[test]
fn percentiles_are_those_of_what_was_counted() {
    let mut durations = Durations::default();
    assert_eq!(durations.percentile(50), None);
    (1..=98).for_each(|_| durations.add(Duration::from_micros(100)));
    (1..=2).for_each(|_| durations.add(Duration::from_millis(9)));
    let shown = [50, 98, 99, 100].map(|percent| durations.percentile(percent));
    let [half, most, slow, all] = shown.map(|duration| duration.expect("some").as_micros());
    assert!((100..=125).contains(&half) && half == most, "{half}, {most}");
    assert!((9000..=11250).contains(&slow) && slow == all, "{slow}, {all}");
}
