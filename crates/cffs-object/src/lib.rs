//! Volumes in object stores (decision 012).
//!
//! Offers [`LogDevice`], a [`BlockDevice`](cffs::device::BlockDevice) whose blocks are in immutable objects,
//! and [`Location`], which turns a URL into a store and the prefix of a volume. Stores are accessed through
//! the crate `object_store`; the log and the map are implemented here.
//!
//! | module | offers |
//! | --- | --- |
//! | `location` | URLs, and the clients that belong to them |
//! | `profile` | credentials as Amazon's own tools keep them |
//! | `keys` | credentials that change while a volume is open |
//! | `answer` | what a store answered in words, and what to do about it |
//! | `requests` | counting requests, where they are charged for |
//! | `store` | requests that wait, and what failed of them in words |
//! | `extents` | a map from ranges of the device to where their bytes lie |
//! | `format` | one codec per object |
//! | `history` | what a log says: found from the hint on, checked slot by slot |
//! | `commit` | a record in its slot, whatever becomes of the answers |
//! | `cache` | chunks of objects on a local disk |
//! | `chunks` | reading objects, of which some are kept in memory |
//! | `staging` | records that wait on a local disk |
//! | `upload` | a thread that sends these, in order |
//! | `local` | directories with contents of files |
//! | `state` | what is in the store, under way, or in memory alone |
//! | `collect` | finds dead objects, and ranges to compact |
//! | `writer` | claiming, committing, collecting |
//! | `device` | all of it as a device |
//! | `follow` | the device as another program goes on to write it |
//! | `versions` | versions that are kept, and clones of them |
//!
//! Invariants:
//!
//! - The writes between two syncs are committed by one conditional PUT, so all or none of them are in the
//!   volume.
//! - A slot of the log is created once. A writer that finds another's record in its slot writes no more.
//! - Objects other than the hint never change, so their cached contents never become stale.

mod answer;
mod cache;
mod chunks;
mod collect;
mod commit;
mod device;
mod error;
mod extents;
mod follow;
mod format;
mod history;
mod keys;
mod local;
mod location;
mod profile;
mod requests;
mod staging;
mod state;
mod store;
mod upload;
pub mod versions;
mod writer;

#[cfg(test)]
mod tests;

pub use cache::DiskCache;
pub use collect::{Collection, Swept};
pub use device::{COMMAND_PATIENCE, LogDevice};
pub use error::Error;
pub use follow::Follower;
pub use location::Location;
pub use requests::{Counter, Requests};
pub use staging::{Backlog, Staging};
pub use writer::OpenOptions;
