//! Time, injected from outside.
//!
//! The core never asks the system for the time: it asks its [`Clock`], so that a test decides what
//! time it is and runs are reproducible.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// A point in time as the inode has it: seconds since 1970 (negative before) and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Seconds since 1970-01-01 00:00 UTC.
    pub seconds: i64,
    /// Nanoseconds past the second, below 1,000,000,000.
    pub nanoseconds: u32,
}

/// Where the core gets the time from.
pub trait Clock: Send + Sync {
    /// The time now.
    fn now(&self) -> Timestamp;
}

/// The system's real-time clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => {
                Timestamp { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() }
            }
            Err(before) => {
                let before = before.duration();
                let borrow = i64::from(before.subsec_nanos() > 0);
                Timestamp {
                    seconds: -(before.as_secs() as i64) - borrow,
                    nanoseconds: (1_000_000_000 - before.subsec_nanos()) % 1_000_000_000,
                }
            }
        }
    }
}

/// A clock for tests: every look advances it by one microsecond.
#[derive(Debug, Default)]
pub struct TestClock(AtomicU64);

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        let microseconds = self.0.fetch_add(1, Ordering::Relaxed);
        Timestamp {
            seconds: 1_000_000_000 + (microseconds / 1_000_000) as i64,
            nanoseconds: (microseconds % 1_000_000) as u32 * 1000,
        }
    }
}
