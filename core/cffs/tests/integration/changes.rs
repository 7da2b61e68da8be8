//! Marks, and the list of what changed since one: complete, short, and found without reading the whole tree.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use cffs::clock::TestClock;
use cffs::device::fault::{Effect, Fault, FaultDevice, Strike, Target};
use cffs::device::{BlockDevice, Counts, MemoryDevice, TraceDevice};
use cffs::error::{Error, Result};
use cffs::files::Files;
use cffs::format::inode::{FileType, InodeFlags};
use cffs::format::sector::{self, Body, Sector};
use cffs::format::superblock::RoCompat;
use cffs::fsck::{self, CheckOptions, Repair};
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::{
    AllocateMode, AtimeMode, CHANGED_PATH_BYTES_MAX, Caller, Marks, OpenOptions, RegroupOptions,
    RenameMode, Scattered, SetAttr, Volume, XattrMode, read_superblock, set_own_xattr,
};

use cffs_testing::setup::{DIRECTORY, FILE, made, make_with, open, recover};

const ROOT: InodeNo = InodeNo::ROOT;

/// The inode at a path, which is not in use afterwards.
fn find(volume: &Volume, path: &str) -> InodeNo {
    path.split('/').filter(|name| !name.is_empty()).fold(ROOT, |dir, name| {
        let found = volume.lookup(dir, name.as_bytes()).expect(path).ino;
        volume.release(found, 1);
        found
    })
}

/// The directory of a path, and the last name.
fn split<'a>(volume: &Volume, path: &'a str) -> (InodeNo, &'a [u8]) {
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    (find(volume, dir), name.as_bytes())
}

fn make_dir(volume: &Volume, path: &str) -> InodeNo {
    let (dir, name) = split(volume, path);
    let made = volume.make(&Caller::ROOT, dir, name, &DIRECTORY).expect("made").ino;
    volume.release(made, 1);
    made
}

fn write(volume: &Volume, path: &str, bytes: usize) -> InodeNo {
    let (dir, name) = split(volume, path);
    let file = match volume.lookup(dir, name) {
        Ok(found) => found.ino,
        Err(_) => volume.make(&Caller::ROOT, dir, name, &FILE).expect("made").ino,
    };
    volume.write(&Caller::ROOT, file, 0, &vec![7; bytes]).expect("written");
    volume.release(file, 1);
    file
}

fn rename(volume: &Volume, from: &str, to: &str, mode: RenameMode) {
    let ((from, name), (to, new)) = (split(volume, from), split(volume, to));
    volume.rename(&Caller::ROOT, from, name, to, new, mode).expect("renamed");
}

fn link(volume: &Volume, from: &str, to: &str) {
    let file = find(volume, from);
    let (dir, name) = split(volume, to);
    volume.link(file, dir, name).expect("linked");
    volume.release(file, 1);
}

fn unlink(volume: &Volume, path: &str) {
    let (dir, name) = split(volume, path);
    volume.unlink(&Caller::ROOT, dir, name).expect("removed");
}

fn try_since(volume: &Volume, dir: InodeNo, mark: &str) -> Result<Vec<String>> {
    let mut listed = BTreeSet::new();
    Marks::of(volume).changes(dir, mark, &mut |change| {
        let slash = if change.file_type == FileType::Directory { "/" } else { "" };
        let path = String::from_utf8_lossy(change.path);
        assert!(listed.insert(format!("{path}{slash}")), "{path} is listed twice");
        ControlFlow::Continue(())
    })?;
    Ok(listed.into_iter().collect())
}

/// The changes since a mark; directories with a slash at the end.
fn since(volume: &Volume, mark: &str) -> Vec<String> {
    try_since(volume, ROOT, mark).expect("listed")
}

/// The files among the changes since a mark. After a crash, all directories are listed as well.
fn files_since(volume: &Volume, mark: &str) -> Vec<String> {
    let is_file = |path: &String| !path.ends_with('/');
    let all = since(volume, mark);
    let directories = all.iter().filter(|path| !is_file(path)).count();
    assert_eq!(directories, 7, "{all:?}");
    all.into_iter().filter(is_file).collect()
}

