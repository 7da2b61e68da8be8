//! Read-ahead in the order of names: what a directory lists next is read before it is asked for.
//!
//! Churn scatters the files of a directory over its segments, so that the next file is rarely the
//! one that lies behind this one. But the directory's sectors have the inodes, and these tell where
//! the files lie: a miss plans the files that are listed after it, and reads them in the order of
//! the device, gaps between them included where reading costs less than a seek.
//!
//! ```text
//!     miss in order: × growth, up to PLAN_BYTES_MAX
//!    none ────────────────────────────────▶ planning ──▶ the next directory begins with half
//!     ▲          miss out of order             │
//!     └────────────────────────────────────────┘
//! ```
//!
//! Where a thread reads behind the reader's back, a plan goes on when the file in its middle is
//! reached, so that the device need not wait for the reader. Who walks a tree (`siblings`) goes on with
//! the next directory: it is planned when the reader has come to the last plan of this one.
//!
//! A miss is in order if hardly anything that is not in memory was passed over since the last plan.
//! So who reads a directory at random pays for group reads alone. Directories below a directory are
//! read ahead the same way, as find(1) needs them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::siblings::Walk;
use super::{Store, Vnode, VnodeState};
use crate::cache::Stay;
use crate::format::extent::Extent;
use crate::format::inode::{FileType, InodeFlags};
use crate::format::sector::{self, Body};
use crate::units::{BlockNo, Container, InodeNo, SectorIndex};

/// Of how many directories it is remembered what was read of their files, and of how many, of the
/// directories in them.
const GUESSES: usize = 16;
/// A plan is at most this long. With the gaps that are read it is at most this part of the cache, so
/// that what is read ahead stays until it is asked for.
const PLAN_BYTES_MAX: u64 = 16 << 20;
const PLAN_CACHE_PART: u64 = 8;
/// How many segments a plan of directories begins with: their sectors lie side by side, and who is
/// in the first ones of a directory without having passed any over is likely to walk the tree.
const TREE_SEGMENTS: u64 = 16;
/// How many times as long as the one before a plan is. Of directories only sectors are read, which
/// are little, but may lie in many places: the fewer sweeps over these, the better.
const GROWTH: u64 = 2;
const GROWTH_OF_DIRECTORIES: u64 = 16;
/// A larger file has a stream of its own, for which its reader waits with the rest of the directory, and
/// the device then waits for him.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// The longest gap that is read rather than skipped. What lies on the way passes under the head in any
/// case, up to a whole turn, which is a mebibyte and more.
const GAP_BYTES: u64 = 1 << 20;
/// How many files may be passed over by a reader in order.
const PASSED_MAX: usize = 4;
/// A miss goes on with a stream if that has come to read this much at once.
const STREAM_BYTES_MIN: u64 = 256 << 10;
/// How many sectors a plan looks at.
pub(super) const SECTORS_MAX: u32 = 64;

#[derive(Clone, Copy, Default)]
struct Guess {
    dir: InodeNo,
    directories: bool,
    /// The last file of the last plan, and its sector.
    last: (SectorIndex, InodeNo),
    /// The file of the last plan at which it goes on.
    middle: InodeNo,
    bytes: u64,
    used: u64,
}

/// The guesses about files, and those about directories: a directory has one while hundreds below it
/// come and go.
#[derive(Default)]
struct Guesses {
    used: u64,
    guesses: [[Guess; GUESSES]; 2],
}

/// What was read of which directories lately.
#[derive(Default)]
pub(super) struct Ahead {
    state: Mutex<Guesses>,
    walk: Mutex<Walk>,
    /// The block at which the last plan ended.
    arm: AtomicU64,
}

impl Ahead {
    fn find(&self, dir: InodeNo, directories: bool) -> Option<Guess> {
        let state = self.state.lock();
        state.of(directories).find(|guess| guess.dir == dir).copied()
    }

