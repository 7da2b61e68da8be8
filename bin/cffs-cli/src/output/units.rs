//! Formats values of JSON answers for display. The name of a value determines its unit.

use cffs::clock::Timestamp;
use serde_json::Value;

use super::cell;
use crate::size;

#[cfg(test)]
mod tests;

/// The name without the unit, and the formatted value.
pub(super) fn labelled(key: &str, value: &Value) -> (String, String) {
    let words: Vec<&str> = key.split('_').collect();
    let name = words.join(" ");
    if words.ends_with(&["percent"]) && value.is_number() {
        return (without(&words, "percent"), format!("{value} %"));
    }
    let Some(number) = value.as_u64() else { return (name, cell(value)) };
    match &words[..] {
        words if words.contains(&"bytes") => (without(words, "bytes"), size::show(number)),
        words if words.contains(&"us") => (without(words, "us"), micros(number)),
        [.., "at"] => (name, seconds_since_1970(number)),
        ["started"] => (name, nanos_since_1970(number)),
        _ => (name, cell(value)),
    }
}

fn without(words: &[&str], unit: &str) -> String {
    words.iter().filter(|word| **word != unit).copied().collect::<Vec<_>>().join(" ")
}

/// A time span with about three digits.
fn micros(count: u64) -> String {
    match count {
        0..1_000 => format!("{count} µs"),
        1_000..1_000_000 => format!("{:.1} ms", count as f64 / 1e3),
        _ => format!("{:.1} s", count as f64 / 1e6),
    }
}

fn seconds_since_1970(seconds: u64) -> String {
    match seconds {
        0 => String::from("never"),
        seconds => format!("{} UTC", Timestamp { seconds: seconds as i64, nanoseconds: 0 }),
    }
}

/// Formats a time in nanoseconds or seconds: a server's start is in nanoseconds, that of a volume's
/// holder in seconds.
fn nanos_since_1970(time: u64) -> String {
    const NANOSECONDS_FROM: u64 = 1 << 40;
    seconds_since_1970(if time >= NANOSECONDS_FROM { time / 1_000_000_000 } else { time })
}
