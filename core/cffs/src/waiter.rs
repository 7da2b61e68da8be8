//! Waiting, as reported to the front end whose threads wait.
//!
//! Stands on nothing.

use std::fmt::Debug;

/// Is told when a thread is about to wait, so that another can take its place meanwhile. Injected like the
/// clock, since the core does not know front ends.
pub trait Waiter: Debug + Send + Sync {
    /// The calling thread is about to wait: for the device, or for another thread's request to it.
    fn about_to_wait(&self);
}

/// Lets every thread wait in its place.
#[derive(Clone, Copy, Debug, Default)]
pub struct InPlace;

impl Waiter for InPlace {
    fn about_to_wait(&self) {}
}
