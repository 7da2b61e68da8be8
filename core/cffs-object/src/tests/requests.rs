//! Numbers of requests: a store charges for each, and each takes a round trip.

use std::num::NonZeroUsize;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use object_store::throttle::{ThrottleConfig, ThrottledStore};

use super::*;

struct Counted {
    device: Arc<LogDevice>,
    last: Requests,
}

impl Counted {
    fn new(device: LogDevice) -> Counted {
        Counted { last: device.requests(), device: Arc::new(device) }
    }

    /// The requests since the last call.
    fn since(&mut self) -> Requests {
        let now = self.device.requests();
        let last = std::mem::replace(&mut self.last, now);
        Requests {
            puts: now.puts - last.puts,
            gets: now.gets - last.gets,
            lists: now.lists - last.lists,
            deletes: now.deletes - last.deletes,
            ..Requests::default()
        }
    }
}

#[test]
pub fn requests_of_small_files() {
    let store = Arc::new(InMemory::new());
    let device = LogDevice::create(&at(store.clone()), GEOMETRY).expect("made");
    mkfs::make(&device, &MkfsOptions::default()).expect("made");
    drop(device);

    let device = LogDevice::open(&at(store.clone()), OpenOptions::default()).expect("opened");
    let all = device.requests();
    assert!(all.puts <= 1 && all.gets <= 3 && all.lists <= 1, "a claim takes {all:?}");
    let mut counted = Counted::new(device);
    let files = files_on(counted.device.clone());
    files.create("/first").expect("created").write_all_at(0, &[1; 4096]).expect("written");
    files.volume().sync().expect("synced");
    counted.since();

    let file = files.create("/one").expect("created");
    file.write_all_at(0, &[1; 4096]).expect("written");
    files.volume().sync().expect("synced");
    assert_eq!(counted.since(), Requests { puts: 1, ..Requests::default() });

    files.volume().sync().expect("synced");
    assert_eq!(counted.since(), Requests::default(), "a sync of nothing");

    files.make_dir("/d").expect("made");
    for number in 0..1000 {
        let file = files.create(format!("/d/f{number}")).expect("created");
        file.write_all_at(0, &[number as u8; 4096]).expect("written");
    }
    files.volume().sync().expect("synced");
    let made = counted.since();
    assert!(made.puts <= 3 && made.gets == 0, "{made:?}");
    files.close().expect("closed");
    drop((files, counted));

    let device = LogDevice::open(&at(store), READ_ONLY).expect("opened");
    let mut counted = Counted::new(device);
    let files = read_only(counted.device.clone());
    for number in 0..1000 {
        let mut contents = [0; 4096];
        let file = files.open(format!("/d/f{number}")).expect("there");
        assert_eq!(file.read_at(0, &mut contents).expect("read"), 4096);
        assert!(contents.iter().all(|byte| *byte == number as u8));
    }
    let read = counted.since();
    assert!(read.gets <= 8 && read.puts == 0 && read.lists == 0, "{read:?}");
    println!("1,000 files of 4 KiB: {made:?} to make them, {read:?} to read them cold");
}

const DIRS: usize = 20;
const FILES: usize = 1000;

/// A store with a volume of many files that was closed cleanly.
fn with_many_files() -> Arc<InMemory> {
    static MADE: OnceLock<InMemory> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        let store = InMemory::new();
        let geometry = Geometry { size_bytes: 1 << 40, ..GEOMETRY };
        let device = LogDevice::create(&at(Arc::new(store.clone())), geometry).expect("made");
        mkfs::make(&device, &MkfsOptions::default()).expect("made");
        let files = as_mounted(Arc::new(device));
        for dir in 0..DIRS {
            files.make_dir(format!("/d{dir}")).expect("made");
            for number in 0..FILES {
                let file = files.create(format!("/d{dir}/f{number}")).expect("created");
                file.write_all_at(0, &[number as u8; 4096]).expect("written");
            }
        }
        files.close().expect("closed");
        drop(files);
        store
    });
    Arc::new(made.fork())
}

