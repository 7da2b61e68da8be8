//! The device of which requests are recorded.

use std::io::{self, IoSlice};
use std::sync::Arc;

use super::causes::shares;
use super::context::{Journaled, now_ns, requester, way};
use super::op::Way;
use super::record::Asked;
use super::recorder::Recorder;
use crate::device::{BlockDevice, Geometry, Journal, JournalStats, RequestKind};

/// A device that hands each request to a recorder, with the operations that caused it. It belongs below the
/// journal of a volume, so that it sees the journal's requests.
pub struct RecordedDevice<D> {
    inner: D,
    recorder: Arc<Recorder>,
}

impl<D: BlockDevice> RecordedDevice<D> {
    /// Records the requests to `inner` while the recorder runs.
    pub fn new(inner: D, recorder: Arc<Recorder>) -> RecordedDevice<D> {
        RecordedDevice { inner, recorder }
    }

    /// A request that belongs to the operation of this thread.
    fn own(
        &self,
        (kind, offset, len): Asked,
        call: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        if !self.recorder.is_on() {
            return call();
        }
        let parts = shares([None].into_iter(), requester());
        let started = now_ns();
        let result = call();
        self.recorder.request((kind, offset, len), way(), &parts, started, result.is_ok());
        result
    }
}

impl<D: BlockDevice> BlockDevice for RecordedDevice<D> {
    fn below(&self) -> Option<&dyn BlockDevice> {
        Some(&self.inner)
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let len = buf.len() as u64;
        self.own((RequestKind::Read, offset, len), || self.inner.read_at(offset, buf))
    }

    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        if !self.recorder.is_on() {
            return self.inner.write_at(offset, bufs);
        }
        let len = bufs.iter().map(|buf| buf.len() as u64).sum();
        let (parts, way) = self.recorder.journaled().attribute(offset, len);
        let started = now_ns();
        let result = self.inner.write_at(offset, bufs);
        if result.is_ok() {
            self.recorder.journaled().written(offset, len);
        }
        let asked = (RequestKind::Write, offset, len);
        self.recorder.request(asked, way, &parts, started, result.is_ok());
        result
    }

    fn barrier(&self) -> io::Result<()> {
        self.own((RequestKind::Barrier, 0, 0), || self.inner.barrier())
    }

    fn sync(&self) -> io::Result<()> {
        self.own((RequestKind::Sync, 0, 0), || self.inner.sync())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.own((RequestKind::Discard, offset, len), || self.inner.discard(offset, len))
    }

    fn journal(&self) -> Option<&dyn Journal> {
        self.inner.journal().map(|_| self as &dyn Journal)
    }
}

impl<D: BlockDevice> Journal for RecordedDevice<D> {
    fn commit_bytes_max(&self) -> u64 {
        self.inner.journal().map_or(0, Journal::commit_bytes_max)
    }

    fn commit(&self, blocks: &[(u64, &[u8])]) -> io::Result<bool> {
        let Some(journal) = self.inner.journal() else { return Ok(false) };
        if !self.recorder.is_on() {
            return journal.commit(blocks);
        }
        let len = blocks.iter().map(|(_, image)| image.len() as u64).sum();
        let parts = Journaled::attribute_record();
        let started = now_ns();
        let result = journal.commit(blocks);
        if matches!(result, Ok(true) | Err(_)) {
            let asked = (RequestKind::Write, 0, len);
            self.recorder.request(asked, Way::Journal, &parts, started, result.is_ok());
        }
        result
    }

    fn stop(&self) -> io::Result<()> {
        self.inner.journal().map_or(Ok(()), Journal::stop)
    }

    fn stats(&self) -> JournalStats {
        self.inner.journal().map_or_else(JournalStats::default, Journal::stats)
    }
}
