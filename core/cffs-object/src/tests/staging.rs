//! Staged syncs: what remains of them after a crash, another writer, and failures of the disk.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use super::paused::PausedStore;
use super::*;
use crate::format::Record;
use crate::local::synced;
use crate::{Backlog, Staging};

const BLOCKS: u64 = 7;
/// More syncs than between two maps.
const SYNCS: u64 = 80;
const WITH_PATIENCE: OpenOptions = OpenOptions { patience: None, ..TAKE_OVER };

pub fn staged(store: Arc<dyn ObjectStore>, directory: &Path) -> Result<Location, Error> {
    Ok(at(store).with_staging(Arc::new(Staging::open(directory)?)))
}

/// Makes the volume, and releases it with a map.
fn made(store: Arc<dyn ObjectStore>) {
    put(&LogDevice::create(&at(store), GEOMETRY).expect("made"), 0);
}

/// Opens the volume like a mount without `-o takeover`.
fn open(store: Arc<dyn ObjectStore>, directory: &Path) -> Result<LogDevice, Error> {
    LogDevice::open(&staged(store, directory)?, OpenOptions::default())
}

fn put(device: &LogDevice, number: u64) {
    write(device, number % BLOCKS * 4096, &number.to_le_bytes());
    device.sync().expect("synced");
}

/// The last number that was put; checks that all earlier ones exist.
fn last(device: &LogDevice) -> u64 {
    let number = |block: u64| {
        u64::from_le_bytes(read(device, block * 4096, 8).try_into().expect("eight bytes"))
    };
    let numbers: Vec<u64> = (0..BLOCKS).map(number).collect();
    let last = *numbers.iter().max().expect("there are blocks");
    for (block, number) in (0..BLOCKS).zip(numbers) {
        let expected = (last.saturating_sub(BLOCKS - 1)..=last).find(|one| one % BLOCKS == block);
        assert_eq!(number, expected.unwrap_or(0), "block {block} when {last} is there");
    }
    last
}

pub fn copied(from: &Path, to: PathBuf) -> PathBuf {
    fs::create_dir(&to).expect("made");
    fs::set_permissions(&to, fs::Permissions::from_mode(0o700)).expect("set");
    for entry in fs::read_dir(from).expect("listed") {
        let path = entry.expect("listed").path();
        // It may have been sent meanwhile.
        let _ = fs::copy(&path, to.join(path.file_name().expect("a name")));
    }
    to
}

fn records(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let is_record = |path: &PathBuf| path.file_name().is_some_and(|name| name.len() >= 20);
    let mut records: Vec<_> = entries.map(|entry| entry.path()).filter(is_record).collect();
    records.sort();
    records
}

/// A volume with staged syncs, as a machine that stops leaves it: the store and the directory.
fn stopped(syncs: u64, waiting: u64, scratch: &Path) -> (Arc<InMemory>, PathBuf) {
    let store = Arc::new(InMemory::new());
    made(store.clone());
    let (paused, reached, let_go) = PausedStore::new(store.clone());
    let paused = Arc::new(paused);
    let directory = scratch.join("staging");
    let device = open(paused.clone(), &directory).expect("opened");
    for number in 1..=syncs {
        put(&device, number);
    }
    device.collect().expect("all is sent");
    if waiting > 0 {
        paused.pause();
        (syncs + 1..=syncs + waiting).for_each(|number| put(&device, number));
        reached.recv().expect("it waits");
    }
    let left = (Arc::new(store.fork()), copied(&directory, scratch.join("left")));
    assert_eq!(records(&left.1).len() as u64, waiting);
    if waiting > 0 {
        let_go.send(()).expect("it waits");
    }
    drop(device);
    assert!(records(&directory).is_empty(), "a release waits until all is sent");
    assert_eq!(last(&LogDevice::open(&at(store), READ_ONLY).expect("opened")), syncs + waiting);
    left
}

