//! An fsync of one file writes that file and small changes, leaves out data that other programs stream, and
//! never leaves out changes that other data on the device depends on.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cffs::clock::{TestClock, VirtualClock};
use cffs::device::{BlockDevice, HoldDevice, MemoryDevice, RequestKind, VolatileDevice};
use cffs::error::Error;
use cffs::fsck::{self, CheckOptions, Repair};
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::{
    AllocateMode, Caller, NewFile, NewKind, OpenOptions, RenameMode, SetAttr, SetTime, Volume,
};

use cffs_testing::setup::FILE;

const ROOT: InodeNo = InodeNo::ROOT;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// The locator table is written at checkpoints; its dirty pages take less memory than this.
const DERIVED: u64 = 64 * KIB;

/// A device that loses unsynced writes, and whose requests can be held.
type Device = HoldDevice<VolatileDevice>;

fn new_device(size_bytes: u64) -> Arc<Device> {
    made_device(size_bytes, &MkfsOptions::default())
}

fn made_device(size_bytes: u64, options: &MkfsOptions) -> Arc<Device> {
    let blank = MemoryDevice::new(size_bytes);
    mkfs::make(&blank, options).expect("mkfs");
    Arc::new(HoldDevice::new(VolatileDevice::new(blank.snapshot())))
}

/// The volume that a crash now would leave, recovered and checked.
fn after_crash(device: &Device) -> Volume {
    let device = MemoryDevice::from_image(device.inner().crash_seeded(1).expect("an image"));
    let preen = CheckOptions { repair: Repair::Preen, ..CheckOptions::default() };
    let report = fsck::check(&device, &preen, &()).expect("recovery");
    assert!(report.exit_code() <= 1, "not recovered: {:?}", report.problems);
    let full = CheckOptions { force: true, contents: true, ..CheckOptions::default() };
    let report = fsck::check(&device, &full, &()).expect("a check");
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    open(Arc::new(device))
}

fn open_with(device: Arc<dyn BlockDevice>, options: OpenOptions) -> Volume {
    Volume::open(device, Arc::new(TestClock::default()), options).expect("open")
}

fn open(device: Arc<dyn BlockDevice>) -> Volume {
    open_with(device, OpenOptions::default())
}

fn write(volume: &Volume, ino: InodeNo, at: u64, len: u64, byte: u8) {
    let done = volume.write(&Caller::ROOT, ino, at, &vec![byte; len as usize]).expect("write");
    assert_eq!(done as u64, len);
}

fn make(volume: &Volume, name: &str, len: u64, byte: u8) -> InodeNo {
    let attr = volume.make(&Caller::ROOT, ROOT, name.as_bytes(), &FILE).expect("make");
    write(volume, attr.ino, 0, len, byte);
    volume.release(attr.ino, 1);
    attr.ino
}

fn rename(volume: &Volume, from: &str, to: &str) {
    volume
        .rename(&Caller::ROOT, ROOT, from.as_bytes(), ROOT, to.as_bytes(), RenameMode::Replace)
        .expect("rename");
}

fn fsync(volume: &Volume, ino: InodeNo) {
    volume.sync_file(ino, false).expect("fsync");
}

fn contents(volume: &Volume, name: &str) -> Vec<u8> {
    let attr = volume.lookup(ROOT, name.as_bytes()).expect("lookup");
    let mut bytes = vec![0; attr.size as usize];
    assert_eq!(volume.read(attr.ino, 0, &mut bytes).expect("read"), bytes.len());
    volume.release(attr.ino, 1);
    bytes
}

/// Asserts that the file has `len` bytes, all of this value.
fn assert_is(volume: &Volume, name: &str, len: u64, byte: u8) {
    let bytes = contents(volume, name);
    assert_eq!(bytes.len() as u64, len, "{name}");
    let other = bytes.iter().position(|other| *other != byte);
    assert_eq!(other.map(|at| (at, bytes[at])), None, "{name}");
}

fn written(volume: &Volume, work: impl FnOnce()) -> u64 {
    let before = volume.stats().device_written_bytes;
    work();
    volume.stats().device_written_bytes - before
}

/// Creates and syncs a small file; returns the bytes written.
fn fsync_another(volume: &Volume) -> u64 {
    let small = make(volume, "small", 4 * KIB, 9);
    written(volume, || fsync(volume, small))
}

