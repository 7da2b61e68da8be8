//! Devices: the storage of a volume's bytes, and decorators over it, most of them for tests.
//!
//! Offers [`BlockDevice`], through which everything above reads and writes, with its [`Hints`], [`Control`]
//! and [`Journal`]; implementations over an image file or raw block device ([`FileDevice`]) and over memory
//! ([`MemoryDevice`]); and decorators that are devices themselves, so that they stack:
//!
//! | decorator | what it adds |
//! | --- | --- |
//! | [`TraceDevice`] | counts of requests and bytes, and on demand a record of every request |
//! | [`FaultDevice`] | errors, torn, lost and damaged requests, by script or by seed |
//! | [`HoldDevice`] | requests of one kind that wait until they are released |
//! | [`VolatileDevice`] | a write cache, and the images that a crash may leave of it |
//! | [`CrashingDevice`] | such images kept at each barrier and sync |
//! | [`PairedDevice`] | another device, which has the journal of its volume |
//!
//! Stands on nothing of C-FFS. Invariants:
//!
//! - A request succeeds whole or fails; short transfers end here.
//! - A request that leaves the device is an error ([`io::ErrorKind::InvalidInput`]) and touches
//!   nothing.
//! - Requests that run at the same time and overlap have no order. A write that returned is seen by
//!   every later read, durable or not.
//! - After a failed [`barrier`](BlockDevice::barrier) or [`sync`](BlockDevice::sync) nothing is
//!   known about the writes before it, and a later success does not cover them: Linux reports a
//!   lost write once. A caller that needs those writes must stop.
//! - An error's kind tells whether the device failed or did not answer ([`Failure`]).

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::{ClockId, clock_gettime};

mod buffer;
pub mod crashing;
mod durations;
mod failure;
pub mod fault;
pub mod file;
pub mod hold;
mod journal_stats;
pub mod memory;
mod paired;
mod seed;
pub mod trace;
pub mod volatile;

#[cfg(test)]
mod tests;

pub use buffer::LongBuffer;
pub use crashing::CrashingDevice;
pub use durations::Durations;
pub use failure::{Failure, Patient};
pub use fault::FaultDevice;
pub use file::{Access, FileDevice, OpenError, OpenOptions};
pub use hold::HoldDevice;
pub use journal_stats::{JournalState, JournalStats};
pub use memory::{Image, MemoryDevice};
pub use paired::PairedDevice;
pub use trace::{Counts, TraceDevice, TraceEvent};
pub use volatile::VolatileDevice;

/// The geometry of a device: its size, and the unit that it writes atomically.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// The size in bytes.
    pub size_bytes: u64,
    /// The unit that is written atomically: after a crash it has its old or its new contents. In bytes.
    pub sector_bytes: u32,
}

impl Geometry {
    /// Fails unless the device has the `len_bytes` bytes from `offset_bytes` on.
    pub fn check(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
        match offset_bytes.checked_add(len_bytes) {
            Some(end) if end <= self.size_bytes => Ok(()),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "request for {len_bytes} bytes at {offset_bytes} leaves the device ({} bytes)",
                    self.size_bytes
                ),
            )),
        }
    }
}

/// Storage that is addressed by byte offsets and written in sectors.
///
/// Offsets and lengths are arbitrary, but only whole sectors are written atomically.
pub trait BlockDevice: Send + Sync {
    /// The device that this one decorates, if any. The methods with defaults pass on to that device, except
    /// [`journal`](BlockDevice::journal).
    fn below(&self) -> Option<&dyn BlockDevice> {
        None
    }

    /// The device's size and sector.
    fn geometry(&self) -> Geometry;

    /// Fills `buf` from `offset` on.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Writes `bufs`, one after the other, from `offset` on as one request.
    ///
    /// On an error any part of the request may have been written.
    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()>;

    /// Orders every write that returned before the call before every write that is made after it
    /// returns: if one of the latter survives a crash, then all of the former do.
    fn barrier(&self) -> io::Result<()>;

    /// Makes every write that returned before the call durable.
    fn sync(&self) -> io::Result<()>;

