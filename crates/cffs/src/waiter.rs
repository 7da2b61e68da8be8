//! Waiting, as seen by the front end whose threads do it.
//!
//! Stands on nothing.

use std::fmt::Debug;

/// Learns when a thread is about to wait, so that another can take its place meanwhile. Injected like
/// the clock: the core knows no front end.
pub trait Waiter: Debug + Send + Sync {
    /// The calling thread is about to wait: for the device, or until another thread was answered by it.
    fn about_to_wait(&self);
}

/// Lets every thread wait in its place.
#[derive(Clone, Copy, Debug, Default)]
pub struct InPlace;

impl Waiter for InPlace {
    fn about_to_wait(&self) {}
}
