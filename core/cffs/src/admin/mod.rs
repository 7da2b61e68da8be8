//! The administration of a volume in use: trim, grow, tune, scrub, regroup, and the places of a
//! file.
//!
//! Each job is a struct over the inodes and the [`EpochWriter`](crate::epoch::EpochWriter), and runs
//! concurrently with the callers of the volume. Stands on `epoch`, `mkfs` and the layers below; `vfs` offers
//! the jobs as functions of `Volume`.

mod changes;
mod compaction;
mod explain;
mod grow;
mod regroup;
mod scrub;
mod trim;
mod tune;

pub(crate) use changes::Changes;
pub use changes::{CHANGED_PATH_BYTES_MAX, Change};
pub(crate) use explain::Explain;
pub use explain::{ClusterPlace, Piece, Placement};
pub(crate) use grow::Grow;
pub(crate) use regroup::{Pending, Regrouper, Walk};
pub use regroup::{RegroupOptions, RegroupProgress, Scattered};
pub(crate) use scrub::Scrub;
pub use scrub::ScrubProgress;
pub(crate) use trim::Trim;
pub use tune::SetVolume;