/// Counts the requests of a mount, of reading a file, and of an fsync of the first new one.
#[test]
fn requests_of_a_mount() {
    let store = with_many_files();
    let device = LogDevice::open(&at(store), OpenOptions::default()).expect("opened");
    let mut counted = Counted { last: Requests::default(), device: Arc::new(device) };
    let files = as_mounted(counted.device.clone());
    let mount = counted.since();
    assert!(mount.puts <= 3 && mount.gets <= 8 && mount.lists <= 1, "a mount takes {mount:?}");
    files.read(format!("/d{}/f{}", DIRS / 2, FILES / 2)).expect("there");
    let read = counted.since();
    assert_eq!(read, Requests { gets: 3, ..Requests::default() }, "root, directory, contents");
    let file = files.create("/new").expect("created");
    file.write_all_at(0, &[1; 4096]).expect("written");
    counted.since();
    files.volume().sync().expect("synced");
    assert_eq!(counted.since(), Requests { puts: 1, ..Requests::default() });
    files.close().expect("closed");
}

/// A store with a volume that was made by many epochs and closed cleanly.
fn made_by_many_epochs() -> Arc<InMemory> {
    const EPOCHS: usize = 120;
    let store = Arc::new(InMemory::new());
    let geometry = Geometry { size_bytes: 1 << 40, ..GEOMETRY };
    let device = LogDevice::create(&at(store.clone()), geometry).expect("made");
    mkfs::make(&device, &MkfsOptions::default()).expect("made");
    let mut counted = Counted::new(device);
    let files = as_mounted(counted.device.clone());
    for epoch in 0..EPOCHS {
        files.make_dir(format!("/e{epoch}")).expect("made");
        for number in 0..20 {
            let file = files.create(format!("/e{epoch}/f{number}")).expect("created");
            file.write_all_at(0, &[number as u8; 4096]).expect("written");
        }
        // An additional name changes an inode that is embedded in the root directory.
        files.create(format!("/e{}/late{epoch}", epoch / 2)).expect("created");
        files.volume().sync().expect("synced");
    }
    counted.since();
    files.close().expect("closed");
    let closing = counted.since();
    // The records, a map that is due, the compacted record, the release, its map and the hint.
    assert!(closing.puts <= 9 && closing.gets <= 128, "{closing:?} to close");
    store
}

/// Opening a volume takes few requests, however many epochs wrote it, since the data of each epoch is in one
/// object. Regression: it took 13 requests for the mount, 120 for the first file in the root, and 26 for the
/// thousand.
#[test]
pub fn requests_after_many_epochs() {
    let store = made_by_many_epochs();
    let device = LogDevice::open(&at(store.clone()), OpenOptions::default()).expect("opened");
    let mut counted = Counted { last: Requests::default(), device: Arc::new(device) };
    let files = as_mounted(counted.device.clone());
    let mount = counted.since();
    assert!(mount.puts <= 3 && mount.gets <= 8 && mount.lists <= 1, "a mount takes {mount:?}");
    files.create("/first").expect("created").write_all_at(0, &[1; 4096]).expect("written");
    files.volume().sync().expect("synced");
    let first = counted.since();
    assert!(first.puts == 1 && first.gets <= 4, "{first:?} for the first file");
    files.create("/new").expect("created").write_all_at(0, &[1; 4096]).expect("written");
    files.volume().sync().expect("synced");
    assert_eq!(counted.since(), Requests { puts: 1, ..Requests::default() });
    files.make_dir("/small").expect("made");
    for number in 0..1000 {
        let file = files.create(format!("/small/f{number}")).expect("created");
        file.write_all_at(0, &[number as u8; 4096]).expect("written");
    }
    files.close().expect("closed");
    drop((files, counted));
    let device = LogDevice::open(&at(store), READ_ONLY).expect("opened");
    let mut counted = Counted::new(device);
    let files = read_only(counted.device.clone());
    for number in 0..1000 {
        let contents = files.read(format!("/small/f{number}")).expect("there");
        assert!(contents == [number as u8; 4096], "file {number}");
    }
    let read = counted.since();
    println!("mount {mount:?}, first {first:?}, read {read:?}");
    assert!(read.gets <= 12, "{read:?} to open and read the thousand");
}

