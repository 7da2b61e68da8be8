//! The crash explorer: workloads on a device that records the order of its writes, and every kind of crash
//! between any two barriers.
//!
//! Of the writes in flight, sector by sector, a state has none, all, each one alone, all but one, those
//! before a torn one, or a random subset. Each state is recovered, some with two more crashes during
//! recovery. A full check must find nothing, and the contents must be permitted
//! ([`tree`](cffs_testing::crash::tree)). Then the volume is changed further, closed, and checked again.
//!
//! Workloads: each pair of system calls, with and without a sync between ([`ops`]), each operation on a
//! volume in use, after such calls, on each kind of volume ([`matrix`]), and with `CFFS_CRASH_LONG=1` long
//! random ones instead of pairs. A workload has a name, `KIND.FIRST.BETWEEN.SECOND` or `KIND.rSEED`, and a
//! seed that determines the crashes. A failure prints the command that repeats it:
//!
//! ```text
//! CFFS_CRASH=0.12.1.40 CFFS_CRASH_SEED=1 cargo test -p cffs --test crash one -- --nocapture
//! ```
//!
//! This command also leaves out all calls that are not needed for the failure.
//!
//! `CFFS_CRASH_SEED` sets the seed, by default 1; each seed begins with other workloads. `CFFS_CRASH_STATES`
//! sets the minimum number of states.

mod disks;
mod large;
mod marks;
mod mutants;
mod quotas;
mod record;
mod states;

use cffs::vfs::{AllocateMode, RenameMode};
use cffs_testing::crash::case::{
    self, COMPRESSED, Medium, SCATTERED, STOPPED, Tried, UNIT_BYTES_MAX,
};
use cffs_testing::crash::explorer::{BETWEEN, Explorer, KINDS, Workload, number};
use cffs_testing::crash::matrix;
use cffs_testing::crash::ops::{self, Op};
use disks::{Disks, IN_PIECES, JOURNALED, JOURNALED_ELSEWHERE};
use mutants::Mutant;
use record::{HOME, JOURNAL};

/// The default number of states.
const STATES: u64 = 200_000;
/// States of volumes with a journal: the calls are the same, and the states after a crash are simpler.
const JOURNALED_STATES: u64 = 50_000;
/// States of volumes with a journal on another disk.
const JOURNALED_ELSEWHERE_STATES: u64 = 20_000;
/// States of volumes with compressed contents.
const COMPRESSED_STATES: u64 = 50_000;
/// States of pairs with regrouping after each call.
const MOVED_STATES: u64 = 10_000;
/// The position of regrouping among the operations on a volume in use.
const REGROUP: usize = 0;
/// The place of a volume's journal, and whether it is in use.
const PLACES: [(&str, u64); 5] = [
    ("no journal", 0),
    ("journal inside", JOURNALED),
    ("journal outside", JOURNALED_ELSEWHERE),
    ("journal inside, off", JOURNALED | STOPPED),
    ("journal outside, off", JOURNALED_ELSEWHERE | STOPPED),
];
/// Workloads in which a mutant must be caught.
const MUTANT_WORKLOADS: usize = 400;
/// Workloads in which a harmless mutant must not be caught.
const HARMLESS_WORKLOADS: usize = 60;

fn explorer() -> Explorer<Disks> {
    Explorer::new(Disks::default())
}

fn explorer_of(mutant: Mutant) -> Explorer<Disks> {
    Explorer::new(Disks { mutant: Some(mutant) })
}

/// Explores volumes of the kinds from this one on.
fn explore(base: u64, usual_states: u64) {
    let is_long = number("CFFS_CRASH_LONG").is_some();
    let nth = |nth, calls| match is_long {
        true => Workload::nth_long(nth).of_kinds_from(base),
        false => Workload::nth_pair(nth, calls).of_kinds_from(base),
    };
    explorer().explore(nth, usual_states);
}

#[test]
fn every_crash_leaves_a_state_that_was() {
    explore(0, STATES);
}

#[test]
fn every_crash_of_a_volume_with_a_journal_leaves_a_state_that_was() {
    explore(JOURNALED, JOURNALED_STATES);
}

#[test]
fn every_crash_of_a_compressed_volume_leaves_a_state_that_was() {
    explore(COMPRESSED, COMPRESSED_STATES);
}

