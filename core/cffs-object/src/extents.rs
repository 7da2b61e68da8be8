//! A map from ranges of the device to the sources of their bytes.

use std::collections::BTreeMap;

/// The source of a range's bytes, which can be split at any byte.
pub trait Source: Clone {
    /// The source of the bytes after the first `bytes`.
    fn skip(&self, bytes: u64) -> Self;

    /// Whether `next` continues this source after `len` bytes.
    fn continues(&self, len: u64, next: &Self) -> bool;
}

/// Disjoint ranges, sorted by their first byte.
#[derive(Clone, Debug)]
pub struct Extents<S> {
    /// From the first byte to the length and the source.
    ranges: BTreeMap<u64, (u64, S)>,
}

impl<S> Default for Extents<S> {
    fn default() -> Self {
        Extents { ranges: BTreeMap::new() }
    }
}

impl<S: Source> Extents<S> {
    /// Fails if a range is empty, or two overlap.
    pub fn check(&self) {
        let mut end = 0;
        for (start, len, _) in self.iter() {
            assert!(len > 0, "the range at {start} is empty");
            assert!(start >= end, "the range at {start} overlaps one that ends at {end}");
            end = start.checked_add(len).expect("a range ends within the address space");
        }
    }

    /// Fails if a range crosses an end of this one, which was just changed. Takes no time that depends on
    /// the number of ranges.
    fn check_ends(&self, start: u64, end: u64) {
        for border in [start, end] {
            if let Some((at, (len, _))) = self.ranges.range(..border).next_back() {
                assert!(*len > 0, "the range at {at} is empty");
                assert!(at + len <= border, "the range at {at} reaches beyond {border}");
            }
        }
    }

    /// Removes a range.
    pub fn remove(&mut self, start: u64, len: u64) {
        let end = start + len;
        let before = self.ranges.range(..start).next_back().map(|(at, range)| (*at, range.clone()));
        if let Some((at, (old_len, source))) = before
            && at + old_len > start
        {
            self.ranges.insert(at, (start - at, source.clone()));
            if at + old_len > end {
                self.ranges.insert(end, (at + old_len - end, source.skip(end - at)));
            }
        }
        let inside: Vec<u64> = self.ranges.range(start..end).map(|(at, _)| *at).collect();
        for at in inside {
            let Some((old_len, source)) = self.ranges.remove(&at) else { continue };
            if at + old_len > end {
                self.ranges.insert(end, (at + old_len - end, source.skip(end - at)));
            }
        }
        if cfg!(debug_assertions) {
            self.check_ends(start, end);
            assert!(!self.has_any(start, len), "a removed range has no bytes left");
        }
    }

    /// Maps the range to a source, replacing earlier mappings. A range that continues its left neighbour is
    /// merged with it.
    pub fn insert(&mut self, start: u64, len: u64, source: S) {
        if len == 0 {
            return;
        }
        self.remove(start, len);
        if let Some((at, (before, source_before))) = self.ranges.range_mut(..start).next_back()
            && *at + *before == start
            && source_before.continues(*before, &source)
        {
            *before += len;
            return;
        }
        self.ranges.insert(start, (len, source));
    }

    /// Changes the source of each range.
    pub fn redirect(&mut self, change: impl Fn(&mut S)) {
        self.ranges.values_mut().for_each(|(_, source)| change(source));
    }

    /// The ranges in order: first byte, length, source.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64, &S)> {
        self.ranges.iter().map(|(start, (len, source))| (*start, *len, source))
    }

    /// The extents within a range, in order, cut to it.
    pub fn within(&self, start: u64, len: u64) -> Vec<(u64, u64, S)> {
        let end = start + len;
        let before =
            self.ranges.range(..start).next_back().filter(|(at, (len, _))| **at + len > start);
        before
            .into_iter()
            .chain(self.ranges.range(start..end))
            .map(|(at, (len, source))| {
                let from = start.max(*at);
                let to = end.min(at + len);
                (from, to - from, source.skip(from - at))
            })
            .collect()
    }

    /// Whether any byte of a range is mapped.
    pub fn has_any(&self, start: u64, len: u64) -> bool {
        let last = self.ranges.range(..start + len).next_back();
        last.is_some_and(|(at, (len, _))| at + len > start)
    }

    /// The number of ranges.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether no range is mapped.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}
