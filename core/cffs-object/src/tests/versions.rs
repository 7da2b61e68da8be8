//! Kept versions, and clones.

use super::collection::objects;
use super::*;
use crate::versions;

fn version(store: &Arc<InMemory>, name: &str) -> Location {
    located(store.clone(), &format!("bucket/volume@{name}"))
}

fn clone_at(store: &Arc<InMemory>, name: &str) -> Location {
    located(store.clone(), &format!("bucket/{name}"))
}

fn made() -> (Arc<InMemory>, LogDevice) {
    let store = Arc::new(InMemory::new());
    let device = LogDevice::create(&at(store.clone()), GEOMETRY).expect("made");
    (store, device)
}

fn delete(store: &InMemory, is_chosen: impl Fn(&str) -> bool) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    for (name, _) in objects(store).into_iter().filter(|(name, _)| is_chosen(name)) {
        runtime.block_on(store.delete(&name.into())).expect("deleted");
    }
}

fn puts_of(store: &InMemory, act: impl FnOnce()) -> usize {
    let before = objects(store);
    act();
    objects(store).iter().filter(|object| !before.contains(object)).count()
}

/// A version does not change, whatever is written and collected later, until it is removed.
#[test]
pub fn a_version_stays_as_it_was() {
    let (store, device) = made();
    write(&device, 0, &[1; 9000]);
    device.sync().expect("synced");
    write(&device, 0, b"not synced");
    let kept = version(&store, "first");
    assert_eq!(puts_of(&store, || versions::create(&kept).expect("kept")), 1);
    let again = versions::create(&kept).expect_err("there is one");
    assert!(matches!(again, Error::VersionExists { .. }), "{again}");
    device.sync().expect("synced");
    write(&device, 0, &[2; 9000]);
    device.sync().expect("synced");
    device.collect().expect("collected");
    // A location counts the requests of everything opened through it.
    let read_only = LogDevice::open(&version(&store, "first"), READ_ONLY).expect("opened");
    assert_eq!(read(&read_only, 0, 9000), [1; 9000]);
    let received_bytes = read_only.requests().received_bytes;
    assert_eq!(read_only.requests(), Requests { gets: 3, received_bytes, ..Requests::default() });
    let refused = LogDevice::open(&kept, TAKE_OVER).map(|_| ()).expect_err("for reading alone");
    assert!(matches!(refused, Error::VersionIsFixed { .. }), "{refused}");
    let names = |all: Vec<versions::Version>| -> Vec<String> {
        all.into_iter().map(|version| version.name).collect()
    };
    assert_eq!(names(versions::list(&at(store.clone())).expect("listed")), ["first"]);
    versions::remove(&kept).expect("removed");
    assert!(matches!(versions::remove(&kept), Err(Error::NoVersion { .. })));
    assert!(matches!(LogDevice::open(&kept, READ_ONLY), Err(Error::NoVersion { .. })));
    assert!(device.collect().expect("collected").objects > 0);
    assert_eq!(read(&device, 0, 9000), [2; 9000]);
}

