//! The simulation of a scan counts the requests of a real scan.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use super::{Layout, survey};
use crate::clock::{Clock, SystemClock, Timestamp};
use crate::device::{MemoryDevice, TraceDevice};
use crate::files::Files;
use crate::format::inode::FileType;
use crate::format::superblock::Policy;
use crate::mkfs::{self, MkfsOptions};
use crate::units::InodeNo;
use crate::vfs::{Caller, NewFile, NewKind, OpenOptions};

type Device = Arc<TraceDevice<MemoryDevice>>;

const DIRECTORIES: usize = 24;
const FILES: usize = 80;

fn open(device: &Device, read_only: bool) -> Files {
    let options = OpenOptions { read_only, ..OpenOptions::default() };
    let volume = crate::open(device.clone(), Arc::new(SystemClock), options).expect("it opens");
    Files::new(Arc::new(volume))
}

/// Sizes of files as in a tree of sources: most are small, a few are not.
fn size(directory: usize, file: usize) -> usize {
    match (directory * 31 + file * 7) % 40 {
        0 => 300_000,
        1..=4 => 40_000,
        5..=8 => 200,
        other => other * 400,
    }
}

fn write(files: &Files, directory: usize, file: usize) {
    let contents = vec![(directory ^ file) as u8; size(directory, file)];
    files.write(format!("/d{directory:02}/f{file}"), &contents).expect("written");
}

fn empty() -> Device {
    let device = Arc::new(TraceDevice::new(MemoryDevice::new(256 << 20)));
    mkfs::make(&device, &MkfsOptions::default()).expect("made");
    let files = open(&device, false);
    for directory in 0..DIRECTORIES {
        files.make_dir(format!("/d{directory:02}")).expect("made");
    }
    files.close().expect("durable");
    device
}

/// Directories that were filled one after the other.
fn fresh() -> Device {
    let device = empty();
    let files = open(&device, false);
    for directory in 0..DIRECTORIES {
        (0..FILES).for_each(|file| write(&files, directory, file));
    }
    files.close().expect("durable");
    device
}

/// Directories whose files were made by turns, over a long time, and moved from one to another.
pub(crate) fn aged() -> Device {
    let device = empty();
    let files = open(&device, false);
    for file in 0..FILES {
        for directory in 0..DIRECTORIES {
            write(&files, directory, file);
        }
        files.volume().sync().expect("durable");
    }
    for step in 0..DIRECTORIES * FILES {
        let mixed = step * 7919 % (DIRECTORIES * FILES);
        let (file, directory) = (mixed / DIRECTORIES, mixed % DIRECTORIES);
        let to = (directory * 5 + file * 3) % DIRECTORIES;
        let (from, to) = (format!("/d{directory:02}/f{file}"), format!("/d{to:02}/m{mixed}"));
        files.rename(from, to).expect("moved");
    }
    files.close().expect("durable");
    device
}

/// The requests and bytes of reading every file below a path, on a volume with an empty cache.
fn scan(device: &Device, path: &str) -> (u64, u64) {
    let files = open(device, true);
    let before = device.counts();
    for entry in files.walk(path).expect("found") {
        let entry = entry.expect("listed");
        if entry.attr.file_type == FileType::Regular {
            let contents = files.read(&entry.path).expect("read");
            assert_eq!(contents.len() as u64, entry.attr.size);
        }
    }
    let taken = device.counts() - before;
    (taken.reads, taken.read_bytes)
}

fn look(device: &Device) -> Layout {
    survey(device.clone(), InodeNo::ROOT).expect("looked at")
}

fn assert_near(predicted: u64, taken: u64, what: &str) {
    assert!(
        predicted.abs_diff(taken) * 10 <= taken,
        "{what}: {predicted} predicted, {taken} taken"
    );
}

#[test]
fn a_scan_takes_the_predicted_requests() {
    for (name, device) in [("fresh", fresh()), ("aged", aged())] {
        let layout = look(&device);
        let (requests, bytes) = scan(&device, "/");
        println!("{name}: {} requests predicted, {requests} taken", layout.requests());
        assert_near(layout.requests(), requests, name);
        assert_near(layout.read_bytes(), bytes, name);
        assert_eq!(layout.directories.len(), DIRECTORIES + 1);
        let files: u64 = layout.directories.iter().map(|dir| dir.files).sum();
        assert_eq!(files, (DIRECTORIES * FILES) as u64);
    }
}

#[test]
fn an_aged_tree_is_distinguished_from_a_fresh_one() {
    let (fresh, aged) = (look(&fresh()), look(&aged()));
    let scattered =
        |layout: &Layout| -> u64 { layout.directories.iter().map(|dir| dir.scattered_files).sum() };
    assert!(fresh.requests() * 2 < aged.requests());
    assert!(scattered(&fresh) * 4 < scattered(&aged));
    let places = |layout: &Layout| layout.directories.iter().map(|dir| dir.places).sum::<u64>();
    assert!(places(&fresh) * 2 < places(&aged), "{} and {}", places(&fresh), places(&aged));
}

