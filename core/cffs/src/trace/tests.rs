use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;

use proptest::prelude::*;

use serde_json::Value;

use super::{Causes, Detail, OpId, OpKind, RecordedDevice, Recorder, WHOLE, Way, set_process};
use crate::clock::TestClock;
use crate::device::{BlockDevice, Counts, MemoryDevice, TraceDevice};
use crate::mkfs::{self, MkfsOptions};
use crate::open;
use crate::units::InodeNo;
use crate::vfs::types::{NewFile, NewKind, OpenOptions, RenameMode};
use crate::vfs::{Caller, Volume};

const ROOT: InodeNo = InodeNo::ROOT;
const FILE: NewFile<'_> =
    NewFile { kind: NewKind::Regular, permissions: 0o644, uid: 0, gid: 0, times: None };
const DIRECTORY: NewFile<'_> = NewFile { kind: NewKind::Directory, ..FILE };

/// A device that counts, below what records.
struct Disk {
    counted: Arc<TraceDevice<MemoryDevice>>,
    recorder: Arc<Recorder>,
}

impl Disk {
    fn new(journal_bytes: u64) -> Disk {
        let counted = Arc::new(TraceDevice::new(MemoryDevice::new(256 << 20)));
        let options = MkfsOptions { journal_bytes, ..MkfsOptions::default() };
        mkfs::make(&*counted, &options).expect("made");
        Disk { counted, recorder: Arc::default() }
    }

    fn open(&self) -> Volume {
        let device = RecordedDevice::new(Arc::clone(&self.counted), Arc::clone(&self.recorder));
        let options = OpenOptions {
            recorder: Arc::clone(&self.recorder),
            cache_bytes: 32 << 20,
            discard: true,
            ..OpenOptions::default()
        };
        open(Arc::new(device), Arc::new(TestClock::default()), options).expect("opened")
    }

    /// The events of `work`, and the device's counts meanwhile.
    fn record<T>(&self, detail: Detail, work: impl FnOnce() -> T) -> (Vec<Value>, Counts) {
        let before = self.counted.counts();
        self.recorder.start(detail).expect("started");
        work();
        self.recorder.stop();
        let counts = self.counted.counts() - before;
        let mut bytes = Vec::new();
        loop {
            match self.recorder.take(1000) {
                piece if piece.is_empty() => break,
                piece => bytes.extend(piece),
            }
        }
        (decode(&bytes), counts)
    }
}

fn decode(bytes: &[u8]) -> Vec<Value> {
    serde_json::from_slice(bytes).expect("a JSON array")
}

/// The shares of a request by process, in parts of [`WHOLE`].
fn parts(request: &Value) -> Vec<(u32, u64)> {
    let shares = request["args"]["shares"].as_object().expect("shares");
    let part = |(key, part): (&String, &Value)| {
        let process = key.split(' ').nth(1).and_then(|process| process.parse().ok());
        let part = part.as_f64().expect("a number") * f64::from(WHOLE);
        (process.expect("a process"), part.round() as u64)
    };
    shares.iter().map(part).collect()
}

fn requests<'a>(events: &'a [Value], name: &'a str) -> impl Iterator<Item = &'a Value> {
    events.iter().filter(move |event| event["cat"] == "request" && event["name"] == name)
}

type Shares = BTreeMap<(u32, String), u64>;

/// The shares of all successful requests of a kind, by process and way, in parts of [`WHOLE`].
fn shares(events: &[Value], name: &str) -> Shares {
    let mut sums = Shares::new();
    for event in requests(events, name).filter(|event| event["args"]["succeeded"] == true) {
        let way = event["args"]["way"].as_str().expect("a way");
        for (process, part) in parts(event) {
            *sums.entry((process, way.to_owned())).or_default() += part;
        }
    }
    sums
}

fn of_way(sums: &Shares, process: u32, way: Way) -> Option<u64> {
    sums.get(&(process, way.name().to_owned())).copied()
}

fn of_process(sums: &Shares, process: u32) -> u64 {
    sums.iter().filter(|((of, _), _)| *of == process).map(|(_, sum)| sum).sum()
}

fn as_process<T>(process: u32, work: impl FnOnce() -> T) -> T {
    set_process(process);
    let result = work();
    set_process(0);
    result
}

