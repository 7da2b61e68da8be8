use std::io::{self, Read};

use cffs::device::RequestKind;
use cffs::trace::record::{Header, Record};
use cffs::trace::{OpId, OpKind, Share, WHOLE, Way};
use serde_json::Value;

use super::summary::{Kind, Summary, of_kind};
use super::{By, Source, perfetto};

/// A trace that is made while it is read.
struct Generated<F> {
    made: u64,
    count: u64,
    make: F,
    bytes: Vec<u8>,
    at: usize,
}

impl<F: FnMut(u64, &mut Vec<u8>)> Generated<F> {
    fn new(count: u64, make: F) -> Generated<F> {
        let mut bytes = Vec::new();
        Header { began_ns: 100, began_unix_ns: 0 }.encode(&mut bytes);
        Generated { made: 0, count, make, bytes, at: 0 }
    }
}

impl<F: FnMut(u64, &mut Vec<u8>)> Read for Generated<F> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.at == self.bytes.len() && self.made < self.count {
            (self.at, self.made) = (0, self.made + 1);
            self.bytes.clear();
            (self.make)(self.made, &mut self.bytes);
        }
        let len = buf.len().min(self.bytes.len() - self.at);
        buf[..len].copy_from_slice(&self.bytes[self.at..self.at + len]);
        self.at += len;
        Ok(len)
    }
}

fn op(kind: OpKind, process: u32, sequence: u64) -> OpId {
    OpId::new(kind, process, sequence)
}

fn operation(id: OpId, started_ns: u64) -> Record {
    Record::Operation { id, ino: 1, started_ns, duration_ns: 1000 }
}

fn request(kind: RequestKind, started_ns: u64, shares: Vec<Share>) -> Record {
    Record::Request {
        kind,
        way: Way::WriteBack,
        succeeded: true,
        offset_bytes: 4096,
        len_bytes: 8192,
        started_ns,
        duration_ns: 2000,
        shares,
    }
}

fn source(records: Vec<Record>) -> Source<impl Read> {
    let mut records = records.into_iter();
    let count = records.len() as u64;
    let generated = Generated::new(count, move |_, bytes: &mut Vec<u8>| {
        if let Some(record) = records.next() {
            record.encode(bytes);
        }
    });
    Source::new(String::from("test"), generated).expect("a trace")
}

fn two_programs() -> Vec<Record> {
    let (create, write) = (op(OpKind::Create, 10, 1), op(OpKind::Write, 11, 2));
    let quarters = [(create, WHOLE / 4), (write, WHOLE / 4 * 3)];
    let shares = quarters.map(|(op, part)| Share { op, part }).to_vec();
    let whole = |op| vec![Share { op, part: WHOLE }];
    vec![
        Record::Process { process: 10, name: b"tar".to_vec() },
        operation(create, 200),
        operation(write, 300),
        request(RequestKind::Write, 5000, shares.clone()),
        request(RequestKind::Write, 6000, shares),
        request(RequestKind::Sync, 9000, whole(op(OpKind::Sync, 11, 3))),
        Record::Counts(vec![(OpKind::Lookup, 70), (OpKind::Create, 1)]),
    ]
}

#[test]
fn shares_are_summed_up_by_what_is_asked_for() {
    let summary = Summary::of(&mut source(two_programs())).expect("read");
    assert_eq!(summary.requests.get(&Kind::Write), Some(&2));
    let by = |by, name: &str, kind| {
        let rows = summary.rows_by(by);
        rows.get(name).map_or(0.0, |(_, costs)| of_kind(costs, kind).requests())
    };
    assert!((by(By::Operation, "create", Kind::Write) - 0.5).abs() < 1e-9);
    assert!((by(By::Operation, "write", Kind::Write) - 1.5).abs() < 1e-9);
    assert!((by(By::Process, "tar", Kind::Write) - 0.5).abs() < 1e-9);
    assert!((by(By::Process, "process 11", Kind::Flush) - 1.0).abs() < 1e-9);
    assert!((by(By::Way, "write-back", Kind::Write) - 2.0).abs() < 1e-9);
    assert_eq!(summary.rows_by(By::Operation)["lookup"].0, 70);
}

#[test]
fn the_timeline_is_json_with_arrows_from_operations_to_requests() {
    let mut out = Vec::new();
    perfetto::export(&mut source(two_programs()), &mut out).expect("written");
    let value: Value = serde_json::from_slice(&out).expect("it is JSON");
    let events = value["traceEvents"].as_array().expect("a list");
    let of = |phase: &str| events.iter().filter(|event| event["ph"] == phase).collect::<Vec<_>>();
    assert_eq!(of("X").len(), 5);
    assert!(of("M").iter().any(|event| event["args"]["name"] == "tar"));
    // Each arrow that arrives has begun, not later than it arrives.
    for end in of("f").iter().filter(|event| event["id"] != of("f")[4]["id"]) {
        let begin = of("s").into_iter().find(|begin| begin["id"] == end["id"]).expect("it began");
        assert!(begin["ts"].as_f64() <= end["ts"].as_f64());
    }
    assert_eq!(of("f").len(), 5);
    // Two requests that overlap have a track each.
    let track =
        |ts: f64| events.iter().find(|e| e["ph"] == "X" && e["ts"] == ts).expect("")["tid"].clone();
    assert_ne!(track(4.9), track(5.9));
    assert_eq!(track(4.9), track(8.9));
}

/// However many operations and processes a trace has; `tests/traces.rs` measures the memory.
#[test]
fn nothing_is_kept_of_single_operations() {
    let count: u64 = 300_000;
    let make = |number: u64, bytes: &mut Vec<u8>| {
        let id = op(OpKind::ALL[(number % 17) as usize], (number % 1_000_000) as u32, number);
        match number % 3 {
            0 => request(RequestKind::Write, number, vec![Share { op: id, part: WHOLE }]),
            1 => operation(id, number),
            _ => Record::Process { process: id.process(), name: b"a name".to_vec() },
        }
        .encode(bytes);
    };
    let generated = Generated::new(count, make);
    let mut source = Source::new(String::from("test"), generated).expect("a trace");
    let summary = Summary::of(&mut source).expect("read");
    assert_eq!(summary.requests.get(&Kind::Write), Some(&(count / 3)));
    // Each process that has rows may have one of each kind of operation, and their costs.
    assert!(summary.rows() < 4096 * (2 * 17 + 1) + 100, "{} rows are kept", summary.rows());
    let rows = summary.rows_by(By::Operation);
    let sum: f64 = rows.values().map(|(_, costs)| of_kind(costs, Kind::Write).requests()).sum();
    assert!(
        (sum - (count / 3) as f64).abs() < 1e-3,
        "what has no row of its own is counted: {sum}"
    );
}

#[test]
fn a_trace_that_was_cut_off_counts_up_to_there() {
    let mut bytes = Vec::new();
    Header::default().encode(&mut bytes);
    two_programs().iter().for_each(|record| record.encode(&mut bytes));
    bytes.truncate(bytes.len() - 3);
    let mut source = Source::new(String::from("test"), &bytes[..]).expect("a trace");
    assert_eq!(Summary::of(&mut source).expect("read").requests.get(&Kind::Write), Some(&2));
    assert!(Source::new(String::from("test"), &b"no trace at all, but a text"[..]).is_err());
}
