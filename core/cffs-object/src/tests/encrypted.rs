//! Encrypted volumes: they pass the tests of other volumes, and the store, as an attacker, neither learns nor
//! changes contents.

use std::cell::RefCell;

use object_store::path::Path;
use proptest::prelude::*;

use super::*;
use crate::format::CHUNK_BYTES;
use crate::{DiskCache, Secret, Staging, versions};

thread_local! {
    static SECRET: RefCell<Option<Arc<Secret>>> = const { RefCell::new(None) };
}

/// The secret of the volumes that this thread makes and opens.
pub fn secret() -> Option<Arc<Secret>> {
    SECRET.with_borrow(Clone::clone)
}

/// Runs a function in which all volumes are encrypted.
pub fn with_secret<T>(run: impl FnOnce() -> T) -> T {
    with(Some(key(b'7')), run)
}

/// Runs a function with the secret of another thread, or without any.
pub fn with<T>(secret: Option<Arc<Secret>>, run: impl FnOnce() -> T) -> T {
    let before = SECRET.replace(secret);
    let outcome = run();
    SECRET.set(before);
    outcome
}

fn key(digit: u8) -> Arc<Secret> {
    Arc::new(Secret::new(vec![digit; 64]).expect("a key"))
}

/// Repeats tests of other modules with encrypted volumes.
macro_rules! repeated {
    ($($module:ident::$test:ident,)*) => {
        $(#[test]
        fn $test() {
            with_secret(super::$module::$test);
        })*
    };
}

repeated! {
    cache::cached_chunks_are_not_requested_again,
    cache::a_failing_local_disk_is_ignored,
    collection::a_crash_amid_a_release_loses_nothing,
    collection::a_crash_amid_collection_loses_nothing,
    collection::a_release_drops_unsynced_writes,
    collection::a_writer_that_slept_through_a_collection_is_fenced,
    collection::removed_files_take_no_space,
    destroy::a_deleted_volume_leaves_nothing_and_other_objects_stay,
    destroy::an_interrupted_deletion_can_be_finished,
    destroy::the_origin_of_a_clone_stays,
    faults::no_request_fault_loses_acknowledged_data,
    handing_over::others_are_refused_until_the_next_program_opens_the_volume,
    follow::the_next_writer_is_followed,
    follow::a_follower_that_was_left_behind_finds_the_log_again,
    paused::a_claim_after_a_pause_is_made_at_the_end_of_the_log,
    paused::a_deletion_during_a_clone_leaves_a_complete_clone_or_none,
    paused::a_clone_during_a_removal_is_complete_or_fails,
    paused::a_paused_reader_finds_a_version_or_reports_its_deletion,
    paused::a_removal_during_a_clone_keeps_the_clone_complete,
    paused::a_version_kept_after_a_pause_can_be_read,
    requests::requests_of_small_files,
    requests::requests_after_many_epochs,
    staging::a_crash_keeps_what_was_acknowledged,
    staging::staged_records_can_be_read,
    staging::records_from_before_a_takeover_are_rejected,
    staging::lagging_listings_reject_nothing,
    staging::a_crash_of_a_release_or_collection_leaves_the_state_of_some_sync,
    staging::a_full_local_disk_keeps_the_order,
    two_writers::a_writer_that_was_taken_over_writes_no_more,
    versions::a_clone_is_independent_of_its_origin,
    versions::a_removed_clone_keeps_nothing,
    versions::a_version_stays_as_it_was,
    versions::an_incomplete_clone_is_refused,
    volumes::the_writer_of_a_volume_is_listed,
    volumes::volumes_are_listed_with_their_state,
}

#[test]
fn a_crash_of_an_encrypted_volume_leaves_a_moment_since_the_last_sync() {
    let scratch = tempfile::tempdir().expect("made");
    let states = with_secret(|| {
        super::crash::crash(6, None) + super::crash::crash(7, Some(&scratch.path().join("staging")))
    });
    assert!(states > 100, "{states} states");
}

