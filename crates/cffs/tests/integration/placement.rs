//! The placement of rewritten files.

use std::sync::Arc;

use cffs::clock::TestClock;
use cffs::device::MemoryDevice;
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::{FragRun, InodeNo};
use cffs::vfs::types::{NewFile, NewKind, OpenOptions};
use cffs::vfs::{Caller, Volume};

const DIRECTORIES: usize = 12;
const FILES: usize = 10;
const FILE_BYTES: usize = 32 << 10;

/// A volume with directories of files, all created in one epoch.
fn tree() -> (Volume, Vec<Vec<InodeNo>>) {
    let device = Arc::new(MemoryDevice::new(256 << 20));
    mkfs::make(&*device, &MkfsOptions::default()).expect("made");
    let clock = Arc::new(TestClock::default());
    let volume = Volume::open(device, clock, OpenOptions::default()).expect("opened");
    let make = |dir, name: String, kind| {
        let new = NewFile { kind, permissions: 0o755, uid: 0, gid: 0, times: None };
        volume.make(&Caller::ROOT, dir, name.as_bytes(), &new).expect("made").ino
    };
    let files = |d: usize| {
        let dir = make(InodeNo::ROOT, format!("directory {d}"), NewKind::Directory);
        (0..FILES).map(|i| make(dir, format!("file {i}"), NewKind::Regular)).collect()
    };
    let tree: Vec<Vec<InodeNo>> = (0..DIRECTORIES).map(files).collect();
    write(&volume, tree.iter().flatten());
    (volume, tree)
}

fn write<'a>(volume: &Volume, files: impl Iterator<Item = &'a InodeNo>) {
    for file in files {
        volume.write(&Caller::ROOT, *file, 0, &[7; FILE_BYTES]).expect("written");
    }
    volume.sync().expect("durable");
}

/// The number of places of these files.
fn places<'a>(volume: &Volume, files: impl Iterator<Item = &'a InodeNo>) -> usize {
    let pieces = files.flat_map(|file| volume.admin().explain(*file).expect("placed").pieces);
    let mut runs: Vec<FragRun> = pieces.map(|piece| piece.run).collect();
    runs.sort_by_key(|run| run.start);
    1 + runs.windows(2).filter(|two| two[0].end() != two[1].start).count()
}

#[test]
fn rewritten_directories_are_adjacent() {
    let (volume, tree) = tree();
    assert_eq!(places(&volume, tree.iter().flatten()), 1);
    for _ in 0..3 {
        write(&volume, tree.iter().flatten());
        let places = places(&volume, tree.iter().flatten());
        assert!(places <= 2, "{places} places");
    }
}

#[test]
fn directories_of_which_little_is_rewritten_have_a_place_each() {
    let (volume, tree) = tree();
    write(&volume, tree.iter().map(|files| &files[0]));
    assert_eq!(places(&volume, tree.iter().map(|files| &files[0])), DIRECTORIES);
}

/// An fsync rewrites few files, and the next one uses the holes at their old places: no run is reserved for
/// them.
#[test]
fn files_rewritten_by_an_fsync_are_adjacent_and_leave_their_holes_to_the_next() {
    let (volume, tree) = tree();
    let again = |i: usize| {
        for files in &tree {
            volume.write(&Caller::ROOT, files[i], 0, &[8; FILE_BYTES]).expect("written");
            volume.sync_file(files[i], false).expect("durable");
        }
        places(&volume, tree.iter().map(|files| &files[i]))
    };
    let before: Vec<_> = tree.iter().map(|files| run(&volume, files[0])).collect();
    assert_eq!(again(0), 1, "the first ones lie side by side");
    assert_eq!(again(1), DIRECTORIES, "the next ones each in its directory");
    let after: Vec<_> = tree.iter().map(|files| run(&volume, files[1])).collect();
    assert_eq!(before, after);
}

fn run(volume: &Volume, file: InodeNo) -> FragRun {
    volume.admin().explain(file).expect("placed").pieces[0].run
}
