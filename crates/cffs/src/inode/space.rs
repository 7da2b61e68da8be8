//! Space for the contents of files: promised when they change, preallocated on demand, given back when
//! they go.

use std::ops::Range;

use super::{Content, ExtentMap, Locked, Mapping, Store, VnodeState};
use crate::alloc::{Kind, Owner, Request};
use crate::error::{Error, Result};
use crate::units::{FileBlock, FileFrag, FragRun};

impl Store {
    /// How a file of this size is placed.
    pub(super) fn kind_of(&self, size: u64) -> Kind {
        match size {
            small if small <= self.small_bytes_max() => Kind::Small,
            medium if medium <= self.cache.tuning().placing.medium_bytes_max => Kind::Medium,
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

    /// Makes sure that write-back finds space for a page: one that goes where it lies needs none.
    pub(super) fn promise_page(&self, file: &mut Locked<'_>, position: FileBlock) -> Result<()> {
        let fragments = u64::from(self.layout.block_fragments());
        let Range { start: FileFrag(first), end: FileFrag(end) } = self.layout.file_frags(position);
        let in_place = !file.changes.moves
            && (file.inode.size > self.small_bytes_max()
                || !self.features.content_checksum
                || file.inode.map().is_some_and(ExtentMap::has_unwritten));
        if in_place && is_all_mapped(file, first..end) {
            // What was preallocated has its place, but is noted as written now.
            let unwritten = file.inode.map().is_some_and(ExtentMap::has_unwritten);
            return if unwritten { self.promise_spill(file, fragments, true) } else { Ok(()) };
        }
        // On a full volume, what has its place is changed there. The device must know the inode
        // without a checksum, which it does if the inode has not changed since.
        let used_end = end.min(self.layout.fragments_for(file.inode.size));
        let has_place = first < used_end && is_all_mapped(file, first..used_end);
        let is_bare =
            !file.changes.moves && !file.changes.dirty && file.inode.content_checksum.is_none();
        match self.promise_move(file, fragments) {
            Err(Error::NoSpace) if is_bare && has_place => {
                file.promised.lacks_tail |= used_end < end;
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
            Ok(()) => file.promised.fragments += fragments,
            Err(_) => self.alloc.unreserve(fragments),
        }
        promised
    }

    /// Before the file grows: its last page may have been changed where it lies.
    pub(super) fn promise_growth(&self, file: &mut Locked<'_>, size: u64) -> Result<()> {
        if file.promised.lacks_tail && size > file.inode.size {
            self.promise_move(file, self.layout.block_fragments().into())?;
            file.promised.lacks_tail = false;
        }
        Ok(())
    }

    /// Before the file is cut off at `size`, in the middle of a block: a page that was to be written where it
    /// lies loses a part of its place, and needs a new one if the file grows again.
    pub(super) fn note_cut(&self, file: &mut VnodeState, size: u64) {
        let page = self.layout.file_frags(self.layout.file_block(size));
        let (first, end) = (page.start.0, page.end.0);
        let kept = first + 1..end;
        let is_cut = kept.contains(&self.layout.fragments_for(size));
        file.promised.lacks_tail |=
            is_cut && !file.changes.moves && is_all_mapped(file, first..end);
    }

    /// Gives back what was promised to a file.
    pub(super) fn settle_promises(&self, file: &mut VnodeState) {
        let fragments = std::mem::take(&mut file.promised.fragments);
        let blocks = std::mem::take(&mut file.promised.blocks);
        if fragments > 0 {
            self.alloc.unreserve(fragments);
        }
        if blocks > 0 {
            self.alloc.unreserve_blocks(blocks);
        }
    }

    /// Maps the holes of a range to fragments that read as zeros. The size stays.
    pub fn preallocate(&self, file: &mut Locked<'_>, offset: u64, len: u64) -> Result<()> {
        self.leave_inline(file)?;
        self.own_contents(file)?;
        let (first, end) =
            (self.layout.file_block(offset), self.layout.file_block_from(offset + len));
        let range = self.layout.file_frag(first)..self.layout.file_frag(end);
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

    fn holes(&self, file: &VnodeState, range: Range<FileFrag>) -> u64 {
        let Some(map) = file.inode.map() else { return 0 };
        let mut missing = 0;
        let mut at = range.start;
        while at < range.end {
            match map.find(at) {
                Mapping::Mapped { len, .. } => at = at.plus(len),
                Mapping::Hole(len) => {
                    let len = len.min(range.end.0 - at.0);
                    missing += len;
                    at = at.plus(len);
                }
            }
        }
        missing
    }

    /// Maps the holes of a range, and notes what is mapped then and was not before.
    fn map_holes(
        &self,
        file: &mut Locked<'_>,
        range: Range<FileFrag>,
        new: &mut Vec<Range<FileFrag>>,
    ) -> Result<()> {
        let owner = Owner::Key(file.inode.placement_key());
        let bytes = range.end.0.saturating_mul(self.layout.fragment_bytes.into());
        let kind = match self.kind_of(file.inode.size.max(bytes)) {
            Kind::Small => Kind::Medium,
            other => other,
        };
        let mut at = range.start;
        while at < range.end {
            let Some(map) = file.inode.map_mut() else { return Ok(()) };
            match map.find(at) {
                Mapping::Mapped { len, .. } => at = at.plus(len),
                Mapping::Hole(len) => {
                    let goal = map.last_before(at).map(|before| before.run().end());
                    let len = len.min(range.end.0 - at.0).min(1 << 20) as u32;
                    let request =
                        Request { kind, owner, len, goal, grown: false, replaces: false, room: 0 };
                    let run = self.alloc.place(&request)?;
                    map.insert(at, run, true);
                    new.push(at..at.plus(run.len.into()));
                    at = at.plus(run.len.into());
                }
            }
        }
        Ok(())
    }

    pub(super) fn unmap(&self, file: &mut VnodeState, range: Range<FileFrag>) {
        if let Some(map) = file.inode.map_mut() {
            map.remove(range).into_iter().for_each(|run| self.alloc.free(run));
        }
    }

    /// Frees the blocks of the extent tree, when the map is about to go.
    pub(super) fn free_tree(&self, file: &VnodeState) {
        let fragments = self.layout.block_fragments();
        for block in file.inode.map().into_iter().flat_map(ExtentMap::tree_blocks) {
            self.alloc.free(FragRun::new(self.layout.block_start(block), fragments));
        }
    }

    /// Frees everything that an inode without names and users has.
    pub fn destroy(&self, file: &mut Locked<'_>) -> Result<()> {
        self.drop_pages(file, FileBlock::ALL);
        self.settle_spill(file);
        self.free_tree(file);
        self.unmap(file, FileFrag::ALL);
        file.inode.content = Content::Map(ExtentMap::default());
        self.alloc.free(std::mem::take(&mut file.inode.xattr_block));
        self.alloc.free(std::mem::take(&mut file.promised.xattr_space));
        self.drop_inode(file);
        self.locator_free(file.inode.ino, file.inode.generation)?;
        self.remove(file.inode.ino);
        Ok(())
    }
}

/// Whether all of a range of a file's fragments has a place.
fn is_all_mapped(file: &VnodeState, mut range: Range<u64>) -> bool {
    let mapped = |map: &ExtentMap| {
        range.all(|fragment| matches!(map.find(FileFrag(fragment)), Mapping::Mapped { .. }))
    };
    file.inode.map().is_some_and(mapped)
}