#[test]
fn every_online_operation_on_every_kind_of_volume() {
    matrix::explore(&explorer(), &PLACES);
}

/// A crash may leave each of two disks in any of its states, independent of the other.
#[test]
fn every_crash_of_a_volume_and_its_journal_elsewhere_leaves_a_state_that_was() {
    explore(JOURNALED_ELSEWHERE, JOURNALED_ELSEWHERE_STATES);
}

/// An fsync waits for the journal's disk, and draining the journal waits for the other.
#[test]
fn each_of_two_disks_is_waited_for() {
    for disk in [HOME, JOURNAL] {
        let explorer = explorer_of(Mutant::NoSyncOf(disk));
        let pairs = explorer.pairs().map(|pair| pair.of_kinds_from(JOURNALED_ELSEWHERE));
        let caught = pairs.take(MUTANT_WORKLOADS).position(|pair| explorer.run(pair).is_err());
        println!("disk {disk}, not waited for, was caught by workload {caught:?}");
        assert!(caught.is_some(), "disk {disk} need not be waited for");
    }
}

/// Faults that the explorer once found stay fixed.
#[test]
fn earlier_findings_stay_fixed() {
    use Op::*;
    use RenameMode::{Exchange, Replace};
    let stories = [
        // A sector of the external table was so full that the linktags of an exchange or of a
        // rename had no room.
        (2, vec![SetXattr("d", 60), Rename("d/s", "g", Exchange), Sync]),
        (2, vec![SetXattr("d", 60), Rename("d/f", "g", Exchange), Sync]),
        (3, vec![Unlink("h"), Rename("g", "d/f", Replace), Sync]),
        (3, vec![Link("h", "n"), Sync, Rename("d/s", "g", Exchange), Sync]),
        // A name that was added in the epoch of an exchange hid the missing name of a file.
        (0, vec![Rename("d/f", "g", Exchange), Link("d/f", "n"), Sync]),
        (1, vec![Rename("d/f", "g", Exchange), Link("g", "e/n"), Sync]),
        // A symbolic link that was replaced at once was on the device during one phase, without its target.
        (1, vec![MakeLink("d/n", 900), Rename("d/f", "d/n", Replace), Sync]),
        // The inode of a directory referred to a new name before the linktag of its file was written.
        (3, vec![Rename("l", "e/g", Replace), Sync]),
        (
            1,
            vec![
                Link("big", "e/g"),
                Rename("d/h", "l", Replace),
                Rename("l", "d/h", Replace),
                Unlink("h"),
                Sync,
                Rename("d/h", "e/g", Replace),
                Sync,
            ],
        ),
        // Closing had nothing but bitmaps to write, and the intent log did not list them.
        (0, vec![Truncate("big", 30_000), Sync]),
        (3, vec![Truncate("d/f", 100), Sync]),
        // A file that was large is overwritten in place when it is small again, which counted as a violation.
        (2, vec![Truncate("big", 7055), Sync, Truncate("big", 4350)]),
        // A file got a new name in the same sector, and its old name was given to another file, elsewhere
        // in the directory.
        (
            1,
            vec![
                Rename("l", "h", Replace),
                Link("d/f", "d/n"),
                Rename("d/h", "d/g", Replace),
                Make("d/h"),
                Sync,
            ],
        ),
        // A replaced directory still had entries on the device that it had lost before.
        (1, vec![MakeDir("e/n"), Sync, RemoveDir("e/n"), Rename("d", "e", Replace), Sync]),
        (1, vec![Make("e/n"), Sync, Unlink("e/n"), Rename("d", "e", Replace), Sync]),
        // A directory moved below one that had just moved out of it: with only the second move on the device,
        // each contained the other.
        (0, vec![Rename("d/s", "n", Replace), Rename("d", "n/n", Replace), Sync]),
        (1, vec![Rename("d/s", "n", Replace), Rename("d", "n/n", Replace), Sync]),
        (2, vec![Rename("d/s", "n", Replace), Rename("d", "n/n", Replace), Sync]),
        // A file lost its old name to another file before its new name was written.
        (0, vec![Link("g", "e/n"), Rename("d/f", "g", Replace), Sync]),
        (1, vec![Link("g", "e/n"), Rename("d/f", "g", Replace), Sync]),
        (2, vec![Link("g", "e/n"), Rename("d/f", "g", Replace), Sync]),
        (0, vec![Link("d/f", "e/n"), Rename("g", "d/f", Replace), Sync]),
        // A file moved from a name that it had taken from another file in the same epoch.
        (0, vec![Rename("d/f", "h", Replace), Rename("h", "e/n", Replace), Sync]),
        (1, vec![Rename("d/f", "h", Replace), Rename("h", "e/n", Replace), Sync]),
        (2, vec![Rename("d/f", "h", Replace), Rename("h", "e/n", Replace), Sync]),
        (0, vec![Rename("g", "d/h", Replace), Rename("d/h", "e/n", Replace), Sync]),
        (0, vec![Rename("g", "d/h", Replace), Rename("d/h", "h", Replace), Sync]),
        // A file is made with a name that another file had: the new entry must not be on the device before
        // the old one is removed, in the same sector or another.
        (0, vec![Rename("d/f", "d/n", Replace), Make("d/f"), Write("d/f", 0, 5000), Sync]),
        (1, vec![Rename("d/f", "d/n", Replace), Make("d/f"), Write("d/f", 0, 5000), Sync]),
        (3, vec![Rename("d/f", "d/n", Replace), Make("d/f"), Write("d/f", 0, 5000), Sync]),
        (1, vec![Rename("g", "e/n", Replace), Make("g"), Write("g", 0, 200), Fsync("e/n")]),
        (2, vec![Rename("g", "e/n", Replace), Make("g"), Link("g", "d/n"), Sync]),
        (1, vec![Rename("g", "n", Replace), MakeLink("g", 900), Link("g", "e/n"), Sync]),
        (1, vec![Rename("h", "e/n", Replace), Make("h"), Rename("h", "d/n", Replace), Sync]),
        (1, vec![Rename("g", "n", Replace), Make("g"), Unlink("g"), Make("g"), Sync]),
        (1, vec![Rename("g", "n", Replace), Make("g"), Rename("d/f", "g", Replace), Sync]),
        // An interrupted recovery had corrected a sector that the log does not list, with an epoch that the
        // next recovery did not see.
        (0, vec![Rename("e", "d/s", Replace), Sync]),
    ];
    for seed in 1..=3 {
        let explorer = Explorer { seed, ..explorer() };
        for (kind, calls) in &stories {
            if let Err(why) = explorer.run_calls(*kind, calls) {
                panic!("kind {kind}, {calls:?}, seed {seed}: {why}");
            }
        }
    }
}

