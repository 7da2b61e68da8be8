//! The counters of a volume as one line per interval, in the style of iostat(1).

use std::time::Duration;

use serde_json::Value;

use crate::size;

/// The interval of headers, in lines, so that each screen has one.
pub const HEADER_EVERY: u64 = 20;

/// A column: its name, its width, and its text.
type Column = (&'static str, usize, fn(&Interval<'_>) -> String);

struct Interval<'a> {
    rise: &'a Value,
    now: &'a Value,
    seconds: f64,
}

const COLUMNS: [Column; 13] = [
    ("calls/s", 8, |i| i.rate(&CALLS)),
    ("lookup/s", 9, |i| i.rate(&["/calls/lookups"])),
    ("create/s", 9, |i| i.rate(&["/calls/creates"])),
    ("remove/s", 9, |i| i.rate(&["/calls/removes"])),
    ("sync/s", 7, |i| i.rate(&["/calls/syncs"])),
    ("dev-r/s", 8, |i| i.rate(&["/device/reads"])),
    ("read/s", 9, |i| i.bytes("/device/read_bytes")),
    ("dev-w/s", 8, |i| i.rate(&["/device/writes"])),
    ("write/s", 9, |i| i.bytes("/device/written_bytes")),
    ("flush/s", 8, |i| i.rate(&["/device/syncs"])),
    ("hit%", 6, |i| i.hits()),
    ("dirty", 9, |i| size::show(number(i.now, "/memory/dirty_bytes") as u64)),
    ("epoch/s", 8, |i| i.rate(&["/epochs/written"])),
];

/// Additional columns for a volume in an object store.
const STORE_COLUMNS: [Column; 2] =
    [("get/s", 7, |i| i.rate(&["/store/gets"])), ("put/s", 7, |i| i.rate(&["/store/puts"]))];

const CALLS: [&str; 8] = [
    "/calls/lookups",
    "/calls/creates",
    "/calls/removes",
    "/calls/renames",
    "/calls/reads",
    "/calls/writes",
    "/calls/dir_reads",
    "/calls/syncs",
];

/// The names of the columns for these counters.
pub fn header(now: &Value) -> String {
    line(now, |(name, ..)| (*name).to_owned())
}

/// A line for an interval, given the rise of the counters and their current values.
pub fn row(rise: &Value, now: &Value, time: Duration) -> String {
    let interval = Interval { rise, now, seconds: time.as_secs_f64().max(1e-3) };
    line(now, |(.., text)| text(&interval))
}

fn line(now: &Value, text: impl Fn(&Column) -> String) -> String {
    let is_in_store = now.get("store").is_some();
    let store = STORE_COLUMNS.iter().filter(|_| is_in_store);
    let columns = COLUMNS.iter().chain(store);
    columns.map(|column| format!("{:>width$}", text(column), width = column.1)).collect()
}

impl Interval<'_> {
    fn rate(&self, counters: &[&str]) -> String {
        let sum: f64 = counters.iter().map(|counter| number(self.rise, counter)).sum();
        format!("{:.0}", sum / self.seconds)
    }

    fn bytes(&self, counter: &str) -> String {
        size::show((number(self.rise, counter) / self.seconds) as u64)
    }

    fn hits(&self) -> String {
        let [hits, misses] = ["/cache/hits", "/cache/misses"].map(|name| number(self.rise, name));
        match hits + misses {
            0.0 => String::from("-"),
            all => format!("{:.0}", 100.0 * hits / all),
        }
    }
}

fn number(counters: &Value, pointer: &str) -> f64 {
    counters.pointer(pointer).and_then(Value::as_f64).unwrap_or(0.0)
}