fn write(volume: &Volume, dir: InodeNo, name: &str, len: usize) -> InodeNo {
    let ino = volume.make(&Caller::ROOT, dir, name.as_bytes(), &FILE).expect("made").ino;
    volume.write(&Caller::ROOT, ino, 0, &vec![7; len]).expect("written");
    ino
}

/// A bit of everything.
fn work_on(volume: &Volume) {
    for number in 0..4 {
        let name = format!("d{number}");
        let dir = volume.make(&Caller::ROOT, ROOT, name.as_bytes(), &DIRECTORY).expect("made").ino;
        for file in 0..60 {
            let len = [20, 5000, 40_000][file % 3];
            let ino = write(volume, dir, &format!("f{file}"), len);
            if file % 20 == 0 {
                volume.sync_file(ino, false).expect("synced");
            }
        }
        write(volume, dir, "large", 6 << 20);
        volume.writer().background().write_early().expect("written");
        volume
            .rename(&Caller::ROOT, dir, b"f1", ROOT, name.repeat(2).as_bytes(), RenameMode::Replace)
            .expect("renamed");
        volume.unlink(&Caller::ROOT, dir, b"f2").expect("removed");
        volume
            .set_xattr(&Caller::ROOT, dir, b"user.a", &[1; 3000], crate::vfs::XattrMode::Any)
            .expect("set");
        volume.writer().background().run_once().expect("written");
    }
    volume.sync().expect("synced");
    volume.writer().checkpoints().run().expect("written");
    volume.admin().trim(0..u64::MAX, 0).expect("discarded");
}

fn read_all(volume: &Volume) {
    for number in 0..4 {
        let dir = volume.lookup(ROOT, format!("d{number}").as_bytes()).expect("found").ino;
        let mut found = Vec::new();
        let mut visit = |entry: &crate::vfs::DirEntry<'_>| {
            found.push(entry.ino);
            true
        };
        volume.read_dir(dir, 0, false, &mut visit).expect("listed");
        for ino in found {
            let mut buf = vec![0; 1 << 20];
            let mut at = 0;
            while let Ok(len @ 1..) = volume.read(ino, at, &mut buf) {
                at += len as u64;
            }
        }
    }
}

/// The shares of all operations add up to what the device counted, for each kind of request.
#[test]
fn shares_add_up_to_the_requests_of_the_device() {
    for journal_bytes in [0, 4 << 20] {
        let disk = Disk::new(journal_bytes);
        let volume = disk.open();
        let (written, counts) = disk.record(Detail::All, || work_on(&volume));
        assert_adds_up(&written, counts);
        assert!(counts.writes > 20 && counts.syncs > 5 && counts.discards > 0, "{counts:?}");
        volume.close().expect("closed");
        let volume = disk.open();
        let cold = || volume.with_prefetch(2, || read_all(&volume));
        let (read, counts) = disk.record(Detail::Causes, cold);
        assert_adds_up(&read, counts);
        assert!(counts.reads > 10, "{counts:?}");
        volume.close().expect("closed");
    }
}

fn assert_adds_up(events: &[Value], counts: Counts) {
    for (kind, count) in [
        ("read", counts.reads),
        ("write", counts.writes),
        ("barrier", counts.barriers),
        ("sync", counts.syncs),
        ("discard", counts.discards),
    ] {
        let sum: u64 = shares(events, kind).values().sum();
        assert_eq!(sum, count * u64::from(WHOLE), "{kind} of {counts:?}");
    }
    assert!(!events.iter().any(|event| event["name"] == "lost"));
}

#[test]
fn a_write_an_epoch_later_belongs_to_the_operations_that_changed_the_files() {
    for (journal_bytes, way) in [(0, Way::WriteBack), (4 << 20, Way::Journal)] {
        let disk = Disk::new(journal_bytes);
        let volume = disk.open();
        let dirs = [b"a", b"b"]
            .map(|name| volume.make(&Caller::ROOT, ROOT, name, &DIRECTORY).expect("made").ino);
        volume.sync().expect("synced");
        let (records, _) = disk.record(Detail::Causes, || {
            as_process(1, || write(&volume, dirs[0], "small", 9000));
            as_process(2, || write(&volume, dirs[1], "three times as much", 27_000));
            as_process(3, || volume.sync()).expect("synced");
        });
        let writes = shares(&records, "write");
        let [first, second] = [1, 2].map(|process| of_way(&writes, process, way));
        assert!(first.is_some() && second > first, "{writes:?}");
        let flushes = shares(&records, "sync");
        assert_eq!(of_process(&flushes, 3), flushes.values().sum::<u64>(), "{flushes:?}");
        // Its own are the superblock's and the intent log's.
        assert!(of_process(&writes, 3) < first.unwrap_or(0) + second.unwrap_or(0), "{writes:?}");
        assert_eq!(of_process(&writes, 0), 0, "every request has a cause");
    }
}

