//! Answered calls survive an immediate crash.

use std::sync::mpsc;

use cffs::device::fault::{Effect, Fault, Strike, Target};
use cffs::device::{FaultDevice, Image, VolatileDevice};
use cffs::files::Files;
use cffs::mkfs::MkfsOptions;
use parking_lot::Condvar;

use super::*;

const ALL: &str = "/:insecure,no_root_squash";

fn image() -> Image {
    let device = MemoryDevice::new(64 << 20);
    cffs::mkfs::make(&device, &Default::default()).expect("made");
    device.snapshot()
}

/// The files after a crash that loses everything that was not flushed.
fn crashed(device: &VolatileDevice) -> Files {
    let device = Arc::new(MemoryDevice::from_image(device.durable()));
    let volume = cffs::open(device, Arc::new(SystemClock), OpenOptions::default());
    Files::new(Arc::new(volume.expect("recovered")))
}

#[test]
fn every_change_is_durable_when_it_is_answered() {
    let device = Arc::new(VolatileDevice::new(image()));
    let served = Served::over(Arc::clone(&device) as _, &[ALL]);
    let root = served.root();
    let mut client = served.client(0, 0);
    let exists = |path: &str| crashed(&device).stat(path).is_ok();

    let dir = mkdir(&mut client, &root, "d", 0o755);
    assert!(exists("/d"), "MKDIR");
    let file = create(&mut client, &dir, "f", 0o644);
    assert!(exists("/d/f"), "CREATE");
    ok(now(client.write(&write_args(&file, 0, b"kept", stable_how::FILE_SYNC))));
    assert_eq!(crashed(&device).read("/d/f").expect("read"), b"kept", "WRITE");
    ok(now(client.write(&write_args(&file, 0, b"data", stable_how::DATA_SYNC))));
    assert_eq!(crashed(&device).read("/d/f").expect("read"), b"data", "WRITE of data");
    let mode = sattr3 { mode: Nfs3Option::Some(0o600), ..sattr3::default() };
    let set = SETATTR3args { object: file.clone(), new_attributes: mode, guard: Nfs3Option::None };
    ok(now(client.setattr(&set)));
    assert_eq!(crashed(&device).stat("/d/f").expect("there").permissions, 0o600, "SETATTR");
    let rename = RENAME3args { from: at(&dir, "f"), to: at(&root, "g") };
    ok(now(client.rename(&rename)));
    assert!(exists("/g") && !exists("/d/f"), "RENAME");
    let link = LINK3args { file: file.clone(), link: at(&dir, "l") };
    ok(now(client.link(&link)));
    assert!(exists("/g") && exists("/d/l"), "LINK");
    ok(now(client.remove(&REMOVE3args { object: at(&root, "g") })));
    assert!(!exists("/g") && exists("/d/l"), "REMOVE");
    ok(now(client.remove(&REMOVE3args { object: at(&dir, "l") })));
    ok(now(client.rmdir(&RMDIR3args { object: at(&root, "d") })));
    assert!(!exists("/d"), "RMDIR");
    let exclusive = createhow3::EXCLUSIVE(createverf3([3; 8]));
    ok(now(client.create(&CREATE3args { where_: at(&root, "x"), how: exclusive })));
    let times = crashed(&device).stat("/x").expect("there");
    assert_eq!((times.atime.seconds, times.mtime.seconds), (0x0303_0303, 0x0303_0303), "verifier");
}

#[test]
fn a_crash_before_the_commit_shows_in_the_verifier() {
    let device = Arc::new(VolatileDevice::new(image()));
    let served = Served::over(Arc::clone(&device) as _, &[ALL]);
    let root = served.root();
    let mut client = served.client(0, 0);
    let file = create(&mut client, &root, "f", 0o644);
    let first = ok(now(client.write(&write_args(&file, 0, b"lost", stable_how::UNSTABLE))));
    let after_crash = device.durable();

    let again = Arc::new(VolatileDevice::new(after_crash));
    let served = Served::over(Arc::clone(&again) as _, &[ALL]);
    let mut client = served.client(0, 0);
    let commit = COMMIT3args { file: file.clone(), offset: 0, count: 0 };
    let verifier = ok(now(client.commit(&commit))).verf;
    assert_ne!(verifier, first.verf, "the client has to write again");
    ok(now(client.write(&write_args(&file, 0, b"kept", stable_how::UNSTABLE))));
    assert_eq!(ok(now(client.commit(&commit))).verf, verifier);
    assert_eq!(crashed(&again).read("/f").expect("read"), b"kept");
}

#[test]
fn a_device_that_fails_is_not_covered_up() {
    let device = Arc::new(FaultDevice::new(MemoryDevice::from_image(image()), 1));
    let served = Served::over(Arc::clone(&device) as _, &[ALL]);
    let root = served.root();
    let mut client = served.client(0, 0);
    let file = create(&mut client, &root, "f", 0o644);
    let before = ok(now(client.write(&write_args(&file, 0, b"lost", stable_how::UNSTABLE)))).verf;
    device.arm(Fault {
        target: Target::writes(),
        strike: Strike::Always,
        effect: Effect::IO_ERROR,
    });
    let commit = COMMIT3args { file: file.clone(), offset: 0, count: 0 };
    assert_eq!(failure(now(client.commit(&commit))), nfsstat3::NFS3ERR_IO);
    assert!(device.struck() > 0);
    assert_eq!(failure(now(client.commit(&commit))), nfsstat3::NFS3ERR_IO, "also the second time");
    let write = write_args(&file, 0, b"more", stable_how::UNSTABLE);
    assert_eq!(failure(now(client.write(&write))), nfsstat3::NFS3ERR_ROFS);
    assert_eq!(&ok(now(client.read(&read_args(&file)))).data[..], b"lost", "reads go on");
    assert_ne!(served.verifier(), before.0);
}

