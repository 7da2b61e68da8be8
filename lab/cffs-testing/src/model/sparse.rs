//! The contents of a mostly sparse file: its written pages, by position.

use std::collections::BTreeMap;

/// The size of a page of the model, which is unrelated to the volume's blocks.
const PAGE_BYTES: u64 = 4096;

/// Bytes by offset; unwritten ones are zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sparse {
    size: u64,
    pages: BTreeMap<u64, Vec<u8>>,
}

impl Sparse {
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Writes, and grows as needed.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let into = (at % PAGE_BYTES) as usize;
            let len = rest.len().min(PAGE_BYTES as usize - into);
            let page = self.pages.entry(at / PAGE_BYTES);
            let page = page.or_insert_with(|| vec![0; PAGE_BYTES as usize]);
            page[into..into + len].copy_from_slice(&rest[..len]);
            at += len as u64;
            rest = &rest[len..];
        }
        self.size = self.size.max(at);
    }

    /// Copies a range of another file, or of an earlier state of this one.
    pub fn copy(&mut self, source: &Sparse, from: u64, to: u64, len: u64) {
        self.zero(to, to + len);
        let pages = source.pages.range(from / PAGE_BYTES..(from + len).div_ceil(PAGE_BYTES));
        for (position, page) in pages {
            let start = position * PAGE_BYTES;
            let begin = from.max(start);
            let end = (from + len).min(start + PAGE_BYTES);
            let bytes = &page[(begin - start) as usize..(end - start) as usize];
            self.write(to + (begin - from), bytes);
        }
        self.size = self.size.max(to + len);
    }

    /// Makes a range read as zeros; the size does not change.
    pub fn zero(&mut self, from: u64, to: u64) {
        for (position, page) in self.pages.range_mut(from / PAGE_BYTES..to.div_ceil(PAGE_BYTES)) {
            let start = position * PAGE_BYTES;
            let begin = from.saturating_sub(start).min(PAGE_BYTES) as usize;
            let end = to.saturating_sub(start).min(PAGE_BYTES) as usize;
            page[begin..end].fill(0);
        }
    }

    pub fn resize(&mut self, size: u64) {
        if size < self.size {
            self.zero(size, size.next_multiple_of(PAGE_BYTES).max(size + 1));
            self.pages.retain(|position, _| position * PAGE_BYTES < size);
        }
        self.size = size;
    }

    pub fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let len = self.size.saturating_sub(offset).min(len as u64) as usize;
        let mut bytes = vec![0; len];
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let into = (at % PAGE_BYTES) as usize;
            let piece = (len - done).min(PAGE_BYTES as usize - into);
            if let Some(page) = self.pages.get(&(at / PAGE_BYTES)) {
                bytes[done..done + piece].copy_from_slice(&page[into..into + piece]);
            }
            done += piece;
        }
        bytes
    }

    /// Whether a range reads as zeros.
    pub fn is_zero(&self, from: u64, to: u64) -> bool {
        let to = to.min(self.size);
        self.pages.range(from / PAGE_BYTES..to.div_ceil(PAGE_BYTES).max(from / PAGE_BYTES)).all(
            |(position, page)| {
                let start = position * PAGE_BYTES;
                let begin = from.saturating_sub(start).min(PAGE_BYTES) as usize;
                let end = to.saturating_sub(start).min(PAGE_BYTES) as usize;
                page[begin.min(end)..end].iter().all(|byte| *byte == 0)
            },
        )
    }

    /// Ranges to compare: all of a small file; for a large one, the surroundings of written pages,
    /// and the end.
    pub fn probes(&self) -> Vec<(u64, usize)> {
        const WHOLE_BYTES_MAX: u64 = 2 << 20;
        if self.size <= WHOLE_BYTES_MAX {
            return vec![(0, self.size as usize + 1)];
        }
        let around = 3 * PAGE_BYTES as usize;
        let mut probes: Vec<(u64, usize)> = self
            .pages
            .keys()
            .map(|position| (position.saturating_sub(1) * PAGE_BYTES, around))
            .collect();
        probes.push((self.size - PAGE_BYTES, around));
        probes
    }
}