/// The contents of all objects.
pub(super) fn all_of(store: &InMemory) -> Vec<(Path, Vec<u8>)> {
    let runtime = runtime();
    let names = super::collection::objects(store);
    let read = |name: &str| {
        let path = Path::from(name);
        let bytes = runtime.block_on(async { store.get(&path).await?.bytes().await });
        (path, bytes.expect("read").to_vec())
    };
    names.iter().map(|(name, _)| read(name)).collect()
}

pub(super) fn set(store: &InMemory, path: &Path, bytes: Option<&[u8]>) {
    let changed = runtime().block_on(async {
        match bytes {
            Some(bytes) => store.put(path, bytes.to_vec().into()).await.map(drop),
            None => store.delete(path).await,
        }
    });
    changed.expect("changed");
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime")
}

const TEXT: &[u8] = b"a text that must not leave this machine";

const VOLUMES: [&str; 3] = ["bucket/volume", "bucket/volume@kept", "bucket/clone"];
const BYTES: usize = 1 << 20;

/// A volume with records, contents sent ahead, a map and a version, and a clone of it; with its contents.
fn sealed_volume() -> (Arc<InMemory>, Vec<u8>) {
    let store = Arc::new(InMemory::new());
    let device = LogDevice::create(&at(store.clone()), GEOMETRY).expect("made");
    device.keep_at_most(200 << 10);
    let mut contents = vec![0; BYTES];
    for (number, piece) in contents.chunks_mut(80 << 10).enumerate() {
        for (target, byte) in piece.iter_mut().zip(TEXT.iter().cycle()) {
            *target = byte ^ number as u8;
        }
        piece[..TEXT.len()].copy_from_slice(TEXT);
        write(&device, (number * (80 << 10)) as u64, piece);
        if number % 4 == 0 {
            device.sync().expect("synced");
        }
    }
    device.sync().expect("synced");
    device.release().expect("released");
    let version = located(store.clone(), VOLUMES[1]);
    versions::create(&version).expect("kept");
    versions::clone(&version, &located(store.clone(), VOLUMES[2])).expect("cloned");
    (store, contents)
}

/// The contents of a volume, or why it does not show them.
fn read_at(store: &InMemory, prefix: &str) -> Result<Vec<u8>, Error> {
    let location = located(Arc::new(store.fork()), prefix);
    let device = LogDevice::open(&location, READ_ONLY)?;
    assert_eq!(device.geometry(), GEOMETRY);
    let mut contents = vec![0; BYTES];
    match device.read_at(0, &mut contents) {
        Ok(()) => Ok(contents),
        Err(error) => Err(error.downcast::<Error>().expect("an error of this crate")),
    }
}

/// The store changes any one object: it flips a bit, cuts the object off, deletes it, or puts another object
/// in its place. The volume, its version and its clone show their contents or an error that names an object.
#[test]
fn a_store_cannot_change_what_is_read() {
    with_secret(|| {
        let (store, contents) = sealed_volume();
        let objects = all_of(&store);
        assert!(objects.len() >= 14, "{} objects", objects.len());
        let (mut shown, mut refused) = (0, 0);
        let mut attack = |path: &Path, bytes: Option<&[u8]>| {
            let changed = store.fork();
            set(&changed, path, bytes);
            for prefix in VOLUMES {
                match read_at(&changed, prefix) {
                    Ok(found) => {
                        assert!(found == contents, "{prefix} shows other contents after {path}");
                        shown += 1;
                    }
                    Err(error) => {
                        let text = error.to_string();
                        let is_named = ["/", "no volume", "no version", "not encrypted", "key"];
                        assert!(is_named.iter().any(|part| text.contains(part)), "{path}: {text}");
                        refused += 1;
                    }
                }
            }
        };
        for (path, bytes) in &objects {
            attack(path, None);
            for part in 0..4 {
                let mut flipped = bytes.clone();
                flipped[(bytes.len() - 1) * part / 3] ^= 4;
                attack(path, Some(&flipped));
            }
            let border = (16 << 10) + 28;
            for len in [0, 1, bytes.len() / 2, border, bytes.len() - 1] {
                attack(path, bytes.get(..len.min(bytes.len())));
            }
            attack(path, Some(&[&bytes[..], &[0]].concat()));
            for (_, other) in objects.iter().filter(|(other, _)| other != path) {
                attack(path, Some(other));
            }
        }
        println!("{shown} reads were right, {refused} refused");
        assert!(shown > 100 && refused > 100, "{shown} and {refused}");
    });
}

