use cffs::vfs::RegroupProgress;
use cffs_serve::served::control::{RegroupStatus, Stage};

use super::summary;

#[test]
fn a_regrouping_is_reported_in_meaningful_numbers() {
    let with = |stage, progress| RegroupStatus::new(stage, &progress);
    let moved = RegroupProgress {
        files: 300,
        moved_files: 1,
        moved_bytes: 4096,
        accesses_before: 5,
        accesses_after: 1,
        ..RegroupProgress::default()
    };
    let line =
        "300 files examined, 1 file (4 KiB) moved; reading these takes 1 access instead of 5";
    assert_eq!(summary(&with(Stage::Done, moved.clone()), false), line);
    let dry = summary(&with(Stage::Done, moved), true);
    assert!(dry.contains("1 file (4 KiB) to be moved;"), "{dry}");

    let again = RegroupProgress { files: 300, ..RegroupProgress::default() };
    let gain = "300 files examined, nothing to gain: no move would halve the cost of reading";
    assert_eq!(summary(&with(Stage::Done, again.clone()), false), gain);
    // Without a complete run, or if files could not be moved, the possible gain is unknown.
    let none = "300 files examined, none moved";
    assert_eq!(summary(&with(Stage::Stopped, again.clone()), false), none);
    let full = RegroupProgress { without_room: 2, ..again.clone() };
    assert_eq!(summary(&with(Stage::Done, full), false), none);
    let damaged = RegroupProgress { damaged: 1, ..again };
    assert_eq!(summary(&with(Stage::Done, damaged), false), none);
}