/// New inodes need another block of a fragmented inode table. Recovery or a checkpoint, whichever comes
/// first, adds the block, maps the table by a new extent tree, and frees the old tree.
#[test]
fn a_table_of_inodes_in_pieces_grows() {
    use Op::*;
    let explorer = explorer();
    let synced = vec![Make("n"), Sync];
    let file_synced = vec![Unlink("h"), MakeDir("d/n"), Fsync("d/n")];
    for (kind, calls) in [
        (0, &synced),
        (1, &synced),
        (2, &synced),
        (3, &synced),
        (0, &file_synced),
        (2, &file_synced),
    ] {
        if let Err(why) = explorer.run_calls(IN_PIECES + kind, calls) {
            panic!("kind {kind} in pieces, {calls:?}: {why}");
        }
    }
}

/// A file that loses its last name while it is in use gets another one at once, as from `cffs restart`.
#[test]
fn a_file_is_named_again_in_the_epoch_that_took_its_name() {
    use Op::*;
    use RenameMode::Replace;
    let explorer = explorer();
    let mut tried = Tried::default();
    for (kind, calls) in [
        (0, vec![UnlinkInUse("d/f"), NameAgain("e/n"), Sync]),
        (1, vec![UnlinkInUse("d/f"), NameAgain("e/n"), Sync]),
        (2, vec![UnlinkInUse("d/f"), NameAgain("e/n"), Sync]),
        (0, vec![UnlinkInUse("g"), NameAgain("d/n"), Write("d/n", 0, 9000), Sync]),
        (3, vec![UnlinkInUse("g"), NameAgain("d/n"), Write("d/n", 0, 9000), Sync]),
        (0, vec![Rename("d/f", "g", Replace), UnlinkInUse("g"), NameAgain("d/f"), Sync]),
        (1, vec![Rename("g", "d/f", Replace), UnlinkInUse("d/f"), NameAgain("e/n"), Sync]),
        (2, vec![Rename("g", "d/f", Replace), UnlinkInUse("d/f"), NameAgain("g"), Sync]),
        (0, vec![Make("n"), Rename("n", "g", Replace), UnlinkInUse("g"), NameAgain("n"), Sync]),
        (0, vec![UnlinkInUse("h"), Unlink("d/h"), NameAgain("e/n"), Sync]),
        (2, vec![Unlink("h"), UnlinkInUse("d/h"), NameAgain("h"), Sync]),
    ] {
        match explorer.run_calls(kind, &calls) {
            Ok(states) => tried.add(states),
            Err(why) => panic!("kind {kind}, {calls:?}: {why}"),
        }
    }
    println!("{tried:?}");
    assert!(tried.states > 500);
}