/// A verification names each object that a volume, a version or a clone uses and that was changed. A volume
/// that it finds sound can be read.
#[test]
fn a_verification_names_each_changed_object() {
    with_secret(|| {
        let (store, contents) = sealed_volume();
        let mut named = 0;
        for (path, bytes) in all_of(&store) {
            let mut flipped = bytes.clone();
            flipped[bytes.len() * 3 / 4] ^= 4;
            for changed in [None, Some(&flipped[..]), bytes.get(..bytes.len() - 1)] {
                let store = Arc::new(store.fork());
                set(&store, &path, changed);
                for prefix in VOLUMES {
                    let Ok(device) = LogDevice::open(&located(store.clone(), prefix), READ_ONLY)
                    else {
                        continue;
                    };
                    let mut read = 0;
                    let found = device.verify(Some(&mut |bytes| read += bytes)).expect("listed");
                    match &found[..] {
                        [] => assert!(read_at(&store, prefix).is_ok_and(|read| read == contents)),
                        [one] => {
                            assert_eq!(one.object, path.as_ref());
                            named += 1;
                        }
                        several => panic!("{several:?}"),
                    }
                    assert!(read > 0, "nothing was read");
                }
            }
        }
        assert!(named > 30, "{named}");
    });
}

/// Regression: the readable bytes of a changed object that was given up stayed there, and each later
/// verification found it.
#[test]
fn an_object_that_was_given_up_is_not_needed() {
    with_secret(|| {
        let (store, contents) = sealed_volume();
        let without = OpenOptions { without_objects: true, ..OpenOptions::default() };
        let mut given_up = 0;
        for (path, bytes) in all_of(&store) {
            let mut flipped = bytes.clone();
            flipped[bytes.len() / 2] ^= 4;
            let store = Arc::new(store.fork());
            set(&store, &path, Some(&flipped));
            let Ok(device) = LogDevice::open(&at(store.clone()), without) else { continue };
            let found = device.verify(Some(&mut |_| {})).expect("read");
            if found.is_empty() {
                continue;
            }
            let lost = device.lost_with(&found).expect("read");
            device.give_up(&found, &[]).expect("given up");
            assert_eq!(device.verify(Some(&mut |_| {})).expect("read"), [], "{path}");
            let left = read(&device, 0, contents.len());
            for (at, (now, before)) in (0..).zip(left.iter().zip(&contents)) {
                let is_lost = lost.iter().any(|range| range.contains(&at));
                assert_eq!(*now, if is_lost { 0 } else { *before }, "{path}: byte {at}");
            }
            given_up += 1;
        }
        assert!(given_up > 3, "{given_up}");
    });
}

