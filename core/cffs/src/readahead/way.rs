//! How far apart the files of a plan may be.
//!
//! By default the files of a directory are stored together, and an unneeded plan costs some bytes. Files that
//! a hint, a policy or a trace brought together are next to files of other directories. There a plan of the
//! next files in the directory costs a seek for each, and a random reader, or one in the order of the trace,
//! would need none of them (decision 006).

use std::ops::Range;

use super::survey::Survey;

/// The blocks that may be between the files of a plan; an access elsewhere counts as the longest gap that is
/// read. It is a segment for a random reader, and doubles with each plan of a sequential one, so a wrong
/// guess costs about as much as the reads before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way(u64);

impl Way {
    /// That of a reader at random.
    pub(super) fn at_random(survey: &Survey<'_>) -> Way {
        Way(survey.inodes.layout.segment_blocks().into())
    }

    /// The length of the next plan, if this one was useful: at least one access, at most the room in the
    /// cache. Longer plans would evict blocks before their use.
    pub(super) fn twice(self, survey: &Survey<'_>) -> Way {
        let block_bytes = u64::from(survey.inodes.layout.block_bytes);
        let room = survey.inodes.cache.tuning().plan_room() / block_bytes;
        let least = survey.gap_blocks().min(room);
        Way(self.0.saturating_mul(2).clamp(least, room))
    }

    /// Reduces runs to the first one and its nearest neighbours, in device order.
    pub(super) fn limit(self, survey: &Survey<'_>, runs: &mut Vec<Range<u64>>) {
        let Some(wanted) = runs.first().map(|run| run.start) else { return };
        runs.sort_unstable_by_key(|run| run.start);
        let gap = |before: &Range<u64>, after: &Range<u64>| {
            after.start.saturating_sub(before.end).min(survey.gap_blocks())
        };
        let mut first = runs.partition_point(|run| run.start < wanted);
        let (mut end, mut way) = (first + 1, 0);
        loop {
            let before = first.checked_sub(1).map(|at| gap(&runs[at], &runs[first]));
            let after = runs.get(end).map(|run| gap(&runs[end - 1], run));
            match before.into_iter().chain(after).min() {
                Some(gap) if way + gap <= self.0 => {
                    way += gap;
                    if before == Some(gap) { first -= 1 } else { end += 1 }
                }
                _ => break,
            }
        }
        runs.truncate(end);
        runs.drain(..first);
    }
}