/// The files of the cluster with which compressed volumes begin.
const FILLED: [&str; 3] = [
    "c/one of many files, number 1",
    "c/one of many files, number 2",
    "c/one of many files, number 3",
];

/// Calls that change references to clusters: some or all files of a cluster are deleted, or lose their names
/// while they are in use, before a checkpoint and after it.
fn cluster_stories() -> Vec<Vec<Op>> {
    use Op::*;
    use RenameMode::Replace;
    let [one, two, three] = FILLED;
    vec![
        vec![Empty("c", 2), Sync],
        vec![Empty("c", 6), Sync],
        vec![Empty("c", 6), Sync, Fill("c", 6, 3000), WriteEarly, Sync],
        vec![Empty("c", 2), Sync, Unlink(two), Sync, MarkClean, Unlink(three), Sync],
        vec![Write(one, 100, 200), Truncate(two, 100), Append(three, 4000), Sync],
        vec![Rename(one, "e/n", Replace), Sync, Unlink("e/n"), Sync],
        vec![Rename(one, two, Replace), Rename("g", three, Replace), Sync],
        vec![UnlinkInUse(one), Sync, MarkClean, NameAgain("e/n"), Sync],
        vec![UnlinkInUse(one), Empty("c", 1), Sync, Sync, NameAgain("e/n"), Sync],
        vec![UnlinkInUse("big"), Sync, MarkClean, Fill("c", 6, 3000), NameAgain("d/n"), Sync],
        vec![Link(one, "e/n"), Sync, Unlink(one), Sync, Unlink("e/n"), Sync],
        vec![Fill("d/s", 20, 3000), WriteEarly, Sync, Empty("d/s", 19), Sync],
        vec![Append("big", 9000), WriteEarly, Append("big", 9000), Fsync("d/f")],
        vec![
            Append("big", 70_000),
            WriteEarly,
            Append("big", 300),
            Fsync("d/f"),
            Unlink("g"),
            Sync,
        ],
        vec![Empty("c", 4), Sync, Regroup, Sync],
        vec![Empty("c", 5), Regroup, Unlink("c/one of many files, number 5"), Sync],
        vec![Truncate("big", 70_000), Sync, Write("big", 30_000, 9000), Sync, Unlink("big"), Sync],
        vec![
            Allocate("big", 8192, 16_384, AllocateMode::PunchHole),
            Sync,
            Fsync("big"),
            Unlink("g"),
            Sync,
        ],
    ]
}

/// Calls that make files share clusters, and then change, truncate, delete or replace the copy or the source,
/// before a checkpoint and after it.
fn sharing_stories() -> Vec<Vec<Op>> {
    use Op::*;
    use RenameMode::Replace;
    let [one, two, three] = FILLED;
    vec![
        vec![Copy(one, "n"), Sync, Unlink(one), Sync],
        vec![Copy(one, "n"), Sync, Empty("c", 6), Sync, Unlink("n"), Sync],
        vec![Copy(one, "n"), Empty("c", 6), Sync, MarkClean, Unlink("n"), Sync],
        vec![Copy(one, two), Sync, Unlink(three), Sync, Copy(two, "g"), Fsync("g")],
        vec![Copy(one, "n"), Fsync("n"), Write(one, 100, 200), Sync, Unlink("n"), Sync],
        vec![Copy(one, "n"), Sync, Rename("n", two, Replace), Sync, Unlink(one), Sync],
        vec![Copy(one, "n"), Sync, UnlinkInUse("n"), Sync, MarkClean, NameAgain("e/n"), Sync],
        vec![Copy(one, "n"), Unlink(one), Sync, Copy("n", "e/n"), Unlink("n"), Sync],
        vec![Copy("big", "n"), Sync, Unlink("big"), Sync, MarkClean, Unlink("n"), Sync],
        vec![Copy("big", "n"), Sync, Write("n", 30_000, 9000), Sync, Unlink("big"), Sync],
        vec![Copy("big", "n"), Write("big", 30_000, 9000), Fsync("n"), Truncate("n", 70_000), Sync],
        vec![Copy("big", "g"), Copy("g", "n"), Sync, Unlink("big"), Unlink("g"), Sync],
        vec![
            Copy("big", "n"),
            Sync,
            Allocate("n", 8192, 16_384, AllocateMode::PunchHole),
            Fsync("n"),
            Copy("n", "big"),
            Sync,
        ],
        vec![Copy(one, "n"), Sync, Empty("c", 5), Regroup, Unlink("n"), Sync],
        vec![Copy(one, "n"), Copy(one, "e/n"), Empty("c", 6), Sync, Fill("c", 6, 3000), Sync],
    ]
}