    pub(super) fn walk(&self) -> MutexGuard<'_, Walk> {
        self.walk.lock()
    }

    /// The guess made last: where another directory ended.
    fn latest(&self, directories: bool) -> Option<Guess> {
        let state = self.state.lock();
        state.of(directories).max_by_key(|guess| guess.used).copied()
    }

    fn remember(&self, guess: Guess) {
        let mut state = self.state.lock();
        state.used += 1;
        let used = state.used;
        let guesses = &mut state.guesses[usize::from(guess.directories)];
        let same = guesses.iter().position(|other| other.used > 0 && other.dir == guess.dir);
        let slot = same.or_else(|| {
            let oldest = guesses.iter().enumerate().min_by_key(|(_, guess)| guess.used);
            oldest.map(|(slot, _)| slot)
        });
        guesses[slot.unwrap_or(0)] = Guess { used, ..guess };
    }
}

impl Guesses {
    /// Those about files, or about directories.
    fn of(&self, directories: bool) -> impl Iterator<Item = &Guess> {
        self.guesses[usize::from(directories)].iter().filter(|guess| guess.used > 0)
    }
}

/// What a plan reads.
#[derive(Default)]
struct Gathered {
    runs: Vec<Range<u64>>,
    last: Option<(SectorIndex, InodeNo)>,
    /// The file at which the next plan begins: in the middle, or if the directory has no more files
    /// than these, the first.
    middle: InodeNo,
}

/// A file that a plan may read.
pub(super) struct Candidate {
    sector: SectorIndex,
    ino: InodeNo,
    pub(super) blocks: Vec<Range<u64>>,
}

impl Store {
    /// Before the first read of a file or directory: if it is not in memory, reads it with what its
    /// directory lists next, as far as that was of use so far. No locks may be held. Errors are
    /// left to the read that follows.
    pub fn read_ahead(&self, vnode: &Arc<Vnode>) {
        if !self.features.policy.groups()
            || vnode.seen.load(Ordering::Relaxed)
            || vnode.seen.swap(true, Ordering::Relaxed)
        {
            return;
        }
        let (container, directories, goes_on) = {
            let state = vnode.state.read();
            let Some(container) = state.container else { return };
            if container.file.is_system() && container.file != InodeNo::ROOT {
                return;
            }
            let directories = state.inode.is_dir();
            let goes_on = self.is_middle(container.file, directories, vnode.ino);
            if !goes_on && !self.is_missing(&state) && !self.begins_tree(container, directories) {
                return;
            }
            (container, directories, goes_on)
        };
        let Some(dir) = self.peek(container.file) else { return };
        let mut runs = {
            let state = dir.state.read();
            if goes_on {
                self.go_on(&state, container.file, directories)
            } else {
                self.plan(&state, container, vnode.ino, directories)
            }
        };
        if !directories {
            let next = if goes_on && runs.is_empty() { self.plan_next(&dir) } else { None };
            let (planned, of_next) = next.unwrap_or((dir, runs));
            runs = self.with_siblings(&planned, of_next);
            self.begin_at_nearer_end(&mut runs);
        }
        if let [run] = &runs[..] {
            self.cache.read_in_order(BlockNo(run.start), BlockNo(run.end));
        }
        let stay = if directories { Stay::AmongUsed } else { Stay::UntilUsed };
        self.cache.read_runs(runs, stay);
    }

    /// Puts runs into the order that begins at the end where the arm is.
    fn begin_at_nearer_end(&self, runs: &mut [Range<u64>]) {
        let arm = self.ahead.arm.load(Ordering::Relaxed);
        if let [first, .., last] = &*runs
            && arm.abs_diff(last.end) < arm.abs_diff(first.start)
        {
            runs.reverse();
        }
        if let Some(last) = runs.last() {
            self.ahead.arm.store(last.end, Ordering::Relaxed);
        }
    }

    /// Whether this is the first that is looked at of the directories that a directory lists first.
    /// Its own sectors may have come with the parent's; those of the next have not, and going back
    /// for them from the files of the first costs two seeks.
    fn begins_tree(&self, at: Container, directories: bool) -> bool {
        directories && at.sector.0 < 2 && self.ahead.find(at.file, true).is_none()
    }

