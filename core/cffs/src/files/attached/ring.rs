//! The ranges of the shared memory with contents that the server has not read yet.

use std::collections::VecDeque;

/// The ranges of a ring that are in use, in the order in which they were taken. Positions continue to rise
/// beyond the end of the ring.
pub(super) struct Ring {
    bytes: u64,
    /// Where the next range begins.
    head: u64,
    /// The first byte in use.
    tail: u64,
    /// For each range its end, and the call that reads it.
    taken: VecDeque<(u64, u64)>,
}

impl Ring {
    pub fn new(bytes: u32) -> Ring {
        Ring { bytes: bytes.into(), head: 0, tail: 0, taken: VecDeque::new() }
    }

    /// Takes a range for a call, and returns its offset; `None` if earlier calls use the memory. The calls
    /// are numbered in their order.
    pub fn take(&mut self, len: u32, call: u64) -> Option<u32> {
        let len = u64::from(len);
        debug_assert!(2 * len <= self.bytes, "it fits if no other range is in use");
        if len == 0 {
            return Some(0);
        }
        let to_end = self.bytes - self.head % self.bytes;
        let begin = if len > to_end { self.head + to_end } else { self.head };
        if begin + len - self.tail > self.bytes {
            return None;
        }
        self.head = begin + len;
        self.taken.push_back((self.head, call));
        Some((begin % self.bytes) as u32)
    }

    /// The first call that uses memory.
    pub fn first_call(&self) -> Option<u64> {
        self.taken.front().map(|(_, call)| *call)
    }

    /// Frees the ranges of the first `calls` calls.
    pub fn settle(&mut self, calls: u64) {
        while let Some((end, call)) = self.taken.front().copied() {
            if call > calls {
                return;
            }
            self.tail = end;
            self.taken.pop_front();
        }
        // Recently used memory is still in the processor's cache.
        (self.head, self.tail) = (0, 0);
    }
}
