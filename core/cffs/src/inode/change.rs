//! Changing the contents of files in memory: writing, truncating, punching holes, preallocating.
//!
//! A change goes to a page; the epoch places the page on the device. A page that is in memory is complete:
//! the part that the change does not cover was read first. Bytes after the end of the file are zero in every
//! page and in every mapped fragment.

use std::ops::Range;
use std::sync::Arc;

use super::{
    Content, Contents, DirtyLevel, ExtentMap, InodeCache, Mapping, SpacePlan, VnodeGuard,
    VnodeState,
};
use crate::alloc::Allocator;
use crate::cache::Block;
use crate::error::{Error, Result};
use crate::format::LiveLayout;
use crate::format::inode::FileType;
use crate::units::{FileBlock, FileFrag};

/// Changes the contents of files in memory.
#[derive(Clone, Copy)]
pub struct PageWriter<'a> {
    pub(super) inodes: &'a InodeCache,
    pub(super) layout: &'a LiveLayout,
    pub(super) alloc: &'a Allocator,
    contents: Contents<'a>,
    pub(super) space: SpacePlan<'a>,
}

impl<'a> PageWriter<'a> {
    pub(super) fn new(inodes: &'a InodeCache) -> PageWriter<'a> {
        PageWriter {
            inodes,
            layout: &inodes.layout,
            alloc: &inodes.alloc,
            contents: inodes.contents(),
            space: inodes.space(),
        }
    }

    /// A page of a file, to change it. If `whole`, its old contents are not read: the caller
    /// overwrites all of it up to the end of the file.
    pub fn page_mut<'f>(
        &self,
        file: &'f mut VnodeGuard<'_>,
        position: FileBlock,
        whole: bool,
    ) -> Result<&'f mut Block> {
        if !file.pages.is_dirty(position) {
            self.part_cluster(file, position)?;
            let block = if file.pages.get(position).is_some() {
                None
            } else if whole || self.layout.file_offset(position) >= file.inode.size {
                Some(Arc::new(Block::zeroed(self.layout.block_bytes as usize)))
            } else {
                Some(self.contents.load_page(file, position)?)
            };
            self.space.promise_page(file, position)?;
            if let Some(block) = block {
                self.inodes.count_dirty(file, |file| {
                    file.pages.insert(position, block);
                });
            }
            self.inodes.queue(file.vnode);
        }
        self.inodes.dirty_page(file, position).ok_or(Error::Stale)
    }

    /// Reads a small file with a checksum into memory and drops the checksum: the next epoch writes the whole
    /// file to a new place, so that contents and checksum change together.
    pub(super) fn own_contents(&self, file: &mut VnodeGuard<'_>) -> Result<()> {
        if file.inode.content_checksum.is_none() {
            return Ok(());
        }
        self.contents.verify_contents(file)?;
        self.move_contents(file, false)
    }

    /// Reads all of a file into memory, so that the next epoch writes it to another place. Fails if contents
    /// do not match their checksum, and leaves them.
    pub fn move_whole(&self, file: &mut VnodeGuard<'_>) -> Result<()> {
        self.contents.verify_contents(file)?;
        self.move_contents(file, false)
    }

    /// The same for a file that the caller overwrites from its beginning to its end: nothing is read.
    /// Afterwards all its pages are in memory, so filling them cannot fail.
    fn own_replaced(&self, file: &mut VnodeGuard<'_>) -> Result<()> {
        if file.inode.content_checksum.is_none() || !file.pages.is_empty() {
            return self.own_contents(file);
        }
        self.move_contents(file, true)
    }

    fn move_contents(&self, file: &mut VnodeGuard<'_>, replaced: bool) -> Result<()> {
        let (moves, was_clean) = (file.changes.moves, file.pages.is_empty());
        file.changes.moves = true;
        let owned = self.own_pages(file, replaced);
        // Nothing is changed yet, so pages that are not in flight can be dropped.
        if owned.is_err() && was_clean {
            self.drop_pages(file, FileBlock::ALL);
        }
        if owned.is_err() && file.pages.dirty_count() == 0 {
            file.changes.moves = moves;
            self.space.withdraw_unused(file);
        } else {
            file.inode.content_checksum = None;
            self.inodes.mark_changed(file, DirtyLevel::Contents);
        }
        owned
    }

    fn own_pages(&self, file: &mut VnodeGuard<'_>, replaced: bool) -> Result<()> {
        let pages = self.layout.file_block_from(file.inode.size).0;
        for position in (0..pages).map(FileBlock) {
            if replaced || self.is_mapped(file, position) {
                self.page_mut(file, position, replaced)?;
            }
        }
        Ok(())
    }

    /// Drops the checksum of a file without moving its contents. The inode must be on the device in this
    /// state before the contents are overwritten in place.
    pub fn drop_checksum(&self, file: &mut VnodeGuard<'_>) {
        file.inode.content_checksum = None;
        file.changes.moves = true;
        self.inodes.mark_dirty(file);
    }

    /// Moves contents out of the inode, into pages.
    pub fn leave_inline(&self, file: &mut VnodeGuard<'_>) -> Result<()> {
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
        self.inodes.mark_dirty(file);
        Ok(())
    }

    /// Writes to a file whose contents are in pages; it grows as needed. If that fails, the contents are
    /// as before.
    pub fn write(&self, file: &mut VnodeGuard<'_>, offset: u64, data: &[u8]) -> Result<()> {
        let end = offset + data.len() as u64;
        let was_clean = file.pages.is_empty();
        let (checksum, moves) = (file.inode.content_checksum, file.changes.moves);
        if offset == 0 && end >= file.inode.size {
            self.own_replaced(file)?
        } else {
            self.own_contents(file)?
        }
        let mut replaced = Vec::new();
        if let Err(error) = self.take_pages(file, offset..end, &mut replaced) {
            if was_clean {
                self.drop_pages(file, FileBlock::ALL);
                (file.inode.content_checksum, file.changes.moves) = (checksum, moves);
            } else {
                for position in replaced {
                    self.drop_pages(file, position..FileBlock(position.0 + 1));
                }
                let after = self.layout.file_block_from(file.inode.size);
                self.drop_pages(file, after..FileBlock::END);
            }
            return Err(error);
        }
        self.fill_pages(file, offset, data)?;
        self.inodes.mark_changed(file, DirtyLevel::Contents);
        Ok(())
    }

    /// The parts of a range of a file that are in one page each.
    fn parts(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let block_bytes = u64::from(self.layout.block_bytes);
        let next = move |part: &Range<u64>| {
            let end = range.end.min((part.end / block_bytes + 1) * block_bytes);
            (part.end < range.end).then_some(part.end..end)
        };
        std::iter::successors(next(&(0..range.start)), next)
    }

    /// Makes the pages of a range dirty before they are filled, so that a write changes nothing if one of
    /// them has no space or cannot be read. Pages before the end of the file that are overwritten as a whole
    /// are not read, and are added to `replaced`.
    fn take_pages(
        &self,
        file: &mut VnodeGuard<'_>,
        range: Range<u64>,
        replaced: &mut Vec<FileBlock>,
    ) -> Result<()> {
        self.space.promise_growth(file, range.end)?;
        let block_bytes = u64::from(self.layout.block_bytes);
        for part in self.parts(range) {
            let is_to_end = part.end - part.start == block_bytes || part.end >= file.inode.size;
            let whole = part.start.is_multiple_of(block_bytes) && is_to_end;
            let position = self.layout.file_block(part.start);
            let is_read = !whole || file.pages.get(position).is_some();
            self.page_mut(file, position, whole)?;
            if !is_read && part.start < file.inode.size {
                replaced.push(position);
            }
            // On a full volume, this may be the first time that the last page is changed in place.
            self.space.promise_growth(file, part.end)?;
        }
        Ok(())
    }

    /// Writes to pages that are dirty.
    fn fill_pages(&self, file: &mut VnodeGuard<'_>, offset: u64, data: &[u8]) -> Result<()> {
        let block_bytes = u64::from(self.layout.block_bytes);
        let end = offset + data.len() as u64;
        for part in self.parts(offset..end) {
            let piece = &data[(part.start - offset) as usize..(part.end - offset) as usize];
            let into = (part.start % block_bytes) as usize;
            let page = self.inodes.dirty_page(file, self.layout.file_block(part.start));
            page.ok_or(Error::Stale)?[into..into + piece.len()].copy_from_slice(piece);
            file.inode.size = file.inode.size.max(part.end);
            file.stay();
        }
        Ok(())
    }

    /// Sets the size of a file whose contents are in pages.
    pub fn set_size(&self, file: &mut VnodeGuard<'_>, size: u64) -> Result<()> {
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
                self.space.promise_spill(file, 2, true)?;
            }
            self.drop_pages(file, self.layout.file_block_from(size)..FileBlock::END);
            self.space.note_cut(file, size);
            let first = FileFrag(self.layout.fragments_for(size));
            self.space.unmap(file, first..FileFrag::END);
            if size == 0 {
                file.inode.content_checksum = None;
                if self.inodes.features.inline_bytes_max > 0
                    && file.inode.file_type == FileType::Regular
                {
                    self.space.free_tree(file);
                    file.inode.content = Content::Inline(Vec::new());
                }
            }
        } else if size > old {
            self.own_contents(file)?;
            self.space.promise_growth(file, size)?;
        }
        file.inode.size = size;
        self.inodes.mark_dirty(file);
        Ok(())
    }

    pub(super) fn has_data(&self, file: &VnodeState, position: FileBlock) -> bool {
        file.pages.get(position).is_some() || self.is_mapped(file, position)
    }

    /// Whether any fragment of a block of a file is mapped.
    fn is_mapped(&self, file: &VnodeState, position: FileBlock) -> bool {
        let fragments = u64::from(self.layout.block_fragments());
        let first = self.layout.file_frag(position);
        let is_hole =
            |map: &ExtentMap| matches!(map.find(first), Mapping::Hole(len) if len >= fragments);
        file.inode.map().is_some_and(|map| !is_hole(map))
    }

    /// Drops the pages of a container in a range, and withdraws the promises of blocks for new ones.
    pub fn drop_blocks(&self, file: &mut VnodeGuard<'_>, range: Range<FileBlock>) {
        let fragments = self.layout.block_fragments();
        let map = file.inode.map();
        let is_new = |at: &FileBlock| map.is_some_and(|map| map.block_at(*at, fragments).is_none());
        let new = file.pages.dirty_in(range.clone()).filter(is_new).count() as u64;
        let blocks = new.min(file.promised.blocks);
        if blocks > 0 {
            file.promised.blocks -= blocks;
            self.alloc.withdraw_blocks(blocks);
        }
        self.drop_pages(file, range);
    }

    /// Drops the pages of a file in a range. Pages in flight have their place: a file without changed pages
    /// has no promises.
    pub(super) fn drop_pages(&self, file: &mut VnodeGuard<'_>, range: Range<FileBlock>) {
        self.inodes.count_dirty(file, |file| file.pages.remove_range(range));
        if file.pages.dirty_count() == 0 {
            self.space.settle_promises(file);
        }
    }

    /// Makes a range of a file read as zeros and frees its whole blocks. The size stays.
    pub fn punch(&self, file: &mut VnodeGuard<'_>, offset: u64, len: u64) -> Result<()> {
        let end = (offset + len).min(file.inode.size.max(offset));
        if let Content::Inline(bytes) = &mut file.inode.content {
            let from = (offset as usize).min(bytes.len());
            let to = (end as usize).min(bytes.len());
            bytes[from..to].fill(0);
            self.inodes.mark_dirty(file);
            return Ok(());
        }
        self.own_contents(file)?;
        let layout = **self.layout;
        let first_whole = layout.file_block_from(offset);
        // Blocks after the end of the file are freed too.
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
            self.space.promise_spill(file, 2, true)?;
            self.split_around(file, layout.file_frag(first_whole)..layout.file_frag(end_whole))?;
            self.drop_pages(file, first_whole..end_whole);
            self.space.unmap(file, layout.file_frag(first_whole)..layout.file_frag(end_whole));
        }
        self.inodes.mark_dirty(file);
        Ok(())
    }

    /// Maps the holes of a range to fragments that read as zeros. The size stays.
    pub fn preallocate(&self, file: &mut VnodeGuard<'_>, offset: u64, len: u64) -> Result<()> {
        self.leave_inline(file)?;
        self.own_contents(file)?;
        let (first, end) =
            (self.layout.file_block(offset), self.layout.file_block_from(offset + len));
        let range = self.layout.file_frag(first)..self.layout.file_frag(end);
        let missing = self.space.holes(file, range.clone());
        self.alloc.promise(missing, file.spender)?;
        let mut new = Vec::new();
        let mut mapped = self.space.map_holes(file, range, &mut new);
        self.alloc.withdraw(missing);
        if mapped.is_ok() {
            mapped = self.space.promise_spill(file, 2 * new.len() as u64, false);
        }
        if mapped.is_err() {
            new.into_iter().for_each(|range| self.space.unmap(file, range));
        }
        self.inodes.mark_dirty(file);
        mapped
    }
}