    /// Declares these bytes unneeded: until they are written again, reads of them are undefined. A device may
    /// ignore this.
    fn discard(&self, offset: u64, len: u64) -> io::Result<()>;

    /// The preferences of the device.
    fn hints(&self) -> Hints {
        self.below().map_or_else(Hints::default, BlockDevice::hints)
    }

    /// The additional abilities of the lowest device.
    fn control(&self) -> &dyn Control {
        self.below().map_or(&NoControl, BlockDevice::control)
    }

    /// The journal over this device, if it has one. It is not that of a device below, since a journal must
    /// see all writes.
    fn journal(&self) -> Option<&dyn Journal> {
        None
    }

    /// The device that has the journal of the volume on this one, if that is another.
    fn journal_device(&self) -> Option<Arc<dyn BlockDevice>> {
        self.below()?.journal_device()
    }

    /// A number that was never used before, not even for a copy of this device.
    fn nonce(&self) -> u64 {
        self.below().map_or_else(random, BlockDevice::nonce)
    }

    /// The time since some moment, by the clock that times the device's requests: a disk in virtual time
    /// has its own.
    fn elapsed(&self) -> Duration {
        self.below().map_or_else(monotonic_time, BlockDevice::elapsed)
    }
}

/// The preferences of a device. A user that ignores them is slower, or wastes space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hints {
    /// The longest request in bytes that the device takes, if there is such a limit.
    pub request_bytes_max: Option<u64>,
    /// The number of concurrent reads that the device answers about as quickly as one; 1 for a disk, and if
    /// unknown.
    pub parallel: u32,
    /// Unused space has a cost, so the user should discard freed space.
    pub wants_discards: bool,
    /// The programs that cannot have the device open for writing at the same time, by any path, or whose
    /// changes this device does not show.
    pub excludes: Excluded,
}

/// Other programs that a device excludes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Excluded {
    /// No program is certainly excluded.
    None,
    /// All other programs of this host.
    OfHost,
    /// All other programs, also those of other hosts.
    All,
}

impl Default for Hints {
    fn default() -> Hints {
        Hints {
            request_bytes_max: None,
            parallel: 1,
            wants_discards: false,
            excludes: Excluded::OfHost,
        }
    }
}

/// Abilities of some devices besides reading and writing. The defaults do nothing.
pub trait Control: Send + Sync {
    /// Makes an image file this long; of another device, looks up its current length.
    /// [`geometry`](BlockDevice::geometry) shows the outcome. A device never becomes shorter.
    fn grow(&self, size_bytes: u64) -> io::Result<()> {
        let _ = size_bytes;
        Ok(())
    }

    /// Announces that the user controls read-ahead, so that the host need not guess.
    fn expect_chosen_reads(&self) {}

    /// Drops this host's cached contents of the range, which another host may have written.
    fn drop_cached(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }

    /// Reports that the bytes of the device at this place contradict the format, and how.
    ///
    /// # Errors
    ///
    /// The bytes come from an object of a store, which can be restored: they are not lost.
    fn contradicted(&self, offset: u64, len: u64, what: &str) -> io::Result<()> {
        let _ = (offset, len, what);
        Ok(())
    }

    /// Releases exclusive access, as the user's last call: later writes may fail. Synced data stays.
    fn give_back(&self) -> io::Result<()> {
        Ok(())
    }

    /// Checks that the next program could open the device in place of this one.
    ///
    /// # Errors
    ///
    /// The reason why it could not, in words.
    fn check_handover(&self) -> Result<(), String> {
        Ok(())
    }

