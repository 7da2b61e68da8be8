//! Reading many files in one call: in device order, whatever the order in the request.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use cffs::clock::SystemClock;
use cffs::device::{MemoryDevice, TraceDevice};
use cffs::error::Error;
use cffs::files::Files;
use cffs::vfs::Caller;
use cffs::vfs::types::{AllocateMode, OpenOptions};

const FILES: usize = 4_000;
const FILE_BYTES: usize = 8 << 10;
/// Files so large that those of a batch are far apart.
const LARGE_FILES: usize = 1_000;
const LARGE_FILE_BYTES: usize = 100 << 10;

type Device = Arc<TraceDevice<MemoryDevice>>;

/// A volume with 32 MiB of files in 20 directories.
fn filled() -> Device {
    filled_with(FILES, FILE_BYTES)
}

fn filled_with(count: usize, file_bytes: usize) -> Device {
    let device = Arc::new(TraceDevice::new(MemoryDevice::new(128 << 20)));
    cffs::mkfs::make(&device, &Default::default()).expect("a volume");
    let files = open(&device);
    for directory in 0..20 {
        files.make_dir(format!("/{directory}")).expect("made");
    }
    for number in 0..count {
        files.write(path(number), &vec![number as u8; file_bytes]).expect("written");
    }
    files.close().expect("durable");
    device
}

fn path(number: usize) -> String {
    format!("/{}/f{number}", number % 20)
}

/// Opens the volume with a cache of an eighth of the files.
fn open(device: &Device) -> Files {
    open_with(device, 4 << 20)
}

fn open_with(device: &Device, cache_bytes: u64) -> Files {
    let options = OpenOptions { cache_bytes, ..OpenOptions::default() };
    let volume = cffs::open(device.clone(), Arc::new(SystemClock), options).expect("it opens");
    Files::new(Arc::new(volume))
}

/// All paths, in an order unrelated to that on the device.
fn shuffled() -> Vec<String> {
    shuffled_of(FILES)
}

fn shuffled_of(count: usize) -> Vec<String> {
    (0..count).map(|number| path(number * 2_477 % count)).collect()
}

#[test]
fn a_shuffled_batch_takes_the_requests_of_a_scan() {
    let device = filled();
    let paths = shuffled();

    let files = open(&device);
    let before = device.counts();
    for path in &paths {
        assert_eq!(files.read(path).expect("read").len(), FILE_BYTES);
    }
    let one_by_one = (device.counts() - before).reads;

    for threads in [1, 4] {
        let files = open(&device);
        let before = device.counts();
        let read = Mutex::new(HashMap::new());
        let threads = NonZeroUsize::new(threads).expect("some");
        files.read_many(&paths, threads, |position, contents| {
            let contents = contents.expect("read");
            assert_eq!(contents.len(), FILE_BYTES);
            read.lock().expect("sound").insert(position, contents[0]);
        });
        let together = (device.counts() - before).reads;
        assert!(together * 4 < one_by_one, "{together} requests, {one_by_one} one by one");
        let read = read.into_inner().expect("sound");
        assert_eq!(read.len(), FILES);
        let is_right =
            |(position, first): (&usize, &u8)| *first == (*position * 2_477 % FILES) as u8;
        assert!(read.iter().all(is_right), "a file's contents came with another's position");
    }
}

/// Batches from a set eight times as large as the cache: data read for one is not evicted before it is used.
#[test]
fn batches_of_a_large_set_are_swept() {
    let device = filled();
    let files = open(&device);
    let before = device.counts();
    read_batches(&files, &shuffled(), 100);
    let read = device.counts() - before;
    assert!(read.reads * 3 < FILES as u64 * 2, "{read:?}");
}

fn read_batches(files: &Files, paths: &[String], batch: usize) {
    for batch in paths.chunks(batch) {
        files.read_many(batch, NonZeroUsize::MIN, |_, contents| assert!(contents.is_ok()));
    }
}

