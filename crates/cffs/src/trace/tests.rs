use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;

use proptest::prelude::*;

use super::record::{Header, Reader, Record, TraceError};
use super::{Causes, Detail, OpId, OpKind, RecordedDevice, Recorder, Share, WHOLE, Way};
use crate::caller::set_process;
use crate::clock::TestClock;
use crate::device::{BlockDevice, Counts, MemoryDevice, RequestKind, TraceDevice};
use crate::mkfs::{self, MkfsOptions};
use crate::open;
use crate::units::InodeNo;
use crate::vfs::Volume;
use crate::vfs::types::{NewFile, NewKind, OpenOptions, RenameMode};

const ROOT: InodeNo = InodeNo::ROOT;
const FILE: NewFile<'_> =
    NewFile { kind: NewKind::Regular, permissions: 0o644, umask: 0, uid: 0, gid: 0 };
const DIRECTORY: NewFile<'_> = NewFile { kind: NewKind::Directory, ..FILE };

/// A device that counts, below what records.
struct Disk {
    counted: Arc<TraceDevice<MemoryDevice>>,
    recorder: Arc<Recorder>,
}

impl Disk {
    fn new(log_bytes: u64) -> Disk {
        let counted = Arc::new(TraceDevice::new(MemoryDevice::new(256 << 20)));
        let options = MkfsOptions { log_bytes, ..MkfsOptions::default() };
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

    /// The recording of `work`, and the device's counts meanwhile.
    fn record<T>(&self, detail: Detail, work: impl FnOnce() -> T) -> (Vec<Record>, Counts) {
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
        (decode(&bytes).expect("a whole trace"), counts)
    }
}

fn decode(bytes: &[u8]) -> Result<Vec<Record>, TraceError> {
    let mut reader = Reader::new(bytes)?;
    let mut records = Vec::new();
    while let Some(record) = reader.read()? {
        records.push(record);
    }
    Ok(records)
}

/// The shares of all requests of a kind: by process and way, in whole requests times [`WHOLE`].
fn shares(records: &[Record], of: RequestKind) -> BTreeMap<(u32, Way), u64> {
    let mut sums = BTreeMap::new();
    for record in records {
        let Record::Request { kind, way, succeeded: true, shares, .. } = record else { continue };
        for share in shares.iter().filter(|_| *kind == of) {
            *sums.entry((share.op.process(), *way)).or_default() += u64::from(share.part);
        }
    }
    sums
}

fn of_process(sums: &BTreeMap<(u32, Way), u64>, process: u32) -> u64 {
    sums.iter().filter(|((of, _), _)| *of == process).map(|(_, sum)| sum).sum()
}

fn as_process<T>(process: u32, work: impl FnOnce() -> T) -> T {
    set_process(process);
    let result = work();
    set_process(0);
    result
}

fn write(volume: &Volume, dir: InodeNo, name: &str, len: usize) -> InodeNo {
    let ino = volume.make(dir, name.as_bytes(), &FILE).expect("made").ino;
    volume.write(ino, 0, &vec![7; len]).expect("written");
    ino
}

/// A bit of everything.
fn work_on(volume: &Volume) {
    for number in 0..4 {
        let name = format!("d{number}");
        let dir = volume.make(ROOT, name.as_bytes(), &DIRECTORY).expect("made").ino;
        for file in 0..60 {
            let len = [20, 5000, 40_000][file % 3];
            let ino = write(volume, dir, &format!("f{file}"), len);
            if file % 20 == 0 {
                volume.sync_file(ino, false).expect("synced");
            }
        }
        write(volume, dir, "large", 6 << 20);
        volume.write_early().expect("written");
        volume
            .rename(dir, b"f1", ROOT, name.repeat(2).as_bytes(), RenameMode::Replace)
            .expect("renamed");
        volume.unlink(dir, b"f2").expect("removed");
        volume.set_xattr(dir, b"user.a", &[1; 3000], crate::vfs::XattrMode::Any).expect("set");
        volume.background().expect("written");
    }
    volume.sync().expect("synced");
    volume.checkpoint().expect("written");
    volume.trim(0..u64::MAX, 0).expect("discarded");
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

/// The bar of the issue: what is attributed adds up to what the device counted, for each kind.
#[test]
fn what_is_attributed_adds_up_to_what_the_device_counted() {
    for log_bytes in [0, 4 << 20] {
        let disk = Disk::new(log_bytes);
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

fn assert_adds_up(records: &[Record], counts: Counts) {
    for (kind, count) in [
        (RequestKind::Read, counts.reads),
        (RequestKind::Write, counts.writes),
        (RequestKind::Barrier, counts.barriers),
        (RequestKind::Sync, counts.syncs),
        (RequestKind::Discard, counts.discards),
    ] {
        let sum: u64 = shares(records, kind).values().sum();
        assert_eq!(sum, count * u64::from(WHOLE), "{kind:?} of {counts:?}");
    }
    assert!(!records.iter().any(|record| matches!(record, Record::Lost(_))));
}

#[test]
fn a_write_an_epoch_later_belongs_to_those_who_changed_the_files() {
    for (log_bytes, way) in [(0, Way::WriteBack), (4 << 20, Way::Log)] {
        let disk = Disk::new(log_bytes);
        let volume = disk.open();
        let dirs = [b"a", b"b"].map(|name| volume.make(ROOT, name, &DIRECTORY).expect("made").ino);
        volume.sync().expect("synced");
        let (records, _) = disk.record(Detail::Causes, || {
            as_process(1, || write(&volume, dirs[0], "small", 9000));
            as_process(2, || write(&volume, dirs[1], "three times as much", 27_000));
            as_process(3, || volume.sync()).expect("synced");
        });
        let writes = shares(&records, RequestKind::Write);
        let [first, second] = [1, 2].map(|process| writes.get(&(process, way)).copied());
        assert!(first.is_some() && second > first, "{writes:?}");
        let flushes = shares(&records, RequestKind::Sync);
        assert_eq!(of_process(&flushes, 3), flushes.values().sum(), "{flushes:?}");
        // Its own are the superblock's and the busy log's.
        assert!(of_process(&writes, 3) < first.unwrap_or(0) + second.unwrap_or(0), "{writes:?}");
        assert_eq!(of_process(&writes, 0), 0, "everything is somebody's");
    }
}

/// An inode is encoded into its sector by the thread that writes the epoch, long after it was changed.
#[test]
fn the_sector_of_an_inode_belongs_to_those_who_changed_the_inode() {
    let disk = Disk::new(0);
    let volume = disk.open();
    let ino = write(&volume, ROOT, "f", 100);
    volume.sync().expect("synced");
    let (records, _) = disk.record(Detail::Causes, || {
        let permissions = Some(0o600);
        let changes = crate::vfs::SetAttr { permissions, ..crate::vfs::SetAttr::default() };
        as_process(5, || volume.set_attr(ino, &changes)).expect("set");
        as_process(6, || volume.sync()).expect("synced");
    });
    let writes = shares(&records, RequestKind::Write);
    assert!(writes.get(&(5, Way::WriteBack)).is_some_and(|sum| *sum > 0), "{writes:?}");
}

#[test]
fn a_page_that_two_have_changed_belongs_to_both() {
    let disk = Disk::new(0);
    let volume = disk.open();
    let ino = write(&volume, ROOT, "f", 4000);
    volume.sync().expect("synced");
    let (records, _) = disk.record(Detail::Causes, || {
        as_process(1, || volume.write(ino, 0, &[1; 100])).expect("written");
        as_process(2, || volume.write(ino, 200, &[2; 100])).expect("written");
        as_process(3, || volume.sync()).expect("synced");
    });
    let writes = shares(&records, RequestKind::Write);
    let [first, second] = [1, 2].map(|process| of_process(&writes, process));
    // What cannot be halved is a part of each block at most.
    assert!(first > 0 && first.abs_diff(second) < 100, "{writes:?}");
}

#[test]
fn what_is_written_early_belongs_to_the_writer() {
    let disk = Disk::new(0);
    let volume = disk.open();
    let (records, _) = disk.record(Detail::Causes, || {
        as_process(1, || write(&volume, ROOT, "large", 16 << 20));
        let early = as_process(2, || volume.write_early()).expect("written");
        assert!(early >= 8 << 20, "{early} bytes");
    });
    let writes = shares(&records, RequestKind::Write);
    assert!(of_process(&writes, 1) > 0, "{writes:?}");
    assert_eq!(of_process(&writes, 1), writes.values().sum(), "{writes:?}");
}

/// The bytes of the writes that belong to a process, in parts of [`WHOLE`].
fn bytes_of(records: &[Record], process: u32) -> u64 {
    let of = |record: &Record| match record {
        Record::Request { kind: RequestKind::Write, len_bytes, shares, .. } => {
            let shares = shares.iter().filter(|share| share.op.process() == process);
            shares.map(|share| u64::from(share.part)).sum::<u64>() * len_bytes
        }
        _ => 0,
    };
    records.iter().map(of).sum()
}

/// Attributes that have a block of their own are placed and encoded by the epoch.
#[test]
fn attributes_belong_to_those_who_set_them() {
    let of_the_epoch = [10, 12_000].map(|len| {
        let disk = Disk::new(0);
        let volume = disk.open();
        let ino = write(&volume, ROOT, "f", 100);
        volume.sync().expect("synced");
        let (records, _) = disk.record(Detail::Causes, || {
            let value = vec![1; len];
            let any = crate::vfs::XattrMode::Any;
            as_process(5, || volume.set_xattr(ino, b"user.a", &value, any)).expect("set");
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
fn a_tree_of_extents_belongs_to_those_who_changed_the_file() {
    let of_the_epoch = [1, 400].map(|pieces| {
        let disk = Disk::new(0);
        let volume = disk.open();
        let ino = volume.make(ROOT, b"f", &FILE).expect("made").ino;
        volume.sync().expect("synced");
        let (records, _) = disk.record(Detail::Causes, || {
            as_process(5, || {
                for piece in 0..pieces {
                    volume.write(ino, piece * 12_288, &[1; 4096]).expect("written");
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
fn what_an_epoch_has_written_is_nobodys_in_the_next() {
    let disk = Disk::new(0);
    let volume = disk.open();
    let ino = write(&volume, ROOT, "f", 100);
    volume.sync().expect("synced");
    let change = |process, permissions| {
        let permissions = Some(permissions);
        let changes = crate::vfs::SetAttr { permissions, ..crate::vfs::SetAttr::default() };
        let (records, _) = disk.record(Detail::Causes, || {
            as_process(process, || volume.set_attr(ino, &changes)).expect("set");
            as_process(6, || volume.sync()).expect("synced");
        });
        records
    };
    let first = change(5, 0o600);
    // The epoch encodes the inode into its sector, which makes that no change of the epoch's.
    for record in &first {
        let Record::Request { shares, .. } = record else { continue };
        let of_both =
            [5, 6].map(|process| shares.iter().any(|share| share.op.process() == process));
        assert_ne!(of_both, [true, true], "{record:?}");
    }
    let second = shares(&change(7, 0o640), RequestKind::Write);
    assert!(of_process(&second, 7) > 0, "{second:?}");
    assert_eq!(of_process(&second, 5), 0, "{second:?}");
}

#[test]
fn what_the_log_brings_home_later_belongs_to_those_who_wrote_it() {
    let disk = Disk::new(4 << 20);
    let volume = disk.open();
    let (records, _) = disk.record(Detail::Causes, || {
        as_process(1, || write(&volume, ROOT, "f", 9000));
        as_process(2, || volume.sync()).expect("synced");
        as_process(3, || volume.checkpoint()).expect("written");
    });
    let writes = shares(&records, RequestKind::Write);
    assert!(writes.get(&(1, Way::Log)).is_some_and(|sum| *sum > 0), "{writes:?}");
    assert!(writes.get(&(1, Way::Drain)).is_some_and(|sum| *sum > 0), "{writes:?}");
}

#[test]
fn what_is_read_ahead_belongs_to_the_reader() {
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
    let reads = shares(&records, RequestKind::Read);
    assert_eq!(of_process(&reads, 9), reads.values().sum(), "{reads:?}");
    assert!(reads.contains_key(&(9, Way::ReadAhead)), "{reads:?}");
}

#[test]
fn what_finds_all_in_memory_is_counted_and_recorded_only_if_asked_for() {
    let disk = Disk::new(0);
    let volume = disk.open();
    let ino = write(&volume, ROOT, "f", 100);
    let read = || {
        for _ in 0..50 {
            volume.read(ino, 0, &mut [0; 100]).expect("read");
        }
    };
    let reads = |records: &[Record]| {
        let kinds = records.iter().filter_map(|record| match record {
            Record::Operation { id, .. } => Some(id.kind()),
            _ => None,
        });
        kinds.filter(|kind| *kind == OpKind::Read).count()
    };
    // The first marks the time of access.
    read();
    let (causes, _) = disk.record(Detail::Causes, read);
    assert_eq!(reads(&causes), 0);
    assert!(causes.contains(&Record::Counts(vec![(OpKind::Read, 50)])), "{causes:?}");
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
    let records = decode(&[first, rest].concat()).expect("a whole trace");
    let is_operation = |record: &&Record| matches!(record, Record::Operation { .. });
    let recorded = records.iter().filter(is_operation).count() as u64;
    let lost: u64 = records.iter().map(|r| if let Record::Lost(n) = r { *n } else { 0 }).sum();
    assert!(lost > 0);
    assert_eq!(recorded + lost, 600_001);
    assert!(recorder.take(usize::MAX).is_empty());
}

fn some_records() -> Vec<Record> {
    let op = |sequence| OpId::new(OpKind::Write, 4_194_303, sequence);
    vec![
        Record::Operation { id: op(1), ino: 77, started_ns: 5, duration_ns: u64::MAX },
        Record::Request {
            kind: RequestKind::Discard,
            way: Way::Drain,
            succeeded: false,
            offset_bytes: 1 << 40,
            len_bytes: 4096,
            started_ns: 9,
            duration_ns: 8,
            shares: vec![Share { op: op(1), part: WHOLE - 1 }, Share { op: OpId::VOLUME, part: 1 }],
        },
        Record::Counts(vec![(OpKind::Lookup, 3), (OpKind::Maintenance, u64::MAX)]),
        Record::Lost(12),
        Record::Process { process: 3, name: b"a name \xff".to_vec() },
    ]
}

fn encoded() -> Vec<u8> {
    let mut bytes = Vec::new();
    Header { began_ns: 1, began_unix_ns: 2 }.encode(&mut bytes);
    some_records().iter().for_each(|record| record.encode(&mut bytes));
    bytes
}

#[test]
fn records_are_read_as_they_were_written() {
    let bytes = encoded();
    assert_eq!(decode(&bytes).expect("a trace"), some_records());
    let header = Reader::new(&bytes[..]).expect("a trace").header();
    assert_eq!(header, Header { began_ns: 1, began_unix_ns: 2 });
    let id = OpId::new(OpKind::Write, 4_194_303, 1);
    assert_eq!((id.kind(), id.process()), (OpKind::Write, 4_194_303));
    assert_eq!(OpId::from_bits(id.bits()), Some(id));
    assert_eq!(OpId::from_bits(1), None);
    let body = &bytes[super::record::HEADER_BYTES..];
    assert_eq!(super::record::split(body), Some((37, Some(4_194_303))));
    assert_eq!(super::record::split(&body[37..]).map(|(_, process)| process), Some(None));
    assert_eq!(super::record::split(&body[..36]), None);
}

#[test]
fn a_trace_that_was_cut_off_says_where() {
    let bytes = encoded();
    assert!(matches!(decode(&bytes[..bytes.len() - 1]), Err(TraceError::CutOff { .. })));
    assert!(matches!(decode(&bytes[..10]), Err(TraceError::NotATrace)));
    let mut unknown = bytes.clone();
    unknown.extend([99, 2, 0, 0, 0, 1, 1]);
    assert_eq!(decode(&unknown).expect("passed over"), some_records());
    unknown.extend([1, 0xff, 0xff, 0xff, 0xff]);
    assert!(matches!(decode(&unknown), Err(TraceError::Damaged { .. })));
}

proptest! {
    #[test]
    fn damaged_traces_are_errors(at in 0usize..300, value: u8) {
        let mut bytes = encoded();
        let at = at % bytes.len();
        bytes[at] = value;
        // Whatever it is, it is no panic, and shares add up.
        for record in decode(&bytes).into_iter().flatten() {
            if let Record::Request { shares, .. } = record {
                let sum: u64 = shares.iter().map(|share| u64::from(share.part)).sum();
                prop_assert_eq!(sum, u64::from(WHOLE));
            }
        }
    }

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

/// A device that is no log leaves the defaults of the trait as they are below it.
#[test]
fn the_device_hands_on_what_it_does_not_record() {
    let recorder = Arc::new(Recorder::default());
    let device = RecordedDevice::new(MemoryDevice::new(1 << 20), recorder);
    assert_eq!(device.geometry().size_bytes, 1 << 20);
    assert!(device.below().is_some());
    assert_eq!(device.atomic_bytes_max(), 0);
    assert!(device.log_stats().is_none());
}