#[test]
fn an_fsync_of_a_small_file_does_not_write_what_another_streams() {
    let device = new_device(64 * MIB);
    let volume = open(device.clone());
    let big = make(&volume, "big", 8 * MIB, 1);
    volume.sync().expect("sync");

    // Partly overwritten in place, partly grown.
    write(&volume, big, 0, 10 * MIB, 2);
    let bytes = fsync_another(&volume);
    assert!(bytes < 128 * KIB, "{bytes} bytes for a file of 4 KiB");
    assert!(volume.stats().dirty_bytes >= 10 * MIB);
    assert_is(&volume, "big", 10 * MIB, 2);
    let crashed = after_crash(&device);
    assert_is(&crashed, "small", 4 * KIB, 9);
    assert_is(&crashed, "big", 8 * MIB, 1);

    // The same again: it is left out again, and then included.
    write(&volume, big, 0, 11 * MIB, 3);
    let again = make(&volume, "again", 300, 4);
    assert!(written(&volume, || fsync(&volume, again)) < 128 * KIB);
    assert!(written(&volume, || volume.sync().expect("sync")) >= 11 * MIB);
    assert!(volume.stats().dirty_bytes < DERIVED);
    let crashed = after_crash(&device);
    assert_is(&crashed, "again", 300, 4);
    assert_is(&crashed, "big", 11 * MIB, 3);
    volume.close().expect("close");
}

#[test]
fn an_fsync_of_the_file_itself_writes_it() {
    let device = new_device(64 * MIB);
    let volume = open(device.clone());
    let files: Vec<InodeNo> =
        (0..3).map(|number| make(&volume, &format!("big {number}"), 2 * MIB, 1)).collect();
    volume.sync().expect("sync");
    files.iter().for_each(|ino| write(&volume, *ino, 0, 3 * MIB, 2));
    let bytes = written(&volume, || fsync(&volume, files[1]));
    assert!((3 * MIB..4 * MIB).contains(&bytes), "{bytes} bytes for a file of 3 MiB");
    let crashed = after_crash(&device);
    assert_is(&crashed, "big 1", 3 * MIB, 2);
    assert_is(&crashed, "big 2", 2 * MIB, 1);
    fsync(&volume, files[2]);
    assert_is(&after_crash(&device), "big 2", 3 * MIB, 2);
    volume.close().expect("close");
    assert_is(&after_crash(&device), "big 0", 3 * MIB, 2);
}

#[test]
fn little_that_others_changed_goes_along() {
    let device = new_device(64 * MIB);
    let volume = open(device.clone());
    let other = make(&volume, "other", 2 * MIB, 1);
    volume.sync().expect("sync");
    write(&volume, other, 0, MIB, 2);
    write(&volume, other, MIB, MIB, 2);
    write(&volume, make(&volume, "tiny", 100, 1), 0, 100, 3);
    fsync_another(&volume);
    assert!(volume.stats().dirty_bytes >= 2 * MIB, "more than may go along");
    volume.sync().expect("sync");
    write(&volume, other, 0, MIB, 4);
    let small = make(&volume, "another", KIB, 9);
    fsync(&volume, small);
    assert!(volume.stats().dirty_bytes < DERIVED);
    let crashed = after_crash(&device);
    assert_is(&crashed, "tiny", 100, 3);
    assert!(contents(&crashed, "other")[..MIB as usize].iter().all(|byte| *byte == 4));
}

#[test]
fn a_file_that_the_device_does_not_have_is_not_left_behind() {
    for (inline, embed) in [(true, true), (false, true), (false, false)] {
        let options = MkfsOptions { inline, embed, ..MkfsOptions::default() };
        let device = made_device(64 * MIB, &options);
        let volume = open(device.clone());
        make(&volume, "new", 4 * MIB, 1);
        fsync_another(&volume);
        assert_is(&after_crash(&device), "new", 4 * MIB, 1);
    }
}

