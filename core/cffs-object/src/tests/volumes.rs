//! Lists of volumes.

use cffs::host::Standing;

use super::*;
use crate::volumes::{self, Found, InUse, Listing};
use crate::{Secret, versions};

fn place(store: &Arc<InMemory>, prefix: &str) -> Location {
    located(store.clone(), prefix)
}

fn make(location: &Location) -> LogDevice {
    let device = LogDevice::create(location, GEOMETRY).expect("made");
    mkfs::make(&device, &MkfsOptions::default()).expect("made");
    device
}

fn list(store: &Arc<InMemory>, prefix: &str) -> Listing {
    volumes::list(&place(store, prefix)).expect("listed")
}

fn of<'l>(listing: &'l Listing, name: &str) -> &'l Found {
    listing.volumes.iter().find(|found| found.name == name).expect("listed")
}

fn put(store: &InMemory, path: &str, bytes: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let path = object_store::path::Path::parse(path).expect("a path");
    runtime.block_on(store.put(&path, bytes.to_vec().into())).expect("put");
}

/// Volumes are listed with their state; other names are listed apart, also if they have a file `format`.
#[test]
pub fn volumes_are_listed_with_their_state() {
    let store = Arc::new(InMemory::new());
    drop(make(&place(&store, "b/closed")));
    let open = make(&place(&store, "b/in use"));
    drop(make(&place(&store, "b/deeper/one")));
    versions::create(&place(&store, "b/closed@v1")).expect("kept");
    let clone = place(&store, "b/clone");
    versions::clone(&place(&store, "b/closed@v1"), &clone).expect("cloned");
    put(&store, "b/other/format", b"no volume");
    put(&store, "b/format.txt", b"no volume");
    put(&store, "b/closed/map/notes", b"no map");
    put(&store, "b/closed/log/notes", b"no record");
    let listing = list(&store, "b");
    let names: Vec<_> = listing.volumes.iter().map(|found| found.name.as_str()).collect();
    assert_eq!(names, ["clone", "closed", "in use"]);
    assert_eq!(listing.others, ["deeper", "other"]);
    let is_encrypted = encrypted::secret().is_some();
    for (name, is_open) in [("closed", false), ("clone", false), ("in use", true)] {
        let about = of(&listing, name).about.as_ref().expect("described");
        assert_eq!(about.size_bytes, Some(SIZE_BYTES), "{name}");
        assert_eq!(about.is_encrypted, is_encrypted, "{name}");
        assert_eq!(about.in_use != InUse::No, is_open, "{name}");
        assert!(about.changed.is_some(), "{name}");
    }
    // The whole store is a place as well.
    assert_eq!(list(&store, "").others, ["b"]);
    assert_eq!(list(&store, "b/deeper").volumes.len(), 1);
    let nothing = list(&store, "typo");
    assert!(nothing.volumes.is_empty() && nothing.others.is_empty());
    drop(open);
}

/// The program that has a volume open is named by its mark, also after the record with the mark was
/// collected.
#[test]
pub fn the_writer_of_a_volume_is_listed() {
    let store = Arc::new(InMemory::new());
    drop(make(&place(&store, "b/tree")));
    let device = LogDevice::open(&place(&store, "b/tree"), OpenOptions::default()).expect("opened");
    let device = Arc::new(device);
    let host: Arc<dyn cffs::host::Host> = Arc::new(cffs::host::SystemHost);
    let options = cffs::vfs::types::OpenOptions { host: Some(host), ..Default::default() };
    let volume = cffs::open(device.clone(), Arc::new(SystemClock), options).expect("opened");
    let is_named = || {
        let listing = list(&store, "b");
        let about = of(&listing, "tree").about.as_ref().expect("described");
        match &about.in_use {
            InUse::Yes(Some((holder, standing))) => {
                holder.pid == std::process::id() && *standing == Standing::Own
            }
            _ => false,
        }
    };
    assert!(is_named());
    let files = Files::new(Arc::new(volume));
    files.create("/a").expect("created").write_all_at(0, &[1; 9000]).expect("written");
    files.volume().sync().expect("synced");
    device.collect().expect("collected");
    assert!(is_named(), "after a collection");
    files.close().expect("closed");
    drop((files, device));
    let listing = list(&store, "b");
    assert_eq!(of(&listing, "tree").about.as_ref().expect("described").in_use, InUse::No);
}

