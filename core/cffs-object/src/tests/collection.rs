//! Dead objects are deleted, and no other objects.

use object_store::throttle::{ThrottleConfig, ThrottledStore};

use super::*;
use crate::collect::{
    self, DEAD_BYTES_MIN, Mark, NEAR_BYTES, WINDOW_BYTES, fragmented, scattered_beginning,
};
use crate::extents::Extents;
use crate::format::{Object, Place, Record};
use crate::history::History;
use crate::versions;

const AT_ONCE: OpenOptions = OpenOptions {
    without_objects: false,
    read_only: false,
    take_over: true,
    patience: Some(Duration::ZERO),
    collection: Collection { grace: Duration::ZERO, after_bytes: 1 << 20, extents_max: 1 << 20 },
    note: None,
    succeeds: None,
};

/// The names and lengths of all objects.
pub fn objects(store: &dyn ObjectStore) -> Vec<(String, u64)> {
    use futures_util::TryStreamExt;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let all: Vec<_> = runtime.block_on(store.list(None).try_collect()).expect("listed");
    all.into_iter().map(|meta| (meta.location.to_string(), meta.size)).collect()
}

fn bytes_in(store: &dyn ObjectStore) -> u64 {
    objects(store).iter().map(|(_, bytes)| bytes).sum()
}

/// Rewrites 4 MiB of the device repeatedly, piece by piece, and the same of a model.
fn churn(device: &LogDevice, model: &MemoryDevice, numbers: &mut Numbers, syncs: u64) {
    for number in 0..syncs {
        let offset = numbers.below((4 << 20) - 70_000) & !4095;
        let data = vec![number as u8 | 1; 4096 + numbers.below(60_000) as usize];
        write(device, offset, &data);
        write(model, offset, &data);
        device.sync().expect("synced");
    }
}

fn same(device: &LogDevice, model: &MemoryDevice) -> bool {
    read(device, 0, 8 << 20) == read(model, 0, 8 << 20)
}

/// The bytes of objects after a collection.
#[derive(Debug, Default)]
struct Left {
    /// Live bytes.
    live: u64,
    /// Objects without live bytes.
    dead: u64,
    /// Objects that are at least half live.
    of_full: u64,
    /// Dead bytes of the others.
    spared: u64,
}

impl Left {
    fn of(store: &Arc<dyn ObjectStore>) -> Left {
        let history = History::read(&at(store.clone()).connect().expect("there")).expect("read");
        let live_of = collect::live(&history.extents);
        let mut left = Left::default();
        for (name, bytes) in objects(&**store) {
            let name = name.strip_prefix("bucket/volume/").expect("of the volume");
            let bare = Record::head_bytes(0) as u64;
            let Some(object) = Object::of_name(name).filter(|_| bytes > bare) else { continue };
            let live = live_of.get(&object).copied().unwrap_or(0);
            left.live += live;
            match live {
                0 => left.dead += bytes,
                live if live * 2 < bytes => left.spared += bytes - live,
                _ => left.of_full += bytes,
            }
        }
        left
    }
}

/// A volume that is rewritten for long needs at most a few times its live bytes; its claims stay.
#[test]
fn a_volume_that_is_rewritten_stays_small() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let model = MemoryDevice::new(SIZE_BYTES);
    make_zeros(&at(store.clone()), GEOMETRY);
    let mut numbers = Numbers(1);
    for _ in 0..3 {
        let device = LogDevice::open(&at(store.clone()), AT_ONCE).expect("opened");
        churn(&device, &model, &mut numbers, 400);
        assert!(same(&device, &model));
    }
    // Some 40 MB were written, of which 4 MB are live.
    assert!(bytes_in(&*store) < 20 << 20, "{} bytes", bytes_in(&*store));
    let device = LogDevice::open(&at(store.clone()), AT_ONCE).expect("opened");
    assert!(same(&device, &model));
    let collected = device.collect().expect("collected");
    assert!(collected.objects > 0, "{collected:?}");
    let left = Left::of(&store);
    println!("{left:?}");
    assert!(left.live <= 4 << 20 && left.dead == 0, "{left:?}");
    assert!(left.spared < DEAD_BYTES_MIN, "{left:?}");
    // An object stays while at least half of it is live. Which ones do depends on the times of earlier
    // sweeps.
    let bytes = bytes_in(&*store);
    assert!(bytes < 2 * left.live + DEAD_BYTES_MIN, "{bytes} bytes, {left:?}");
    assert!(same(&device, &model));
    drop(device);
    let device = LogDevice::open(&at(store.clone()), READ_ONLY).expect("opened");
    assert!(same(&device, &model));
    let head = crate::format::Record::head_bytes(0) as u64;
    let bare = objects(&*store).iter().filter(|(_, bytes)| *bytes == head).count();
    assert_eq!(bare, 10, "five claims and their releases");
}

