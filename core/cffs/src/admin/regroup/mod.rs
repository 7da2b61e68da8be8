//! Regrouping: moves files that churn has scattered together again, on a volume in use.
//!
//! The files of a walk are taken in *units*: as many files, in the order of the walk, as one request reads. A
//! unit is moved if that halves its cost of reading; a seek costs as much as the bytes that the device
//! streams in its time (`cost`). It goes into one free run, after the previous unit. If no run is long
//! enough, the unit is halved, repeatedly, down to the bytes that the device streams in the time of a seek;
//! smaller units stay. A moved unit costs less than twice its minimum, so it is not moved again until it has
//! become more expensive: files do not move back and forth.
//!
//! ```text
//!   fetch ──▶ │ own ── place │ ──▶ write ──▶ epoch: inodes lead to the new places, the old are free
//!             └ gate closed ─┘
//! ```
//!
//! A step is a unit: its reads hold no lock, and can be given up between two files. How often callers wait
//! for a step is up to `watch` (`vfs::regroup`).
//!
//! A move writes the same contents to a new place: nothing on the device points there before the epoch, which
//! changes each inode as a whole. Contents, times, names and numbers stay as they are.

mod chains;
mod cost;
mod keyed;
mod progress;
mod unit;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

pub(crate) use self::keyed::Walk;
pub use self::progress::RegroupProgress;
use self::unit::{Candidate, Unit};
use super::compaction::Compactor;
use crate::alloc::Owner;
use crate::cache::{PinnedBlocks, WriteSet};
use crate::device::{Failure, Patient};
use crate::epoch::{EpochKind, EpochWriter, finish_writes};
use crate::error::{Error, Result};
use crate::format::inode::FileType;
use crate::inode::{Neighbours, Vnode, VnodeGuard, VnodeState, WriteBack, keys};
use crate::namespace::read_dir;
use crate::readahead::ReadAhead;
use crate::trace::OpKind;
use crate::units::{FileBlock, InodeNo, Key};

/// Regrouping compacts a cluster if at least one in this many of its fragments is dead.
const DEAD_PART: u32 = 8;

/// How to regroup.
#[derive(Clone, Copy, Debug)]
pub struct RegroupOptions {
    /// Nothing is moved, only counted.
    pub dry_run: bool,
    /// Files are moved if that makes reading them cheaper by this factor. With less than 2, files whose
    /// neighbours change may be moved again and again; with 0, all are moved each time, as tests want.
    pub gain: u64,
}

impl Default for RegroupOptions {
    fn default() -> RegroupOptions {
        RegroupOptions { dry_run: false, gain: 2 }
    }
}

/// The files to regroup.
#[derive(Clone, Copy, Debug)]
pub enum Scattered<'a> {
    /// The files of a tree, each with those of its directory.
    Tree(InodeNo),
    /// These files, in the order in which they are read.
    Files(&'a [InodeNo]),
    /// The files that were observed to be read together since the volume was opened. They are given a key and
    /// stay together from then on, unless they have a hint, which wins.
    Used,
}

/// Regroups the files of a volume.
pub(crate) struct Regrouper<'a> {
    readahead: &'a ReadAhead,
    writer: &'a EpochWriter,
}

