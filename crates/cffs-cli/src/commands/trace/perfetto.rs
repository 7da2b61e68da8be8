//! A trace as JSON in the Trace Event Format, which Perfetto and Chrome show as a timeline.
//!
//! Each thread that called has a track of its operations, and the device has as many as it had requests at
//! once. Arrows lead from operations to the requests that they caused, also to those an epoch later.

use std::io::{Read, Write};

use cffs::device::RequestKind;
use cffs::trace::record::Record;
use cffs::trace::{OpId, WHOLE};
use serde_json::{Value, json};

use super::Source;
use crate::output;

/// The device is shown as a process whose number no process has.
const DEVICE: u32 = 1 << 22;
/// The volume's own threads.
const VOLUME: u32 = DEVICE + 1;
/// Arrows to one request: of those that cause it together, the ones with the largest shares.
const ARROWS_MAX: usize = 64;
/// The most requests that are shown side by side.
const LANES_MAX: usize = 64;

/// Writes all of a trace. Nothing of it is kept.
pub(super) fn export<R: Read>(source: &mut Source<R>, out: &mut dyn Write) -> anyhow::Result<()> {
    let began_ns = source.reader.header().began_ns;
    let mut events = Events { out, began_ns, is_first: true, lanes: Vec::new() };
    events.out.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n")?;
    events.name(DEVICE, "device")?;
    events.name(VOLUME, "volume")?;
    while let Some(record) = source.next()? {
        match record {
            Record::Operation { id, ino, started_ns, duration_ns } => {
                events.operation(id, ino, started_ns, duration_ns)?;
            }
            request @ Record::Request { .. } => events.request(request)?,
            Record::Process { process, name } => {
                events.name(process, &output::printable(&name))?;
            }
            Record::Counts(_) => {}
            Record::Lost(lost) => {
                let name = format!("{lost} records lost");
                events
                    .put(&json!({ "ph": "i", "s": "g", "name": name, "pid": DEVICE, "ts": 0 }))?;
            }
        }
    }
    events.out.write_all(b"\n]}\n")?;
    Ok(())
}

struct Events<'a> {
    out: &'a mut dyn Write,
    began_ns: u64,
    is_first: bool,
    /// When the last request of each track of the device ended.
    lanes: Vec<u64>,
}

impl Events<'_> {
    fn put(&mut self, event: &Value) -> anyhow::Result<()> {
        if !std::mem::take(&mut self.is_first) {
            self.out.write_all(b",\n")?;
        }
        serde_json::to_writer(&mut *self.out, event)?;
        Ok(())
    }

    /// Microseconds since the recording began.
    fn at(&self, ns: u64) -> f64 {
        ns.saturating_sub(self.began_ns) as f64 / 1e3
    }

    fn name(&mut self, process: u32, name: &str) -> anyhow::Result<()> {
        let args = json!({ "name": name });
        self.put(&json!({ "ph": "M", "name": "process_name", "pid": process, "args": args }))
    }

    fn operation(&mut self, id: OpId, ino: u64, started: u64, duration: u64) -> anyhow::Result<()> {
        let (process, ts) = (shown(id), self.at(started));
        self.put(&json!({
            "ph": "X", "cat": "operation", "name": id.kind().name(), "pid": process, "tid": process,
            "ts": ts, "dur": duration as f64 / 1e3, "args": { "inode": ino },
        }))?;
        self.arrow("s", id, process, ts)
    }

    fn arrow(&mut self, end: &str, id: OpId, track: u32, ts: f64) -> anyhow::Result<()> {
        let process = if end == "s" { track } else { DEVICE };
        let id = format!("{:#x}", id.bits());
        self.put(&json!({
            "ph": end, "bp": "e", "cat": "cause", "name": "cause", "id": id,
            "pid": process, "tid": track, "ts": ts,
        }))
    }

    fn request(&mut self, request: Record) -> anyhow::Result<()> {
        let Record::Request {
            kind,
            way,
            succeeded,
            offset_bytes,
            len_bytes,
            started_ns,
            duration_ns,
            mut shares,
        } = request
        else {
            return Ok(());
        };
        let lane = self.lane(started_ns, started_ns.saturating_add(duration_ns));
        let ts = self.at(started_ns);
        shares.sort_by_key(|share| std::cmp::Reverse(share.part));
        let operations = shares.len();
        let largest = shares.first().map(|share| {
            let percent = f64::from(share.part) / f64::from(WHOLE) * 100.0;
            format!("{} {percent:.0}%", share.op.kind().name())
        });
        self.put(&json!({
            "ph": "X", "cat": "request", "name": request_name(kind), "pid": DEVICE, "tid": lane,
            "ts": ts, "dur": duration_ns as f64 / 1e3,
            "args": {
                "offset": offset_bytes, "bytes": len_bytes, "way": way.name(),
                "succeeded": succeeded, "operations": operations, "largest share": largest,
            },
        }))?;
        for share in shares.iter().take(ARROWS_MAX).filter(|share| share.op != OpId::VOLUME) {
            self.arrow("f", share.op, lane, ts)?;
        }
        Ok(())
    }

    /// The first track of the device that is free for a request; requests come in the order of their ends.
    fn lane(&mut self, started: u64, ended: u64) -> u32 {
        let free = self.lanes.iter().position(|last| *last <= started);
        let at = free.unwrap_or(self.lanes.len().min(LANES_MAX));
        match self.lanes.get_mut(at) {
            Some(last) => *last = ended,
            None => self.lanes.push(ended),
        }
        at as u32 + 1
    }
}

fn shown(id: OpId) -> u32 {
    if id.process() == 0 { VOLUME } else { id.process() }
}

fn request_name(kind: RequestKind) -> &'static str {
    match kind {
        RequestKind::Read => "read",
        RequestKind::Write => "write",
        RequestKind::Barrier => "barrier",
        RequestKind::Sync => "sync",
        RequestKind::Discard => "discard",
    }
}
