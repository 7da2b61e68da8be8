//! What a call has of the volume while it runs.
//!
//! A call that panics may leave the volume half changed in memory. The session fails all requests from then
//! on; this has the volume write nothing more, and the front end beside the mount answer nothing more.

use std::ops::Deref;
use std::thread;

use super::closing::Closing;

/// The volume, or the volume as a user has it, for one call.
pub(super) struct Guarded<'a, T> {
    inner: T,
    closing: &'a Closing,
}

impl<'a, T> Guarded<'a, T> {
    pub fn new(inner: T, closing: &'a Closing) -> Guarded<'a, T> {
        Guarded { inner, closing }
    }
}

impl<T> Deref for Guarded<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> Drop for Guarded<'_, T> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.closing.broken();
        }
    }
}