/// Without its key, or with another one, an encrypted volume is listed by what is not sealed.
#[test]
fn an_encrypted_volume_is_listed_without_its_key() {
    let store = Arc::new(InMemory::new());
    encrypted::with_secret(|| drop(make(&place(&store, "b/tree"))));
    let wrong = Arc::new(Secret::new(vec![b'1'; 64]).expect("a key"));
    for secret in [None, Some(wrong)] {
        let listing = encrypted::with(secret, || list(&store, "b"));
        let about = of(&listing, "tree").about.as_ref().expect("described");
        assert!(about.is_encrypted && about.changed.is_some());
        assert_eq!((about.size_bytes, &about.in_use), (None, &InUse::Sealed));
    }
}

/// A volume that cannot be described does not hide the others.
#[test]
fn a_damaged_volume_is_listed_with_the_reason() {
    let store = Arc::new(InMemory::new());
    drop(make(&place(&store, "b/one")));
    drop(make(&place(&store, "b/two")));
    put(&store, "b/one/format", b"CFFSOBJ1damaged");
    let listing = list(&store, "b");
    let why = of(&listing, "one").about.as_ref().expect_err("damaged").to_string();
    assert!(why.contains("b/one/format"), "{why}");
    assert!(of(&listing, "two").about.is_ok());
}

/// A listing takes one request, and a few for each name, for a volume of any size and history.
#[test]
fn requests_of_a_list() {
    let store = Arc::new(InMemory::new());
    for name in ["one", "two"] {
        let device = make(&place(&store, &format!("b/{name}")));
        for number in 0..100 {
            write(&device, number << 16, &[1; 4096]);
            device.sync().expect("synced");
        }
        drop(device);
    }
    put(&store, "b/other/file", b"no volume");
    let above = place(&store, "b");
    volumes::list(&above).expect("listed");
    let requests = above.requests();
    assert_eq!((requests.puts, requests.deletes), (0, 0));
    assert!(requests.lists <= 1 + 2 * 2 && requests.gets <= 2 * 2 + 1, "{requests:?}");
    assert!(requests.received_bytes <= 2 * (20 << 10), "{requests:?}");
}

/// Names of directories that no URL can have do not fail the list of a directory.
#[test]
fn volumes_in_a_directory_are_listed() {
    let scratch = tempfile::tempdir().expect("a directory");
    let above = Location::parse(&format!("file://{}", scratch.path().display())).expect("a place");
    let empty = volumes::list(&above).expect("listed");
    assert!(empty.volumes.is_empty() && empty.others.is_empty());
    for name in ["50% ~[a]", "a@b"] {
        let url = format!("file://{}/{name}/", scratch.path().display());
        drop(make(&Location::parse(&url).expect("a place")));
    }
    std::fs::create_dir(scratch.path().join(OsStr::from_bytes(b"a\xff"))).expect("made");
    std::fs::create_dir(scratch.path().join("a\nb")).expect("made");
    std::fs::create_dir(scratch.path().join("empty")).expect("made");
    std::fs::write(scratch.path().join("file"), b"").expect("written");
    let listing = volumes::list(&above).expect("listed");
    let names: Vec<_> = listing.volumes.iter().map(|found| found.name.as_str()).collect();
    assert_eq!(names, ["50% ~[a]", "a@b"]);
    assert_eq!(listing.others, ["empty"]);
    for found in &listing.volumes {
        let place = Location::parse(&found.url).expect("a place");
        LogDevice::open(&place, READ_ONLY).map(|_| ()).expect("the URL names the volume");
    }
    let file = Location::parse(&format!("file://{}/file", scratch.path().display()));
    let error = volumes::list(&file.expect("a place")).expect_err("no directory").to_string();
    assert!(error.contains("Not a directory"), "{error}");
}
