//! Read-ahead across directories: data of a walk's next directories that is near the data of this one.
//!
//! A directory that grows slowly is stored in a few places, and directories that grow at the same time share
//! these places. A walk of the tree would return to them for each directory. So when directories are read in
//! sequence, a plan includes the short pieces of the next ones there, if reading them costs less than
//! returning.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use super::survey::{Listed, Survey};
use crate::cache::{Cursor, Growth};
use crate::format::inode::FileType;
use crate::format::sector::Body;
use crate::inode::{Vnode, VnodeState};
use crate::lock::{Mutex, Rank};
use crate::namespace::scan;
use crate::units::{Container, InodeNo, SectorIndex};

/// The walk that the reader seems to be on: it continues with the directories that are listed after the last
/// one whose files were read.
pub(super) struct Walk {
    cursor: Mutex<Cursor<Vec<InodeNo>>>,
}

impl Default for Walk {
    fn default() -> Walk {
        Walk { cursor: Mutex::new(Rank::Leaf, Cursor::default()) }
    }
}

impl Walk {
    /// Whether directories were read one after the other.
    pub(super) fn is_on(&self) -> bool {
        self.cursor.lock().window > 0
    }

    /// Moves to a directory that is followed by these; returns how many of them to include.
    fn advance(&self, dir: InodeNo, next: Vec<InodeNo>, most: usize) -> usize {
        let mut cursor = self.cursor.lock();
        if cursor.at.contains(&dir) {
            cursor.advance(next, Growth { factor: 2, least: 1, most: most as u64 });
        } else {
            *cursor = Cursor::new(next);
        }
        cursor.window as usize
    }

    /// The runs, merged and in device order, with the pieces of the next directories near them. No locks may
    /// be held.
    pub(super) fn with_siblings(
        &self,
        survey: &Survey<'_>,
        dir: &Arc<Vnode>,
        mut runs: Vec<Range<u64>>,
    ) -> Vec<Range<u64>> {
        if runs.is_empty() {
            return runs;
        }
        let Some(container) = dir.state.read().container else { return runs };
        let siblings = next_directories(survey, dir.ino, container);
        let next = siblings.iter().map(|vnode| vnode.ino).collect();
        let forward = self.advance(dir.ino, next, survey.reading.siblings_max);
        for sibling in siblings.iter().take(forward) {
            let pieces = survey.merged(absent_in(survey, &sibling.state.read()));
            let near = pieces.into_iter().filter(|piece| is_near(survey, piece, &runs));
            let near: Vec<Range<u64>> = near.collect();
            if !near.is_empty() {
                runs.extend(near);
                runs = survey.merged(runs);
            }
        }
        runs
    }
}

/// The directories that a directory's parent lists after it, as far as its sectors are in memory.
pub(super) fn next_directories(
    survey: &Survey<'_>,
    ino: InodeNo,
    at: Container,
) -> Vec<Arc<Vnode>> {
    let mut found = Vec::new();
    let Some(parent) = survey.inodes.peek(at.file) else { return found };
    let state = parent.state.read();
    let sectors_max = survey.reading.parent_sectors_max;
    if !state.inode.is_dir() || !survey.is_resident(&state, at.sector, sectors_max) {
        return found;
    }
    let sectors = at.sector.0..at.sector.0.saturating_add(sectors_max);
    let mut is_after = false;
    let _ = scan(survey.inodes, &state, sectors, |sector, entry| {
        if entry.ino() == ino {
            is_after = true;
        } else if is_after
            && entry.file_type == FileType::Directory
            && let Body::Embedded(record) = &entry.body
        {
            let container = Container { file: at.file, sector };
            found.extend(survey.inodes.adopt(record, container).ok());
        }
        let is_enough = found.len() == survey.reading.siblings_max;
        if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    found
}

fn is_near(survey: &Survey<'_>, piece: &Range<u64>, runs: &[Range<u64>]) -> bool {
    let gap = survey.gap_blocks();
    let near = |run: &Range<u64>| piece.start <= run.end + gap && run.start <= piece.end + gap;
    let bytes = (piece.end - piece.start) * u64::from(survey.inodes.layout.block_bytes);
    bytes <= survey.reading.sibling_bytes_max && runs.iter().any(near)
}

/// The absent runs of the files of a directory; none if its own sectors must be read first.
fn absent_in(survey: &Survey<'_>, dir: &VnodeState) -> Vec<Range<u64>> {
    let sectors_max = survey.reading.plan_sectors_max;
    if !survey.is_resident(dir, SectorIndex(0), sectors_max) {
        return Vec::new();
    }
    let candidates = survey.candidates(dir, 0..sectors_max + 1, Listed::Files);
    let blocks = candidates.into_iter().flat_map(|one| one.blocks);
    blocks.filter_map(|run| survey.absent_of(&run)).collect()
}
