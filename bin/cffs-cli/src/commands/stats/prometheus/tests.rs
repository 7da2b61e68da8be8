//! The conversion of servers' answers to metrics.

use serde_json::json;

use super::*;

#[path = "../../../../tests/exposition/mod.rs"]
mod exposition;

fn answers() -> (Value, Value) {
    let stats = json!({
        "requests": { "LOOKUP": 7, "READ": 3 },
        "calls": { "lookups": 5 },
        "cache": { "hits": 8, "misses": 2, "hit_percent": 80.0 },
        "compression": { "clusters_written": 4, "ratio": 3.85, "clusters": 4 },
        "journal": { "state": "on", "records": 3, "superseded_percent": 60.0 },
        "staging": { "records": 2, "bytes": 9000 },
        "memory": { "dirty_bytes": 4096, "kinds": { "xattrs bytes": 12 } },
        "something_new": { "depth": 1 },
        "store": { "puts": 6, "outage_seconds": 4, "outage": "no answer" },
        "quotas": [
            { "directory": "/a", "limit_bytes": 9, "limit_files": null, "used_bytes": 7, "used_files": 2 },
        ],
    });
    let info = json!({
        "server": { "directory": "/srv/a \"b\"\\c\nd", "image": "/i", "read_only": false },
        "superblock": { "label": "tree", "uuid": "u-1", "size_bytes": 1 << 30, "free_bytes": 5 },
    });
    (stats, info)
}

#[test]
fn every_number_becomes_a_metric_of_the_format() {
    let (stats, info) = answers();
    let text = render(&stats, &info);
    let metrics = exposition::parse(&text).unwrap_or_else(|why| panic!("{why}\n{text}"));
    let value = |name: &str| metrics[name].samples[0].1;
    assert_eq!(value("cffs_calls_lookups_total"), 5.0);
    assert_eq!(value("cffs_cache_hits_total"), 8.0);
    assert_eq!(value("cffs_journal_records_total"), 3.0);
    assert_eq!(value("cffs_compression_clusters_written_total"), 4.0);
    assert_eq!(value("cffs_compression_clusters"), 4.0);
    assert_eq!(value("cffs_compression_ratio"), 3.85);
    assert_eq!(metrics["cffs_compression_ratio"].kind, "gauge");
    assert_eq!(value("cffs_memory_dirty_bytes"), 4096.0);
    assert_eq!(value("cffs_staging_records"), 2.0);
    assert_eq!(metrics["cffs_staging_bytes"].kind, "gauge");
    assert_eq!(value("cffs_memory_kinds_xattrs_bytes"), 12.0);
    assert_eq!(value("cffs_something_new_depth"), 1.0);
    assert_eq!(value("cffs_volume_size_bytes"), (1u64 << 30) as f64);
    assert_eq!(value("cffs_volume_read_only"), 0.0);
    assert!(!metrics.contains_key("cffs_volume_inodes"), "it is not in the answer");
    assert!(metrics.keys().all(|name| !name.contains("percent")), "that follows from others");
    let requests = &metrics["cffs_requests_total"];
    assert_eq!((requests.kind.as_str(), requests.samples.len()), ("counter", 2));
    assert_eq!(requests.samples[0].0[1], ("operation".to_owned(), "LOOKUP".to_owned()));
    let directory = &metrics["cffs_volume_info"].samples[0].0[0];
    assert_eq!(*directory, ("directory".to_owned(), "/srv/a \"b\"\\c\nd".to_owned()));
    for metric in metrics.values() {
        let has_uuid =
            |labels: &[(String, String)]| labels.contains(&("uuid".into(), "u-1".into()));
        assert!(metric.samples.iter().all(|(labels, _)| has_uuid(labels)));
    }
}

#[test]
fn quotas_damage_and_outages_are_gauges() {
    let (stats, mut info) = answers();
    let parsed = |info: &Value| exposition::parse(&render(&stats, info)).expect("metrics");
    let value = |info: &Value| parsed(info)["cffs_volume_damage_found"].samples[0].1;
    assert_eq!(value(&info), 0.0);
    info["superblock"]["damage_seen"] = json!({ "count": 3 });
    assert_eq!(value(&info), 3.0);
    let metrics = parsed(&info);
    let outage = &metrics["cffs_store_outage_seconds"];
    assert_eq!((outage.kind.as_str(), outage.samples[0].1), ("gauge", 4.0));
    let of = |name: &str| {
        let samples = metrics[name].samples.iter();
        let kind = |labels: &[(String, String)]| labels[1].1.clone();
        samples.map(|(labels, value)| (kind(labels), *value)).collect::<Vec<_>>()
    };
    assert_eq!(of("cffs_quota_bytes"), [("used".into(), 7.0), ("limit".into(), 9.0)]);
    assert_eq!(of("cffs_quota_files"), [("used".into(), 2.0)]);
}

/// Each quota is a series for Prometheus.
#[test]
fn the_number_of_quotas_is_bounded() {
    let quota = json!({ "directory": "/a", "used_bytes": 7, "used_files": 2 });
    let stats = json!({ "quotas": vec![quota; QUOTAS_MAX + 1] });
    let text = render(&stats, &json!({}));
    assert_eq!(text.matches("cffs_quota_bytes{").count(), QUOTAS_MAX);
}

#[test]
fn the_reader_refuses_what_breaks_the_format() {
    let good = "# HELP a_total b.\n# TYPE a_total counter\na_total{x=\"y\"} 1\n";
    assert!(exposition::parse(good).is_ok());
    for (from, to) in [
        ("a_total{", "b_total{"),
        ("} 1\n", "} 1"),
        ("} 1", "} one"),
        ("counter", "histogram"),
        ("_total", ""),
        ("# HELP a_total b.\n", ""),
        ("# TYPE a_total counter\n", ""),
        ("x=\"y\"", "x=\"y"),
        ("x=\"y\"", "x-y=\"\""),
        ("x=\"y\"", "x=\"\\t\""),
        ("a_total{x=\"y\"} 1\n", ""),
        ("a_total{x=\"y\"} 1\n", "a_total{x=\"y\"} 1\na_total{x=\"y\"} 2\n"),
    ] {
        let broken = good.replace(from, to);
        assert!(exposition::parse(&broken).is_err(), "{broken}");
    }
}
