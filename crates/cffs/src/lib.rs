//! The co-locating fast file system.

pub mod clock;
pub mod device;
pub mod error;
pub mod format;
pub mod units;
pub mod vfs;
