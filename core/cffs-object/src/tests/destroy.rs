//! Deletions of volumes.

use super::collection::objects;
use super::*;
use crate::destroy::{self, DestroyOptions, Destroyed};
use crate::format;
use crate::versions;

const FORCED: DestroyOptions = DestroyOptions { take_over: false, force: true, note: None };

fn destroy(location: &Location) -> Result<Destroyed, Error> {
    destroy::destroy(location, &DestroyOptions::default())
}

fn volume(store: &Arc<InMemory>) -> Location {
    at(store.clone())
}

fn version(store: &Arc<InMemory>, name: &str) -> Location {
    located(store.clone(), &format!("bucket/volume@{name}"))
}

fn clone_at(store: &Arc<InMemory>) -> Location {
    located(store.clone(), "bucket/clone")
}

fn put(store: &InMemory, path: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(store.put(&path.into(), vec![1].into())).expect("put");
}

/// A volume with contents that were sent ahead, several records, maps and a version.
fn made(location: &Location) {
    let device = LogDevice::create(location, GEOMETRY).expect("made");
    write(&device, 1 << 20, &vec![3; 9 << 20]);
    for number in 0..3 {
        write(&device, number << 16, &[5; 4096]);
        device.sync().expect("synced");
    }
}

fn is_open_for_writing(location: &Location) {
    let device = LogDevice::open(location, OpenOptions::default()).expect("opened");
    assert_eq!(read(&device, 0, 4096), [5; 4096]);
}

fn names(store: &InMemory) -> Vec<String> {
    objects(store).into_iter().map(|(name, _)| name).collect()
}

/// Only objects with the names of the layout are deleted.
#[test]
pub fn a_deleted_volume_leaves_nothing_and_other_objects_stay() {
    let store = Arc::new(InMemory::new());
    made(&volume(&store));
    versions::create(&version(&store, "v1")).expect("kept");
    let others = [
        "bucket/volume/data/00/notes",
        "bucket/volume/data/zz/00000000000000000001-0000000001",
        "bucket/volume/format.txt",
        "bucket/volume/head/file",
        "bucket/volume/inside/format",
        "bucket/volume/log/-",
        "bucket/volume/log/00000000000000000001/format",
        "bucket/volume/map/notes",
        "bucket/volume/snapshots/.hidden",
        "bucket/volume/snapshots/a b",
        "bucket/volume2/format",
    ];
    others.iter().for_each(|path| put(&store, path));
    let before = names(&store).len();
    let doomed = destroy::look(&volume(&store)).expect("there");
    assert_eq!((doomed.versions, doomed.was_begun), (vec![String::from("v1")], false));
    let destroyed = destroy(&volume(&store)).expect("deleted");
    let mut left = others.map(str::to_owned);
    left.sort();
    let mut there = names(&store);
    there.sort();
    assert_eq!(there, left);
    // The count has neither `format` nor `head`.
    assert!(destroyed.objects as usize + others.len() + 2 >= before - 1, "{destroyed:?}");
    assert!(destroyed.bytes > 9 << 20, "{destroyed:?}");
    assert!(matches!(destroy(&volume(&store)), Err(Error::NoVolume { .. })));
}

/// A volume or a file below `snapshots/` may have the name of a version. It stays, and so does the volume.
#[test]
fn objects_among_the_versions_are_not_deleted() {
    let store = Arc::new(InMemory::new());
    made(&volume(&store));
    versions::create(&version(&store, "v1")).expect("kept");
    put(&store, "bucket/volume/snapshots/notes.txt");
    let refused = destroy(&volume(&store)).expect_err("a file");
    assert!(refused.to_string().contains("snapshots/notes.txt: it is not a version"), "{refused}");
    is_open_for_writing(&volume(&store));
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let notes = "bucket/volume/snapshots/notes.txt".into();
    runtime.block_on(store.delete(&notes)).expect("deleted");
    let inside = located(store.clone(), "bucket/volume/snapshots");
    made(&inside);
    for options in [DestroyOptions::default(), FORCED] {
        let refused = destroy::destroy(&volume(&store), &options).expect_err("a volume");
        assert!(matches!(refused, Error::Contains { .. }), "{refused}");
    }
    is_open_for_writing(&inside);
    destroy(&inside).expect("deleted");
    destroy(&volume(&store)).expect("deleted");
    assert_eq!(names(&store), [""; 0]);
}