/// A store that lists slowly does not fill up either: the writer waits for sweeps.
#[test]
fn a_slow_store_keeps_a_volume_small() {
    let wait_list_per_call = Duration::from_millis(100);
    let config = ThrottleConfig { wait_list_per_call, ..ThrottleConfig::default() };
    let store: Arc<dyn ObjectStore> = Arc::new(ThrottledStore::new(InMemory::new(), config));
    make_zeros(&at(store.clone()), GEOMETRY);
    let device = LogDevice::open(&at(store.clone()), AT_ONCE).expect("opened");
    let model = MemoryDevice::new(SIZE_BYTES);
    churn(&device, &model, &mut Numbers(5), 1200);
    assert!(bytes_in(&*store) < 20 << 20, "{} bytes", bytes_in(&*store));
    assert!(same(&device, &model));
}

/// The machine may stop before or after each PUT and each delete; all synced data survives.
#[test]
pub fn a_crash_amid_collection_loses_nothing() {
    let store = Arc::new(FaultStore::new());
    let device = LogDevice::create(&at(store.clone()), GEOMETRY).expect("made");
    let model = MemoryDevice::new(SIZE_BYTES);
    let mut numbers = Numbers(2);
    churn(&device, &model, &mut numbers, 30);
    store.keep_images();
    for _ in 0..2 {
        device.collect().expect("collected");
        let images = store.images();
        for (state, image) in images.iter().enumerate() {
            let crashed = LogDevice::open(&in_memory(image), READ_ONLY).expect("opened");
            assert!(same(&crashed, &model), "state {state}");
        }
        assert!(images.len() >= 9, "{} states", images.len());
        store.keep_images();
        churn(&device, &model, &mut numbers, 20);
        store.keep_images();
    }
}

/// A release compacts the beginning of the device. The machine may stop before or after each of its PUTs:
/// synced data is intact, and so is an earlier version, even after dead objects were deleted.
#[test]
pub fn a_crash_amid_a_release_loses_nothing() {
    let store = Arc::new(FaultStore::new());
    let location = at(store.clone());
    let device = LogDevice::create(&location, GEOMETRY).expect("made");
    let model = MemoryDevice::new(SIZE_BYTES);
    churn(&device, &model, &mut Numbers(8), 60);
    let version = located(store.clone(), "bucket/volume@kept");
    versions::create(&version).expect("kept");
    let kept = read(&device, 0, 8 << 20);
    churn(&device, &model, &mut Numbers(9), 60);
    let scattered_bytes = bytes_in(&*store);
    store.keep_images();
    device.release().expect("released");
    let images = store.images();
    assert_eq!(
        images.len(),
        5,
        "before and after the compacted record, the release, the map, the hint"
    );
    for (state, image) in images.iter().enumerate() {
        for options in [READ_ONLY, TAKE_OVER] {
            let crashed = LogDevice::open(&in_memory(image), options).expect("opened");
            assert!(same(&crashed, &model), "state {state}");
        }
    }
    assert!(bytes_in(&*store) < scattered_bytes + WINDOW_BYTES);
    let device = LogDevice::open(&location, AT_ONCE).expect("opened");
    device.collect().expect("collected");
    assert!(same(&device, &model));
    let version = LogDevice::open(&version, READ_ONLY).expect("opened");
    assert!(read(&version, 0, 8 << 20) == kept);
}

