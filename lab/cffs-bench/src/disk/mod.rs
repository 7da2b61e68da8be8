//! The emulated disk: how long a storage device takes for each request.
//!
//! Offers [`Emulator`], a discrete-event model of one device. It holds no data, opens no file and reads no
//! real clock: a caller submits requests at times that it chooses, and gets the completion time of each. Two
//! modules use the model: a real-time server that sleeps until the completion times ([`crate::serve`]), and
//! an in-process device that adds them up ([`crate::virtual_disk`]), which is exact and takes no time.
//!
//! The parts, each of which is tested separately:
//!
//! - [`geometry`]: zones, tracks and skew; where a sector passes under the head, and when;
//! - [`seek`]: the seek curve through the three figures that data sheets give;
//! - [`mechanics`]: arm and platter; positions, then transfers, track by track;
//! - [`buffer`]: the drive's own read-ahead, in segments;
//! - [`write_cache`]: the drive's volatile write cache, which a flush empties;
//! - [`quota`]: volumes on a network, limited by requests and bytes per second;
//! - [`flash`]: a solid-state disk, which serves many requests at once;
//! - [`drive`]: a disk's queue (shortest positioning time first), which ties these together;
//! - [`emulator`]: time, completions and busy time around any of the models;
//! - [`profile`]: the devices we measure on, with the source of every figure.
//!
//! Invariants: time never runs backwards; a request completes exactly once; a completion depends only on
//! requests that were submitted before it; the same requests at the same times always have the same
//! completions.

pub mod buffer;
pub mod completion;
pub mod counters;
pub mod drive;
pub mod emulator;
pub mod flash;
pub mod geometry;
pub mod mechanics;
pub mod profile;
pub mod quota;
pub mod seek;
pub mod write_cache;

#[cfg(test)]
mod tests;

use std::ops::{Add, AddAssign, Sub};

pub use completion::{Completion, RequestId};
pub use counters::Counters;
pub use emulator::Emulator;
pub use profile::{Profile, Stroke};

/// Bytes in one sector, the unit in which the model addresses the disk.
pub const SECTOR_SIZE: u64 = 512;

/// A point in device time, or a span of it, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The start of device time, and the empty span.
    pub const ZERO: Nanos = Nanos(0);

    /// A span from milliseconds, the unit of data sheets.
    pub fn from_ms(ms: f64) -> Nanos {
        Nanos((ms * 1e6).round() as u64)
    }

    /// The span in milliseconds.
    pub fn as_ms(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// The span in seconds.
    pub fn as_secs(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The span since `earlier`, or zero if `earlier` is in the future.
    pub fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Nanos {
    type Output = Nanos;
    fn add(self, span: Nanos) -> Nanos {
        Nanos(self.0 + span.0)
    }
}

impl AddAssign for Nanos {
    fn add_assign(&mut self, span: Nanos) {
        self.0 += span.0;
    }
}

impl Sub for Nanos {
    type Output = Nanos;
    fn sub(self, span: Nanos) -> Nanos {
        Nanos(self.0 - span.0)
    }
}

/// The address of a sector, counted from the start of the volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sector(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub first: Sector,
    pub sectors: u64,
}

impl Run {
    /// The smallest run of whole sectors that holds the bytes `offset .. offset + len`.
    pub fn of_bytes(offset: u64, len: u64) -> Run {
        let first = offset / SECTOR_SIZE;
        let end = (offset + len).div_ceil(SECTOR_SIZE);
        Run { first: Sector(first), sectors: end - first }
    }

    /// The sector after the last one.
    pub fn end(self) -> Sector {
        Sector(self.first.0 + self.sectors)
    }

    pub fn bytes(self) -> u64 {
        self.sectors * SECTOR_SIZE
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    Read(Run),
    Write(Run),
    /// Make every write that has completed durable.
    Flush,
    /// Discard a run. Costs a command and no movement.
    Discard(Run),
}
