//! Sharing: extents of several files, or of one, that refer to the same part of a cluster.
//!
//! If the contents of a file are in clusters and are durable, a copy gets extents of its own that refer to
//! the same clusters. Nothing in a cluster changes in place, so a change of either file leaves the other as
//! it is.
//!
//! ```text
//!   source's lock          target's lock
//!   ┌─────────────┐        ┌───────────────────────────────┐
//!   │ lend:       │ ─────▶ │ borrow: maps the extents, or  │
//!   │ references  │        │ give back: drops references   │
//!   └─────────────┘        └───────────────────────────────┘
//! ```
//!
//! A cluster has a limited number of references, and a change in the middle of an extent splits it in two. So
//! the extent is split before the change if the cluster can have one more reference. Otherwise all contents
//! after the change leave the cluster as well. Invariant: the clean pages of an extent are adjacent, because
//! pages that become dirty later are next to dirty ones, or the extent is split. So writing some or all of
//! the dirty pages leaves at most one extent of each.

use std::ops::Range;

use super::{DirtyLevel, ExtentMap, Mapping, PageWriter, VnodeGuard, VnodeState};
use crate::alloc::Clusters;
use crate::error::{Error, Result};
use crate::format::extent::Extent;
use crate::lock::Rule;
use crate::units::{FileBlock, FileFrag};

/// The most extents that one change maps: 16 MiB of a large file.
const EXTENTS_MAX: usize = 256;

/// Extents of a file, with a further reference to the cluster of each, for a second file.
pub struct Lent {
    /// The extents, as the source has them.
    extents: Vec<Extent>,
    /// The bytes of the source that they map.
    bytes: Range<u64>,
    /// If these are all contents of a small file: their checksum, if it is known.
    whole: Option<Option<u32>>,
}

impl Lent {
    /// The number of bytes.
    pub fn len(&self) -> u64 {
        self.bytes.end - self.bytes.start
    }
}