impl<'a> Regrouper<'a> {
    pub(crate) fn new(readahead: &'a ReadAhead, writer: &'a EpochWriter) -> Regrouper<'a> {
        Regrouper { readahead, writer }
    }

    /// Regroups trees. What remains when `watch` ends it stays in `walk`.
    pub(crate) fn run_trees(
        &self,
        walk: &mut Walk,
        options: &RegroupOptions,
        watch: &mut dyn FnMut(&RegroupProgress) -> ControlFlow<()>,
    ) -> Result<RegroupProgress> {
        self.run_with(options, watch, |work| work.trees(walk))
    }

    /// Regroups files in the order in which they are read.
    pub(crate) fn run_files(
        &self,
        files: &[InodeNo],
        options: &RegroupOptions,
        watch: &mut dyn FnMut(&RegroupProgress) -> ControlFlow<()>,
    ) -> Result<RegroupProgress> {
        self.run_with(options, watch, |work| work.files(files))
    }

    /// Regroups chains of files that are read together.
    pub(crate) fn run_chains(
        &self,
        chains: &[Vec<InodeNo>],
        options: &RegroupOptions,
        watch: &mut dyn FnMut(&RegroupProgress) -> ControlFlow<()>,
    ) -> Result<RegroupProgress> {
        self.run_with(options, watch, |work| work.chains(chains))
    }

    fn run_with(
        &self,
        options: &RegroupOptions,
        watch: &mut dyn FnMut(&RegroupProgress) -> ControlFlow<()>,
        regroup: impl FnOnce(&mut Regrouping<'_>) -> Result<ControlFlow<()>>,
    ) -> Result<RegroupProgress> {
        let _op = self.writer.enter_volume(OpKind::Regroup);
        if !self.writer.inodes.features.groups {
            return Err(Error::Invalid("the volume was made not to group files (mkfs --policy)"));
        }
        if !options.dry_run {
            self.writer.health.check_writable()?;
            // Contents that are only in memory get their place first.
            self.writer.commit()?;
        }
        let progress = RegroupProgress::default();
        let mut work =
            Regrouping { regrouper: self, options: *options, progress, compactor: None, watch };
        let ended = regroup(&mut work);
        self.writer.inodes.alloc.forget(Owner::Moved);
        ended.map(|_| work.progress)
    }

    /// Whether contents may be in clusters.
    pub(crate) fn has_clusters(&self) -> bool {
        self.writer.inodes.layout.has_clusters()
    }

    /// The time, to measure durations.
    pub(crate) fn now(&self) -> Instant {
        self.writer.inodes.clock.monotonic()
    }

    /// How often references to clusters have changed since the volume was opened.
    pub(crate) fn reference_changes(&self) -> u64 {
        self.writer.inodes.intent_log.reference_changes()
    }

    /// Compacts the clusters of trees of which at least one in `dead_part` fragments is dead, until this many
    /// bytes were freed, and returns how many were. The directories that remain stay in `pending`.
    pub(crate) fn compact(
        &self,
        pending: &mut Vec<Pending>,
        dead_part: u32,
        wanted_bytes: u64,
    ) -> Result<u64> {
        self.writer.commit()?;
        let mut compactor = Compactor::new(self.writer, dead_part);
        let fragment_bytes = u64::from(self.writer.inodes.layout.fragment_bytes);
        let mut freed = 0;
        while freed < wanted_bytes
            && let Some(Pending { dir, .. }) = pending.pop()
        {
            let (files, directories) = match self.list(dir) {
                // It was removed meanwhile, and a file may have its number, or it is damaged.
                Err(Error::Stale | Error::NotDirectory | Error::Corruption(_)) => continue,
                Err(Error::Io(error)) if Failure::of(&error).is_of_data() => continue,
                listed => listed?,
            };
            pending.extend(directories.into_iter().rev().map(Pending::tree));
            for ino in files {
                match self.writer.vnode(ino) {
                    Ok(vnode) => compactor.pass(&vnode.state.read())?,
                    Err(Error::Stale | Error::Corruption(_)) => {}
                    Err(error) => return Err(error),
                }
            }
            freed += compactor.compact(false)?.fragments * fragment_bytes;
        }
        Ok(freed + compactor.compact(true)?.fragments * fragment_bytes)
    }

    /// Brings the contents of a regular file into the cache.
    fn fetch(&self, ino: InodeNo) -> Result<Arc<Vnode>> {
        let _op = self.writer.enter(OpKind::Read, ino);
        let vnode = self.writer.vnode(ino)?;
        self.readahead.before_read(&self.writer.inodes, &vnode);
        self.writer
            .health
            .noted_contents(self.writer.inodes.contents().fetch(&vnode.state.read()))?;
        Ok(vnode)
    }

    /// The regular files and the directories in a directory, in its order.
    fn list(&self, dir: InodeNo) -> Result<(Vec<InodeNo>, Vec<InodeNo>)> {
        let (mut files, mut directories) = (Vec::new(), Vec::new());
        let vnode = self.writer.vnode(dir)?;
        self.readahead.before_read(&self.writer.inodes, &vnode);
        let listed = read_dir(&self.writer.inodes, &vnode.state.read(), 0, &mut |entry| {
            match entry.file_type {
                FileType::Regular => files.push(entry.ino),
                FileType::Directory => directories.push(entry.ino),
                _ => {}
            }
            Ok(true)
        });
        self.writer.health.noted(listed)?;
        Ok((files, directories))
    }

    /// Whether the contents of a file may be moved. A file that changes in memory is about to be placed
    /// anyway.
    fn may_move(&self, file: &VnodeState) -> bool {
        let most = self.writer.inodes.cache.tuning().placing.medium_bytes_max;
        let is_written = |map: &crate::inode::ExtentMap| !map.is_empty() && !map.has_unwritten();
        file.inode.file_type == FileType::Regular
            && (1..=most).contains(&file.inode.size)
            && file.pages.is_empty()
            && file.container.is_some()
            && file.inode.map().is_some_and(is_written)
    }

    /// The key by which a file is placed, by the present policy.
    fn present_key(&self, file: &VnodeState) -> Key {
        let key = keys::present(self.writer.inodes.policy(), &file.inode);
        key.unwrap_or(Key(file.inode.parent.0))
    }

    /// Moves these files, with the learned keys that they get, into one run, and makes that durable. `None`
    /// if no free run has this many fragments.
    fn move_together(
        &self,
        vnodes: impl Iterator<Item = (Arc<Vnode>, Option<Key>)>,
        fragments: u32,
    ) -> Result<Option<Moved>> {
        let _patient = Patient::begin();
        let mut progress = self.writer.epochs.lock();
        self.writer.health.check_writable()?;
        let inodes = &*self.writer.inodes;
        let mut write_back = WriteBack::new(inodes, WriteSet::default());
        let mut in_flight = Vec::new();
        let mut moved = Moved::default();
        {
            let _gate = self.writer.gate.write();
            if !inodes.alloc.reserve_moved(fragments)? {
                return Ok(None);
            }
            for (vnode, learned) in vnodes {
                let mut file = VnodeGuard::new(&vnode);
                // It may have been written to, or protected, since it was examined.
                if !self.may_move(&file) || file.inode.is_protected() {
                    continue;
                }
                match inodes.writer().move_whole(&mut file) {
                    Ok(()) => {}
                    // The rest has no promise of space, and stays.
                    Err(Error::NoSpace) => break,
                    Err(_) => {
                        moved.damaged += 1;
                        continue;
                    }
                }
                moved.files.push(file.inode.size);
                let key = file.inode.placement_key();
                file.inode.key = match file.inode.key {
                    Some(hint) if keys::is_hint(hint) => Some(hint),
                    _ => learned.or_else(|| keys::present(inodes.policy(), &file.inode)),
                };
                let positions = file.pages.dirty_in(FileBlock::ALL).collect();
                let neighbours = Neighbours { owner: Owner::Moved, grown: false, asked: false };
                let placed = write_back.place_file(&mut file, positions, neighbours);
                drop(file);
                if placed.is_ok() {
                    inodes.alloc.forget(Owner::Key(key));
                }
                in_flight.push((vnode, placed.inspect_err(|error| self.writer.latch(error))?));
            }
            write_back.writes.keep_used(|block| inodes.alloc.used_fragments(block));
        }
        if !in_flight.is_empty() {
            progress.early.is_in_motion = true;
            inodes.write_ahead(write_back.writes).inspect_err(|error| self.writer.latch(error))?;
            finish_writes(in_flight, write_back.epoch);
            self.writer.run_epoch(&mut progress, EpochKind::Plain)?;
        }
        Ok(Some(moved))
    }
}

