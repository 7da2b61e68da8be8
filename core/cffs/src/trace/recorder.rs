//! Recorded data, until a reader fetches it.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Mutex, MutexGuard};

use super::context::{self, Ended, Journaled, now_ns, track};
use super::op::{OpKind, Share, Way};
use super::record::{self, Asked, Span};
use crate::error::{Error, Result};
use crate::units::InodeNo;

/// The most that waits for a reader.
const BUFFER_BYTES_MAX: usize = 16 << 20;
/// If no reader comes for this time while the buffer is full, the recording ends.
const PATIENCE: Duration = Duration::from_secs(10);
const KINDS: usize = OpKind::ALL.len();

/// Which operations are recorded one by one. All of them are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// Those that change something, or reach the device.
    #[default]
    Causes,
    /// Every one.
    All,
}

/// Records operations and the requests that they cause, while it is on.
///
/// Events wait in memory until [`Recorder::take`] takes them. No caller waits for that: events
/// that find no room are lost and counted, and after a while the recording ends.
#[derive(Default)]
pub struct Recorder {
    /// 0 while nothing is recorded, 1 for [`Detail::Causes`], 2 for [`Detail::All`].
    mode: AtomicU8,
    /// The time at which the recording began.
    began_ns: AtomicU64,
    counts: [AtomicU64; KINDS],
    buffer: Mutex<Buffer>,
    journaled: Mutex<Journaled>,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").field("is_on", &self.is_on()).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Buffer {
    bytes: Vec<u8>,
    /// Bytes taken so far.
    taken_bytes: usize,
    /// Events that found no room since the last that did.
    lost: u64,
    taken_at: Option<Instant>,
}

/// An operation under way; it ends when this is dropped.
#[must_use = "the operation ends when this is dropped"]
pub struct Operation<'a>(Option<&'a Recorder>);

impl Drop for Operation<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(recorder) = self.0 {
            recorder.leave();
        }
    }
}

impl Recorder {
    /// Whether anything is recorded.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.mode.load(Ordering::Relaxed) != 0
    }

    /// Begins an operation on an inode. One within another is part of that.
    #[inline]
    pub fn enter(&self, kind: OpKind, ino: InodeNo) -> Operation<'_> {
        match self.mode.load(Ordering::Relaxed) {
            0 => Operation(None),
            mode => self.begin(mode, kind, ino),
        }
    }

    fn begin(&self, mode: u8, kind: OpKind, ino: InodeNo) -> Operation<'_> {
        if !context::begin(kind, ino.0, mode == 2) {
            return Operation(None);
        }
        self.counts[kind as usize - 1].fetch_add(1, Ordering::Relaxed);
        Operation(Some(self))
    }

    fn leave(&self) {
        let Some(Ended { id, ino, started_ns }) = context::end() else { return };
        self.push(&record::operation(id, ino, track(), self.span(started_ns)));
    }

    /// Notes a request that has ended.
    pub(super) fn request(
        &self,
        asked: Asked,
        way: Way,
        shares: &[Share],
        started_ns: u64,
        succeeded: bool,
    ) {
        let span = self.span(started_ns);
        self.push(&record::request(asked, way, succeeded, shares, track(), span));
    }

    /// From then until now.
    fn span(&self, started_ns: u64) -> Span {
        Span {
            started_ns: started_ns.saturating_sub(self.began_ns.load(Ordering::Relaxed)),
            duration_ns: now_ns().saturating_sub(started_ns),
        }
    }

    pub(super) fn journaled(&self) -> MutexGuard<'_, Journaled> {
        self.journaled.lock()
    }

    /// Sets the place of the journal of the volume, in bytes.
    pub fn set_journal_area(&self, area: std::ops::Range<u64>) {
        self.journaled().area = area;
    }

    fn push(&self, event: &str) {
        let mut buffer = self.buffer.lock();
        if !self.is_on() {
            return;
        }
        if buffer.bytes.len() - buffer.taken_bytes > BUFFER_BYTES_MAX {
            buffer.lost += 1;
            if buffer.taken_at.is_none_or(|taken| taken.elapsed() > PATIENCE) {
                self.mode.store(0, Ordering::Relaxed);
            }
            return;
        }
        buffer.note_lost();
        buffer.bytes.extend_from_slice(event.as_bytes());
    }

    /// Begins a recording.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] while another one is under way.
    pub fn start(&self, detail: Detail) -> Result<()> {
        let mut buffer = self.buffer.lock();
        if self.is_on() {
            return Err(Error::Invalid("a recording is under way"));
        }
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let bytes = record::head(wall).into_bytes();
        *buffer = Buffer { bytes, taken_at: Some(Instant::now()), ..Buffer::default() };
        self.began_ns.store(now_ns(), Ordering::Relaxed);
        self.counts.iter().for_each(|count| count.store(0, Ordering::Relaxed));
        self.journaled().clear();
        let mode = if detail == Detail::All { 2 } else { 1 };
        self.mode.store(mode, Ordering::Release);
        Ok(())
    }

    /// Ends the recording. Its events can still be taken.
    pub fn stop(&self) {
        let mut buffer = self.buffer.lock();
        if self.mode.swap(0, Ordering::AcqRel) == 0 {
            return;
        }
        buffer.note_lost();
        let counts = OpKind::ALL.into_iter().zip(&self.counts);
        let counts = counts.map(|(kind, count)| (kind, count.load(Ordering::Relaxed)));
        let counts = counts.filter(|(_, count)| *count > 0);
        buffer.bytes.extend_from_slice(record::tail(counts).as_bytes());
    }

    /// Takes at most `bytes_max` bytes of the recording; none if there is nothing more yet.
    pub fn take(&self, bytes_max: usize) -> Vec<u8> {
        let mut buffer = self.buffer.lock();
        buffer.taken_at = Some(Instant::now());
        buffer.take(bytes_max)
    }
}

impl Buffer {
    fn take(&mut self, bytes_max: usize) -> Vec<u8> {
        let rest = &self.bytes[self.taken_bytes..];
        let taken = rest[..rest.len().min(bytes_max)].to_vec();
        self.taken_bytes += taken.len();
        // The rest moves up only when half of the buffer has been taken.
        if self.taken_bytes * 2 >= self.bytes.len() {
            self.bytes.drain(..self.taken_bytes);
            self.taken_bytes = 0;
        }
        taken
    }

    fn note_lost(&mut self) {
        if self.lost > 0 {
            let lost = record::lost(std::mem::take(&mut self.lost));
            self.bytes.extend_from_slice(lost.as_bytes());
        }
    }
}
