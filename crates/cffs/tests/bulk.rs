//! Many files at once: read in the order of the device, whatever the order in which they are asked for.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use cffs::clock::SystemClock;
use cffs::device::{MemoryDevice, TraceDevice};
use cffs::error::Error;
use cffs::files::Files;
use cffs::vfs::types::OpenOptions;

const FILES: usize = 4_000;
const FILE_BYTES: usize = 8 << 10;

type Device = Arc<TraceDevice<MemoryDevice>>;

/// A volume with 32 MiB of files in 20 directories.
fn filled() -> Device {
    let device = Arc::new(TraceDevice::new(MemoryDevice::new(128 << 20)));
    cffs::mkfs::make(&device, &Default::default()).expect("a volume");
    let files = open(&device);
    for directory in 0..20 {
        files.make_dir(format!("/{directory}")).expect("made");
    }
    for number in 0..FILES {
        files.write(path(number), &vec![number as u8; FILE_BYTES]).expect("written");
    }
    files.close().expect("durable");
    device
}

fn path(number: usize) -> String {
    format!("/{}/f{number}", number % 20)
}

/// With a cache of an eighth of the files.
fn open(device: &Device) -> Files {
    let options = OpenOptions { cache_bytes: 4 << 20, ..OpenOptions::default() };
    let volume = cffs::open(device.clone(), Arc::new(SystemClock), options).expect("it opens");
    Files::new(Arc::new(volume))
}

/// All paths in an order that has nothing to do with that of the device.
fn shuffled() -> Vec<String> {
    (0..FILES).map(|number| path(number * 2_477 % FILES)).collect()
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

/// Batches of a set that is eight times as large as the cache: what is read for one is not evicted before
/// it is used.
#[test]
fn batches_of_a_large_set_are_swept() {
    let device = filled();
    let files = open(&device);
    let before = device.counts();
    for batch in shuffled().chunks(100) {
        files.read_many(batch, NonZeroUsize::MIN, |_, contents| {
            assert_eq!(contents.expect("read").len(), FILE_BYTES);
        });
    }
    let read = device.counts() - before;
    assert!(read.reads * 3 < FILES as u64 * 2, "{read:?}");
}

#[test]
fn what_cannot_be_read_keeps_nothing_else_back() {
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
