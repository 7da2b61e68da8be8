//! Detects segments that are read one after the other, and reads ahead of them.
//!
//! A group read that begins where an earlier one ended continues a stream: the next one is twice as
//! long, up to [`WINDOW_SEGMENTS_MAX`]. A read anywhere else starts small. So a sweep over a directory
//! tree costs few requests, and random access is not punished.

use std::ops::Range;

use parking_lot::Mutex;

/// How many streams are remembered.
const STREAMS: usize = 16;
/// How many segments a stream reads at most at once, and which part of the cache: others stream too.
const WINDOW_SEGMENTS_MAX: u64 = 64;
const WINDOW_CACHE_PART: u64 = 16;

#[derive(Clone, Copy, Default)]
struct Stream {
    /// The last run that was read.
    first: u64,
    end: u64,
    window: u64,
    used: u64,
}

pub(super) struct Streams {
    segment_blocks: u64,
    window_max: u64,
    state: Mutex<(u64, [Stream; STREAMS])>,
}

impl Streams {
    /// The streams of a cache of so many blocks. The longest windows are whole requests of so many.
    pub(super) fn new(segment_blocks: u32, cache_blocks: u64, request_blocks: u64) -> Streams {
        let state = Mutex::new((0, [Stream::default(); STREAMS]));
        let segment_blocks = u64::from(segment_blocks);
        let longest = segment_blocks * WINDOW_SEGMENTS_MAX;
        let part = (cache_blocks / WINDOW_CACHE_PART).clamp(segment_blocks, longest);
        let whole = part / request_blocks * request_blocks;
        let window_max = if whole > 0 { whole } else { part };
        Streams { segment_blocks, window_max, state }
    }

    /// How many blocks a miss may read whose group begins at `first`, in a segment that ends at
    /// `segment_end`.
    pub(super) fn window(&self, first: u64, segment_end: u64) -> u64 {
        let state = self.state.lock();
        let continued = |stream: &&Stream| stream.end >= first && stream.end < segment_end;
        state.1.iter().filter(|s| s.used > 0).find(continued).map_or(0, |stream| stream.window)
    }

    /// Remembers that the blocks from `first` to `end` were read.
    pub(super) fn read(&self, first: u64, end: u64) {
        let mut state = self.state.lock();
        state.0 += 1;
        let now = state.0;
        let near = |s: &Stream| s.used > 0 && s.end >= first && s.end < first + self.segment_blocks;
        let slot = match state.1.iter().position(near) {
            Some(slot) => slot,
            None => {
                let oldest = state.1.iter().enumerate().min_by_key(|(_, stream)| stream.used);
                let slot = oldest.map_or(0, |(slot, _)| slot);
                state.1[slot].window = self.segment_blocks;
                slot
            }
        };
        let stream = &mut state.1[slot];
        stream.first = first;
        stream.end = end;
        stream.used = now;
        stream.window = (stream.window * 2).min(self.window_max);
    }

    /// The run that a stream reads next whose last run has this block, up to the `limit` of
    /// what is worth reading. It is taken for read.
    pub(super) fn go_on(&self, block: u64, limit: u64) -> Option<Range<u64>> {
        let mut state = self.state.lock();
        state.0 += 1;
        let now = state.0;
        let has = |s: &&mut Stream| s.used > 0 && (s.first..s.end).contains(&block);
        let stream = state.1.iter_mut().find(has)?;
        let next = stream.end..(stream.end + stream.window).min(limit).max(stream.end);
        stream.first = next.start;
        stream.end = next.end;
        stream.used = now;
        stream.window = (stream.window * 2).min(self.window_max);
        (!next.is_empty()).then_some(next)
    }
}
