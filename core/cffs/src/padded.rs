//! Padding for values that threads on several cores change concurrently: each gets a cache line of its own,
//! since a core that writes to a cache line invalidates it on all other cores.
//!
//! Stands on nothing.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A value that shares its cache line with no other value.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Padded<T>(pub T);

impl<T> Deref for Padded<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Padded<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// The number of parts of a counter. Threads are spread over them, so that few share one.
const PARTS: usize = 16;

thread_local! {
    static PART: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) % PARTS
    };
}

/// A counter that many threads increment and few read. It orders no other memory access.
#[derive(Debug, Default)]
pub struct Counter([Padded<AtomicU64>; PARTS]);

impl Counter {
    /// Counts one more.
    #[inline]
    pub fn count(&self) {
        self.0[PART.with(|part| *part)].fetch_add(1, Ordering::Relaxed);
    }

    /// The count.
    pub fn get(&self) -> u64 {
        self.0.iter().map(|part| part.load(Ordering::Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests;
