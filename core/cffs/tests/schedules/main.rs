//! The schedule explorer: a few threads on one volume, with thousands of interleavings.
//!
//! Threads change their own files, whose state they know completely, and shared files; meanwhile one thread
//! commits changes. Memory is so limited that everything evictable is evicted, and the device is slow. Each
//! seed determines an interleaving (`cffs::lock::schedule`). Afterwards a check finds no problem, and the
//! reopened volume has the state that the threads know.
//!
//! A failure prints its seed, which repeats it:
//!
//! ```text
//! CFFS_SCHEDULE_SEED=17 cargo test -p cffs --features schedules --test schedules one -- --nocapture
//! ```
//!
//! `CFFS_SCHEDULES` sets the number of seeds, `CFFS_SCHEDULE_FROM` the first one. Volumes with compressed
//! contents have seeds of their own, which `CFFS_SCHEDULE_COMPRESSED=1` selects for `one`.

mod device;
mod directed;
mod files;
mod volumes;
mod work;

use std::sync::{Arc, Mutex};
use std::time::Instant;

use cffs::format::superblock::Policy;
use cffs::fsck::{self, CheckOptions};
use cffs::lock::Rule;
use cffs::lock::schedule::{self, Body, Ran};
use cffs::units::InodeNo;
use cffs::vfs::{Caller, NewFile, NewKind, SetVolume};

use device::SlowDevice;
use files::Files;
use volumes::{Opening, Start, starts};
use work::Work;
use work::own::Changer;

/// The default number of seeds.
const SCHEDULES: u64 = 2000;
/// The same for volumes with compressed contents.
const COMPRESSED_SCHEDULES: u64 = 2000;
/// The number of seeds within which each broken rule must be found.
const BROKEN_SCHEDULES: u64 = 40_000;
/// The number of seeds of each directed workload without a broken rule.
const DIRECTED_SCHEDULES: u64 = 40;
/// The number of seeds for two changes of the policy: some fail if the policy in memory follows later.
const POLICY_SCHEDULES: u64 = 1000;
fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|value| value.parse().expect("a number"))
}

/// The choices of a schedule, and the clusters that were written meanwhile.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    ran: Ran,
    clusters_written: u64,
}

/// Runs the schedule of a seed. An error describes the fault.
fn run(work: Work, seed: u64, broken: Option<Rule>) -> Result<Outcome, String> {
    let kinds = starts(work).len() as u64;
    let start = &starts(work)[(seed % kinds) as usize];
    let device = start.device();
    // Each part of the seed chooses one property.
    let part = |number: u32| (seed / kinds) >> number & 1 == 1;
    let volume = Opening {
        // With very little memory, nearly everything evictable is evicted at once; with a little more, some
        // of it stays.
        has_memory: part(1),
        // Each directory has an index, and is noted in the intent log by block.
        has_indexes: part(2),
        discards: part(3),
    }
    .open(&device);
    let known: Vec<Mutex<Files>> = start.own.iter().map(|_| Mutex::default()).collect();
    let with_prefetch = part(0);
    let mut bodies: Vec<Body<'_>> = Vec::new();
    for (number, files) in known.iter().enumerate() {
        let mut changer = Changer::new(work, &volume, start, number);
        bodies.push(Box::new(move || {
            changer.run();
            *files.lock().expect("no other thread has it") = changer.files;
        }));
    }
    let take_care = || work::take_care(work, &volume, start);
    bodies.push(Box::new(|| match with_prefetch {
        true => volume.with_prefetch(2, take_care),
        false => take_care(),
    }));
    let ran = schedule::run(seed, broken, bodies)?;
    let clusters_written = volume.stats().clusters_written;
    let look = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        start.shared.iter().for_each(|dir| work::compare_names(&volume, *dir));
        cffs_testing::quota::check(&volume).expect("accounts are right");
        volume.close().expect("closed");
        check(&device, start, &known);
    }));
    let text = |panic: Box<dyn std::any::Any + Send>| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        format!("after the schedule: {}", text.unwrap_or_default())
    };
    look.map_err(text)?;
    Ok(Outcome { ran, clusters_written })
}

fn check(device: &Arc<SlowDevice>, start: &Start, known: &[Mutex<Files>]) {
    let options = CheckOptions { contents: true, force: true, ..CheckOptions::default() };
    let report = fsck::check(&**device, &options, &()).expect("the check runs");
    assert_eq!(report.problems, [], "fsck finds problems");
    let volume = Opening::default().open(device);
    for (dir, files) in start.own.iter().zip(known) {
        let found = Files::of(&volume, *dir);
        assert!(found == *files.lock().expect("no other thread"), "not as its thread left it");
    }
    volume.close().expect("closed");
}

/// A failing schedule ends its threads by panics, of which only the first one is informative.
fn be_quiet() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        if number("CFFS_SCHEDULE_SEED").is_none() {
            let usual = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                if std::thread::current().name().is_some() && !schedule::is_scheduled() {
                    usual(info);
                }
            }));
        }
    });
}

fn explain(work: Work, seed: u64, why: &str) -> String {
    let compressed = match work {
        Work::Plain => "",
        Work::WithClusters => "CFFS_SCHEDULE_COMPRESSED=1 ",
    };
    format!(
        "seed {seed}: {why}\n    {compressed}CFFS_SCHEDULE_SEED={seed} cargo test -p cffs --features \
         schedules --test schedules one -- --nocapture"
    )
}

