//! Time, injected from outside.
//!
//! The core asks its [`Clock`] for the time, so that a test decides what time it is and runs are
//! reproducible. By the same clock it decides when an epoch, a checkpoint or a step of regrouping is due,
//! how long an epoch took, and how old a lost change is.
//!
//! Where a thread blocks, time is the system's: limits of waits on condition variables (callers of fsync for
//! each other, writers for the background, the background for work, the threads of the run queue for the
//! device), waits for deletions in progress, for another program to release a device, and for a server.
//! Recordings have the system's time as well.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A point in time as the inode has it: seconds since 1970 (negative before) and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Seconds since 1970-01-01 00:00 UTC.
    pub seconds: i64,
    /// Nanoseconds past the second, below 1,000,000,000.
    pub nanoseconds: u32,
}

/// A date of the Gregorian calendar, in UTC, to the minute: days since 1970 are counted in eras of 400
/// years that begin in March, so that the leap day is the last of its year.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let days = self.seconds.div_euclid(86400) + 719_468;
        let second = self.seconds.rem_euclid(86400);
        let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
        let year_of_era =
            (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        let year = era * 400 + year_of_era + i64::from(month <= 2);
        write!(f, "{year:04}-{month:02}-{day:02} {:02}:{:02}", second / 3600, second / 60 % 60)
    }
}

/// Where the core gets the time from.
pub trait Clock: Send + Sync {
    /// The time now.
    fn now(&self) -> Timestamp;

    /// The reading of a clock that is never set: differences of readings are durations.
    fn monotonic(&self) -> Instant {
        Instant::now()
    }
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

/// A clock for tests: every call advances it by one microsecond.
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

/// A clock for tests, which stands still unless the test moves it.
#[derive(Debug)]
pub struct VirtualClock {
    start: Instant,
    nanoseconds: AtomicU64,
}

impl Default for VirtualClock {
    fn default() -> VirtualClock {
        VirtualClock { start: Instant::now(), nanoseconds: AtomicU64::new(0) }
    }
}

impl VirtualClock {
    /// Lets this much time pass.
    pub fn advance(&self, time: Duration) {
        self.nanoseconds.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    fn passed(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed))
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        let passed = self.passed();
        let seconds = 1_000_000_000 + passed.as_secs() as i64;
        Timestamp { seconds, nanoseconds: passed.subsec_nanos() }
    }

    fn monotonic(&self) -> Instant {
        self.start + self.passed()
    }
}

#[cfg(test)]
mod tests;