/// A volume with a tree, which was marked.
fn marked(options: &MkfsOptions) -> (Arc<MemoryDevice>, Volume) {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    mkfs::make(&device, options).expect("made");
    let volume = open(device.clone(), OpenOptions::default());
    for dir in ["a", "a/b", "a/b/c", "d", "d/e", "f"] {
        make_dir(&volume, dir);
        for (name, bytes) in [("tiny", 20), ("small", 5000), ("large", 200_000)] {
            write(&volume, &format!("{dir}/{name}"), bytes);
        }
    }
    Marks::of(&volume).set("m").expect("marked");
    (device, volume)
}

fn embedded_and_external() -> [MkfsOptions; 2] {
    [true, false].map(|embed| MkfsOptions { embed, ..MkfsOptions::default() })
}

/// Opens the volume again, after a check that finds nothing.
fn opened_again(device: &Arc<MemoryDevice>, volume: Volume) -> Volume {
    volume.close().expect("closed");
    let options = CheckOptions { force: true, contents: true, ..CheckOptions::default() };
    let report = fsck::check(device, &options, &()).expect("checked");
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    open(device.clone(), OpenOptions::default())
}

#[test]
fn what_was_made_or_changed_is_listed_and_nothing_else() {
    for options in embedded_and_external() {
        let (device, volume) = marked(&options);
        assert_eq!(since(&volume, "m"), [""; 0], "nothing changed");
        write(&volume, "a/b/c/tiny", 10);
        write(&volume, "a/large", 4096);
        write(&volume, "d/e/new", 6000);
        let permissions = Some(0o600);
        let changes = SetAttr { permissions, ..SetAttr::default() };
        volume.set_attr(&Caller::ROOT, find(&volume, "f/small"), &changes).expect("changed");
        let tiny = find(&volume, "f/tiny");
        volume.set_xattr(&Caller::ROOT, tiny, b"user.a", b"b", XattrMode::Any).expect("set");
        let d = find(&volume, "d");
        volume.set_attr(&Caller::ROOT, d, &changes).expect("changed");
        let punched = find(&volume, "a/b/large");
        let punch = AllocateMode::PunchHole;
        volume.allocate(&Caller::ROOT, punched, 0, 4096, punch).expect("punched");
        let expected =
            ["a/b/c/tiny", "a/b/large", "a/large", "d/", "d/e/", "d/e/new", "f/small", "f/tiny"];
        assert_eq!(since(&volume, "m"), expected);
        let volume = opened_again(&device, volume);
        assert_eq!(since(&volume, "m"), expected, "after a restart");
        let below = try_since(&volume, find(&volume, "d"), "m").expect("listed");
        assert_eq!(below, ["/", "e/", "e/new"]);
        Marks::of(&volume).set("n").expect("marked");
        assert_eq!(since(&volume, "n"), [""; 0]);
        write(&volume, "f/large", 10);
        assert_eq!(since(&volume, "n"), ["f/large"]);
        assert_eq!(since(&volume, "m").len(), expected.len() + 1);
    }
}

#[test]
fn a_directory_is_listed_that_lost_or_gained_a_name() {
    for options in embedded_and_external() {
        let (device, volume) = marked(&options);
        unlink(&volume, "a/b/tiny");
        rename(&volume, "d/tiny", "d/e/moved", RenameMode::Replace);
        rename(&volume, "f/small", "f/large", RenameMode::Replace);
        let expected = ["a/b/", "d/", "d/e/", "d/e/moved", "f/", "f/large"];
        assert_eq!(since(&volume, "m"), expected);
        let volume = opened_again(&device, volume);
        assert_eq!(since(&volume, "m"), expected);
        rename(&volume, "a/b/large", "a/b/small", RenameMode::Exchange);
        let listed = since(&volume, "m");
        assert!(
            ["a/b/", "a/b/large", "a/b/small"]
                .iter()
                .all(|path| { listed.iter().any(|listed| listed == path) })
        );
    }
}

