use serde_json::json;

use super::*;

/// Regression: `cffs info` printed nanoseconds, seconds since 1970 and bytes as bare numbers.
#[test]
fn numbers_have_their_units() {
    for (key, value, label, text) in [
        ("size_bytes", json!(268_435_456), "size", "256 MiB"),
        ("bytes", json!(4096), "", "4 KiB"),
        ("inline_bytes_max", json!(512), "inline max", "512 B"),
        ("made_at", json!(1_700_000_000), "made at", "2023-11-14 22:13 UTC"),
        ("mounted_at", json!(0), "mounted at", "never"),
        ("started", json!(1_700_000_000_123_456_789_u64), "started", "2023-11-14 22:13 UTC"),
        ("started", json!(1_700_000_000), "started", "2023-11-14 22:13 UTC"),
        ("process_started", json!(4711), "process started", "4711"),
        ("commit_us_p50", json!(1234), "commit p50", "1.2 ms"),
        ("drain_us", json!(17), "drain", "17 µs"),
        ("hit_percent", json!(97.5), "hit", "97.5 %"),
        ("device_reads", json!(12), "device reads", "12"),
        ("label", json!("at us"), "label", "at us"),
        ("read_only", json!(true), "read only", "yes"),
    ] {
        assert_eq!(labelled(key, &value), (label.to_owned(), text.to_owned()), "{key}");
    }
}