/// If the whole volume fits into the cache, batches read the directories of their files completely, and later
/// batches find them there; a batch of few files reads little else.
#[test]
fn batches_of_a_set_that_fits_read_it_once_and_a_few_files_read_little() {
    let device = filled_with(LARGE_FILES, LARGE_FILE_BYTES);
    let set_bytes = (LARGE_FILES * LARGE_FILE_BYTES) as u64;
    let paths = shuffled_of(LARGE_FILES);
    let files = open_with(&device, 256 << 20);
    let before = device.counts();
    read_batches(&files, &paths, 100);
    let read = device.counts() - before;
    // Reading by regions alone would read a quarter more than the set.
    assert!(read.reads < 100 && read.read_bytes < set_bytes * 9 / 8, "{read:?}");
    let before = device.counts();
    read_batches(&files, &paths, 100);
    assert_eq!((device.counts() - before).reads, 0, "it was read already");

    let files = open_with(&device, 256 << 20);
    let before = device.counts();
    read_batches(&files, &paths[..4], 4);
    let read = device.counts() - before;
    assert!(read.read_bytes < 5 << 20, "{read:?}");
}

#[test]
fn an_unreadable_file_does_not_keep_others_back() {
    let files = open(&filled());
    let paths = ["/1/f1", "/missing", "/1", "/2/f2", "/1/f1"];
    let seen = Mutex::new(Vec::new());
    files.read_many(&paths, NonZeroUsize::MIN, |position, contents| {
        let outcome = match contents {
            Ok(contents) => contents.len(),
            Err(Error::NotFound) => 1,
            Err(Error::IsDirectory) => 2,
            Err(error) => panic!("{error}"),
        };
        seen.lock().expect("sound").push((position, outcome));
    });
    let mut seen = seen.into_inner().expect("sound");
    seen.sort_unstable();
    let whole = FILE_BYTES;
    assert_eq!(seen, [(0, whole), (1, 1), (2, 2), (3, whole), (4, whole)]);
    files.read_many(&[""; 0], NonZeroUsize::MIN, |_, _| panic!("nothing was asked for"));
}

/// Other threads may change and remove a file between the opening of a batch and the reading of the file.
#[test]
fn files_of_a_batch_are_read_as_they_are_by_then() {
    let files = open(&Arc::new(TraceDevice::new(made(16 << 20))));
    for name in ["/grows", "/shrinks", "/goes", "/stays"] {
        files.write(name, &[1; 5000]).expect("written");
    }
    let paths = ["/stays", "/goes", "/shrinks", "/grows", "/missing"];
    let (batch, missed) = files.batch(&paths);
    assert!(matches!(missed[..], [(4, Error::NotFound)]), "{missed:?}");
    let mut sizes: Vec<(usize, u64)> = batch.sizes().collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [(0, 5000), (1, 5000), (2, 5000), (3, 5000)]);

    files.write("/grows", &[2; 3 << 20]).expect("written");
    files.write("/shrinks", &[3; 7]).expect("written");
    files.remove_file("/goes").expect("removed");
    let read = Mutex::new(HashMap::new());
    let two = NonZeroUsize::new(2).expect("some");
    let number = std::sync::atomic::AtomicUsize::new(0);
    let next = || number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    batch.read(two, next, |own, position, file| {
        assert!(*own < 2, "each thread has what was made for it");
        let mut contents = Vec::new();
        file.read_pieces(&mut |piece| contents.extend_from_slice(piece)).expect("read");
        assert_eq!(contents, file.contents().expect("read"), "{position}");
        read.lock().expect("sound").insert(position, contents);
        true
    });
    let read = read.into_inner().expect("sound");
    assert_eq!(read[&0], [1; 5000]);
    assert_eq!(read[&1], [1; 5000], "an open file is there without a name");
    assert_eq!(read[&2], [3; 7]);
    assert!(read[&3] == vec![2; 3 << 20]);
}

/// Regression: a reader that stopped early was still given the whole batch.
#[test]
fn a_batch_ends_when_its_reader_stops() {
    let files = open(&Arc::new(TraceDevice::new(made(16 << 20))));
    let paths: Vec<String> = (0..100).map(|number| format!("/{number}")).collect();
    for path in &paths {
        files.write(path, path.as_bytes()).expect("written");
    }
    let (batch, _) = files.batch(&paths);
    let visits = std::sync::atomic::AtomicUsize::new(0);
    batch.read(
        NonZeroUsize::MIN,
        || (),
        |(), _, _| visits.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < 2,
    );
    assert_eq!(visits.into_inner(), 3);
}

