//! Regrouping while the volume is idle: first of files that are read together, if the volume observes that,
//! then of the tree.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::{RegroupOptions, RegroupProgress, Scattered};
use crate::admin::{Regrouper, Walk};
use crate::error::{Error, Result};
use crate::units::InodeNo;
use crate::vfs::Volume;
use crate::vfs::used::Used;

/// Regroups a volume step by step while no caller uses it. A caller waits for one step at most: no
/// step follows one during which a call arrived.
pub struct IdleRegrouping {
    /// The idle time before the first step.
    after: Duration,
    calls: u64,
    /// When the last call was noticed, or the first check; `None` before that.
    since: Option<Instant>,
    /// The count of changes when the whole volume was last examined.
    pub(super) complete_at: Option<u64>,
    /// The count of changes when it began at the root.
    began_at: u64,
    /// The rest of the walk.
    walk: Walk,
    /// The count of pairs of files that were found to be read together, when all of them were last examined.
    found: u64,
}

impl IdleRegrouping {
    /// Waits until no call has arrived for this long.
    pub fn new(after: Duration) -> IdleRegrouping {
        IdleRegrouping {
            after,
            calls: 0,
            since: None,
            complete_at: None,
            began_at: 0,
            walk: Walk::default(),
            found: 0,
        }
    }

    /// Regroups the volume if no call arrived for long enough, and it was changed since all of it was
    /// examined. A thread calls this about once a second. `watch` is called before the first step and after
    /// each, and can end it.
    ///
    /// # Errors
    ///
    /// Those of [`Volume::regroup`].
    pub fn run(
        &mut self,
        volume: &Volume,
        watch: &mut dyn FnMut(&RegroupProgress) -> ControlFlow<()>,
    ) -> Result<Option<RegroupProgress>> {
        let (calls, changes) = volume.calls.so_far();
        let now = volume.inodes().clock.monotonic();
        if calls != self.calls || self.since.is_none() {
            (self.calls, self.since) = (calls, Some(now));
        }
        let found = volume.used.as_ref().map_or(0, Used::found);
        let is_complete = self.complete_at == Some(changes);
        let is_idle = self.since.is_some_and(|since| now - since >= self.after);
        if !is_idle || is_complete && found == self.found {
            return Ok(None);
        }
        if watch(&RegroupProgress::default()).is_break() {
            return Ok(None);
        }
        let mut is_over = false;
        let mut watch = |progress: &RegroupProgress| {
            is_over |= watch(progress).is_break() || volume.calls.so_far().0 != calls;
            if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let options = RegroupOptions::default();
        if found != self.found {
            let done = volume.regroup(Scattered::Used, &options, &mut watch)?;
            if !is_over {
                self.found = found;
            }
            return Ok(Some(done));
        }
        if self.walk.is_over() {
            self.walk = Walk::over(InodeNo::ROOT);
            self.began_at = changes;
        }
        let walk = &mut self.walk;
        let regrouper = Regrouper::new(&volume.readahead, &volume.writer);
        match regrouper.run_trees(walk, &options, &mut watch) {
            Ok(done) => {
                if self.walk.is_over() {
                    self.complete_at = Some(self.began_at);
                }
                Ok(Some(done))
            }
            // The directory to continue with no longer exists, and a file may have its number.
            Err(Error::Stale | Error::NotDirectory) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
