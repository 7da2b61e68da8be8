//! Named workloads, and the explorer that runs them on a medium.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

use super::case::{self, Medium, Tried};
use super::ops::{self, Op};
use crate::random::Random;

/// Kinds of volumes: with embedded inodes or not, on sectors of 4096 or of 512 bytes.
pub const KINDS: u64 = 4;
/// Ways to separate the calls of a pair: not at all, by a sync, by an fsync of the file that most calls
/// change, or by an fsync of a new file, which leaves out the writes of the first call. In the last way, both
/// calls come before such an fsync.
pub const BETWEEN: u64 = 5;
/// Numbers from this one on mean the operations of [`ops::MAINTENANCE`], after each of the two calls.
const MAINTAINED: u64 = BETWEEN;
/// The number of failures at which the search ends.
const FAILURES_MAX: usize = 20;
/// Each seed begins this many workloads after the previous seed.
const SEED_WORKLOADS: u64 = 10_000;
/// The number of calls of a long workload.
const LONG: usize = 60;

pub fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The name of a workload.
#[derive(Clone, Copy)]
pub enum Workload {
    Pair { kind: u64, first: usize, between: u64, second: usize },
    Long { kind: u64, seed: u64 },
}

impl Workload {
    /// The pairs of all calls, repeatedly, in an order in which any part is a fair sample.
    pub fn nth_pair(nth: u64, calls: u64) -> Workload {
        let pairs = KINDS * calls * calls * BETWEEN;
        // A step that has no common divisor with the count visits each pair once.
        let mixed = (u128::from(nth) * 1_000_000_007 % u128::from(pairs)) as u64;
        let (rest, kind) = (mixed / KINDS, mixed % KINDS);
        let (rest, between) = (rest / BETWEEN, rest % BETWEEN);
        let (first, second) = ((rest / calls) as usize, (rest % calls) as usize);
        Workload::Pair { kind, first, between, second }
    }

    /// The same workload on volumes of the kinds from this one on.
    pub fn of_kinds_from(self, base: u64) -> Workload {
        match self {
            Workload::Pair { kind, first, between, second } => {
                Workload::Pair { kind: base + kind, first, between, second }
            }
            Workload::Long { kind, seed } => Workload::Long { kind: base + kind, seed },
        }
    }