    /// Whether a file has contents on the device that are small enough to plan and not in memory.
    fn is_missing(&self, file: &VnodeState) -> bool {
        let Some(map) = file.inode.map() else { return false };
        let absent = |extent: &Extent| self.absent_of(&self.blocks_under(*extent)).is_some();
        file.inode.size <= FILE_BYTES_MAX && file.pages.is_empty() && map.iter().any(absent)
    }

    fn plan(
        &self,
        dir: &VnodeState,
        at: Container,
        ino: InodeNo,
        directories: bool,
    ) -> Vec<Range<u64>> {
        let most = PLAN_BYTES_MAX.min(self.cache.bytes() / PLAN_CACHE_PART);
        let segment = u64::from(self.layout.segment_bytes);
        let (before, follows) = match self.ahead.find(at.file, directories) {
            Some(guess) => (Some(guess), None),
            None => (None, self.ahead.latest(directories)),
        };
        let from = match before {
            Some(guess) if (at.sector.0.wrapping_sub(guess.last.0.0)) < SECTORS_MAX => guess.last.0,
            Some(_) => at.sector,
            None if directories && at.sector.0 < SECTORS_MAX => SectorIndex(0),
            None => SectorIndex(at.sector.0.saturating_sub(1)),
        };
        let mut candidates = self.candidates(dir, from..at.sector, directories);
        let last = before.and_then(|guess| candidates.iter().position(|c| c.ino == guess.last.1));
        let planned = match (before, last) {
            (Some(guess), _) if at.sector.0 < guess.last.0.0 => true,
            (_, Some(last)) => candidates[..=last].iter().any(|c| c.ino == ino),
            _ => false,
        };
        if let (Some(last), false) = (last, planned) {
            candidates.drain(..=last);
        }
        let passed = candidates.iter().position(|one| one.ino == ino);
        let missing = |one: &&Candidate| one.blocks.iter().any(|run| self.absent_of(run).is_some());
        let in_order = passed.is_some_and(|passed| {
            candidates[..passed].iter().filter(missing).count() <= PASSED_MAX
        });
        let budget = match (before, follows) {
            _ if !in_order && !planned => 0,
            (Some(guess), _) => (guess.bytes * growth(directories)).max(2 * segment),
            (None, Some(guess)) if at.sector.0 < 2 => guess.bytes,
            (None, None) if directories && from.0 == 0 => TREE_SEGMENTS * segment,
            _ => 0,
        }
        .min(most);
        candidates.drain(..passed.unwrap_or(0));
        let mut planned = self.gather(dir, candidates, at.sector, directories, (budget, Some(ino)));
        if directories && budget > 0 {
            planned.runs.extend(self.next_sectors(dir, at.sector));
        }
        self.ahead.remember(Guess {
            dir: at.file,
            directories,
            last: planned.last.unwrap_or((at.sector, ino)),
            middle: planned.middle,
            bytes: budget,
            used: 0,
        });
        // What lies in one segment, or goes on where a stream is, the group read brings as well.
        let first = planned.runs.first().map(|run| BlockNo(run.start));
        let stream = first.map_or(0, |first| self.cache.stream_bytes(first));
        let streams = stream >= STREAM_BYTES_MIN && (!directories || budget <= stream);
        if planned.runs.len() <= 1 && budget <= stream || streams {
            return Vec::new();
        }
        self.merge(planned.runs)
    }

    /// What is not in memory of a directory's own sectors from this one on, as far as a plan looks: the
    /// next plan needs them.
    fn next_sectors(&self, dir: &VnodeState, from: SectorIndex) -> Vec<Range<u64>> {
        let blocks = self.blocks_of_sectors(dir, from, SECTORS_MAX);
        let absent = blocks.into_iter().filter(|block| !self.cache.is_coming(*block));
        absent.map(|block| block.0..block.0 + 1).collect()
    }

