//! Test code that several crates use: the crash explorer, the model of the core, sample volumes, and
//! repeatable random numbers.
//!
//! It uses only the public interface of the core. The tests themselves are in the crates that they test.

// No program outside the workspace uses this crate, so a comment only says what a name does not.
#![allow(missing_docs)]

pub mod crash;
pub mod golden;
pub mod model;
pub mod quota;
pub mod random;
pub mod setup;
