//! Changing the contents of files in memory: writing, cutting off, punching holes.
//!
//! A change goes to a page; it has a place on the device when the epoch places it. A page that is
//! in memory is complete: what it did not change was read first. Bytes after the end of the file
//! are zero in every page and in every mapped fragment.

use std::ops::Range;
use std::sync::Arc;

use super::{Changed, Content, ExtentMap, Locked, Mapping, Store, VnodeState};
use crate::cache::Block;
use crate::error::{Error, Result};
use crate::format::inode::FileType;
use crate::units::{FileBlock, FileFrag};

impl Store {
    /// A page of a file, to change it. If `whole`, its old contents are not read: the caller
    /// overwrites all of it up to the end of the file.
    pub fn page_mut<'a>(
        &self,
        file: &'a mut Locked<'_>,
        position: FileBlock,
        whole: bool,
    ) -> Result<&'a mut Block> {
        if !file.pages.is_dirty(position) {
            let block = if file.pages.get(position).is_some() {
                None
            } else if whole || self.layout.file_offset(position) >= file.inode.size {
                Some(Arc::new(Block::zeroed(self.layout.block_bytes as usize)))
            } else {
                Some(self.load_page(file, position)?)
            };
            self.promise_page(file, position)?;
            if let Some(block) = block {
                self.count_dirty(file, |file| {
                    file.pages.insert(position, block);
                });
            }
            self.queue(file.vnode);
        }
        self.dirty_page(file, position).ok_or(Error::Stale)
    }

    /// Brings all of a small file with a checksum into memory and drops the checksum: the next
    /// epoch writes the file anew, to a new place, so that contents and checksum change together.
    pub(super) fn own_contents(&self, file: &mut Locked<'_>) -> Result<()> {
        if file.inode.content_checksum.is_none() {
            return Ok(());
        }
        self.verify_contents(file)?;
        self.move_contents(file, false)
    }

    /// Brings all of a file into memory, as it is, to be written anew elsewhere: contents that do not match
    /// their checksum fail, and stay.
    pub fn move_whole(&self, file: &mut Locked<'_>) -> Result<()> {
        self.verify_contents(file)?;
        self.move_contents(file, false)
    }

    /// The same for a file that the caller overwrites from its beginning to its end, so that nothing of
    /// it need be read. All its pages are there then, and nothing can go wrong before they are filled.
    fn own_replaced(&self, file: &mut Locked<'_>) -> Result<()> {
        if file.inode.content_checksum.is_none() || !file.pages.is_empty() {
            return self.own_contents(file);
        }
        self.move_contents(file, true)
    }

    fn move_contents(&self, file: &mut Locked<'_>, replaced: bool) -> Result<()> {
        let (moves, was_clean) = (file.changes.moves, file.pages.is_empty());
        file.changes.moves = true;
        if let Err(error) = self.own_pages(file, replaced) {
            // Nothing is changed yet: the pages can go again.
            if was_clean {
                self.drop_pages(file, FileBlock::ALL);
                file.changes.moves = moves;
            }
            return Err(error);
        }
        file.inode.content_checksum = None;
        self.mark_changed(file, Changed::Contents);
        Ok(())
    }

    fn own_pages(&self, file: &mut Locked<'_>, replaced: bool) -> Result<()> {
        let pages = self.layout.file_block_from(file.inode.size).0;
        for position in (0..pages).map(FileBlock) {
            if replaced || self.is_mapped(file, position) {
                self.page_mut(file, position, replaced)?;
            }
        }
        Ok(())
    }

    /// Gives up the checksum of a file without moving its contents. The inode must be on the device
    /// in this state before the contents are overwritten in place.
    pub fn drop_checksum(&self, file: &mut Locked<'_>) {
        file.inode.content_checksum = None;
        file.changes.moves = true;
        self.mark_dirty(file);
    }

    /// Moves contents out of the inode, into pages.
    pub fn leave_inline(&self, file: &mut Locked<'_>) -> Result<()> {
        let Content::Inline(bytes) = &mut file.inode.content else { return Ok(()) };
        let bytes = std::mem::take(bytes);
        file.inode.content = Content::Map(ExtentMap::default());
        let block_bytes = self.layout.block_bytes as usize;
        for (position, piece) in (0..).zip(bytes.chunks(block_bytes)) {
            match self.page_mut(file, FileBlock(position), true) {
                Ok(page) => page[..piece.len()].copy_from_slice(piece),
                Err(error) => {
                    self.drop_pages(file, FileBlock::ALL);
                    file.inode.content = Content::Inline(bytes);
                    return Err(error);
                }
            }
        }
        self.mark_dirty(file);
        Ok(())
    }

    /// Writes to a file whose contents are in pages; it grows as needed. If that fails, the file has
    /// the size that it had, and may have new contents before its end.
    pub fn write(&self, file: &mut Locked<'_>, offset: u64, data: &[u8]) -> Result<()> {
        let size = file.inode.size;
        let end = offset + data.len() as u64;
        if offset == 0 && end >= size {
            self.own_replaced(file)?
        } else {
            self.own_contents(file)?
        }
        self.promise_growth(file, end)?;
        let written = self.write_to_pages(file, offset, data);
        if written.is_err() && file.inode.size > size {
            self.shrink_to(file, size);
        }
        self.mark_changed(file, Changed::Contents);
        written
    }

    fn write_to_pages(&self, file: &mut Locked<'_>, offset: u64, data: &[u8]) -> Result<()> {
        let block_bytes = u64::from(self.layout.block_bytes);
        let end = offset + data.len() as u64;
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let into = (at % block_bytes) as usize;
            let len = rest.len().min(block_bytes as usize - into);
            let (piece, after) = rest.split_at(len);
            let whole = into == 0 && (len == block_bytes as usize || end >= file.inode.size);
            let position = self.layout.file_block(at);
            self.page_mut(file, position, whole)?;
            // On a full volume it may have turned out only now that the last page is changed where it lies.
            self.promise_growth(file, at + len as u64)?;
            let page = self.dirty_page(file, position).ok_or(Error::Stale)?;
            page[into..into + len].copy_from_slice(piece);
            at += len as u64;
            rest = after;
            file.inode.size = file.inode.size.max(at);
            file.stay();
        }
        Ok(())
    }

    /// Takes back what a write that failed has put after the end of the file.
    fn shrink_to(&self, file: &mut Locked<'_>, size: u64) {
        let block_bytes = u64::from(self.layout.block_bytes);
        self.drop_pages(file, self.layout.file_block_from(size)..FileBlock::END);
        file.inode.size = size;
        let (last, tail) = (self.layout.file_block(size), (size % block_bytes) as usize);
        if tail > 0
            && file.pages.is_dirty(last)
            && let Some(page) = self.dirty_page(file, last)
        {
            page[tail..].fill(0);
        }
    }

    /// Sets the size of a file whose contents are in pages.
    pub fn set_size(&self, file: &mut Locked<'_>, size: u64) -> Result<()> {
        let old = file.inode.size;
        let block_bytes = u64::from(self.layout.block_bytes);
        if size < old {
            if size > 0 {
                self.own_contents(file)?;
            }
            let (last, tail) = (self.layout.file_block(size), (size % block_bytes) as usize);
            if tail > 0 && self.has_data(file, last) {
                self.page_mut(file, last, false)?[tail..].fill(0);
            }
            if size > 0 {
                self.promise_spill(file, 2, true)?;
            }
            self.drop_pages(file, self.layout.file_block_from(size)..FileBlock::END);
            self.note_cut(file, size);
            let first = FileFrag(self.layout.fragments_for(size));
            self.unmap(file, first..FileFrag::END);
            if size == 0 {
                file.inode.content_checksum = None;
                if self.features.inline_bytes_max > 0 && file.inode.file_type == FileType::Regular {
                    self.free_tree(file);
                    file.inode.content = Content::Inline(Vec::new());
                }
            }
        } else if size > old {
            self.own_contents(file)?;
            self.promise_growth(file, size)?;
        }
        file.inode.size = size;
        self.mark_dirty(file);
        Ok(())
    }

    pub(super) fn has_data(&self, file: &VnodeState, position: FileBlock) -> bool {
        file.pages.get(position).is_some() || self.is_mapped(file, position)
    }

    /// Whether any of a block of a file has a place.
    fn is_mapped(&self, file: &VnodeState, position: FileBlock) -> bool {
        let fragments = u64::from(self.layout.block_fragments());
        let first = self.layout.file_frag(position);
        let is_hole =
            |map: &ExtentMap| matches!(map.find(first), Mapping::Hole(len) if len >= fragments);
        file.inode.map().is_some_and(|map| !is_hole(map))
    }

    /// Drops the pages of a container in a range, with the blocks that were promised to new ones.
    pub fn drop_blocks(&self, file: &mut Locked<'_>, range: Range<FileBlock>) {
        let fragments = self.layout.block_fragments();
        let map = file.inode.map();
        let is_new = |at: &FileBlock| map.is_some_and(|map| map.block_at(*at, fragments).is_none());
        let new = file.pages.dirty_in(range.clone()).filter(is_new).count() as u64;
        let blocks = new.min(file.promised.blocks);
        if blocks > 0 {
            file.promised.blocks -= blocks;
            self.alloc.unreserve_blocks(blocks);
        }
        self.drop_pages(file, range);
    }

    /// Drops the pages of a file in a range. What is in flight has its place: without changed pages nothing
    /// is promised any more.
    pub(super) fn drop_pages(&self, file: &mut Locked<'_>, range: Range<FileBlock>) {
        self.count_dirty(file, |file| file.pages.remove_range(range));
        if file.pages.dirty_count() == 0 {
            self.settle_promises(file);
        }
    }

    /// Makes a range of a file read as zeros and frees what is mapped there in whole blocks. The
    /// size stays.
    pub fn punch(&self, file: &mut Locked<'_>, offset: u64, len: u64) -> Result<()> {
        let end = (offset + len).min(file.inode.size.max(offset));
        if let Content::Inline(bytes) = &mut file.inode.content {
            let from = (offset as usize).min(bytes.len());
            let to = (end as usize).min(bytes.len());
            bytes[from..to].fill(0);
            self.mark_dirty(file);
            return Ok(());
        }
        self.own_contents(file)?;
        let layout = *self.layout;
        let first_whole = layout.file_block_from(offset);
        // What lies after the end of the file goes as well, whole blocks that they are.
        let after = offset + len;
        let end_whole = if after >= file.inode.size {
            layout.file_block_from(after)
        } else {
            layout.file_block(after)
        };
        let (head_end, tail_start) =
            (layout.file_offset(first_whole), layout.file_offset(end_whole));
        for (from, to) in [(offset, head_end), (tail_start, end)] {
            let (from, to) = (from.max(offset), to.min(end));
            let position = layout.file_block(from);
            if from < to && self.has_data(file, position) {
                let page = self.page_mut(file, position, false)?;
                let into = (from - layout.file_offset(position)) as usize;
                page[into..into + (to - from) as usize].fill(0);
            }
        }
        if first_whole < end_whole {
            self.promise_spill(file, 2, true)?;
            self.drop_pages(file, first_whole..end_whole);
            self.unmap(file, layout.file_frag(first_whole)..layout.file_frag(end_whole));
        }
        self.mark_dirty(file);
        Ok(())
    }
}
