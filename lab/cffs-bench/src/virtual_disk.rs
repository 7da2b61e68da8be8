//! The emulated disk inside the process: a [`BlockDevice`] with a virtual clock.
//!
//! It decorates another device, which keeps the data, and adds up the time that each request would have
//! taken. No thread waits, and the same run always takes the same virtual time to the nanosecond. Only the
//! device is measured: the processor takes no virtual time.
//!
//! Requests are served one at a time, each submitted when the previous one has completed, as by a single
//! thread without a queue.

use std::io::{self, IoSlice};
use std::time::Duration;

use cffs::device::{BlockDevice, Geometry};
use parking_lot::Mutex;

use crate::disk::{Counters, Emulator, Nanos, Profile, Request, Run, Stroke};

#[cfg(test)]
mod tests;

/// A device that keeps virtual time.
pub struct VirtualDisk<D> {
    inner: D,
    profile: Profile,
    stroke: Stroke,
    state: Mutex<State>,
}

struct State {
    emulator: Emulator,
    now: Nanos,
    /// The counters before the last power cycle.
    before: Counters,
    /// The reads since the recording began.
    reads: Option<Vec<Run>>,
}

impl<D: BlockDevice> VirtualDisk<D> {
    /// Adds the time of a disk of this profile to `inner`.
    pub fn new(inner: D, profile: Profile, stroke: Stroke) -> VirtualDisk<D> {
        let emulator = Emulator::new(profile, inner.geometry().size_bytes, stroke);
        let (now, before) = (Nanos::ZERO, Counters::default());
        let state = State { emulator, now, before, reads: None };
        VirtualDisk { inner, profile, stroke, state: Mutex::new(state) }
    }

    /// The virtual time: the sum of the times of all requests and of idle time.
    pub fn now(&self) -> Nanos {
        self.state.lock().now
    }

    pub fn counters(&self) -> Counters {
        let mut state = self.state.lock();
        let now = state.now;
        state.emulator.advance(now);
        state.before.plus(&state.emulator.counters())
    }

    /// Empties the disk's own caches and resets its arm. Takes no time and loses no data.
    pub fn power_cycle(&self) {
        let size = self.inner.geometry().size_bytes;
        let mut state = self.state.lock();
        state.before = state.before.plus(&state.emulator.counters());
        state.emulator = Emulator::new(self.profile, size, self.stroke);
    }

    /// Lets time pass without requests, during which the disk reads ahead and writes out its cache.
    pub fn idle(&self, span: Nanos) {
        let mut state = self.state.lock();
        state.now += span;
        let now = state.now;
        state.emulator.advance(now);
    }

    /// Begins a recording of the reads.
    pub fn record_reads(&self) {
        self.state.lock().reads = Some(Vec::new());
    }

    /// Ends the recording; returns the reads since it began, in order.
    pub fn recorded_reads(&self) -> Vec<Run> {
        self.state.lock().reads.take().unwrap_or_default()
    }

    /// The device with the data.
    pub fn into_inner(self) -> D {
        self.inner
    }

    fn charge(&self, request: Request) {
        let mut state = self.state.lock();
        if let (Request::Read(run), Some(reads)) = (request, &mut state.reads) {
            reads.push(run);
        }
        let now = state.now;
        let id = state.emulator.submit(request, now);
        state.now = state.emulator.complete(id);
    }
}

impl<D: BlockDevice> BlockDevice for VirtualDisk<D> {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)?;
        if !buf.is_empty() {
            self.charge(Request::Read(Run::of_bytes(offset, buf.len() as u64)));
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.inner.write_at(offset, bufs)?;
        let len = bufs.iter().map(|buf| buf.len() as u64).sum();
        if len > 0 {
            self.charge(Request::Write(Run::of_bytes(offset, len)));
        }
        Ok(())
    }

    fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.now().0)
    }

    /// Disks have no barriers, so writes are ordered by a flush, as in the kernel.
    fn barrier(&self) -> io::Result<()> {
        self.inner.barrier()?;
        self.charge(Request::Flush);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()?;
        self.charge(Request::Flush);
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)?;
        if len > 0 {
            self.charge(Request::Discard(Run::of_bytes(offset, len)));
        }
        Ok(())
    }
}
