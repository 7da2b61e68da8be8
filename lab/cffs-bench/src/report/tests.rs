//! The arithmetic of the report.

use super::summary::{Summary, median};
use super::*;
use crate::disk::{Counters, Profile, Stroke};
use crate::peer::Peer;
use crate::results::Cell;
use crate::workload::Phase;
use crate::workload::catalog::Workload;

const PLAN: LibraryPlan = LibraryPlan {
    profile: Profile::Hdd7200,
    stroke: Stroke::Whole,
    size: 1 << 30,
    files: 1,
    large_bytes: 1,
    journal_bytes: 0,
    each_durable: false,
    seed: 1,
};

fn phase(name: &str, seconds: f64, requests: u64) -> Phase {
    let busy_ns = (seconds * 1e9) as u64;
    let device =
        Counters { reads: requests, read_bytes: 2_000_000, busy_ns, ..Counters::default() };
    Phase {
        name: name.into(),
        files: 100,
        bytes: 1_000_000,
        seconds,
        device: Some(device),
        instructions: None,
        journal_home_secs: Some(seconds / 8.0),
        programs_secs: None,
        server_secs: None,
    }
}

fn results(cells: &[(Workload, &str, Peer, &[f64], u64)]) -> Results {
    let mut results = Results::default();
    for &(workload, name, peer, seconds, requests) in cells {
        let cell = Cell { workload, phase: (0, name.to_owned()), peer };
        let phases = seconds.iter().map(|s| phase(name, *s, requests)).collect();
        results.cells.insert(cell, phases);
    }
    results
}

#[test]
fn medians_are_in_the_middle() {
    assert_eq!(median(vec![]), None);
    assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
    assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
}

#[test]
fn a_row_has_medians_and_is_compared_with_the_best_mainstream_peer_of_its_cell() {
    let w = Workload::Small1k;
    let all = results(&[
        (w, "read", Peer::Cffs, &[1.0, 9.0, 2.0], 2),
        (w, "read", Peer::Ext4, &[8.0], 100),
        (w, "read", Peer::Xfs, &[4.0], 100),
        (w, "read", Peer::CffsPlain, &[0.5], 100),
        (w, "create", Peer::Xfs, &[0.1], 100),
    ]);
    let summary = Summary::new(&all, Some(1e6));
    let row = summary.find(w, "read", Peer::Cffs).unwrap();
    assert_eq!((row.files_per_sec, row.repetitions, row.seconds), (50.0, 3, 2.0));
    assert_eq!(row.files_per_sec_range, (100.0 / 9.0, 100.0));
    assert_eq!((row.ratio_to_best, row.ratio_to_limit), (Some(2.0), Some(0.5)));
    assert_eq!((row.requests_per_file, row.amplification), (Some(0.02), Some(2.0)));
    assert_eq!(summary.find(w, "read", Peer::Ext4).unwrap().ratio_to_best, Some(0.5));
    assert_eq!(row.device_ratio_to_best, Some(2.0));
}

#[test]
fn bars_are_judged_only_where_there_is_something_to_judge() {
    let w = Workload::Small1k;
    let all = results(&[
        (w, "read", Peer::Cffs, &[1.0], 2),
        (w, "read", Peer::Ext4, &[10.0], 100),
        (w, "create", Peer::Cffs, &[2.0], 2),
        (w, "create", Peer::Ext4, &[1.0], 100),
    ]);
    let summary = Summary::new(&all, Some(1e6));
    let verdicts = bars::judge(Profile::Hdd7200, &summary);
    let met: Vec<_> = verdicts.iter().map(|v| (v.goal, v.measured, v.met)).collect();
    assert_eq!(met, [(1.0, 0.5, false), (8.0, 10.0, true)]);
    assert!(bars::judge(Profile::None, &summary).is_empty());
}

#[test]
fn a_bar_is_shown_with_the_limit_of_fuse() {
    let w = Workload::Small1k;
    let all = results(&[
        (w, "create", Peer::Cffs, &[4.0], 2),
        (w, "create", Peer::Ext4, &[1.0], 100),
        (w, "create", Peer::Null, &[2.0], 0),
    ]);
    let verdicts = bars::judge(Profile::Hdd7200, &Summary::new(&all, Some(1e6)));
    assert_eq!((verdicts[0].measured, verdicts[0].fuse_limit), (0.25, Some(0.5)));
    assert!(
        (verdicts[0].goal - 0.375).abs() < 1e-9,
        "no more than that allows: {}",
        verdicts[0].goal
    );
}