/// A device that counts its flushes, and can delay them.
pub(super) struct Counting {
    device: MemoryDevice,
    pub(super) flushes: AtomicUsize,
    holds: Mutex<bool>,
    let_go: Condvar,
}

impl Counting {
    pub(super) fn new(journal_bytes: u64) -> Counting {
        let device = MemoryDevice::new(64 << 20);
        let options = MkfsOptions { journal_bytes, ..MkfsOptions::default() };
        cffs::mkfs::make(&device, &options).expect("made");
        let (flushes, holds, let_go) = Default::default();
        Counting { device, flushes, holds, let_go }
    }

    pub(super) fn hold(&self, holds: bool) {
        *self.holds.lock() = holds;
        self.let_go.notify_all();
    }

    fn flush(&self) -> io::Result<()> {
        self.flushes.fetch_add(1, Ordering::AcqRel);
        self.let_go.wait_while(&mut self.holds.lock(), |holds| *holds);
        Ok(())
    }
}

impl cffs::device::BlockDevice for Counting {
    fn geometry(&self) -> cffs::device::Geometry {
        self.device.geometry()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.device.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, bufs: &[io::IoSlice<'_>]) -> io::Result<()> {
        self.device.write_at(offset, bufs)
    }
    fn barrier(&self) -> io::Result<()> {
        self.flush()
    }
    fn sync(&self) -> io::Result<()> {
        self.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.device.discard(offset, len)
    }
}

/// The number of flushes for 16 COMMITs that arrive during the flush of the first one.
fn flushes_of_16_commits(journal_bytes: u64) -> usize {
    const CALLERS: usize = 16;
    let device = Arc::new(Counting::new(journal_bytes));
    let served = Served::over(Arc::clone(&device) as _, &[ALL]);
    let root = served.root();
    let mut callers: Vec<_> = (0..CALLERS)
        .map(|number| {
            let mut client = served.client(0, 0);
            let file = create(&mut client, &root, &format!("f{number}"), 0o644);
            let data = [number as u8; 4096];
            let write = write_args(&file, 0, &data, stable_how::UNSTABLE);
            ok(now(client.write(&write)));
            (client, COMMIT3args { file, offset: 0, count: 0 })
        })
        .collect();
    device.hold(true);
    let before = device.flushes.load(Ordering::Acquire);
    thread::scope(|scope| {
        for (client, commit) in &mut callers {
            scope.spawn(|| {
                ok(now(client.commit(commit)));
            });
        }
        let commits = || {
            served
                .service
                .calls()
                .iter()
                .map(|(name, count)| match *name {
                    "commit" => *count,
                    _ => 0,
                })
                .sum::<u64>()
        };
        while commits() < CALLERS as u64 {
            thread::sleep(Duration::from_millis(1));
        }
        // The calls have arrived, and are about to wait.
        thread::sleep(Duration::from_millis(200));
        device.hold(false);
    });
    for (number, (client, commit)) in callers.iter_mut().enumerate() {
        let read = ok(now(client.read(&read_args(&commit.file))));
        assert_eq!(read.data[..], [number as u8; 4096]);
    }
    device.flushes.load(Ordering::Acquire) - before
}

/// The first call gets its own epoch, and all others share the next: with a journal, one flush for
/// each epoch.
#[test]
fn concurrent_commits_share_flushes() {
    let (with_journal, without) = (flushes_of_16_commits(4 << 20), flushes_of_16_commits(0));
    println!("flushes of 16 COMMITs: {with_journal} with a journal, {without} without");
    assert!((1..=3).contains(&with_journal), "{with_journal}");
    assert!(without <= 6, "{without}");
}

/// Once, 32 calls that waited for the device occupied all workers, and every other call waited for the next
/// epoch.
#[test]
fn calls_that_wait_for_the_device_delay_no_reader() {
    const WRITERS: usize = 64;
    let device = Arc::new(Counting::new(0));
    let served = Served::over(Arc::clone(&device) as _, &[ALL]);
    let root = served.root();
    let mut reader = served.client(0, 0);
    let file = create(&mut reader, &root, "file", 0o644);
    let mut writers: Vec<_> = (0..WRITERS).map(|_| served.client(0, 0)).collect();
    device.hold(true);
    thread::scope(|scope| {
        for (number, writer) in writers.iter_mut().enumerate() {
            let root = &root;
            scope.spawn(move || create(writer, root, &format!("f{number}"), 0o644));
        }
        // The calls have arrived, and wait for the device.
        thread::sleep(Duration::from_millis(500));
        let (answered, answer) = mpsc::channel();
        let reader = &mut reader;
        scope.spawn(move || {
            attributes(reader, &file);
            let _ = answered.send(());
        });
        let outcome = answer.recv_timeout(Duration::from_secs(10));
        device.hold(false);
        outcome.expect("an answer while others wait");
    });
}
