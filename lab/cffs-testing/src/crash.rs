//! The crash explorer, for volumes on any medium: workloads, their promises, and the states that a crash may
//! leave.

pub mod case;
pub mod explorer;
pub mod matrix;
pub mod ops;
pub mod tree;
