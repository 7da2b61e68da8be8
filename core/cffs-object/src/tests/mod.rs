use std::ffi::OsStr;
use std::io::IoSlice;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use cffs::clock::SystemClock;
use cffs::device::{BlockDevice, Geometry, MemoryDevice};
use cffs::files::Files;
use cffs::fsck::{self, CheckOptions};
use cffs::mkfs::{self, MkfsOptions};
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt};

use crate::format::Record;
use crate::{Collection, Error, Location, LogDevice, OpenOptions, Requests};

mod ahead;
mod cache;
mod collection;
mod core_crash;
mod core_model;
mod crash;
mod destroy;
mod encrypted;
mod faults;
mod follow;
mod handing_over;
mod model;
mod outage;
mod paused;
mod reading;
mod replaced;
mod requests;
mod staging;
mod staging_model;
mod store;
mod taking_over;
mod two_writers;
mod versions;
mod volumes;

use collection::objects;
use store::{Fault, FaultStore};

const SIZE_BYTES: u64 = 64 << 20;
const GEOMETRY: Geometry = Geometry { size_bytes: SIZE_BYTES, sector_bytes: 4096 };
const LATER: Collection =
    Collection { grace: Duration::from_secs(3600), after_bytes: 64 << 20, extents_max: 1 << 20 };
const TAKE_OVER: OpenOptions = OpenOptions {
    without_objects: false,
    take_over: true,
    read_only: false,
    patience: Some(Duration::ZERO),
    collection: LATER,
    note: None,
    succeeds: None,
};
const READ_ONLY: OpenOptions =
    OpenOptions { read_only: true, take_over: false, patience: None, ..TAKE_OVER };

fn at(store: Arc<dyn ObjectStore>) -> Location {
    located(store, "bucket/volume")
}

/// A place of a volume, with the secret of [`encrypted::with_secret`].
fn located(store: Arc<dyn ObjectStore>, prefix: &str) -> Location {
    Location::new("test", store, prefix).with_secret(encrypted::secret())
}

fn in_memory(store: &InMemory) -> Location {
    at(Arc::new(store.fork()))
}

fn write(device: &impl BlockDevice, offset: u64, data: &[u8]) {
    device.write_at(offset, &[IoSlice::new(data)]).expect("written");
}

fn read(device: &impl BlockDevice, offset: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0xee; len];
    device.read_at(offset, &mut buf).expect("read");
    buf
}

fn files_on(device: Arc<dyn BlockDevice>) -> Files {
    let volume = cffs::open(device, Arc::new(SystemClock), Default::default()).expect("opened");
    Files::new(Arc::new(volume))
}

/// Makes a volume in which only zeros were written, and releases it.
fn make_zeros(location: &Location, geometry: Geometry) {
    let device = LogDevice::create(location, geometry).expect("made");
    write(&device, 0, &[0; 4096]);
    device.sync().expect("synced");
    device.release().expect("released");
}

/// Pseudorandom numbers, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }
}

/// Makes requests of any offset and length, and the same on a device in memory. Reads agree, before and after
/// each sync, and after the next opening.
#[test]
fn reads_are_those_of_a_device_in_memory() {
    for seed in 0..8 {
        let mut numbers = Numbers(seed);
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let mut device = LogDevice::create(&at(store.clone()), GEOMETRY).expect("made");
        let model = MemoryDevice::new(SIZE_BYTES);
        for step in 0..300 {
            let offset = numbers.below(SIZE_BYTES - (1 << 20));
            let len = 1 + numbers.below(if step % 16 == 0 { 1 << 20 } else { 9000 });
            match numbers.below(10) {
                0 => {
                    // Discarded ranges read as zeros on this device, so the model writes zeros.
                    device.discard(offset, len).expect("discarded");
                    write(&model, offset, &vec![0; len as usize]);
                }
                1 => device.sync().expect("synced"),
                2 => {
                    device.sync().expect("synced");
                    drop(device);
                    device = LogDevice::open(&at(store.clone()), OpenOptions::default())
                        .expect("opened");
                }
                _ => {
                    let data: Vec<u8> = (0..len).map(|at| (at * 7 + step + seed) as u8).collect();
                    write(&device, offset, &data);
                    write(&model, offset, &data);
                }
            }
            let from = offset.saturating_sub(5000);
            let len = len as usize + 10_000;
            assert!(read(&device, from, len) == read(&model, from, len), "seed {seed}, {step}");
        }
        device.sync().expect("synced");
        drop(device);
        let device = LogDevice::open(&at(store), READ_ONLY).expect("opened");
        let all = |device: &dyn BlockDevice| read(&device, 0, SIZE_BYTES as usize);
        assert!(all(&device) == all(&model), "seed {seed}");
    }
}

