//! The crash explorer: workloads on a device that keeps the order of its writes, and every kind of
//! crash between any two barriers.
//!
//! Of the writes in motion survive none, all, each one alone, all but each one, those before a torn
//! one, and random subsets, sector by sector. Each state is recovered, some with two crashes more
//! while they recover; a full check finds nothing; what is there is held against what may be there
//! ([`tree`]); the volume goes on being changed, is closed, and checked again.
//!
//! Workloads: each pair of system calls, with and without a sync between ([`ops`]), and with
//! `CFFS_CRASH_LONG=1` long random ones instead. A workload has a name, `KIND.FIRST.BETWEEN.SECOND` or
//! `KIND.rSEED`, and a seed that decides on the crashes. A failure prints the command that repeats
//! it:
//!
//! ```text
//! CFFS_CRASH=0.12.1.40 CFFS_CRASH_SEED=1 cargo test -p cffs --test crash one -- --nocapture
//! ```
//!
//! which also leaves out all calls that it does not need to fail.
//!
//! `CFFS_CRASH_SEED` is the seed, 1 if not given; each begins with other workloads.
//! `CFFS_CRASH_STATES` says how many states are tried at least.

mod case;
mod mutants;
mod ops;
mod record;
mod states;
mod tree;

use std::panic::AssertUnwindSafe;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use case::{IN_PIECES, KINDS, LOGGED, LOGGED_ELSEWHERE, Start, Tried};
use cffs::vfs::RenameMode;
use mutants::Mutant;
use ops::Op;
use record::{HOME, LOG};

/// States to try if nothing else is asked for.
const STATES: u64 = 200_000;
/// States of volumes with a log: the calls are the same, and what a crash leaves is simpler.
const LOGGED_STATES: u64 = 50_000;
/// States of volumes with a log on another disk.
const LOGGED_ELSEWHERE_STATES: u64 = 20_000;
/// What stands between the calls of a pair: nothing, a sync, an fsync of the file that most of the
/// calls are about, or one of a new file, which leaves behind what the first call wrote. Last, both
/// calls stand before such an fsync.
const BETWEEN: u64 = 5;
/// Failures after which no more are looked for.
const FAILURES_MAX: usize = 20;
/// Workloads in which a mutant must be caught.
const MUTANT_WORKLOADS: usize = 400;
/// Workloads in which a harmless one must not be.
const HARMLESS_WORKLOADS: u64 = 60;
/// Each seed begins so many workloads after the one before it.
const SEED_WORKLOADS: u64 = 10_000;
/// Calls of a long workload.
const LONG: usize = 60;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The name of a workload.
#[derive(Clone, Copy)]
enum Workload {
    Pair { kind: u64, first: usize, between: u64, second: usize },
    Long { kind: u64, seed: u64 },
}

impl Workload {
    /// The pairs of all calls, again and again, in an order in which any part of them is a fair
    /// sample.
    fn nth_pair(nth: u64, calls: u64) -> Workload {
        let pairs = KINDS * calls * calls * BETWEEN;
        // A step that has no divisor in common with the count visits each pair once.
        let mixed = (u128::from(nth) * 1_000_000_007 % u128::from(pairs)) as u64;
        let (rest, kind) = (mixed / KINDS, mixed % KINDS);
        let (rest, between) = (rest / BETWEEN, rest % BETWEEN);
        let (first, second) = ((rest / calls) as usize, (rest % calls) as usize);
        Workload::Pair { kind, first, between, second }
    }

    /// The same workload on volumes with a log, here or elsewhere.
    fn logged(self, log: u64) -> Workload {
        match self {
            Workload::Pair { kind, first, between, second } => {
                Workload::Pair { kind: kind + log, first, between, second }
            }
            Workload::Long { kind, seed } => Workload::Long { kind: kind + log, seed },
        }
    }

    fn nth_long(nth: u64) -> Workload {
        Workload::Long { kind: nth % KINDS, seed: nth }
    }

    fn parse(name: &str) -> Option<Workload> {
        let mut parts = name.split('.');
        let kind = parts.next()?.parse().ok()?;
        let first = parts.next()?;
        if let Some(seed) = first.strip_prefix('r') {
            return Some(Workload::Long { kind, seed: seed.parse().ok()? });
        }
        let between = parts.next()?.parse().ok()?;
        let second = parts.next()?.parse().ok()?;
        Some(Workload::Pair { kind, first: first.parse().ok()?, between, second })
    }

