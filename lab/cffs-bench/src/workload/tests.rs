//! Runs the workloads on a plain directory: each does exactly what its documentation says.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::aging::Churn;
use super::contents::Contents;
use super::durable::Durable;
use super::large_file::LargeFile;
use super::random::{LogNormal, Random};
use super::scan::FreshTree;
use super::small_file::SmallFile;
use super::*;

/// A directory whose caches cannot be emptied; records the requests of the workload.
struct Plain {
    dir: tempfile::TempDir,
    settled: std::cell::Cell<u32>,
    chilled: u32,
}

impl Plain {
    fn new() -> Plain {
        Plain { dir: tempfile::tempdir().unwrap(), settled: 0.into(), chilled: 0 }
    }
}

impl Site for Plain {
    fn root(&self) -> &Path {
        self.dir.path()
    }
    fn settle(&self) -> Result<()> {
        self.settled.set(self.settled.get() + 1);
        Ok(())
    }
    fn chill(&mut self) -> Result<()> {
        self.chilled += 1;
        Ok(())
    }
    fn volume_size(&self) -> Option<u64> {
        Some(16 << 20)
    }
}

fn run(site: &mut Plain, work: impl FnOnce(&mut Session) -> Result<()>) -> Vec<Phase> {
    let quiet = AtomicBool::new(false);
    let mut session = Session::new(site, &quiet, ProgressBar::hidden(), Duration::from_secs(60));
    work(&mut session).unwrap();
    session.finish()
}

fn regular_files(root: &Path) -> Vec<PathBuf> {
    let (mut found, mut pending) = (vec![], vec![root.to_owned()]);
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                pending.push(entry.path());
            } else {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

#[test]
fn small_file_touches_every_file_in_every_phase_and_leaves_none() {
    let mut site = Plain::new();
    let plan = SmallFile { files: 250, size: 1000, seed: 1 };
    let phases = run(&mut site, |s| plan.run(s));
    let names: Vec<_> = phases.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, ["create", "read", "read shuffled", "overwrite", "remove"]);
    assert!(phases.iter().all(|p| p.files == 250));
    assert!(phases[..4].iter().all(|p| p.bytes == 250_000));
    assert_eq!((site.settled.get(), site.chilled), (3, 5));
    assert_eq!(regular_files(site.root()).len(), 0);
    assert_eq!(fs::read_dir(site.root()).unwrap().count(), 3, "a hundred names per directory");
}

#[test]
fn large_file_moves_all_its_bytes_three_times() {
    let mut site = Plain::new();
    let phases = run(&mut site, |s| LargeFile { bytes: 5 << 20, seed: 1 }.run(s));
    assert!(phases.iter().all(|p| p.bytes == 5 << 20));
    assert_eq!(fs::metadata(site.root().join("large")).unwrap().len(), 5 << 20);
}

#[test]
fn churn_reaches_its_utilization_with_the_same_operations_on_every_file_system() {
    let plan = Churn { full: 0.5, operations: 1500, directories: 7, seed: 3, then: None };
    let (mut one, mut two) = (Plain::new(), Plain::new());
    let phases = run(&mut one, |s| plan.run(s));
    run(&mut two, |s| plan.run(s));
    let files = |site: &Plain| -> Vec<(PathBuf, Vec<u8>)> {
        regular_files(site.root())
            .into_iter()
            .map(|p| (p.strip_prefix(site.root()).unwrap().to_owned(), fs::read(&p).unwrap()))
            .collect()
    };
    let made = files(&one);
    assert_eq!(made, files(&two));
    let blocks: u64 = made.iter().map(|(_, c)| (c.len() as u64).div_ceil(4096) * 4096).sum();
    let full = blocks as f64 / (16 << 20) as f64;
    assert!((0.42..0.62).contains(&full), "{full}");
    let [find, du, scan] = &phases[..] else { panic!("{phases:?}") };
    assert_eq!((find.files, find.bytes), (made.len() as u64, 0));
    let bytes: u64 = made.iter().map(|(_, c)| c.len() as u64).sum();
    assert_eq!((du.files, du.bytes), (made.len() as u64, 0));
    assert_eq!((scan.files, scan.bytes), (made.len() as u64, bytes));
}

#[test]
fn a_fresh_tree_is_walked_completely() {
    let mut site = Plain::new();
    let tree = FreshTree { files: 60, directories: 6, seed: 1 };
    assert!(run(&mut site, |s| tree.run(s)).iter().all(|p| p.files == 60));
}