/// The machine may stop at every PUT: before it, or after it was applied. The resulting store opens as a
/// volume without problems, and contains every file whose fsync has returned.
#[test]
fn every_put_leaves_a_volume_with_all_that_was_synced() {
    let store = Arc::new(FaultStore::new());
    let device = Arc::new(LogDevice::create(&at(store.clone()), GEOMETRY).expect("made"));
    mkfs::make(&*device, &MkfsOptions::default()).expect("made");
    let files = files_on(device.clone());
    store.keep_images();
    let mut synced_at = Vec::new();
    for number in 0..12_u64 {
        let path = format!("/f{number}");
        let file = files.create(&path).expect("created");
        file.write_all_at(0, &vec![number as u8; 3000 + 4000 * number as usize]).expect("written");
        files.volume().sync().expect("synced");
        synced_at.push(store.images().len());
    }
    let images = store.images();
    assert!(images.len() >= 13, "{} states", images.len());
    for (state, image) in images.iter().enumerate() {
        let device = LogDevice::open(&in_memory(image), TAKE_OVER).expect("claimed");
        let device: Arc<dyn BlockDevice> = Arc::new(device);
        let files = files_on(device.clone());
        for (number, since) in synced_at.iter().enumerate() {
            if state + 1 >= *since {
                let len = 3000 + 4000 * number;
                let mut contents = vec![0; len + 1];
                let file = files.open(format!("/f{number}")).expect("there");
                assert_eq!(file.read_at(0, &mut contents).expect("read"), len);
                assert!(contents[..len].iter().all(|byte| *byte == number as u8));
            }
        }
        files.close().expect("closed");
        let options = CheckOptions { force: true, contents: true, ..CheckOptions::default() };
        let report = fsck::check(&*device, &options, &()).expect("checked");
        assert!(report.problems.is_empty(), "state {state}: {:?}", report.problems);
    }
}

/// No uncommitted data survives, even if it was sent ahead of its record.
#[test]
fn unsynced_writes_are_lost() {
    let store = Arc::new(InMemory::new());
    let device = LogDevice::create(&at(store.clone()), GEOMETRY).expect("made");
    write(&device, 0, &[1; 4096]);
    device.sync().expect("synced");
    for number in 0..24 {
        write(&device, number << 20, &vec![2; 1 << 20]);
    }
    assert!(device.requests().puts >= 4, "{:?}", device.requests());
    let crashed = LogDevice::open(&at(store), READ_ONLY).expect("opened");
    assert_eq!(read(&crashed, 0, 4096), [1; 4096]);
    assert!(read(&crashed, 4096, 20 << 20).iter().all(|byte| *byte == 0));
    assert!(read(&device, 0, 24 << 20).iter().all(|byte| *byte == 2));
}

#[test]
fn a_new_size_is_durable_after_a_sync() {
    let store = Arc::new(InMemory::new());
    let device = LogDevice::create(&at(store.clone()), GEOMETRY).expect("made");
    device.control().grow(SIZE_BYTES * 2).expect("grown");
    device.sync().expect("synced");
    write(&device, SIZE_BYTES * 2 - 3, b"end");
    device.sync().expect("synced");
    drop(device);
    let device = LogDevice::open(&at(store), READ_ONLY).expect("opened");
    assert_eq!(device.geometry().size_bytes, SIZE_BYTES * 2);
    assert_eq!(read(&device, SIZE_BYTES * 2 - 3, 3), b"end");
}

#[test]
fn a_request_beyond_the_device_is_refused() {
    let device = LogDevice::create(&at(Arc::new(InMemory::new())), GEOMETRY).expect("made");
    for outcome in [
        device.read_at(SIZE_BYTES - 1, &mut [0; 2]),
        device.write_at(u64::MAX, &[IoSlice::new(&[0; 2])]),
        device.discard(SIZE_BYTES, 1),
    ] {
        assert_eq!(outcome.expect_err("outside").kind(), std::io::ErrorKind::InvalidInput);
    }
}

/// An object's name, and its new contents, or `None` to remove it.
type Change = (String, Option<Vec<u8>>);