/// An inode is encoded into its sector by the thread that writes the epoch, long after it was changed.
#[test]
fn the_sector_of_an_inode_belongs_to_the_operations_that_changed_the_inode() {
    let disk = Disk::new(0);
    let volume = disk.open();
    let ino = write(&volume, ROOT, "f", 100);
    volume.sync().expect("synced");
    let (records, _) = disk.record(Detail::Causes, || {
        let permissions = Some(0o600);
        let changes = crate::vfs::SetAttr { permissions, ..crate::vfs::SetAttr::default() };
        as_process(5, || volume.set_attr(&Caller::ROOT, ino, &changes)).expect("set");
        as_process(6, || volume.sync()).expect("synced");
    });
    let writes = shares(&records, "write");
    assert!(of_way(&writes, 5, Way::WriteBack).is_some_and(|sum| sum > 0), "{writes:?}");
}

#[test]
fn a_page_that_two_have_changed_belongs_to_both() {
    let disk = Disk::new(0);
    let volume = disk.open();
    let ino = write(&volume, ROOT, "f", 4000);
    volume.sync().expect("synced");
    let (records, _) = disk.record(Detail::Causes, || {
        as_process(1, || volume.write(&Caller::ROOT, ino, 0, &[1; 100])).expect("written");
        as_process(2, || volume.write(&Caller::ROOT, ino, 200, &[2; 100])).expect("written");
        as_process(3, || volume.sync()).expect("synced");
    });
    let writes = shares(&records, "write");
    let [first, second] = [1, 2].map(|process| of_process(&writes, process));
    // What cannot be halved is a part of each block at most.
    assert!(first > 0 && first.abs_diff(second) < 100, "{writes:?}");
}

#[test]
fn early_writes_belong_to_the_writer() {
    let disk = Disk::new(0);
    let volume = disk.open();
    let (records, _) = disk.record(Detail::Causes, || {
        as_process(1, || write(&volume, ROOT, "large", 16 << 20));
        let early = as_process(2, || volume.writer().background().write_early()).expect("written");
        assert!(early >= 8 << 20, "{early} bytes");
    });
    let writes = shares(&records, "write");
    assert!(of_process(&writes, 1) > 0, "{writes:?}");
    assert_eq!(of_process(&writes, 1), writes.values().sum::<u64>(), "{writes:?}");
}

/// The bytes of the writes that belong to a process, in parts of [`WHOLE`].
fn bytes_of(events: &[Value], process: u32) -> u64 {
    let of = |event: &Value| {
        let own = parts(event).into_iter().filter(|(of, _)| *of == process);
        own.map(|(_, part)| part).sum::<u64>() * event["args"]["bytes"].as_u64().expect("a length")
    };
    requests(events, "write").map(of).sum()
}

/// Attributes that have a block of their own are placed and encoded by the epoch.
#[test]
fn attributes_belong_to_the_operations_that_set_them() {
    let of_the_epoch = [10, 12_000].map(|len| {
        let disk = Disk::new(0);
        let volume = disk.open();
        let ino = write(&volume, ROOT, "f", 100);
        volume.sync().expect("synced");
        let (records, _) = disk.record(Detail::Causes, || {
            let value = vec![1; len];
            let any = crate::vfs::XattrMode::Any;
            as_process(5, || volume.set_xattr(&Caller::ROOT, ino, b"user.a", &value, any))
                .expect("set");
            as_process(6, || volume.sync()).expect("synced");
        });
        bytes_of(&records, 6)
    });
    assert!(
        of_the_epoch[0].abs_diff(of_the_epoch[1]) < 4096 * u64::from(WHOLE) / 2,
        "{of_the_epoch:?}"
    );
}

