//! Programs that are attached to a mounted volume: its server makes their calls, with the rights of the
//! program, and the mount shows the outcome.
//!
//! ```text
//!   Node ──▶ session: one call after the other ──▶ connection: messages, shared memory ──▶ server
//!                                                      └──▶ door: tickets, through the kernel
//! ```

mod answers;
mod connection;
mod door;
mod removal;
mod ring;
mod session;
#[cfg(test)]
mod tests;

pub(super) use connection::Asked;
pub use door::AttachError;
pub use removal::{RemoveRequest, remove};
pub(super) use session::{Remote, Session, Tree};