/// A program that writes a file and renames it over the old one, without an fsync in between, finds the
/// complete old or new file.
#[test]
fn a_file_with_a_new_name_is_not_left_behind() {
    let device = new_device(64 * MIB);
    let volume = open(device.clone());
    make(&volume, "target", 2 * MIB, 1);
    let temporary = make(&volume, "temporary", 2 * MIB, 2);
    let linked = make(&volume, "linked", 2 * MIB, 2);
    volume.sync().expect("sync");
    write(&volume, temporary, 0, 4 * MIB, 3);
    rename(&volume, "temporary", "target");
    write(&volume, linked, 0, 4 * MIB, 4);
    volume.link(linked, ROOT, b"second name").expect("link");
    volume.release(linked, 1);
    fsync_another(&volume);
    let crashed = after_crash(&device);
    assert_is(&crashed, "target", 4 * MIB, 3);
    assert_is(&crashed, "second name", 4 * MIB, 4);
    // Renamed before it was written, and then left out.
    write(&volume, temporary, 0, 4 * MIB, 5);
    let again = make(&volume, "again", 300, 4);
    fsync(&volume, again);
    assert!(volume.stats().dirty_bytes >= 4 * MIB);
    assert_is(&after_crash(&device), "target", 4 * MIB, 3);
}

/// Otherwise another file could be given the freed space while the inode on the device still refers to it.
#[test]
fn a_file_that_freed_space_is_not_left_behind() {
    let cut = |volume: &Volume, ino, size| {
        let change = SetAttr { size: Some(size), ..SetAttr::default() };
        volume.set_attr(&Caller::ROOT, ino, &change).expect("truncate");
    };
    for what in ["cut off", "cut off in part", "punched"] {
        let device = new_device(16 * MIB);
        let volume = open(device.clone());
        let big = make(&volume, "big", 8 * MIB, 1);
        volume.sync().expect("sync");
        match what {
            "cut off" => cut(&volume, big, 0),
            "cut off in part" => cut(&volume, big, MIB),
            _ => volume
                .allocate(&Caller::ROOT, big, 2 * MIB, 6 * MIB, AllocateMode::PunchHole)
                .expect("punch"),
        }
        write(&volume, big, 0, 2 * MIB, 2);
        fsync_another(&volume);
        // Other files allocate the free space.
        for number in 0..40 {
            let other =
                volume.make(&Caller::ROOT, ROOT, format!("other {number}").as_bytes(), &FILE);
            let other = other.expect("make").ino;
            if volume.write(&Caller::ROOT, other, 0, &vec![7; 200 << 10]).is_err() {
                break;
            }
            fsync(&volume, other);
        }
        let bytes = contents(&after_crash(&device), "big");
        assert!(bytes.iter().all(|byte| *byte < 7), "{what}: it has another file's contents");
        assert!(bytes[..2 << 20].iter().all(|byte| *byte == 2), "{what}");
    }
}

#[test]
fn changes_left_behind_are_written_by_the_next_background_epoch() {
    let device = new_device(64 * MIB);
    let clock = Arc::new(VirtualClock::default());
    let volume = Volume::open(device.clone(), clock.clone(), OpenOptions::default());
    let volume = volume.expect("open");
    let big = make(&volume, "big", 4 * MIB, 1);
    let small = make(&volume, "small", KIB, 1);
    volume.sync().expect("sync");
    write(&volume, big, 0, 4 * MIB, 2);
    // Epochs that leave it out do not delay the one that includes it.
    for second in 1..=5 {
        write(&volume, small, 0, KIB, second);
        fsync(&volume, small);
        assert!(volume.stats().dirty_bytes >= 4 * MIB, "second {second}");
        clock.advance(Duration::from_secs(1));
        volume.writer().background().run_once().expect("background");
    }
    assert!(volume.stats().dirty_bytes < DERIVED);
    assert_is(&after_crash(&device), "big", 4 * MIB, 2);
}

#[test]
fn a_checkpoint_leaves_nothing_behind() {
    let device = new_device(64 * MIB);
    let volume = open(device.clone());
    let big = make(&volume, "big", 4 * MIB, 1);
    volume.sync().expect("sync");
    write(&volume, big, 0, 4 * MIB, 2);
    fsync_another(&volume);
    assert!(volume.stats().dirty_bytes >= 4 * MIB);
    assert!(volume.writer().checkpoints().mark_clean().expect("a checkpoint"));
    assert_is(&after_crash(&device), "big", 4 * MIB, 2);
}

