//! The mark on a volume of the process that has it open for writing: across hosts, after crashes, while idle.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cffs::clock::{Clock, TestClock};
use cffs::device::{BlockDevice, Excluded, Geometry, Hints, MemoryDevice, TraceDevice};
use cffs::error::Error;
use cffs::format::Superblock;
use cffs::format::superblock::{Holder, RoCompat, State};
use cffs::fsck::{self, CheckOptions, Repair};
use cffs::host::{Host, Standing};
use cffs::units::InodeNo;
use cffs::vfs::types::{NewFile, NewKind, OpenOptions};
use cffs::vfs::{Caller, Volume, mark, read_superblock};

use cffs_testing::setup::{made, recover};

/// A host with a number, and one process that opens volumes. It regards every other process of the same host
/// as the test has set.
#[derive(Clone, Copy, Debug)]
struct TestHost {
    number: u8,
    pid: u32,
    others: Standing,
}

impl TestHost {
    fn new(number: u8) -> TestHost {
        TestHost { number, pid: 100, others: Standing::Gone }
    }
}

impl Host for TestHost {
    fn holder(&self) -> Holder {
        Holder {
            host: [self.number; 16],
            boot: [self.number; 16],
            name: format!("host{}", self.number).into_bytes(),
            pid: self.pid,
            ..Holder::default()
        }
    }

    fn standing(&self, mark: &Holder) -> Standing {
        match (mark.host == [self.number; 16], mark.pid == self.pid) {
            (true, true) => Standing::Own,
            (true, false) => self.others,
            (false, _) => Standing::Foreign,
        }
    }
}

fn options(host: TestHost) -> OpenOptions {
    OpenOptions { host: Some(Arc::new(host)), ..OpenOptions::default() }
}

fn mark_on(device: &dyn BlockDevice) -> Option<Holder> {
    read_superblock(device).expect("readable").holder
}

fn refusal(outcome: Result<Volume, Error>) -> String {
    match outcome {
        Err(Error::InUse(why)) => why,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was opened"),
    }
}

fn bytes(device: &MemoryDevice) -> Vec<u8> {
    let mut bytes = vec![0; 16 << 20];
    device.read_at(0, &mut bytes).expect("readable");
    bytes
}

fn make_file(volume: &Volume, name: &[u8]) -> Result<(), Error> {
    let new = NewFile { kind: NewKind::Regular, permissions: 0o644, uid: 0, gid: 0, times: None };
    volume.make(&Caller::ROOT, InodeNo::ROOT, name, &new).map(drop)
}

#[test]
fn one_host_at_a_time_opens_a_volume_for_writing() {
    let device = made(16 << 20);
    let first = recover(device.clone(), options(TestHost::new(1))).expect("it opens");
    let found = mark_on(&device).expect("there is one");
    assert_eq!((found.host, found.pid), ([1; 16], 100));
    assert!(found.started >= 1_000_000_000, "the time of the clock that it was given");

    let why = refusal(recover(device.clone(), options(TestHost::new(2))));
    assert!(why.contains("host host1 (process 100)") && why.contains("2001-09-09 01:46"), "{why}");
    assert_eq!(mark_on(&device), Some(found), "who is refused changes nothing");
    let read_only = OpenOptions { read_only: true, ..options(TestHost::new(2)) };
    recover(device.clone(), read_only).expect("reading is not refused").close().expect("closed");

    make_file(&first, b"f").expect("made");
    first.close().expect("closed");
    assert_eq!(mark_on(&device), None);
    let second = recover(device.clone(), options(TestHost::new(2))).expect("it opens");
    second.lookup(InodeNo::ROOT, b"f").expect("there");
    second.close().expect("closed");
}

/// An idle volume is marked clean while it is open, but is still marked as in use.
#[test]
fn a_clean_volume_that_is_open_keeps_its_mark() {
    let device = made(16 << 20);
    let volume = recover(device.clone(), options(TestHost::new(1))).expect("it opens");
    make_file(&volume, b"f").expect("made");
    assert!(volume.writer().checkpoints().mark_clean().expect("reached"));
    assert_eq!(read_superblock(&device).expect("readable").state, State::Clean);
    refusal(recover(device.clone(), options(TestHost::new(2))));
    volume.close().expect("closed");
}