/// Runs the requested or the default number of schedules. Returns the count of clusters written.
fn explore(work: Work, usual_schedules: u64) -> u64 {
    be_quiet();
    let from = number("CFFS_SCHEDULE_FROM").unwrap_or(0);
    let schedules = number("CFFS_SCHEDULES").unwrap_or(usual_schedules);
    let (mut choices, mut clusters) = (0, 0);
    for seed in from..from + schedules {
        match run(work, seed, None) {
            Ok(outcome) => {
                choices += outcome.ran.choices;
                clusters += outcome.clusters_written;
            }
            Err(why) => panic!("{}", explain(work, seed, &why)),
        }
    }
    println!("{schedules} schedules from seed {from}, {choices} choices, {clusters} clusters");
    clusters
}

#[test]
fn every_schedule_ends_as_the_threads_know_it() {
    explore(Work::Plain, SCHEDULES);
}

/// Clusters are formed, shared, expanded, compacted and freed.
#[test]
fn every_schedule_on_a_compressed_volume_ends_as_the_threads_know_it() {
    let clusters = explore(Work::WithClusters, COMPRESSED_SCHEDULES);
    assert!(clusters > 0, "no contents were compressed");
}

/// The policy of the superblock decides about new files, too.
#[test]
fn the_later_of_two_changes_of_the_policy_holds() {
    be_quiet();
    let policies = [Policy::Owner, Policy::Time];
    for seed in 0..POLICY_SCHEDULES {
        let volume = Opening::default().open(&starts(Work::Plain)[0].device());
        let tune = |policy| -> Body<'_> {
            let changes = SetVolume { policy: Some(policy), ..SetVolume::default() };
            let volume = &volume;
            Box::new(move || drop(volume.tune(&changes).expect("tuned")))
        };
        schedule::run(seed, None, policies.map(tune).into()).expect("it ends");
        let key = |uid: u32| {
            let new = NewFile { uid, ..work::new(NewKind::Regular) };
            let name = uid.to_string();
            let made = volume.make(&Caller::ROOT, InodeNo::ROOT, name.as_bytes(), &new);
            volume.admin().placement_key(made.expect("made").ino).expect("found")
        };
        let by_owner = key(1) != key(2);
        let policy = volume.writer().superblock.get().policy;
        assert_eq!(by_owner, policy == Policy::Owner, "seed {seed}: {}", policy.name());
        volume.close().expect("closed");
    }
}

/// The first seed that fails only with the rule broken, and its failure.
fn missed_by(
    rule: Rule,
    run: impl Fn(u64, Option<Rule>) -> Result<(), String>,
) -> Option<(u64, String)> {
    (0..BROKEN_SCHEDULES).find_map(|seed| {
        let why = run(seed, Some(rule)).err()?;
        // A seed that fails without a broken rule proves nothing.
        run(seed, None).is_ok().then_some((seed, why))
    })
}

/// Asserts that each of these rules is needed.
fn all_are_missed(
    rules: impl IntoIterator<Item = (Rule, impl Fn(u64, Option<Rule>) -> Result<(), String>)>,
) {
    be_quiet();
    let mut survivors = Vec::new();
    for (rule, run) in rules {
        let begun = Instant::now();
        let caught = missed_by(rule, run);
        let seconds = begun.elapsed().as_secs_f64();
        match caught {
            Some((seed, why)) => {
                println!("{rule:?} was caught by seed {seed}, in {seconds:.1} s: {why}");
            }
            None => {
                println!("{rule:?} survived {BROKEN_SCHEDULES} schedules");
                survivors.push(rule);
            }
        }
    }
    assert!(survivors.is_empty(), "not missed: {survivors:?}");
}

fn with_work(
    work: Work,
    rules: &[Rule],
) -> impl Iterator<Item = (Rule, impl Fn(u64, Option<Rule>) -> Result<(), String>)> {
    rules.iter().map(move |rule| (*rule, move |seed, broken| run(work, seed, broken).map(drop)))
}

/// Each rule of the lock table that can be broken separately, and the rule about data in flight, is needed.
#[test]
fn every_rule_is_missed() {
    all_are_missed(with_work(Work::Plain, &Rule::COMMON));
}

/// So is each rule about clusters, and about contents in flight to a cluster.
#[test]
fn every_rule_of_clusters_is_missed() {
    all_are_missed(with_work(Work::WithClusters, &Rule::OF_CLUSTERS));
}

/// So is each rule with a workload of its own.
#[test]
fn every_rule_of_a_directed_workload_is_missed() {
    be_quiet();
    for (rule, run) in directed::ALL {
        for seed in 0..DIRECTED_SCHEDULES {
            run(seed, None)
                .unwrap_or_else(|why| panic!("the work of {rule:?}, seed {seed}: {why}"));
        }
    }
    all_are_missed(directed::ALL);
}

#[test]
fn a_seed_repeats_its_schedule() {
    be_quiet();
    for work in [Work::Plain, Work::WithClusters] {
        for seed in 0..12 {
            assert_eq!(run(work, seed, None), run(work, seed, None), "seed {seed}");
        }
    }
}

/// The schedule of `CFFS_SCHEDULE_SEED`.
#[test]
fn one() {
    let Some(seed) = number("CFFS_SCHEDULE_SEED") else { return };
    let work = match number("CFFS_SCHEDULE_COMPRESSED") {
        None | Some(0) => Work::Plain,
        Some(_) => Work::WithClusters,
    };
    let outcome =
        run(work, seed, None).unwrap_or_else(|why| panic!("{}", explain(work, seed, &why)));
    println!("{outcome:?}");
}
