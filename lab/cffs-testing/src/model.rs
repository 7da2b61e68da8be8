//! Random operations on a volume and on plain maps, whose results must be equal.

pub mod operations;
pub mod reference;
pub mod runner;
pub mod setups;
pub mod sparse;