#[test]
fn a_process_that_is_gone_left_a_crash_and_one_that_is_alive_is_in_the_way() {
    let device = made(16 << 20);
    let volume = recover(device.clone(), options(TestHost::new(1))).expect("it opens");
    make_file(&volume, b"f").expect("made");
    volume.sync().expect("durable");
    drop(volume);
    let other = |others| TestHost { pid: 200, others, ..TestHost::new(1) };

    let why = refusal(recover(device.clone(), options(other(Standing::Alive))));
    assert!(why.contains("process 100 of this host"), "{why}");
    let next = recover(device.clone(), options(other(Standing::Gone))).expect("recovered");
    next.lookup(InodeNo::ROOT, b"f").expect("there");
    assert_eq!(mark_on(&device).expect("there is one").pid, 200);
    next.close().expect("closed");
}

/// A device that other programs of the host may open by a path that cannot be locked.
struct Shared(Arc<MemoryDevice>);

impl BlockDevice for Shared {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.0.write_at(offset, bufs)
    }
    fn barrier(&self) -> io::Result<()> {
        self.0.barrier()
    }
    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.discard(offset, len)
    }
    fn hints(&self) -> Hints {
        Hints { excludes: Excluded::None, ..Hints::default() }
    }
}

/// A killed and restarted container has a new PID namespace, and cannot see whether processes of the old one
/// still exist. Locks show this where they cover all openings.
#[test]
fn a_process_that_cannot_be_seen_counts_where_locks_do_not() {
    let device = made(16 << 20);
    drop(recover(device.clone(), options(TestHost::new(1))).expect("it opens"));
    let restarted = TestHost { pid: 200, others: Standing::Hidden, ..TestHost::new(1) };
    let why = refusal(recover(Arc::new(Shared(device.clone())), options(restarted)));
    assert!(why.contains("process 100 of a container"), "{why}");
    recover(device, options(restarted)).expect("recovered").close().expect("closed");
}

#[test]
fn a_writer_that_was_taken_over_stops() {
    let device = made(16 << 20);
    let first = recover(device.clone(), options(TestHost::new(1))).expect("it opens");
    make_file(&first, b"f").expect("made");
    first.sync().expect("durable");
    let forced = OpenOptions { take_over: true, ..options(TestHost::new(2)) };
    let second = recover(device.clone(), forced).expect("taken over");
    second.lookup(InodeNo::ROOT, b"f").expect("what was durable is there");
    make_file(&second, b"g").expect("made");
    second.sync().expect("durable");

    let before = bytes(&device);
    let error = first.writer().checkpoints().mark_clean().expect_err("it is another's");
    assert!(error.to_string().contains("host host2 (process 100) has taken"), "{error}");
    assert!(matches!(make_file(&first, b"h"), Err(Error::Latched(_))));
    assert!(first.close().is_err(), "what it had in memory is lost");
    assert!(bytes(&device) == before, "it wrote nothing");
    second.close().expect("closed");
    let report = fsck::check(&device, &CheckOptions { force: true, ..Default::default() }, &());
    assert_eq!(report.expect("checked").problems, []);
}

#[test]
fn a_writer_that_was_taken_over_while_idle_stops_before_it_writes() {
    let device = made(16 << 20);
    let first = recover(device.clone(), options(TestHost::new(1))).expect("it opens");
    assert!(first.writer().checkpoints().mark_clean().expect("reached"));
    let forced = OpenOptions { take_over: true, ..options(TestHost::new(2)) };
    recover(device.clone(), forced).expect("taken over").close().expect("closed");
    let before = bytes(&device);
    make_file(&first, b"f").expect("in memory");
    let error = first.sync().expect_err("it is another's").to_string();
    assert!(error.contains("another program has taken the volume over"), "{error}");
    assert!(bytes(&device) == before, "it wrote nothing");
}

#[test]
fn an_idle_volume_asks_nothing_of_its_device() {
    let device = Arc::new(TraceDevice::new(made(16 << 20)));
    let volume = recover(device.clone(), options(TestHost::new(1))).expect("it opens");
    assert!(volume.writer().checkpoints().mark_clean().expect("reached"));
    let before = device.counts();
    for _ in 0..100 {
        volume.writer().background().run_once().expect("nothing to do");
    }
    assert_eq!(device.counts(), before);
    volume.close().expect("closed");
}