    /// The blocks of a directory's sectors from this one on, of `count` more at most.
    pub(super) fn blocks_of_sectors(
        &self,
        dir: &VnodeState,
        from: SectorIndex,
        count: u32,
    ) -> Vec<BlockNo> {
        let Some(map) = dir.inode.map() else { return Vec::new() };
        let fragments = self.layout.block_fragments();
        let last = self.sector_count(dir).saturating_sub(1).min(from.0.saturating_add(count));
        let position = |sector| u64::from(sector / self.layout.block_sectors());
        (position(from.0)..=position(last))
            .filter_map(|position| map.block_at(position * u64::from(fragments), fragments))
            .collect()
    }

    /// Goes on with the last plan of a directory, in the middle of which its reader is.
    fn go_on(&self, dir: &VnodeState, ino: InodeNo, directories: bool) -> Vec<Range<u64>> {
        let Some(before) = self.ahead.find(ino, directories) else { return Vec::new() };
        let most = PLAN_BYTES_MAX.min(self.cache.bytes() / PLAN_CACHE_PART);
        let (sector, last) = before.last;
        let mut candidates = self.candidates(dir, sector..sector, directories);
        let passed = candidates.iter().position(|one| one.ino == last);
        candidates.drain(..passed.map_or(0, |passed| passed + 1));
        let bytes = (before.bytes * growth(directories)).min(most);
        let planned = self.gather(dir, candidates, sector, directories, (bytes, None));
        let last = planned.last.unwrap_or(before.last);
        self.ahead.remember(Guess { last, middle: planned.middle, bytes, ..before });
        self.merge(planned.runs)
    }

    /// Plans the directory that is read after this one.
    fn plan_next(&self, dir: &Arc<Vnode>) -> Option<(Arc<Vnode>, Vec<Range<u64>>)> {
        let bytes = self.ahead.find(dir.ino, false)?.bytes;
        let container = dir.state.read().container?;
        if !self.ahead.walk().is_on() {
            return None;
        }
        let next = self.next_directories(dir.ino, container).into_iter().next()?;
        let state = next.state.read();
        if !self.is_in_memory(&state, SectorIndex(0), SECTORS_MAX) {
            return None;
        }
        let first = SectorIndex(0);
        let candidates = self.candidates(&state, first..first, false);
        let planned = self.gather(&state, candidates, first, false, (bytes, None));
        self.ahead.remember(Guess {
            dir: next.ino,
            directories: false,
            last: planned.last?,
            middle: planned.middle,
            bytes,
            used: 0,
        });
        drop(state);
        Some((next, self.merge(planned.runs)))
    }

    fn is_middle(&self, dir: InodeNo, directories: bool, ino: InodeNo) -> bool {
        let guess = || self.ahead.find(dir, directories);
        self.cache.is_read_behind() && guess().is_some_and(|guess| guess.middle == ino)
    }

    /// The part of a run that is not in memory, from the first such block to the last.
    pub(super) fn absent_of(&self, run: &Range<u64>) -> Option<Range<u64>> {
        let absent = |block: &u64| !self.cache.is_coming(BlockNo(*block));
        let first = run.clone().find(absent)?;
        let last = run.clone().rev().find(absent)?;
        Some(first..last + 1)
    }