    fn name(&self) -> String {
        match self {
            Workload::Pair { kind, first, between, second } => {
                format!("{kind}.{first}.{between}.{second}")
            }
            Workload::Long { kind, seed } => format!("{kind}.r{seed}"),
        }
    }

    fn kind(&self) -> u64 {
        match self {
            Workload::Pair { kind, .. } | Workload::Long { kind, .. } => *kind,
        }
    }

    fn calls(&self, all: &[Op]) -> Vec<Op> {
        match *self {
            Workload::Pair { first, between, second, .. } => {
                let (first, second) = (all[first].clone(), all[second].clone());
                let other = [Op::Make("other"), Op::Fsync("other")];
                let (between, after) = match between {
                    0 => (vec![], vec![]),
                    1 => (vec![Op::Sync], vec![]),
                    2 => (vec![Op::Fsync("d/f")], vec![]),
                    3 => (other.to_vec(), vec![]),
                    _ => (vec![], other.to_vec()),
                };
                [vec![first], between, vec![second], after, vec![Op::Sync]].concat()
            }
            Workload::Long { seed, .. } => {
                let mut random = Random::new(seed ^ 0x5eed);
                let sync = |random: &mut Random| random.below(8) == 0;
                (0..LONG)
                    .map(
                        |_| {
                            if sync(&mut random) { Op::Sync } else { ops::random(all, &mut random) }
                        },
                    )
                    .collect()
            }
        }
    }
}

/// What went wrong with one workload.
struct Failure {
    workload: Workload,
    seed: u64,
    calls: Vec<Op>,
    why: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (name, seed) = (self.workload.name(), self.seed);
        writeln!(f, "{}", self.why)?;
        writeln!(f, "calls: {:?}", self.calls)?;
        write!(
            f,
            "again: CFFS_CRASH={name} CFFS_CRASH_SEED={seed} cargo test -p cffs --test crash one -- \
             --nocapture"
        )
    }
}

/// The explorer, with the calls that workloads are made of.
struct Explorer {
    all: Vec<Op>,
    seed: u64,
    mutant: Option<Mutant>,
}

impl Explorer {
    fn new() -> Explorer {
        let seed = number("CFFS_CRASH_SEED").unwrap_or(1);
        Explorer { all: ops::all(), seed, mutant: None }
    }

    fn run(&self, workload: Workload) -> Result<Tried, Failure> {
        let calls = workload.calls(&self.all);
        self.run_calls(workload.kind(), &calls).map_err(|why| Failure {
            workload,
            seed: self.seed,
            calls,
            why,
        })
    }

    fn run_calls(&self, kind: u64, calls: &[Op]) -> Result<Tried, String> {
        let run = || case::run(Start::of(kind), &self.all, calls, self.seed, self.mutant);
        std::panic::catch_unwind(AssertUnwindSafe(run))
            .unwrap_or_else(|_| Err("the program panicked".into()))
    }

    /// Leaves out calls as long as what is left still fails.
    fn shrink(&self, failure: &mut Failure) {
        let kind = failure.workload.kind();
        let mut at = 0;
        while at < failure.calls.len() {
            let mut fewer = failure.calls.clone();
            fewer.remove(at);
            match self.run_calls(kind, &fewer) {
                Ok(_) => at += 1,
                Err(why) => {
                    failure.calls = fewer;
                    failure.why = why;
                    at = 0;
                }
            }
        }
    }

    /// Runs workloads on all processors until so many states were tried, or too many fail.
    fn explore(&self, states: u64, nth: fn(u64, u64) -> Workload) -> (Tried, Vec<Failure>) {
        let next = AtomicU64::new(self.seed.saturating_sub(1).wrapping_mul(SEED_WORKLOADS));
        let done = Mutex::new((Tried::default(), Vec::new()));
        let work = || {
            loop {
                let workload = nth(next.fetch_add(1, Ordering::Relaxed), self.all.len() as u64);
                let result = self.run(workload);
                let (sum, failures) = &mut *done.lock().unwrap();
                match result {
                    Ok(tried) => sum.add(tried),
                    Err(failure) => failures.push(failure),
                }
                if sum.states >= states || failures.len() >= FAILURES_MAX {
                    return;
                }
            }
        };
        let threads = std::thread::available_parallelism().map_or(2, |count| count.get());
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(work);
            }
        });
        done.into_inner().unwrap()
    }
}