/// Regression: any user who made such a path made each list fail.
#[test]
fn a_path_that_is_too_long_stands_for_what_is_below_it() {
    let (_, volume) = marked(&MkfsOptions::default());
    let mut paths = vec![String::from("a")];
    for _ in 0..40 {
        let path = format!("{}/{}", paths[paths.len() - 1], "d".repeat(255));
        make_dir(&volume, &path);
        paths.push(path);
    }
    write(&volume, "other", 10);
    let too_long = paths.iter().position(|path| path.len() > CHANGED_PATH_BYTES_MAX);
    let too_long = too_long.expect("one is");
    let listed = paths[..=too_long].iter().map(|path| format!("{path}/"));
    let mut expected: Vec<String> = listed.chain(["/", "other"].map(String::from)).collect();
    expected.sort();
    assert_eq!(since(&volume, "m"), expected);
    // Also if only what is below it has changed.
    Marks::of(&volume).set("two").expect("set");
    write(&volume, &format!("{}/file", paths[40]), 10);
    assert_eq!(since(&volume, "two"), [format!("{}/", paths[too_long])]);
}

#[test]
fn everything_below_a_renamed_directory_is_listed() {
    for options in embedded_and_external() {
        let (device, volume) = marked(&options);
        rename(&volume, "a/b", "d/moved", RenameMode::Replace);
        let below = ["", "c/", "c/large", "c/small", "c/tiny", "large", "small", "tiny"];
        let mut expected = vec![String::from("a/"), String::from("d/")];
        expected.extend(below.map(|path| format!("d/moved/{path}")));
        assert_eq!(since(&volume, "m"), expected);
        let volume = opened_again(&device, volume);
        assert_eq!(since(&volume, "m"), expected);
        // The directory that is asked about counts as renamed, too.
        let c = try_since(&volume, find(&volume, "d/moved/c"), "m").expect("listed");
        assert_eq!(c, ["/", "large", "small", "tiny"]);
        rename(&volume, "f", "d/e", RenameMode::Exchange);
        let listed = since(&volume, "m");
        for path in ["f/", "f/tiny", "d/e/", "d/e/large"] {
            assert!(listed.iter().any(|listed| listed == path), "{path}: {listed:?}");
        }
    }
}

#[test]
fn a_file_with_several_names_is_listed_with_each() {
    let (device, volume) = marked(&MkfsOptions::default());
    link(&volume, "a/b/c/tiny", "f/link");
    assert_eq!(since(&volume, "m"), ["a/b/c/tiny", "f/", "f/link"]);
    Marks::of(&volume).set("n").expect("marked");
    write(&volume, "f/link", 12);
    assert_eq!(since(&volume, "n"), ["a/b/c/tiny", "f/link"]);
    let volume = opened_again(&device, volume);
    assert_eq!(since(&volume, "n"), ["a/b/c/tiny", "f/link"]);
}

/// The inode returns from the external table to its directory when its last name is looked up.
#[test]
fn a_changed_file_stays_listed_when_it_loses_a_name_and_its_inode_returns() {
    for looks_up_first in [false, true] {
        let (device, volume) = marked(&MkfsOptions::default());
        link(&volume, "a/b/c/tiny", "f/link");
        Marks::of(&volume).set("n").expect("marked");
        write(&volume, "f/link", 12);
        volume.sync().expect("durable");
        unlink(&volume, "f/link");
        volume.sync().expect("durable");
        if looks_up_first {
            find(&volume, "a/b/c/tiny");
        }
        let mut listed = Vec::new();
        Marks::of(&volume)
            .changes(ROOT, "n", &mut |change| {
                listed.push(String::from_utf8_lossy(change.path).into_owned());
                find(&volume, "a/b/c/tiny");
                ControlFlow::Continue(())
            })
            .expect("listed");
        listed.sort();
        assert_eq!(listed, ["a/b/c/tiny", "f"], "looked up first: {looks_up_first}");
        let volume = opened_again(&device, volume);
        assert_eq!(since(&volume, "n"), ["a/b/c/tiny", "f/"]);
    }
}