/// A clone begins as the version, changes independently, and keeps shared data, even when the version is
/// removed and its origin rewritten; so does a clone of it.
#[test]
pub fn a_clone_is_independent_of_its_origin() {
    let (store, device) = made();
    write(&device, 0, &[1; 9000]);
    write(&device, 1 << 20, &vec![3; 9 << 20]);
    device.sync().expect("synced");
    let kept = version(&store, "v1");
    versions::create(&kept).expect("kept");
    let place = clone_at(&store, "clone");
    let puts = puts_of(&store, || versions::clone(&kept, &place).expect("cloned"));
    assert_eq!(puts, 4);
    assert!(matches!(versions::clone(&kept, &place), Err(Error::Exists { .. })));
    let clone = LogDevice::open(&place, OpenOptions::default()).expect("opened");
    assert_eq!(read(&clone, 0, 9000), [1; 9000]);
    write(&clone, 4096, &[5; 4096]);
    clone.sync().expect("synced");
    write(&device, 0, &vec![2; 12 << 20]);
    device.sync().expect("synced");
    versions::remove(&kept).expect("removed");
    device.collect().expect("collected");
    clone.collect().expect("collected");
    let of_clone = located(store.clone(), "bucket/clone@v2");
    versions::create(&of_clone).expect("kept");
    versions::clone(&of_clone, &clone_at(&store, "second")).expect("cloned");
    write(&clone, 0, &[6; 9000]);
    clone.sync().expect("synced");
    versions::remove(&of_clone).expect("removed");
    clone.collect().expect("collected");
    let second = LogDevice::open(&clone_at(&store, "second"), OpenOptions::default());
    let second = second.expect("opened");
    for device in [&second, &LogDevice::open(&place, READ_ONLY).expect("opened")] {
        assert!(read(device, 1 << 20, 9 << 20).iter().all(|byte| *byte == 3));
    }
    assert_eq!(read(&second, 0, 4096), [1; 4096]);
    assert_eq!(read(&second, 4096, 4096), [5; 4096]);
    assert_eq!(read(&clone, 0, 9000), [6; 9000]);
    assert_eq!(read(&device, 0, 9000), [2; 9000]);
    let listed = versions::list(&at(store.clone())).expect("listed");
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].clone.as_deref(), Some("bucket/clone"));
}

/// Objects kept for a clone are deleted after the clone is removed.
#[test]
pub fn a_removed_clone_keeps_nothing() {
    let (store, device) = made();
    write(&device, 0, &[1; 9000]);
    device.sync().expect("synced");
    let kept = version(&store, "v1");
    versions::create(&kept).expect("kept");
    versions::clone(&kept, &clone_at(&store, "clone")).expect("cloned");
    versions::remove(&kept).expect("removed");
    assert_eq!(versions::list(&at(store.clone())).expect("listed").len(), 1);
    assert!(matches!(versions::remove(&kept), Err(Error::NoVersion { .. })));
    delete(&store, |name| name.starts_with("bucket/clone/"));
    versions::remove(&kept).expect("removed");
    assert_eq!(versions::list(&at(store.clone())).expect("listed"), []);
}

/// An interrupted clone reports that it is incomplete, and is no volume of size 0.
#[test]
pub fn an_incomplete_clone_is_refused() {
    let (store, device) = made();
    write(&device, 0, &[1; 9000]);
    device.sync().expect("synced");
    let kept = version(&store, "v1");
    versions::create(&kept).expect("kept");
    versions::clone(&kept, &clone_at(&store, "clone")).expect("cloned");
    delete(&store, |name| name == "bucket/clone/head" || name.starts_with("bucket/clone/map/"));
    let error = LogDevice::open(&clone_at(&store, "clone"), READ_ONLY).map(|_| ());
    let error = error.expect_err("not complete").to_string();
    assert!(error.contains("was not completed"), "{error}");
}

#[test]
fn names_of_versions() {
    for (url, part) in [
        ("file:///tmp/volume@", "up to 128 letters"),
        ("file:///tmp/volume@a b", "up to 128 letters"),
        ("file:///tmp/volume@.hidden", "up to 128 letters"),
    ] {
        let error = Location::parse(url).map(|_| ()).expect_err("no name").to_string();
        assert!(error.contains(part), "{error}");
    }
    let location = Location::parse("file:///tmp/volume@v1.2").expect("a version");
    assert_eq!(location.version(), Some("v1.2"));
    let sibling = located(Arc::new(InMemory::new()), "a@b/volume");
    assert_eq!(sibling.version(), None);
    let unnamed = versions::create(&at(Arc::new(InMemory::new()))).expect_err("no name");
    assert!(matches!(unnamed, Error::NoName { .. }), "{unnamed}");
}
