//! The cache on a local disk: the requests it saves, its size, and damaged files.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;

use super::*;
use crate::cache::SIZE_BYTES_MIN;
use crate::format::{CHUNK_BYTES, Object};
use crate::{DiskCache, Follower};

const VOLUME: [u8; 16] = [7; 16];
const OTHER: [u8; 16] = [8; 16];
const CHUNK: usize = CHUNK_BYTES as usize;

fn cache_in(directory: &Path, size_bytes: u64) -> DiskCache {
    DiskCache::open(directory, size_bytes).expect("opened")
}

fn chunk_of(number: u64) -> Vec<u8> {
    (0..CHUNK as u64).map(|at| (at * 31 + number * 7 + at / 251) as u8).collect()
}

fn key(number: u64) -> (Object, u64) {
    (Object::data(3, number, 0), number % 5)
}

/// The files of chunks, and the bytes of these and all other files.
fn files_in(directory: &Path) -> (Vec<PathBuf>, u64) {
    let mut files = Vec::new();
    let mut bytes = 0;
    for entry in fs::read_dir(directory).expect("there") {
        let path = entry.expect("read").path();
        if path.is_dir() {
            for file in fs::read_dir(path).expect("there") {
                files.push(file.expect("read").path());
            }
        } else if path.file_name().is_some_and(|name| name == "adding") {
            bytes += fs::metadata(path).map_or(0, |there| there.blocks() * 512);
        }
    }
    // A file may be removed meanwhile.
    bytes += files
        .iter()
        .map(|file| fs::metadata(file).map_or(0, |there| there.blocks() * 512))
        .sum::<u64>();
    (files, bytes)
}

/// The contents of a volume, which occupy several objects.
fn contents_of(seed: u64) -> Vec<u8> {
    (0..12 << 20).map(|at: u64| (at / 4096 * 5 + at % 253 + seed) as u8).collect()
}

fn made(store: &Arc<dyn ObjectStore>, seed: u64) -> Location {
    let location = at(store.clone());
    let device = LogDevice::create(&location, GEOMETRY).expect("made");
    write(&device, 0, &contents_of(seed));
    device.sync().expect("synced");
    location
}

/// Reads everything, and returns the number of requests after the opening.
fn gets_to_read(location: Location, directory: &Path, expected: &[u8]) -> Requests {
    let location = location.with_cache(cache_in(directory, 64 << 20));
    let device = LogDevice::open(&location, READ_ONLY).expect("opened");
    let before = device.requests();
    assert!(read(&device, 0, expected.len()) == expected);
    let after = device.requests();
    Requests {
        gets: after.gets - before.gets,
        cache_hits: after.cache_hits - before.cache_hits,
        cache_misses: after.cache_misses - before.cache_misses,
        cache_read_bytes: after.cache_read_bytes - before.cache_read_bytes,
        cache_written_bytes: after.cache_written_bytes - before.cache_written_bytes,
        ..Requests::default()
    }
}

fn cut(file: &Path, to: impl Fn(u64) -> u64) {
    let file = fs::File::options().write(true).open(file).expect("there");
    file.set_len(to(file.metadata().expect("there").len())).expect("cut");
}