/// A file in many pieces has a tree of extents, which the epoch encodes.
#[test]
fn a_tree_of_extents_belongs_to_the_operations_that_changed_the_file() {
    let of_the_epoch = [1, 400].map(|pieces| {
        let disk = Disk::new(0);
        let volume = disk.open();
        let ino = volume.make(&Caller::ROOT, ROOT, b"f", &FILE).expect("made").ino;
        volume.sync().expect("synced");
        let (records, _) = disk.record(Detail::Causes, || {
            as_process(5, || {
                for piece in 0..pieces {
                    volume.write(&Caller::ROOT, ino, piece * 12_288, &[1; 4096]).expect("written");
                }
            });
            as_process(6, || volume.sync()).expect("synced");
        });
        assert!(bytes_of(&records, 5) > 4096 * pieces * u64::from(WHOLE));
        bytes_of(&records, 6)
    });
    // Bitmaps may be a block more.
    assert!(of_the_epoch[1] < of_the_epoch[0] + 4096 * u64::from(WHOLE), "{of_the_epoch:?}");
}

#[test]
fn blocks_that_an_epoch_has_written_have_no_causes_in_the_next() {
    let disk = Disk::new(0);
    let volume = disk.open();
    let ino = write(&volume, ROOT, "f", 100);
    volume.sync().expect("synced");
    let change = |process, permissions| {
        let permissions = Some(permissions);
        let changes = crate::vfs::SetAttr { permissions, ..crate::vfs::SetAttr::default() };
        let (records, _) = disk.record(Detail::Causes, || {
            as_process(process, || volume.set_attr(&Caller::ROOT, ino, &changes)).expect("set");
            as_process(6, || volume.sync()).expect("synced");
        });
        records
    };
    let first = change(5, 0o600);
    // The epoch encodes the inode into its sector, which makes that no change of the epoch's.
    for event in first.iter().filter(|event| event["cat"] == "request") {
        let of_both = [5, 6].map(|process| parts(event).iter().any(|(of, _)| *of == process));
        assert_ne!(of_both, [true, true], "{event}");
    }
    let second = shares(&change(7, 0o640), "write");
    assert!(of_process(&second, 7) > 0, "{second:?}");
    assert_eq!(of_process(&second, 5), 0, "{second:?}");
}

#[test]
fn later_writes_from_the_journal_belong_to_the_operations_that_wrote_the_blocks() {
    let disk = Disk::new(4 << 20);
    let volume = disk.open();
    let (records, _) = disk.record(Detail::Causes, || {
        as_process(1, || write(&volume, ROOT, "f", 9000));
        as_process(2, || volume.sync()).expect("synced");
        as_process(3, || volume.writer().checkpoints().run()).expect("written");
    });
    let writes = shares(&records, "write");
    assert!(of_way(&writes, 1, Way::Journal).is_some_and(|sum| sum > 0), "{writes:?}");
    assert!(of_way(&writes, 1, Way::Drain).is_some_and(|sum| sum > 0), "{writes:?}");
}

#[test]
fn read_ahead_belongs_to_the_reader() {
    let disk = Disk::new(0);
    let volume = disk.open();
    let ino = write(&volume, ROOT, "large", 16 << 20);
    volume.close().expect("closed");
    let volume = disk.open();
    let (records, _) = disk.record(Detail::Causes, || {
        volume.with_prefetch(2, || {
            as_process(9, || {
                let mut buf = vec![0; 128 << 10];
                for at in (0..16 << 20).step_by(buf.len()) {
                    volume.read(ino, at, &mut buf).expect("read");
                }
            });
        });
    });
    let reads = shares(&records, "read");
    assert_eq!(of_process(&reads, 9), reads.values().sum::<u64>(), "{reads:?}");
    assert!(of_way(&reads, 9, Way::ReadAhead).is_some(), "{reads:?}");
}

#[test]
fn operations_without_requests_are_counted_and_recorded_only_on_request() {
    let disk = Disk::new(0);
    let volume = disk.open();
    let ino = write(&volume, ROOT, "f", 100);
    let read = || {
        for _ in 0..50 {
            volume.read(ino, 0, &mut [0; 100]).expect("read");
        }
    };
    let reads = |events: &[Value]| {
        let operations = events.iter().filter(|event| event["cat"] == "operation");
        operations.filter(|event| event["name"] == "read").count()
    };
    // The first marks the time of access.
    read();
    let (causes, _) = disk.record(Detail::Causes, read);
    assert_eq!(reads(&causes), 0);
    let counts = causes.iter().find(|event| event["name"] == "counts").expect("counts");
    assert_eq!(counts["args"], serde_json::json!({ "read": 50 }));
    let (all, _) = disk.record(Detail::All, read);
    assert_eq!(reads(&all), 50);
}

