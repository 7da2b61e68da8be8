//! The administration of a volume in use: trim, grow, tune, scrub, and where a file lies.
//!
//! Each job is a struct over the inodes and the [`EpochWriter`](crate::epoch::EpochWriter), and runs next to
//! the callers of the volume. Stands on `epoch`, `mkfs` and what is below; `vfs` offers the jobs as functions
//! of `Volume`.

mod explain;
mod grow;
mod scrub;
mod trim;
mod tune;

pub(crate) use explain::Explain;
pub use explain::{Piece, Placement};
pub(crate) use grow::Grow;
pub(crate) use scrub::Scrub;
pub use scrub::ScrubProgress;
pub(crate) use trim::Trim;
pub use tune::SetVolume;
