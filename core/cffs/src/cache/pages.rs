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
use std::ops::Range;
use std::sync::Arc;

use super::Block;
use crate::lock::Rule;
use crate::trace::{self, Causes};
use crate::units::{EpochNo, FileBlock};

/// A changed block.
#[derive(Clone, Debug)]
pub struct Page {
    /// The contents.
    pub block: Arc<Block>,
    /// The epoch that is writing this version of the page; `None` while it is dirty.
    pub in_flight: Option<EpochNo>,
    /// The operations that changed it since an epoch took it last.
    causes: Causes,
}

impl Page {
    fn new(block: Arc<Block>) -> Page {
        Page { block, in_flight: None, causes: Causes::default() }
    }
}

/// Pages by position. Most files are smaller than a page, which then needs no tree node.
#[derive(Debug)]
enum Map {
    One(Option<(FileBlock, Page)>),
    Many(BTreeMap<FileBlock, Page>),
}

impl Default for Map {
    fn default() -> Map {
        Map::One(None)
    }
}

impl Map {
    fn len(&self) -> usize {
        match self {
            Map::One(one) => one.iter().len(),
            Map::Many(tree) => tree.len(),
        }
    }

    fn get(&self, position: FileBlock) -> Option<&Page> {
        match self {
            Map::One(one) => one.as_ref().filter(|(at, _)| *at == position).map(|(_, page)| page),
            Map::Many(tree) => tree.get(&position),
        }
    }

    fn get_mut(&mut self, position: FileBlock) -> Option<&mut Page> {
        match self {
            Map::One(one) => one.as_mut().filter(|(at, _)| *at == position).map(|(_, page)| page),
            Map::Many(tree) => tree.get_mut(&position),
        }
    }

    fn range(&self, range: Range<FileBlock>) -> impl Iterator<Item = (FileBlock, &Page)> {
        let (one, many) = match self {
            Map::One(one) => (one.as_ref().filter(|(at, _)| range.contains(at)), None),
            Map::Many(tree) => (None, Some(tree.range(range))),
        };
        let one = one.map(|(at, page)| (*at, page));
        one.into_iter().chain(many.into_iter().flatten().map(|(at, page)| (*at, page)))
    }

    /// The same pages, in a form with room for one at this position.
    fn with_room_at(&mut self, position: FileBlock) -> &mut Map {
        if let Map::One(one) = self
            && one.as_ref().is_some_and(|(at, _)| *at != position)
        {
            *self = Map::Many(one.take().into_iter().collect());
        }
        self
    }

    /// Puts a page at a position, and returns the previous one.
    fn insert(&mut self, position: FileBlock, page: Page) -> Option<Page> {
        match self.with_room_at(position) {
            Map::One(one) => one.replace((position, page)).map(|(_, before)| before),
            Map::Many(tree) => tree.insert(position, page),
        }
    }

    /// The page at a position, loaded by `load` if it is missing; and whether it was present.
    fn get_or_load<E>(
        &mut self,
        position: FileBlock,
        load: impl FnOnce() -> Result<Arc<Block>, E>,
    ) -> Result<(&mut Page, bool), E> {
        match self.with_room_at(position) {
            Map::One(one) => {
                let is_there = one.is_some();
                if one.is_none() {
                    *one = Some((position, Page::new(load()?)));
                }
                let (_, page) = one.as_mut().expect("it was there, or was just put there");
                Ok((page, is_there))
            }
            Map::Many(tree) => match tree.entry(position) {
                Entry::Occupied(entry) => Ok((entry.into_mut(), true)),
                Entry::Vacant(entry) => Ok((entry.insert(Page::new(load()?)), false)),
            },
        }
    }

    fn remove(&mut self, position: FileBlock) -> Option<Page> {
        match self {
            Map::One(one) => one.take_if(|(at, _)| *at == position).map(|(_, page)| page),
            Map::Many(tree) => tree.remove(&position),
        }
    }
}

/// The changed blocks of a file.
#[derive(Debug, Default)]
pub struct Pages {
    pages: Map,
    dirty_count: usize,
}

impl Pages {
    /// The page at a position, dirty or in flight.
    pub fn get(&self, position: FileBlock) -> Option<&Arc<Block>> {
        self.pages.get(position).map(|page| &page.block)
    }

