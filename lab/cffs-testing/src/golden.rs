//! Sample volumes: making them, listing them, and damaging them.

pub mod damage;
pub mod listing;
pub mod sample;