#[test]
fn neither_reading_nor_regrouping_is_a_change() {
    let device = made(64 << 20);
    let options = OpenOptions { atime: AtimeMode::Strict, ..OpenOptions::default() };
    let volume = open(device.clone(), options);
    for number in 0..40 {
        make_with(&volume, &format!("file {number}"), &[3; 9000]);
        volume.sync().expect("durable");
        make_with(&volume, &format!("gap {number}"), &[4; 30_000]);
    }
    (0..40).for_each(|number| unlink(&volume, &format!("gap {number}")));
    Marks::of(&volume).set("m").expect("marked");
    for number in 0..40 {
        let file = find(&volume, &format!("file {number}"));
        volume.read(file, 0, &mut [0; 100]).expect("read");
    }
    let all = RegroupOptions { gain: 0, ..RegroupOptions::default() };
    let moved = volume.regroup(Scattered::Tree(ROOT), &all, &mut |_| ControlFlow::Continue(()));
    assert!(moved.expect("moved").moved_files > 0);
    assert_eq!(since(&volume, "m"), [""; 0]);
}

#[test]
fn a_mark_survives_growing_a_crash_and_a_copy() {
    let (device, volume) = marked(&MkfsOptions::default());
    write(&volume, "a/b/c/tiny", 10);
    volume.admin().grow(Some(64 << 20)).expect("as large as before");
    volume.sync().expect("durable");
    write(&volume, "f/large", 10);
    volume.sync_file(find(&volume, "f/large"), true).expect("durable");
    let left = device.snapshot();
    volume.close().expect("closed");
    let copy = Arc::new(MemoryDevice::from_image(left));
    let volume = recover(copy.clone(), OpenOptions::default()).expect("recovered");
    assert_eq!(Marks::of(&volume).list().expect("read").len(), 1);
    assert_eq!(files_since(&volume, "m"), ["a/b/c/tiny", "f/large"]);
    assert_eq!(volume.writer().superblock.get().marks_walked, 1);
    let volume = opened_again(&copy, volume);
    assert_eq!(files_since(&volume, "m"), ["a/b/c/tiny", "f/large"]);
    Marks::of(&volume).set("n").expect("marked");
    write(&volume, "d/e/tiny", 10);
    assert_eq!(since(&volume, "n"), ["d/e/tiny"]);
}

#[test]
fn a_volume_that_a_crash_left_is_listed_without_recovery() {
    let (device, volume) = marked(&MkfsOptions::default());
    write(&volume, "a/b/c/tiny", 10);
    volume.sync().expect("durable");
    let left = device.snapshot();
    volume.close().expect("closed");
    let copy = Arc::new(MemoryDevice::from_image(left));
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let volume = open(copy, options);
    assert_eq!(files_since(&volume, "m"), ["a/b/c/tiny"]);
}

#[test]
fn a_repair_counts_as_a_change() {
    let (device, volume) = marked(&MkfsOptions::default());
    let places = volume.admin().places(find(&volume, "a/b/c")).expect("placed");
    volume.close().expect("closed");
    let geometry = device.geometry();
    let zeros = vec![0; geometry.sector_bytes as usize];
    device.write_at(places[0].start, &[std::io::IoSlice::new(&zeros)]).expect("damaged");
    let options = CheckOptions { repair: Repair::Yes, force: true, ..CheckOptions::default() };
    let report = fsck::check(&device, &options, &()).expect("checked");
    assert!(report.changed && !report.problems.is_empty());
    let volume = open(device, OpenOptions::default());
    let listed = since(&volume, "m");
    assert!(listed.iter().any(|path| path == "a/b/c/"), "{listed:?}");
    assert!(listed.len() < 8, "{listed:?}");
}

