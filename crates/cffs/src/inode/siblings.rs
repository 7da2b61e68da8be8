//! Read-ahead across directories: what the next directories of a walk have beside what is read of
//! this one.
//!
//! A directory that grows little by little lies in a few places, and so do those that grow beside
//! it: their first files were made at the same time, and lie side by side. Who walks the tree would
//! come back to these places for each directory. So where directories are read one after the other,
//! a plan takes along what the next ones have there: short pieces, as far as reading them costs less
//! than coming back.

use std::ops::Range;
use std::sync::Arc;

use super::ahead::SECTORS_MAX;
use super::{Store, Vnode, VnodeState};
use crate::cache::Stay;
use crate::format::inode::FileType;
use crate::format::sector::Body;
use crate::units::{BlockNo, Container, InodeNo, SectorIndex};

/// How many directories a plan looks forward to.
const SIBLINGS_MAX: usize = 8;
/// A longer piece is worth a seek of its own.
const PIECE_BYTES_MAX: u64 = 2 << 20;
/// How many sectors of a directory that is listed are searched for extent trees.
const LISTED_SECTORS_MAX: u32 = 1024;
/// How many sectors of the parent are searched for the next directories.
const PARENT_SECTORS_MAX: u32 = 8;

/// The walk that the reader seems to be on.
#[derive(Default)]
pub(super) struct Walk {
    /// The directories that are listed after the last one of which files were read.
    next: Vec<InodeNo>,
    /// How many of them a plan looks forward to.
    forward: usize,
}

impl Walk {
    /// Whether directories were read one after the other.
    pub(super) fn is_on(&self) -> bool {
        self.forward > 0
    }

    /// Goes on to a directory, which these follow; tells how many of them to look forward to.
    fn go_on(&mut self, dir: InodeNo, next: Vec<InodeNo>) -> usize {
        let in_order = self.next.contains(&dir);
        self.forward = if in_order { (self.forward * 2).clamp(1, SIBLINGS_MAX) } else { 0 };
        self.next = next;
        self.forward
    }
}

impl Store {
    /// The runs, in the order of the device and merged, with what the next directories have beside
    /// them. No locks may be held.
    pub(super) fn with_siblings(
        &self,
        dir: &Arc<Vnode>,
        mut runs: Vec<Range<u64>>,
    ) -> Vec<Range<u64>> {
        if runs.is_empty() {
            return runs;
        }
        let Some(container) = dir.state.read().container else { return runs };
        let siblings = self.next_directories(dir.ino, container);
        let next = siblings.iter().map(|vnode| vnode.ino).collect();
        let forward = self.ahead.walk().go_on(dir.ino, next);
        for sibling in siblings.iter().take(forward) {
            let pieces = self.merge(self.absent_in(&sibling.state.read()));
            let beside = pieces.into_iter().filter(|piece| self.is_beside(piece, &runs));
            let beside: Vec<Range<u64>> = beside.collect();
            if !beside.is_empty() {
                runs.extend(beside);
                runs = self.merge(runs);
            }
        }
        runs
    }

    fn is_beside(&self, piece: &Range<u64>, runs: &[Range<u64>]) -> bool {
        let gap = self.gap_blocks();
        let near = |run: &Range<u64>| piece.start <= run.end + gap && run.start <= piece.end + gap;
        let bytes = (piece.end - piece.start) * u64::from(self.layout.block_bytes);
        bytes <= PIECE_BYTES_MAX && runs.iter().any(near)
    }

    /// The directories that a directory's parent lists after it, as far as its sectors are in memory.
    pub(super) fn next_directories(&self, ino: InodeNo, at: Container) -> Vec<Arc<Vnode>> {
        let mut found = Vec::new();
        let Some(parent) = self.peek(at.file) else { return found };
        let state = parent.state.read();
        if !state.inode.is_dir() || !self.is_in_memory(&state, at.sector, PARENT_SECTORS_MAX) {
            return found;
        }
        let end = self.sector_count(&state).min(at.sector.0.saturating_add(PARENT_SECTORS_MAX));
        let mut is_after = false;
        for sector in (at.sector.0..end).map(SectorIndex) {
            let Ok(image) = self.sector(&state, sector) else { break };
            for entry in image.get().entries() {
                if entry.ino() == ino {
                    is_after = true;
                } else if is_after && entry.file_type == FileType::Directory {
                    let Body::Embedded(record) = entry.body else { continue };
                    let container = Container { file: at.file, sector };
                    found.extend(self.adopt(&record, container).ok());
                }
                if found.len() == SIBLINGS_MAX {
                    return found;
                }
            }
        }
        found
    }

    /// Before a directory is listed with attributes: reads the extent trees of what it lists, all of
    /// them at once and in the order of the device. That of a directory lies among its sectors, and is
    /// needed before anything is told of it; one by one, trees would be read in the order of names.
    /// Errors are left to the reads that follow.
    pub fn read_trees_ahead(&self, dir: &VnodeState) {
        if !self.features.policy.groups() {
            return;
        }
        let mut roots = Vec::new();
        for sector in (0..self.sector_count(dir).min(LISTED_SECTORS_MAX)).map(SectorIndex) {
            let Ok(image) = self.sector(dir, sector) else { break };
            for entry in image.get().entries() {
                let Body::Embedded(record) = &entry.body else { continue };
                let root = record.inode.map_root.get();
                let is_block = (1..self.layout.blocks).contains(&root);
                // An inode in use has its tree decoded.
                let is_needed = is_block && self.peek(entry.ino()).is_none();
                if is_needed && !self.cache.is_coming(BlockNo(root)) {
                    roots.push(root..root + 1);
                }
            }
        }
        if roots.len() < 2 {
            return;
        }
        self.cache.read_runs(self.merge(roots), Stay::AmongUsed);
    }

    /// Whether the sectors of a directory from this one on, and `count` more, are in memory; false if
    /// there are none.
    pub(super) fn is_in_memory(&self, dir: &VnodeState, from: SectorIndex, count: u32) -> bool {
        let blocks = self.blocks_of_sectors(dir, from, count);
        !blocks.is_empty() && blocks.into_iter().all(|block| self.cache.has(block))
    }

    /// What is not in memory of the files of a directory; nothing if that has its sectors still to be
    /// read.
    fn absent_in(&self, dir: &VnodeState) -> Vec<Range<u64>> {
        if !self.is_in_memory(dir, SectorIndex(0), SECTORS_MAX) {
            return Vec::new();
        }
        let end = SectorIndex(self.sector_count(dir).saturating_sub(1).min(SECTORS_MAX));
        let candidates = self.candidates(dir, SectorIndex(0)..end, false);
        let blocks = candidates.into_iter().flat_map(|one| one.blocks);
        blocks.filter_map(|run| self.absent_of(&run)).collect()
    }
}