/// Contents in memory and on the device, holes, allocated but unwritten space, and a short end are returned
/// correctly in pieces, from any offset on.
#[test]
fn pieces_are_the_contents() {
    let files = open(&Arc::new(TraceDevice::new(made(16 << 20))));
    let volume = files.volume();
    let file = files.create("/f").expect("made");
    let mut expected = vec![0; 300_123];
    let mut put = |at: usize, len: usize, byte: u8| {
        file.write_all_at(at as u64, &vec![byte; len]).expect("written");
        expected[at..at + len].fill(byte);
    };
    put(1_000, 9_000, 1);
    put(100_000, 20_000, 2);
    put(300_000, 123, 3);
    let ino = file.node().ino();
    volume
        .allocate(&Caller::ROOT, ino, 200_000, 30_000, AllocateMode::ReserveKeepSize)
        .expect("reserved");
    volume.sync().expect("durable");
    put(5_000, 1, 4);
    put(110_000, 5_000, 5);
    put(210_000, 3, 6);
    for (at, len) in [(0, 1 << 20), (0, 300_123), (4_097, 99_000), (99_999, 2), (299_999, 500)] {
        let mut found = Vec::new();
        let mut take = |piece: &[u8]| found.extend_from_slice(piece);
        let read =
            volume.read_pieces(ino, at, len, cffs::vfs::Access::Noted, &mut take).expect("read");
        let end = expected.len().min(at as usize + len);
        assert!(found == expected[at as usize..end], "{len} bytes at {at}");
        assert_eq!(read, found.len());
        let mut whole = vec![7; len];
        assert_eq!(volume.read(ino, at, &mut whole).expect("read"), read);
        assert!(whole[..read] == found[..] && whole[read..].iter().all(|byte| *byte == 7));
    }
    let mut none = |_: &[u8]| panic!("there is nothing after the end");
    assert_eq!(
        volume.read_pieces(ino, 300_123, 1, cffs::vfs::Access::Noted, &mut none).expect("read"),
        0
    );
}

/// Contents in which each part differs from its neighbours.
fn uneven(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 512 * 37 + at + seed * 101) as u8).collect()
}

/// Long files, of which only some blocks are looked up at once, and short files that share blocks are
/// returned completely, with their positions, from the device and from memory; and the second batch sees
/// writes made after the first.
#[test]
fn contents_are_returned_completely() {
    let device = Arc::new(TraceDevice::new(made(32 << 20)));
    let lens = [131_072, 131_073, 400_123, 1, 1_023, 1_500, 2_500, 5_000, 140_000, 700];
    let paths: Vec<String> = (0..lens.len()).map(|number| format!("/f{number}")).collect();
    let write = |files: &Files, seed: usize| {
        for (number, path) in paths.iter().enumerate() {
            files.write(path, &uneven(lens[number], seed + number)).expect("written");
        }
    };
    let check = |files: &Files, seed: usize, when: &str| {
        let backwards: Vec<&String> = paths.iter().rev().collect();
        for threads in [1, 3] {
            let threads = NonZeroUsize::new(threads).expect("some");
            files.read_many(&backwards, threads, |position, contents| {
                let number = lens.len() - 1 - position;
                let expected = uneven(lens[number], seed + number);
                assert!(contents.expect("read") == expected, "{when}: {}", lens[number]);
            });
        }
        for (number, path) in paths.iter().enumerate() {
            let expected = uneven(lens[number], seed + number);
            assert!(files.read(path).expect("read") == expected, "{when}: {path}");
            let (at, len) = (lens[number] / 3, lens[number] / 2);
            let mut part = vec![0; len];
            files.open(path).and_then(|file| file.read_at(at as u64, &mut part)).expect("read");
            assert!(part == expected[at..at + len], "{when}: {len} bytes at {at} of {path}");
        }
    };
    let files = open(&device);
    write(&files, 0);
    check(&files, 0, "not yet on the device");
    files.close().expect("closed");
    let files = open(&device);
    check(&files, 0, "from the device");
    check(&files, 0, "from memory");
    write(&files, 50);
    check(&files, 50, "rewritten");
    files.volume().sync().expect("durable");
    check(&files, 50, "rewritten, and durable");
    files.close().expect("closed");
    check(&open(&device), 50, "after all");
}

fn made(bytes: u64) -> MemoryDevice {
    let device = MemoryDevice::new(bytes);
    cffs::mkfs::make(&device, &Default::default()).expect("a volume");
    device
}
