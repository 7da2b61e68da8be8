//! A trace of any length is read in the same memory: what `cffs trace` keeps of it is bounded.

use std::fs;
use std::io::{BufWriter, Write};
use std::process::{Child, Command, Stdio};

use cffs::device::RequestKind;
use cffs::trace::record::{Header, Record};
use cffs::trace::{OpId, OpKind, Share, WHOLE, Way};

/// Events by default; TRACE_EVENTS=10000000 for the bar.
const EVENTS: u64 = 600_000;
/// The peak memory that the whole process may have.
const PEAK_KIB_MAX: u64 = 64 << 10;
/// The memory that the second half of a trace may add. One word per event would be four times as much.
const GROWTH_KIB_MAX: u64 = 512;

/// An operation, its request, shared with the one before, and the name of a process that is new each time.
fn event(number: u64) -> Record {
    let of = |number: u64| {
        let kind = OpKind::ALL[(number % 17) as usize];
        OpId::new(kind, (number % 4_000_000) as u32, number)
    };
    let (id, started_ns) = (of(number / 3), number * 1000);
    match number % 3 {
        0 => Record::Process { process: id.process(), name: format!("p{number}").into_bytes() },
        1 => Record::Operation { id, ino: number, started_ns, duration_ns: 500 },
        _ => Record::Request {
            kind: if number.is_multiple_of(2) { RequestKind::Write } else { RequestKind::Read },
            way: Way::WriteBack,
            succeeded: true,
            offset_bytes: number << 12,
            len_bytes: 8192,
            started_ns,
            duration_ns: 3000,
            shares: vec![
                Share { op: id, part: WHOLE / 2 },
                Share { op: of((number / 3).saturating_sub(1)), part: WHOLE - WHOLE / 2 },
            ],
        },
    }
}

/// The most memory that a process has had so far, in KiB.
fn peak_kib(process: &Child) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", process.id())).expect("it runs");
    let line =
        status.lines().find(|line| line.starts_with("VmHWM:")).expect("the kernel counts it");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}

/// The peaks of a command after half of the events, and after all of them.
fn peaks_kib(command: &[&str], events: u64) -> (u64, u64) {
    let mut process = Command::new(env!("CARGO_BIN_EXE_cffs"))
        .arg("trace")
        .args(command)
        .arg("-")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut out = BufWriter::new(process.stdin.take().expect("piped"));
    let mut bytes = Vec::new();
    Header::default().encode(&mut bytes);
    let mut half = 0;
    for number in 0..events {
        event(number).encode(&mut bytes);
        out.write_all(&bytes).expect("it reads");
        bytes.clear();
        if number == events / 2 {
            half = peak_kib(&process);
        }
    }
    out.flush().expect("it reads");
    let end = peak_kib(&process);
    drop(out);
    assert!(process.wait().expect("it ends").success());
    (half, end)
}

#[test]
fn a_trace_is_read_in_bounded_memory() {
    let events = std::env::var("TRACE_EVENTS").ok().and_then(|events| events.parse().ok());
    let events = events.unwrap_or(EVENTS);
    for command in [
        &["top"][..],
        &["top", "--by", "process", "--json"],
        &["graph"],
        &["graph", "--dot"],
        &["export", "--perfetto"],
    ] {
        let (half, end) = peaks_kib(command, events);
        println!(
            "{}: {half} KiB after half of {events} events, {end} KiB in the end",
            command.join(" ")
        );
        assert!(end < PEAK_KIB_MAX, "{command:?}: {end} KiB");
        assert!(end - half < GROWTH_KIB_MAX, "{command:?}: {half} KiB, then {end} KiB");
    }
}