#[test]
fn fdatasync_writes_nothing_if_only_times_changed() {
    let device = new_device(64 * MIB);
    let volume = open(device.clone());
    let file = make(&volume, "file", 100 * KIB, 1);
    volume.sync().expect("sync");
    let times =
        SetAttr { atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..SetAttr::default() };
    volume.set_attr(&Caller::ROOT, file, &times).expect("times");
    let fdatasync = || volume.sync_file(file, true).expect("fdatasync");
    assert_eq!(written(&volume, fdatasync), 0);
    assert!(written(&volume, || fsync(&volume, file)) > 0, "fsync makes them durable");
    assert_eq!(written(&volume, || fsync(&volume, file)), 0);

    volume.set_attr(&Caller::ROOT, file, &times).expect("times");
    write(&volume, file, 0, 4 * KIB, 2);
    assert!(written(&volume, fdatasync) > 0, "the contents changed as well");
    volume.set_attr(&Caller::ROOT, file, &SetAttr { size: Some(50), ..times }).expect("truncate");
    assert!(written(&volume, fdatasync) > 0, "so did the size");
    assert_is(&after_crash(&device), "file", 50, 2);
}

/// Changes of other files do not count, except for the directories on the path to the file.
#[test]
fn an_fsync_of_an_unchanged_file_writes_nothing() {
    let device = new_device(64 * MIB);
    let volume = open(device.clone());
    let new_dir = NewFile { kind: NewKind::Directory, permissions: 0o755, ..FILE };
    let dir = volume.make(&Caller::ROOT, ROOT, b"dir", &new_dir).expect("make").ino;
    let file = volume.make(&Caller::ROOT, dir, b"file", &FILE).expect("make").ino;
    let neighbour = volume.make(&Caller::ROOT, dir, b"neighbour", &FILE).expect("make").ino;
    volume.sync().expect("sync");
    let is_free = |what: &str| {
        for data_only in [false, true] {
            let before = volume.stats();
            volume.sync_file(file, data_only).expect("fsync");
            let after = volume.stats();
            let requests = |stats: cffs::vfs::Stats| (stats.device_writes, stats.device_syncs);
            assert_eq!(requests(after), requests(before), "{what}");
        }
    };
    is_free("nothing happened");
    let mode = SetAttr { permissions: Some(0o600), ..SetAttr::default() };
    volume.set_attr(&Caller::ROOT, neighbour, &mode).expect("chmod");
    volume
        .rename(&Caller::ROOT, dir, b"neighbour", dir, b"other", RenameMode::Replace)
        .expect("rename");
    make(&volume, "new", 100 * KIB, 1);
    volume.make(&Caller::ROOT, ROOT, b"new dir", &new_dir).expect("make");
    is_free("others were changed, renamed and made");

    rename(&volume, "dir", "renamed");
    assert!(written(&volume, || fsync(&volume, file)) > 0, "its directory has another name");
    after_crash(&device).lookup(ROOT, b"renamed").expect("the new name");
    is_free("the new name is there");
    volume.make(&Caller::ROOT, dir, b"later", &FILE).expect("make");
    is_free("another name was added");
}

/// For a file in a directory that is on the device, its contents and one sector are written; the directory's
/// own inode, of which only times and a count have changed, waits. After a crash these follow from the names.
#[test]
fn a_directory_is_not_written_with_its_files() {
    let make_in = |volume: &Volume, dir: InodeNo, name: &str| {
        let attr = volume.make(&Caller::ROOT, dir, name.as_bytes(), &FILE).expect("make");
        write(volume, attr.ino, 0, 200, 1);
        volume.release(attr.ino, 1);
        attr
    };
    let device = new_device(64 * MIB);
    let volume = open(device.clone());
    let new = NewFile { kind: NewKind::Directory, permissions: 0o755, ..FILE };
    let dir = volume.make(&Caller::ROOT, ROOT, b"dir", &new).expect("make").ino;
    let gone = make_in(&volume, dir, "gone").ino;
    volume.sync().expect("sync");
    // The log lists busy objects once.
    fsync(&volume, make_in(&volume, dir, "first").ino);

    volume.unlink(&Caller::ROOT, dir, b"gone").expect("unlink");
    let second = make_in(&volume, dir, "second");
    let writes = volume.stats().device_writes;
    fsync(&volume, second.ino);
    assert_eq!(volume.stats().device_writes - writes, 1, "a sector of the directory's alone");
    let now = volume.attr(dir).expect("attributes");
    let crashed = after_crash(&device);
    let dir_after = crashed.lookup(ROOT, b"dir").expect("the directory");
    assert!(matches!(crashed.lookup(dir, b"gone"), Err(Error::NotFound)), "inode {gone} is gone");
    assert_eq!(crashed.lookup(dir, b"second").expect("a name").btime, second.btime);
    assert_eq!((dir_after.mtime, dir_after.ctime), (second.btime, second.btime));
    assert!(dir_after.change > now.change, "a value that was seen before means another state now");
    assert!(matches!(crashed.remove_dir(&Caller::ROOT, ROOT, b"dir"), Err(Error::NotEmpty)));

    let written_bytes = written(&volume, || fsync(&volume, dir));
    assert!(written_bytes > 0, "an fsync of the directory writes its times");
    assert_eq!(after_crash(&device).lookup(ROOT, b"dir").expect("the directory").ctime, now.ctime);
    let third = make_in(&volume, dir, "third");
    fsync(&volume, third.ino);
    volume.sync().expect("sync");
    let now = volume.attr(dir).expect("attributes");
    let after = after_crash(&device).lookup(ROOT, b"dir").expect("the directory");
    assert_eq!((after.ctime, after.change), (now.ctime, now.change), "and so does a sync");
}

