//! Values that threads on several cores change at once, each in a cache line of its own: a core that writes
//! to a line takes it from all others.
//!
//! Stands on nothing.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A value that shares no line of memory with another.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Line<T>(pub T);

impl<T> Deref for Line<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Line<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// Parts of a counter. Threads take turns in them, so that few share one.
const PARTS: usize = 16;

thread_local! {
    static PART: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) % PARTS
    };
}

/// A counter that many threads count with and few look at. It orders nothing.
#[derive(Debug, Default)]
pub struct Counter([Line<AtomicU64>; PARTS]);

impl Counter {
    /// Counts one more.
    #[inline]
    pub fn count(&self) {
        self.0[PART.with(|part| *part)].fetch_add(1, Ordering::Relaxed);
    }

    /// How many were counted.
    pub fn get(&self) -> u64 {
        self.0.iter().map(|part| part.load(Ordering::Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests;