#[test]
fn a_bar_over_one_file_system_is_limited_by_fuse_as_well() {
    let w = Workload::Hot2;
    let all = results(&[
        (w, "open+read", Peer::Cffs, &[6.0], 0),
        (w, "open+read", Peer::Ext4, &[1.0], 0),
        (w, "open+read", Peer::Null, &[5.0], 0),
    ]);
    let verdicts = bars::judge(Profile::None, &Summary::new(&all, None));
    let over = verdicts.iter().find(|verdict| verdict.bar.ends_with("× ext4")).unwrap();
    assert_eq!((over.fuse_limit, over.met), (Some(0.2), true), "{over:?}");
    assert!((over.goal - 0.15).abs() < 1e-9, "{}", over.goal);
}

#[test]
fn few_requests_meet_a_bar_that_limits_them() {
    let cells = [
        (Workload::FreshTree, "scan", Peer::Cffs, &[1.0][..], 1),
        (Workload::AgedTree, "scan", Peer::Cffs, &[1.0], 16),
    ];
    let verdicts = bars::judge(Profile::Hdd7200, &Summary::new(&results(&cells), Some(160e6)));
    let find = |what: &str| verdicts.iter().find(|v| v.bar.contains(what)).unwrap();
    assert!(find("fresh-tree: scan, requests").met);
    assert!(!find("aged-tree: scan, requests").met);
}

#[test]
fn a_bar_can_be_over_one_peer_or_a_pinned_client() {
    let cells = [
        (Workload::Apps, "copy", Peer::Cffs, &[1.0][..], 1),
        (Workload::Apps, "copy", Peer::Ext4, &[3.0], 1),
        (Workload::Apps, "copy", Peer::Btrfs, &[0.1], 1),
        (Workload::Hot1, "stat", Peer::Cffs, &[2.0], 0),
        (Workload::Hot1Pinned, "stat", Peer::Cffs, &[1.0], 0),
    ];
    let summary = Summary::new(&results(&cells), None);
    let judged = |profile| -> Vec<_> {
        let verdicts = bars::judge(profile, &summary);
        verdicts.into_iter().map(|v| (v.bar, v.measured, v.met)).collect()
    };
    assert_eq!(judged(Profile::Hdd7200), [(String::from("apps: copy, × ext4"), 3.0, true)]);
    let pinned = String::from("hot-1: stat, cffs, × the same pinned to a core");
    assert_eq!(judged(Profile::None), [(pinned, 0.5, false)]);
}

#[test]
fn the_share_of_draining_the_journal_is_of_the_devices_busy_time() {
    let w = Workload::Durable4k1;
    let all = results(&[(w, "write+fsync", Peer::Cffs, &[2.0], 100)]);
    let verdicts = bars::judge_journal(Profile::Hdd7200, &Summary::new(&all, None));
    let share =
        verdicts.iter().find(|verdict| verdict.bar.contains("draining the journal")).unwrap();
    assert_eq!((share.measured, share.met), (0.125, false), "an eighth is more than a tenth");
}

#[test]
fn paragraphs_are_broken_between_words() {
    let text = "word ".repeat(60);
    let wrapped = table::wrap(text.trim());
    assert!(wrapped.lines().count() == 3 && wrapped.lines().all(|line| line.len() <= 100));
    assert_eq!(wrapped.split_whitespace().count(), 60);
    assert_eq!(table::wrap(""), "\n");
}

#[test]
fn the_processor_time_of_programs_has_a_table() {
    let w = Workload::Apps;
    let mut all =
        results(&[(w, "unpack", Peer::Cffs, &[2.0], 1), (w, "unpack", Peer::Ext4, &[2.0], 1)]);
    let shown = |all: &Results| {
        let report = Report::of_library(&PLAN, all);
        table::markdown(&report)
    };
    assert!(!shown(&all).contains("processor time"));
    for (cell, phases) in &mut all.cells {
        phases[0].programs_secs = Some(0.5);
        phases[0].server_secs = (cell.peer == Peer::Cffs).then_some(1.0);
    }
    let text = shown(&all);
    assert!(text.contains("## apps, processor time"), "{text}");
    let of = |peer: &str| {
        let row = text.lines().rfind(|line| line.contains(&format!(" {peer} "))).expect(peer);
        row.split_whitespace().filter(|cell| *cell != "|").collect::<Vec<_>>().join(" ")
    };
    assert_eq!(of("cffs"), "unpack cffs 2.00 0.500 1.00 75 %");
    assert_eq!(of("ext4"), "ext4 2.00 0.500 - 25 %");
}

#[test]
fn the_head_shows_the_longest_request() {
    let head = |request_kib| {
        let environment = Environment { request_kib, ..Environment::virtual_disk(&PLAN) };
        let (rows, bars, failures) = (Vec::new(), Vec::new(), Vec::new());
        table::text(&Report { environment, rows, bars, failures }).replace('\n', " ")
    };
    assert!(!head(None).contains("KiB"));
    assert!(head(Some(1280)).contains("1280 KiB, as FUSE and loop devices allow"));
    assert!(head(Some(4096)).contains("4096 KiB; the"));
}