/// The machine stops after any sync, after any faults of requests: with the directory, all acknowledged syncs
/// survive; without it, the volume has the complete state of some sync.
#[test]
pub fn a_crash_keeps_what_was_acknowledged() {
    let mut behind = 0;
    for seed in 0..4 {
        let scratch = tempfile::tempdir().expect("made");
        let store = Arc::new(FaultStore::new());
        made(store.clone());
        let directory = scratch.path().join("staging");
        let device = open(store.clone(), &directory).expect("opened");
        store.set_chance(seed, 20);
        for number in 1..=SYNCS {
            put(&device, number);
            let left = copied(&directory, scratch.path().join(format!("{number}")));
            let image = store.image();
            let taken = LogDevice::open(&in_memory(&image), TAKE_OVER).expect("claimed");
            behind += u64::from(last(&taken) < number);
            assert!(last(&taken) <= number);
            let next = open(Arc::new(image.fork()), &left).expect("opened, and not taken over");
            assert_eq!(last(&next), number, "seed {seed}");
            assert!(records(&left).is_empty(), "what is sent is removed");
            put(&next, number + 1);
            drop(next);
            let reader = LogDevice::open(&in_memory(&image), READ_ONLY).expect("opened");
            assert!(last(&reader) <= number, "of the image nothing has changed");
            fs::remove_dir_all(left).expect("removed");
        }
        store.mend();
        device.release().expect("released");
        let reader = LogDevice::open(&at(store), READ_ONLY).expect("opened");
        assert_eq!(last(&reader), SYNCS, "seed {seed}");
    }
    println!("{behind} of {} syncs were ahead of the store", 4 * SYNCS);
    assert!(behind > 0, "nothing waits");
}

/// A staged record that memory no longer has is read from the local disk.
#[test]
pub fn staged_records_can_be_read() {
    let scratch = tempfile::tempdir().expect("made");
    let store = Arc::new(InMemory::new());
    made(store.clone());
    let (paused, reached, let_go) = PausedStore::new(store);
    let paused = Arc::new(paused);
    let staging = Arc::new(Staging::open(&scratch.path().join("staging")).expect("made"));
    let location = at(paused.clone()).with_staging(staging.clone());
    let device = LogDevice::open(&location, OpenOptions::default()).expect("opened");
    let contents: Vec<u8> = (0..5 << 20).map(|at: u32| (at / 4096 * 3 + at % 251) as u8).collect();
    paused.pause();
    write(&device, 4096, &contents);
    device.sync().expect("synced");
    reached.recv().expect("it waits");
    let bytes = records(&scratch.path().join("staging"))
        .iter()
        .map(|path| fs::metadata(path).expect("there").len() - 4)
        .sum();
    assert_eq!(staging.backlog(), Backlog { records: 1, bytes });
    assert!(bytes > contents.len() as u64);
    let before = device.requests();
    assert!(read(&device, 4096, contents.len()) == contents);
    assert_eq!(device.requests(), before, "nothing is asked for");
    let_go.send(()).expect("it waits");
    device.release().expect("released");
    assert_eq!(staging.backlog(), Backlog::default());
    assert!(read(&device, 4096, contents.len()) == contents);
}

/// Another program takes the volume over while syncs are staged: they are rejected, and no later one
/// succeeds.
#[test]
pub fn records_from_before_a_takeover_are_rejected() {
    let scratch = tempfile::tempdir().expect("made");
    let store = Arc::new(InMemory::new());
    made(store.clone());
    let (paused, reached, let_go) = PausedStore::new(store.clone());
    let paused = Arc::new(paused);
    let directory = scratch.path().join("staging");
    let device = open(paused.clone(), &directory).expect("opened");
    put(&device, 1);
    device.collect().expect("it is sent");
    paused.pause();
    (2..=4).for_each(|number| put(&device, number));
    reached.recv().expect("it waits");
    let left = copied(&directory, scratch.path().join("left"));
    let other = LogDevice::open(&at(store.clone()), WITH_PATIENCE).expect("claimed");
    assert_eq!(last(&other), 1);
    put(&other, 2);
    put(&other, 3);
    let_go.send(()).expect("it waits");
    // A collection first sends the staged records, which fails here.
    write(&device, 0, b"more");
    let error = device.collect().expect_err("taken over").to_string();
    let aside = directory.join("rejected");
    for part in ["took the volume over", "acknowledged", &aside.display().to_string()] {
        assert!(error.contains(part), "{error}");
    }
    device.sync().expect_err("nothing is acknowledged any more");
    assert!(records(&aside).len() >= 3 && records(&directory).is_empty());
    drop(device);

    // The same after a crash, and after the other program has collected its records: claims stay.
    other.collect().expect("collected");
    drop(other);
    let refused = open(store.clone(), &left).map(drop).expect_err("rejected");
    assert!(matches!(refused, Error::Rejected { records: 3, .. }), "{refused}");
    assert_eq!(records(&left.join("rejected")).len(), 3);
    let next = open(store, &left).expect("the next goes on without them");
    assert_eq!(last(&next), 3);
}

