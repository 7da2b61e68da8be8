//! The drive's read buffer and its read-ahead.
//!
//! After a read the head keeps reading into the buffer until its read-ahead limit is reached or the arm is
//! needed elsewhere, so a host that reads sequentially gets its data at the speed of the platter without
//! another positioning. The buffer is divided into segments, one per stream; the least recently used one is
//! recycled. Nothing is simulated while the drive reads ahead: the progress of the head at a given time is
//! computed on demand.
//!
//! Invariants: at most one segment is live (growing), and it is the last in the list; a segment never spans
//! more than its size; a write drops the buffered sectors that it overlaps.

use super::mechanics::Mechanics;
use super::{Nanos, Run, Sector};

/// The sizes of a drive's buffer.
#[derive(Clone, Copy, Debug)]
pub struct BufferSpec {
    /// The number of segments, and thus of streams that the buffer follows.
    pub segments: usize,
    pub segment_sectors: u64,
    /// The number of sectors that the drive reads beyond the request.
    pub read_ahead_sectors: u64,
}

/// Where the drive has the data of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// In the buffer.
    Hit,
    /// Not yet in the buffer: the head reads ahead, and will have read all of it at this time.
    Arriving(Nanos),
    /// On the platter.
    Miss,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    first: Sector,
    end: Sector,
}

/// Read-ahead in progress: the head was at the start of `from` at the time `begun`, and reads ahead until
/// `limit`.
#[derive(Clone, Copy, Debug)]
struct Live {
    from: Sector,
    begun: Nanos,
    limit: Sector,
}

/// The buffer's contents.
#[derive(Clone, Debug)]
pub struct ReadBuffer {
    spec: BufferSpec,
    segments: Vec<Segment>,
    live: Option<Live>,
}

impl ReadBuffer {
    pub fn new(spec: BufferSpec) -> ReadBuffer {
        ReadBuffer { spec, segments: Vec::new(), live: None }
    }

    /// Finds the data of a read at `now`.
    pub fn lookup(&self, run: Run, now: Nanos, mechanics: &Mechanics) -> Lookup {
        if self.segments.iter().any(|s| s.first <= run.first && run.end() <= s.end) {
            return Lookup::Hit;
        }
        let (Some(live), Some(segment)) = (self.live, self.segments.last()) else {
            return Lookup::Miss;
        };
        // A run that begins within the read-ahead may end beyond it: the head then continues.
        if run.first < segment.first || run.first > live.limit {
            return Lookup::Miss;
        }
        let reached = Self::reached(live, now, mechanics);
        if run.end() <= reached {
            Lookup::Hit
        } else if reached < live.limit || run.end() <= live.limit {
            let rest = Run { first: live.from, sectors: run.end().0 - live.from.0 };
            Lookup::Arriving(mechanics.sweep(rest, live.begun))
        } else {
            Lookup::Miss
        }
    }

    /// Starts a segment and reads ahead after a read of `run` ended at `ended`.
    pub fn start(&mut self, run: Run, ended: Nanos) {
        if self.spec.segments == 0 {
            return;
        }
        if self.segments.len() == self.spec.segments {
            self.segments.remove(0);
        }
        self.segments.push(Segment { first: run.first, end: run.end() });
        self.live = Some(Live {
            from: run.end(),
            begun: ended,
            limit: Sector(run.end().0 + self.spec.read_ahead_sectors),
        });
        self.trim_last();
    }

    /// Continues read-ahead after the live segment has served a read of `run`, either from the buffer or
    /// while the head read it.
    pub fn advance(&mut self, run: Run, now: Nanos, mechanics: &Mechanics) {
        let (Some(live), Some(segment)) = (self.live, self.segments.last_mut()) else { return };
        // A hit in another segment says nothing about this stream.
        if run.first < segment.first || run.first > live.limit || run.end() <= segment.end {
            return;
        }
        let stopped = Self::reached(live, now, mechanics) == live.limit && run.end() <= live.limit;
        let limit = Sector(run.end().0 + self.spec.read_ahead_sectors).max(live.limit);
        segment.end = run.end();
        let next = if stopped && limit > live.limit {
            // The head has stopped at the old limit and must find its place again.
            segment.end = live.limit;
            let begun = now + mechanics.positioning(live.limit, false, now);
            Live { from: live.limit, begun, limit }
        } else {
            let done = Run { first: live.from, sectors: run.end().0.saturating_sub(live.from.0) };
            let begun =
                if done.sectors == 0 { live.begun } else { mechanics.sweep(done, live.begun) };
            Live { from: run.end().max(live.from), begun, limit }
        };
        self.live = Some(next);
        self.trim_last();
    }

    /// Ends read-ahead, since the arm is needed elsewhere. The head stays at its current position.
    pub fn halt(&mut self, now: Nanos, mechanics: &mut Mechanics) {
        let Some(live) = self.live.take() else { return };
        let reached = Self::reached(live, now, mechanics);
        mechanics.finish_at(Run { first: live.from, sectors: reached.0 - live.from.0 });
        if let Some(segment) = self.segments.last_mut() {
            segment.end = segment.end.max(reached);
        }
        self.trim_last();
    }

    /// Drops buffered parts of `run`, which a write has made stale.
    pub fn invalidate(&mut self, run: Run) {
        let overlaps = |s: &Segment| s.first < run.end() && run.first < s.end;
        let live_hit = self.segments.last().is_some_and(overlaps)
            || self.live.is_some_and(|l| l.from < run.end() && run.first < l.limit);
        if live_hit && self.live.take().is_some() {
            self.segments.pop();
        }
        self.segments.retain(|s| !overlaps(s));
    }

    fn reached(live: Live, now: Nanos, mechanics: &Mechanics) -> Sector {
        let ahead = live.limit.0 - live.from.0;
        Sector(live.from.0 + mechanics.passed(live.from, live.begun, now, ahead))
    }

    fn trim_last(&mut self) {
        if let Some(segment) = self.segments.last_mut() {
            let earliest = segment.end.0.saturating_sub(self.spec.segment_sectors);
            segment.first = segment.first.max(Sector(earliest));
        }
    }
}
