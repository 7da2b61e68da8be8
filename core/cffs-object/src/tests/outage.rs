//! Volumes in a store that does not answer, or refuses requests.

use cffs::device::{Failure, Patient};
use cffs::error;
use cffs::units::InodeNo;
use cffs::vfs::types::{ErrorsPolicy, OpenOptions as OpenVolume};
use cffs::vfs::{Volume, errno, read_superblock};

use super::*;

const EIO: i32 = 5;

fn opened(store: &Arc<FaultStore>) -> (Arc<LogDevice>, Volume) {
    let device = LogDevice::open(&at(store.clone()), OpenOptions::default()).expect("released");
    let device = Arc::new(device);
    let errors = ErrorsPolicy::RemountReadOnly;
    let options = OpenVolume { errors, ..OpenVolume::default() };
    (device.clone(), cffs::open(device, Arc::new(SystemClock), options).expect("opened"))
}

/// A volume with more contents than an opening reads.
fn made(store: &Arc<FaultStore>) {
    let device = Arc::new(LogDevice::create(&at(store.clone()), GEOMETRY).expect("made"));
    mkfs::make(&*device, &MkfsOptions::default()).expect("made");
    let files = files_on(device);
    for directory in 0..3 {
        files.make_dir(format!("/{directory}")).expect("made");
        for number in 0..40 {
            let file = files.create(format!("/{directory}/{number}")).expect("created");
            file.write_all_at(0, &vec![number; 100_000]).expect("written");
        }
    }
    files.close().expect("closed");
}

/// Regression: an outage during a read of metadata was recorded as damage: with `errors=remount-ro` every
/// later change failed, though nothing was damaged. A single refused GET had the same effect, and read(2)
/// returned EACCES.
#[test]
fn a_store_that_does_not_answer_is_not_damaged() {
    for fault in [Fault::RequestLost, Fault::Forbidden] {
        let store = Arc::new(FaultStore::new());
        made(&store);
        let (device, volume) = opened(&store);
        store.fail_gets(Some(fault));
        let look = || -> error::Result<()> {
            for directory in 0..3 {
                let directory = volume.lookup(InodeNo::ROOT, format!("{directory}").as_bytes())?;
                for number in 0..40 {
                    let file = volume.lookup(directory.ino, format!("{number}").as_bytes())?;
                    volume.read(file.ino, 0, &mut [0; 100_000])?;
                }
            }
            Ok(())
        };
        let failed = look().expect_err("the store does not answer");
        assert_eq!(errno(&failed), EIO, "{failed}");
        assert!(store.fail_gets(None) > 0);
        assert_eq!(volume.writer().superblock.get().damage, None);
        look().expect("as before");
        let files = Files::new(Arc::new(volume));
        files.create("/after").expect("changes go on").write_all_at(0, b"x").expect("written");
        files.close().expect("closed");
        assert_eq!(read_superblock(&*device).expect("read").damage, None);
    }
}

/// A caller's read fails after a while, and the caller may retry. Regression: the failure of an epoch's read
/// cost the changes of all callers, where a commit would have waited.
#[test]
fn a_read_for_an_epoch_waits_for_the_end_of_an_outage() {
    let store = Arc::new(FaultStore::new());
    drop(LogDevice::create(&at(store.clone()), GEOMETRY).map(|device| {
        write(&device, 0, &[7; 4096]);
        device.sync().expect("synced");
    }));
    let device = LogDevice::open(&at(store.clone()), OpenOptions::default()).expect("released");
    store.fail_gets(Some(Fault::RequestLost));
    let error = device.read_at(0, &mut [0; 4096]).expect_err("no answer");
    assert_eq!(Failure::of(&error), Failure::Unreachable, "{error}");
    assert_eq!(store.failed_gets(), 1, "that one is not repeated here");
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let _patient = Patient::begin();
            read(&device, 0, 4096)
        });
        while store.failed_gets() < 3 && !reading.is_finished() {
            std::thread::yield_now();
        }
        store.fail_gets(None);
        assert_eq!(reading.join().expect("it waits for the answer"), [7; 4096]);
    });
}

