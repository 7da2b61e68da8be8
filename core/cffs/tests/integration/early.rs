//! Contents that are written before their epoch: which ones, and that after a crash they are found with their
//! inodes or not at all.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cffs::clock::{TestClock, VirtualClock};
use cffs::device::{HoldDevice, MemoryDevice, RequestKind, TraceDevice, TraceEvent};
use cffs::fsck::{self, CheckOptions};
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::{Caller, NewFile, NewKind, OpenOptions, Volume};

use cffs_testing::setup::FILE;

const ROOT: InodeNo = InodeNo::ROOT;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

type Device = TraceDevice<MemoryDevice>;

/// An empty volume that has completed an epoch; the next one is not due soon.
fn volume(options: OpenOptions) -> (Volume, Arc<Device>) {
    let inner = MemoryDevice::new(128 * MIB);
    mkfs::make(&inner, &MkfsOptions::default()).expect("mkfs");
    let device = Arc::new(TraceDevice::new(inner));
    let options = OpenOptions { epoch_interval: Duration::from_secs(3600), ..options };
    let volume = Volume::open(device.clone(), Arc::new(TestClock::default()), options);
    let volume = volume.expect("open");
    make(&volume, ROOT, "first", 1);
    volume.sync().expect("sync");
    (volume, device)
}

fn directory(volume: &Volume, name: &str) -> InodeNo {
    let new = NewFile { kind: NewKind::Directory, ..FILE };
    volume.make(&Caller::ROOT, ROOT, name.as_bytes(), &new).expect("made").ino
}

fn make(volume: &Volume, dir: InodeNo, name: &str, len: u64) -> InodeNo {
    let ino = volume.make(&Caller::ROOT, dir, name.as_bytes(), &FILE).expect("made").ino;
    volume.release(ino, 1);
    write(volume, ino, 0, len);
    ino
}

fn write(volume: &Volume, ino: InodeNo, at: u64, len: u64) {
    for from in (at..at + len).step_by(MIB as usize) {
        let piece = vec![from as u8 | 1; MIB.min(at + len - from) as usize];
        assert_eq!(volume.write(&Caller::ROOT, ino, from, &piece).expect("written"), piece.len());
    }
}

fn early(volume: &Volume) -> u64 {
    volume.writer().background().write_early().expect("written early")
}