/// The versions of an encrypted volume are recognized with its key.
#[test]
fn a_file_among_the_versions_of_an_encrypted_volume_is_not_deleted() {
    encrypted::with_secret(|| {
        let store = Arc::new(InMemory::new());
        made(&volume(&store));
        versions::create(&version(&store, "v1")).expect("kept");
        put(&store, "bucket/volume/snapshots/notes");
        let refused = destroy(&volume(&store)).expect_err("a file");
        assert!(refused.to_string().contains("snapshots/notes"), "{refused}");
        is_open_for_writing(&volume(&store));
    });
}

/// A deletion that was begun is never undone.
#[test]
fn a_failure_of_a_continued_deletion_leaves_the_tombstone() {
    let store = Arc::new(FaultStore::new());
    made(&at(store.clone()));
    versions::create(&located(store.clone(), "bucket/volume@v1")).expect("kept");
    store.keep_images();
    destroy(&at(store.clone())).expect("deleted");
    let mut begun = 0;
    for image in &store.images() {
        let found = destroy::look(&at(Arc::new(image.fork())));
        if !found.is_ok_and(|doomed| doomed.was_begun) {
            continue;
        }
        begun += 1;
        for seed in 0..10 {
            let faulty = Arc::new(FaultStore::over(image.fork()));
            faulty.set_chance(seed, 2);
            let outcome = destroy(&at(faulty.clone()));
            faulty.mend();
            match destroy::look(&at(faulty)) {
                Ok(doomed) => assert!(doomed.was_begun, "seed {seed}: {outcome:?}"),
                Err(error) => assert!(matches!(error, Error::NoVolume { .. }), "{error}"),
            }
        }
    }
    assert!(begun >= 5, "{begun}");
}

#[test]
fn the_place_of_a_deleted_volume_can_be_used_again() {
    let store = Arc::new(InMemory::new());
    for _ in 0..2 {
        made(&volume(&store));
        is_open_for_writing(&volume(&store));
        destroy(&volume(&store)).expect("deleted");
        assert_eq!(names(&store), [""; 0]);
    }
}

#[test]
fn names_of_objects() {
    let uuid = "00000000-0000-4000-8000-000000000000";
    for name in ["head", "format", "takeover", "snapshots/v1", "snapshots/head"] {
        assert!(format::is_object(name), "{name}");
    }
    for name in [
        format::record_name(7),
        format::map_name(7, 1),
        format::Object::data(3, 9, 0).name(),
        format::Object::data(3, 9, 77).name(),
        format!("snapshots/v1@{uuid}"),
        format!("probe/{uuid}"),
    ] {
        assert!(format::is_object(&name), "{name}");
    }
    for name in [
        "",
        "log",
        "log/",
        "log/7",
        "log/0000000000000000000\u{e9}",
        "data/\u{e9}\u{e9}/1-1",
        "map/1-1",
        "map/00000000000000000001-00000000000000000001-1",
        "snapshots/",
        "snapshots/a/b",
        "snapshots/v1@x",
        "probe/x",
        "other/format",
    ] {
        assert!(!format::is_object(name), "{name}");
    }
}

/// The machine may stop at every change of the store: the result is the volume, which another writer can take
/// over, or a deletion that the next call finishes. No program takes that for a volume or for an empty place.
#[test]
pub fn an_interrupted_deletion_can_be_finished() {
    let store = Arc::new(FaultStore::new());
    made(&at(store.clone()));
    let kept = located(store.clone(), "bucket/volume@v1");
    versions::create(&kept).expect("kept");
    store.keep_images();
    destroy(&at(store.clone())).expect("deleted");
    let images = store.images();
    let (mut whole, mut begun) = (0, 0);
    for image in &images {
        let image = Arc::new(image.fork());
        let location = at(image.clone());
        match LogDevice::open(&location, READ_ONLY) {
            Ok(device) => {
                assert_eq!(read(&device, 0, 4096), [5; 4096]);
                drop(LogDevice::open(&location, TAKE_OVER).expect("taken over"));
                assert_eq!(begun, 0, "a volume after a tombstone");
                whole += 1;
            }
            Err(Error::Deleting { .. }) => {
                let made = LogDevice::create(&location, GEOMETRY).map(|_| ());
                assert!(matches!(made, Err(Error::Deleting { .. })), "{made:?}");
                let kept = versions::list(&location).map(|_| ());
                assert!(matches!(kept, Err(Error::Deleting { .. })), "{kept:?}");
                assert!(destroy::look(&location).expect("there").was_begun);
                begun += 1;
            }
            Err(Error::NoVolume { .. }) => {
                assert_eq!(names(&image), [""; 0], "a part of a volume is left");
                continue;
            }
            Err(error) => panic!("{error}"),
        }
        destroy(&location).expect("deleted");
        assert_eq!(names(&image), [""; 0]);
    }
    assert!(whole >= 1 && begun >= 5, "{whole} {begun}");
}