/// A second opening reads no contents from the store, until files are damaged: then only these.
#[test]
pub fn cached_chunks_are_not_requested_again() {
    let scratch = tempfile::tempdir().expect("made");
    let directory = scratch.path().join("cache");
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let location = made(&store, 1);
    let expected = contents_of(1);

    let first = gets_to_read(location.clone(), &directory, &expected);
    assert!(first.gets > 0 && first.cache_misses >= 12 && first.cache_hits == 0, "{first:?}");
    assert!(first.cache_written_bytes > 12 << 20, "{first:?}");
    let second = gets_to_read(location.clone(), &directory, &expected);
    assert_eq!((second.gets, second.cache_misses, second.cache_written_bytes), (0, 0, 0));
    assert_eq!(second.cache_hits, first.cache_misses);
    assert!(second.cache_read_bytes >= 12 << 20, "{second:?}");

    let flip = |file: &Path| {
        let mut bytes = fs::read(file).expect("there");
        let at = bytes.len() / 2;
        bytes[at] ^= 1;
        fs::write(file, bytes).expect("written");
    };
    let damages: [&dyn Fn(&Path); 5] = [
        &flip,
        &|file| cut(file, |len| len - 1),
        &|file| cut(file, |len| len + 1),
        &|file| cut(file, |_| 0),
        &|file| cut(file, |_| 52),
    ];
    for (number, damage) in damages.iter().enumerate() {
        let (mut files, _) = files_in(&directory);
        files.sort();
        damage(&files[number]);
        let mended = gets_to_read(location.clone(), &directory, &expected);
        assert_eq!((mended.gets, mended.cache_misses), (1, 1), "damage {number}");
        assert_eq!(
            gets_to_read(location.clone(), &directory, &expected).gets,
            0,
            "damage {number}"
        );
    }
    // Files whose names are swapped.
    let (mut files, _) = files_in(&directory);
    files.sort();
    fs::rename(&files[1], &files[2]).expect("renamed");
    let mended = gets_to_read(location.clone(), &directory, &expected);
    assert_eq!(mended.cache_misses, 2, "{mended:?}");

    // Another volume in the same place, after its objects were removed and it was made again.
    let again: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let other = gets_to_read(made(&again, 2), &directory, &contents_of(2));
    assert_eq!(other.cache_hits, 0, "{other:?}");

    let location = location.with_cache(cache_in(&directory, 64 << 20));
    let device = Follower::open(&location).expect("opened").device();
    let before = device.requests().gets;
    assert!(read(&device, 0, expected.len()) == expected);
    assert_eq!(device.requests().gets, before);
}

/// Reads everything sequentially, piece by piece, with the cache in the directory.
fn read_on(location: &Location, directory: &Path, expected: &[u8]) -> Requests {
    let location = location.clone().with_cache(cache_in(directory, 64 << 20));
    let device = LogDevice::open(&location, READ_ONLY).expect("opened");
    let before = device.requests();
    for (number, piece) in expected.chunks(CHUNK).enumerate() {
        assert!(read(&device, (number * CHUNK) as u64, piece.len()) == piece);
    }
    let after = device.requests();
    let gets = after.gets - before.gets;
    Requests { gets, received_bytes: after.received_bytes - before.received_bytes, ..after }
}

/// When an object is read sequentially, all chunks of a request are cached, and a request ends at the next
/// cached chunk.
#[test]
fn read_ahead_fetches_and_keeps_the_missing_chunks() {
    let scratch = tempfile::tempdir().expect("made");
    let directory = scratch.path().join("cache");
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let (location, expected) = (made(&store, 1), contents_of(1));
    let first = read_on(&location, &directory, &expected);
    assert!((1..8).contains(&first.gets), "it is read ahead: {first:?}");
    assert_eq!(read_on(&location, &directory, &expected).gets, 0);
    let (files, _) = files_in(&directory);
    let name =
        |file: &PathBuf| file.file_name().expect("a name").to_str().expect("ours").to_owned();
    let is_third = |file: &&PathBuf| {
        !name(file).starts_with("0000000000000000-") && name(file).ends_with("-00000002")
    };
    fs::remove_file(files.iter().find(is_third).expect("a chunk amid others")).expect("removed");
    let third = read_on(&location, &directory, &expected);
    assert_eq!((third.gets, third.received_bytes), (1, CHUNK as u64));
}

