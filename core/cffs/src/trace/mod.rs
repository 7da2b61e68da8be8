//! Which operation caused which request of the device.
//!
//! An *operation* is one call of the facade, from its first to its last line. [`Recorder::enter`] begins
//! one, in the context of its thread; from there its number goes where its work goes:
//!
//! ```text
//!   thread ──────────────▶ a read on it                         ▶ the request
//!      │  └ run queue ───▶ a read ahead, on another thread      ▶ the request
//!      └──▶ changed page ─▶ block of an epoch ─┬───────────────▶ the write, an epoch later
//!           changed inode ─▶ its sector's page │
//!                                              └▶ record of the journal ▶ its block, drained later
//! ```
//!
//! Pages and inodes keep the operations that changed them as [`Causes`]; a set of writes keeps those of
//! its blocks ([`write_for`]). [`RecordedDevice`] is the last device of ours above the real one: there
//! each request gets its shares ([`Share`]), which add up to [`WHOLE`], and goes to the [`Recorder`].
//! Requests that no operation caused (a superblock, a bitmap, a flush at the end of an epoch) belong to the
//! operation on whose thread they are made.
//!
//! `record` writes each as an event of the Trace Event Format, which other programs show and sum up.
//!
//! Stands on `device`. Invariants: without a recording, an operation checks one word, and a page has an empty
//! list; a recording changes no request.

mod causes;
mod context;
mod device;
mod op;
mod record;
mod recorder;
#[cfg(test)]
mod tests;

pub use causes::Causes;
pub(crate) use context::process;
pub use context::{Scope, as_record, cause, hide, read_ahead_for, set_process, write_for};
pub use device::RecordedDevice;
pub use op::{OpId, OpKind, Share, WHOLE, Way};
pub use recorder::{Detail, Operation, Recorder};
