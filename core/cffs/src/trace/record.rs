//! The events of a trace, in the Trace Event Format of Chrome: an array of JSON objects, one on each line,
//! which ui.perfetto.dev shows as a timeline.
//!
//! | `cat` | `ph` | event |
//! | --- | --- | --- |
//! | `operation` | `X` | an operation, on the track of its caller |
//! | `request` | `X` | a request of the device, on a track of the thread that made it |
//! | `cause` | `s`, `f` | an arrow from an operation to a request that it caused |
//! | `recording` | `i` | something about the recording as a whole |
//!
//! The `args` of an operation have its inode. Those of a request have the first byte, the length, the way,
//! whether it succeeded, and the share of each kind of operation of each process, for example
//! `"create 1200": 0.25`. Those of the event `began` have the time since 1970, those of `lost` the number of
//! events that found no room, those of `counts` the number of operations of each kind, including operations
//! that are not recorded one by one.
//!
//! An event is written when the operation or the request has ended. Times are microseconds since the
//! recording began. The format allows the end of the array to be missing, so a trace that was cut off can be
//! read, too.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::time::Duration;

use super::op::{OpId, OpKind, Share, WHOLE, Way};
use crate::device::RequestKind;

/// The device is shown as a process with a number that no process has.
const DEVICE: u32 = 1 << 22;
/// The caller of operations without a process: the volume's own threads, and NFS clients.
const VOLUME: u32 = DEVICE + 1;
/// Arrows to one request; they come from the operations with the largest shares.
const ARROWS_MAX: usize = 64;

/// The kind, the first byte and the length of a request.
pub(super) type Asked = (RequestKind, u64, u64);

/// When an event began, since the recording began, and how long it took; in nanoseconds.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) started_ns: u64,
    pub(super) duration_ns: u64,
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"ts\":{},\"dur\":{}", Micros(self.started_ns), Micros(self.duration_ns))
    }
}

/// Nanoseconds, shown in microseconds.
struct Micros(u64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

/// The head of a trace.
pub(super) fn head(since_1970: Duration) -> String {
    let mut out = String::from("[\n");
    for (process, name) in [(DEVICE, "device"), (VOLUME, "volume")] {
        let named = r#""ph":"M","name":"process_name","pid""#;
        let _ = writeln!(out, r#"{{{named}:{process},"args":{{"name":"{name}"}}}},"#);
    }
    out + &instant("began", &format!(r#""unix_seconds":{}"#, since_1970.as_secs_f64())) + ",\n"
}

/// The last event, and the end of the array.
pub(super) fn tail(counts: impl Iterator<Item = (OpKind, u64)>) -> String {
    let counts = counts.map(|(kind, count)| format!(r#""{}":{count}"#, kind.name()));
    instant("counts", &counts.collect::<Vec<_>>().join(",")) + "\n]\n"
}

/// The event for `events` events that found no room.
pub(super) fn lost(events: u64) -> String {
    instant("lost", &format!(r#""events":{events}"#)) + ",\n"
}

fn instant(name: &str, args: &str) -> String {
    format!(
        r#"{{"ph":"i","s":"g","cat":"recording","name":"{name}","pid":{DEVICE},"tid":0,"ts":0,"args":{{{args}}}}}"#
    )
}

/// An operation, made by the thread with this track.
pub(super) fn operation(id: OpId, ino: u64, track: u32, span: Span) -> String {
    let (caller, tid) = match id.process() {
        0 => (VOLUME, track),
        process => (process, process),
    };
    let mut out = format!(
        r#"{{"ph":"X","cat":"operation","name":"{}","pid":{caller},"tid":{tid},{span},"args":{{"inode":{ino}}}}},"#,
        id.kind().name(),
    );
    out.push('\n');
    arrow(&mut out, "s", id, (caller, tid), span.started_ns);
    out
}

/// A request, made by the thread with this track.
pub(super) fn request(
    (kind, offset, len): Asked,
    way: Way,
    succeeded: bool,
    shares: &[Share],
    track: u32,
    span: Span,
) -> String {
    let mut out = format!(
        r#"{{"ph":"X","cat":"request","name":"{}","pid":{DEVICE},"tid":{track},{span},"args":{{"offset":{offset},"bytes":{len},"way":"{}","succeeded":{succeeded},"shares":{{"#,
        name(kind),
        way.name(),
    );
    let mut parts: BTreeMap<(OpKind, u32), u32> = BTreeMap::new();
    for share in shares {
        *parts.entry((share.op.kind(), share.op.process())).or_default() += share.part;
    }
    for (i, ((kind, process), part)) in parts.into_iter().enumerate() {
        let comma = if i == 0 { "" } else { "," };
        let part = f64::from(part) / f64::from(WHOLE);
        let _ = write!(out, r#"{comma}"{} {process}":{part}"#, kind.name());
    }
    out.push_str("}}},\n");
    let mut largest: Vec<&Share> = shares.iter().filter(|share| share.op != OpId::VOLUME).collect();
    largest.sort_by_key(|share| std::cmp::Reverse(share.part));
    for share in largest.into_iter().take(ARROWS_MAX) {
        arrow(&mut out, "f", share.op, (DEVICE, track), span.started_ns);
    }
    out
}

/// One end of the arrows of an operation: the start or a finish.
fn arrow(out: &mut String, end: &str, id: OpId, (pid, tid): (u32, u32), at_ns: u64) {
    let (id, ts) = (id.bits(), Micros(at_ns));
    let _ = writeln!(
        out,
        r#"{{"ph":"{end}","bp":"e","cat":"cause","name":"cause","id":"{id:#x}","pid":{pid},"tid":{tid},"ts":{ts}}},"#
    );
}

fn name(kind: RequestKind) -> &'static str {
    match kind {
        RequestKind::Read => "read",
        RequestKind::Write => "write",
        RequestKind::Barrier => "barrier",
        RequestKind::Sync => "sync",
        RequestKind::Discard => "discard",
    }
}
