//! The arithmetic of growth, the archive, and each part at tiny sizes.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::process::Command;

use super::growth::{Costs, Curve, Growth, Measure, Sample, Verdict, curves};
use super::program::measure;
use super::report::Report;
use super::*;
use crate::processor::Used;

fn verdict(measure: Measure, points: &[(u64, f64)]) -> Verdict {
    let samples: Vec<_> = points
        .iter()
        .map(|(size, cost)| Sample::new(Part::Tree, "step", *size, Costs::from([(measure, *cost)])))
        .collect();
    curves(&samples)[0].verdict()
}

fn points(cost: impl Fn(f64) -> f64) -> Vec<(u64, f64)> {
    [1_000, 10_000, 100_000].map(|n| (n, cost(n as f64))).into()
}

#[test]
fn growth_is_the_cost_of_an_item_over_that_of_one_before() {
    let growth = Growth::between(Measure::Reads, (1_000, 500.0), (10_000, 6_000.0));
    assert!((growth.factor - 1.2).abs() < 1e-9, "{growth:?}");
    assert!((growth.bound - 4.0 / 3.0 * 1.05).abs() < 1e-9, "{growth:?}");
    let sizes_differ = Growth::between(Measure::Reads, (1, 500.0), (32, 500.0 * 32.0));
    assert!((sizes_differ.factor - 1.0).abs() < 1e-9, "{sizes_differ:?}");
}

#[test]
fn growth_above_n_log_n_is_faster_and_other_growth_is_not() {
    for measure in [Measure::CpuSeconds, Measure::Reads, Measure::PeakBytes] {
        let large = |cost: fn(f64) -> f64| points(|n| 1e8 * cost(n));
        assert_eq!(verdict(measure, &large(|_| 1.0)), Verdict::Within);
        assert_eq!(verdict(measure, &large(|n| n)), Verdict::Within);
        assert_eq!(verdict(measure, &large(|n| n * n.ln())), Verdict::Within);
        assert_eq!(verdict(measure, &large(|n| n.powf(1.3))), Verdict::Faster);
        assert_eq!(verdict(measure, &large(|n| n * n)), Verdict::Faster);
    }
}

#[test]
fn one_step_that_is_too_fast_is_enough_and_tiny_costs_are_not_judged() {
    let late = [(1_000, 1_000.0), (10_000, 10_000.0), (100_000, 900_000.0)];
    assert_eq!(verdict(Measure::Reads, &late), Verdict::Faster);
    assert_eq!(verdict(Measure::Reads, &[(1_000, 3.0), (10_000, 90.0)]), Verdict::TooSmall);
    assert_eq!(verdict(Measure::Reads, &[(1, 1e3), (2, 9e3), (4, 1e4)]), Verdict::Within);
}

#[test]
fn the_archive_has_every_file_once_in_directories_of_a_thousand() {
    let mut bytes = Vec::new();
    stream::write(2_001, &mut bytes).unwrap();
    let (mut files, mut directories) = (BTreeSet::new(), Vec::new());
    for entry in tar::Archive::new(bytes.as_slice()).entries().unwrap() {
        let mut entry = entry.unwrap();
        let header = entry.header();
        assert_eq!((header.uid().unwrap(), header.gid().unwrap()), (0, 0));
        let path = entry.path().unwrap().to_string_lossy().into_owned();
        if entry.header().entry_type().is_dir() {
            directories.push(path);
            continue;
        }
        let mut contents = Vec::new();
        entry.read_to_end(&mut contents).unwrap();
        assert_eq!(contents.len(), stream::FILE_BYTES);
        assert!(directories.iter().any(|d| path.starts_with(&format!("{d}/"))), "{path}");
        assert!(files.insert((path, contents)), "a file twice");
    }
    let contents: BTreeSet<_> = files.iter().map(|(_, contents)| contents).collect();
    assert_eq!((files.len(), contents.len(), directories.len()), (2_001, 2_001, 3));
    assert_eq!(stream::directories(2_001), 3);
    assert!(files.iter().any(|(path, _)| *path == stream::path(1_234)));
}

#[test]
fn a_program_is_measured_and_its_error_message_is_kept() {
    let mut program = Command::new("sh");
    program.args([
        "-c",
        "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; head -c 100000; cat >/dev/null",
    ]);
    let feed = |mut stdin: std::process::ChildStdin| Ok(stdin.write_all(&[7; 300_000])?);
    let (costs, printed) = measure(&mut program, feed).unwrap();
    assert_eq!(printed.len(), 100_000);
    // The costs of its children count as well: head(1) and cat(1) read and write.
    assert!(costs[&Measure::MovedBytes] >= 400_000.0, "{costs:?}");
    assert!(costs[&Measure::CpuSeconds] > 0.0 && costs[&Measure::Reads] >= 5.0, "{costs:?}");
    assert!(costs[&Measure::PeakBytes] > 100_000.0, "{costs:?}");

    let mut fails = Command::new("sh");
    let error = measure(fails.args(["-c", "echo room for $((5 * 5)) >&2; exit 3"]), |_| Ok(()))
        .unwrap_err();
    assert!(format!("{error:#}").contains("room for 25"), "{error:#}");
}