/// Regression: a claim was repeated forever if an empty object was in its slot, as a file system that lost
/// contents in a power cut can leave it. Other programs named no remedy.
#[test]
fn an_empty_object_in_the_next_slot_is_damage() {
    let scratch = tempfile::tempdir().expect("made");
    let url = format!("file://{}/volume", scratch.path().display());
    let location = Location::parse(&url).expect("a URL");
    LogDevice::create(&location, GEOMETRY).expect("made").release().expect("released");
    let log = scratch.path().join("volume/log");
    let last = std::fs::read_dir(&log).expect("listed").count() as u64;
    let name = crate::format::record_name(last + 1);
    for bytes in [&b""[..], b"CFFS"] {
        std::fs::write(scratch.path().join("volume").join(&name), bytes).expect("written");
        for options in [OpenOptions::default(), READ_ONLY] {
            let error = LogDevice::open(&location, options).err().expect("refused");
            let text = error.to_string();
            assert!(matches!(error, Error::Damaged { .. }), "{text}");
            assert!(text.contains(&name) && text.contains("delete it"), "{text}");
        }
    }
}

/// Regression: when the directory of a volume was moved while the volume was open, or its file system was
/// unmounted, syncs succeeded, and wrote to a new directory.
#[test]
fn a_directory_that_is_gone_is_an_outage() {
    let scratch = tempfile::tempdir().expect("made");
    let (directory, away) = (scratch.path().join("volume"), scratch.path().join("away"));
    let url = format!("file://{}", directory.display());
    let location = Location::parse(&url).expect("a URL");
    let device = LogDevice::create(&location, GEOMETRY).expect("made");
    write(&device, 0, &[7; 4096]);
    device.sync().expect("synced");
    std::fs::rename(&directory, &away).expect("moved");
    for copy_in_place in [false, true] {
        if copy_in_place {
            std::fs::create_dir(&directory).expect("made");
            std::fs::copy(away.join("format"), directory.join("format")).expect("copied");
        }
        let soft = OpenOptions { patience: Some(Duration::ZERO), ..READ_ONLY };
        let other = LogDevice::open(&Location::parse(&url).expect("a URL"), soft);
        assert!(other.is_err(), "no volume is there");
        write(&device, 0, &[8; 4096]);
        std::thread::scope(|scope| {
            let syncing = scope.spawn(|| device.sync());
            std::thread::sleep(Duration::from_millis(300));
            assert!(!syncing.is_finished(), "nothing was written where the volume is not");
            assert!(!directory.join("log").exists(), "a new directory was made");
            let _ = std::fs::remove_dir_all(&directory);
            std::fs::rename(&away, &directory).expect("moved back");
            syncing.join().expect("no panic").expect("writing goes on");
        });
        std::fs::rename(&directory, &away).expect("moved");
    }
    std::fs::rename(&away, &directory).expect("moved back");
    device.release().expect("released");
    let device = LogDevice::open(&location, READ_ONLY).expect("opened");
    assert_eq!(read(&device, 0, 4096), [8; 4096]);
}

/// The numbers of a directory change on some file systems while it stays the same. Regression: that counted
/// as an outage without end. A directory that lacks the last record is another one, even if its number was
/// used before.
#[test]
fn a_directory_with_other_numbers_is_known_by_its_contents() {
    let scratch = tempfile::tempdir().expect("made");
    let [directory, old, other] = ["volume", "old", "other"].map(|name| scratch.path().join(name));
    let url = format!("file://{}", directory.display());
    let location = Location::parse(&url).expect("a URL");
    let device = LogDevice::create(&location, GEOMETRY).expect("made");
    let copy = |from: &std::path::Path, to: &std::path::Path| {
        let copied = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status();
        assert!(copied.expect("run").success());
    };
    copy(&directory, &other);
    write(&device, 0, &[7; 4096]);
    device.sync().expect("synced");
    std::fs::rename(&directory, &old).expect("moved");
    copy(&old, &directory);
    write(&device, 0, &[8; 4096]);
    device.sync().expect("it is the same by its contents");
    std::fs::rename(&directory, scratch.path().join("kept")).expect("moved");
    for lacking in [&old, &other] {
        std::fs::rename(lacking, &directory).expect("moved");
        let files =
            |at: &std::path::Path| std::fs::read_dir(at.join("log")).expect("listed").count();
        let before = files(&directory);
        write(&device, 0, &[9; 4096]);
        std::thread::scope(|scope| {
            let syncing = scope.spawn(|| device.sync());
            std::thread::sleep(Duration::from_millis(300));
            assert!(!syncing.is_finished(), "it lacks a record");
            assert_eq!(files(&directory), before);
            std::fs::rename(&directory, lacking).expect("moved");
            std::fs::rename(scratch.path().join("kept"), &directory).expect("moved back");
            syncing.join().expect("no panic").expect("writing goes on");
        });
        std::fs::rename(&directory, scratch.path().join("kept")).expect("moved");
    }
    std::fs::rename(scratch.path().join("kept"), &directory).expect("moved back");
    device.release().expect("released");
    let device = LogDevice::open(&location, READ_ONLY).expect("opened");
    assert_eq!(read(&device, 0, 4096), [9; 4096]);
}

