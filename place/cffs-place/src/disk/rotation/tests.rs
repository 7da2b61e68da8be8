use super::*;

#[test]
fn whole_turns_are_found_under_noise() {
    let counts = [0.0, 1.0, 1.0, 2.0, 3.0, 1.0, 2.0, 0.0, 1.0, 4.0];
    let noise = [0.1, -0.1, 0.05, 0.0, -0.08, 0.02, 0.09, 0.0, -0.03, 0.06];
    for ms in [4.0, 5.55, 8.333, 11.11] {
        let differences: Vec<f64> =
            counts.iter().zip(noise).map(|(count, noise)| (count * ms + noise) / 1e3).collect();
        let found = turn(&differences).expect("a turn") * 1e3;
        assert!((found / ms - 1.0).abs() < 0.01, "{found} ms, not {ms}");
    }
}

#[test]
fn delayed_reads_do_not_count() {
    for ms in [5.55, 8.333, 11.11] {
        let differences = (0..123).map(|number| {
            let late = if number % 9 == 0 { f64::from(number % 7) * 0.7 } else { 0.0 };
            (f64::from(number % 3) * ms + late) / 1e3
        });
        let found = turn(&differences.collect::<Vec<_>>()).expect("a turn") * 1e3;
        assert!((found / ms - 1.0).abs() < 0.005, "{found} ms, not {ms}");
    }
}

#[test]
fn pauses_do_not_count_as_turns() {
    let differences: Vec<f64> = (0..400).map(|i| f64::from(i * 37 % 240) * 0.00005).collect();
    assert_eq!(turn(&differences), None);
}
