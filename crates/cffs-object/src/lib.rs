//! Volumes in object stores (decisions/031).
//!
//! Offers [`LogDevice`], a [`BlockDevice`](cffs::device::BlockDevice) whose blocks lie in immutable
//! objects, and [`Location`], which makes of a URL the store and the prefix at which a volume lies.
//! The engine is the store, reached through the crate `object_store`. Ours are the log and the map.
//!
//! | module | offers |
//! | --- | --- |
//! | `location` | URLs, and the clients that belong to them |
//! | `store` | requests that wait, and what failed of them in words |
//! | `extents` | a map from ranges of the device to where their bytes lie |
//! | `format` | one codec per object |
//! | `history` | what a log says: found from the hint on, checked slot by slot |
//! | `commit` | a record in its slot, whatever becomes of the answers |
//! | `device` | reading, writing, and what is not committed yet |
//!
//! Invariants:
//!
//! - What lies between two syncs is committed by one conditional PUT, so all of it or none is there.
//! - A slot of the log is created once. A writer that finds another's record in its slot writes no more.
//! - Objects other than the hint never change, so nothing that is read of them grows old.

mod commit;
mod device;
mod error;
mod extents;
mod format;
mod history;
mod location;
mod store;

#[cfg(test)]
mod tests;

pub use device::{LogDevice, OpenOptions};
pub use error::Error;
pub use location::Location;
pub use store::Requests;