/// Lost answers and failed requests are repeated.
#[test]
fn a_deletion_survives_failing_requests() {
    for seed in 0..20 {
        let store = Arc::new(FaultStore::new());
        made(&at(store.clone()));
        store.set_chance(seed, 10);
        let mut outcome = destroy(&at(store.clone()));
        for _ in 0..20 {
            match outcome {
                Err(Error::NoVolume { .. }) | Ok(_) => break,
                // Another writer may have to take the claim of a failed run over.
                Err(_) => {
                    let options = DestroyOptions { take_over: true, ..Default::default() };
                    outcome = destroy::destroy(&at(store.clone()), &options);
                }
            }
        }
        store.mend();
        assert_eq!(names(&store.image()), [""; 0], "seed {seed}: {outcome:?}");
    }
}

/// A volume that a program has open stays, and can be taken over. That program writes no more.
#[test]
pub fn a_volume_in_use_is_deleted_only_by_a_takeover() {
    let store = Arc::new(InMemory::new());
    let device = LogDevice::create(&volume(&store), GEOMETRY).expect("made");
    write(&device, 0, &[5; 4096]);
    device.sync().expect("synced");
    let refused = destroy(&volume(&store)).expect_err("in use");
    assert!(matches!(refused, Error::Claimed { .. }), "{refused}");
    write(&device, 4096, &[6; 4096]);
    device.sync().expect("nothing has changed");
    std::mem::forget(device);
    let take_over = DestroyOptions { take_over: true, ..Default::default() };
    destroy::destroy(&volume(&store), &take_over).expect("deleted");
    assert_eq!(names(&store), [""; 0]);
}

/// A volume stays while a clone reads its objects. It can be used as before.
#[test]
pub fn the_origin_of_a_clone_stays() {
    let store = Arc::new(InMemory::new());
    made(&volume(&store));
    let kept = version(&store, "v1");
    versions::create(&kept).expect("kept");
    versions::clone(&kept, &clone_at(&store)).expect("cloned");
    versions::remove(&kept).expect("removed");
    let refused = destroy(&volume(&store)).expect_err("it has a clone");
    assert!(matches!(refused, Error::HasClone { .. }), "{refused}");
    assert!(refused.to_string().contains("/bucket/clone"), "{refused}");
    is_open_for_writing(&volume(&store));
    is_open_for_writing(&clone_at(&store));
    destroy(&clone_at(&store)).expect("deleted");
    destroy(&volume(&store)).expect("deleted");
    assert_eq!(names(&store), [""; 0]);
}

#[test]
fn a_version_is_not_deleted_with_its_volume() {
    let store = Arc::new(InMemory::new());
    made(&volume(&store));
    versions::create(&version(&store, "v1")).expect("kept");
    let refused = destroy(&version(&store, "v1")).expect_err("a version");
    assert!(matches!(refused, Error::IsVersion { .. }), "{refused}");
    assert!(refused.to_string().contains("cffs snapshot rm"), "{refused}");
    is_open_for_writing(&volume(&store));
}