/// Regression: threads that read a missing object at the same time could pass the right to request it to each
/// other without end.
#[test]
fn threads_that_read_a_missing_object_all_fail() {
    let store = Arc::new(FaultStore::new());
    let device = LogDevice::create(&at(store.clone()), GEOMETRY).expect("made");
    write(&device, 0, &vec![7; 2 << 20]);
    device.sync().expect("synced");
    device.release().expect("released");
    store.remove(&format!("bucket/volume/{}", crate::format::record_name(2)).into());
    let device = LogDevice::open(&at(store), READ_ONLY).expect("opened");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..1000 {
                    device.read_at(1 << 20, &mut [0; 512]).expect_err("gone");
                }
            });
        }
    });
}

/// Regression: a reader named objects as missing that a writer had collected meanwhile.
#[test]
fn a_verification_leaves_out_what_a_writer_collected() {
    let store = Arc::new(FaultStore::new());
    let device = LogDevice::create(&at(store.clone()), GEOMETRY).expect("made");
    write(&device, 0, &vec![7; 2 << 20]);
    device.sync().expect("synced");
    let reader = LogDevice::open(&at(store.clone()), READ_ONLY).expect("opened");
    write(&device, 0, &vec![8; 2 << 20]);
    device.sync().expect("synced");
    assert!(device.collect().expect("collected").objects > 0);
    assert_eq!(reader.verify(None).expect("listed"), []);
    assert!(reader.met().is_empty());
    store.remove(&format!("bucket/volume/{}", crate::format::record_name(3)).into());
    assert_eq!(reader.verify(None).expect("listed"), [], "the reader does not use it");
    let reader = LogDevice::open(&at(store.clone()), READ_ONLY).expect("opened");
    assert_eq!(reader.verify(None).expect("listed").len(), 1);
}

/// A missing object is not collected if the newest state of the volume, or the version, has data in it. It
/// can be put back, so it is not lost as a bad sector is, unless the device was opened to do without it.
#[test]
fn a_missing_object_can_be_restored() {
    let store = Arc::new(FaultStore::new());
    let device = LogDevice::create(&at(store.clone()), GEOMETRY).expect("made");
    write(&device, 0, &vec![7; 2 << 20]);
    device.sync().expect("synced");
    let version = located(store.clone(), "bucket/volume@kept");
    crate::versions::create(&version).expect("kept");
    store.remove(&format!("bucket/volume/{}", crate::format::record_name(2)).into());
    let without = OpenOptions { without_objects: true, ..READ_ONLY };
    let reader = LogDevice::open(&version, without).expect("opened");
    let error = reader.read_at(0, &mut [0; 4096]).expect_err("gone");
    assert_eq!(Failure::of(&error), Failure::Medium, "{error}");
    for device in [device, LogDevice::open(&version, READ_ONLY).expect("opened")] {
        let error = device.read_at(0, &mut [0; 4096]).expect_err("gone");
        assert_eq!(Failure::of(&error), Failure::Restorable, "{error}");
        assert!(error.to_string().contains("it is missing, although"), "{error}");
        let found = device.verify(None).expect("listed");
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].why.as_str(), found[0].bytes), (crate::verify::MISSING, 2 << 20));
        assert_eq!(device.met()[0].0, found[0].object);
    }
}

