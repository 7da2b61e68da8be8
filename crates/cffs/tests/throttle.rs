//! Whoever makes changes goes on while an epoch is written, up to the memory that changes may take.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cffs::clock::TestClock;
use cffs::device::{BlockDevice, Geometry, MemoryDevice};
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::Volume;
use cffs::vfs::types::{NewFile, NewKind, OpenOptions};
use parking_lot::{Condvar, Mutex};

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 8 * MIB;

/// A device whose writes wait for as long as it is held.
struct Held {
    inner: MemoryDevice,
    /// Whether it is held, and how many writes wait.
    state: Mutex<(bool, u32)>,
    changed: Condvar,
}

impl Held {
    fn hold(&self, held: bool) {
        self.state.lock().0 = held;
        self.changed.notify_all();
    }

    fn wait_for_a_write(&self) {
        let mut state = self.state.lock();
        while state.1 == 0 {
            let waited = self.changed.wait_for(&mut state, Duration::from_secs(60));
            assert!(!waited.timed_out(), "no epoch was written");
        }
    }
}

/// Lets go of the device, even if the test fails.
struct Hold<'a>(&'a Held);

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.0.hold(false);
    }
}

impl BlockDevice for Held {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let mut state = self.state.lock();
        state.1 += 1;
        self.changed.notify_all();
        self.changed.wait_while(&mut state, |state| state.0);
        state.1 -= 1;
        drop(state);
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

#[test]
fn a_writer_waits_at_the_limit_and_not_before() {
    let inner = MemoryDevice::new(256 * MIB);
    mkfs::make(&inner, &MkfsOptions::default()).expect("made");
    let device = Arc::new(Held { inner, state: Mutex::default(), changed: Condvar::new() });
    let options = OpenOptions { dirty_bytes_max: LIMIT, ..OpenOptions::default() };
    let volume = Volume::open(device.clone(), Arc::new(TestClock::default()), options);
    let volume = volume.expect("opened");
    let new = NewFile { kind: NewKind::Regular, permissions: 0o644, umask: 0, uid: 0, gid: 0 };
    let file = volume.make(InodeNo::ROOT, b"file", &new).expect("made").ino;
    let write = |mib: u64| {
        let piece = vec![mib as u8; MIB as usize];
        assert_eq!(volume.write(file, mib * MIB, &piece).expect("written"), piece.len());
    };
    volume.sync().expect("synced");
    let work = || {
        device.hold(true);
        let hold = Hold(&device);
        (0..6).for_each(write);
        device.wait_for_a_write();
        // The epoch has at least four of these, and stands still; seven fit beside it.
        (6..11).for_each(write);
        assert!(volume.stats().dirty_bytes <= LIMIT);

        thread::scope(|scope| {
            let waiter = scope.spawn(|| (11..40).for_each(write));
            let until = Instant::now() + Duration::from_secs(60);
            while volume.stats().dirty_bytes <= LIMIT {
                assert!(Instant::now() < until, "the writer stopped before the limit");
                thread::yield_now();
            }
            thread::sleep(Duration::from_millis(50));
            assert!(!waiter.is_finished(), "nobody stopped the writer");
            assert!(volume.stats().dirty_bytes <= LIMIT + MIB);
            drop(hold);
        });
    };
    let observe = |result: cffs::error::Result<()>| result.expect("background");
    volume.with_background(Duration::from_secs(60), observe, work);
    let mut byte = [0];
    for mib in 0..40 {
        volume.read(file, mib * MIB + 17, &mut byte).expect("read");
        assert_eq!(u64::from(byte[0]), mib);
    }
    volume.close().expect("closed");
}