/// A mount reads any file by its path with three sequential requests in cold state: for its directory's name,
/// for the directory with any separate parts, and for the contents.
#[test]
fn requests_of_any_one_file() {
    const READERS: u64 = 4;
    const EACH: u64 = 8;
    let rows = thread::scope(|scope| {
        let readers = (0..READERS).map(|reader| {
            scope.spawn(move || {
                let mut numbers = Numbers(reader);
                let rows = (0..EACH).map(|number| {
                    // Each directory is one of them.
                    let dir = (reader * EACH + number) % DIRS as u64;
                    gets_in_a_row(&format!("/d{dir}/f{}", numbers.below(FILES as u64)))
                });
                rows.collect::<Vec<_>>()
            })
        });
        let readers: Vec<_> = readers.collect();
        readers.into_iter().flat_map(|reader| reader.join().expect("read")).collect::<Vec<_>>()
    });
    println!("in a row: {rows:?}");
    // The opening made the first of the three.
    assert!(rows.iter().all(|row| (1..=2).contains(row)), "{rows:?}");
}

fn gets_in_a_row(path: &str) -> u64 {
    let store = Arc::new(FaultStore::over(with_many_files().fork()));
    let device = Arc::new(LogDevice::open(&at(store.clone()), READ_ONLY).expect("opened"));
    let files = read_only(device);
    store.set_delay(Duration::from_millis(150));
    let before = store.gets_in_a_row();
    let contents = files.volume().with_prefetch(2, || files.read(path)).expect("there");
    assert_eq!(contents.len(), 4096);
    store.gets_in_a_row() - before
}

