//! Detects segments that are read in sequence, and reads ahead.
//!
//! A group read that begins where an earlier one ended continues a stream: the next one is twice as long, up
//! to the longest read-ahead window. A read anywhere else starts small. So a sweep over a directory tree
//! costs few requests, and random access stays cheap.

use std::ops::Range;

use super::cursor::{Cursor, Cursors, Growth};
use crate::lock::{Mutex, Rank};
use crate::tuning::Tuning;

/// The streams of a cache, each with its last run. All in blocks.
pub(super) struct Streams {
    segment_blocks: u64,
    /// The longest request, if the device answers several at once.
    slides_by: Option<u64>,
    growth: Growth,
    cursors: Mutex<Cursors<Range<u64>>>,
}

impl Streams {
    /// No streams yet. The longest windows are whole requests, and a part of the cache.
    pub(super) fn new(tuning: &Tuning, block_bytes: u32, segment_blocks: u32) -> Streams {
        let reading = &tuning.reading;
        let segment_blocks = u64::from(segment_blocks);
        let longest = (reading.window_bytes_max / u64::from(block_bytes)).max(segment_blocks);
        let part = tuning.cache_blocks(block_bytes) / reading.window_cache_part;
        let part = part.clamp(segment_blocks, longest);
        let request = tuning.request_blocks(block_bytes);
        let whole = part / request * request;
        let most = if whole > 0 { whole } else { part };
        let growth = Growth { factor: 2, least: 2 * segment_blocks, most };
        let cursors = Mutex::new(Rank::Leaf, Cursors::new(reading.cursors_max));
        let slides_by = tuning.device.is_parallel().then_some(request);
        Streams { segment_blocks, slides_by, growth, cursors }
    }

    /// The most blocks that a miss may read if its group begins at `first`, in a segment that ends at
    /// `segment_end`; 0 if it continues no stream.
    pub(super) fn window(&self, first: u64, segment_end: u64) -> u64 {
        let continued = |last: &Range<u64>| (first..segment_end).contains(&last.end);
        self.cursors.lock().find(continued).map_or(0, |stream| stream.window)
    }

    /// Remembers that runs were read: from this block on, up to the end of the last run. Returns whether they
    /// continued a stream whose window slides.
    pub(super) fn read(&self, first: u64, last: Range<u64>) -> bool {
        let near = first..first + self.segment_blocks;
        let mut cursors = self.cursors.lock();
        if let Some(stream) = cursors.find_to_move(|last| near.contains(&last.end)) {
            stream.advance(last, self.growth);
            self.slides_by.is_some_and(|request| stream.window > request)
        } else {
            let mut stream = Cursor::new(last.clone());
            stream.advance(last, self.growth);
            cursors.add(stream);
            false
        }
    }

    /// Returns the next run of the stream that last read `block`, cut at `limit`, and records it as read.
    ///
    /// If the device answers several requests at once, the window holds as many requests and slides: each
    /// used one triggers another, so that the device always has as many.
    pub(super) fn next_run(&self, block: u64, limit: u64) -> Option<Range<u64>> {
        let mut cursors = self.cursors.lock();
        let stream = cursors.find_to_move(|last| last.contains(&block))?;
        let first = stream.at.end;
        let (at, wanted) = match self.slides_by {
            Some(request) if stream.window > request => {
                let lacking = (block + stream.window).saturating_sub(first);
                (block, lacking / request * request)
            }
            _ => (first, stream.window),
        };
        let next = first..(first + wanted).min(limit).max(first);
        if next.is_empty() {
            return None;
        }
        stream.advance(at..next.end, self.growth);
        Some(next)
    }
}
