//! Pairs come back or are forgotten; chains have each file once.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const GAP: u64 = 256;

fn observed() -> Observed {
    Observed { reads: 0, streams: HashMap::default(), pairs: Pairs::default() }
}

/// A read of a file that is far from all others.
fn read(number: u64) -> Read {
    let start = number * 10 * GAP;
    Read { ino: InodeNo(number), blocks: Some(start..start + 2) }
}

fn numbers(chains: &[Vec<InodeNo>]) -> Vec<Vec<u64>> {
    chains.iter().map(|chain| chain.iter().map(|ino| ino.0).collect()).collect()
}

/// A pseudorandom sequence.
fn random() -> impl FnMut() -> u64 {
    let mut state = 1u64;
    move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    }
}

#[test]
fn files_of_interleaved_processes_are_distinguished() {
    let mut observed = observed();
    let documents = [[10, 25, 31, 47], [12, 22, 38, 41], [14, 29, 33, 40]];
    for round in 0..4 {
        // The documents are read in another order each time, so they are not joined.
        for at in 0..4 {
            for (process, document) in documents.iter().enumerate() {
                observed.note(10 * round + process as u32, read(document[at]), GAP);
            }
        }
    }
    assert_eq!(numbers(&observed.pairs.chains()), documents);
    assert!(observed.pairs.found >= 9);
}

#[test]
fn neighbours_and_what_is_seen_rarely_leave_nothing() {
    let mut observed = observed();
    for process in 0..10 {
        for number in 0..1000 {
            let blocks = Some(number * 2..number * 2 + 2);
            observed.note(process, Read { ino: InodeNo(number), blocks }, GAP);
        }
    }
    assert_eq!(observed.pairs.counts.len(), 0, "readers in the order of the device");
    for number in [2000, 3000, 4000, 2000, 3000, 4000] {
        observed.note(1, read(number), GAP);
    }
    assert_eq!(observed.pairs.chains(), Vec::<Vec<InodeNo>>::new());
}

/// Files that are together because they were learned are still seen to be read together.
#[test]
fn pairs_of_learned_files_are_counted_though_they_are_neighbours() {
    let mut observed = observed();
    for process in 0..3 {
        for number in 1..4 {
            observed.note(process, Read { ino: InodeNo(number), blocks: None }, GAP);
        }
    }
    assert_eq!(numbers(&observed.pairs.chains()), [[1, 2, 3]]);
}

#[test]
fn the_tables_are_bounded_and_keep_pairs_that_recur() {
    let mut observed = observed();
    observed.pairs.counts.reserve(PAIRS_MAX);
    let capacity = observed.pairs.counts.capacity();
    let mut random = random();
    for step in 0..1_000_000u64 {
        let process = (random() % 200) as u32;
        observed.note(process, read(100 + random() % 1_000_000), GAP);
        if step % 1000 < 3 {
            // Of a process of its own, again and again.
            observed.note(1000 + (step / 1000 % 50) as u32, read(step % 1000), GAP);
        }
    }
    assert!(observed.streams.len() <= STREAMS_MAX);
    assert!(observed.pairs.counts.len() <= PAIRS_MAX);
    assert_eq!(observed.pairs.counts.capacity(), capacity, "the table does not grow");
    assert_eq!(numbers(&observed.pairs.chains()), [[0, 1, 2]]);
}

proptest! {
    #[test]
    fn chains_have_each_file_once_and_only_pairs_as_neighbours(
        pairs in prop::collection::vec((0u64..40, 0u64..40), 0..200)
    ) {
        let pairs = pairs.into_iter().filter(|(one, other)| one != other);
        let pairs: Vec<_> =
            pairs.map(|(one, other)| (InodeNo(one.min(other)), InodeNo(one.max(other)))).collect();
        let chains = joined(&pairs);
        let all: Vec<InodeNo> = chains.iter().flatten().copied().collect();
        prop_assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        let known: BTreeSet<_> = pairs.iter().copied().collect();
        for chain in &chains {
            prop_assert!(chain.len() >= 2);
            for next in chain.windows(2) {
                prop_assert!(known.contains(&(next[0].min(next[1]), next[0].max(next[1]))));
            }
        }
        // The first pair is in a chain.
        prop_assert!(pairs.is_empty() || all.contains(&pairs[0].0));
    }
}
