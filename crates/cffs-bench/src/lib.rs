//! Measures C-FFS and what people would use instead of it.
//!
//! ```text
//!   disk ──► serve ──► loop device ──► ext4, xfs, btrfs, C-FFS ◄── workload ──► report
//!     └────► virtual_disk ──► C-FFS as a library
//! ```
//!
//! - [`disk`]: the model of a device: pure, with a virtual clock;
//! - [`serve`]: the model in real time;
//! - [`workload`]: what is done to a file system while it is measured.

pub mod disk;
pub mod serve;
pub mod workload;