/// Callers that arrive while an epoch is written share the next one, whichever files they sync.
#[test]
fn fsyncs_of_several_files_share_an_epoch() {
    const FILES: usize = 8;
    let device = new_device(64 * MIB);
    let volume = open(device.clone());
    let files: Vec<InodeNo> =
        (0..FILES).map(|number| make(&volume, &format!("file {number}"), 2 * MIB, 1)).collect();
    let first = make(&volume, "first", KIB, 1);
    volume.sync().expect("sync");
    let epochs = volume.stats().epochs;
    let calls = volume.stats().syncs;
    write(&volume, first, 0, KIB, 2);
    files.iter().for_each(|ino| write(&volume, *ino, 0, 2 * MIB, 2));
    let held = device.hold(RequestKind::Write);
    thread::scope(|scope| {
        scope.spawn(|| fsync(&volume, first));
        let wait_for = |count: u64| {
            let until = Instant::now() + Duration::from_secs(60);
            while volume.stats().syncs < calls + count && Instant::now() < until {
                thread::yield_now();
            }
            thread::sleep(Duration::from_millis(50));
        };
        wait_for(1);
        for ino in &files {
            let volume = &volume;
            scope.spawn(move || fsync(volume, *ino));
        }
        wait_for(1 + FILES as u64);
        drop(held);
    });
    let epochs = volume.stats().epochs - epochs;
    assert!(epochs <= 3, "{epochs} epochs for {FILES} files");
    let crashed = after_crash(&device);
    (0..FILES).for_each(|number| assert_is(&crashed, &format!("file {number}"), 2 * MIB, 2));
}

/// A file included in an epoch is clean in memory from then on. Only its state on the device counts.
#[test]
fn an_fsync_waits_for_the_epoch_that_has_taken_its_file() {
    for data_only in [false, true] {
        let device = new_device(64 * MIB);
        let volume = open(device.clone());
        let file = make(&volume, "file", 4 * KIB, 1);
        volume.sync().expect("sync");
        write(&volume, file, 0, 4 * KIB, 2);
        let held = device.hold(RequestKind::Write);
        thread::scope(|scope| {
            scope.spawn(|| volume.sync().expect("sync"));
            assert!(device.wait_for_request(Duration::from_secs(60)), "nothing is written");
            let waiter = scope.spawn(|| {
                volume.sync_file(file, data_only).expect("fsync");
                device.inner().durable()
            });
            // A call that did not wait would have returned by then.
            thread::sleep(Duration::from_millis(100));
            drop(held);
            let durable = waiter.join().expect("no panic");
            let survivor = Arc::new(MemoryDevice::from_image(durable));
            let clock = Arc::new(TestClock::default());
            let survivor = cffs::open(survivor, clock, OpenOptions::default()).expect("open");
            assert_is(&survivor, "file", 4 * KIB, 2);
        });
    }
}