/// Explores each scenario on each kind of volume with compressed contents.
fn explore_compressed(stories: &[Vec<Op>]) {
    let explorer = explorer();
    let mut tried = Tried::default();
    for kind in (0..KINDS).map(|kind| COMPRESSED + kind) {
        for calls in stories {
            match explorer.run_calls(kind, calls) {
                Ok(states) => tried.add(states),
                Err(why) => panic!("kind {kind}, {calls:?}: {why}"),
            }
        }
    }
    println!("{tried:?}");
    assert!(tried.states > 2000);
}

/// Asserts that one of the scenarios fails with each mutant.
fn each_is_caught(mutants: &[Mutant], stories: &[Vec<Op>]) {
    for &mutant in mutants {
        let explorer = explorer_of(mutant);
        let caught =
            stories.iter().position(|calls| explorer.run_calls(COMPRESSED, calls).is_err());
        println!("{mutant:?} was caught by story {caught:?}");
        assert!(caught.is_some(), "{mutant:?} was not caught");
    }
}

#[test]
fn references_to_clusters_are_right_after_any_crash() {
    explore_compressed(&cluster_stories());
}

/// Without a record of clusters, or with a write in the wrong order, one of the scenarios fails.
#[test]
fn each_mutant_of_clusters_is_caught() {
    each_is_caught(&mutants::OF_CLUSTERS, &cluster_stories());
}

#[test]
fn copies_that_share_clusters_are_right_after_any_crash() {
    explore_compressed(&sharing_stories());
}

/// If recovery misses a copy's reference to a cluster, or counts one reference too few, one of the scenarios
/// fails.
#[test]
fn each_mutant_of_sharing_is_caught() {
    each_is_caught(&mutants::OF_SHARING, &sharing_stories());
}

/// Regrouping is a change like any other: after a crash, each file has its contents, names and times.
#[test]
fn moved_files_survive_any_crash() {
    use Op::*;
    let explorer = explorer();
    let mut tried = Tried::default();
    for kind in [0, 3, JOURNALED, SCATTERED] {
        for calls in [
            vec![Regroup],
            vec![Write("g", 0, 5000), Regroup, Regroup, Sync],
            vec![Regroup, Write("g", 0, 9000), Write("big", 10_000, 50_000), Fsync("g")],
            vec![Fill("e", 30, 400), Regroup, Unlink("g"), Truncate("big", 30_000), Sync],
            vec![Rename("g", "d/f", RenameMode::Replace), Regroup, Append("d/f", 6000), Sync],
        ] {
            match explorer.run_calls(kind, &calls) {
                Ok(states) => tried.add(states),
                Err(why) => panic!("kind {kind}, {calls:?}: {why}"),
            }
        }
    }
    println!("{tried:?}");
    assert!(tried.states > 1000);
    explorer.explore(nth_moved, MOVED_STATES);
}

/// Pairs of calls with regrouping of all files after each call: in one unit, in several units, and in halves
/// of units; with and without a journal.
fn nth_moved(nth: u64, calls: u64) -> Workload {
    let bases = [0, SCATTERED, JOURNALED, SCATTERED + JOURNALED];
    let base = bases[(nth / KINDS % bases.len() as u64) as usize];
    Workload::nth_pair(nth, calls).of_kinds_from(base).with_maintenance(REGROUP)
}

