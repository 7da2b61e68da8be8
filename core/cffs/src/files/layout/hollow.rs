//! A device that reads metadata, and only counts requests for contents.

use std::io::{self, IoSlice};
use std::iter;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::device::{BlockDevice, Geometry, Hints, Journal};

/// Counts of the reads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReadCounts {
    pub requests: u64,
    pub bytes: u64,
}

/// The device below, without the contents of files: they read as zeros. Refuses writes.
pub(super) struct Hollow {
    inner: Arc<dyn BlockDevice>,
    /// Bytes of contents: ascending, and apart from each other.
    contents: Vec<Range<u64>>,
    counts: Mutex<ReadCounts>,
}

impl Hollow {
    pub fn new(inner: Arc<dyn BlockDevice>, contents: Vec<Range<u64>>) -> Hollow {
        Hollow { inner, contents, counts: Mutex::default() }
    }

    pub fn counts(&self) -> ReadCounts {
        *self.counts.lock()
    }
}

fn refused() -> io::Error {
    io::Error::from(io::ErrorKind::ReadOnlyFilesystem)
}

impl BlockDevice for Hollow {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let len = buf.len() as u64;
        self.geometry().check(offset, len)?;
        {
            let mut counts = self.counts.lock();
            counts.requests += 1;
            counts.bytes += len;
        }
        let end = offset + len;
        let from = self.contents.partition_point(|run| run.end <= offset);
        let hollow = self.contents[from..].iter().take_while(|run| run.start < end);
        let mut at = offset;
        for run in hollow.cloned().chain(iter::once(end..end)) {
            let (start, to) = (run.start.clamp(at, end), run.end.min(end));
            let part =
                |range: Range<u64>| (range.start - offset) as usize..(range.end - offset) as usize;
            if at < start {
                self.inner.read_at(at, &mut buf[part(at..start)])?;
            }
            buf[part(start..to)].fill(0);
            at = to;
        }
        Ok(())
    }

    fn write_at(&self, _: u64, _: &[IoSlice<'_>]) -> io::Result<()> {
        Err(refused())
    }

    fn barrier(&self) -> io::Result<()> {
        Err(refused())
    }

    fn sync(&self) -> io::Result<()> {
        Err(refused())
    }

    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Err(refused())
    }

    fn hints(&self) -> Hints {
        self.inner.hints()
    }

    // A journal below is used; no second one is put over it.
    fn journal(&self) -> Option<&dyn Journal> {
        self.inner.journal()
    }
}