#[test]
fn the_processor_time_of_programs_is_counted() {
    let mut site = Plain::new();
    let phases = run(&mut site, |session| {
        session.write_phase("count", 1, true, |_, _| {
            let count = "i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done";
            let ended = std::process::Command::new("sh").args(["-c", count]).status()?;
            assert!(ended.success());
            Ok(())
        })
    });
    let programs_secs = phases[0].programs_secs.expect("the kernel counts");
    assert!(programs_secs >= 0.02, "{programs_secs}");
    assert_eq!(phases[0].server_secs, None);
}

#[test]
fn programs_leave_one_tree_without_objects() {
    let mut site = Plain::new();
    let phases = run(&mut site, |s| super::apps::Apps { files: 30, compiled: 9, seed: 1 }.run(s));
    let names: Vec<_> = phases.iter().map(|p| p.name.as_str()).collect();
    let before = ["unpack", "search", "copy", "copy unshared", "git status"];
    assert_eq!(names, [&before[..], &["build", "clean", "rm -rf"]].concat());
    assert_eq!((phases[5].files, phases[6].files), (9, 9));
    let left = regular_files(&site.root().join("tree"));
    let is = |path: &&PathBuf, what: &str| path.extension().is_some_and(|it| it == what);
    assert_eq!(left.iter().filter(|path| is(path, "c")).count(), 9);
    assert_eq!(left.iter().filter(|path| is(path, "o")).count(), 0);
}

#[test]
fn the_durable_workload_writes_as_many_files_as_it_counts() {
    let mut site = Plain::new();
    let plan = Durable { files: 40, size: 200, threads: 8, seed: 1 };
    let phases = run(&mut site, |s| plan.run(s));
    assert_eq!(phases[0].files, 40);
    assert_eq!(regular_files(site.root()).len(), 40);
}

#[test]
fn hot_operations_are_counted_correctly() {
    let mut site = Plain::new();
    let plan = super::hot::Hot { operations: 60, clients: 2, pinned: false, seed: 1 };
    let phases = run(&mut site, |s| plan.run(s));
    assert!(phases.iter().all(|p| p.files == 60));
    assert_eq!((phases[1].bytes, phases[2].bytes), (60 * 1024, 60 * 1024));
    assert_eq!(regular_files(site.root()).len(), 60, "the empty ones are gone");
    assert_eq!((site.settled.get(), site.chilled), (1, 0));
}

#[test]
fn an_interrupt_ends_a_phase_and_the_time_allowed_ends_a_read() {
    let mut site = Plain::new();
    let pressed = AtomicBool::new(true);
    let mut session =
        Session::new(&mut site, &pressed, ProgressBar::hidden(), Duration::from_secs(60));
    let error = SmallFile { files: 10, size: 1, seed: 1 }.run(&mut session).unwrap_err();
    assert!(format!("{error:#}").contains("interrupted"));

    let mut site = Plain::new();
    let quiet = AtomicBool::new(false);
    let mut session = Session::new(&mut site, &quiet, ProgressBar::hidden(), Duration::ZERO);
    SmallFile { files: 10, size: 1, seed: 1 }.run(&mut session).unwrap();
    let read: Vec<_> = session.finish().iter().map(|p| p.files).collect();
    assert_eq!(read, [10, 1, 1, 10, 10]);
}

#[test]
fn sizes_have_the_median_and_mean_that_they_should() {
    let (sizes, mut random) = (LogNormal::churn(), Random::new(1));
    let mut samples: Vec<u64> = (0..200_000).map(|_| sizes.sample(&mut random)).collect();
    samples.sort();
    let median = samples[samples.len() / 2] as f64;
    let mean = samples.iter().sum::<u64>() as f64 / samples.len() as f64;
    assert!((median / 5e3 - 1.0).abs() < 0.03, "{median}");
    assert!((mean / 28e3 - 1.0).abs() < 0.08, "{mean}");
}

#[test]
fn contents_differ_between_files_and_have_the_requested_length() {
    let contents = Contents::new(1, 4096);
    assert_eq!(contents.of(3, 4096).len(), 4096);
    assert_ne!(contents.of(1, 100), contents.of(2, 100));
    assert_eq!(contents.of(u64::MAX, 0).len(), 0);
}

#[test]
fn a_shuffle_is_a_permutation_that_depends_on_the_seed() {
    let order = |seed| {
        let mut items: Vec<u32> = (0..100).collect();
        Random::new(seed).shuffle(&mut items);
        items
    };
    let mut sorted = order(1);
    assert_ne!(sorted, order(2));
    assert_eq!(sorted, order(1));
    sorted.sort();
    assert_eq!(sorted, (0..100).collect::<Vec<_>>());
}
