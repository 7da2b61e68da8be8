//! Exact runs: repeatable, complete, and with a technique's effect where it should be.

use super::*;

fn plan(files: u64) -> LibraryPlan {
    LibraryPlan {
        profile: Profile::St31200,
        stroke: Stroke::Whole,
        size: 128 << 20,
        files,
        large_bytes: 8 << 20,
        seed: 1,
    }
}

fn requests(phases: &[Phase], name: &str) -> u64 {
    let phase = phases.iter().find(|p| p.name == name).unwrap();
    phase.device.unwrap().requests()
}

#[test]
fn two_runs_are_the_same_run() {
    let once = plan(300).small_file(Peer::Cffs, 300, 1024).unwrap();
    let twice = plan(300).small_file(Peer::Cffs, 300, 1024).unwrap();
    assert_eq!(once, twice);
    assert!(once.iter().all(|p| p.files == 300));
}

#[test]
fn techniques_do_not_cost_requests_when_reading() {
    let ours = plan(500).small_file(Peer::Cffs, 500, 1024).unwrap();
    let plain = plan(500).small_file(Peer::CffsPlain, 500, 1024).unwrap();
    for name in ["read", "read shuffled"] {
        assert!(requests(&ours, name) <= requests(&plain, name), "{name}: {ours:?} {plain:?}");
        assert!(requests(&ours, name) < 50, "a request for every ten files: {ours:?}");
    }
}

#[test]
fn hot_operations_run_on_the_library() {
    let phases = hot(Hot { operations: 100, clients: 1, seed: 1 }).unwrap();
    assert!(phases.iter().all(|p| p.files == 100 && p.seconds > 0.0));
    assert_eq!(phases[2].bytes, 100 * 1024);
}

#[test]
fn a_large_file_moves_all_its_bytes() {
    let phases = plan(1).large_file(Peer::Cffs).unwrap();
    let device = |i: usize| phases[i].device.unwrap();
    assert!(device(0).write_bytes >= 8 << 20);
    assert!(device(1).read_bytes >= 8 << 20);
    assert!(device(2).write_bytes >= 8 << 20);
}