    /// Whether the page at a position waits for an epoch.
    pub fn is_dirty(&self, position: FileBlock) -> bool {
        self.pages.get(position).is_some_and(|page| page.in_flight.is_none())
    }

    /// The page at a position, if it exists, for changing it: it becomes dirty. Also returns whether it was
    /// clean before.
    pub fn get_mut(&mut self, position: FileBlock) -> Option<(&mut Block, bool)> {
        let page = self.pages.get_mut(position)?;
        let made_dirty = page.in_flight.take().is_some();
        self.dirty_count += usize::from(made_dirty);
        page.causes.note(trace::cause());
        Some((Arc::make_mut(&mut page.block), made_dirty))
    }

    /// The same, with a page from elsewhere if it does not exist.
    pub fn get_or_load<E>(
        &mut self,
        position: FileBlock,
        load: impl FnOnce() -> Result<Arc<Block>, E>,
    ) -> Result<(&mut Block, bool), E> {
        let (page, was_there) = self.pages.get_or_load(position, load)?;
        let made_dirty = page.in_flight.take().is_some() || !was_there;
        self.dirty_count += usize::from(made_dirty);
        page.causes.note(trace::cause());
        Ok((Arc::make_mut(&mut page.block), made_dirty))
    }

    /// Puts a dirty page at a position, to be changed.
    pub fn insert(&mut self, position: FileBlock, block: Arc<Block>) -> &mut Block {
        let previous = self.pages.insert(position, Page::new(block));
        if previous.is_none_or(|page| page.in_flight.is_some()) {
            self.dirty_count += 1;
        }
        let page = self.pages.get_mut(position).expect("it was just inserted");
        page.causes.note(trace::cause());
        Arc::make_mut(&mut page.block)
    }

    /// The number of pages that wait for an epoch.
    pub fn dirty_count(&self) -> usize {
        self.dirty_count
    }

    /// Whether the file has no pages in memory.
    pub fn is_empty(&self) -> bool {
        assert!(self.dirty_count <= self.pages.len(), "each dirty page is counted once");
        self.pages.len() == 0
    }

    /// Positions of the dirty pages in a range, in order.
    pub fn dirty_in(&self, range: Range<FileBlock>) -> impl Iterator<Item = FileBlock> + '_ {
        self.pages
            .range(range)
            .filter(|(_, page)| page.in_flight.is_none())
            .map(|(position, _)| position)
    }

    /// The first position at or after `from` that has a page.
    pub fn next_at(&self, from: FileBlock) -> Option<FileBlock> {
        self.pages.range(from..FileBlock::END).next().map(|(position, _)| position)
    }

    /// The operations that changed a page since an epoch took it last.
    pub fn causes(&self, position: FileBlock) -> Option<&Causes> {
        self.pages.get(position).map(|page| &page.causes)
    }

    /// Adds operations to those that changed a page.
    pub fn note_causes(&mut self, position: FileBlock, causes: &Causes) {
        if let Some(page) = self.pages.get_mut(position) {
            page.causes.note_all(causes);
        }
    }

    /// Marks a page as being written by an epoch and returns its contents.
    pub fn start_write(&mut self, position: FileBlock, epoch: EpochNo) -> Option<Arc<Block>> {
        let page = self.pages.get_mut(position)?;
        if page.in_flight.replace(epoch).is_none() {
            self.dirty_count -= 1;
        }
        page.causes.clear();
        Some(page.block.clone())
    }

    /// Drops a page that the epoch has written, unless it was changed since.
    pub fn finish_write(&mut self, position: FileBlock, epoch: EpochNo) {
        let is_written = |page: &Page| page.in_flight == Some(epoch);
        if self.pages.get(position).is_some_and(is_written) {
            self.pages.remove(position);
        } else if !Rule::ChangedPagesStay.holds() {
            self.remove_range(position..position.next());
        }
    }

    /// Drops the pages of a range and returns how many of them were dirty.
    pub fn remove_range(&mut self, range: Range<FileBlock>) -> usize {
        let positions: Vec<FileBlock> = self.pages.range(range).map(|(at, _)| at).collect();
        let mut dirty = 0;
        for position in positions {
            if self.pages.remove(position).is_some_and(|page| page.in_flight.is_none()) {
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