/// Giving up an object that was cut off discards only the bytes after the cut, and a missing object that was
/// put back loses nothing. They were discarded up to the chunk's limits, with metadata that was read before.
#[test]
fn giving_up_discards_only_what_cannot_be_read() {
    let store = Arc::new(InMemory::new());
    let device = LogDevice::create(&at(store.clone()), GEOMETRY).expect("made");
    write(&device, 0, &vec![7; 2 << 20]);
    device.sync().expect("synced");
    device.release().expect("released");
    let (path, bytes) = encrypted::all_of(&store)
        .into_iter()
        .find(|(path, _)| path.as_ref().ends_with(&crate::format::record_name(2)))
        .expect("a record");
    // The bytes of the device are at the end of the record.
    let cut = bytes.len() - (1 << 20) - (20 << 10);
    encrypted::set(&store, &path, Some(&bytes[..cut]));
    let without = OpenOptions { without_objects: true, ..OpenOptions::default() };
    let device = LogDevice::open(&at(store.clone()), without).expect("opened");
    let found = device.verify(None).expect("listed");
    assert_eq!(found.len(), 1, "{found:?}");
    let lost = device.lost_with(&found).expect("read");
    let end = lost[0].start;
    let kept = (1 << 20) - (20 << 10);
    assert!((kept - 512..=kept).contains(&end), "{end} bytes can be read");
    assert_eq!(lost.last().map(|last| last.end), Some(2 << 20));
    let needed = device.give_up(&found, &lost).expect("nothing discarded");
    assert_eq!(needed.into_iter().collect::<Vec<_>>(), [&found[0].object], "all of it is kept");
    let needed = device.give_up(&found, &[]).expect("discarded");
    assert!(needed.is_empty(), "{needed:?}");
    assert!(read(&device, 0, end as usize).iter().all(|byte| *byte == 7));
    assert!(read(&device, end, (2 << 20) - end as usize).iter().all(|byte| *byte == 0));
    assert_eq!(device.verify(None).expect("listed"), [], "what was left is elsewhere");
    device.release().expect("released");

    let mut records =
        encrypted::all_of(&store).into_iter().filter(|(_, bytes)| bytes.len() > 1 << 19);
    let (path, bytes) = records.next_back().expect("a record with what was left");
    encrypted::set(&store, &path, None);
    let device = LogDevice::open(&at(store.clone()), without).expect("opened");
    let found = device.verify(None).expect("listed");
    assert_eq!(found.len(), 1, "{found:?}");
    encrypted::set(&store, &path, Some(&bytes));
    device.give_up(&found, &[]).expect("nothing to discard");
    assert!(read(&device, 0, end as usize).iter().all(|byte| *byte == 7));
}

/// The bytes of an object that was replaced by another one can be read, but are wrong.
#[test]
fn an_exchanged_object_is_lost_as_a_whole() {
    let store = Arc::new(InMemory::new());
    let device = LogDevice::create(&at(store.clone()), GEOMETRY).expect("made");
    for number in 0..2 {
        write(&device, number * (2 << 20), &vec![7 + number as u8; 2 << 20]);
        device.sync().expect("synced");
    }
    device.release().expect("released");
    let records: Vec<_> =
        encrypted::all_of(&store).into_iter().filter(|(_, bytes)| bytes.len() > 2 << 20).collect();
    encrypted::set(&store, &records[0].0, Some(&records[1].1));
    let without = OpenOptions { without_objects: true, ..OpenOptions::default() };
    let device = LogDevice::open(&at(store), without).expect("opened");
    let found = device.verify(Some(&mut |_| {})).expect("read");
    assert_eq!((found.len(), found[0].why.as_str()), (1, crate::verify::EXCHANGED), "{found:?}");
    let lost = device.lost_with(&found).expect("read");
    assert_eq!(lost.iter().map(|range| range.end - range.start).sum::<u64>(), 2 << 20);
    device.give_up(&found, &[]).expect("given up");
    assert_eq!(device.verify(Some(&mut |_| {})).expect("read"), []);
    assert!(read(&device, 0, 2 << 20).iter().all(|byte| *byte == 0));
    assert!(read(&device, 2 << 20, 2 << 20).iter().all(|byte| *byte == 8));
}