#[test]
fn a_volume_that_cannot_be_written_is_not_marked() {
    let device = made(16 << 20);
    let mut superblock = read_superblock(&device).expect("readable");
    superblock.ro_compat |= RoCompat::from_bits_retain(1 << 31);
    device.write_at(0, &[IoSlice::new(&superblock.encode())]).expect("written");
    let before = bytes(&device);
    let outcome = recover(device.clone(), options(TestHost::new(1)));
    assert!(matches!(outcome, Err(Error::Unsupported(_))));
    assert!(bytes(&device) == before);
}

#[test]
fn a_volume_that_does_not_open_keeps_no_mark() {
    let device = made(16 << 20);
    let mut superblock = read_superblock(&device).expect("readable");
    superblock.state = State::Damaged;
    device.write_at(0, &[IoSlice::new(&superblock.encode())]).expect("written");
    // The system area, which recovery does not rebuild.
    device.write_at(4 << 10, &[IoSlice::new(&[0; 4096])]).expect("written");
    let outcome = recover(device.clone(), options(TestHost::new(1)));
    assert!(outcome.is_err());
    assert_eq!(mark_on(&device), None);
}

/// Another host writes its mark at the same time.
struct Raced {
    device: Arc<MemoryDevice>,
    is_over: AtomicBool,
}

impl BlockDevice for Raced {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.device.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.device.write_at(offset, bufs)
    }
    fn barrier(&self) -> io::Result<()> {
        self.device.barrier()
    }
    fn sync(&self) -> io::Result<()> {
        self.device.sync()?;
        if !self.is_over.swap(true, Ordering::Relaxed) {
            let now = TestClock::default().now();
            mark::claim(&self.device, &TestHost::new(2), now, true).map_err(io::Error::other)?;
        }
        Ok(())
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.device.discard(offset, len)
    }
}

#[test]
fn two_programs_that_open_a_volume_at_once_do_not_both_get_it() {
    let device = made(16 << 20);
    let raced = Raced { device: device.clone(), is_over: AtomicBool::new(false) };
    let now = TestClock::default().now();
    let error = mark::claim(&raced, &TestHost::new(1), now, false).expect_err("it is another's");
    assert!(error.to_string().contains("host host2 (process 100) has taken"), "{error}");
    assert_eq!(mark_on(&device).expect("there is one").host, [2; 16]);
}

#[test]
fn a_process_releases_only_its_own_mark() {
    let device = made(16 << 20);
    let now = TestClock::default().now();
    mark::claim(&device, &TestHost::new(1), now, false).expect("claimed");
    mark::release(&device, &TestHost::new(2)).expect("nothing to do");
    assert_eq!(mark_on(&device).expect("there is one").host, [1; 16]);
    mark::release(&device, &TestHost::new(1)).expect("released");
    assert_eq!(mark_on(&device), None);
}

/// A check did not see that another host had a volume open if the superblock could not be read.
#[test]
fn a_check_without_a_superblock_gets_the_mark_of_a_copy() {
    for bytes in [16 << 20, 1 << 30] {
        let device = made(bytes);
        let opened = |number| {
            let clock = Arc::new(TestClock::default());
            Volume::open(device.clone(), clock, options(TestHost::new(number))).expect("opened")
        };
        let mark_found = || {
            let lost = MemoryDevice::from_image(device.snapshot());
            lost.write_at(0, &[IoSlice::new(&[0; 4096])]).expect("written");
            let found = RefCell::new(None);
            let claim = |superblock: &Superblock| {
                found.replace(superblock.holder.clone());
                Ok(())
            };
            let check = CheckOptions { repair: Repair::Yes, ..CheckOptions::default() };
            fsck::check_claimed(&lost, &check, &(), &claim).expect("checked");
            assert_eq!(mark_on(&lost), None, "the process is gone");
            found.into_inner().map(|holder| holder.host)
        };
        opened(1).close().expect("closed");
        assert_eq!(mark_found(), None);
        let volume = opened(2);
        assert_eq!(mark_found(), Some([2; 16]));
        volume.close().expect("closed");
        assert_eq!(mark_found(), None);
    }
}

/// Without a host, as in most tests, volumes have no marks.
#[test]
fn without_a_host_there_is_no_mark() {
    let device = made(16 << 20);
    let volume = recover(device.clone(), OpenOptions::default()).expect("it opens");
    assert_eq!(mark_on(&device), None);
    volume.close().expect("closed");
}
