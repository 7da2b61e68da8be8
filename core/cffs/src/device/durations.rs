//! Percentiles of many durations in little memory.

use std::time::Duration;

#[cfg(test)]
mod tests;

/// Ranges per power of two of microseconds; with four, a figure is at most a quarter too high.
const RANGES_PER_OCTAVE: u32 = 4;
/// The last range has all longer durations, above an hour.
const RANGES: usize = 128;

/// Counts durations by ranges, so that their percentiles can be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Durations {
    counts: [u32; RANGES],
}

impl Default for Durations {
    fn default() -> Durations {
        Durations { counts: [0; RANGES] }
    }
}

impl Durations {
    /// Counts one.
    pub fn add(&mut self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let count = &mut self.counts[range_of(micros)];
        *count = count.saturating_add(1);
    }

    /// The given percentile of the durations, rounded up by at most a quarter; `None` without durations.
    pub fn percentile(&self, percent: u64) -> Option<Duration> {
        let all: u64 = self.counts.iter().copied().map(u64::from).sum();
        let rank = (all * percent).div_ceil(100).max(1);
        let sums = self.counts.iter().scan(0, |sum, count| {
            *sum += u64::from(*count);
            Some(*sum)
        });
        let range = sums.take(RANGES).position(|sum| sum >= rank)?;
        Some(Duration::from_micros(last_of(range)))
    }
}

const _: () = assert!(RANGES_PER_OCTAVE == 4, "a range is found by two bits");

/// The range that has a duration: of its two highest bits after the first.
fn range_of(micros: u64) -> usize {
    if micros < u64::from(RANGES_PER_OCTAVE) {
        return micros as usize;
    }
    let octave = micros.ilog2();
    let part = (micros >> (octave - 2)) as u32 & (RANGES_PER_OCTAVE - 1);
    (((octave - 1) * RANGES_PER_OCTAVE + part) as usize).min(RANGES - 1)
}

/// The longest duration of a range.
fn last_of(range: usize) -> u64 {
    let (octave, part) = (range as u32 / RANGES_PER_OCTAVE, range as u64 % 4);
    if octave == 0 {
        return part;
    }
    ((4 + part + 1) << (octave - 1)) - 1
}