/// A listing may lack the last records sent: records staged after them were not overtaken.
#[test]
pub fn lagging_listings_reject_nothing() {
    let mut lagged = 0;
    for seed in 0..8 {
        let scratch = tempfile::tempdir().expect("made");
        let store = Arc::new(FaultStore::new());
        made(store.clone());
        let (paused, reached, let_go) = PausedStore::new(store.clone());
        let paused = Arc::new(paused);
        let directory = scratch.path().join("staging");
        let device = open(paused.clone(), &directory).expect("opened");
        store.set_chance(seed, 0);
        store.have_listings_lag();
        (1..=SENT).for_each(|number| put(&device, number));
        let sent = || LogDevice::open(&in_memory(&store.image()), READ_ONLY).map(|it| last(&it));
        let began = Instant::now();
        while sent().expect("opened") < SENT {
            assert!(began.elapsed() < Duration::from_secs(60), "it is not sent");
            thread::sleep(Duration::from_millis(1));
        }
        paused.pause();
        (SENT + 1..=LAST).for_each(|number| put(&device, number));
        reached.recv().expect("it waits");
        let left = copied(&directory, scratch.path().join("left"));
        let next = open(store.clone(), &left);
        let_go.send(()).expect("it waits");
        assert_eq!(last(&next.expect("opened")), LAST);
        assert!(records(&left).is_empty() && !left.join("rejected").exists());
        lagged += store.mend().get(&Fault::Lagging).map_or(0, |times| *times);
    }
    assert!(lagged > 0, "all listings were whole");
}

/// A volume whose staged records are not sent before `let_go`.
struct Waiting {
    store: Arc<FaultStore>,
    let_go: mpsc::Sender<()>,
    device: LogDevice,
    directory: PathBuf,
}

/// The last sync that was sent.
const SENT: u64 = 3;
/// The last sync.
const LAST: u64 = 6;

fn waiting(scratch: &Path) -> Waiting {
    let store = Arc::new(FaultStore::new());
    made(store.clone());
    let (paused, reached, let_go) = PausedStore::new(store.clone());
    let paused = Arc::new(paused);
    let directory = scratch.join("staging");
    let device = open(paused.clone(), &directory).expect("opened");
    let elsewhere = LogDevice::open(&in_memory(&store.image()), OpenOptions::default()).map(drop);
    assert!(matches!(elsewhere, Err(Error::Claimed { is_staging: true, .. })), "{elsewhere:?}");
    (1..=SENT).for_each(|number| put(&device, number));
    device.collect().expect("all is sent");
    paused.pause();
    (SENT + 1..=LAST).for_each(|number| put(&device, number));
    reached.recv().expect("it waits");
    Waiting { store, let_go, device, directory }
}

/// The contents of the store while syncs are staged and `act` runs: at its beginning, and after each change.
fn images_amid(waiting: &Waiting, act: impl Fn(&LogDevice) + Sync) -> Vec<InMemory> {
    let Waiting { store, let_go, device, .. } = waiting;
    store.keep_images();
    thread::scope(|scope| {
        let acting = scope.spawn(|| act(device));
        // By then, anything that does not wait for earlier records has reached the store.
        let began = Instant::now();
        while store.images().len() == 1 && began.elapsed() < Duration::from_millis(500) {
            thread::sleep(Duration::from_millis(10));
        }
        let_go.send(()).expect("it waits");
        acting.join().expect("no panic");
    });
    store.images()
}