/// However calls interleave: when an fsync returns, the device has the file's state from before the call.
#[test]
fn no_fsync_accepts_an_epoch_that_left_its_file_behind() {
    let device = new_device(64 * MIB);
    let volume =
        open_with(device.clone(), OpenOptions { fsync_leaves_bytes: 0, ..OpenOptions::default() });
    let files: Vec<InodeNo> =
        (0..4).map(|number| make(&volume, &format!("file {number}"), 100 * KIB, 0)).collect();
    volume.sync().expect("sync");
    thread::scope(|scope| {
        for (number, ino) in files.iter().enumerate() {
            let (volume, device) = (&volume, &device);
            scope.spawn(move || {
                for round in 1..=40 {
                    write(volume, *ino, 0, 100 * KIB, round);
                    fsync(volume, *ino);
                    let image = device.inner().crash(0, |_| false).expect("an image");
                    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
                    let found = open_with(Arc::new(MemoryDevice::from_image(image)), read_only);
                    assert_is(&found, &format!("file {number}"), 100 * KIB, round);
                }
            });
        }
    });
}

/// Regression: creating a file with a vacated name first wrote an epoch, with a flush, and the fsync of the
/// file that had vacated the name left the new file out, since its epoch had ended.
#[test]
fn a_new_file_with_a_vacated_name_is_written_by_the_fsync_of_the_file_that_had_it() {
    for (embed, sector_bytes) in [(true, 4096), (true, 512), (false, 4096), (false, 512)] {
        let options =
            MkfsOptions { embed, sector_bytes: Some(sector_bytes), ..MkfsOptions::default() };
        let device = made_device(16 * MIB, &options);
        let volume = open(device.clone());
        let dir =
            volume.make(&Caller::ROOT, ROOT, b"dir", &NewFile { kind: NewKind::Directory, ..FILE });
        let dir = dir.expect("make").ino;
        let old = make(&volume, "foo", 9 * KIB, 1);
        for number in 0..20 {
            make(&volume, &format!("other {number}"), 300, 2);
        }
        volume.sync().expect("sync");
        let forced = volume.stats().epochs_forced;
        // Within its directory, where the entry may stay in its sector or not, and to another directory.
        rename(&volume, "foo", "bar");
        make(&volume, "foo", 5 * KIB, 3);
        let long = "bar".repeat(60);
        rename(&volume, "other 3", &long);
        make(&volume, "other 3", 100, 4);
        volume
            .rename(&Caller::ROOT, ROOT, b"other 7", dir, b"moved", RenameMode::Replace)
            .expect("rename");
        make(&volume, "other 7", 100, 5);
        assert_eq!(volume.stats().epochs_forced, forced, "a flush for each vacated name");
        fsync(&volume, old);
        let after = after_crash(&device);
        for (name, len, byte) in [
            ("bar", 9 * KIB, 1),
            ("foo", 5 * KIB, 3),
            (&*long, 300, 2),
            ("other 3", 100, 4),
            ("other 7", 100, 5),
        ] {
            assert_is(&after, name, len, byte);
        }
        let moved = after.lookup(dir, b"moved").expect("moved");
        assert_eq!(moved.size, 300);
        volume.close().expect("close");
    }
}

/// A directory cannot wait until a vacated name has left the device, since files may move into it: it needs
/// an epoch. Files created after that epoch are still included in the fsync.
#[test]
fn a_new_directory_with_a_vacated_name_is_written_by_that_fsync_too() {
    let device = new_device(16 * MIB);
    let volume = open(device.clone());
    let old = make(&volume, "foo", KIB, 1);
    volume.sync().expect("sync");
    rename(&volume, "foo", "bar");
    volume
        .make(&Caller::ROOT, ROOT, b"foo", &NewFile { kind: NewKind::Directory, ..FILE })
        .expect("make");
    fsync(&volume, old);
    let after = after_crash(&device);
    assert_is(&after, "bar", KIB, 1);
    assert!(after.lookup(ROOT, b"foo").is_ok(), "the new directory is missing");
}

/// A file that replaces one that waits for a vacated name cannot wait itself: it needs an epoch.
#[test]
fn a_file_may_replace_one_with_a_vacated_name() {
    let device = new_device(16 * MIB);
    let volume = open(device.clone());
    let old = make(&volume, "foo", KIB, 1);
    make(&volume, "third", KIB, 3);
    volume.sync().expect("sync");
    rename(&volume, "foo", "bar");
    make(&volume, "foo", KIB, 2);
    rename(&volume, "third", "foo");
    fsync(&volume, old);
    let after = after_crash(&device);
    assert_is(&after, "bar", KIB, 1);
    assert_is(&after, "foo", KIB, 3);
}