/// The store hides the newest records from a writer, so that two histories have the same names. It cannot mix
/// them afterwards: an object or a frame of the one history opens in no other.
#[test]
fn two_histories_cannot_be_mixed() {
    with_secret(|| {
        let (first, _) = sealed_volume();
        let second = Arc::new(first.fork());
        let [_, wanted] = [(&first, 1), (&second, 2)].map(|(store, byte)| {
            let device =
                LogDevice::open(&at(store.clone()), OpenOptions::default()).expect("opened");
            device.keep_at_most(200 << 10);
            for (number, piece) in vec![byte; BYTES].chunks(50 << 10).enumerate() {
                write(&device, (number * (50 << 10)) as u64, piece);
                if number % 3 == 2 {
                    device.sync().expect("synced");
                }
            }
            device.sync().expect("synced");
            device.release().expect("released");
            vec![byte; BYTES]
        });
        assert!(read_at(&second, VOLUMES[0]).expect("opened") == wanted);
        let others: std::collections::HashMap<_, _> = all_of(&first).into_iter().collect();
        let (mut shown, mut refused) = (0, 0);
        for (path, bytes) in all_of(&second) {
            let Some(other) = others.get(&path).filter(|other| **other != bytes) else { continue };
            let border = (4 + (16 << 10) + 28).min(bytes.len()).min(other.len());
            let mixes = [
                other.clone(),
                [&bytes[..border], &other[border..]].concat(),
                [&other[..border], &bytes[border..]].concat(),
                [&bytes[..4], &other[4..]].concat(),
            ];
            for mixed in mixes {
                let store = second.fork();
                set(&store, &path, Some(&mixed));
                match read_at(&store, VOLUMES[0]) {
                    Ok(found) => {
                        assert!(found == wanted, "{path} shows a mixture");
                        shown += 1;
                    }
                    Err(_) => refused += 1,
                }
            }
        }
        println!("{shown} reads were right, {refused} refused");
        assert!(refused > 10, "{refused}");
    });
}

/// Neither the store nor the local directories have contents, names of the format, or the key.
#[test]
fn nothing_leaves_the_machine_unsealed() {
    let scratch = tempfile::tempdir().expect("made");
    let sub = |name: &str| scratch.path().join(name);
    let (store, staging) = with_secret(|| {
        let (store, contents) = sealed_volume();
        let cache = DiskCache::open(&sub("cache"), 64 << 20).expect("made");
        let cached = at(store.clone()).with_cache(cache);
        let device = LogDevice::open(&cached, READ_ONLY).expect("opened");
        assert!(read(&device, 0, BYTES) == contents);
        drop(device);

        let staging = Arc::new(Staging::open(&sub("staging")).expect("made"));
        let (paused, reached, let_go) = super::paused::PausedStore::new(store.clone());
        let paused = Arc::new(paused);
        let location = at(paused.clone()).with_staging(staging);
        let device = LogDevice::open(&location, OpenOptions::default()).expect("opened");
        paused.pause();
        write(&device, 0, TEXT);
        device.sync().expect("synced");
        reached.recv().expect("it waits");
        let staged = files_below(&sub("staging"));
        let_go.send(()).expect("it waits");
        device.release().expect("released");
        (store, staged)
    });
    let cached = files_below(&sub("cache"));
    assert!(staging.iter().any(|bytes| bytes.len() > 100) && cached.len() > 4);
    let stored = all_of(&store).into_iter().map(|(_, bytes)| bytes);
    for bytes in stored.chain(staging).chain(cached) {
        for secret in [&TEXT[..20], b"CFFSREC1", b"CFFSHED1", &[0x77; 32]] {
            assert!(!bytes.windows(secret.len()).any(|part| part == secret));
        }
    }
}

fn files_below(directory: &std::path::Path) -> Vec<Vec<u8>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).expect("listed") {
        let path = entry.expect("listed").path();
        match path.is_dir() {
            true => files.extend(files_below(&path)),
            false => files.push(std::fs::read(path).expect("read")),
        }
    }
    files
}

#[test]
fn only_the_secret_opens_a_volume() {
    let (store, contents) = with_secret(sealed_volume);
    let passphrase = Arc::new(Secret::new(b"words".to_vec()).expect("a passphrase"));
    for prefix in VOLUMES {
        assert!(with_secret(|| read_at(&store, prefix)).expect("opened") == contents);
        let text =
            |secret| with(secret, || read_at(&store, prefix)).expect_err("refused").to_string();
        assert!(text(Some(key(b'8'))).contains("this is not its key or passphrase"));
        assert!(
            text(Some(passphrase.clone())).contains("it has a key of 32 bytes, not a passphrase")
        );
        let without = read_at(&store, prefix).expect_err("refused").to_string();
        assert!(without.contains("is encrypted; name its key"), "{without}");
    }
    let plain = Arc::new(InMemory::new());
    drop(LogDevice::create(&at(plain.clone()), GEOMETRY).expect("made"));
    let text = with_secret(|| read_at(&plain, VOLUMES[0])).expect_err("refused").to_string();
    assert!(text.contains("is not encrypted, although a key was given"), "{text}");
}