/// The log is a chain: a record that does not follow the previous one is refused by name.
#[test]
fn a_log_that_was_tampered_with_is_refused() {
    let run = |act: &dyn Fn(&InMemory) -> Vec<Change>| {
        let store = Arc::new(InMemory::new());
        let device = LogDevice::create(&at(store.clone()), GEOMETRY).expect("made");
        for number in 0..4 {
            write(&device, number * 4096, &[number as u8; 4096]);
            device.sync().expect("synced");
        }
        std::mem::forget(device);
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        for (name, bytes) in act(&store) {
            let path = format!("bucket/volume/{name}").into();
            runtime
                .block_on(async {
                    match bytes {
                        Some(bytes) => store.put(&path, bytes.into()).await.map(|_| ()),
                        None => store.delete(&path).await,
                    }
                })
                .expect("changed");
        }
        LogDevice::open(&at(store), READ_ONLY).map(|_| ())
    };
    assert!(run(&|_| Vec::new()).is_ok());
    let name = |slot: u64| crate::format::record_name(slot);
    let refused = |outcome: Result<(), Error>, slot: u64, part: &str| {
        let error = outcome.expect_err("damaged").to_string();
        assert!(error.contains(&name(slot)) && error.contains(part), "{error}");
    };
    refused(run(&|_| vec![(name(3), None)]), 3, "is missing");
    refused(run(&|_| vec![(name(3), Some(vec![7; 200]))]), 3, "no record of a log");
    refused(run(&|_| vec![(name(3), Some(Vec::from(*b"CFFSREC1")))]), 3, "truncated");
    let copy = |store: &InMemory, from: u64, to: u64| {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let path = format!("bucket/volume/{}", name(from)).into();
        let bytes = runtime.block_on(async { store.get(&path).await?.bytes().await });
        vec![(name(to), Some(bytes.expect("read").to_vec()))]
    };
    refused(run(&|store| copy(store, 3, 4)), 4, "of another slot");
    let flipped = |store: &InMemory| {
        let mut changes = copy(store, 4, 4);
        if let Some(bytes) = &mut changes[0].1 {
            bytes[90] ^= 1;
        }
        changes
    };
    refused(run(&flipped), 4, "checksum");
    let after_another = |store: &InMemory| {
        let mut changes = copy(store, 4, 4);
        if let Some(bytes) = &mut changes[0].1 {
            let (mut head, _) = Record::decode(bytes).expect("whole");
            head.previous ^= 1;
            let (head, _) = head.encode();
            bytes[..head.len()].copy_from_slice(&head);
        }
        changes
    };
    refused(run(&after_another), 4, "does not follow");
}

/// A missing or wrong hint only costs requests.
#[test]
fn a_wrong_hint_costs_only_requests() {
    let store = Arc::new(InMemory::new());
    let device = LogDevice::create(&at(store.clone()), GEOMETRY).expect("made");
    write(&device, 0, b"kept");
    device.sync().expect("synced");
    drop(device);
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    for hint in [None, Some(vec![1; 30]), Some(crate::format::encode_hint(77, 1))] {
        let path = "bucket/volume/head".into();
        runtime
            .block_on(async {
                match hint {
                    Some(bytes) => store.put(&path, bytes.into()).await.map(|_| ()),
                    None => store.delete(&path).await,
                }
            })
            .expect("changed");
        let device = LogDevice::open(&at(store.clone()), READ_ONLY).expect("opened");
        assert_eq!(read(&device, 0, 4), b"kept");
    }
}

/// A directory is a store like the others, with files as objects.
#[test]
fn a_directory_is_a_store() {
    let directory = tempfile::tempdir().expect("a directory");
    let url = format!("file://{}/volume", directory.path().display());
    let location = Location::parse(&url).expect("a place");
    let device = Arc::new(LogDevice::create(&location, GEOMETRY).expect("made"));
    mkfs::make(&*device, &MkfsOptions::default()).expect("made");
    let files = files_on(device.clone());
    files.create("/a").expect("created").write_all_at(0, b"contents").expect("written");
    files.close().expect("closed");
    drop((files, device));
    assert!(directory.path().join("volume/log/00000000000000000001").exists());
    let again = LogDevice::create(&location, GEOMETRY).map(|_| ()).expect_err("there is one");
    assert!(matches!(again, Error::Exists { .. }), "{again}");
    let device = LogDevice::open(&location, READ_ONLY).expect("opened");
    let options = cffs::vfs::types::OpenOptions { read_only: true, ..Default::default() };
    let volume = cffs::open(Arc::new(device), Arc::new(SystemClock), options).expect("opened");
    let mut contents = [0; 8];
    let files = Files::new(Arc::new(volume));
    files.open("/a").expect("there").read_at(0, &mut contents).expect("read");
    assert_eq!(&contents, b"contents");
}

