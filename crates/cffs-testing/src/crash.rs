//! The crash explorer, for any medium that a volume is on: workloads, what they promise, and what a crash may
//! leave of them.

pub mod case;
pub mod explorer;
pub mod matrix;
pub mod ops;
pub mod tree;
