//! Space that epochs have freed, until it is discarded.

use crate::units::FragRun;

/// The most freed runs that are remembered until they are discarded. The rest is left to the next trim, so
/// that a volume that frees faster than its device discards does not fill memory.
const FREED_RUNS_MAX: usize = 1 << 16;

/// Freed space that has not been discarded yet.
#[derive(Debug, Default)]
pub(crate) struct Freed {
    pub(crate) runs: Vec<FragRun>,
    /// The device failed a discard, so no more are sent.
    pub(crate) has_failed: bool,
}

impl Freed {
    /// Adds the runs that an epoch has freed.
    pub(crate) fn add(&mut self, mut runs: Vec<FragRun>) {
        if self.has_failed {
            return;
        }
        self.runs.append(&mut runs);
        if self.runs.len() > FREED_RUNS_MAX {
            self.merge();
            self.runs.truncate(FREED_RUNS_MAX);
        }
    }

    /// Puts runs that touch into one.
    pub(crate) fn merge(&mut self) {
        self.runs.sort_unstable();
        self.runs.dedup_by(|next, last| {
            let len = next.end().max(last.end()).0 - last.start.0;
            let touches = next.start <= last.end() && len <= u32::MAX.into();
            if touches {
                last.len = len as u32;
            }
            touches
        });
    }
}
