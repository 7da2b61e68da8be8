//! The co-locating fast file system.

pub mod admin;
pub mod alloc;
pub mod cache;
pub mod clock;
pub mod device;
pub mod epoch;
pub mod error;
pub mod files;
pub mod format;
pub mod fsck;
pub mod host;
pub mod inode;
pub mod journal;
mod locality;
pub mod lock;
pub mod memory;
pub mod mkfs;
pub mod namespace;
pub mod open;
pub mod options;
pub mod padded;
mod readahead;
mod runs;
pub mod trace;
pub mod tuning;
pub mod units;
pub mod vfs;
pub mod waiter;

pub use open::{check_in_use, open};