/// On a scattered volume, no free run is long enough for a whole unit.
#[test]
fn scattered_files_are_moved_in_halves() {
    let disks = Disks::default();
    let device = disks.put(disks.start(SCATTERED))().expect("put");
    let volume = case::open(device, SCATTERED).expect("opened");
    let moved = ops::regroup(&volume).expect("regrouped");
    volume.close().expect("closed");
    println!("{moved:?}");
    assert_eq!(moved.without_room, 0, "{moved:?}");
    assert!(moved.moved_bytes > 3 * UNIT_BYTES_MAX / 2, "{moved:?}");
    assert!(moved.accesses_after > moved.moved_bytes.div_ceil(UNIT_BYTES_MAX) + 1, "{moved:?}");
}

/// If nothing but regrouping is done, the explorer detects each missing part of it.
#[test]
fn every_part_of_moving_is_missed() {
    for mutant in mutants::OF_MOVING {
        let explorer = explorer_of(mutant);
        let is_caught = |kind: &u64| explorer.run_calls(*kind, &[Op::Regroup]).is_err();
        for mut kinds in [0..KINDS, SCATTERED..SCATTERED + KINDS] {
            let caught = kinds.find(is_caught);
            println!("{mutant:?} was caught on a volume of kind {caught:?}");
            assert!(caught.is_some(), "{mutant:?} was not caught");
        }
    }
}

/// Every barrier of an epoch, the sync at its end, every phase, every linktag and every kind of record of the
/// intent log is needed: without it, the explorer finds a violation, or a recovery that needs the full check.
/// So an fsync that is acknowledged too early is also detected.
#[test]
fn every_part_of_an_epoch_is_missed() {
    let mut survivors = Vec::new();
    for mutant in mutants::ALL {
        let explorer = explorer_of(mutant);
        let wanted = explorer.pairs().filter(|workload| {
            let changes_names = |op: &Op| matches!(op, Op::Rename(..) | Op::Link(..));
            let tagged = matches!(mutant, Mutant::NoTag { .. });
            !tagged || workload.calls(&explorer.all).iter().any(changes_names)
        });
        let mut tried = 0;
        let caught = wanted.take(MUTANT_WORKLOADS).any(|workload| {
            tried += 1;
            explorer.run(workload).is_err()
        });
        if caught {
            println!("{mutant:?} was caught by workload {tried}");
        } else {
            println!("{mutant:?} survived {tried} workloads");
            survivors.push(mutant);
        }
    }
    assert!(survivors.is_empty(), "not missed: {survivors:?}");
}

/// A new file with a name that another file had is written after that name was removed from the device.
#[test]
fn the_phase_of_vacated_names_is_missed() {
    use Op::*;
    use RenameMode::Replace;
    let stories = [
        vec![Rename("d/f", "d/n", Replace), Make("d/f"), Write("d/f", 0, 5000), Sync],
        vec![Rename("g", "e/n", Replace), Make("g"), Write("g", 0, 200), Sync],
    ];
    for mutant in [Mutant::NoDeferral, Mutant::NoBarrier(2)] {
        let explorer = explorer_of(mutant);
        let is_caught =
            |kind: &u64| stories.iter().any(|calls| explorer.run_calls(*kind, calls).is_err());
        let caught = (0..KINDS).find(is_caught);
        println!("{mutant:?} was caught on a volume of kind {caught:?}");
        assert!(caught.is_some(), "{mutant:?} was not caught");
    }
}

/// A mutant is caught because of the writes that it leaves out, not because it rewrites the intent log.
#[test]
fn records_in_another_order_are_not_missed() {
    let explorer = explorer_of(Mutant::Reordered);
    for pair in explorer.pairs().take(HARMLESS_WORKLOADS) {
        if let Err(failure) = explorer.run(pair) {
            panic!("{failure}");
        }
    }
}

#[test]
fn one() {
    explorer().one();
}

#[test]
fn a_pair_is_never_run_twice() {
    let calls = ops::all().len() as u64;
    let pairs = KINDS * calls * calls * BETWEEN;
    let names: std::collections::BTreeSet<String> =
        (0..pairs).map(|nth| Workload::nth_pair(nth, calls).name()).collect();
    assert_eq!(names.len() as u64, pairs);
}
