//! Regrouping for the users of a volume: on demand, while it is idle (`idle`), and next to callers (`turns`).

mod idle;
#[cfg(test)]
mod tests;
mod turns;

use std::ops::ControlFlow;

pub use self::idle::IdleRegrouping;
pub use self::turns::Turns;
use super::Volume;
use crate::admin::Regrouper;
pub use crate::admin::{RegroupOptions, RegroupProgress, Scattered};
use crate::error::Result;

impl Volume {
    /// Moves scattered files together, or only counts the files that it would move. After each directory and
    /// each moved unit, and before each file that is read to be moved, `watch` gets the progress and can end
    /// it: a unit of which only some files were read stays as it is.
    ///
    /// Large files, which have long runs of their own, stay where they are, and so do files that are being
    /// written, and those with a key other than their directory.
    ///
    /// # Errors
    ///
    /// `EROFS` if the volume refuses changes; `EINVAL` if it was made without grouping of files; `ENOTDIR`
    /// for a tree that begins at a file; those of [changes](super#errors). A damaged file is not an error: it
    /// stays, and is counted. Nor is a lack of room.
    pub fn regroup(
        &self,
        what: Scattered<'_>,
        options: &RegroupOptions,
        watch: &mut dyn FnMut(&RegroupProgress) -> ControlFlow<()>,
    ) -> Result<RegroupProgress> {
        self.regrouper().run(what, options, watch)
    }

    fn regrouper(&self) -> Regrouper<'_> {
        Regrouper::new(&self.names, &self.readahead, &self.writer)
    }
}
