//! How often one place in the program may write to the log.
//!
//! Callers of a mounted volume can bring about the same message as often as they like, for instance by
//! reading a damaged file. So each place has a few messages for a time; what is beyond is counted, and
//! the count is written with the next message of any place, once the time is over.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Mutex;
use std::time::{Duration, Instant};

#[cfg(test)]
mod tests;

/// How many messages of one place are written in one [`WINDOW`].
const MESSAGES_MAX: u32 = 10;
/// The time for which they are counted.
const WINDOW: Duration = Duration::from_secs(30);

/// Counts of written messages, by place.
pub struct Limit<P>(Mutex<HashMap<P, Window>>);

struct Window {
    began: Instant,
    written: u32,
    left_out: u64,
}

/// Whether a message is written.
#[derive(Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is written, and this many messages before it were left out and not reported yet.
    Written { left_out: u64 },
    /// It is counted.
    LeftOut,
}

impl<P: Eq + Hash> Limit<P> {
    pub fn new() -> Limit<P> {
        Limit(Mutex::new(HashMap::new()))
    }

    /// Decides on a message that a place writes now.
    pub fn admit(&self, place: P, now: Instant) -> Admission {
        // A thread that panicked while it counted has not changed the counts.
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
