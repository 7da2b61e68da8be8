//! The corruption corpus: a volume, one problem of each kind with its checksums right, the exact
//! report, the repair, a second run without a finding, and everything else as it was.

use std::collections::{BTreeMap, BTreeSet};

use super::damage::{CASES, Case};
use super::image::{Image, walk};
use super::volumes::{open, run};
use crate::fsck::problems::PROBLEMS;
use crate::fsck::{Code, Place, Repair, Report, Severity};
use crate::mkfs::MkfsOptions;

fn findings(report: &Report) -> Vec<(Code, Place)> {
    report.problems.iter().map(|problem| (problem.code, problem.place)).collect()
}

fn check_case(case: &Case) {
    let name = case.name;
    let options = MkfsOptions { embed: case.embed, ..MkfsOptions::default() };
    let image = Image::new(&options);
    let expected = (case.inject)(&image);

    let report = run(&image.device, Repair::No);
    assert_eq!(findings(&report), expected, "{name}: {:#?}", report.problems);
    assert_eq!(report.exit_code(), 4, "{name}");
    assert!(report.write_requests == 0, "{name}: a check writes nothing");

    let is_derived = expected.iter().all(|(code, _)| code.severity() == Severity::Derived);
    if !is_derived {
        let report = run(&image.device, Repair::Preen);
        assert_eq!(report.exit_code(), 4, "{name}: preening leaves damage alone");
        assert_eq!(report.write_requests, 0, "{name}");
    }
    let repair = if is_derived { Repair::Preen } else { Repair::Yes };
    let report = run(&image.device, repair);
    assert_eq!(findings(&report), expected, "{name}: {:#?}", report.problems);
    assert_eq!(report.exit_code(), 1, "{name}: {report:#?}");

    let report = run(&image.device, Repair::No);
    assert_eq!(findings(&report), [], "{name}, second run: {:#?}", report.problems);
    assert_eq!((report.exit_code(), report.recovery), (0, false), "{name}");

    let volume = open(&image.device);
    let mut seen = walk(&volume, &mut BTreeMap::new());
    volume.close().expect("close");
    seen.retain(|path, _| !path.starts_with("/lost+found"));
    let mut kept = image.seen.clone();
    for map in [&mut seen, &mut kept] {
        map.retain(|path, _| !case.lost.iter().any(|lost| path.starts_with(lost)));
    }
    let paths = |map: &BTreeMap<String, _>| map.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(paths(&seen), paths(&kept), "{name}");
    assert!(seen == kept, "{name}: a file that was not damaged has changed");
}

#[test]
fn every_case_is_found_repaired_and_gone() {
    let only = std::env::var("CASE").ok();
    let chosen = CASES.iter().filter(|case| only.as_deref().is_none_or(|only| only == case.name));
    let failed: Vec<&str> = chosen
        .filter(|case| std::panic::catch_unwind(|| check_case(case)).is_err())
        .map(|case| case.name)
        .collect();
    assert!(failed.is_empty(), "these cases failed: {failed:?}");
}

#[test]
fn every_code_has_a_case() {
    let cased: BTreeSet<Code> = CASES.iter().flat_map(|case| case.codes.iter().copied()).collect();
    // These cannot be shown by one problem in one image; they have tests of their own.
    let apart = [Code::Unrepaired, Code::NoSpace, Code::DeviceTooSmall];
    for problem in PROBLEMS.iter().filter(|problem| !apart.contains(&problem.code)) {
        assert!(cased.contains(&problem.code), "{} has no case", problem.id);
    }
}