/// A chunk that the store truncated is an error once, and is requested again.
#[test]
fn a_chunk_that_is_too_short_is_forgotten() {
    let scratch = tempfile::tempdir().expect("made");
    let directory = scratch.path().join("cache");
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let (location, expected) = (made(&store, 1), contents_of(1));
    gets_to_read(location.clone(), &directory, &expected);
    let (mut files, _) = files_in(&directory);
    files.sort();
    let last = files.last().expect("there are some");
    let name = last.file_name().and_then(|name| name.to_str()).expect("ours");
    let parts: Vec<_> =
        name.split('-').map(|part| u64::from_str_radix(part, 16).expect("a number")).collect();
    let volume = last.parent().and_then(Path::file_name).and_then(|name| name.to_str());
    let volume = uuid::Uuid::try_parse(volume.expect("ours")).expect("a UUID").into_bytes();
    let (key, cache) =
        ((Object::data(parts[0], parts[1], 0), parts[2]), cache_in(&directory, 64 << 20));
    cache.forget(&volume, key);
    assert!(cache.put(&volume, key, &[1; 100]) > 0);
    let short = location.clone().with_cache(cache);
    let device = LogDevice::open(&short, READ_ONLY).expect("opened");
    let error = device.read_at(0, &mut vec![0; expected.len()]).expect_err("too short").to_string();
    assert!(error.contains("it ends before byte"), "{error}");
    assert_eq!(gets_to_read(location, &directory, &expected).gets, 1);
}

/// A failing or emptied local disk has no effect but more requests.
#[test]
pub fn a_failing_local_disk_is_ignored() {
    let scratch = tempfile::tempdir().expect("made");
    let directory = scratch.path().join("cache");
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let location = made(&store, 1);
    let expected = contents_of(1);
    gets_to_read(location.clone(), &directory, &expected);
    let volume = files_in(&directory).0[0].parent().expect("there").to_owned();
    fs::remove_dir_all(&volume).expect("removed");
    fs::write(&volume, b"in the way").expect("written");
    let read = gets_to_read(location.clone(), &directory, &expected);
    assert!(read.gets > 0 && read.cache_written_bytes == 0, "{read:?}");
    assert!(!directory.join("adding").exists());
    fs::remove_file(&volume).expect("removed");
    assert!(gets_to_read(location.clone(), &directory, &expected).gets > 0);
    assert_eq!(gets_to_read(location, &directory, &expected).gets, 0);
}

/// Several programs that add at the same time do not exceed the size together, nor does one after a crash.
#[test]
fn a_cache_does_not_exceed_its_size() {
    let scratch = tempfile::tempdir().expect("made");
    let directory = scratch.path().join("cache");
    let is_done = std::sync::atomic::AtomicBool::new(false);
    let is_done = &is_done;
    let most = thread::scope(|scope| {
        let adders: Vec<_> = [VOLUME, OTHER]
            .into_iter()
            .map(|volume| {
                let cache = cache_in(&directory, SIZE_BYTES_MIN);
                scope.spawn(move || {
                    for number in 0..160 {
                        cache.put(&volume, key(number), &chunk_of(number));
                        if let Some(chunk) = cache.get(&volume, key(number)) {
                            assert!(chunk == chunk_of(number));
                        }
                    }
                })
            })
            .collect();
        let watcher = scope.spawn(|| {
            let mut most = 0;
            while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                // A listing shows a single moment only if no file is added or removed meanwhile.
                let lock = fs::File::open(directory.join("lock")).expect("there");
                lock.lock().expect("locked");
                most = most.max(files_in(&directory).1);
                drop(lock);
                thread::sleep(Duration::from_millis(1));
            }
            most
        });
        adders.into_iter().for_each(|adder| adder.join().expect("it ends"));
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
        watcher.join().expect("it ends")
    });
    let (files, bytes) = files_in(&directory);
    assert!(most <= SIZE_BYTES_MIN && bytes <= SIZE_BYTES_MIN, "{most} {bytes}");
    assert!(files.len() >= 40, "{}", files.len());

    // A crash: a file that was being added, files that are not counted, and an old count.
    for number in 0..32 {
        let path = files[0].with_file_name(format!("{:016x}-{number:016x}-{:08x}", 9, 0));
        fs::write(path, vec![0; CHUNK]).expect("written");
    }
    fs::write(directory.join("adding"), vec![0; 16 * CHUNK]).expect("written");
    let count = u128::from(!0u64) << 64;
    fs::write(directory.join("lock"), count.to_le_bytes()).expect("written");
    let cache = cache_in(&directory, SIZE_BYTES_MIN);
    for number in 321..401 {
        assert!(cache.put(&VOLUME, key(number), &chunk_of(number)) > 0);
        assert!(files_in(&directory).1 <= SIZE_BYTES_MIN, "{}", files_in(&directory).1);
    }
    assert_eq!(cache.put(&VOLUME, key(400), &chunk_of(400)), 0, "it is there");
    // A count that is damaged while the program runs.
    fs::write(directory.join("lock"), [1; 16]).expect("written");
    for number in 401..480 {
        assert!(cache.put(&VOLUME, key(number), &chunk_of(number)) > 0);
        assert!(files_in(&directory).1 <= SIZE_BYTES_MIN);
    }
}

