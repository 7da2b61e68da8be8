//! Changes after a mark are listed after any crash.

use cffs_testing::crash::case::MARKED;
use cffs_testing::crash::explorer::Workload;
use cffs_testing::crash::ops::Op;

use super::disks::JOURNALED;
use super::{MUTANT_WORKLOADS, explorer, explorer_of, mutants};

/// States of volumes with a mark.
const STATES: u64 = 50_000;

#[test]
fn every_change_after_a_mark_is_listed_after_any_crash() {
    let nth = |nth, calls| Workload::nth_pair(nth, calls).of_kinds_from(MARKED);
    explorer().explore(nth, STATES);
}

#[test]
fn every_change_after_a_mark_is_listed_with_a_journal() {
    let nth = |nth, calls| Workload::nth_pair(nth, calls).of_kinds_from(MARKED | JOURNALED);
    explorer().explore(nth, STATES / 5);
}

#[test]
fn a_second_mark_is_as_good_as_the_first() {
    use Op::*;
    for kind in 0..4 {
        for calls in [
            vec![Mark, Write("d/f", 0, 300), Sync],
            vec![Write("d/f", 0, 300), Mark, Write("g", 0, 9000), Fsync("g"), Unlink("h"), Sync],
            vec![Link("d/f", "n"), Mark, Unlink("d/f"), Lookup("n"), Sync, Mark, Chmod("d"), Sync],
        ] {
            if let Err(why) = explorer().run_calls(MARKED + kind, &calls) {
                panic!("kind {kind}, {calls:?}: {why}");
            }
        }
    }
}

#[test]
fn each_part_of_marks_is_needed() {
    for mutant in mutants::OF_MARKS {
        let explorer = explorer_of(mutant);
        let pairs = explorer.pairs().map(|pair| pair.of_kinds_from(MARKED));
        let caught = pairs.take(MUTANT_WORKLOADS).position(|pair| explorer.run(pair).is_err());
        println!("{mutant:?} was caught by workload {caught:?}");
        assert!(caught.is_some(), "{mutant:?} does no harm");
    }
}
