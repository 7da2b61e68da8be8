//! The output of `--watch`.

use serde_json::json;

use super::*;

#[test]
fn counters_rise_and_percentages_are_shown_as_they_are() {
    let from = json!({"cache": {"hits": 10, "hit_percent": 50.0}, "store": {"puts": 1000},
        "staging": {"records": 5}});
    let to = json!({"cache": {"hits": 15, "hit_percent": 60.5}, "store": {"puts": 3000},
        "staging": {"records": 3}});
    let mut shown = rise(&from, &to);
    Prices::default().add_to(&mut shown);
    let expected = json!({"cache": {"hits": 5, "hit_percent": 60.5},
        "store": {"puts": 2000, "usd": 0.01}, "staging": {"records": 3}});
    assert_eq!(shown, expected);
}

/// Regression: `--watch` printed 48 lines a second.
#[test]
fn an_interval_is_a_line_of_columns() {
    let now = json!({"memory": {"dirty_bytes": 3 << 20}, "store": {}});
    let rise = json!({"calls": {"lookups": 30, "creates": 10}, "cache": {"hits": 3, "misses": 1},
        "device": {"reads": 5, "read_bytes": 8192}, "store": {"gets": 4}});
    let (header, row) = (columns::header(&now), columns::row(&rise, &now, Duration::from_secs(2)));
    assert_eq!(header.len(), row.len(), "{header}\n{row}");
    assert!(header.starts_with(" calls/s lookup/s") && header.ends_with("  get/s  put/s"));
    let cells: Vec<&str> = row.split_whitespace().collect();
    let expected =
        ["20", "15", "5", "0", "0", "2", "4", "KiB", "0", "0", "B", "0", "75", "3", "MiB"];
    assert_eq!(cells, [&expected[..], &["0", "2", "0"]].concat(), "{row}");
    let local = json!({"memory": {"dirty_bytes": 0}});
    assert!(!columns::header(&local).contains("put/s"));
}
