//! Detects a panic during one call.
//!
//! A panic may leave the volume half changed in memory. The session then fails all requests; the guard stops
//! writes to the volume and answers of the companion server.

use std::ops::Deref;
use std::thread;

use super::closing::Closing;

/// The volume during one call.
pub(super) struct PanicGuard<'a, T> {
    inner: T,
    closing: &'a Closing,
}

impl<'a, T> PanicGuard<'a, T> {
    pub fn new(inner: T, closing: &'a Closing) -> PanicGuard<'a, T> {
        PanicGuard { inner, closing }
    }
}

impl<T> Deref for PanicGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> Drop for PanicGuard<'_, T> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.closing.broken();
        }
    }
}