    /// Keeps exclusive access for the program that replaces this one. This is the volume's last call to its
    /// device: later writes may fail.
    fn hand_over(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A device that can only be read and written.
struct NoControl;

impl Control for NoControl {}

/// A device that makes blocks durable atomically: one with a journal over it.
pub trait Journal {
    /// The bytes that [`commit`](Journal::commit) takes at once.
    fn commit_bytes_max(&self) -> u64;

    /// Writes whole blocks at any offsets and makes them durable: after a crash all or none of them exist,
    /// and if they do, so do all earlier writes. Returns false without writing if that is impossible.
    fn commit(&self, blocks: &[(u64, &[u8])]) -> io::Result<bool>;

    /// Writes the contents of the journal to their places; later writes bypass it.
    fn stop(&self) -> io::Result<()>;

    /// The work of the journal so far.
    fn stats(&self) -> JournalStats;
}

/// A random number of the host's.
fn random() -> u64 {
    let mut bytes = [0; 8];
    match getrandom(&mut bytes[..], GetRandomFlags::empty()) {
        Ok(_) => u64::from_ne_bytes(bytes),
        Err(_) => monotonic_time().as_nanos() as u64,
    }
}

fn monotonic_time() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

macro_rules! forward {
    ($pointer:ty) => {
        impl<D: BlockDevice + ?Sized> BlockDevice for $pointer {
            fn below(&self) -> Option<&dyn BlockDevice> {
                (**self).below()
            }
            fn geometry(&self) -> Geometry {
                (**self).geometry()
            }
            fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
                (**self).read_at(offset, buf)
            }
            fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
                (**self).write_at(offset, bufs)
            }
            fn barrier(&self) -> io::Result<()> {
                (**self).barrier()
            }
            fn sync(&self) -> io::Result<()> {
                (**self).sync()
            }
            fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
                (**self).discard(offset, len)
            }
            fn hints(&self) -> Hints {
                (**self).hints()
            }
            fn control(&self) -> &dyn Control {
                (**self).control()
            }
            fn journal(&self) -> Option<&dyn Journal> {
                (**self).journal()
            }
            fn journal_device(&self) -> Option<Arc<dyn BlockDevice>> {
                (**self).journal_device()
            }
            fn nonce(&self) -> u64 {
                (**self).nonce()
            }
            fn elapsed(&self) -> Duration {
                (**self).elapsed()
            }
        }
    };
}

forward!(&D);
forward!(Arc<D>);
forward!(Box<D>);

/// The kinds of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// [`BlockDevice::read_at`]
    Read,
    /// [`BlockDevice::write_at`]
    Write,
    /// [`BlockDevice::barrier`]
    Barrier,
    /// [`BlockDevice::sync`]
    Sync,
    /// [`BlockDevice::discard`]
    Discard,
}

/// A request without its data, as the decorators' rules and models see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The kind of request.
    pub kind: RequestKind,
    /// The first byte; 0 for barrier and sync.
    pub offset_bytes: u64,
    /// The number of bytes; 0 for barrier and sync.
    pub len_bytes: u64,
}

impl Request {
    fn read(offset_bytes: u64, buf: &[u8]) -> Request {
        Request { kind: RequestKind::Read, offset_bytes, len_bytes: buf.len() as u64 }
    }

    fn write(offset_bytes: u64, bufs: &[IoSlice<'_>]) -> Request {
        Request { kind: RequestKind::Write, offset_bytes, len_bytes: total_len(bufs) }
    }

    fn discard(offset_bytes: u64, len_bytes: u64) -> Request {
        Request { kind: RequestKind::Discard, offset_bytes, len_bytes }
    }

    const BARRIER: Request = Request { kind: RequestKind::Barrier, offset_bytes: 0, len_bytes: 0 };
    const SYNC: Request = Request { kind: RequestKind::Sync, offset_bytes: 0, len_bytes: 0 };

    /// The first byte after the request.
    pub fn end_bytes(&self) -> u64 {
        self.offset_bytes.saturating_add(self.len_bytes)
    }
}

fn total_len(bufs: &[IoSlice<'_>]) -> u64 {
    bufs.iter().map(|buf| buf.len() as u64).sum()
}

/// The buffers of a request as one piece, for the decorators that keep or change data.
fn gather(bufs: &[IoSlice<'_>]) -> Vec<u8> {
    let mut data = Vec::with_capacity(total_len(bufs) as usize);
    for buf in bufs {
        data.extend_from_slice(buf);
    }
    data
}
