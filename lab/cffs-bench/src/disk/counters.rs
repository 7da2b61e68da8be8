//! The counters of a device.
//!
//! On a shared machine, times depend on other load; these counts do not. They only grow, and a phase is
//! measured as the difference of two snapshots.

use serde::{Deserialize, Serialize};

use super::Nanos;

/// Totals since the device was created, or the difference of two such totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Read requests that the host sent.
    pub reads: u64,
    /// Write requests that the host sent.
    pub writes: u64,
    /// Flush requests that the host sent.
    pub flushes: u64,
    /// Discard requests that the host sent.
    pub discards: u64,
    pub read_bytes: u64,
    /// Bytes written by the host.
    pub write_bytes: u64,
    /// Time during which the device was busy, including writing its cache to the medium.
    pub busy_ns: u64,
    /// Movements of the arm to another cylinder, except during a transfer.
    pub seeks: u64,
    /// Time spent on those movements.
    pub seek_ns: u64,
    /// Time spent waiting for the platter to rotate to the first sector.
    pub rotation_ns: u64,
    /// Time spent transferring between platter and buffer for a request, head switches included.
    pub transfer_ns: u64,
    /// Reads answered from the drive's buffer or by its read-ahead in progress.
    pub buffer_hits: u64,
    /// Writes from the drive's write cache to the platter.
    pub destages: u64,
}

impl Counters {
    /// Read and write requests together: the figure the papers report.
    pub fn requests(&self) -> u64 {
        self.reads + self.writes
    }

    /// Busy time in seconds.
    pub fn busy_secs(&self) -> f64 {
        Nanos(self.busy_ns).as_secs()
    }

    /// The difference to `earlier`, a snapshot of the same device.
    pub fn since(&self, earlier: &Counters) -> Counters {
        self.each(earlier, |now, before| now - before)
    }

    /// The sum of both.
    pub fn plus(&self, other: &Counters) -> Counters {
        self.each(other, |one, other| one + other)
    }

    fn each(&self, other: &Counters, of: impl Fn(u64, u64) -> u64) -> Counters {
        Counters {
            reads: of(self.reads, other.reads),
            writes: of(self.writes, other.writes),
            flushes: of(self.flushes, other.flushes),
            discards: of(self.discards, other.discards),
            read_bytes: of(self.read_bytes, other.read_bytes),
            write_bytes: of(self.write_bytes, other.write_bytes),
            busy_ns: of(self.busy_ns, other.busy_ns),
            seeks: of(self.seeks, other.seeks),
            seek_ns: of(self.seek_ns, other.seek_ns),
            rotation_ns: of(self.rotation_ns, other.rotation_ns),
            transfer_ns: of(self.transfer_ns, other.transfer_ns),
            buffer_hits: of(self.buffer_hits, other.buffer_hits),
            destages: of(self.destages, other.destages),
        }
    }
}