#[test]
fn another_secret_replaces_the_first() {
    let (store, contents) = with_secret(sealed_volume);
    let words = Arc::new(Secret::new(b"words\n".to_vec()).expect("a passphrase"));
    let objects = all_of(&store).len();
    with_secret(|| crate::rekey(&at(store.clone()), &words)).expect("rekeyed");
    assert_eq!(all_of(&store).len(), objects);
    assert!(with(Some(words.clone()), || read_at(&store, VOLUMES[0])).expect("opened") == contents);
    assert!(with(Some(words.clone()), || read_at(&store, VOLUMES[1])).expect("opened") == contents);
    with_secret(|| read_at(&store, VOLUMES[0])).expect_err("the old key");
    // The clone has an object of its own.
    assert!(with_secret(|| read_at(&store, VOLUMES[2])).expect("opened") == contents);
    with_secret(|| crate::rekey(&at(store.clone()), &words)).expect_err("the old key");
    let listed = with(Some(words), || versions::list(&at(store.clone()))).expect("listed");
    assert!(listed.iter().any(|version| version.clone.as_deref() == Some("bucket/clone")));
}

#[test]
fn a_damaged_version_can_be_listed_and_removed() {
    with_secret(|| {
        let (store, _) = sealed_volume();
        let versions = || versions::list(&at(store.clone())).expect("listed");
        let kept: Vec<String> = versions().into_iter().map(|version| version.name).collect();
        assert_eq!(kept.len(), 2, "{kept:?}");
        for name in &kept {
            let path = format!("bucket/volume/snapshots/{name}");
            set(&store, &path.into(), Some(b"damaged"));
        }
        assert_eq!(versions().len(), 2);
        let device = LogDevice::open(&at(store.clone()), OpenOptions::default()).expect("opened");
        device.collect().expect_err("objects that a version needs are not known");
        drop(device);
        set(&store, &format!("bucket/volume/snapshots/{}", kept[1]).into(), None);
        versions::remove(&located(store.clone(), VOLUMES[1])).expect("removed");
        assert!(versions().is_empty());
        let device = LogDevice::open(&at(store.clone()), TAKE_OVER).expect("opened");
        device.collect().expect("collected");
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn identities_are_decoded_without_panic(
        body in prop::collection::vec(any::<u8>(), 0..400),
        magic in any::<bool>(),
    ) {
        let magic = if magic { *b"CFFSOBJ2" } else { *b"CFFSOBJ1" };
        let _ = crate::identity::Encoded::decode(&crate::reader::with_checksum(magic, &body));
    }
}

/// A request reads neighbours of the wanted bytes, too. If they are damaged, the wanted bytes are read alone.
#[test]
fn a_damaged_frame_makes_only_its_chunk_unreadable() {
    with_secret(|| {
        let store = Arc::new(InMemory::new());
        let device = LogDevice::create(&at(store.clone()), GEOMETRY).expect("made");
        write(&device, 0, &vec![7; 2 << 20]);
        device.sync().expect("synced");
        device.release().expect("released");
        let longest = all_of(&store).into_iter().max_by_key(|(_, bytes)| bytes.len());
        let (path, mut bytes) = longest.expect("objects");
        let changed = bytes.len() / 2;
        bytes[changed] ^= 4;
        set(&store, &path, Some(&bytes));
        let device = LogDevice::open(&at(store), READ_ONLY).expect("opened");
        let mut buf = [0; 4096];
        let reads = (0..2 << 20).step_by(4096).map(|at| device.read_at(at, &mut buf).is_ok());
        let unreadable = reads.filter(|is_read| !is_read).count() as u64 * 4096;
        // A read can need the ends of two chunks.
        assert!((4096..=CHUNK_BYTES + 4096).contains(&unreadable), "{unreadable} bytes");
    });
}
