use super::*;

fn sample(at: u64) -> Sample {
    Sample {
        at,
        operations: at * 100,
        requests: at * 5,
        hits: at * 3,
        misses: at,
        ..Sample::default()
    }
}

#[test]
fn an_hour_is_kept_and_no_more_of_it_than_is_shown() {
    let mut history = History::default();
    for at in 0..3 * HOUR_SECS {
        history.add(sample(at));
    }
    assert_eq!(history.recent.len() as u64, NOW_SECS + 1);
    assert_eq!(history.hour.len() as u64, HOUR_SECS / KEPT_EVERY_SECS);
    let (now, hour) = history.summary();
    assert_eq!(now["seconds"], NOW_SECS);
    assert_eq!(now["operations"], NOW_SECS * 100);
    assert_eq!(now["requests_per_operation"], 0.05);
    assert_eq!(now["hit_percent"], 75.0);
    assert!(
        hour["seconds"].as_u64().is_some_and(|secs| secs.abs_diff(HOUR_SECS) <= KEPT_EVERY_SECS)
    );
    let points = history.points();
    assert_eq!(points.as_array().map(Vec::len), Some(history.hour.len() - 1));
    assert_eq!(points[0]["operations"], KEPT_EVERY_SECS * 100);
}

#[test]
fn nothing_happened_is_no_rate() {
    let mut history = History::default();
    assert_eq!(history.summary().0["requests_per_operation"], Value::Null);
    history.add(sample(7));
    history.add(Sample { at: 8, ..sample(7) });
    assert_eq!(history.summary().0["requests_per_operation"], Value::Null);
    assert_eq!(history.summary().0["hit_percent"], Value::Null);
}