#[test]
fn the_name_of_a_process_may_look_like_fields() {
    let stat = "17 (a) b (1 2) R 1 1 1 0 -1 4194304 5 6 7 8 150 50 9 9 20 0 1 0 100";
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let used = Used { own: 200.0 / ticks, children: 18.0 / ticks };
    assert_eq!(Used::parse(stat), Some(used));
    assert_eq!(Used::parse("17"), None);
}

#[test]
fn a_directory_is_measured_and_reported() {
    let samples: Vec<_> =
        [300, 3_000].iter().flat_map(|names| directory::measure(*names).unwrap()).collect();
    let steps: Vec<_> = samples.iter().map(|sample| sample.step.as_str()).collect();
    let all = ["create", "look up at random", "list", "remove"];
    assert_eq!(steps, [all, all].concat());
    for sample in &samples {
        assert!(sample.costs[&Measure::CpuSeconds] > 0.0, "{sample:?}");
        let is_change = matches!(sample.step.as_str(), "create" | "remove");
        assert_eq!(sample.costs[&Measure::Writes] > 0.0, is_change, "{sample:?}");
    }
    // Caches are cold, so the listing comes from the device.
    assert!(samples.iter().all(|s| s.step != "list" || s.costs[&Measure::Reads] > 0.0));

    let measured = Measured { samples, failures: vec![String::from("a tree: no room")] };
    let report = Report::new(measured, String::from("cffs 1"), 2.0);
    let text = report.markdown();
    for expected in ["## Names in one directory", "look up at random", "a tree: no room"] {
        assert!(text.contains(expected), "{text}");
    }
    assert!(!text.contains("## Clients"), "{text}");
    let place = tempfile::tempdir().unwrap();
    report.write(place.path()).unwrap();
    assert_eq!(std::fs::read_to_string(place.path().join("scale.md")).unwrap(), text);
}

#[test]
fn the_report_names_steps_that_grow_too_fast() {
    let sample = |size: u64, cost: f64| {
        Sample::new(Part::Volume, "mkfs", size, Costs::from([(Measure::Writes, cost)]))
    };
    let of = |last: f64| {
        let samples = vec![sample(32, 1_000.0), sample(1024, last)];
        Report::new(Measured { samples, failures: Vec::new() }, String::new(), 1.0).markdown()
    };
    assert!(of(32_000.0).contains("None of 1 costs grows faster"), "{}", of(32_000.0));
    let faster = of(100_000.0);
    assert!(faster.contains("1 of 1 costs grow faster") && faster.contains("FASTER"), "{faster}");
    assert!(faster.contains("mkfs, writes (3.12)"), "{faster}");
}

#[test]
fn a_part_that_cannot_be_measured_is_reported_and_the_others_continue() {
    let plan = Plan {
        sizes: Sizes { files: vec![10], names: vec![10], ..Sizes::default() },
        operations: 0,
        small_files: 10,
        scratch: PathBuf::from("/nowhere"),
        memory: PathBuf::from("/nowhere"),
        cffs: PathBuf::from("/nowhere/cffs"),
    };
    let measured = plan.run(&AtomicBool::new(false));
    assert_eq!(measured.samples.len(), 4);
    assert!(measured.failures[0].contains("a tree of 10 files"), "{:?}", measured.failures);
    assert_eq!(plan.run(&AtomicBool::new(true)).failures.len(), 2);
}

#[test]
fn curves_keep_steps_parts_and_measures_apart() {
    let costs = |cpu: f64| Costs::from([(Measure::CpuSeconds, cpu), (Measure::Reads, 5.0)]);
    let samples = [
        Sample::new(Part::Tree, "mount", 1, costs(1.0)),
        Sample::new(Part::Volume, "mount", 1, costs(7.0)),
        Sample::new(Part::Tree, "find", 1, costs(3.0)),
        Sample::new(Part::Tree, "mount", 10, costs(2.0)),
    ];
    let curves = curves(&samples);
    let of = |curve: &Curve| (curve.part, curve.step.clone(), curve.measure, curve.points.clone());
    let mount = String::from("mount");
    assert_eq!(
        curves.iter().map(of).collect::<Vec<_>>(),
        [
            (Part::Tree, mount.clone(), Measure::CpuSeconds, vec![(1, 1.0), (10, 2.0)]),
            (Part::Tree, mount, Measure::Reads, vec![(1, 5.0), (10, 5.0)]),
        ]
    );
}

#[test]
fn only_requested_parts_have_sizes() {
    let only = Sizes::full().only(&[Part::Tree]);
    assert_eq!((only.files.last(), only.names.len()), (Some(&10_000_000), 0));
    let of = Sizes::of(Part::Directory, &[5, 6]);
    assert_eq!((of.names, of.files.len(), of.clients.len()), (vec![5, 6], 0, 0));
}