    /// What is absent of the candidates and of those in the sectors after `sector`, up to `budget`
    /// bytes, and as much as there is room for with the gaps; what `wanted` lacks in any case.
    fn gather(
        &self,
        dir: &VnodeState,
        mut candidates: Vec<Candidate>,
        from: SectorIndex,
        directories: bool,
        (budget, wanted): (u64, Option<InodeNo>),
    ) -> Gathered {
        let mut planned = Gathered::default();
        let mut first = None;
        let (mut bytes, mut gaps) = (0, 0);
        let block_bytes = u64::from(self.layout.block_bytes);
        let room = self.cache.bytes() / PLAN_CACHE_PART;
        let is_enough = |bytes, gaps| bytes >= budget || bytes + gaps >= room;
        let mut sector = SectorIndex(from.0 + 1);
        loop {
            for one in &candidates {
                if is_enough(bytes, gaps) && Some(one.ino) != wanted {
                    break;
                }
                planned.last = Some((one.sector, one.ino));
                if Some(one.ino) != wanted {
                    first.get_or_insert(one.ino);
                }
                if bytes <= budget / 2 {
                    planned.middle = one.ino;
                }
                for run in one.blocks.iter().filter_map(|run| self.absent_of(run)) {
                    bytes += (run.end - run.start) * block_bytes;
                    let before = planned.runs.last().map_or(run.start, |before| before.end);
                    let gap = run.start.saturating_sub(before) * block_bytes;
                    gaps += if gap <= GAP_BYTES { gap } else { 0 };
                    planned.runs.push(run);
                }
            }
            let far = sector.0 > from.0 + SECTORS_MAX;
            if is_enough(bytes, gaps) || far {
                return planned;
            }
            if sector.0 >= self.sector_count(dir) {
                planned.middle = first.unwrap_or(planned.middle);
                return planned;
            }
            candidates = self.candidates(dir, sector..sector, directories);
            sector = SectorIndex(sector.0 + 1);
        }
    }

    /// The longest gap that is read rather than skipped.
    pub(super) fn gap_blocks(&self) -> u64 {
        GAP_BYTES / u64::from(self.layout.block_bytes)
    }

    /// In the order of the device, with gaps that are cheaper to read than to skip.
    pub(super) fn merge(&self, mut runs: Vec<Range<u64>>) -> Vec<Range<u64>> {
        runs.sort_unstable_by_key(|run| run.start);
        let gap = self.gap_blocks();
        let mut merged: Vec<Range<u64>> = Vec::new();
        for run in runs {
            match merged.last_mut() {
                Some(last) if run.start <= last.end + gap => last.end = last.end.max(run.end),
                _ => merged.push(run),
            }
        }
        merged
    }

    /// The files, or the directories, of some sectors, with the blocks that they lie in.
    pub(super) fn candidates(
        &self,
        dir: &VnodeState,
        sectors: Range<SectorIndex>,
        directories: bool,
    ) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        let end = sectors.end.0.min(self.sector_count(dir).saturating_sub(1));
        for sector in (sectors.start.0..=end).map(SectorIndex) {
            let Ok(image) = self.sector(dir, sector) else { break };
            for entry in image.get().entries() {
                let of_kind = match entry.file_type {
                    FileType::Directory => directories,
                    FileType::Regular => !directories,
                    _ => false,
                };
                if let (true, Some(blocks)) = (of_kind, self.blocks_of(&entry)) {
                    candidates.push(Candidate { sector, ino: entry.ino(), blocks });
                }
            }
        }
        candidates
    }

    /// Where the contents of an entry's file lie; `None` if in itself, or if they are much. Where it has
    /// an extent tree, its record tells the last ones alone, and the others are known while it is in use.
    fn blocks_of(&self, entry: &sector::Entry<'_>) -> Option<Vec<Range<u64>>> {
        let Body::Embedded(record) = &entry.body else { return None };
        let inline = record.inode.inode_flags().contains(InodeFlags::INLINE);
        if inline || record.inode.size.get() > FILE_BYTES_MAX {
            return None;
        }
        let of_extent = |extent: Extent| {
            let blocks = (!extent.unwritten).then(|| self.blocks_under(extent));
            blocks.filter(|run| !run.is_empty())
        };
        if record.inode.map_root.get() != 0
            && let Some(vnode) = self.peek(entry.ino())
            && let Some(state) = vnode.state.try_read()
            && let Some(map) = state.inode.map()
        {
            return Some(map.iter().copied().filter_map(of_extent).collect());
        }
        Some(Extent::decode_list(record.data).filter_map(of_extent).collect())
    }

    pub(super) fn blocks_under(&self, extent: Extent) -> Range<u64> {
        let per_block = u64::from(self.layout.block_fragments());
        let end = extent.run().end().0.div_ceil(per_block).min(self.layout.blocks);
        extent.start.0 / per_block..end
    }
}

fn growth(directories: bool) -> u64 {
    if directories { GROWTH_OF_DIRECTORIES } else { GROWTH }
}
