//! A solid-state disk: no arm, many requests at once, a volatile write cache.
//!
//! A read occupies one of the channels for the time that the flash needs, then crosses the link to
//! the host. A write crosses the link into the cache and is acknowledged. A flush waits until the
//! cache is programmed. The link carries reads and writes independently, as PCI Express does.
//! Garbage collection in the drive is not modelled.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Nanos, Request};

/// The figures of a solid-state disk.
#[derive(Clone, Copy, Debug)]
pub struct FlashSpec {
    /// Reads that the flash serves at the same time.
    pub channels: usize,
    /// The time from the command to the first byte of a read.
    pub read_latency: Nanos,
    /// The time from the command to the acknowledgement of a write, without its transfer.
    pub write_latency: Nanos,
    /// The time to program the last page of the cache.
    pub flush_latency: Nanos,
    /// The rate of the link in each direction, and of programming flash.
    pub bytes_per_sec: f64,
}

/// The state of the disk.
#[derive(Clone, Debug)]
pub struct Flash {
    spec: FlashSpec,
    /// When each channel is free.
    channels: BinaryHeap<Reverse<Nanos>>,
    /// When the link to the host is free.
    reads_free: Nanos,
    /// When the link from the host is free.
    writes_free: Nanos,
    /// Whether something was written since the last flush.
    dirty: bool,
    /// When the last flush completes.
    flushed: Nanos,
}

impl Flash {
    /// A disk at rest.
    pub fn new(spec: FlashSpec) -> Flash {
        Flash {
            spec,
            channels: vec![Reverse(Nanos::ZERO); spec.channels].into(),
            reads_free: Nanos::ZERO,
            writes_free: Nanos::ZERO,
            dirty: false,
            flushed: Nanos::ZERO,
        }
    }

    /// Accepts a request at `now`; returns when it completes.
    pub fn admit(&mut self, request: Request, now: Nanos) -> Nanos {
        match request {
            Request::Read(run) => {
                let Reverse(free) = self.channels.pop().expect("a disk has channels");
                let ready = free.max(now) + self.spec.read_latency;
                self.channels.push(Reverse(ready));
                self.reads_free = self.reads_free.max(ready) + self.transfer(run.bytes());
                self.reads_free
            }
            Request::Write(run) => {
                self.writes_free = self.writes_free.max(now) + self.transfer(run.bytes());
                self.dirty = true;
                self.writes_free + self.spec.write_latency
            }
            Request::Flush => {
                if std::mem::take(&mut self.dirty) {
                    self.flushed = self.writes_free.max(now) + self.spec.flush_latency;
                }
                self.flushed.max(now + self.spec.write_latency)
            }
            Request::Discard(_) => now + self.spec.write_latency,
        }
    }

    fn transfer(&self, bytes: u64) -> Nanos {
        Nanos::from_ms(bytes as f64 * 1e3 / self.spec.bytes_per_sec)
    }
}