/// Reads all files with several threads, each some consecutive files.
fn scan(files: &Files, readers: usize) {
    const ROW: usize = 200;
    let next = AtomicUsize::new(0);
    let read_rows = || {
        loop {
            let row = next.fetch_add(1, Ordering::Relaxed) * ROW;
            if row >= DIRS * FILES {
                return;
            }
            for number in row..row + ROW {
                let path = format!("/d{}/f{}", number / FILES, number % FILES);
                assert_eq!(files.read(path).expect("there").len(), 4096);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..readers {
            scope.spawn(read_rows);
        }
    });
}

/// A scan by several concurrent programs fetches little more than the contents and the names, even if that
/// exceeds the cache.
#[test]
fn requests_of_a_scan() {
    let config = ThrottleConfig {
        wait_get_per_call: Duration::from_millis(20),
        ..ThrottleConfig::default()
    };
    let store = Arc::new(ThrottledStore::new(with_many_files(), config));
    let mut counted = Counted::new(LogDevice::open(&at(store), READ_ONLY).expect("opened"));
    let files = read_only(counted.device.clone());
    let before = counted.device.requests().received_bytes;
    counted.since();
    files.volume().with_prefetch(2, || scan(&files, 4));
    let read = counted.since();
    let bytes = counted.device.requests().received_bytes - before;
    let contents = (DIRS * FILES * 4096) as u64;
    println!("{read:?}, {:.2} x the contents", bytes as f64 / contents as f64);
    // The number of requests depends on the readers' timing; the number of bytes hardly does.
    assert!(read.gets <= 42, "{read:?}");
    assert!(bytes * 100 <= contents * 120, "{bytes} bytes for {contents}");
}

/// Sequential readers wait for few requests, since several run at a time: for one file, for the directories
/// of a walk, and for batches of files, which `cffs tar` reads.
#[test]
fn sequential_requests_of_a_reader_in_order() {
    const LONG: usize = 64 << 20;
    let store = with_many_files();
    let device = LogDevice::open(&at(store.clone()), OpenOptions::default()).expect("opened");
    let files = as_mounted(Arc::new(device));
    let long = files.create("/long").expect("created");
    long.write_all_at(0, &vec![1; LONG]).expect("written");
    files.close().expect("closed");
    drop((long, files));
    let in_a_row = |read: &dyn Fn(&Files)| {
        let store = Arc::new(FaultStore::over(store.fork()));
        let device = Arc::new(LogDevice::open(&at(store.clone()), READ_ONLY).expect("opened"));
        let files = read_only(device);
        store.set_delay(Duration::from_millis(150));
        let before = store.gets_in_a_row();
        files.volume().with_prefetch(2, || read(&files));
        store.gets_in_a_row() - before
    };
    let of_long = in_a_row(&|files| assert_eq!(files.read("/long").expect("there").len(), LONG));
    let of_walk = in_a_row(&|files| scan(files, 1));
    let of_batches = in_a_row(&|files| {
        let paths: Vec<_> = (0..DIRS * FILES)
            .map(|number| format!("/d{}/f{}", number / FILES, number % FILES))
            .collect();
        for batch in paths.chunks(FILES / 4) {
            files.read_many(batch, NonZeroUsize::MIN, |_, contents| {
                assert_eq!(contents.expect("there").len(), 4096);
            });
        }
    });
    println!("in a row: {of_long} of a long file, {of_walk} of a walk, {of_batches} of batches");
    assert!(of_long <= 9, "{of_long} of a long file");
    assert!(of_walk <= 18, "{of_walk} of a walk");
    assert!(of_batches <= 18, "{of_batches} of batches");
}

/// The files of a volume that is open read-only.
fn read_only(device: Arc<LogDevice>) -> Files {
    let options = cffs::vfs::types::OpenOptions { read_only: true, ..Default::default() };
    let volume = cffs::open(device, Arc::new(SystemClock), options).expect("opened");
    Files::new(Arc::new(volume))
}

/// The files as a mount opens them, with the writer's mark in the superblock.
fn as_mounted(device: Arc<LogDevice>) -> Files {
    let host: Arc<dyn cffs::host::Host> = Arc::new(cffs::host::SystemHost);
    let options = cffs::vfs::types::OpenOptions { host: Some(host), ..Default::default() };
    let volume = cffs::open(device, Arc::new(SystemClock), options).expect("opened");
    Files::new(Arc::new(volume))
}

/// A discard costs as much as its range contains, however large the range is; after a discard of an empty
/// range, a sync sends nothing.
#[test]
fn a_discard_of_a_huge_volume() {
    const HUGE_BYTES: u64 = 1 << 50;
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let geometry = Geometry { size_bytes: HUGE_BYTES, sector_bytes: 4096 };
    let device = LogDevice::create(&at(store), geometry).expect("made");
    device.sync().expect("synced");
    let before = device.requests();
    device.discard(0, HUGE_BYTES).expect("discarded");
    device.sync().expect("synced");
    assert_eq!(device.requests(), before, "nothing was there");

    for at in [0, HUGE_BYTES / 2, HUGE_BYTES - 4096] {
        write(&device, at, &[1; 4096]);
    }
    device.sync().expect("synced");
    let before = device.requests();
    device.discard(0, HUGE_BYTES).expect("discarded");
    device.sync().expect("synced");
    let after = device.requests();
    assert_eq!(Requests { puts: before.puts + 1, sent_bytes: after.sent_bytes, ..before }, after);
    assert!(after.sent_bytes - before.sent_bytes < 4096, "a record without contents");
    assert_eq!(device.extent_count(), 0);
    assert_eq!(read(&device, HUGE_BYTES / 2, 4096), [0; 4096]);
    device.discard(0, HUGE_BYTES).expect("discarded");
    device.sync().expect("synced");
    assert_eq!(device.requests(), after, "nothing is there any more");
}
