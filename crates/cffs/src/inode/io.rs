//! Contents of files in memory: reading them, changing them, and cutting them off.
//!
//! A change goes to a page; it has a place on the device when the epoch places it. A page that is
//! in memory is complete: what it did not change was read first. Bytes after the end of the file
//! are zero in every page and in every mapped fragment.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Changed, Content, ExtentMap, Locked, Mapping, Store, VnodeState};
use crate::alloc::{Kind, Owner, Request};
use crate::cache::Block;
use crate::error::{Corruption, Error, Result};
use crate::format::checksum;
use crate::format::inode::FileType;
use crate::units::{BlockNo, FragNo, FragRun};

/// A larger file lies apart from the others of its directory.
const AMONG_OTHERS_BYTES_MAX: u64 = 2 << 20;

impl Store {
    /// How a file of this size is placed.
    pub(super) fn kind_of(&self, size: u64) -> Kind {
        match size {
            small if small <= self.small_bytes_max() => Kind::Small,
            medium if medium <= AMONG_OTHERS_BYTES_MAX => Kind::Medium,
            _ => Kind::Large,
        }
    }

    /// Files up to this size are placed whole, and have a checksum.
    pub fn small_bytes_max(&self) -> u64 {
        self.layout.segment_bytes.into()
    }

    /// Whether all of a file, or its end, may go into a hole among others of its key.
    pub fn may_fill_holes(&self, file: &VnodeState) -> bool {
        let fragments = self.layout.fragments_for(file.inode.size);
        let has_tail = !fragments.is_multiple_of(self.layout.block_fragments().into());
        has_tail || self.kind_of(file.inode.size) != Kind::Large
    }

    /// Reads from the run of the volume that begins at `start`, `skip` bytes in; nothing is read ahead
    /// from `until` on.
    pub(super) fn read_fragments(
        &self,
        start: FragNo,
        skip: u64,
        out: &mut [u8],
        until: BlockNo,
    ) -> Result<()> {
        let block_bytes = u64::from(self.layout.block_bytes);
        let mut at = start.0 * u64::from(self.layout.fragment_bytes) + skip;
        let mut rest = out;
        while !rest.is_empty() {
            let number = BlockNo(at / block_bytes);
            let into = (at % block_bytes) as usize;
            let wanted = (into + rest.len()).div_ceil(block_bytes as usize) as u32;
            let block = self.cache.read_near(number, wanted, until)?;
            let len = rest.len().min(block.len() - into);
            let (piece, after) = rest.split_at_mut(len);
            piece.copy_from_slice(&block[into..into + len]);
            at += len as u64;
            rest = after;
        }
        Ok(())
    }

    /// Reads from a file into `out`, at most to its end, and returns how many bytes.
    pub fn read(&self, file: &VnodeState, offset: u64, out: &mut [u8]) -> Result<usize> {
        let size = file.inode.size;
        let len = size.saturating_sub(offset).min(out.len() as u64) as usize;
        if len == 0 {
            return Ok(0);
        }
        let out = &mut out[..len];
        match &file.inode.content {
            Content::Inline(bytes) => {
                out.copy_from_slice(&bytes[offset as usize..offset as usize + len]);
            }
            Content::Map(map) if len as u64 == size => {
                let expected = self.checksum_to_verify(file)?;
                self.read_mapped(file, map, 0, out)?;
                verify(file, expected, out)?;
            }
            Content::Map(map) => {
                self.verify_contents(file)?;
                self.read_mapped(file, map, offset, out)?;
            }
        }
        Ok(len)
    }

