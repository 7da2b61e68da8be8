//! The POSIX facade: what every front end calls.

pub mod types;
