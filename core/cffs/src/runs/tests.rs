//! Runs that touch, overlap, or are apart.

use super::*;

fn merged_of(runs: &[(u64, u64)], gap: u64) -> Vec<(u64, u64)> {
    let runs = runs.iter().map(|(start, end)| *start..*end).collect();
    merged(runs, gap).into_iter().map(|run| (run.start, run.end)).collect()
}

#[test]
fn runs_are_merged_over_gaps_up_to_a_length() {
    let runs = [(20, 30), (0, 10), (33, 40), (5, 8)];
    assert_eq!(merged_of(&runs, 0), [(0, 10), (20, 30), (33, 40)]);
    assert_eq!(merged_of(&runs, 3), [(0, 10), (20, 40)]);
    assert_eq!(merged_of(&runs, u64::MAX), [(0, 40)]);
    // Those that touch are one, whatever the gap.
    assert_eq!(merged_of(&[(4, 6), (6, 7)], 0), [(4, 7)]);
}