    fn read_mapped(
        &self,
        file: &VnodeState,
        map: &ExtentMap,
        offset: u64,
        out: &mut [u8],
    ) -> Result<()> {
        let block_bytes = u64::from(self.layout.block_bytes);
        let fragment_bytes = u64::from(self.layout.fragment_bytes);
        let mut done = 0;
        while done < out.len() {
            let at = offset + done as u64;
            let position = at / block_bytes;
            let left = out.len() - done;
            if let Some(page) = file.pages.get(position) {
                let into = (at % block_bytes) as usize;
                let len = left.min(page.len() - into);
                out[done..done + len].copy_from_slice(&page[into..into + len]);
                done += len;
                continue;
            }
            let next_page = file.pages.next_at(position).map_or(u64::MAX, |p| p * block_bytes - at);
            let into = at % fragment_bytes;
            let limit = |fragments: u64| {
                (fragments.saturating_mul(fragment_bytes).saturating_sub(into))
                    .min(next_page)
                    .min(left as u64) as usize
            };
            match map.find(at / fragment_bytes) {
                Mapping::Mapped { start, len, unwritten: false } => {
                    // What follows a file among others is likely to be read next.
                    let until = match file.inode.size > AMONG_OTHERS_BYTES_MAX {
                        true => BlockNo(self.layout.block_of(FragNo(start.0 + len - 1)).0 + 1),
                        false => BlockNo(self.layout.blocks),
                    };
                    let len = limit(len);
                    self.read_fragments(start, into, &mut out[done..done + len], until)?;
                    done += len;
                }
                Mapping::Mapped { len, .. } | Mapping::Hole(len) => {
                    let len = limit(len);
                    out[done..done + len].fill(0);
                    done += len;
                }
            }
        }
        Ok(())
    }

    /// Compares the contents of a small file with their checksum, once after the inode was read.
    fn verify_contents(&self, file: &VnodeState) -> Result<()> {
        let expected = self.checksum_to_verify(file)?;
        if expected.is_none() {
            return Ok(());
        }
        let mut contents = vec![0; file.inode.size as usize];
        if let Content::Map(map) = &file.inode.content {
            self.read_mapped(file, map, 0, &mut contents)?;
        }
        verify(file, expected, &contents)
    }

    /// The checksum with which nobody has compared the contents yet.
    fn checksum_to_verify(&self, file: &VnodeState) -> Result<Option<u32>> {
        if file.inode.content_checksum.is_none() || file.verified.load(Ordering::Relaxed) {
            return Ok(None);
        }
        if file.inode.size > self.small_bytes_max() {
            let what = "a large file with a checksum of its contents";
            return Err(Corruption::Inode { ino: file.inode.ino, what }.into());
        }
        Ok(file.inode.content_checksum)
    }

    /// The page of a file as it is now; it may be one of the cache's own blocks.
    fn load_page(&self, file: &VnodeState, position: u64) -> Result<Arc<Block>> {
        if let Some(page) = file.pages.get(position) {
            return Ok(page.clone());
        }
        let fragments = self.layout.block_fragments();
        let map = match &file.inode.content {
            Content::Map(map) => map,
            Content::Inline(_) => return Err(Error::Invalid("contents inline have no pages")),
        };
        if let Some(number) = map.block_at(position * u64::from(fragments), fragments) {
            return self.cache.read(number);
        }
        let mut block = Block::zeroed(self.layout.block_bytes as usize);
        self.read_mapped(file, map, position * u64::from(self.layout.block_bytes), &mut block)?;
        Ok(Arc::new(block))
    }