    pub fn nth_long(nth: u64) -> Workload {
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

    /// The same pair with an operation of [`ops::MAINTENANCE`] after each of the two calls.
    pub fn with_maintenance(self, nth: usize) -> Workload {
        match self {
            Workload::Pair { kind, first, second, .. } => {
                Workload::Pair { kind, first, between: MAINTAINED + nth as u64, second }
            }
            long => long,
        }
    }

    pub fn name(&self) -> String {
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

    pub fn calls(&self, all: &[Op]) -> Vec<Op> {
        match *self {
            Workload::Pair { first, between, second, .. } => {
                let (first, second) = (all[first].clone(), all[second].clone());
                let other = [Op::Make("other"), Op::Fsync("other")];
                let (between, after) = match between {
                    0 => (vec![], vec![]),
                    1 => (vec![Op::Sync], vec![]),
                    2 => (vec![Op::Fsync("d/f")], vec![]),
                    3 => (other.to_vec(), vec![]),
                    MAINTAINED.. => {
                        let (_, op) = &ops::MAINTENANCE[(between - MAINTAINED) as usize];
                        (vec![op.clone()], vec![op.clone()])
                    }
                    _ => (vec![], other.to_vec()),
                };
                [vec![first], between, vec![second], after, vec![Op::Sync]].concat()
            }
            Workload::Long { seed, .. } => {
                let mut random = Random(seed ^ 0x5eed);
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

pub struct Failure {
    workload: Workload,
    seed: u64,
    calls: Vec<Op>,
    why: String,
    /// The command that runs one workload.
    again: &'static str,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (name, seed) = (self.workload.name(), self.seed);
        writeln!(f, "{}", self.why)?;
        writeln!(f, "calls: {:?}", self.calls)?;
        write!(f, "again: CFFS_CRASH={name} CFFS_CRASH_SEED={seed} {} -- --nocapture", self.again)
    }
}

fn on_all_processors(work: impl Fn() + Sync) {
    let threads = std::thread::available_parallelism().map_or(2, |count| count.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(&work);
        }
    });
}

/// The explorer of a medium, with the calls of which workloads consist.
pub struct Explorer<M> {
    pub medium: M,
    pub all: Vec<Op>,
    pub seed: u64,
}

impl<M: Medium> Explorer<M> {
    pub fn new(medium: M) -> Explorer<M> {
        let seed = number("CFFS_CRASH_SEED").unwrap_or(1);
        Explorer { medium, all: ops::all(), seed }
    }

    /// The first pairs of calls.
    pub fn pairs(&self) -> impl Iterator<Item = Workload> {
        let calls = self.all.len() as u64;
        (0..).map(move |nth| Workload::nth_pair(nth, calls))
    }

    pub fn run(&self, workload: Workload) -> Result<Tried, Failure> {
        let calls = workload.calls(&self.all);
        self.run_calls(workload.kind(), &calls).map_err(|why| Failure {
            workload,
            seed: self.seed,
            calls,
            why,
            again: M::AGAIN,
        })
    }

    pub fn run_calls(&self, kind: u64, calls: &[Op]) -> Result<Tried, String> {
        let going_on = ops::all_with_maintenance();
        let run = || case::run(&self.medium, kind, &going_on, calls, self.seed);
        std::panic::catch_unwind(AssertUnwindSafe(run))
            .unwrap_or_else(|_| Err("the program panicked".into()))
    }

    /// Leaves out calls as long as the rest still fails.
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

    /// Runs workloads on all processors until enough states were tried, or too many failed.
    fn try_states(
        &self,
        states: u64,
        nth: impl Fn(u64, u64) -> Workload + Sync,
    ) -> (Tried, Vec<Failure>) {
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
        on_all_processors(work);
        done.into_inner().unwrap()
    }

    /// Runs these workloads on all processors, and returns their results.
    pub fn run_each(&self, workloads: &[Workload]) -> Vec<Result<Tried, Failure>> {
        let next = AtomicU64::new(0);
        let results: Vec<OnceLock<Result<Tried, Failure>>> =
            workloads.iter().map(|_| OnceLock::new()).collect();
        let work = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed) as usize;
                let Some(workload) = workloads.get(at) else { return };
                let _ = results[at].set(self.run(*workload));
            }
        };
        on_all_processors(work);
        results.into_iter().map(|result| result.into_inner().expect("it was run")).collect()
    }

    /// Tries the requested or the default number of states, and fails if one is wrong.
    pub fn explore(&self, nth: impl Fn(u64, u64) -> Workload + Sync, usual_states: u64) {
        let began = Instant::now();
        let states = number("CFFS_CRASH_STATES").unwrap_or(usual_states);
        let (tried, failures) = self.try_states(states, nth);
        failures.iter().for_each(|failure| println!("{failure}\n"));
        println!(
            "{} states after a crash, {} of them of crashed recoveries, in {} workloads, seed {}: \
             {} violations; {} were as a whole a moment of the workload; {:.1} s",
            tried.states,
            tried.recoveries,
            tried.workloads,
            self.seed,
            failures.len(),
            tried.moments,
            began.elapsed().as_secs_f64()
        );
        assert!(failures.is_empty(), "{}", failures[0]);
        assert!(tried.states >= states && tried.recoveries > 0);
    }

    /// Runs the workload that `CFFS_CRASH` names.
    pub fn one(&self) {
        let name = std::env::var("CFFS_CRASH").unwrap_or_else(|_| "0.0.0.0".into());
        let workload = Workload::parse(&name).expect("KIND.FIRST.BETWEEN.SECOND or KIND.rSEED");
        match self.run(workload) {
            Err(mut failure) => {
                self.shrink(&mut failure);
                panic!("{failure}");
            }
            Ok(tried) => {
                println!("{}: {tried:?}", workload.name());
                assert!(tried.states > 0);
            }
        }
    }
}