fn explore(nth: fn(u64, u64) -> Workload, usual_states: u64) {
    let began = Instant::now();
    let explorer = Explorer::new();
    let states = number("CFFS_CRASH_STATES").unwrap_or(usual_states);
    let (tried, failures) = explorer.explore(states, nth);
    failures.iter().for_each(|failure| println!("{failure}\n"));
    println!(
        "{} states after a crash, {} of them of crashed recoveries, in {} workloads, seed {}: \
         {} violations; {} were as a whole a moment of the workload; {:.1} s",
        tried.states,
        tried.recoveries,
        tried.workloads,
        explorer.seed,
        failures.len(),
        tried.moments,
        began.elapsed().as_secs_f64()
    );
    assert!(failures.is_empty(), "{}", failures[0]);
    assert!(tried.states >= states && tried.recoveries > 0);
}

#[test]
fn every_crash_leaves_a_state_that_was() {
    match number("CFFS_CRASH_LONG") {
        Some(_) => explore(|nth, _| Workload::nth_long(nth), STATES),
        None => explore(Workload::nth_pair, STATES),
    }
}

#[test]
fn every_crash_of_a_volume_with_a_log_leaves_a_state_that_was() {
    match number("CFFS_CRASH_LONG") {
        Some(_) => explore(|nth, _| Workload::nth_long(nth).logged(LOGGED), LOGGED_STATES),
        None => explore(|nth, calls| Workload::nth_pair(nth, calls).logged(LOGGED), LOGGED_STATES),
    }
}

/// Of two disks a crash may leave each in any of its states, whatever it leaves of the other.
#[test]
fn every_crash_of_a_volume_and_its_log_elsewhere_leaves_a_state_that_was() {
    let usual = LOGGED_ELSEWHERE_STATES;
    match number("CFFS_CRASH_LONG") {
        Some(_) => explore(|nth, _| Workload::nth_long(nth).logged(LOGGED_ELSEWHERE), usual),
        None => {
            explore(|nth, calls| Workload::nth_pair(nth, calls).logged(LOGGED_ELSEWHERE), usual);
        }
    }
}

/// An fsync waits for the disk of the log, and what goes home for the other.
#[test]
fn each_of_two_disks_is_waited_for() {
    for disk in [HOME, LOG] {
        let explorer = Explorer { mutant: Some(Mutant::NoSyncOf(disk)), ..Explorer::new() };
        let calls = explorer.all.len() as u64;
        let pairs = (0..).map(|nth| Workload::nth_pair(nth, calls).logged(LOGGED_ELSEWHERE));
        let caught = pairs.take(MUTANT_WORKLOADS).position(|pair| explorer.run(pair).is_err());
        println!("disk {disk}, not waited for, was caught by workload {caught:?}");
        assert!(caught.is_some(), "disk {disk} need not be waited for");
    }
}

/// What the explorer found once stays mended.
#[test]
fn what_was_found_stays_mended() {
    use Op::*;
    use RenameMode::{Exchange, Replace};
    let stories = [
        // A sector of the external table was so full that the linktags of an exchange or of a
        // rename had no room.
        (2, vec![SetXattr("d", 60), Rename("d/s", "g", Exchange), Sync]),
        (2, vec![SetXattr("d", 60), Rename("d/f", "g", Exchange), Sync]),
        (3, vec![Unlink("h"), Rename("g", "d/f", Replace), Sync]),
        (3, vec![Link("h", "n"), Sync, Rename("d/s", "g", Exchange), Sync]),
        // A name that was added in the epoch of an exchange hid the one that a file lacked.
        (0, vec![Rename("d/f", "g", Exchange), Link("d/f", "n"), Sync]),
        (1, vec![Rename("d/f", "g", Exchange), Link("g", "e/n"), Sync]),
        // A symbolic link that was replaced at once came to the device for one phase, without its
        // target.
        (1, vec![MakeLink("d/n", 900), Rename("d/f", "d/n", Replace), Sync]),
        // The inode of a directory led to a new name before the linktag of its file was there.
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
        // Closing had nothing but bitmaps to write, and the busy log did not list them.
        (0, vec![Truncate("big", 30_000), Sync]),
        (3, vec![Truncate("d/f", 100), Sync]),
        // What was large is overwritten in place when it is small again, which was taken for a failure.
        (2, vec![Truncate("big", 7055), Sync, Truncate("big", 4350)]),
        // The old name of a file that was given a new one beside it was given to another file, elsewhere in
        // the directory.
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
        // A directory that was replaced had on the device still what it had lost before.
        (1, vec![MakeDir("e/n"), Sync, RemoveDir("e/n"), Rename("d", "e", Replace), Sync]),
        (1, vec![Make("e/n"), Sync, Unlink("e/n"), Rename("d", "e", Replace), Sync]),
        // A directory moved below one that had just moved out of it: with the second move alone on
        // the device, the two lay in each other.
        (0, vec![Rename("d/s", "n", Replace), Rename("d", "n/n", Replace), Sync]),
        (1, vec![Rename("d/s", "n", Replace), Rename("d", "n/n", Replace), Sync]),
        (2, vec![Rename("d/s", "n", Replace), Rename("d", "n/n", Replace), Sync]),
        // A file lost the name that it had to another before the name that it was given was there.
        (0, vec![Link("g", "e/n"), Rename("d/f", "g", Replace), Sync]),
        (1, vec![Link("g", "e/n"), Rename("d/f", "g", Replace), Sync]),
        (2, vec![Link("g", "e/n"), Rename("d/f", "g", Replace), Sync]),
        (0, vec![Link("d/f", "e/n"), Rename("g", "d/f", Replace), Sync]),
        // A file moved on from a name that it had taken from another in the same epoch.
        (0, vec![Rename("d/f", "h", Replace), Rename("h", "e/n", Replace), Sync]),
        (1, vec![Rename("d/f", "h", Replace), Rename("h", "e/n", Replace), Sync]),
        (2, vec![Rename("d/f", "h", Replace), Rename("h", "e/n", Replace), Sync]),
        (0, vec![Rename("g", "d/h", Replace), Rename("d/h", "e/n", Replace), Sync]),
        (0, vec![Rename("g", "d/h", Replace), Rename("d/h", "h", Replace), Sync]),
        // A recovery that was interrupted had mended a sector where nothing was busy, with an epoch that the
        // next one did not see.
        (0, vec![Rename("e", "d/s", Replace), Sync]),
    ];
    for seed in 1..=3 {
        let explorer = Explorer { seed, ..Explorer::new() };
        for (kind, calls) in &stories {
            if let Err(why) = explorer.run_calls(*kind, calls) {
                panic!("kind {kind}, {calls:?}, seed {seed}: {why}");
            }
        }
    }
}

