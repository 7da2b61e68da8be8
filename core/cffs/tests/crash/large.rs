//! Crashes of volumes on which each directory counts as large: the intent log lists its blocks and buckets,
//! and recovery reads and corrects only these.

use cffs::units::InodeNo;
use cffs::vfs::RenameMode::{Exchange, Replace};

use super::disks::Disks;
use super::mutants::{self, Mutant};
use super::{explore, explorer, explorer_of};
use cffs_testing::crash::case::{self, LARGE, Medium, Tried};
use cffs_testing::crash::explorer::KINDS;
use cffs_testing::crash::ops::Op::{self, *};

/// States of volumes with large directories.
const LARGE_STATES: u64 = 4_000;
/// Files that [`Op::Fill`] has made in `d`, in two of its blocks.
const ONE: &str = "d/one of many files, number 1";
const OTHER: &str = "d/one of many files, number 90";
const LAST: &str = "d/one of many files, number 169";

/// Calls that change parts of a directory of many blocks: its names, its subdirectories, and its index, which
/// is split, written and dropped. Some files lose their names while they are in use.
fn stories() -> Vec<Vec<Op>> {
    vec![
        vec![Make("d/n"), Sync, Unlink(ONE), Sync, Rename(OTHER, "d/m", Replace), Sync],
        vec![Unlink(ONE), Sync, Make("d/n"), Fsync("d/n"), Rename(LAST, ONE, Replace), Sync],
        vec![Rename(ONE, OTHER, Replace), Sync, Rename(OTHER, "e/n", Replace), Sync],
        vec![Rename("g", ONE, Replace), Sync, Link(OTHER, "e/n"), Sync, Unlink(OTHER), Sync],
        vec![Link(ONE, "d/n"), Sync, Rename("d/n", OTHER, Exchange), Sync],
        vec![MakeDir("d/n"), Sync, Rename("d/n", "e/n", Replace), Sync, RemoveDir("d/s"), Sync],
        vec![Make("d/s/n"), Sync, Rename("d/s", "e/n", Replace), Sync, Make("e/n/m"), Sync],
        vec![Make("d/s/n"), Fsync("d/s/n"), Unlink(LAST), Make("d/s/m"), Sync],
        // More names than fit into the buckets of the last checkpoint.
        vec![Fill("e", 12, 0), Fsync("e"), Link("g", "d/n"), Fill("d/s", 9, 0), Sync],
        vec![Make("d/a"), Make("d/b"), Make("d/c"), Make("d/n"), MakeDir("d/m"), Sync, Make("d/i")],
        vec![
            Link("g", "d/a"),
            Link("g", "d/b"),
            Link("g", "d/c"),
            Link("g", "d/i"),
            Link("g", "d/j"),
            Link("g", "d/k"),
            Link("g", "d/l"),
            Link("g", "d/m"),
            Link("g", "d/n"),
            Sync,
            Checkpoint,
            Unlink("d/a"),
            Sync,
        ],
        // Files that lose their names while they are in use, before a checkpoint and after it.
        vec![UnlinkInUse(ONE), Checkpoint, Make("d/n"), Sync],
        vec![UnlinkInUse(ONE), Sync, MarkClean, Write("g", 0, 100), Sync],
        vec![UnlinkInUse("d/f"), Checkpoint, Unlink("h"), Sync, NameAgain("d/n"), Sync],
        // All names are removed, and then the directory.
        vec![
            Empty("d", 170),
            Sync,
            Checkpoint,
            Unlink("d/f"),
            Unlink("d/h"),
            RemoveDir("d/s"),
            Sync,
        ],
        vec![Empty("d", 100), Fsync("g"), Make("d/n"), Sync, Checkpoint, Make("d/m"), Sync],
        vec![
            MakeDir("d/n"),
            Checkpoint,
            Make("d/n/m"),
            Sync,
            Unlink("d/n/m"),
            RemoveDir("d/n"),
            Sync,
        ],
        vec![Chmod(ONE), Sync, Chown("d/s"), SetXattr(OTHER, 60), Sync, Append(LAST, 9000), Sync],
    ]
}

/// The scenarios change names in several blocks of `d`.
#[test]
fn a_large_directory_has_the_names_of_the_stories() {
    let disks = Disks::default();
    for kind in (0..KINDS).map(|kind| LARGE + kind) {
        let device = disks.put(disks.start(kind))().expect("put");
        let volume = case::open(device, kind).expect("opened");
        let dir = volume.lookup(InodeNo::ROOT, b"d").expect("it is there").ino;
        let [one, other, last] = [ONE, OTHER, LAST].map(|path| {
            let name = path.strip_prefix("d/").expect("a name in d");
            let ino = volume.lookup(dir, name.as_bytes()).expect("it is there").ino;
            volume.admin().explain(ino).expect("explained").container_block
        });
        let is_embedded = kind & 2 == 0;
        assert!(!is_embedded || (one != other && other != last), "{one:?} {other:?} {last:?}");
    }
}

#[test]
fn every_crash_of_a_volume_with_large_directories_leaves_a_state_that_was() {
    explore(LARGE, LARGE_STATES);
}

#[test]
fn parts_of_large_directories_are_right_after_any_crash() {
    let explorer = explorer();
    let mut tried = Tried::default();
    for kind in (0..KINDS).map(|kind| LARGE + kind) {
        for calls in &stories() {
            match explorer.run_calls(kind, calls) {
                Ok(states) => tried.add(states),
                Err(why) => panic!("kind {kind}, {calls:?}: {why}"),
            }
        }
    }
    println!("{tried:?}");
    assert!(tried.states > 2000);
}

/// Without a kind of record, or if the log is written too late, one of the scenarios fails.
#[test]
fn each_mutant_of_large_directories_is_caught() {
    for mutant in mutants::OF_LARGE_DIRECTORIES {
        let explorer = explorer_of(mutant);
        let is_caught = |calls: &Vec<Op>| explorer.run_calls(LARGE, calls).is_err();
        let caught = stories().iter().position(is_caught);
        println!("{mutant:?} was caught by story {caught:?}");
        assert!(caught.is_some(), "{mutant:?} was not caught");
    }
    // The log of a volume with small directories has no such records.
    let small = explorer_of(Mutant::NoRecord(mutants::Kind::DirectoryBlock));
    assert!(stories().iter().all(|calls| small.run_calls(0, calls).is_ok()));
}