/// A directory whose files remain to be seen.
pub(crate) struct Pending {
    dir: InodeNo,
    /// Its subdirectories are pending too, or were seen.
    is_listed: bool,
}

impl Pending {
    /// A tree to regroup.
    pub(crate) fn tree(dir: InodeNo) -> Pending {
        Pending { dir, is_listed: false }
    }
}

/// The part of a unit that remains when regrouping is ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    Nothing,
    Unit,
}

/// The result of a step.
enum Step {
    /// The bytes of each file that was moved.
    Moved(Vec<u64>),
    /// There is no free run for it.
    NoRoom,
    /// `watch` ended it before anything was moved.
    Ended,
}

/// A regrouping under way.
struct Regrouping<'a> {
    regrouper: &'a Regrouper<'a>,
    options: RegroupOptions,
    progress: RegroupProgress,
    /// On a volume with clusters.
    compactor: Option<Compactor<'a>>,
    watch: &'a mut dyn FnMut(&RegroupProgress) -> ControlFlow<()>,
}

impl Regrouping<'_> {
    /// Goes through trees, then through the files with keys of their own. What remains when `watch` ends it
    /// stays in `walk`.
    fn trees(&mut self, walk: &mut Walk) -> Result<ControlFlow<()>> {
        if self.regrouper.has_clusters() && !self.options.dry_run {
            self.compactor = Some(Compactor::new(self.regrouper.writer, DEAD_PART));
        }
        let mut unit = Unit::new(&self.regrouper.writer.inodes);
        // The directories with files in the unit.
        let mut begun = Vec::new();
        let put_back = |walk: &mut Walk, begun: Vec<InodeNo>| {
            let begun = begun.into_iter().rev();
            walk.pending.extend(begun.map(|dir| Pending { dir, is_listed: true }));
            Ok(ControlFlow::Break(()))
        };
        while let Some(Pending { dir, is_listed }) = walk.pending.pop() {
            let (files, mut directories) = match self.regrouper.list(dir) {
                // It was removed meanwhile, and a file may have its number.
                Err(Error::Stale | Error::NotDirectory)
                    if self.progress.directories > 0 || is_listed =>
                {
                    continue;
                }
                listed => listed?,
            };
            if !is_listed {
                directories.reverse();
                let found = directories.into_iter();
                walk.pending.extend(found.map(|dir| Pending { dir, is_listed: false }));
            }
            self.progress.directories += 1;
            let candidates = self.candidates((dir, is_listed), &files, walk)?;
            if !candidates.is_empty() {
                begun.push(dir);
            }
            for candidate in unit.in_device_order(candidates) {
                if unit.is_full_with(&candidate) {
                    let flow = self.finish(&mut unit)?;
                    if flow == ControlFlow::Break(Left::Unit) {
                        return put_back(walk, begun);
                    }
                    begun = vec![dir];
                    if flow.is_break() {
                        return put_back(walk, begun);
                    }
                }
                unit.add(candidate);
            }
            self.compact(false)?;
            if (self.watch)(&self.progress).is_break()
                || walk.is_full() && self.keyed(walk)?.is_break()
            {
                return put_back(walk, begun);
            }
        }
        self.compact(true)?;
        match self.finish(&mut unit)? {
            ControlFlow::Break(Left::Unit) => put_back(walk, begun),
            ControlFlow::Break(Left::Nothing) => Ok(ControlFlow::Break(())),
            ControlFlow::Continue(()) => self.keyed(walk),
        }
    }

    /// The files of a directory that may be moved, in its order. Those with keys of their own go to `walk`,
    /// unless the directory was passed before, and they are there.
    fn candidates(
        &mut self,
        (dir, was_passed): (InodeNo, bool),
        files: &[InodeNo],
        walk: &mut Walk,
    ) -> Result<Vec<Candidate>> {
        let mut candidates = Vec::new();
        for ino in files {
            match self.candidate(*ino, Some(dir))? {
                Some((key, _)) if key.is_own() && was_passed => {}
                Some((key, _)) if key.is_own() => walk.add(key, *ino),
                Some((_, candidate)) => candidates.push(candidate),
                None => {}
            }
        }
        candidates.sort_by_key(|file| file.sector);
        Ok(candidates)
    }

    /// Compacts the clusters that were passed, if they suffice for an epoch or the walk `is_over`.
    fn compact(&mut self, is_over: bool) -> Result<()> {
        if let Some(compactor) = &mut self.compactor {
            let fragments = compactor.compact(is_over)?.fragments;
            let fragment_bytes = self.regrouper.writer.inodes.layout.fragment_bytes;
            self.progress.freed_bytes += fragments * u64::from(fragment_bytes);
        }
        Ok(())
    }

    fn files(&mut self, files: &[InodeNo]) -> Result<ControlFlow<()>> {
        let mut unit = Unit::new(&self.regrouper.writer.inodes);
        let mut seen = std::collections::HashSet::new();
        for ino in files.iter().filter(|ino| seen.insert(**ino)) {
            let Some((_, candidate)) = self.candidate(*ino, None)? else { continue };
            if unit.is_full_with(&candidate) && self.finish(&mut unit)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            unit.append(candidate);
        }
        Ok(self.finish(&mut unit)?.map_break(|_| ()))
    }

    /// A file that may be moved, and its key; `None` if it stays. In a directory, only files are looked at
    /// that have their key or their first name there.
    fn candidate(
        &mut self,
        ino: InodeNo,
        dir: Option<InodeNo>,
    ) -> Result<Option<(Key, Candidate)>> {
        self.progress.files += 1;
        let Some(vnode) = self.vnode(ino)? else { return Ok(None) };
        let file = vnode.state.read();
        if let Some(compactor) = &mut self.compactor {
            compactor.pass(&file)?;
        }
        let key = self.regrouper.present_key(&file);
        let is_of = |dir: InodeNo| match key.is_own() {
            true => file.inode.parent == dir,
            false => key == Key(dir.0),
        };
        if !dir.is_none_or(is_of) {
            return Ok(None);
        }
        Ok(self.if_movable(&file).map(|candidate| (key, candidate)))
    }

    /// The vnode of a file; `None` if the file was removed, or is damaged, which is counted.
    fn vnode(&mut self, ino: InodeNo) -> Result<Option<Arc<Vnode>>> {
        match self.regrouper.writer.vnode(ino) {
            Ok(vnode) => Ok(Some(vnode)),
            Err(Error::Stale) => Ok(None),
            Err(Error::Corruption(_)) => {
                self.progress.damaged += 1;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// A file as a candidate, unless it stays. Protected files are counted.
    fn if_movable(&mut self, file: &VnodeState) -> Option<Candidate> {
        if !self.regrouper.may_move(file) {
            return None;
        }
        if file.inode.is_protected() {
            self.progress.protected += 1;
            return None;
        }
        Candidate::new(&self.regrouper.writer.inodes.layout, file)
    }

    /// Moves the files of the unit if that is worth it, and empties the unit.
    fn finish(&mut self, unit: &mut Unit) -> Result<ControlFlow<Left>> {
        let unit = unit.take();
        self.mend(unit)
    }

    /// Reports the progress: continues, or ends with nothing left of the unit.
    fn moved_on(&mut self) -> ControlFlow<Left> {
        (self.watch)(&self.progress).map_break(|()| Left::Nothing)
    }

    /// Moves files if that is worth it: into one run or, if none is long enough, into shorter ones.
    fn mend(&mut self, unit: Unit) -> Result<ControlFlow<Left>> {
        let Some((before, after)) = unit.gain(self.options.gain) else {
            return Ok(ControlFlow::Continue(()));
        };
        let step = match self.options.dry_run {
            true => Step::Moved(unit.files.iter().map(|file| file.bytes).collect()),
            false => self.move_unit(&unit)?,
        };
        match step {
            Step::Ended => Ok(ControlFlow::Break(Left::Unit)),
            Step::Moved(moved) => {
                if !moved.is_empty() {
                    self.progress.moved_files += moved.len() as u64;
                    self.progress.moved_bytes += moved.iter().sum::<u64>();
                    self.progress.accesses_before += before;
                    self.progress.accesses_after += after;
                }
                Ok(self.moved_on())
            }
            Step::NoRoom => match unit.halves() {
                Ok([first, second]) => match self.mend(first)? {
                    ControlFlow::Break(_) => Ok(ControlFlow::Break(Left::Unit)),
                    ControlFlow::Continue(()) => self.mend(second),
                },
                Err(unit) => {
                    self.progress.without_room += unit.files.len() as u64;
                    Ok(self.moved_on())
                }
            },
        }
    }

    /// Reads the files of a unit in the order of the device, and moves them.
    fn move_unit(&mut self, unit: &Unit) -> Result<Step> {
        let regrouper = self.regrouper;
        let mut vnodes = Vec::new();
        let mut lost = 0;
        let cache = &regrouper.writer.inodes.cache;
        let mut kept = PinnedBlocks::default();
        for file in unit.in_order_of_device() {
            if (self.watch)(&self.progress).is_break() {
                return Ok(Step::Ended);
            }
            match regrouper.fetch(file.ino) {
                Ok(vnode) => vnodes.push((file.rank, vnode, file.learned)),
                Err(Error::Stale) => {}
                Err(Error::Io(error)) if !Failure::of(&error).is_of_data() => {
                    return Err(error.into());
                }
                Err(_) => lost += 1,
            }
            file.blocks.iter().for_each(|run| cache.clean.pin(run.clone(), &mut kept));
        }
        // Blocks evicted meanwhile return, since a read with the gate closed would delay all changes.
        cache.clean.restore(&kept);
        vnodes.sort_unstable_by_key(|(rank, ..)| *rank);
        let vnodes = vnodes.into_iter().map(|(_, vnode, learned)| (vnode, learned));
        let Some(Moved { files, damaged }) = regrouper.move_together(vnodes, unit.fragments)?
        else {
            return Ok(Step::NoRoom);
        };
        cache.clean.unpin(kept);
        self.progress.damaged += lost + damaged;
        Ok(Step::Moved(files))
    }
}

/// The result of a move.
#[derive(Default)]
struct Moved {
    /// The bytes of each file that was moved.
    files: Vec<u64>,
    damaged: u64,
}
