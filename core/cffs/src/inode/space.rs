//! Space for the contents of files: promised when they change, mapped on demand, freed when they are removed.

use std::ops::Range;

use super::{ExtentMap, Features, InodeCache, IntentLog, Mapping, Removed, VnodeGuard, VnodeState};
use crate::alloc::{Allocator, Clusters, Kind, Owner, Request};
use crate::error::{Error, Result};
use crate::format::LiveLayout;
use crate::tuning::Placing;
use crate::units::{FileBlock, FileFrag, FragRun};

/// Promises space to files, maps it and frees it. What one file was promised is counted in its vnode
/// (`Promised`), what all of them were promised is counted in the allocator.
#[derive(Clone, Copy)]
pub struct SpacePlan<'a> {
    pub(super) layout: &'a LiveLayout,
    pub(super) alloc: &'a Allocator,
    pub(super) intent_log: &'a IntentLog,
    features: &'a Features,
    placing: &'a Placing,
}

impl<'a> SpacePlan<'a> {
    pub(super) fn new(inodes: &'a InodeCache) -> SpacePlan<'a> {
        SpacePlan {
            layout: &inodes.layout,
            alloc: &inodes.alloc,
            intent_log: &inodes.intent_log,
            features: &inodes.features,
            placing: &inodes.cache.tuning().placing,
        }
    }

    /// The placement class of a file of this size.
    pub fn kind_of(&self, size: u64) -> Kind {
        Kind::of_file(size, self.layout, self.placing)
    }

    /// Whether a file, or its end, may go into a hole among other files of its key.
    pub fn may_fill_holes(&self, file: &VnodeState) -> bool {
        let fragments = self.layout.fragments_for(file.inode.size);
        let has_tail = !fragments.is_multiple_of(self.layout.block_fragments().into());
        has_tail || self.kind_of(file.inode.size) != Kind::Large
    }

    /// Promises space for the write-back of a page. A page that is overwritten in place needs none.
    pub(super) fn promise_page(
        &self,
        file: &mut VnodeGuard<'_>,
        position: FileBlock,
    ) -> Result<()> {
        let fragments = u64::from(self.layout.block_fragments());
        let Range { start: FileFrag(first), end: FileFrag(end) } = self.layout.file_frags(position);
        let in_place = !file.changes.moves
            && (file.inode.size > self.layout.small_bytes_max()
                || !self.features.content_checksum
                || file.inode.map().is_some_and(ExtentMap::has_unwritten));
        if in_place && is_all_mapped(file, first..end) {
            // A preallocated page has its place, but its extent becomes a written one.
            let unwritten = file.inode.map().is_some_and(ExtentMap::has_unwritten);
            return if unwritten { self.promise_spill(file, fragments, true) } else { Ok(()) };
        }
        // On a full volume, a page that has a place is overwritten there. The inode on the device must then
        // have no checksum, which holds if it has not changed since.
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

    /// Promises space for fragments that go to a new place.
    fn promise_move(&self, file: &mut VnodeGuard<'_>, fragments: u64) -> Result<()> {
        self.alloc.promise(fragments, file.spender)?;
        // Their extents may be removed, and others added.
        let promised = self.promise_spill(file, 2 * fragments, false);
        match promised {
            Ok(()) => file.promised.fragments += fragments,
            Err(_) => self.alloc.withdraw(fragments),
        }
        promised
    }

    /// Before the file grows: its last page may have been changed in place.
    pub(super) fn promise_growth(&self, file: &mut VnodeGuard<'_>, size: u64) -> Result<()> {
        if file.promised.lacks_tail && size > file.inode.size {
            self.promise_move(file, self.layout.block_fragments().into())?;
            file.promised.lacks_tail = false;
        }
        Ok(())
    }

    /// Before the file is truncated at `size`, in the middle of a block: a page that was to be written in
    /// place loses a part of its place, and needs a new one if the file grows again.
    pub(super) fn note_cut(&self, file: &mut VnodeState, size: u64) {
        let page = self.layout.file_frags(self.layout.file_block(size));
        let (first, end) = (page.start.0, page.end.0);
        let kept = first + 1..end;
        let is_cut = kept.contains(&self.layout.fragments_for(size));
        file.promised.lacks_tail |=
            is_cut && !file.changes.moves && is_all_mapped(file, first..end);
    }

    /// Withdraws the promises to a file.
    pub(super) fn settle_promises(&self, file: &mut VnodeState) {
        let fragments = std::mem::take(&mut file.promised.fragments);
        let blocks = std::mem::take(&mut file.promised.blocks);
        // No changed page is left that could lack a part of its place.
        file.promised.lacks_tail = false;
        if fragments > 0 {
            self.alloc.withdraw(fragments);
        }
        if blocks > 0 {
            self.alloc.withdraw_blocks(blocks);
        }
    }

    /// Counts the fragments of a range that are not mapped.
    pub(super) fn holes(&self, file: &VnodeState, range: Range<FileFrag>) -> u64 {
        let Some(map) = file.inode.map() else { return 0 };
        let mut missing = 0;
        let mut at = range.start;
        while at < range.end {
            match map.find(at) {
                Mapping::Mapped { len, .. } | Mapping::InCluster { len, .. } => {
                    at = at.plus(len);
                }
                Mapping::Hole(len) => {
                    let len = len.min(range.end.0 - at.0);
                    missing += len;
                    at = at.plus(len);
                }
            }
        }
        missing
    }

    /// Maps the holes of a range, and adds the newly mapped ranges to `new`.
    pub(super) fn map_holes(
        &self,
        file: &mut VnodeGuard<'_>,
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
                Mapping::Mapped { len, .. } | Mapping::InCluster { len, .. } => {
                    at = at.plus(len);
                }
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

    /// Unmaps a range, and frees the runs to which it was mapped.
    pub fn unmap(&self, file: &mut VnodeState, range: Range<FileFrag>) {
        if let Some(map) = file.inode.map_mut() {
            let before = map.mapped();
            let removed = map.remove(range);
            self.count(file, before);
            self.free(file, removed);
        }
    }

    /// Counts the contents of a file with a key of its own, which took `before` fragments until now.
    pub fn count(&self, file: &VnodeState, before: u64) {
        let Some(key) = file.inode.key.filter(|_| !file.inode.is_dir()) else { return };
        let after = file.inode.map().map_or(0, ExtentMap::mapped);
        // The size may have changed since the fragments were counted.
        let counted = |fragments: u64| {
            let bytes = fragments.saturating_mul(self.layout.fragment_bytes.into());
            if self.kind_of(bytes) == Kind::Large { 0 } else { fragments }
        };
        self.alloc.key_sizes.note(key, counted(before), counted(after));
    }

    /// Frees the runs that were removed from the map of a file.
    pub(super) fn free(&self, file: &VnodeState, removed: Removed) {
        let Removed { runs, released, shared, referred } = removed;
        self.intent_log.referred(file, referred);
        runs.into_iter().for_each(|run| self.alloc.free(run));
        shared.into_iter().for_each(|run| Clusters::of(self.alloc).share_for_now(run));
        released.into_iter().for_each(|run| Clusters::of(self.alloc).release(run));
    }

    /// Frees the blocks of the extent tree, before the map is dropped.
    pub(super) fn free_tree(&self, file: &VnodeState) {
        let fragments = self.layout.block_fragments();
        for block in file.inode.map().into_iter().flat_map(ExtentMap::tree_blocks) {
            self.alloc.free(FragRun::new(self.layout.block_start(block), fragments));
        }
    }
}

/// Whether all fragments of a range of a file are mapped.
fn is_all_mapped(file: &VnodeState, mut range: Range<u64>) -> bool {
    let mapped = |map: &ExtentMap| {
        range.all(|fragment| matches!(map.find(FileFrag(fragment)), Mapping::Mapped { .. }))
    };
    file.inode.map().is_some_and(mapped)
}
