//! Runs of adjacent blocks or fragments, as ranges.
//!
//! Stands on nothing.

use std::ops::Range;

#[cfg(test)]
mod tests;

/// Adds a run to ascending ones. If the gap to the last one is at most `gap`, the last one is extended to
/// include the new one.
pub fn append(runs: &mut Vec<Range<u64>>, run: Range<u64>, gap: u64) {
    debug_assert!(runs.last().is_none_or(|last| last.start <= run.start), "runs ascend");
    match runs.last_mut() {
        Some(last) if run.start <= last.end.saturating_add(gap) => last.end = last.end.max(run.end),
        _ => runs.push(run),
    }
}

/// The runs in ascending order, those with no more than `gap` between them merged.
pub fn merged(mut runs: Vec<Range<u64>>, gap: u64) -> Vec<Range<u64>> {
    runs.sort_unstable_by_key(|run| run.start);
    let mut merged = Vec::new();
    runs.into_iter().for_each(|run| append(&mut merged, run, gap));
    merged
}
