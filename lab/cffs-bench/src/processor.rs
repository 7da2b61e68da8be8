//! Processor time, by the kernel's counts in `/proc`.

use std::fmt::Display;
use std::fs;

/// Seconds in user space and in the kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Used {
    /// Of the process, with all its threads.
    pub own: f64,
    /// Of its children that have ended, and of theirs.
    pub children: f64,
}

impl Used {
    /// The processor time of a process so far, by its ID or `self`.
    pub fn by(process: impl Display) -> Option<Used> {
        Used::parse(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
    }

    /// The 14th to the 17th field of a line of `/proc/PID/stat`; the second field is a name in parentheses
    /// that may contain blanks.
    pub(crate) fn parse(stat: &str) -> Option<Used> {
        let after_name = &stat[stat.rfind(')')? + 1..];
        let mut fields = after_name.split_whitespace().skip(11);
        let mut ticks = || fields.next()?.parse::<f64>().ok();
        let mut seconds =
            || Some((ticks()? + ticks()?) / rustix::param::clock_ticks_per_second() as f64);
        Some(Used { own: seconds()?, children: seconds()? })
    }
}