/// Regression: such a URL was treated as a path, and the client of a directory panics for such paths.
#[test]
fn a_url_with_bytes_that_are_not_utf8_is_refused() {
    let scratch = tempfile::tempdir().expect("a directory");
    let above = scratch.path().join(OsStr::from_bytes(b"a\xff"));
    std::fs::create_dir(&above).expect("made");
    let link = scratch.path().join("link");
    std::os::unix::fs::symlink(&above, &link).expect("linked");
    for volume in [above.join("volume"), link.join("volume"), above.clone()] {
        let argument = [b"file://", volume.as_os_str().as_bytes()].concat();
        let url = Location::url_of(OsStr::from_bytes(&argument).as_ref()).expect("a URL");
        let error = Location::parse(&url).map(drop).expect_err("refused").to_string();
        assert!(error.contains("the path of a volume in a directory must be UTF-8"), "{error}");
    }
    assert_eq!(Location::url_of(std::path::Path::new("/a:/b")), None);
}

/// Regression: names were percent-decoded, and some of their characters encoded again: `~` was `%7E` on the
/// disk, and a clone looked for the objects of such an origin at another place.
#[test]
fn a_directory_of_any_name_is_a_store() {
    let scratch = tempfile::tempdir().expect("a directory");
    for name in ["50% done", "%41", "a~b", "[x]", "what?", "#1", "a#b", "\u{fc} {*}\\^`|", "a@b"] {
        let above = scratch.path().join(name);
        std::fs::create_dir(&above).expect("made");
        let place = |name: &str| {
            // The slash keeps an @ from being followed by a version.
            let location = Location::parse(&format!("file://{}/{name}/", above.display()));
            location.expect("a URL").with_secret(encrypted::secret())
        };
        let location = place(name);
        let device = LogDevice::create(&location, GEOMETRY).expect("made");
        write(&device, 0, &[7; 4096]);
        device.sync().expect("synced");
        device.release().expect("released");
        assert!(above.join(name).join("format").exists(), "{name} has another name on the disk");
        assert_eq!(std::fs::read_dir(&above).expect("listed").count(), 1, "{name}");

        let version = Location::parse(&format!("file://{}/{name}@v1", above.display()));
        let version = version.expect("a URL").with_secret(encrypted::secret());
        crate::versions::create(&version).expect("kept");
        let clone = place(&format!("clone of {name}"));
        crate::versions::clone(&version, &clone).expect("cloned");
        for location in [&location, &version, &clone] {
            let device = LogDevice::open(location, READ_ONLY).expect("opened");
            assert_eq!(read(&device, 0, 4096), [7; 4096], "{name}");
            assert_eq!(device.verify(None).expect("listed"), [], "{name}");
        }
        let kept = crate::versions::list(&location).expect("listed");
        assert!(kept.iter().any(|version| version.name == "v1"), "{name}: {}", kept.len());
    }
}

/// The same of prefixes in a bucket, where a URL has escapes.
#[test]
fn a_clone_of_a_volume_with_any_prefix_reads_its_objects() {
    for prefix in ["a~b/c%d", "[x]/y z"] {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let location = located(store.clone(), prefix);
        let device = LogDevice::create(&location, GEOMETRY).expect("made");
        write(&device, 0, &[7; 4096]);
        device.sync().expect("synced");
        drop(device);
        let clone = location.sibling("clone~");
        let version = located(store.clone(), &format!("{prefix}@kept"));
        crate::versions::create(&version).expect("kept");
        crate::versions::clone(&version, &clone).expect("cloned");
        let device = LogDevice::open(&clone, READ_ONLY).expect("opened");
        assert_eq!(read(&device, 0, 4096), [7; 4096], "{prefix}");
        assert!(objects(&*store).iter().any(|(name, _)| name.starts_with(prefix)), "{prefix}");
    }
}

#[test]
fn an_invalid_url_is_refused_with_advice() {
    for (url, part) in [
        ("ftp://a/b", "unknown store ftp://; the stores are s3://, gs://, az:// and file://"),
        ("gs:///prefix", "write gs://bucket/prefix"),
        ("az://key:secret@container/x", "a URL has no credentials"),
        ("s3://key:secret@bucket/x", "a URL has no credentials"),
        ("file:///no/such/directory/volume", "directory /no/such/directory does not exist"),
        ("file://host/x", "write file:///directory"),
        ("file:///", "with a directory only for the volume"),
        ("file://", "with a directory only for the volume"),
        ("file://user:secret@ho st/x", "write file:///directory, with an absolute path"),
        ("file:///tmp/a\nb", "no control characters"),
        ("file:///tmp/..", "with a directory only for the volume"),
        ("s3://bucket/x?secret", "s3://bucket: a URL ends with the path"),
        ("s3://bucket/x#secret", "s3://bucket: a URL ends with the path"),
    ] {
        let error = Location::parse(url).map(|_| ()).expect_err("no store").to_string();
        assert!(error.contains(part), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
}
