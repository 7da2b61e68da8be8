//! The counters in the text format of Prometheus (version 0.0.4).
//!
//! Each number of the server's answer becomes a metric `cffs_SECTION_NAME`, with the volume's label and UUID
//! as labels. Figures that only rise since the mount are counters and end in `_total`.

use std::fmt::Write;

use serde_json::{Map, Value};

#[cfg(test)]
mod tests;

/// A section of the server's answer: its subject, and whether its figures only rise.
struct Section {
    name: &'static str,
    help: &'static str,
    is_counter: bool,
}

const fn counter(name: &'static str, help: &'static str) -> Section {
    Section { name, help, is_counter: true }
}

/// The kinds of figures; others are shown as gauges.
const SECTIONS: [Section; 10] = [
    counter("calls", "Calls of the file system's operations"),
    counter("cache", "Blocks requested from the block cache"),
    counter("device", "Requests to the device"),
    counter("epochs", "Epochs, the units in which changes are written"),
    counter("compression", "Compression of contents"),
    counter("journal", "The journal"),
    counter("nfs", "Calls of NFS clients"),
    counter("store", "Requests to the object store"),
    Section { name: "staging", help: "Syncs that wait for the object store", is_counter: false },
    Section { name: "memory", help: "Current use of memory", is_counter: false },
];

/// The kernel's requests share a metric, with a label for each kind.
const REQUESTS: &str = "requests";
/// Figures that are derived from others.
const DERIVED: [&str; 2] = ["hit_percent", "superseded_percent"];
/// Figures in counting sections that do not only rise.
const GAUGES: [&str; 5] = [
    "compression clusters",
    "compression ratio",
    "journal commit_us_p50",
    "journal commit_us_p99",
    "store outage_seconds",
];
/// The list of quotas.
const QUOTAS: &str = "quotas";
/// The most quotas that are shown, the first by name: each is a series of its own.
const QUOTAS_MAX: usize = 100;
/// Figures from the volume's description: gauges.
const VOLUME: [(&str, &str); 3] = [
    ("size_bytes", "Size of the volume"),
    ("free_bytes", "Space that is free"),
    ("inodes", "Inodes in use"),
];

/// The metrics of a volume, from its counters and its description.
pub fn render(stats: &Value, info: &Value) -> String {
    let superblock = &info["superblock"];
    let server = &info["server"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let volume = [("label", text(&superblock["label"])), ("uuid", text(&superblock["uuid"]))];
    let mut out = String::new();

    let mut labels = volume.to_vec();
    labels.push(("directory", text(&server["directory"])));
    labels.push(("image", text(&server["image"])));
    labels.push(("version", env!("CARGO_PKG_VERSION").to_owned()));
    header(&mut out, "cffs_volume_info", "A mounted volume, always 1", false);
    sample(&mut out, "cffs_volume_info", &labels, &Value::from(1));
    let is_read_only = u64::from(server["read_only"] == true);
    header(&mut out, "cffs_volume_read_only", "Whether the volume refuses changes", false);
    sample(&mut out, "cffs_volume_read_only", &volume, &Value::from(is_read_only));
    for (name, help) in VOLUME {
        let metric = format!("cffs_volume_{name}");
        if superblock[name].is_number() {
            header(&mut out, &metric, help, false);
            sample(&mut out, &metric, &volume, &superblock[name]);
        }
    }
    let damage = superblock["damage_seen"]["count"].as_u64().unwrap_or(0);
    let help = "How often damage was found since the last full check of the unmounted volume";
    header(&mut out, "cffs_volume_damage_found", help, false);
    sample(&mut out, "cffs_volume_damage_found", &volume, &Value::from(damage));
    for (name, section) in stats.as_object().into_iter().flatten() {
        match section {
            Value::Object(kinds) if name == REQUESTS => requests(&mut out, kinds, &volume),
            Value::Array(list) if name == QUOTAS => quotas(&mut out, list, &volume),
            section => numbers(&mut out, name, section, &volume),
        }
    }
    out
}

fn requests(out: &mut String, kinds: &Map<String, Value>, volume: &[(&str, String)]) {
    let metric = "cffs_requests_total";
    header(out, metric, "Requests of the kernel", true);
    for (kind, count) in kinds.iter().filter(|(_, count)| count.is_number()) {
        let mut labels = volume.to_vec();
        labels.push(("operation", kind.clone()));
        sample(out, metric, &labels, count);
    }
}

/// The use and the limits of the first quotas. A quota without a limit has no sample for it.
fn quotas(out: &mut String, list: &[Value], volume: &[(&str, String)]) {
    for (unit, what) in [("bytes", "Bytes"), ("files", "Files")] {
        let metric = format!("cffs_quota_{unit}");
        if !list.is_empty() {
            header(out, &metric, &format!("{what} in directories with a quota"), false);
        }
        for quota in list.iter().take(QUOTAS_MAX) {
            for kind in ["used", "limit"] {
                let value = &quota[format!("{kind}_{unit}")];
                if value.is_number() {
                    let directory = quota["directory"].as_str().unwrap_or_default().to_owned();
                    let mut labels = volume.to_vec();
                    labels.extend([("directory", directory), ("kind", kind.to_owned())]);
                    sample(out, &metric, &labels, value);
                }
            }
        }
    }
}

/// Every number in a section, including nested ones.
fn numbers(out: &mut String, path: &str, value: &Value, volume: &[(&str, String)]) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields.iter().filter(|(name, _)| !DERIVED.contains(&&***name)) {
                numbers(out, &format!("{path} {name}"), value, volume);
            }
        }
        Value::Number(_) => {
            let name = path.split(' ').next().unwrap_or(path);
            let section = SECTIONS.iter().find(|section| section.name == name);
            let is_counter = section.is_some_and(|section| section.is_counter);
            let is_counter = is_counter && !GAUGES.contains(&path);
            let end = if is_counter { "_total" } else { "" };
            let metric = format!("cffs_{}{end}", metric_name(path));
            let what = path.strip_prefix(name).unwrap_or_default().replace('_', " ");
            let help = format!("{}:{what}", section.map_or(name, |section| section.help));
            header(out, &metric, &help, is_counter);
            sample(out, &metric, volume, value);
        }
        _ => {}
    }
}

/// Names consist of letters, digits and underscores.
fn metric_name(path: &str) -> String {
    path.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

fn header(out: &mut String, metric: &str, help: &str, is_counter: bool) {
    let kind = if is_counter { "counter" } else { "gauge" };
    // Writing to a string cannot fail.
    let _ = write!(out, "# HELP {metric} {help}.\n# TYPE {metric} {kind}\n");
}

fn sample(out: &mut String, metric: &str, labels: &[(&str, String)], value: &Value) {
    let labels: Vec<String> =
        labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    let _ = writeln!(out, "{metric}{{{}}} {value}", labels.join(","));
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
