//! Finds where a directory's files are, from its sectors, and which of their blocks are not in memory.

use std::ops::{ControlFlow, Range};

use crate::format::extent::Extent;
use crate::format::inode::{FileType, InodeFlags};
use crate::format::sector::{Body, Entry};
use crate::inode::{InodeCache, VnodeState};
use crate::namespace::scan;
use crate::runs;
use crate::tuning::Reading;
use crate::units::{BlockNo, FileBlock, FragRun, InodeNo, SectorIndex};

/// Which entries of a directory are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listed {
    Files,
    Directories,
}

/// A file, or a directory, that may be prefetched.
#[derive(Clone)]
pub(super) struct Candidate {
    pub(super) sector: SectorIndex,
    pub(super) ino: InodeNo,
    pub(super) blocks: Vec<Range<u64>>,
}

/// Looks at directories and changes nothing.
#[derive(Clone, Copy)]
pub(super) struct Survey<'a> {
    pub(super) inodes: &'a InodeCache,
    pub(super) reading: &'a Reading,
}

impl<'a> Survey<'a> {
    pub(super) fn new(inodes: &'a InodeCache) -> Survey<'a> {
        Survey { inodes, reading: &inodes.cache.tuning().reading }
    }

    /// Whether a file has contents on the device that are small enough to plan and not in memory.
    pub(super) fn is_missing(&self, file: &VnodeState) -> bool {
        let Some(map) = file.inode.map() else { return false };
        let absent = |extent: &Extent| self.absent_of(&self.blocks_under(*extent)).is_some();
        file.inode.size <= self.reading.planned_file_bytes_max
            && file.pages.is_empty()
            && map.iter().any(absent)
    }

    /// The absent runs of a file's contents; none if the file is large.
    pub(super) fn absent_runs(&self, file: &VnodeState) -> Vec<Range<u64>> {
        self.runs_of(file).filter_map(|run| self.absent_of(&run)).collect()
    }

    /// The same of a file of which nothing was evicted.
    pub(super) fn absent_runs_of_whole(&self, file: &VnodeState) -> Vec<Range<u64>> {
        self.runs_of(file).filter_map(|run| self.absent_of_whole(&run)).collect()
    }

    /// The part of a run that is neither in memory nor in flight, from the first such block to the last.
    pub(super) fn absent_of(&self, run: &Range<u64>) -> Option<Range<u64>> {
        let absent = |block: &u64| !self.inodes.cache.claims(BlockNo(*block));
        let first = run.clone().find(absent)?;
        let last = run.clone().rev().find(absent)?;
        Some(first..last + 1)
    }

    /// The same for a run without evictions: since blocks were read run by run, a run with both ends in
    /// memory is completely there.
    pub(super) fn absent_of_whole(&self, run: &Range<u64>) -> Option<Range<u64>> {
        let claims = |block| self.inodes.cache.claims(BlockNo(block));
        let is_there = run.is_empty() || claims(run.start) && claims(run.end - 1);
        if is_there { None } else { self.absent_of(run) }
    }

    /// The longest gap in blocks that is read rather than skipped.
    pub(super) fn gap_blocks(&self) -> u64 {
        self.reading.gap_bytes / u64::from(self.inodes.layout.block_bytes)
    }

    /// Runs in the order of the device, with gaps that are cheaper to read than to skip.
    pub(super) fn merged(&self, runs: Vec<Range<u64>>) -> Vec<Range<u64>> {
        runs::merged(runs, self.gap_blocks())
    }

    /// The number of bytes worth reading along with these runs: as many as pass under the head in the time of
    /// the seeks to them.
    pub(super) fn worth_the_way(&self, runs: &[Range<u64>]) -> u64 {
        self.merged(runs.to_vec()).len() as u64 * self.reading.gap_bytes
    }

    /// The files, or the directories, of some sectors, with the blocks that they are in.
    pub(super) fn candidates(
        &self,
        dir: &VnodeState,
        sectors: Range<u32>,
        listed: Listed,
    ) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        let of_kind = |entry: &Entry<'_>| match entry.file_type {
            FileType::Directory => listed == Listed::Directories,
            FileType::Regular => listed == Listed::Files,
            _ => false,
        };
        // Sectors after an unreadable one are ignored.
        let _ = scan(self.inodes, dir, sectors, |sector, entry| {
            if of_kind(entry)
                && let Some(blocks) = self.blocks_of(entry)
            {
                candidates.push(Candidate { sector, ino: entry.ino(), blocks });
            }
            ControlFlow::<()>::Continue(())
        });
        candidates
    }

    /// The blocks of a directory's sectors from this one on, of `count` more at most.
    pub(super) fn blocks_of_sectors(
        &self,
        dir: &VnodeState,
        from: SectorIndex,
        count: u32,
    ) -> Vec<BlockNo> {
        let Some(map) = dir.inode.map() else { return Vec::new() };
        let layout = &self.inodes.layout;
        let end = self.inodes.containers().sector_count(dir).saturating_sub(1);
        let last = end.min(from.0.saturating_add(count));
        let position = |sector| u64::from(sector / layout.block_sectors());
        (position(from.0)..=position(last))
            .filter_map(|position| map.block_at(FileBlock(position), layout.block_fragments()))
            .collect()
    }

    /// Whether the sectors of a directory from this one on, and `count` more, are in memory; false if
    /// there are none.
    pub(super) fn is_resident(&self, dir: &VnodeState, from: SectorIndex, count: u32) -> bool {
        let blocks = self.blocks_of_sectors(dir, from, count);
        !blocks.is_empty() && blocks.into_iter().all(|block| self.inodes.cache.resident(block))
    }

    /// The extents of an entry's file; `None` if its contents are inline or large. With an extent tree, its
    /// record has only the last extents; the others are known while the file is in use.
    fn blocks_of(&self, entry: &Entry<'_>) -> Option<Vec<Range<u64>>> {
        let Body::Embedded(record) = &entry.body else { return None };
        let inline = record.inode.inode_flags().contains(InodeFlags::INLINE);
        if inline || record.inode.size.get() > self.reading.planned_file_bytes_max {
            return None;
        }
        let of_extent = |extent: Extent| {
            let blocks = (!extent.unwritten).then(|| self.blocks_under(extent));
            blocks.filter(|run| !run.is_empty())
        };
        if record.inode.map_root.get() != 0
            && let Some(vnode) = self.inodes.peek(entry.ino())
            && let Some(state) = vnode.state.try_read()
            && let Some(map) = state.inode.map()
        {
            return Some(map.iter().copied().filter_map(of_extent).collect());
        }
        Some(Extent::decode_list(record.data).filter_map(of_extent).collect())
    }

    /// The extents of a file in use; none if its contents are large.
    fn runs_of(&self, file: &VnodeState) -> impl Iterator<Item = Range<u64>> {
        let is_small = file.inode.size <= self.reading.planned_file_bytes_max;
        let extents = file.inode.map().filter(|_| is_small).into_iter().flat_map(|map| map.iter());
        extents.filter(|extent| !extent.unwritten).map(|extent| self.blocks_under(*extent))
    }

    fn blocks_under(&self, extent: Extent) -> Range<u64> {
        self.blocks_of_run(extent.run())
    }

    pub(super) fn blocks_of_run(&self, run: FragRun) -> Range<u64> {
        let layout = &self.inodes.layout;
        let per_block = u64::from(layout.block_fragments());
        run.start.0 / per_block..run.end().0.div_ceil(per_block).min(layout.blocks)
    }
}