/// Recently used chunks stay.
#[test]
fn the_least_recently_used_goes_first() {
    let scratch = tempfile::tempdir().expect("made");
    let directory = scratch.path().join("cache");
    let cache = cache_in(&directory, SIZE_BYTES_MIN);
    for number in 0..240 {
        assert!(cache.put(&VOLUME, key(number), &chunk_of(number)) > 0);
        assert!(cache.get(&VOLUME, key(0)).is_some(), "{number}");
    }
    assert!(cache.get(&VOLUME, key(1)).is_none());
    assert!(cache.get(&VOLUME, key(239)).is_some());
    // Files that do not belong to the cache stay as well.
    fs::write(directory.join("note"), b"mine").expect("written");
    fs::create_dir(directory.join("folder")).expect("made");
    fs::write(directory.join("folder/note"), b"mine").expect("written");
    for number in 240..360 {
        cache.put(&VOLUME, key(number), &chunk_of(number));
    }
    assert!(directory.join("note").exists() && directory.join("folder/note").exists());
}

/// A stopped program that holds the lock does not block others.
#[test]
fn a_program_that_keeps_the_lock_does_not_stop_others() {
    let scratch = tempfile::tempdir().expect("made");
    let directory = scratch.path().join("cache");
    let cache = cache_in(&directory, SIZE_BYTES_MIN);
    let lock = fs::File::open(directory.join("lock")).expect("there");
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("locked");
    assert_eq!(cache.put(&VOLUME, key(0), &chunk_of(0)), 0);
    assert!(cache.get(&VOLUME, key(0)).is_none());
    drop(lock);
    assert!(cache.put(&VOLUME, key(0), &chunk_of(0)) > 0);
}

#[test]
fn a_directory_that_cannot_be_used_as_a_cache_is_refused() {
    let scratch = tempfile::tempdir().expect("made");
    let refused = |path: &Path, size_bytes| {
        DiskCache::open(path, size_bytes).expect_err("refused").to_string()
    };
    let directory = scratch.path().join("cache");
    assert!(refused(&directory, SIZE_BYTES_MIN - 1).contains("the minimum is 16M"));
    assert!(!directory.exists());
    assert!(refused(&directory.join("below"), SIZE_BYTES_MIN).contains("No such file"));
    fs::create_dir(&directory).expect("made");
    for mode in [0o777, 0o770, 0o755, 0o701] {
        fs::set_permissions(&directory, fs::Permissions::from_mode(mode)).expect("set");
        let why = refused(&directory, SIZE_BYTES_MIN);
        assert!(why.contains(&format!("mode {mode:o}")) && why.contains("chmod 700"), "{why}");
    }
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).expect("set");
    fs::write(directory.join("note"), b"mine").expect("written");
    assert!(refused(&directory, SIZE_BYTES_MIN).contains("it has other files"));
    assert!(refused(&directory.join("note"), SIZE_BYTES_MIN).contains("not a directory"));
    fs::remove_file(directory.join("note")).expect("removed");
    cache_in(&directory, SIZE_BYTES_MIN);
    cache_in(&directory, SIZE_BYTES_MIN);
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&directory, Some(1), None).expect("changed");
        assert!(refused(&directory, SIZE_BYTES_MIN).contains("belongs to user 1"));
    }
}