/// What is made needs a block more of a table of inodes that lies in pieces. The thread that comes first,
/// recovery or a clean point, gives it one, maps the table anew, and frees the extent tree that it had.
#[test]
fn a_table_of_inodes_in_pieces_grows() {
    use Op::*;
    let explorer = Explorer::new();
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

/// Moving files is a change like any other: before the crash or after it, each has the contents, the names
/// and the times that it had.
#[test]
fn files_that_are_moved_are_there_after_any_crash() {
    use Op::*;
    let explorer = Explorer::new();
    let mut tried = Tried::default();
    for kind in [0, 3, LOGGED] {
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
}

/// Every barrier that an epoch has, the sync at its end, every phase, every linktag and every kind of
/// record of the busy log is needed: without it, the explorer finds a violation, or all has to be
/// checked. So an fsync that is acknowledged too early is found, too.
#[test]
fn every_part_of_an_epoch_is_missed() {
    let mut survivors = Vec::new();
    for mutant in mutants::ALL {
        let explorer = Explorer { mutant: Some(mutant), ..Explorer::new() };
        let calls = explorer.all.len() as u64;
        let pairs = (0..).map(|nth| Workload::nth_pair(nth, calls));
        let wanted = pairs.filter(|workload| {
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

/// What is caught is what a mutant lacks, and not that it writes the busy log anew.
#[test]
fn records_in_another_order_are_not_missed() {
    let explorer = Explorer { mutant: Some(Mutant::Reordered), ..Explorer::new() };
    let calls = explorer.all.len() as u64;
    for nth in 0..HARMLESS_WORKLOADS {
        if let Err(failure) = explorer.run(Workload::nth_pair(nth, calls)) {
            panic!("{failure}");
        }
    }
}

#[test]
fn one() {
    let name = std::env::var("CFFS_CRASH").unwrap_or_else(|_| "0.0.0.0".into());
    let workload = Workload::parse(&name).expect("KIND.FIRST.BETWEEN.SECOND or KIND.rSEED");
    let explorer = Explorer::new();
    match explorer.run(workload) {
        Err(mut failure) => {
            explorer.shrink(&mut failure);
            panic!("{failure}");
        }
        Ok(tried) => {
            println!("{}: {tried:?}", workload.name());
            assert!(tried.states > 0);
        }
    }
}

#[test]
fn a_pair_is_never_run_twice() {
    let calls = ops::all().len() as u64;
    let pairs = KINDS * calls * calls * BETWEEN;
    let names: std::collections::BTreeSet<String> =
        (0..pairs).map(|nth| Workload::nth_pair(nth, calls).name()).collect();
    assert_eq!(names.len() as u64, pairs);
}
