//! What `--watch` shows.

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