#[test]
fn contents_are_not_read_for_it() {
    let device = fresh();
    let before = device.counts();
    let layout = look(&device);
    let read = (device.counts() - before).read_bytes;
    assert!(read * 4 < layout.read_bytes(), "{read} bytes read to predict {}", layout.read_bytes());
}

#[test]
fn a_part_of_the_tree_is_examined_alone() {
    let device = fresh();
    let dir = open(&device, true).stat("/d07").expect("found").ino;
    let layout = survey(device.clone(), dir).expect("looked at");
    let (requests, _) = scan(&device, "/d07");
    assert_eq!(layout.directories.len(), 1);
    assert_eq!(layout.directories[0].files, FILES as u64);
    // The scan by paths reads the root as well.
    assert!(
        layout.requests().abs_diff(requests) <= 2,
        "{} predicted, {requests}",
        layout.requests()
    );
}

/// A clock that the test sets.
#[derive(Default)]
struct Hands(AtomicI64);

impl Clock for Hands {
    fn now(&self) -> Timestamp {
        Timestamp { seconds: self.0.load(Ordering::Relaxed), nanoseconds: 0 }
    }
}

/// Four users write to four directories by turns, from a process each, at four times.
fn made_by_turns(policy: Policy) -> Layout {
    let device = Arc::new(TraceDevice::new(MemoryDevice::new(256 << 20)));
    mkfs::make(&device, &MkfsOptions { policy, ..MkfsOptions::default() }).expect("made");
    let clock = Arc::new(Hands::default());
    let options = OpenOptions::default();
    let volume = crate::open(device.clone(), clock.clone(), options).expect("it opens");
    let new = |kind, uid| NewFile { kind, permissions: 0o755, uid, gid: 0, times: None };
    let make = |process, dir, name: String, kind, uid| {
        let caller = Caller { process, ..Caller::ROOT };
        volume.make(&caller, dir, name.as_bytes(), &new(kind, uid)).expect("made").ino
    };
    let root = InodeNo::ROOT;
    let dirs: Vec<InodeNo> =
        (0..4).map(|dir| make(0, root, format!("d{dir}"), NewKind::Directory, 0)).collect();
    for time in 0..4 {
        for file in 0..100 {
            for user in 0..4 {
                let dir = dirs[(file + user as usize + time) % 4];
                let name = format!("f{time}-{file}-{user}");
                let ino = make(5000 + user, dir, name, NewKind::Regular, 1000 + user);
                volume
                    .write(&Caller::ROOT, ino, 0, &vec![1; size(user as usize, file)])
                    .expect("written");
            }
            if file % 40 == 39 {
                volume.sync().expect("durable");
            }
        }
        clock.0.fetch_add(90, Ordering::Relaxed);
    }
    volume.close().expect("durable");
    survey(device, root).expect("surveyed")
}

/// The bar: of files that follow each other on the device, nine in ten are of one key, whatever that is.
#[test]
fn neighbours_share_the_key_of_the_policy() {
    for policy in [Policy::Directory, Policy::Owner, Policy::Time, Policy::Process] {
        let Layout { neighbours, of_one_key, .. } = made_by_turns(policy);
        let name = policy.name();
        println!("{name}: {of_one_key} of {neighbours}");
        assert!(neighbours > 1000, "{name}: {neighbours}");
        assert!(of_one_key * 10 >= neighbours * 9, "{name}: {of_one_key} of {neighbours}");
    }
}

/// Files that are a mebibyte apart: the files between them are removed.
#[test]
fn files_that_a_scan_reads_through_gaps_count_as_alone() {
    const FILES: u64 = 40;
    const FILE_BYTES: u64 = 4096;
    const SPACE_BYTES: usize = 1000 << 10;
    let device = Arc::new(TraceDevice::new(MemoryDevice::new(256 << 20)));
    mkfs::make(&device, &MkfsOptions::default()).expect("made");
    let files = open(&device, false);
    for file in 0..FILES {
        files.write(format!("/a{file:02}"), &[1; FILE_BYTES as usize]).expect("written");
        files.write(format!("/b{file:02}"), &[2; SPACE_BYTES]).expect("written");
    }
    files.volume().sync().expect("durable");
    assert_eq!(look(&device).directories[0].scattered_files, 0);
    (0..FILES).for_each(|file| files.remove_file(format!("/b{file:02}")).expect("removed"));
    files.close().expect("durable");
    let layout = look(&device);
    let dir = &layout.directories[0];
    assert_eq!((dir.files, dir.scattered_files), (FILES, FILES));
    assert!(dir.places < 4, "{} places", dir.places);
    let surplus = layout.read_bytes() - FILES * FILE_BYTES;
    assert!(layout.read_bytes() > 10 * FILES * FILE_BYTES);
    assert!(layout.surplus_bytes().abs_diff(surplus) * 20 < surplus, "{layout:?}");
}