    /// A page of a file, to change it. If `whole`, its old contents are not read: the caller
    /// overwrites all of it up to the end of the file.
    pub fn page_mut<'a>(
        &self,
        file: &'a mut Locked<'_>,
        position: u64,
        whole: bool,
    ) -> Result<&'a mut Block> {
        if !file.pages.is_dirty(position) {
            let block = if file.pages.get(position).is_some() {
                None
            } else if whole || position * u64::from(self.layout.block_bytes) >= file.inode.size {
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

    /// Makes sure that write-back finds space for a page: one that goes where it lies needs none.
    fn promise_page(&self, file: &mut Locked<'_>, position: u64) -> Result<()> {
        let fragments = u64::from(self.layout.block_fragments());
        let first = position * fragments;
        let in_place = !file.moves
            && (file.inode.size > self.small_bytes_max()
                || !self.features.content_checksum
                || file.inode.map().is_some_and(ExtentMap::has_unwritten));
        let mapped = |fragment| {
            let map = file.inode.map();
            map.is_some_and(|map| matches!(map.find(fragment), Mapping::Mapped { .. }))
        };
        if in_place && (first..first + fragments).all(mapped) {
            // What was preallocated has its place, but is noted as written now.
            let unwritten = file.inode.map().is_some_and(ExtentMap::has_unwritten);
            return if unwritten { self.promise_spill(file, fragments, true) } else { Ok(()) };
        }
        // On a full volume, what has its place is changed there. The device must know the inode
        // without a checksum, which it does if the inode has not changed since.
        let end = (first + fragments).min(self.layout.fragments_for(file.inode.size));
        let has_place = first < end && (first..end).all(mapped);
        let is_bare = !file.moves && !file.dirty && file.inode.content_checksum.is_none();
        match self.promise_move(file, fragments) {
            Err(Error::NoSpace) if is_bare && has_place => {
                file.tail_unpromised |= end < first + fragments;
                Ok(())
            }
            other => other,
        }
    }

    /// Makes sure that write-back finds space for fragments that go to a new place.
    fn promise_move(&self, file: &mut Locked<'_>, fragments: u64) -> Result<()> {
        self.alloc.reserve(fragments, file.spender)?;
        // Their extents may go, and others may come.
        let promised = self.promise_spill(file, 2 * fragments, false);
        match promised {
            Ok(()) => file.reserved += fragments,
            Err(_) => self.alloc.unreserve(fragments),
        }
        promised
    }

    /// Before the file grows: its last page may have been changed where it lies.
    fn promise_growth(&self, file: &mut Locked<'_>, size: u64) -> Result<()> {
        if file.tail_unpromised && size > file.inode.size {
            self.promise_move(file, self.layout.block_fragments().into())?;
            file.tail_unpromised = false;
        }
        Ok(())
    }

    /// Brings all of a small file with a checksum into memory and drops the checksum: the next
    /// epoch writes the file anew, to a new place, so that contents and checksum change together.
    fn own_contents(&self, file: &mut Locked<'_>) -> Result<()> {
        if file.inode.content_checksum.is_none() {
            return Ok(());
        }
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
        let (moves, was_clean) = (file.moves, file.pages.is_empty());
        file.moves = true;
        if let Err(error) = self.own_pages(file, replaced) {
            // Nothing is changed yet: the pages can go again.
            if was_clean {
                self.drop_pages(file, 0);
                file.moves = moves;
            }
            return Err(error);
        }
        file.inode.content_checksum = None;
        self.mark_changed(file, Changed::Contents);
        Ok(())
    }

    fn own_pages(&self, file: &mut Locked<'_>, replaced: bool) -> Result<()> {
        let pages = file.inode.size.div_ceil(self.layout.block_bytes.into());
        for position in 0..pages {
            let fragments = u64::from(self.layout.block_fragments());
            let first = position * fragments;
            let hole = file.inode.map().is_none_or(
                |map| matches!(map.find(first), Mapping::Hole(len) if len >= fragments),
            );
            if replaced || !hole {
                self.page_mut(file, position, replaced)?;
            }
        }
        Ok(())
    }

    /// Gives up the checksum of a file without moving its contents. The inode must be on the device
    /// in this state before the contents are overwritten in place.
    pub fn drop_checksum(&self, file: &mut Locked<'_>) {
        file.inode.content_checksum = None;
        file.moves = true;
        self.mark_dirty(file);
    }

    /// Moves contents out of the inode, into pages.
    pub fn leave_inline(&self, file: &mut Locked<'_>) -> Result<()> {
        let Content::Inline(bytes) = &mut file.inode.content else { return Ok(()) };
        let bytes = std::mem::take(bytes);
        file.inode.content = Content::Map(ExtentMap::default());
        let block_bytes = self.layout.block_bytes as usize;
        for (position, piece) in (0..).zip(bytes.chunks(block_bytes)) {
            match self.page_mut(file, position, true) {
                Ok(page) => page[..piece.len()].copy_from_slice(piece),
                Err(error) => {
                    self.drop_pages(file, 0);
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
            let page = self.page_mut(file, at / block_bytes, whole)?;
            page[into..into + len].copy_from_slice(piece);
            at += len as u64;
            rest = after;
            file.inode.size = file.inode.size.max(at);
        }
        Ok(())
    }

    /// Takes back what a write that failed has put behind the end of the file.
    fn shrink_to(&self, file: &mut Locked<'_>, size: u64) {
        let block_bytes = u64::from(self.layout.block_bytes);
        self.drop_pages(file, size.div_ceil(block_bytes));
        file.inode.size = size;
        let (last, tail) = (size / block_bytes, (size % block_bytes) as usize);
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
            let tail = (size % block_bytes) as usize;
            if tail > 0 && self.has_data(file, size / block_bytes) {
                self.page_mut(file, size / block_bytes, false)?[tail..].fill(0);
            }
            if size > 0 {
                self.promise_spill(file, 2, true)?;
            }
            self.drop_pages(file, size.div_ceil(block_bytes));
            let first = self.layout.fragments_for(size);
            self.unmap(file, first..u64::MAX);
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

    fn has_data(&self, file: &VnodeState, position: u64) -> bool {
        let fragments = u64::from(self.layout.block_fragments());
        let first = position * fragments;
        file.pages.get(position).is_some()
            || file.inode.map().is_some_and(
                |map| !matches!(map.find(first), Mapping::Hole(len) if len >= fragments),
            )
    }

    /// Drops the pages of a file from a position on.
    fn drop_pages(&self, file: &mut Locked<'_>, from: u64) {
        self.count_dirty(file, |file| file.pages.truncate(from));
        if file.pages.is_empty() {
            self.settle_promises(file);
        }
    }

    /// Gives back what was promised to a file.
    pub(super) fn settle_promises(&self, file: &mut VnodeState) {
        self.alloc.unreserve(std::mem::take(&mut file.reserved));
        self.alloc.unreserve_blocks(std::mem::take(&mut file.reserved_blocks));
    }

    fn unmap(&self, file: &mut VnodeState, range: Range<u64>) {
        if let Some(map) = file.inode.map_mut() {
            map.remove(range).into_iter().for_each(|run| self.alloc.free(run));
        }
    }

    /// Frees the blocks of the extent tree, when the map is about to go.
    fn free_tree(&self, file: &VnodeState) {
        let fragments = self.layout.block_fragments();
        for block in file.inode.map().into_iter().flat_map(ExtentMap::tree_blocks) {
            self.alloc.free(FragRun::new(self.layout.block_start(block), fragments));
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
        let block_bytes = u64::from(self.layout.block_bytes);
        let first_whole = offset.div_ceil(block_bytes);
        // What lies after the end of the file goes as well, whole blocks that they are.
        let after = offset + len;
        let end_whole = if after >= file.inode.size {
            after.div_ceil(block_bytes)
        } else {
            after / block_bytes
        };
        for (from, to) in [(offset, first_whole * block_bytes), (end_whole * block_bytes, end)] {
            let (from, to) = (from.max(offset), to.min(end));
            if from < to && self.has_data(file, from / block_bytes) {
                let page = self.page_mut(file, from / block_bytes, false)?;
                let into = (from % block_bytes) as usize;
                page[into..into + (to - from) as usize].fill(0);
            }
        }
        if first_whole < end_whole {
            self.promise_spill(file, 2, true)?;
            self.count_dirty(file, |file| file.pages.remove_range(first_whole..end_whole));
            let fragments = u64::from(self.layout.block_fragments());
            self.unmap(file, first_whole * fragments..end_whole * fragments);
        }
        self.mark_dirty(file);
        Ok(())
    }

    /// Maps the holes of a range to fragments that read as zeros. The size stays.
    pub fn preallocate(&self, file: &mut Locked<'_>, offset: u64, len: u64) -> Result<()> {
        self.leave_inline(file)?;
        self.own_contents(file)?;
        let block_bytes = u64::from(self.layout.block_bytes);
        let fragments = u64::from(self.layout.block_fragments());
        let range =
            offset / block_bytes * fragments..(offset + len).div_ceil(block_bytes) * fragments;
        let missing = self.holes(file, range.clone());
        self.alloc.reserve(missing, file.spender)?;
        let mut new = Vec::new();
        let mut mapped = self.map_holes(file, range, &mut new);
        self.alloc.unreserve(missing);
        if mapped.is_ok() {
            mapped = self.promise_spill(file, 2 * new.len() as u64, false);
        }
        if mapped.is_err() {
            new.into_iter().for_each(|range| self.unmap(file, range));
        }
        self.mark_dirty(file);
        mapped
    }

    fn holes(&self, file: &VnodeState, range: Range<u64>) -> u64 {
        let Some(map) = file.inode.map() else { return 0 };
        let mut missing = 0;
        let mut at = range.start;
        while at < range.end {
            match map.find(at) {
                Mapping::Mapped { len, .. } => at += len,
                Mapping::Hole(len) => {
                    let len = len.min(range.end - at);
                    missing += len;
                    at += len;
                }
            }
        }
        missing
    }

    /// Maps the holes of a range, and notes what is mapped then and was not before.
    fn map_holes(
        &self,
        file: &mut Locked<'_>,
        range: Range<u64>,
        new: &mut Vec<Range<u64>>,
    ) -> Result<()> {
        let owner = Owner::Key(file.inode.placement_key());
        let bytes = range.end.saturating_mul(self.layout.fragment_bytes.into());
        let kind = match self.kind_of(file.inode.size.max(bytes)) {
            Kind::Small => Kind::Medium,
            other => other,
        };
        let mut at = range.start;
        while at < range.end {
            let Some(map) = file.inode.map_mut() else { return Ok(()) };
            match map.find(at) {
                Mapping::Mapped { len, .. } => at += len,
                Mapping::Hole(len) => {
                    let goal = map.last_before(at).map(|before| before.run().end());
                    let len = len.min(range.end - at).min(1 << 20) as u32;
                    let request = Request { kind, owner, len, goal, grown: false };
                    let run = self.alloc.place(&request)?;
                    map.insert(at, run, true);
                    new.push(at..at + u64::from(run.len));
                    at += u64::from(run.len);
                }
            }
        }
        Ok(())
    }

    /// The next data or hole at or after `offset`, which lies before the end of the file.
    pub fn seek(&self, file: &VnodeState, offset: u64, data: bool) -> Option<u64> {
        let size = file.inode.size;
        let Content::Map(map) = &file.inode.content else {
            return if data { Some(offset) } else { Some(size) };
        };
        let block_bytes = u64::from(self.layout.block_bytes);
        let fragment_bytes = u64::from(self.layout.fragment_bytes);
        let mut at = offset;
        while at < size {
            let position = at / block_bytes;
            if file.pages.get(position).is_some() {
                if data {
                    return Some(at);
                }
                at = (position + 1) * block_bytes;
                continue;
            }
            let next_page =
                file.pages.next_at(position).map_or(u64::MAX, |page| page * block_bytes);
            let (here, len) = match map.find(at / fragment_bytes) {
                Mapping::Mapped { len, unwritten, .. } => (!unwritten, len),
                Mapping::Hole(len) => (false, len),
            };
            if here == data {
                return Some(at);
            }
            at = (at / fragment_bytes).saturating_add(len).saturating_mul(fragment_bytes);
            at = at.min(next_page);
        }
        if data { None } else { Some(size) }
    }

    /// Frees everything that an inode without names and users has.
    pub fn destroy(&self, file: &mut Locked<'_>) -> Result<()> {
        self.drop_pages(file, 0);
        self.settle_promises(file);
        self.settle_spill(file);
        self.free_tree(file);
        self.unmap(file, 0..u64::MAX);
        file.inode.content = Content::Map(ExtentMap::default());
        self.alloc.free(std::mem::take(&mut file.inode.xattr_block));
        self.alloc.free(std::mem::take(&mut file.xattr_space));
        self.drop_inode(file);
        self.locator_free(file.inode.ino, file.inode.generation)?;
        self.remove(file.inode.ino);
        Ok(())
    }
}

/// Compares the contents of a file with the checksum that they should have, if there is one, and
/// notes that they have it.
fn verify(file: &VnodeState, expected: Option<u32>, contents: &[u8]) -> Result<()> {
    let Some(expected) = expected else { return Ok(()) };
    if checksum::contents(0, contents) != expected {
        return Err(Corruption::Contents { ino: file.inode.ino }.into());
    }
    file.verified.store(true, Ordering::Relaxed);
    Ok(())
}