/// After an uncommitted change, a release writes nothing of the volume.
#[test]
pub fn a_release_drops_unsynced_writes() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let device = LogDevice::create(&at(store.clone()), GEOMETRY).expect("made");
    let model = MemoryDevice::new(SIZE_BYTES);
    churn(&device, &model, &mut Numbers(8), 60);
    write(&device, 0, &[99; 4096]);
    let before = device.requests().puts;
    device.release().expect("released");
    assert_eq!(device.requests().puts - before, 3, "the release, the map and the hint");
    let device = LogDevice::open(&at(store), READ_ONLY).expect("opened");
    assert!(same(&device, &model));
}

/// A writer that was taken over compacts nothing.
#[test]
fn a_release_after_a_takeover_changes_nothing() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let first = LogDevice::create(&at(store.clone()), GEOMETRY).expect("made");
    let model = MemoryDevice::new(SIZE_BYTES);
    churn(&first, &model, &mut Numbers(8), 60);
    let second = LogDevice::open(&at(store.clone()), TAKE_OVER).expect("taken over");
    churn(&second, &model, &mut Numbers(9), 10);
    let before = objects(&*store);
    let error = first.release().expect_err("fenced").to_string();
    assert!(error.contains("another program took the volume over"), "{error}");
    assert_eq!(objects(&*store), before);
    assert!(same(&second, &model));
}

/// The map stays small even if every other block is rewritten.
#[test]
fn the_map_is_bounded() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    make_zeros(&at(store.clone()), GEOMETRY);
    let mut options = AT_ONCE;
    options.collection.extents_max = 200;
    let device = LogDevice::open(&at(store.clone()), options).expect("opened");
    let model = MemoryDevice::new(SIZE_BYTES);
    let mut numbers = Numbers(3);
    for number in 0..40_u8 {
        for _ in 0..50 {
            let offset = numbers.below(SIZE_BYTES / 4096) * 4096;
            write(&device, offset, &[number; 4096]);
            write(&model, offset, &[number; 4096]);
        }
        device.sync().expect("synced");
        assert!(device.extent_count() <= 400, "{} extents", device.extent_count());
    }
    assert!(read(&device, 0, SIZE_BYTES as usize) == read(&model, 0, SIZE_BYTES as usize));
}

/// A program with an old version open, without a snapshot of it, gets an error with advice.
#[test]
fn a_reader_of_collected_objects_gets_an_error_that_says_so() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let device = LogDevice::create(&at(store.clone()), GEOMETRY).expect("made");
    write(&device, 0, &[1; 4096]);
    device.sync().expect("synced");
    let reader = LogDevice::open(&at(store.clone()), READ_ONLY).expect("opened");
    write(&device, 0, &[2; 4096]);
    device.sync().expect("synced");
    assert_eq!(device.collect().expect("collected").objects, 1);
    let error = reader.read_at(0, &mut [0; 4096]).expect_err("collected").to_string();
    assert!(error.contains("deleted because newer states of the volume"), "{error}");
    assert_eq!(read(&device, 0, 4096), [2; 4096]);
}

/// Nothing is deleted before the end of the grace period, or before enough was written.
#[test]
fn the_grace_period_is_kept() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    make_zeros(&at(store.clone()), GEOMETRY);
    let mut options = AT_ONCE;
    options.collection.grace = Duration::from_secs(3600);
    let device = LogDevice::open(&at(store.clone()), options).expect("opened");
    churn(&device, &MemoryDevice::new(SIZE_BYTES), &mut Numbers(4), 200);
    assert_eq!(device.requests().deletes, 0);
    options.collection = Collection { grace: Duration::ZERO, ..LATER };
    let device = LogDevice::open(&at(store), options).expect("opened");
    churn(&device, &MemoryDevice::new(SIZE_BYTES), &mut Numbers(4), 200);
    assert_eq!(device.requests().deletes, 0);
}

/// A writer that was paused until all its slots were collected stops writing.
#[test]
pub fn a_writer_that_slept_through_a_collection_is_fenced() {
    let store = Arc::new(FaultStore::new());
    let first = LogDevice::create(&at(store.clone()), GEOMETRY).expect("made");
    let model = MemoryDevice::new(SIZE_BYTES);
    churn(&first, &model, &mut Numbers(5), 5);
    write(&first, 0, b"never");
    let second = LogDevice::open(&at(store.clone()), TAKE_OVER).expect("taken over");
    churn(&second, &model, &mut Numbers(6), 40);
    second.collect().expect("collected");
    churn(&second, &model, &mut Numbers(7), 3);
    let error = first.sync().expect_err("fenced").to_string();
    assert!(error.contains("another program took the volume over"), "{error}");
    assert!(first.collect().is_err());
    assert!(same(&second, &model));
}