/// An operation within another is part of that, on each thread by itself.
#[test]
fn operations_do_not_nest_and_threads_do_not_mix() {
    let recorder = Recorder::default();
    recorder.start(Detail::All).expect("started");
    let _outer = recorder.enter(OpKind::Sync, ROOT);
    let outer = super::cause();
    {
        let _inner = recorder.enter(OpKind::Write, ROOT);
        assert_eq!(super::cause(), outer);
    }
    assert_eq!(super::cause(), outer, "the inner one did not end it");
    thread::scope(|scope| {
        let other = scope.spawn(|| assert_eq!(super::cause(), None));
        other.join().expect("another thread has none");
    });
    let hidden = super::hide();
    assert_eq!(super::cause(), None);
    drop(hidden);
    assert_eq!(super::cause(), outer);
}

#[test]
fn one_recording_at_a_time_and_what_finds_no_room_is_counted() {
    let recorder = Recorder::default();
    recorder.start(Detail::All).expect("started");
    assert!(recorder.start(Detail::All).is_err());
    for _ in 0..600_000 {
        drop(recorder.enter(OpKind::Read, ROOT));
    }
    let first = recorder.take(usize::MAX);
    drop(recorder.enter(OpKind::Read, ROOT));
    recorder.stop();
    let rest = recorder.take(usize::MAX);
    let events = decode(&[first, rest].concat());
    let recorded = events.iter().filter(|event| event["cat"] == "operation").count() as u64;
    let lost = events.iter().filter(|event| event["name"] == "lost");
    let lost: u64 = lost.map(|event| event["args"]["events"].as_u64().expect("a count")).sum();
    assert!(lost > 0);
    assert_eq!(recorded + lost, 600_001);
    assert!(recorder.take(usize::MAX).is_empty());
}

/// Perfetto and Chrome read these members.
#[test]
fn arrows_point_from_operations_to_their_requests() {
    let disk = Disk::new(0);
    let volume = disk.open();
    let (events, _) = disk.record(Detail::Causes, || {
        as_process(4_194_303, || write(&volume, ROOT, "f", 9000));
        as_process(7, || volume.sync()).expect("synced");
    });
    let of = |phase: &'static str| events.iter().filter(move |event| event["ph"] == phase);
    let time = |event: &Value| event["ts"].as_f64().expect("a time");
    for event in of("X") {
        assert!(event["dur"].is_number() && event["pid"].is_number() && event["tid"].is_number());
    }
    assert!(of("X").any(|event| event["cat"] == "operation" && event["pid"] == 4_194_303));
    assert!(of("f").count() > 1);
    for end in of("f") {
        let begin = of("s").find(|begin| begin["id"] == end["id"]).expect("it began");
        assert!(time(begin) <= time(end), "{begin} {end}");
        let onto = |event: &&Value| event["cat"] == "request" && event["tid"] == end["tid"];
        assert!(of("X").filter(onto).any(|event| event["ts"] == end["ts"]), "{end}");
    }
}

proptest! {
    #[test]
    fn shares_of_blocks_add_up(blocks in prop::collection::vec(0u64..400, 0..300)) {
        let causes: Vec<Causes> = blocks
            .iter()
            .map(|count| {
                let mut causes = Causes::default();
                (0..*count).for_each(|n| causes.note(Some(OpId::new(OpKind::Write, 1, n))));
                causes
            })
            .collect();
        let shares = super::causes::shares(causes.iter().map(Some), OpId::VOLUME);
        let sum: u64 = shares.iter().map(|share| u64::from(share.part)).sum();
        prop_assert_eq!(sum, u64::from(WHOLE));
    }
}

/// A device that is no journal leaves the defaults of the trait as they are below it.
#[test]
fn the_device_hands_on_what_it_does_not_record() {
    let recorder = Arc::new(Recorder::default());
    let device = RecordedDevice::new(MemoryDevice::new(1 << 20), recorder);
    assert_eq!(device.geometry().size_bytes, 1 << 20);
    assert!(device.below().is_some());
    assert!(device.journal().is_none());
}