impl PageWriter<'_> {
    /// Lends the contents of a file from `offset`, the beginning of a block: as many of `len` bytes as are in
    /// clusters and are durable. Of a small file, lends all contents or none. A part of a block is lent only
    /// `with_end`, and only at the end of the file. `None` if nothing can be shared.
    pub fn lend(
        &self,
        file: &VnodeState,
        offset: u64,
        len: u64,
        with_end: bool,
    ) -> Result<Option<Lent>> {
        let size = file.inode.size;
        let Some(map) = file.inode.map().filter(|_| file.container.is_some()) else {
            return Ok(None);
        };
        if size <= self.layout.small_bytes_max() {
            let is_in_cluster = |extent: &Extent| extent.cluster.is_some();
            let can_be = offset == 0 && len >= size && size > 0 && with_end;
            let is_durable = match Rule::InFlightNotLent.holds() {
                true => file.pages.is_empty(),
                false => file.pages.dirty_count() == 0,
            };
            if !can_be || !is_durable || map.is_empty() || !map.iter().all(is_in_cluster) {
                return Ok(None);
            }
            let extents: Vec<Extent> = map.iter().copied().collect();
            let whole = Some(file.inode.content_checksum);
            let taken = self.take_references(&extents)?;
            if taken < extents.len() {
                self.release(&extents[..taken]);
                return Ok(None);
            }
            return Ok(Some(Lent { extents, bytes: 0..size, whole }));
        }
        let mut extents = self.extents_in_clusters(file, map, offset, len, with_end);
        let taken = self.take_references(&extents)?;
        extents.truncate(taken);
        let Some(last) = extents.last() else { return Ok(None) };
        let end = last.logical_end() * u64::from(self.layout.fragment_bytes);
        Ok(Some(Lent { bytes: offset..end.min(size), extents, whole: None }))
    }

    /// The extents of a large file that can be shared, from the block at `offset` on without a gap. Each ends
    /// at the end of a block, or of the file.
    fn extents_in_clusters(
        &self,
        file: &VnodeState,
        map: &ExtentMap,
        offset: u64,
        len: u64,
        with_end: bool,
    ) -> Vec<Extent> {
        let layout = self.layout;
        let per_block = u64::from(layout.block_fragments());
        let first = layout.file_block(offset);
        let in_memory = file.pages.next_at(first).map_or(u64::MAX, |page| layout.file_frag(page).0);
        let is_to_end = with_end && offset.saturating_add(len) >= file.inode.size;
        let file_end = layout.fragments_for(file.inode.size);
        let end = match is_to_end {
            true => file_end,
            false => {
                layout.file_frag(layout.file_block(offset.saturating_add(len))).0.min(file_end)
            }
        };
        let mut extents = Vec::new();
        let mut at = layout.file_frag(first);
        while at.0 < end && extents.len() < EXTENTS_MAX {
            let Mapping::InCluster { run, offset, len } = map.find(at) else { break };
            let extent_end = (at.0 + len).min(end).min(in_memory);
            let is_whole = extent_end == file_end && is_to_end;
            let to = if is_whole { extent_end } else { extent_end / per_block * per_block };
            if to <= at.0 {
                break;
            }
            extents.push(Extent::of_cluster(at.0, (to - at.0) as u32, run, offset));
            at = FileFrag(to);
        }
        extents
    }

    /// Adds a reference for each of the extents, up to the first whose cluster can have no more. Returns
    /// their number.
    fn take_references(&self, extents: &[Extent]) -> Result<usize> {
        for (count, extent) in extents.iter().enumerate() {
            let added = Clusters::of(self.alloc)
                .share(extent.run())
                .inspect_err(|_| self.release(&extents[..count]))?;
            if !added {
                return Ok(count);
            }
        }
        Ok(extents.len())
    }

    /// Removes the references of extents that no file has.
    fn release(&self, extents: &[Extent]) {
        extents.iter().for_each(|extent| Clusters::of(self.alloc).release(extent.run()));
    }

    /// Removes the references of lent extents that no file borrowed.
    pub fn give_back(&self, lent: &Lent) {
        self.release(&lent.extents);
    }

    /// Replaces the contents of a file, from the block at `offset` on, by lent ones. Returns the number of
    /// bytes; 0 if the file cannot have them there. After 0 or an error, the caller must return the
    /// references.
    pub fn borrow(&self, file: &mut VnodeGuard<'_>, offset: u64, lent: &Lent) -> Result<u64> {
        let len = lent.len();
        let end = offset + len;
        let is_end = lent.whole.is_some() || !len.is_multiple_of(self.layout.block_bytes.into());
        let fits = match lent.whole {
            Some(_) => offset == 0,
            None => file.inode.size.max(end) > self.layout.small_bytes_max(),
        };
        if !fits || file.container.is_none() || is_end && file.inode.size > end {
            return Ok(0);
        }
        self.leave_inline(file)?;
        self.space.promise_spill(file, 2 + 2 * lent.extents.len() as u64, false)?;
        match lent.whole {
            Some(checksum) => {
                self.drop_pages(file, FileBlock::ALL);
                self.space.unmap(file, FileFrag::ALL);
                file.inode.content_checksum = checksum;
                *file.verified.get_mut() = false;
            }
            None => {
                self.own_contents(file)?;
                self.space.promise_growth(file, end)?;
                let blocks = self.layout.file_block(offset)..self.layout.file_block_from(end);
                let range = self.layout.file_frag(blocks.start)..self.layout.file_frag(blocks.end);
                self.split_around(file, range.clone())?;
                self.drop_pages(file, blocks);
                self.space.unmap(file, range);
            }
        }
        let fragment_bytes = u64::from(self.layout.fragment_bytes);
        let (from, to) = (lent.bytes.start / fragment_bytes, offset / fragment_bytes);
        let moved = |extent: &Extent| Extent { logical: extent.logical - from + to, ..*extent };
        let extents: Vec<Extent> = lent.extents.iter().map(moved).collect();
        if let Some(map) = file.inode.map_mut() {
            let before = map.insert_shared(&extents);
            self.space.intent_log.referred(file, before);
        }
        file.inode.size = file.inode.size.max(end);
        self.inodes.mark_dirty(file);
        Ok(len)
    }

    /// Splits an extent in a cluster that maps both sides of the range, so that unmapping the range needs no
    /// reference. If the cluster can have no more, makes all pages of the extent dirty, so that they leave
    /// the cluster with the next epoch, and fails with [`Error::EpochNeeded`].
    pub(super) fn split_around(
        &self,
        file: &mut VnodeGuard<'_>,
        range: Range<FileFrag>,
    ) -> Result<()> {
        let around = file.inode.map().and_then(|map| map.cluster_around(&range)).copied();
        let Some(extent) = around else { return Ok(()) };
        if self.split(file, &extent, range.start)? {
            return Ok(());
        }
        for position in self.pages_of(&extent).map(FileBlock) {
            self.page_mut(file, position, false)?;
        }
        Err(Error::EpochNeeded)
    }

    /// Prepares an extent in a cluster before one of its pages becomes dirty. If it has clean pages on both
    /// sides of that page, splits the extent, or makes the pages after it dirty as well, so that write-back
    /// needs no reference.
    pub(super) fn part_cluster(
        &self,
        file: &mut VnodeGuard<'_>,
        position: FileBlock,
    ) -> Result<()> {
        let page = self.layout.file_frags(position);
        let around = file.inode.map().and_then(|map| map.cluster_around(&page)).copied();
        let Some(extent) = around else { return Ok(()) };
        let is_dirty = |page: u64| file.pages.is_dirty(FileBlock(page));
        if is_dirty(position.0 - 1) || is_dirty(position.0 + 1) {
            return Ok(());
        }
        self.space.promise_spill(file, 2, true)?;
        if self.split(file, &extent, page.start)? {
            return Ok(());
        }
        let end = self.pages_of(&extent).end;
        let clean_end = (position.0 + 1..end).find(|page| file.pages.is_dirty(FileBlock(*page)));
        for page in (position.0 + 1..clean_end.unwrap_or(end)).rev() {
            self.page_mut(file, FileBlock(page), false)?;
        }
        Ok(())
    }

    /// The pages of a file of which an extent maps a part.
    fn pages_of(&self, extent: &Extent) -> Range<u64> {
        let per_block = u64::from(self.layout.block_fragments());
        extent.logical / per_block..extent.logical_end().div_ceil(per_block)
    }

    /// Splits an extent in a cluster; false if the cluster can have no more references.
    fn split(&self, file: &mut VnodeGuard<'_>, extent: &Extent, at: FileFrag) -> Result<bool> {
        if !Clusters::of(self.alloc).share(extent.run())? {
            return Ok(false);
        }
        if let Some(map) = file.inode.map_mut() {
            let before = map.split(at);
            self.space.intent_log.referred(file, vec![(extent.run(), before)]);
        }
        self.inodes.mark_changed(file, DirtyLevel::Anything);
        Ok(true)
    }
}
