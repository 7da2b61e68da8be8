//! Changed blocks of one file, by position in the file.
//!
//! ```text
//!            write            epoch starts           written
//!   (none) ───────▶ dirty ──────────────▶ in flight ─────────▶ (none; the cache has it)
//!                     ▲        write         │
//!                     └──────────────────────┘
//! ```
//!
//! A page in flight is shared with the epoch that writes it; a write to it copies it first.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use super::Block;
use crate::trace::{self, Causes};
use crate::units::{EpochNo, FileBlock};

/// A changed block.
#[derive(Clone, Debug)]
pub struct Page {
    /// The contents.
    pub block: Arc<Block>,
    /// The epoch that is writing the page as it is; `None` while it is dirty.
    pub in_flight: Option<EpochNo>,
    /// The operations that changed it since an epoch took it last.
    causes: Causes,
}

impl Page {
    fn new(block: Arc<Block>) -> Page {
        Page { block, in_flight: None, causes: Causes::default() }
    }
}

/// The changed blocks of a file.
#[derive(Debug, Default)]
pub struct Pages {
    pages: BTreeMap<FileBlock, Page>,
    dirty_count: usize,
}

impl Pages {
    /// The page at a position, dirty or in flight.
    pub fn get(&self, position: FileBlock) -> Option<&Arc<Block>> {
        self.pages.get(&position).map(|page| &page.block)
    }

    /// Whether the page at a position waits for an epoch.
    pub fn is_dirty(&self, position: FileBlock) -> bool {
        self.pages.get(&position).is_some_and(|page| page.in_flight.is_none())
    }

    /// The page at a position to change, if there is one; it is dirty from then on. Returns as well
    /// whether it was not before.
    pub fn get_mut(&mut self, position: FileBlock) -> Option<(&mut Block, bool)> {
        let page = self.pages.get_mut(&position)?;
        let made_dirty = page.in_flight.take().is_some();
        self.dirty_count += usize::from(made_dirty);
        page.causes.note(trace::cause());
        Some((Arc::make_mut(&mut page.block), made_dirty))
    }

    /// The same, with a page from elsewhere if there is none.
    pub fn get_or_load<E>(
        &mut self,
        position: FileBlock,
        load: impl FnOnce() -> Result<Arc<Block>, E>,
    ) -> Result<(&mut Block, bool), E> {
        let (page, made_dirty) = match self.pages.entry(position) {
            Entry::Occupied(entry) => {
                let page = entry.into_mut();
                let made_dirty = page.in_flight.take().is_some();
                (page, made_dirty)
            }
            Entry::Vacant(entry) => (entry.insert(Page::new(load()?)), true),
        };
        self.dirty_count += usize::from(made_dirty);
        page.causes.note(trace::cause());
        Ok((Arc::make_mut(&mut page.block), made_dirty))
    }

    /// Puts a page at a position, to be changed; it is dirty.
    pub fn insert(&mut self, position: FileBlock, block: Arc<Block>) -> &mut Block {
        let previous = self.pages.insert(position, Page::new(block));
        if previous.is_none_or(|page| page.in_flight.is_some()) {
            self.dirty_count += 1;
        }
        let page = self.pages.get_mut(&position).expect("it was just inserted");
        page.causes.note(trace::cause());
        Arc::make_mut(&mut page.block)
    }

    /// How many pages wait for an epoch.
    pub fn dirty_count(&self) -> usize {
        self.dirty_count
    }

    /// Whether no page is here.
    pub fn is_empty(&self) -> bool {
        assert!(self.dirty_count <= self.pages.len(), "each dirty page is counted once");
        self.pages.is_empty()
    }

    /// Positions of the dirty pages in a range, in order.
    pub fn dirty_in(
        &self,
        range: std::ops::Range<FileBlock>,
    ) -> impl Iterator<Item = FileBlock> + '_ {
        self.pages
            .range(range)
            .filter(|(_, page)| page.in_flight.is_none())
            .map(|(position, _)| *position)
    }

    /// The first position at or after `from` that has a page.
    pub fn next_at(&self, from: FileBlock) -> Option<FileBlock> {
        self.pages.range(from..).next().map(|(position, _)| *position)
    }

    /// The operations that changed a page since an epoch took it last.
    pub fn causes(&self, position: FileBlock) -> Option<&Causes> {
        self.pages.get(&position).map(|page| &page.causes)
    }

    /// Adds operations to those that changed a page.
    pub fn note_causes(&mut self, position: FileBlock, causes: &Causes) {
        if let Some(page) = self.pages.get_mut(&position) {
            page.causes.note_all(causes);
        }
    }

    /// Marks a page as being written by an epoch and returns what is to be written.
    pub fn start_write(&mut self, position: FileBlock, epoch: EpochNo) -> Option<Arc<Block>> {
        let page = self.pages.get_mut(&position)?;
        if page.in_flight.replace(epoch).is_none() {
            self.dirty_count -= 1;
        }
        page.causes.clear();
        Some(page.block.clone())
    }

    /// Drops a page that the epoch has written, unless it was changed since.
    pub fn finish_write(&mut self, position: FileBlock, epoch: EpochNo) {
        if self.pages.get(&position).is_some_and(|page| page.in_flight == Some(epoch)) {
            self.pages.remove(&position);
        }
    }

    /// Drops the pages from a position on and returns how many of them were dirty.
    pub fn truncate(&mut self, from: FileBlock) -> usize {
        self.remove_range(from..FileBlock::END)
    }

    /// Drops the pages of a range and returns how many of them were dirty.
    pub fn remove_range(&mut self, range: std::ops::Range<FileBlock>) -> usize {
        let positions: Vec<FileBlock> = self.pages.range(range).map(|(p, _)| *p).collect();
        let mut dirty = 0;
        for position in positions {
            if self.pages.remove(&position).is_some_and(|page| page.in_flight.is_none()) {
                dirty += 1;
            }
        }
        self.dirty_count -= dirty;
        debug_assert_eq!(self.dirty_count, self.dirty_in(FileBlock::ALL).count());
        dirty
    }
}

#[cfg(test)]
mod tests;
