//! A device that counts the requests that pass through it and can record them.
//!
//! Only requests that succeeded count. The record is a possible history of the device: it has a write from
//! its return on, and a barrier or sync before every write that had not returned when it was called. So every
//! state that a crash test derives from the record was possible.

use std::io::{self, IoSlice};
use std::ops::Sub;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{BlockDevice, Geometry, Request, RequestKind, gather};

#[cfg(test)]
mod tests;

/// Counts of requests and of their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Barriers.
    pub barriers: u64,
    /// Syncs.
    pub syncs: u64,
    /// Discards.
    pub discards: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Reads and writes that began where the read or write before them ended: those for which a
    /// disk's arm stays where it is.
    pub sequential: u64,
}

impl Counts {
    /// Reads and writes together.
    pub fn requests(&self) -> u64 {
        self.reads + self.writes
    }

    fn add(&mut self, request: &Request) {
        match request.kind {
            RequestKind::Read => {
                self.reads += 1;
                self.read_bytes += request.len_bytes;
            }
            RequestKind::Write => {
                self.writes += 1;
                self.written_bytes += request.len_bytes;
            }
            RequestKind::Barrier => self.barriers += 1,
            RequestKind::Sync => self.syncs += 1,
            RequestKind::Discard => self.discards += 1,
        }
    }
}

/// The requests between two moments: the later counts minus the earlier ones.
impl Sub for Counts {
    type Output = Counts;

    fn sub(self, earlier: Counts) -> Counts {
        Counts {
            reads: self.reads - earlier.reads,
            writes: self.writes - earlier.writes,
            barriers: self.barriers - earlier.barriers,
            syncs: self.syncs - earlier.syncs,
            discards: self.discards - earlier.discards,
            read_bytes: self.read_bytes - earlier.read_bytes,
            written_bytes: self.written_bytes - earlier.written_bytes,
            sequential: self.sequential - earlier.sequential,
        }
    }
}

/// One recorded request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceEvent {
    /// Bytes were read.
    Read {
        /// The first byte.
        offset_bytes: u64,
        /// How many.
        len_bytes: u64,
    },
    /// Bytes were written.
    Write {
        /// The first byte.
        offset_bytes: u64,
        /// The written data.
        data: Arc<[u8]>,
    },
    /// A barrier succeeded.
    Barrier,
    /// A sync succeeded.
    Sync,
    /// Bytes were given up.
    Discard {
        /// The first byte.
        offset_bytes: u64,
        /// How many.
        len_bytes: u64,
    },
}

impl TraceEvent {
    /// Makes the request again, on another device. A read changes nothing and is left out.
    pub fn replay(&self, device: &dyn BlockDevice) -> io::Result<()> {
        match self {
            TraceEvent::Read { .. } => Ok(()),
            TraceEvent::Write { offset_bytes, data } => {
                device.write_at(*offset_bytes, &[IoSlice::new(data)])
            }
            TraceEvent::Barrier => device.barrier(),
            TraceEvent::Sync => device.sync(),
            TraceEvent::Discard { offset_bytes, len_bytes } => {
                device.discard(*offset_bytes, *len_bytes)
            }
        }
    }
}

#[derive(Debug, Default)]
struct State {
    counts: Counts,
    previous_end_bytes: Option<u64>,
    events: Option<Vec<TraceEvent>>,
}

impl State {
    fn note(&mut self, request: &Request, event: impl FnOnce() -> TraceEvent) {
        self.counts.add(request);
        if matches!(request.kind, RequestKind::Read | RequestKind::Write) {
            let sequential = self.previous_end_bytes == Some(request.offset_bytes);
            self.counts.sequential += u64::from(sequential);
            self.previous_end_bytes = Some(request.end_bytes());
        }
        if let Some(events) = &mut self.events {
            events.push(event());
        }
    }
}

/// Counts, and on demand records, the requests to `D`.
#[derive(Debug)]
pub struct TraceDevice<D> {
    inner: D,
    state: Mutex<State>,
}

impl<D: BlockDevice> TraceDevice<D> {
    /// Counts the requests to `inner`.
    pub fn new(inner: D) -> TraceDevice<D> {
        TraceDevice { inner, state: Mutex::default() }
    }

    /// The device below.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        self.state.lock().counts
    }

    /// Begins a new record of every request; one that was begun before is dropped.
    pub fn start_recording(&self) {
        self.state.lock().events = Some(Vec::new());
    }

    /// Ends the record and returns it; empty if none was begun.
    pub fn stop_recording(&self) -> Vec<TraceEvent> {
        self.state.lock().events.take().unwrap_or_default()
    }

    /// Runs a barrier or sync. During a recording, nothing else is recorded meanwhile: a write that returns
    /// during the call is not covered by it and must follow it in the record.
    fn note_ordering(
        &self,
        request: Request,
        event: TraceEvent,
        call: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let state = self.state.lock();
        if state.events.is_some() {
            let mut state = state;
            call()?;
            state.note(&request, || event);
        } else {
            drop(state);
            call()?;
            self.state.lock().note(&request, || event);
        }
        Ok(())
    }
}

impl<D: BlockDevice> BlockDevice for TraceDevice<D> {
    fn below(&self) -> Option<&dyn BlockDevice> {
        Some(&self.inner)
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)?;
        let request = Request::read(offset, buf);
        self.state.lock().note(&request, || TraceEvent::Read {
            offset_bytes: offset,
            len_bytes: request.len_bytes,
        });
        Ok(())
    }

    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.inner.write_at(offset, bufs)?;
        self.state.lock().note(&Request::write(offset, bufs), || TraceEvent::Write {
            offset_bytes: offset,
            data: gather(bufs).into(),
        });
        Ok(())
    }

    fn barrier(&self) -> io::Result<()> {
        self.note_ordering(Request::BARRIER, TraceEvent::Barrier, || self.inner.barrier())
    }

    fn sync(&self) -> io::Result<()> {
        self.note_ordering(Request::SYNC, TraceEvent::Sync, || self.inner.sync())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)?;
        self.state.lock().note(&Request::discard(offset, len), || TraceEvent::Discard {
            offset_bytes: offset,
            len_bytes: len,
        });
        Ok(())
    }
}
