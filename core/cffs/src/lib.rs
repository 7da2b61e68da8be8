//! The co-locating fast file system.

mod admin;
mod alloc;
mod cache;
pub mod clock;
pub mod device;
mod epoch;
pub mod error;
pub mod files;
pub mod format;
pub mod fsck;
pub mod host;
mod inode;
pub mod journal;
mod locality;
pub mod lock;
pub mod memory;
pub mod mkfs;
mod namespace;
pub mod open;
mod options;
pub mod padded;
mod printable;
mod processors;
mod readahead;
mod runs;
pub mod trace;
pub mod tuning;
pub mod units;
pub mod vfs;
pub mod waiter;
#[expect(missing_docs, reason = "fields have the names of what they carry")]
pub mod wire;

pub use open::{check_in_use, open};
pub use printable::{counted, printable};