/// The machine stops during a release or a collection, while syncs are staged. Another machine finds the
/// state of some sync in the store, and is told that more may be staged elsewhere; with the directory
/// everything is intact, or the error names the records that another program has overtaken.
#[test]
pub fn a_crash_of_a_release_or_collection_leaves_the_state_of_some_sync() {
    let release = |device: &LogDevice| device.release().expect("released");
    let collect = |device: &LogDevice| drop(device.collect().expect("collected"));
    for (is_release, act) in [(true, &release as &(dyn Fn(&LogDevice) + Sync)), (false, &collect)] {
        let scratch = tempfile::tempdir().expect("made");
        let waiting = waiting(scratch.path());
        let left = copied(&waiting.directory, scratch.path().join("left"));
        let images = images_amid(&waiting, act);
        assert!(records(&waiting.directory).is_empty());
        let (mut refused, mut all_sent) = (0, 0);
        for (state, image) in images.iter().enumerate() {
            let copy = |name| copied(&left, scratch.path().join(format!("{name}{state}")));
            let reader = LogDevice::open(&in_memory(image), READ_ONLY).expect("there is no gap");
            let sent = last(&reader);
            assert!((SENT..=LAST).contains(&sent), "{sent} in state {state}");
            all_sent += u64::from(sent == LAST);
            match LogDevice::open(&in_memory(image), OpenOptions::default()) {
                Ok(device) => assert_eq!((last(&device), is_release), (LAST, true)),
                Err(error) => {
                    assert!(matches!(error, Error::Claimed { is_staging: true, .. }), "{error}");
                    assert!(error.to_string().contains("has a staging directory"), "{error}");
                    refused += 1;
                }
            }
            let next = open(Arc::new(image.fork()), &copy("next")).expect("not taken over");
            assert_eq!(last(&next), LAST, "state {state}");

            let taken = Arc::new(image.fork());
            let other = LogDevice::open(&at(taken.clone()), TAKE_OVER).expect("claimed");
            assert_eq!(last(&other), sent, "state {state}");
            put(&other, sent + 1);
            drop(other);
            match open(taken, &copy("taken")) {
                Ok(device) => assert_eq!((last(&device), sent), (LAST + 1, LAST), "{state}"),
                Err(Error::Rejected { records, .. }) => assert_eq!(records as u64, LAST - sent),
                Err(error) => panic!("{error}"),
            }
        }
        assert!(refused > LAST - SENT && all_sent > 1, "{refused} {all_sent}");
    }
}

#[test]
fn an_old_or_damaged_staging_directory_loses_no_sent_record() {
    let temporary = tempfile::tempdir().expect("made");
    let sub = |name: &str| {
        let path = temporary.path().join(name);
        fs::create_dir(&path).expect("made");
        path
    };
    // Files whose removal was not durable, while the volume was changed further and collected.
    let scratch = sub("old");
    let (store, left) = stopped(5, 3, &scratch);
    let old = copied(&left, scratch.join("old"));
    let device = open(store.clone(), &left).expect("opened");
    assert_eq!(last(&device), 8);
    (9..30).for_each(|number| put(&device, number));
    device.collect().expect("collected");
    drop(device);
    let device = open(store, &old).expect("opened");
    assert_eq!((last(&device), records(&old)), (29, Vec::new()));

    // The last file was being written; an earlier one is damaged.
    for (damaged, expected) in [(2, Some(7)), (0, None)] {
        let scratch = sub(&format!("damaged{damaged}"));
        let (store, left) = stopped(5, 3, &scratch);
        let path = &records(&left)[damaged];
        let mut bytes = fs::read(path).expect("read");
        bytes[100] ^= 1;
        fs::write(path, bytes).expect("written");
        let opened = open(store.clone(), &left).map(|device| last(&device));
        match expected {
            Some(_) => assert_eq!(opened.ok(), expected),
            None => {
                let error = opened.expect_err("damaged").to_string();
                assert!(error.contains("is damaged") && error.contains("3 in all"), "{error}");
                assert_eq!(records(&left.join("rejected")).len(), 3);
            }
        }
    }

    // A directory of another volume: nothing in it is changed.
    let (_, left) = stopped(1, 2, &sub("other"));
    let (store, _) = stopped(1, 0, &sub("this"));
    let error = open(store, &left).map(drop).expect_err("another volume").to_string();
    assert!(error.contains("of another volume"), "{error}");
    assert_eq!(records(&left).len(), 2);
}

