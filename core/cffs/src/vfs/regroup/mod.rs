//! Regrouping for the users of a volume: on demand, while it is idle (`idle`), and next to callers (`turns`).

mod idle;
#[cfg(test)]
mod tests;
mod turns;

pub use self::idle::IdleRegrouping;
pub use self::turns::Turns;
pub use crate::admin::{RegroupOptions, RegroupProgress, Scattered};