/// Damaged volumes, and encrypted ones whose key is lost, are deleted only if that is forced.
#[test]
fn a_volume_that_cannot_be_read_is_deleted_if_forced() {
    let delete = |store: &InMemory, name: &str| {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let path = format!("bucket/volume/{name}").into();
        runtime.block_on(store.delete(&path)).expect("deleted");
    };
    let damaged: [&dyn Fn(&InMemory); 3] = [
        &|store| {
            delete(store, "head");
            names(store)
                .iter()
                .filter_map(|name| name.strip_prefix("bucket/volume/"))
                .filter(|name| name.starts_with("map/") || *name == format::record_name(2))
                .for_each(|name| delete(store, name));
        },
        &|store| put(store, "bucket/volume/format"),
        &|_| (),
    ];
    for (number, damage) in damaged.iter().enumerate() {
        let store = Arc::new(InMemory::new());
        let is_encrypted = number == 2;
        let make = || made(&volume(&store));
        if is_encrypted {
            encrypted::with_secret(make)
        } else {
            make()
        }
        damage(&store);
        let refused = destroy(&volume(&store)).expect_err("it cannot be read");
        match is_encrypted {
            true => assert!(matches!(refused, Error::NeedsSecret { .. }), "{refused}"),
            false => assert!(matches!(refused, Error::Damaged { .. }), "{number}: {refused}"),
        }
        let before = names(&store);
        assert!(before.len() > 5, "{before:?}");
        destroy::destroy(&volume(&store), &FORCED).expect("deleted");
        assert_eq!(names(&store), [""; 0], "{number}");
    }
}

/// An interrupted creation leaves a place that can be used again.
#[test]
fn an_incomplete_volume_can_be_deleted() {
    let store = Arc::new(InMemory::new());
    made(&volume(&store));
    versions::create(&version(&store, "v1")).expect("kept");
    versions::clone(&version(&store, "v1"), &clone_at(&store)).expect("cloned");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    for name in names(&store)
        .iter()
        .filter(|name| name.contains("clone/map") || name.contains("clone/head"))
    {
        runtime.block_on(store.delete(&name.as_str().into())).expect("deleted");
    }
    destroy::destroy(&clone_at(&store), &FORCED).expect("deleted");
    assert!(names(&store).iter().all(|name| !name.starts_with("bucket/clone/")));
}

/// A directory of a volume disappears with it, unless something else is in it.
#[test]
fn the_directory_of_a_volume_is_removed() {
    let scratch = tempfile::tempdir().expect("a directory");
    let url = format!("file://{}/volume", scratch.path().display());
    let location = Location::parse(&url).expect("a place").with_secret(encrypted::secret());
    made(&location);
    destroy(&location).expect("deleted");
    assert!(!scratch.path().join("volume").exists());
    made(&location);
    std::fs::write(scratch.path().join("volume/data/notes"), b"").expect("written");
    destroy(&location).expect("deleted");
    let left: Vec<_> = std::fs::read_dir(scratch.path().join("volume")).expect("there").collect();
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(scratch.path().join("volume/data/notes").exists());
}

thread_local! {
    static NOTES: std::cell::RefCell<Vec<String>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Regression: an encrypted volume with a mark for a clone was kept if its key was lost, and the advice was
/// `--force`, although that had been given. Which clone the mark is for cannot be read, so the deletion says
/// that. With the key, the clone is found, and the volume stays.
#[test]
fn a_volume_with_a_clone_and_a_lost_key_is_deleted_if_forced() {
    let store = Arc::new(InMemory::new());
    encrypted::with_secret(|| {
        made(&volume(&store));
        versions::create(&version(&store, "v1")).expect("kept");
        versions::clone(&version(&store, "v1"), &clone_at(&store)).expect("cloned");
    });
    let forced = DestroyOptions {
        note: Some(|note| NOTES.with_borrow_mut(|notes| notes.push(note.to_owned()))),
        ..FORCED
    };
    let refused = encrypted::with_secret(|| destroy::destroy(&volume(&store), &forced));
    assert!(matches!(refused, Err(Error::HasClone { .. })), "{refused:?}");
    let refused = destroy(&volume(&store)).expect_err("the key is missing");
    assert!(matches!(refused, Error::NeedsSecret { .. }), "{refused}");
    assert_eq!(NOTES.take(), [""; 0]);
    destroy::destroy(&volume(&store), &forced).expect("deleted");
    assert!(names(&store).iter().all(|name| !name.starts_with("bucket/volume/")));
    let notes = NOTES.take();
    assert!(notes.len() == 1 && notes[0].contains("whether a clone reads"), "{notes:?}");
}