fn is_sound(volume: &Volume, device: &Device) {
    volume.close().expect("closed");
    let full = CheckOptions { force: true, contents: true, ..CheckOptions::default() };
    let report = fsck::check(device.inner(), &full, &()).expect("checked");
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

#[test]
fn a_large_file_goes_ahead_of_its_epoch_but_for_its_end() {
    let (volume, device) = volume(OpenOptions::default());
    let file = make(&volume, ROOT, "file", 8 * MIB + 100);
    let before = device.counts();
    assert_eq!(early(&volume), 8 * MIB);
    let counts = device.counts() - before;
    assert_eq!((counts.written_bytes, counts.barriers, counts.syncs), (8 * MIB, 0, 0));
    assert_eq!(volume.admin().explain(file).expect("placed").unplaced_bytes, 4 * KIB, "its end");
    assert_eq!(early(&volume), 0, "nothing is new");

    write(&volume, file, 8 * MIB + 100, 2 * MIB);
    early(&volume);
    assert_eq!(
        volume.admin().explain(file).expect("placed").pieces.len(),
        1,
        "it lies in one piece"
    );
    volume.sync().expect("sync");
    is_sound(&volume, &device);
}

#[test]
fn small_files_are_written_ahead_when_their_neighbours_exist() {
    let (volume, _) = volume(OpenOptions::default());
    for (name, files) in [("few", 50), ("old", 200), ("long", 1000), ("young", 10)] {
        let dir = directory(&volume, name);
        for file in 0..files {
            make(&volume, dir, &format!("{file}"), 4 * KIB);
        }
    }
    // The older half ends within the third directory, whose older files form a long piece.
    assert_eq!(early(&volume), (50 + 200 + 380) * 4 * KIB);
    assert_eq!(early(&volume), 315 * 4 * KIB);
    // Now it ends there with a piece that is too short.
    assert_eq!(early(&volume), 0);
}

/// The pattern of unpacking a source tree.
#[test]
fn small_directories_of_a_tree_are_placed_one_after_the_other() {
    let (volume, device) = volume(OpenOptions::default());
    let fill = |number: u64| -> Vec<InodeNo> {
        let dir = directory(&volume, &format!("{number}"));
        (0..14).map(|file| make(&volume, dir, &format!("{file}"), 4 * KIB * (file % 4))).collect()
    };
    let files: Vec<InodeNo> = (0..40).flat_map(fill).collect();
    // Empty files have no contents to write: 40 directories of 10 files make 400 files, and the older half
    // ends with the twentieth directory.
    let bytes = 4 * KIB * (4 + 2 * 3 + 3 * 3);
    assert_eq!(early(&volume), 20 * bytes);
    (40..60).for_each(|number| drop(fill(number)));
    assert_eq!(early(&volume), 20 * bytes);
    let runs: Vec<_> = files
        .iter()
        .filter_map(|file| {
            volume.admin().explain(*file).expect("placed").pieces.first().map(|it| it.run)
        })
        .collect();
    for two in runs.windows(2) {
        assert_eq!(
            two[0].end(),
            two[1].start,
            "a reader of the tree goes from one end to the other"
        );
    }
    is_sound(&volume, &device);
}

/// The pattern of interactive work, and of programs that keep a file in each of many directories.
#[test]
fn directories_that_are_filled_alternately_wait_for_their_epoch() {
    let (volume, device) = volume(OpenOptions::default());
    let fill = |dirs: &[InodeNo], files: u64| {
        for file in 0..files {
            for dir in dirs {
                make(&volume, *dir, &format!("file {file}"), 16 * KIB);
            }
        }
    };
    let dirs: Vec<InodeNo> =
        (0..19).map(|number| directory(&volume, &format!("{number}"))).collect();
    let (done, by_turns) = dirs.split_at(13);
    done.iter().for_each(|dir| fill(&[*dir], 20));
    // Six of the nineteen directories of the older half continue in the younger one: the others wait with
    // them.
    fill(by_turns, 140);
    assert_eq!(early(&volume), 0);

    // A single directory does not alternate, however often another one follows it.
    volume.sync().expect("sync");
    for dir in done {
        make(&volume, by_turns[0], &format!("second {dir:?}"), 16 * KIB);
        fill(&[directory(&volume, &format!("more {dir:?}"))], 21);
    }
    assert_eq!(early(&volume), 6 * 21 * 16 * KIB);
    is_sound(&volume, &device);
}

#[test]
fn the_rest_of_a_directory_follows_it() {
    let (volume, device) = volume(OpenOptions::default());
    let fill = |name: &str, files: u64| -> Vec<InodeNo> {
        let dir = directory(&volume, name);
        (0..files).map(|i| make(&volume, dir, &format!("file {i}"), 32 * KIB)).collect()
    };
    let first = fill("first directory", 44);
    fill("second directory", 36);
    // The older half consists of 40 files of the first directory; the younger one begins with its last four.
    assert_eq!(early(&volume), 40 * 32 * KIB);
    fill("third directory", 40);
    assert_eq!(early(&volume), (4 + 36) * 32 * KIB);
    let place = |file| volume.admin().explain(file).expect("placed").pieces[0].run;
    for two in first.windows(2) {
        assert_eq!(place(two[0]).end(), place(two[1]).start);
    }
    is_sound(&volume, &device);
}

#[test]
fn a_file_that_is_changed_here_and_there_waits_for_its_epoch() {
    let (volume, _) = volume(OpenOptions::default());
    let file = make(&volume, ROOT, "file", 16 * MIB);
    volume.sync().expect("sync");
    (0..1000).for_each(|page| write(&volume, file, page * 16 * KIB, 4 * KIB));
    assert_eq!(early(&volume), 0);
}

#[test]
fn references_to_contents_wait_for_them() {
    let (volume, device) = volume(OpenOptions { early_bytes: 4 * KIB, ..OpenOptions::default() });
    // With the first file, the intent log has listed the place of names and space, so that only the contents
    // are written before the names.
    make(&volume, ROOT, "file", 8 * KIB);
    let before = device.counts();
    assert_eq!(early(&volume), 8 * KIB);
    let counts = device.counts() - before;
    assert_eq!((counts.writes, counts.written_bytes), (1, 8 * KIB));
    device.start_recording();
    volume.sync().expect("sync");
    assert_eq!(device.stop_recording().first(), Some(&TraceEvent::Barrier));
    is_sound(&volume, &device);
}

/// The device is busy while an epoch is prepared, and has the contents before anything refers to them.
#[test]
fn an_epoch_begins_with_contents() {
    let inner = MemoryDevice::new(128 * MIB);
    mkfs::make(&inner, &MkfsOptions::default()).expect("mkfs");
    let traced = Arc::new(TraceDevice::new(inner));
    let device = Arc::new(HoldDevice::new(traced.clone()));
    let options =
        OpenOptions { epoch_interval: Duration::from_secs(3600), ..OpenOptions::default() };
    let volume = Volume::open(device.clone(), Arc::new(TestClock::default()), options);
    let volume = volume.expect("open");
    let files = |from: u64, files: u64, len: u64| {
        for file in from..from + files {
            make(&volume, ROOT, &format!("{file}"), len);
        }
    };
    files(0, 300, 4 * KIB);
    volume.sync().expect("sync");

    let epochs = volume.stats().epochs;
    files(300, 300, 4 * KIB);
    traced.start_recording();
    let held = device.hold(RequestKind::Write);
    thread::scope(|scope| {
        let sync = scope.spawn(|| volume.sync());
        assert!(device.wait_for_request(Duration::from_secs(60)), "nothing was written");
        // While contents are written, changes continue, and the same epoch includes them.
        files(600, 1, 4 * KIB);
        drop(held);
        sync.join().expect("no panic").expect("sync");
    });
    let events = traced.stop_recording();
    let TraceEvent::Write { data, .. } = &events[0] else { panic!("{:?}", events[0]) };
    assert_eq!(data.len() as u64, 300 * 4 * KIB, "contents, and nothing else");
    assert!(events.contains(&TraceEvent::Barrier), "{events:?}");
    assert_eq!(volume.stats().epochs, epochs + 1);
    let before = traced.counts();
    volume.sync().expect("sync");
    assert_eq!(traced.counts().writes, before.writes, "nothing is left");

    // A few files are written in one sweep with all other new data, however large that is.
    let dir = directory(&volume, "few");
    for name in 0..6000 {
        make(&volume, dir, &format!("{name:0200}"), 0);
    }
    for file in 0..8 {
        make(&volume, dir, &format!("{file}"), 4 * KIB);
    }
    traced.start_recording();
    volume.sync().expect("sync");
    let events = traced.stop_recording();
    let offsets: Vec<u64> = events
        .iter()
        .take_while(|event| **event != TraceEvent::Barrier)
        .filter_map(|event| match event {
            TraceEvent::Write { offset_bytes, .. } => Some(*offset_bytes),
            _ => None,
        })
        .collect();
    assert!(offsets.len() > 1 && offsets.is_sorted(), "{offsets:?}");
    is_sound(&volume, &traced);
}

#[test]
fn a_file_that_freed_space_early_is_not_left_behind() {
    let options = OpenOptions { early_bytes: 0, fsync_leaves_bytes: 0, ..OpenOptions::default() };
    let (volume, device) = volume(options);
    let small = make(&volume, ROOT, "small", 8 * KIB);
    let large = make(&volume, ROOT, "large", MIB);
    let other = make(&volume, ROOT, "other", 1);
    volume.sync().expect("sync");
    let fsync_other = || {
        write(&volume, other, 0, 1);
        volume.sync_file(other, false).expect("fsync");
    };
    let unplaced = |file| volume.admin().explain(file).expect("placed").unplaced_bytes;
    // The small file is relocated; the large one is overwritten in place.
    write(&volume, small, 0, 8 * KIB);
    assert_eq!(early(&volume), 8 * KIB);
    write(&volume, large, 0, MIB);
    assert_eq!(early(&volume), MIB);
    write(&volume, small, 0, 8 * KIB);
    write(&volume, large, 0, MIB);
    fsync_other();
    assert_eq!((unplaced(small), unplaced(large)), (0, MIB));
    is_sound(&volume, &device);
}

#[test]
fn the_background_writes_early_when_there_is_enough() {
    let (volume, device) = volume(OpenOptions { early_bytes: 2 * MIB, ..OpenOptions::default() });
    let epochs = volume.stats().epochs;
    let observe = |result: cffs::error::Result<()>| result.expect("background");
    volume.writer().background().run_during(Duration::from_secs(3600), observe, || {
        make(&volume, ROOT, "small", MIB);
        thread::sleep(Duration::from_millis(50));
        assert_eq!(volume.stats().early_writes, 0);
        make(&volume, ROOT, "large", 8 * MIB);
        let until = Instant::now() + Duration::from_secs(60);
        while volume.stats().early_writes == 0 {
            assert!(Instant::now() < until, "nothing was written");
            thread::yield_now();
        }
    });
    assert_eq!(volume.stats().epochs, epochs);
    is_sound(&volume, &device);
}

/// A copy reads as much as it writes, and the device would seek back and forth for each piece.
#[test]
fn the_background_does_not_write_early_while_the_device_is_read() {
    let (volume, device) = volume(OpenOptions::default());
    let cold = make(&volume, ROOT, "cold", 4 * MIB);
    volume.close().expect("closed");
    let options = OpenOptions {
        early_bytes: 2 * MIB,
        epoch_interval: Duration::from_secs(3600),
        ..OpenOptions::default()
    };
    let volume = Volume::open(device.clone(), Arc::new(TestClock::default()), options);
    let volume = volume.expect("open");
    volume.writer().background().run_once().expect("background");
    let early_writes = || {
        volume.writer().background().run_once().expect("background");
        volume.stats().early_writes
    };
    let file = make(&volume, ROOT, "file", 4 * MIB);
    let mut piece = vec![0; 4 * MIB as usize];
    assert_eq!(volume.read(cold, 0, &mut piece).expect("read"), piece.len());
    assert_eq!(early_writes(), 0, "as much was read");
    write(&volume, file, 4 * MIB, 6 * MIB);
    assert_eq!(early_writes(), 1, "more than twice as much was changed");
    is_sound(&volume, &device);
}

/// The same holds for each epoch.
#[test]
fn epochs_are_longer_where_as_much_is_read() {
    let (volume, device) = volume(OpenOptions::default());
    let cold = make(&volume, ROOT, "cold", 4 * MIB);
    volume.close().expect("closed");
    let options = OpenOptions {
        dirty_bytes_max: 8 * MIB,
        early_bytes: u64::MAX,
        epoch_interval: Duration::from_secs(3600),
        ..OpenOptions::default()
    };
    let volume = Volume::open(device.clone(), Arc::new(TestClock::default()), options);
    let volume = volume.expect("open");
    volume.writer().background().run_once().expect("background");
    let epochs = || {
        volume.writer().background().run_once().expect("background");
        volume.stats().epochs
    };
    let before = epochs();
    let file = make(&volume, ROOT, "file", 3 * MIB);
    let mut piece = vec![0; 4 * MIB as usize];
    assert_eq!(volume.read(cold, 0, &mut piece).expect("read"), piece.len());
    write(&volume, file, 3 * MIB, 3 * MIB);
    assert_eq!(epochs(), before, "6 of 8 MiB wait, and 4 were read");
    write(&volume, file, 6 * MIB, MIB + MIB / 2);
    assert_eq!(epochs(), before + 1, "changes would soon have to wait");
    write(&volume, file, 8 * MIB, 5 * MIB);
    assert_eq!(epochs(), before + 2, "nothing was read since");
    is_sound(&volume, &device);
}

#[test]
fn a_stream_goes_ahead_without_epochs() {
    let inner = MemoryDevice::new(128 * MIB);
    mkfs::make(&inner, &MkfsOptions::default()).expect("mkfs");
    let device = Arc::new(HoldDevice::new(inner));
    let options = OpenOptions {
        dirty_bytes_max: 8 * MIB,
        early_bytes: MIB,
        epoch_interval: Duration::from_secs(3600),
        ..OpenOptions::default()
    };
    let volume = Volume::open(device.clone(), Arc::new(TestClock::default()), options);
    let volume = volume.expect("open");
    let file = make(&volume, ROOT, "file", MIB);
    volume.sync().expect("sync");
    let epochs = volume.stats().epochs;
    for round in 1..4 {
        write(&volume, file, (2 * round - 1) * 7 * MIB, 7 * MIB);
        let held = device.hold(RequestKind::Write);
        thread::scope(|scope| {
            let background = scope.spawn(|| volume.writer().background().run_once());
            assert!(device.wait_for_request(Duration::from_secs(60)), "nothing was written");
            // While that is written, enough new data arrives to make an epoch due.
            write(&volume, file, round * 14 * MIB, 7 * MIB);
            drop(held);
            background.join().expect("no panic").expect("background");
        });
        volume.writer().background().run_once().expect("background");
        assert_eq!((volume.stats().early_writes, volume.stats().epochs), (2 * round, epochs));
    }
    volume.close().expect("closed");
}

/// An epoch waits for the device several times. Immediately after mounting, it would contain few changes.
#[test]
fn the_first_changes_wait_for_their_epoch_as_long_as_any() {
    let (volume, device) = volume(OpenOptions::default());
    volume.close().expect("close");
    let options =
        OpenOptions { epoch_interval: Duration::from_secs(3600), ..OpenOptions::default() };
    let volume = Volume::open(device.clone(), Arc::new(TestClock::default()), options);
    let volume = volume.expect("open");
    let epochs = volume.stats().epochs;
    make(&volume, ROOT, "second", MIB);
    volume.writer().background().run_once().expect("background");
    assert_eq!(volume.stats().epochs, epochs);
    is_sound(&volume, &device);
}

/// Even a small amount.
#[test]
fn changes_after_a_pause_are_written_when_they_have_waited() {
    let (volume, device) = volume(OpenOptions::default());
    volume.close().expect("close");
    let clock = Arc::new(VirtualClock::default());
    let volume = Volume::open(device.clone(), clock.clone(), OpenOptions::default());
    let volume = volume.expect("open");
    let epochs_after = |seconds| {
        clock.advance(Duration::from_secs(seconds));
        volume.writer().background().run_once().expect("background");
        volume.stats().epochs
    };
    // The pause does not count.
    let epochs = epochs_after(3);
    make(&volume, ROOT, "second", 1);
    assert_eq!(epochs_after(4), epochs);
    assert_eq!(epochs_after(1), epochs + 1);
    is_sound(&volume, &device);
}