/// The space of removed files is discarded without a trim, and therefore collected.
#[test]
pub fn removed_files_take_no_space() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let device = Arc::new(LogDevice::create(&at(store.clone()), GEOMETRY).expect("made"));
    mkfs::make(&*device, &MkfsOptions::default()).expect("made");
    let files = files_on(device.clone());
    for number in 0..4 {
        let file = files.create(format!("/f{number}")).expect("created");
        file.write_all_at(0, &vec![7; 5 << 20]).expect("written");
    }
    files.volume().sync().expect("synced");
    assert!(bytes_in(&*store) > 20 << 20);
    for number in 0..4 {
        files.remove_file(format!("/f{number}")).expect("removed");
    }
    files.close().expect("closed");
    drop((files, device));
    let device = LogDevice::open(&at(store.clone()), OpenOptions::default()).expect("opened");
    device.collect().expect("collected");
    assert!(bytes_in(&*store) < 2 << 20, "{} bytes", bytes_in(&*store));
}

#[test]
fn the_ranges_with_the_most_extents_are_chosen() {
    let mut extents = Extents::default();
    for number in 0..100 {
        let place = Place::Stored(Object::record(number + 1, 0), 0);
        extents.insert(number * 8192, 4096, place);
        extents.insert(3 * WINDOW_BYTES + number * (WINDOW_BYTES / 4), 4096, place);
    }
    assert_eq!(fragmented(&extents, 50), [(0, WINDOW_BYTES)]);
    assert_eq!(fragmented(&extents, 101).len(), 2);
}

#[test]
fn a_beginning_is_compacted_as_far_as_it_spans_many_objects() {
    let mut extents = Extents::default();
    let place = |number| Place::Stored(Object::record(number, 0), 0);
    for number in 0..8 {
        extents.insert(number * 8192, 4096, place(number));
        extents.insert(number * 8192 + 4096, 4096, Place::Stored(Object::record(number, 0), 4096));
    }
    extents.insert(NEAR_BYTES / 2, 4096, Place::Zeros);
    for number in 8..50 {
        extents.insert(NEAR_BYTES + number * 8192, 4096, place(number));
    }
    assert_eq!(scattered_beginning(&extents), None, "the first MiB takes eight requests");
    extents.insert(NEAR_BYTES / 2, 4096, place(50));
    assert_eq!(scattered_beginning(&extents), Some((0, 2 * NEAR_BYTES)));
    extents.insert(2 * NEAR_BYTES - 4096, 8192, place(51));
    assert_eq!(scattered_beginning(&extents), Some((0, 2 * NEAR_BYTES - 4096)), "it stays whole");
    for number in 0..4096 {
        extents.insert(number * 8192, 4096, place(number));
    }
    assert_eq!(scattered_beginning(&extents), Some((0, WINDOW_BYTES)));
}

/// A collection deletes only objects older than its map: not the last record, which the next one refers to,
/// and not contents sent ahead of a future record.
#[test]
fn a_collection_deletes_nothing_newer_than_its_map() {
    let store = Arc::new(InMemory::new());
    let volume = at(store.clone()).connect().expect("connected");
    let (slot, term, data_count) = (7, 5, 3);
    let covered = [Object::record(6, 0), Object::data(5, 2, 0), Object::data(4, 9, 0)];
    let spared = [
        Object::record(7, 0),
        Object::record(8, 0),
        Object::data(5, 3, 0),
        Object::data(5, 4, 0),
        Object::data(6, 0, 0),
    ];
    for object in covered.iter().chain(&spared) {
        volume.put(&object.name(), vec![1; 4096]).expect("put");
    }
    let mark = Mark { slot, term, data_count, live: Default::default() };
    assert_eq!(collect::sweep(&volume, &mark).expect("swept").objects, covered.len() as u64);
    let mut left: Vec<String> = objects(&*store).into_iter().map(|(name, _)| name).collect();
    let mut expected = spared.map(|object| format!("bucket/volume/{}", object.name())).to_vec();
    left.sort();
    expected.sort();
    assert_eq!(left, expected);
}