#[test]
fn a_damaged_mark_is_named_and_does_no_other_harm() {
    let (device, volume) = marked(&MkfsOptions::default());
    let too_high = [&u32::MAX.to_le_bytes()[..], &0u64.to_le_bytes()].concat();
    for (name, value) in [("short", &b"1"[..]), ("high", &too_high), ("zero", &[0; 12])] {
        let name = format!("trusted.cffs.mark.{name}");
        set_own_xattr(&volume, ROOT, name.as_bytes(), value, XattrMode::Any).expect("set");
    }
    let volume = opened_again(&device, volume);
    let marks = Marks::of(&volume).list().expect("read");
    let damaged = marks.iter().filter(|mark| mark.count.is_none());
    assert_eq!(damaged.map(|mark| &*mark.name).collect::<Vec<_>>(), ["high", "short", "zero"]);
    for name in ["high", "short", "zero"] {
        let error = try_since(&volume, ROOT, name).expect_err("damaged");
        assert!(matches!(error, Error::Invalid(_)), "{error}");
        Marks::of(&volume).remove(name).expect("removed");
    }
    let error = try_since(&volume, ROOT, "other").expect_err("no such mark");
    assert!(matches!(error, Error::NoAttribute), "{error}");
    write(&volume, "f/tiny", 10);
    // Setting attributes by other means changed the root.
    assert_eq!(since(&volume, "m"), ["/", "f/tiny"]);
}

#[test]
fn a_count_of_marks_beyond_the_highest_does_no_harm() {
    let (device, volume) = marked(&MkfsOptions::default());
    volume.close().expect("closed");
    let mut superblock = read_superblock(&*device).expect("read");
    (superblock.marks, superblock.marks_walked) = (u32::MAX, u32::MAX - 1);
    let encoded = superblock.encode();
    device.write_at(0, &[std::io::IoSlice::new(&encoded)]).expect("written");
    let options = CheckOptions { force: true, ..CheckOptions::default() };
    let report = fsck::check(&device, &options, &()).expect("checked");
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    let volume = open(device, OpenOptions::default());
    write(&volume, "f/tiny", 10);
    assert_eq!(files_since(&volume, "m"), ["f/tiny"]);
    assert!(matches!(Marks::of(&volume).set("n"), Err(Error::Unsupported(_))));
}

#[test]
fn a_mark_that_cannot_be_set_leaves_the_volume_as_it_was() {
    let device = made(64 << 20);
    let volume = open(device, OpenOptions::default());
    let before = volume.writer().superblock.get();
    let flags = InodeFlags::IMMUTABLE;
    volume.set_flags(ROOT, flags).expect("set");
    assert!(matches!(Marks::of(&volume).set("m"), Err(Error::NotPermitted)));
    volume.set_flags(ROOT, InodeFlags::empty()).expect("set");
    let after = volume.writer().superblock.get();
    assert_eq!((after.marks, after.ro_compat), (before.marks, before.ro_compat));
    for wrong in ["", "a/b", "a b", &"x".repeat(65)] {
        assert!(matches!(Marks::of(&volume).set(wrong), Err(Error::Invalid(_))), "{wrong}");
    }
    Marks::of(&volume).set("m").expect("marked");
    assert!(matches!(Marks::of(&volume).set("m"), Err(Error::Exists)));
    assert_eq!(volume.writer().superblock.get().marks, 1);
    Marks::of(&volume).remove("m").expect("removed");
    assert!(matches!(Marks::of(&volume).remove("m"), Err(Error::NoAttribute)));
    // A count that a program without marks dropped would be given again.
    assert!(volume.writer().superblock.get().ro_compat.contains(RoCompat::MARKS));
    Marks::of(&volume).set("m").expect("marked");
    assert_eq!(volume.writer().superblock.get().marks, 2);
}

#[test]
fn a_volume_whose_marks_were_removed_can_be_marked_again() {
    let (device, volume) = marked(&MkfsOptions::default());
    Marks::of(&volume).remove("m").expect("removed");
    write(&volume, "a/b/c/tiny", 11);
    volume.sync().expect("durable");
    Marks::of(&volume).set("m").expect("marked");
    assert_eq!(since(&volume, "m"), [""; 0]);
    write(&volume, "a/b/c/small", 11);
    let volume = opened_again(&device, volume);
    assert_eq!(since(&volume, "m"), ["a/b/c/small"]);
}

