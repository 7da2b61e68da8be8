//! An unreachable device, such as a store during an outage, is not damaged.
//!
//! Regression: a read of metadata without an answer was recorded as damage, and with `errors=remount-ro` all
//! later changes failed. A repair during a short outage treated unreadable data as lost.

use std::io::{self, IoSlice};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use cffs::clock::TestClock;
use cffs::device::{BlockDevice, Failure, Geometry, MemoryDevice, Patient};
use cffs::error::{Error, Result};
use cffs::fsck::{self, CheckOptions, Repair};
use cffs::host::SystemHost;
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::types::{ErrorsPolicy, NewFile, NewKind, OpenOptions};
use cffs::vfs::{Caller, Volume};

const ROOT: InodeNo = InodeNo::ROOT;
const FILES: u8 = 60;
/// More requests than a read takes that is repeated sector by sector.
const OUTAGE: i64 = 400;

/// A device that does not answer some reads. Reads by a patient thread wait for the end of the outage: here
/// they succeed, and are counted.
struct Away {
    inner: Arc<MemoryDevice>,
    /// The number of reads until the outage begins; negative once it has begun.
    begins_after: AtomicI64,
    patient: AtomicU64,
    failed: AtomicU64,
}

impl Away {
    fn new(inner: Arc<MemoryDevice>) -> Arc<Away> {
        let begins_after = AtomicI64::new(i64::MAX);
        Arc::new(Away {
            inner,
            begins_after,
            patient: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        })
    }

    fn go(&self, after: i64) {
        self.begins_after.store(after, Ordering::SeqCst);
    }

    fn come_back(&self) {
        self.go(i64::MAX);
    }
}

impl BlockDevice for Away {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let left = self.begins_after.fetch_sub(1, Ordering::SeqCst);
        if (-OUTAGE..=0).contains(&left) {
            if !Patient::is_begun() {
                self.failed.fetch_add(1, Ordering::SeqCst);
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer"));
            }
            self.patient.fetch_add(1, Ordering::SeqCst);
        }
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.inner.write_at(offset, bufs)
    }

    fn barrier(&self) -> io::Result<()> {
        self.inner.barrier()
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }
}

fn make(volume: &Volume, dir: InodeNo, name: &str, kind: NewKind<'_>) -> Result<InodeNo> {
    let new = NewFile { kind, permissions: 0o755, uid: 0, gid: 0, times: None };
    Ok(volume.make(&Caller::ROOT, dir, name.as_bytes(), &new)?.ino)
}

fn open(device: &Arc<Away>, errors: ErrorsPolicy) -> Volume {
    // With a host, each epoch reads the superblock to check its mark.
    let host: Option<Arc<dyn cffs::host::Host>> = Some(Arc::new(SystemHost));
    let options = OpenOptions { cache_bytes: 1 << 20, errors, host, ..OpenOptions::default() };
    cffs::open(device.clone(), Arc::new(TestClock::default()), options).expect("opened")
}

/// A closed volume with directories of files.
fn sample() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    mkfs::make(&*device, &MkfsOptions::default()).expect("made");
    let volume = open(&Away::new(device.clone()), ErrorsPolicy::Continue);
    for directory in 0..3 {
        let dir = make(&volume, ROOT, &format!("{directory}"), NewKind::Directory).expect("made");
        for number in 0..FILES {
            let file = make(&volume, dir, &format!("{number}"), NewKind::Regular).expect("made");
            volume.write(&Caller::ROOT, file, 0, &vec![number; 40_000]).expect("written");
        }
    }
    volume.close().expect("closed");
    device
}

fn look(volume: &Volume) -> Result<()> {
    for directory in 0..3 {
        let dir = volume.lookup(ROOT, format!("{directory}").as_bytes())?.ino;
        for number in 0..FILES {
            volume.lookup(dir, format!("{number}").as_bytes())?;
        }
    }
    Ok(())
}

fn is_outage(error: &Error) -> bool {
    matches!(error, Error::Io(error) if Failure::of(error) == Failure::Unreachable)
}

#[test]
fn a_read_that_gets_no_answer_is_no_damage() {
    let device = Away::new(sample());
    let volume = open(&device, ErrorsPolicy::RemountReadOnly);
    device.go(0);
    let error = look(&volume).expect_err("no answer");
    assert!(is_outage(&error), "{error}");
    device.come_back();
    assert_eq!(volume.writer().superblock.get().damage, None);
    look(&volume).expect("as before");
    make(&volume, ROOT, "after", NewKind::Regular).expect("changes go on");
    volume.close().expect("closed");
}

/// Regression: a scrub listed each file that it could not read as a problem, and continued throughout the
/// outage.
#[test]
fn a_scrub_ends_when_there_is_no_answer() {
    let device = Away::new(sample());
    let volume = open(&device, ErrorsPolicy::Continue);
    device.go(8);
    let error = volume.admin().scrub(&mut |_| ControlFlow::Continue(())).expect_err("no answer");
    assert!(is_outage(&error), "{error}");
    device.come_back();
    assert_eq!(volume.writer().superblock.get().damage, None);
    volume.close().expect("closed");
}

/// A check fails and changes nothing, whenever an outage begins, even if it is over before the check ends.
#[test]
fn a_repair_does_not_treat_unread_data_as_lost() {
    let healthy = sample();
    let options = CheckOptions { repair: Repair::Yes, force: true, ..CheckOptions::default() };
    let mut outages = 0;
    for after in 0.. {
        let copy = Arc::new(MemoryDevice::from_image(healthy.snapshot()));
        let device = Away::new(copy.clone());
        device.go(after);
        let checked = fsck::check(&*device, &options, &());
        if device.failed.load(Ordering::SeqCst) == 0 {
            let report = checked.expect("checked");
            assert!(report.problems.is_empty(), "{:?}", report.problems);
            break;
        }
        outages += 1;
        let error = checked.map(|report| report.problems).expect_err("it could not read all");
        assert!(is_outage(&error), "after {after}: {error}");
        assert!(copy.snapshot() == healthy.snapshot(), "after {after}: it has written");
    }
    assert!(outages > 3, "{outages}");
}

/// Regression: an epoch that could not read a bitmap failed, and with it the changes of all callers, although
/// a write would have waited for the end of the outage.
#[test]
fn reads_for_an_epoch_are_patient() {
    let device = Away::new(sample());
    let volume = open(&device, ErrorsPolicy::Continue);
    look(&volume).expect("read");
    let dir = volume.lookup(ROOT, b"0").expect("there").ino;
    let file = make(&volume, dir, "new", NewKind::Regular).expect("made");
    volume.write(&Caller::ROOT, file, 0, &[1; 300_000]).expect("written");
    let other = volume.lookup(dir, b"7").expect("there").ino;
    volume.write(&Caller::ROOT, other, 0, &[2; 40_000]).expect("written");
    device.go(0);
    volume.sync().expect("it waits");
    volume.writer().checkpoints().mark_clean().expect("it waits");
    assert!(device.patient.load(Ordering::SeqCst) > 0, "nothing was read");
    assert_eq!(device.failed.load(Ordering::SeqCst), 0);
    device.come_back();
    assert_eq!(volume.writer().health.latched(), None);
    volume.close().expect("closed");
}
