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
fn at_most_an_hour_is_kept() {
    let mut history = History::default();
    for at in 0..3 * HOUR_SECS {
        history.add(sample(at), Value::Null);
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
fn without_operations_no_rate_is_shown() {
    let mut history = History::default();
    assert_eq!(history.summary().0["requests_per_operation"], Value::Null);
    history.add(sample(7), Value::Null);
    history.add(Sample { at: 8, ..sample(7) }, Value::Null);
    assert_eq!(history.summary().0["requests_per_operation"], Value::Null);
    assert_eq!(history.summary().0["hit_percent"], Value::Null);
}

/// Regression: after a scrub the page showed "528 requests per operation".
#[test]
fn requests_of_jobs_do_not_count_as_requests_per_operation() {
    let mut history = History::default();
    let job = |stage: &str, requests| {
        let sample = Sample { requests, operations: 1000 + requests / 100, ..sample(7) };
        (sample, json!({ "scrub": { "stage": stage } }))
    };
    let add = |history: &mut History, (sample, jobs): (Sample, Value)| history.add(sample, jobs);
    add(&mut history, job("never", 0));
    add(&mut history, job("running", 5_000));
    add(&mut history, job("running", 9_000));
    // The job has ended since the last sample.
    add(&mut history, job("done", 10_000));
    let now = history.summary().0;
    assert_eq!((&now["operations"], &now["device_requests"]), (&json!(100), &json!(10_000)));
    assert_eq!(now["requests_per_operation"], 0.0);
    add(&mut history, job("done", 10_100));
    let ratio = history.summary().0["requests_per_operation"].as_f64();
    assert!(ratio.is_some_and(|ratio| (0.9..1.1).contains(&ratio)), "{ratio:?}");
}

#[test]
fn few_operations_give_no_requests_per_operation() {
    let mut history = History::default();
    history.add(sample(7), Value::Null);
    let operations = sample(7).operations + OPERATIONS_MIN - 1;
    let few = Sample { at: 8, operations, requests: 600, ..sample(7) };
    history.add(few, Value::Null);
    assert_eq!(history.summary().0["requests_per_operation"], Value::Null);
    history.add(Sample { operations: operations + 1, ..few }, Value::Null);
    assert_ne!(history.summary().0["requests_per_operation"], Value::Null);
}
