//! Followers: the states that they see of a volume that another program writes, and their requests.

use super::*;
use crate::Follower;
use crate::follow::LIST_EVERY;

/// The files on a device.
fn files_to_read(device: LogDevice) -> Files {
    let options = cffs::vfs::types::OpenOptions { read_only: true, ..Default::default() };
    let volume = cffs::open(Arc::new(device), Arc::new(SystemClock), options).expect("opened");
    Files::new(Arc::new(volume))
}

fn contents(files: &Files, path: &str) -> Option<Vec<u8>> {
    files.read(path).ok()
}

/// The device after the next call, which must find a new state.
fn newer(follower: &mut Follower) -> LogDevice {
    assert!(follower.read_on().expect("asked"), "the volume went on");
    follower.device()
}

fn put(files: &Files, path: &str, contents: &[u8]) {
    files.create(path).expect("created").write_all_at(0, contents).expect("written");
    files.volume().sync().expect("synced");
}

fn made(store: &Arc<InMemory>) -> Files {
    let device = LogDevice::create(&at(store.clone()), GEOMETRY).expect("made");
    mkfs::make(&device, &MkfsOptions::default()).expect("made");
    files_on(Arc::new(device))
}

/// One request while nothing happens, and one for each epoch, which includes the contents of a small one.
#[test]
fn requests_of_a_follower() {
    let store = Arc::new(InMemory::new());
    let files = made(&store);
    put(&files, "/old", &[1; 4096]);
    let mut follower = Follower::open(&at(store.clone())).expect("opened");
    let device = follower.device();
    let counter = device.counter();
    let gets = |since: u64| counter.requests().gets - since;
    let first = files_to_read(device);
    assert_eq!(contents(&first, "/old").expect("there"), [1; 4096]);

    let before = counter.requests();
    assert!(!follower.read_on().expect("asked"));
    assert_eq!(counter.requests(), Requests { gets: before.gets + 1, ..before });

    put(&files, "/new", &[2; 4096]);
    put(&files, "/newer", &[3; 4096]);
    let before = gets(0);
    let device = newer(&mut follower);
    assert_eq!(gets(before), 3, "two records, and none after them");
    let second = files_to_read(device);
    assert_eq!(contents(&second, "/new").expect("there"), [2; 4096]);
    assert_eq!(contents(&second, "/newer").expect("there"), [3; 4096]);
    assert_eq!(contents(&second, "/old").expect("there"), [1; 4096]);
    assert_eq!(gets(before), 3, "the records brought what is new");
    assert_eq!(contents(&first, "/new"), None, "an opened device does not change");

    let before = counter.requests();
    for number in 0..40 {
        put(&files, &format!("/more{number}"), &[4; 100]);
    }
    let device = newer(&mut follower);
    assert_eq!(contents(&files_to_read(device), "/more39").expect("there"), [4; 100]);
    assert!(counter.requests().lists > before.lists, "many records are listed");
    files.close().expect("closed");
}

/// A release and a claim change nothing that is read, and the next writer is followed.
#[test]
pub fn the_next_writer_is_followed() {
    let store = Arc::new(InMemory::new());
    let files = made(&store);
    files.close().expect("closed");
    drop(files);
    let mut follower = Follower::open(&at(store.clone())).expect("opened");
    let device = LogDevice::open(&at(store.clone()), OpenOptions::default()).expect("opened");
    assert!(!follower.read_on().expect("asked"), "a claim changes nothing");
    let files = files_on(Arc::new(device));
    put(&files, "/by-the-next", b"next");
    let device = newer(&mut follower);
    assert_eq!(contents(&files_to_read(device), "/by-the-next").expect("there"), b"next");
}

/// An immediate collection empties the next slot although the log continues. The old device's objects no
/// longer exist, and the follower recovers.
#[test]
pub fn a_follower_that_was_left_behind_finds_the_log_again() {
    let store = Arc::new(InMemory::new());
    let files = made(&store);
    put(&files, "/file", &vec![1; 3_000_000]);
    let mut follower = Follower::open(&at(store.clone())).expect("opened");
    let device = follower.device();
    let old = files_to_read(device);
    for number in 2..6 {
        put(&files, "/file", &vec![number; 3_000_000]);
    }
    files.close().expect("closed");
    drop(files);
    let device = LogDevice::open(&at(store.clone()), OpenOptions::default()).expect("opened");
    assert!(device.collect().expect("collected").objects > 0);
    drop(device);
    let error = old.read("/file").expect_err("it was collected");
    assert!(error.to_string().contains("open the volume again"), "{error}");
    let device = newer(&mut follower);
    assert_eq!(contents(&files_to_read(device), "/file").expect("there"), vec![5; 3_000_000]);
}

/// A record that only enlarges the volume is followed.
#[test]
fn a_volume_that_grows_is_followed() {
    let store = Arc::new(InMemory::new());
    let device = LogDevice::create(&at(store.clone()), GEOMETRY).expect("made");
    write(&device, 0, &[1; 8]);
    device.sync().expect("synced");
    let mut follower = Follower::open(&at(store)).expect("opened");
    device.control().grow(2 * SIZE_BYTES).expect("grown");
    device.sync().expect("synced");
    assert_eq!(newer(&mut follower).geometry().size_bytes, 2 * SIZE_BYTES);
}

/// A writer that rewrites the first block, and collects the old one.
fn rewrite_and_collect(store: &Arc<InMemory>, value: u8) {
    let device = LogDevice::open(&at(store.clone()), OpenOptions::default()).expect("opened");
    for value in [0, value] {
        write(&device, 0, &[value; 8]);
        device.sync().expect("synced");
    }
    assert!(device.collect().expect("collected").objects > 0);
}

/// The next slots are collected, and no deleted object is read: the end of the log is found by the hourly
/// listing.
#[test]
fn the_log_is_listed_hourly() {
    let store = Arc::new(InMemory::new());
    make_zeros(&at(store.clone()), GEOMETRY);
    let mut follower = Follower::open(&at(store.clone())).expect("opened");
    rewrite_and_collect(&store, 7);
    assert!(!follower.read_on().expect("asked"), "claim and release, and an empty slot");
    follower.listed -= LIST_EVERY;
    assert_eq!(read(&newer(&mut follower), 0, 8), [7; 8]);
}

/// Enough records follow for the log to be listed, and a slot among them is collected.
#[test]
fn a_gap_in_a_long_log_is_skipped() {
    let store = Arc::new(InMemory::new());
    make_zeros(&at(store.clone()), GEOMETRY);
    let mut follower = Follower::open(&at(store.clone())).expect("opened");
    for _ in 0..crate::history::AT_ONCE {
        drop(LogDevice::open(&at(store.clone()), OpenOptions::default()).expect("opened"));
    }
    rewrite_and_collect(&store, 7);
    assert_eq!(read(&newer(&mut follower), 0, 8), [7; 8]);
}

#[test]
fn a_version_is_refused_by_followers() {
    let location = located(Arc::new(InMemory::new()), "bucket/volume@monday");
    let error = Follower::open(&location).err().expect("refused").to_string();
    assert_eq!(error, "version monday does not change; to follow the volume, leave out @monday");
}
