//! Measures C-FFS and what people would use instead of it.
//!
//! ```text
//!   disk ──► serve ──► loop device ──► ext4, xfs, btrfs, C-FFS ◄── workload ──► report
//!     └────► virtual_disk ──► C-FFS as a library
//! ```
//!
//! - [`disk`]: the model of a device: pure, with a virtual clock.
#![warn(missing_docs)]

pub mod disk;
