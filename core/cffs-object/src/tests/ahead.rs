//! Contents sent ahead of their record, as several concurrent objects.

use std::sync::mpsc::{Receiver, Sender};
use std::thread;
use std::time::Instant;

use cffs::device::Failure;
use futures_util::{FutureExt, TryStreamExt};
use object_store::path::Path;

use super::paused::PausedStore;
use super::*;

const PART: usize = 8192;

/// A store in which the first part waits until it is released.
struct Held {
    store: Arc<InMemory>,
    device: Arc<LogDevice>,
    let_go: Sender<()>,
}

impl Held {
    fn new() -> Held {
        Held::after(&[])
    }

    /// The same, waiting until other parts have arrived.
    fn after(others: &[u64]) -> Held {
        let store = Arc::new(InMemory::new());
        let (paused, reached, let_go): (_, Receiver<bool>, _) = PausedStore::new(store.clone());
        let paused = Arc::new(paused);
        let device = Arc::new(LogDevice::create(&at(paused.clone()), GEOMETRY).expect("made"));
        device.keep_at_most(PART as u64);
        let held = Held { store, device, let_go };
        others.iter().for_each(|part| write(&*held.device, part * PART as u64, &[9; PART]));
        held.wait_for_contents(others.len());
        paused.pause();
        write(&*held.device, 0, &[1; PART]);
        assert!(reached.recv().expect("it pauses"));
        held
    }

    /// The number of objects in a folder.
    fn count(&self, folder: &str) -> usize {
        let folder = Path::from(format!("bucket/volume/{folder}"));
        let listed = self.store.list(Some(&folder)).try_collect::<Vec<_>>();
        listed.now_or_never().expect("memory answers at once").expect("listed").len()
    }

    fn wait_for_contents(&self, count: usize) {
        let began = Instant::now();
        while self.count("data") < count {
            assert!(began.elapsed() < Duration::from_secs(60), "{} objects", self.count("data"));
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Held {
    /// A failing test must not wait forever.
    fn drop(&mut self) {
        let _ = self.let_go.send(());
    }
}

/// A read returns the last write, and a record is put only after all contents that it refers to.
#[test]
fn contents_that_arrive_before_earlier_ones() {
    let held = Held::new();
    let device = &held.device;
    // Half of it overwrites the waiting part.
    write(&**device, PART as u64 / 2, &[2; PART]);
    held.wait_for_contents(1);
    // Finished requests are recorded when the next one starts.
    write(&**device, 8 * PART as u64, &[3; PART]);
    held.wait_for_contents(2);
    write(&**device, 9 * PART as u64, &[4; PART]);
    let expected = [&[1; PART / 2][..], &[2; PART]].concat();
    assert_eq!(read(&**device, 0, expected.len()), expected);

    let records = held.count("log");
    let syncing = thread::spawn({
        let device = Arc::clone(device);
        move || device.sync()
    });
    thread::sleep(Duration::from_millis(100));
    assert!(!syncing.is_finished());
    assert_eq!(held.count("log"), records);
    assert_eq!(read(&**device, 0, expected.len()), expected);
    held.let_go.send(()).expect("it waits");
    syncing.join().expect("no panic").expect("synced");

    assert_eq!(read(&**device, 0, expected.len()), expected);
    let fresh = LogDevice::open(&in_memory(&held.store), READ_ONLY).expect("opened");
    assert_eq!(read(&fresh, 0, expected.len()), expected);
    assert_eq!(read(&fresh, 8 * PART as u64, 2 * PART), [[3; PART], [4; PART]].concat());
}

/// Contents that have arrived leave memory; contents sent after them stay.
#[test]
fn arrived_contents_leave_memory() {
    let held = Held::after(&[5, 6]);
    write(&*held.device, 8 * PART as u64, &[3; PART]);
    assert_eq!(read(&*held.device, 0, PART), [1; PART]);
    assert_eq!(read(&*held.device, 5 * PART as u64, 2 * PART), [9; 2 * PART]);
    assert_eq!(read(&*held.device, 8 * PART as u64, PART), [3; PART]);
    held.let_go.send(()).expect("it waits");
    held.device.sync().expect("synced");
    let fresh = LogDevice::open(&in_memory(&held.store), READ_ONLY).expect("opened");
    assert_eq!(read(&fresh, 0, PART), [1; PART]);
}

/// Memory is bounded while an object does not arrive.
#[test]
fn contents_in_flight_are_bounded() {
    let held = Held::new();
    let writing = thread::spawn({
        let device = Arc::clone(&held.device);
        move || (1..9).for_each(|part| write(&*device, part * PART as u64, &[part as u8; PART]))
    });
    held.wait_for_contents(4);
    thread::sleep(Duration::from_millis(100));
    assert!(!writing.is_finished());
    assert_eq!(held.count("data"), 4);
    held.let_go.send(()).expect("it waits");
    writing.join().expect("no panic");
    held.device.sync().expect("synced");
    assert_eq!(held.count("data"), 9);
}

/// Nothing is acknowledged after contents that did not arrive.
#[test]
fn contents_that_do_not_arrive_end_all_writing() {
    let store = Arc::new(FaultStore::new());
    make_zeros(&at(store.clone()), GEOMETRY);
    let device = LogDevice::open(&at(store.clone()), OpenOptions::default()).expect("opened");
    device.keep_at_most(PART as u64);
    store.set_faults([Some(Fault::Forbidden)].into_iter());
    let part = [IoSlice::new(&[1; PART])];
    let error = device.write_at(0, &part).and_then(|()| device.sync()).expect_err("forbidden");
    assert_eq!(Failure::of(&error), Failure::Unreachable);
    device.sync().expect_err("that was the last");
    assert_eq!(read(&device, 0, PART), [1; PART]);
    drop(device);
    let fresh = LogDevice::open(&at(store), READ_ONLY).expect("opened");
    assert_eq!(read(&fresh, 0, PART), [0; PART]);
}