/// Replaces the reference of a name by one to another inode.
fn point_to(device: &MemoryDevice, places: &[std::ops::Range<u64>], name: &[u8], to: InodeNo) {
    let superblock = read_superblock(device).expect("read");
    let len = superblock.sector_bytes as usize;
    for at in places.iter().cloned().flat_map(|place| place.step_by(len)) {
        let mut image = vec![0; len];
        device.read_at(at, &mut image).expect("read");
        let sector = Sector::new(&image);
        let Some(entry) = sector.entries().find(|entry| entry.name == name) else { continue };
        let (slot, epoch) = (entry.slot, sector.epoch());
        let Body::Reference { sector, .. } = entry.body else { panic!("it is embedded") };
        assert!(sector::replace(&mut image, slot, &Body::Reference { ino: to, sector }));
        sector::seal(&mut image, epoch, superblock.checksum());
        device.write_at(at, &[std::io::IoSlice::new(&image)]).expect("written");
        return;
    }
    panic!("the name is not there");
}

#[test]
fn a_loop_of_directories_or_a_file_as_a_directory_ends_the_list() {
    for path in ["a", "f/tiny"] {
        let options = MkfsOptions { embed: false, ..MkfsOptions::default() };
        let (device, volume) = marked(&options);
        write(&volume, "f/tiny", 10);
        let places = volume.admin().places(find(&volume, "a/b")).expect("placed");
        let to = find(&volume, path);
        volume.close().expect("closed");
        point_to(&device, &places, b"c", to);
        let volume = open(device, OpenOptions::default());
        let mut listed = Vec::new();
        let walked = Marks::of(&volume).changes(ROOT, "m", &mut |change| {
            listed.push(String::from_utf8_lossy(change.path).into_owned());
            if listed.len() > 100 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(walked.is_ok() && listed.len() < 10, "{walked:?} {listed:?}");
        assert!(listed.iter().any(|path| path == "f/tiny"), "{listed:?}");
    }
}

/// Opens a marked volume on a device that can fail, with an empty cache.
fn on_failing_device(
    (device, volume): (Arc<MemoryDevice>, Volume),
) -> (Arc<FaultDevice<Arc<MemoryDevice>>>, Volume) {
    volume.close().expect("closed");
    let device = Arc::new(FaultDevice::new(device, 1));
    let options = OpenOptions { cache_bytes: 1 << 20, ..OpenOptions::default() };
    (device.clone(), open(device, options))
}

/// Regression: contents before a page that could not be read were changed, and the file was not listed. A
/// write changes nothing then.
#[test]
fn a_file_is_listed_that_a_failed_call_changed() {
    const RANGE: std::ops::Range<u64> = 100..150_100;
    let write_over = |volume: &Volume, file| {
        volume.write(&Caller::ROOT, file, RANGE.start, &[9; 150_000]).map(drop)
    };
    let punch = |volume: &Volume, file| {
        let len = RANGE.end - RANGE.start;
        volume.allocate(&Caller::ROOT, file, RANGE.start, len, AllocateMode::PunchHole)
    };
    type Change<'a> = &'a dyn Fn(&Volume, InodeNo) -> Result<()>;
    for (change, byte, listed) in
        [(&write_over as Change<'_>, 7, &[][..]), (&punch, 0, &["a/large"][..])]
    {
        let (device, volume) = on_failing_device(marked(&MkfsOptions::default()));
        let file = find(&volume, "a/large");
        let places = volume.admin().places(file).expect("placed");
        let last = places[0].start + RANGE.end / 4096 * 4096;
        assert!(places[0].contains(&last), "in one piece: {places:?}");
        let target = Target::reads().within(last..last + 1);
        device.arm(Fault { target, strike: Strike::Always, effect: Effect::IO_ERROR });
        assert!(matches!(change(&volume, file), Err(Error::Io(_))));
        device.disarm();
        let mut first = [0; 200];
        volume.read(file, 0, &mut first).expect("read");
        assert_eq!((first[99], first[100]), (7, byte), "bytes of the range");
        // The device may have lost more, so all directories are listed as well.
        assert_eq!(files_since(&volume, "m"), listed);
    }
}

/// Regression: the range was zeroed, and the file was not listed.
#[test]
fn a_file_is_listed_that_was_zeroed_before_space_ran_out() {
    let (_, volume) = marked(&MkfsOptions::default());
    let (file, mode) = (find(&volume, "a/large"), AllocateMode::ZeroRange { keep_size: false });
    let zeroed = volume.allocate(&Caller::ROOT, file, 0, 1 << 30, mode);
    assert!(matches!(zeroed, Err(Error::NoSpace)), "{zeroed:?}");
    let mut first = [9; 2];
    volume.read(file, 0, &mut first).expect("read");
    assert_eq!(first, [0; 2]);
    assert_eq!(since(&volume, "m"), ["a/large"]);
}

/// Writes a change during an outage of this many reads of the directory above that of the file, none of
/// whose directories is in memory: `others` take their place. `None` if the outage lasts too long for that.
fn written_during_outage(
    image: &MemoryDevice,
    others: &[InodeNo],
    reads: u64,
) -> Option<Arc<MemoryDevice>> {
    let memory = Arc::new(MemoryDevice::from_image(image.snapshot()));
    let volume = open(memory.clone(), OpenOptions::default());
    let (above, changed) = (find(&volume, "p"), find(&volume, "p/q/large"));
    let places = volume.admin().places(above).expect("placed");
    let (device, volume) = on_failing_device((memory.clone(), volume));
    volume.write(&Caller::ROOT, changed, 0, b"changed").expect("written");
    for other in others.iter().chain(others) {
        volume.attr(*other).expect("read");
    }
    let effect = Effect::Error(rustix::io::Errno::TIMEDOUT.raw_os_error());
    for place in places {
        for strike in (0..reads).map(Strike::Nth) {
            let target = Target::reads().within(place.clone());
            device.arm(Fault { target, strike, effect });
        }
    }
    let written = volume.sync();
    assert!(device.struck() > 0, "the directory is read");
    device.disarm();
    assert_eq!(volume.writer().superblock.get().damage, None);
    written.ok()?;
    assert!(since(&volume, "n").iter().any(|path| path == "p/q/large"), "{reads} reads");
    volume.close().expect("closed");
    Some(memory)
}

/// The directories above a change that cannot be stamped are found by a list that enters all. Regression: a
/// store that did not answer in time was recorded as damage.
#[test]
fn an_outage_while_directories_are_stamped_is_no_damage_and_hides_no_change() {
    let (image, volume) = marked(&MkfsOptions::default());
    // The inode of a directory is far from those of its files.
    let mut others = Vec::new();
    for (dir, files) in [("p", 1500), ("p/q", 1500), ("other", 6000)] {
        let dir = make_dir(&volume, dir);
        others = (0..files)
            .map(|number| {
                let name = format!("{number}");
                let made = volume.make(&Caller::ROOT, dir, name.as_bytes(), &FILE).expect("made");
                volume.release(made.ino, 1);
                made.ino
            })
            .collect();
    }
    write(&volume, "p/q/large", 200_000);
    Marks::of(&volume).set("n").expect("marked");
    volume.close().expect("closed");
    let mut unstamped = 0;
    for reads in 1..100 {
        let Some(device) = written_during_outage(&image, &others, reads) else { break };
        let volume = open(device, OpenOptions::default());
        assert_eq!(volume.writer().superblock.get().damage, None);
        let listed = since(&volume, "n");
        let files = listed.iter().filter(|path| !path.ends_with('/'));
        assert_eq!(files.collect::<Vec<_>>(), ["p/q/large"], "{reads} reads");
        unstamped += u32::from(volume.writer().superblock.get().marks_walked == 2);
    }
    assert!(unstamped > 0, "no outage ended between stamping and writing");
}

type Traced = Arc<TraceDevice<MemoryDevice>>;

/// The requests and bytes read by `work` on a cold volume.
fn cost(device: &Traced, work: impl FnOnce(&Volume)) -> Counts {
    let options = OpenOptions { atime: AtimeMode::Never, ..OpenOptions::default() };
    let volume = Volume::open(device.clone(), Arc::new(TestClock::default()), options);
    let volume = volume.expect("opened");
    let before = device.counts();
    work(&volume);
    let counts = device.counts() - before;
    volume.close().expect("closed");
    counts
}

/// As many of 20,000 files are changed as 100 of a million.
#[test]
fn the_list_costs_less_than_a_tenth_of_a_walk() {
    let device: Traced = Arc::new(TraceDevice::new(MemoryDevice::new(1 << 30)));
    mkfs::make(&*device, &MkfsOptions::default()).expect("made");
    let volume = open(device.clone(), OpenOptions::default());
    for dir in 0..200 {
        make_dir(&volume, &format!("dir {dir}"));
        for file in 0..100 {
            write(&volume, &format!("dir {dir}/file {file}"), 3000);
        }
    }
    Marks::of(&volume).set("m").expect("marked");
    for dir in [57, 140] {
        write(&volume, &format!("dir {dir}/file 50"), 2000);
    }
    volume.close().expect("closed");
    let listed = cost(&device, |volume| {
        assert_eq!(since(volume, "m"), ["dir 140/file 50", "dir 57/file 50"]);
    });
    let walked = cost(&device, |volume| {
        fn walk(volume: &Volume, dir: InodeNo, count: &mut u64) {
            let mut dirs = Vec::new();
            let read = volume.read_dir(dir, 0, true, &mut |entry| {
                *count += 1;
                let attr = entry.attr.expect("attributes");
                dirs.extend((attr.file_type == FileType::Directory).then_some(attr.ino));
                true
            });
            read.expect("read");
            dirs.into_iter().for_each(|dir| walk(volume, dir, count));
        }
        let mut count = 0;
        walk(volume, ROOT, &mut count);
        assert_eq!(count, 20_200);
    });
    println!("the list: {listed:?}\na walk: {walked:?}");
    assert!(listed.read_bytes * 10 <= walked.read_bytes, "{listed:?}, a walk {walked:?}");
    // The root directory, and one request for each directory with a change.
    assert!(listed.reads <= 4, "{listed:?}, a walk {walked:?}");
}

/// Only the first change since the mark writes the directories above it.
#[test]
fn a_second_change_costs_as_much_as_on_a_volume_without_marks() {
    let written = |mark: bool| {
        let device: Traced = Arc::new(TraceDevice::new(MemoryDevice::new(64 << 20)));
        mkfs::make(&*device, &MkfsOptions::default()).expect("made");
        let volume = open(device.clone(), OpenOptions::default());
        for dir in ["a", "a/b", "a/b/c"] {
            make_dir(&volume, dir);
        }
        write(&volume, "a/b/c/file", 9000);
        volume.sync().expect("durable");
        if mark {
            Marks::of(&volume).set("m").expect("marked");
        }
        let change = || {
            let before = device.counts();
            write(&volume, "a/b/c/file", 9000);
            volume.sync().expect("durable");
            (device.counts() - before).written_bytes
        };
        [change(), change()]
    };
    let ([first, second], [marked_first, marked_second]) = (written(false), written(true));
    assert!(marked_first > first, "{marked_first} bytes, without marks {first}");
    assert_eq!(marked_second, second);
}

#[test]
fn a_list_can_be_ended_early() {
    let (_, volume) = marked(&MkfsOptions::default());
    write(&volume, "a/tiny", 10);
    write(&volume, "f/tiny", 10);
    let mut listed = 0;
    let ended = Marks::of(&volume).changes(ROOT, "m", &mut |_| {
        listed += 1;
        ControlFlow::Break(())
    });
    assert!(ended.is_ok() && listed == 1);
    let files = Files::new(Arc::new(volume));
    assert!(matches!(
        try_since(files.volume(), find(files.volume(), "a/tiny"), "m"),
        Err(Error::NotDirectory)
    ));
}