/// A record that the local disk does not accept is in the store when the sync returns.
#[test]
fn a_sync_waits_for_the_store_if_the_local_disk_accepts_nothing() {
    let scratch = tempfile::tempdir().expect("made");
    let (store, left) = stopped(2, 0, scratch.path());
    let device = open(store.clone(), &left).expect("opened");
    for slot in 0..100 {
        fs::create_dir(left.join(format!("{slot:020}"))).expect("made");
    }
    for number in 3..6 {
        put(&device, number);
        let reader = LogDevice::open(&at(store.clone()), READ_ONLY).expect("opened");
        assert_eq!(last(&reader), number);
    }
}

#[test]
fn a_directory_belongs_to_one_program_of_one_user() {
    let scratch = tempfile::tempdir().expect("made");
    let directory = scratch.path().join("staging");
    let first = Staging::open(&directory).expect("made");
    let error = Staging::open(&directory).map(drop).expect_err("in use").to_string();
    assert!(error.contains("another program uses it"), "{error}");
    drop(first);
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o750)).expect("set");
    let error = Staging::open(&directory).map(drop).expect_err("open to others").to_string();
    assert!(error.contains("chmod 700"), "{error}");
}

/// Regression: when the local disk was full, the next sync went to the store at once, before the staged ones.
/// If the program had ended then, the log would have had a gap.
#[test]
pub fn a_full_local_disk_keeps_the_order() {
    let scratch = tempfile::tempdir().expect("made");
    let store = Arc::new(FaultStore::new());
    made(store.clone());
    let directory = scratch.path().join("staging");
    let device = open(store.clone(), &directory).expect("opened");
    let slot = next_slot(&store);
    store.keep_images();
    store.lose_puts(&crate::format::record_name(slot), 3);
    put(&device, 1);
    for taken in slot + 1..slot + 10 {
        fs::create_dir(directory.join(format!("{taken:020}"))).expect("made");
    }
    put(&device, 2);
    for image in store.images() {
        let reader = LogDevice::open(&in_memory(&image), READ_ONLY).expect("the log has no gap");
        assert!(last(&reader) <= 2);
    }
    assert_eq!(last(&LogDevice::open(&at(store), READ_ONLY).expect("opened")), 2);
}

/// The first free slot of the log.
fn next_slot(store: &FaultStore) -> u64 {
    let names = super::collection::objects(store);
    let slots = names.iter().filter_map(|(name, _)| name.split_once("/log/")?.1.parse().ok());
    slots.max().map_or(1, |last: u64| last + 1)
}

/// An acknowledged sync has its record on the disk and then the directory entry, in this order.
#[test]
fn staged_records_are_durable() {
    let inode = |path: &Path| fs::metadata(path).expect("there").ino();
    let scratch = tempfile::tempdir().expect("made");
    let directory = scratch.path().join("staging");
    let staging = Staging::open(&directory).expect("made");
    synced::take();
    staging.note_claim(&[1; 16], 3).expect("noted");
    assert_eq!(synced::take(), [inode(&directory.join("claim")), inode(&directory)]);
    staging.put(4, b"a record").expect("staged");
    assert_eq!(synced::take(), [inode(&directory.join(format!("{:020}", 4))), inode(&directory)]);
    staging.reject(&[4], 4);
    assert_eq!(synced::take(), [inode(&directory.join("rejected")), inode(&directory)]);
}

/// A staged record whose slot is free does not follow the last record in the store: the directory belongs to
/// another history. The record is rejected, and not sent.
#[test]
fn a_record_that_does_not_follow_is_rejected() {
    let scratch = tempfile::tempdir().expect("made");
    let (store, left) = stopped(5, 1, scratch.path());
    let path = records(&left).remove(0);
    let bytes = fs::read(&path).expect("read");
    let record = &bytes[..bytes.len() - 4];
    let (mut head, _) = Record::decode(record).expect("whole");
    head.previous ^= 1;
    let (mut other, _) = head.encode();
    other.extend_from_slice(&record[other.len()..]);
    other.extend_from_slice(&crc32c::crc32c(&other).to_le_bytes());
    fs::write(&path, other).expect("written");
    let before = super::collection::objects(&*store);
    let error = open(store.clone(), &left).map(drop).expect_err("of another past");
    assert!(matches!(error, Error::Rejected { records: 1, .. }), "{error}");
    assert_eq!(super::collection::objects(&*store), before, "nothing was sent");
    assert_eq!(last(&open(store, &left).expect("opened")), 5);
}
