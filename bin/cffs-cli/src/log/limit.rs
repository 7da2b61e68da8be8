//! Limits how often one place in the program writes to the log.
//!
//! Users of a mounted volume can cause the same message as often as they like, for instance by reading a
//! damaged file. So each place may write a few messages per period; further ones are counted, and the count
//! is written with the next message of any place after the period.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Mutex;
use std::time::{Duration, Instant};

#[cfg(test)]
mod tests;

/// The most messages of one place within a [`WINDOW`].
const MESSAGES_MAX: u32 = 10;
/// The length of a period.
const WINDOW: Duration = Duration::from_secs(30);

/// The number of written messages, by place.
pub struct Limit<P>(Mutex<HashMap<P, Window>>);

struct Window {
    began: Instant,
    written: u32,
    left_out: u64,
}

/// Whether to write a message.
#[derive(Debug, PartialEq, Eq)]
pub enum Admission {
    /// Write it; this many earlier messages were omitted and have not been reported yet.
    Written { left_out: u64 },
    /// Omit and count it.
    LeftOut,
}

impl<P: Eq + Hash> Limit<P> {
    pub fn new() -> Limit<P> {
        Limit(Mutex::new(HashMap::new()))
    }

    /// Decides about a message from a place.
    pub fn admit(&self, place: P, now: Instant) -> Admission {
        // A thread that panicked here did not change the counts.
        let mut windows = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let is_over = |window: &Window| now.duration_since(window.began) >= WINDOW;
        let own = windows.entry(place).or_insert_with(|| Window::new(now));
        if own.written >= MESSAGES_MAX && !is_over(own) {
            own.left_out += 1;
            return Admission::LeftOut;
        }
        own.written += 1;
        let mut left_out = 0;
        for window in windows.values_mut().filter(|window| is_over(window)) {
            left_out += window.left_out;
            *window = Window { written: 1, ..Window::new(now) };
        }
        Admission::Written { left_out }
    }
}

impl Window {
    fn new(began: Instant) -> Window {
        Window { began, written: 0, left_out: 0 }
    }
}
