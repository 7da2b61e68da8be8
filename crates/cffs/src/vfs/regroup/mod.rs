//! Regrouping: what churn has scattered is brought together again, on a volume in use.
//!
//! The files of a walk are looked at in *units*: as many, in the order of the walk, as one request reads. A
//! unit is moved if that makes it twice as cheap to read, counting an access elsewhere as what the
//! device streams meanwhile (`cost`). It goes into one free run, after the unit before it. If there is no
//! such run, its halves are units, and their halves, down to what the device streams in the time of an
//! access; then it stays. What was moved costs less than twice the least that it can, so it is not moved
//! again until it has become more expensive: files do not go back and forth.
//!
//! ```text
//!   fetch ──▶ │ own ── place │ ──▶ write ──▶ epoch: inodes lead to the new places, the old are free
//!             └ gate closed ─┘
//! ```
//!
//! A step is a unit: what it reads holds no lock, and can be given up between two files. Which caller waits
//! for it, and how often one does, is up to `watch` (`idle`, `turns`).
//!
//! Moving is writing the same contents anew: nothing on the device leads to the new places before the epoch,
//! which changes each inode as a whole. Contents, times, names and numbers stay as they are.

mod cost;
mod idle;
#[cfg(test)]
mod tests;
mod turns;
mod unit;

use std::ops::{AddAssign, ControlFlow};
use std::sync::Arc;

pub use self::idle::IdleRegrouping;
pub use self::turns::Turns;
use self::unit::{Candidate, Unit};
use super::{Access, Volume, protect::Protection};
use crate::epoch::{EpochKind, finish_writes};
use serde::{Deserialize, Serialize};

use crate::alloc::Owner;
use crate::cache::{PinnedBlocks, WriteSet};
use crate::device::{Failure, Patient};
use crate::error::{Error, Result};
use crate::format::inode::FileType;
use crate::inode::{Neighbours, Vnode, VnodeGuard, VnodeState, WriteBack};
use crate::trace::OpKind;
use crate::units::{FileBlock, InodeNo, Key};

/// How far a regrouping has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegroupProgress {
    /// Directories that were looked at.
    pub directories: u64,
    /// Regular files that were looked at.
    pub files: u64,
    /// Files that were moved, or would be.
    pub moved_files: u64,
    /// Their contents, in bytes.
    pub moved_bytes: u64,
    /// Accesses that reading those files took before.
    pub accesses_before: u64,
    /// Accesses that it takes now.
    pub accesses_after: u64,
    /// Scattered files that stay where they are, since there is no free run that is long enough.
    pub without_room: u64,
    /// Files that stay because they are immutable or append-only.
    pub protected: u64,
    /// Files that stay because their contents cannot be read, or do not match their checksum.
    pub damaged: u64,
}

/// What several regroupings have done together.
impl AddAssign<&RegroupProgress> for RegroupProgress {
    fn add_assign(&mut self, more: &RegroupProgress) {
        self.directories += more.directories;
        self.files += more.files;
        self.moved_files += more.moved_files;
        self.moved_bytes += more.moved_bytes;
        self.accesses_before += more.accesses_before;
        self.accesses_after += more.accesses_after;
        self.without_room += more.without_room;
        self.protected += more.protected;
        self.damaged += more.damaged;
    }
}

/// How to regroup.
#[derive(Clone, Copy, Debug)]
pub struct RegroupOptions {
    /// Nothing is moved, only counted.
    pub dry_run: bool,
    /// Files are moved if that makes reading them so many times as cheap. With less than 2, files whose
    /// neighbours change may be moved again and again; with 0, all are moved each time, as tests want.
    pub gain: u64,
}

impl Default for RegroupOptions {
    fn default() -> RegroupOptions {
        RegroupOptions { dry_run: false, gain: 2 }
    }
}

/// What is to be regrouped.
#[derive(Clone, Copy, Debug)]
pub enum Scattered<'a> {
    /// The files of a tree, each with those of its directory.
    Tree(InodeNo),
    /// These files, in the order in which they are read.
    Files(&'a [InodeNo]),
}

impl Volume {
    /// Brings together what lies scattered, or only counts what it would move. After each directory and each
    /// unit that was moved, and before each file that is read to be moved, `watch` learns how far it is, and
    /// can end it there: a unit of which only some files were read stays as it is.
    ///
    /// Large files, which have long runs of their own, stay where they are, and so do files that are being
    /// written, and those with a key other than their directory.
    ///
    /// # Errors
    ///
    /// `EROFS` if the volume refuses changes; `EINVAL` if it was made not to group files; `ENOTDIR` for
    /// a tree that begins at a file; those of [changes](super#errors). Damage of a file is no error: it
    /// stays, and is counted. No room is no error either.
    pub fn regroup(
        &self,
        what: Scattered<'_>,
        options: &RegroupOptions,
        watch: &mut dyn FnMut(&RegroupProgress) -> ControlFlow<()>,
    ) -> Result<RegroupProgress> {
        match what {
            Scattered::Tree(dir) => {
                let mut pending = vec![Pending { dir, is_listed: false }];
                self.regroup_by(options, watch, |work| work.tree(&mut pending))
            }
            Scattered::Files(files) => self.regroup_by(options, watch, |work| work.files(files)),
        }
    }

    fn regroup_by(
        &self,
        options: &RegroupOptions,
        watch: &mut dyn FnMut(&RegroupProgress) -> ControlFlow<()>,
        regroup: impl FnOnce(&mut Regrouping<'_>) -> Result<ControlFlow<()>>,
    ) -> Result<RegroupProgress> {
        let _op = self.enter_volume(OpKind::Regroup);
        if !self.inodes().features.policy.groups() {
            return Err(Error::Invalid("the volume was made not to group files (mkfs --policy)"));
        }
        if !options.dry_run {
            self.writer.check_writable()?;
            // What is in memory alone gets its place first.
            self.writer.commit()?;
        }
        let options = *options;
        let progress = RegroupProgress::default();
        let mut work = Regrouping { volume: self, options, progress, watch };
        let ended = regroup(&mut work);
        self.inodes().alloc.end_moving()?;
        ended.map(|_| work.progress)
    }
}

/// A directory of which the files are still to be looked at.
struct Pending {
    dir: InodeNo,
    /// The directories in it are pending, too, or were looked at.
    is_listed: bool,
}

/// What of a unit is still to be looked at when regrouping is ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    Nothing,
    Unit,
}

/// What became of a unit.
enum Step {
    /// The bytes of each file that was moved.
    Moved(Vec<u64>),
    /// There is no free run for it.
    NoRoom,
    /// It was ended before anything was moved.
    Ended,
}

/// A regrouping under way.
struct Regrouping<'a> {
    volume: &'a Volume,
    options: RegroupOptions,
    progress: RegroupProgress,
    watch: &'a mut dyn FnMut(&RegroupProgress) -> ControlFlow<()>,
}

impl Regrouping<'_> {
    /// Goes through trees. What is pending when it is ended is left there, to go on with.
    fn tree(&mut self, pending: &mut Vec<Pending>) -> Result<ControlFlow<()>> {
        let mut unit = Unit::new(self.volume.inodes());
        // The directories with files in the unit.
        let mut begun = Vec::new();
        let put_back = |pending: &mut Vec<Pending>, begun: Vec<InodeNo>| {
            pending.extend(begun.into_iter().rev().map(|dir| Pending { dir, is_listed: true }));
            Ok(ControlFlow::Break(()))
        };
        while let Some(Pending { dir, is_listed }) = pending.pop() {
            let (files, mut directories) = match self.list(dir) {
                // It was removed meanwhile.
                Err(Error::Stale) if self.progress.directories > 0 || is_listed => continue,
                listed => listed?,
            };
            if !is_listed {
                directories.reverse();
                let found = directories.into_iter();
                pending.extend(found.map(|dir| Pending { dir, is_listed: false }));
            }
            begun.push(dir);
            self.progress.directories += 1;
            let mut candidates = Vec::new();
            for ino in files {
                candidates.extend(self.candidate(ino, Some(Key(dir.0)))?);
            }
            for candidate in unit.in_device_order(candidates) {
                if unit.is_full_with(&candidate) {
                    let flow = self.finish(&mut unit)?;
                    if flow == ControlFlow::Break(Left::Unit) {
                        return put_back(pending, begun);
                    }
                    begun = vec![dir];
                    if flow.is_break() {
                        return put_back(pending, begun);
                    }
                }
                unit.add(candidate);
            }
            if (self.watch)(&self.progress).is_break() {
                return put_back(pending, begun);
            }
        }
        match self.finish(&mut unit)? {
            ControlFlow::Break(Left::Unit) => put_back(pending, begun),
            flow => Ok(flow.map_break(|_| ())),
        }
    }

    fn files(&mut self, files: &[InodeNo]) -> Result<ControlFlow<()>> {
        let mut unit = Unit::new(self.volume.inodes());
        let mut seen = std::collections::HashSet::new();
        for ino in files.iter().filter(|ino| seen.insert(**ino)) {
            let Some(candidate) = self.candidate(*ino, None)? else { continue };
            if unit.is_full_with(&candidate) && self.finish(&mut unit)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            unit.add(candidate);
        }
        Ok(self.finish(&mut unit)?.map_break(|_| ()))
    }

    /// The regular files and the directories in a directory, in its order.
    fn list(&self, dir: InodeNo) -> Result<(Vec<InodeNo>, Vec<InodeNo>)> {
        let (mut files, mut directories) = (Vec::new(), Vec::new());
        self.volume.list(dir, 0, None, Access::Unnoted, &mut |entry| {
            match entry.file_type {
                FileType::Regular => files.push(entry.ino),
                FileType::Directory => directories.push(entry.ino),
                _ => {}
            }
            true
        })?;
        Ok((files, directories))
    }

    /// What may be moved of a file; `None` if it stays.
    fn candidate(&mut self, ino: InodeNo, key: Option<Key>) -> Result<Option<Candidate>> {
        self.progress.files += 1;
        let vnode = match self.volume.vnode(ino) {
            Ok(vnode) => vnode,
            Err(Error::Stale) => return Ok(None),
            Err(Error::Corruption(_)) => {
                self.progress.damaged += 1;
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let file = vnode.state.read();
        if !self.volume.may_move(&file) || key.is_some_and(|key| file.inode.placement_key() != key)
        {
            return Ok(None);
        }
        if Protection::of(file.inode.protection).any() {
            self.progress.protected += 1;
            return Ok(None);
        }
        Ok(Candidate::new(&self.volume.inodes().layout, &file))
    }

    /// Moves a unit if that is worth it, and begins the next one.
    fn finish(&mut self, unit: &mut Unit) -> Result<ControlFlow<Left>> {
        let unit = unit.take();
        self.mend(unit)
    }

    /// How far it is: it goes on, or ends with nothing left of the unit.
    fn moved_on(&mut self) -> ControlFlow<Left> {
        (self.watch)(&self.progress).map_break(|()| Left::Nothing)
    }

    /// Moves files if that is worth it: into one run or, where none is so long, into shorter ones.
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
        let volume = self.volume;
        let mut vnodes = Vec::new();
        let mut lost = 0;
        let cache = &volume.inodes().cache;
        let mut kept = PinnedBlocks::default();
        for file in unit.in_order_of_device() {
            if (self.watch)(&self.progress).is_break() {
                return Ok(Step::Ended);
            }
            match volume.fetch(file.ino).and_then(|()| volume.vnode(file.ino)) {
                Ok(vnode) => vnodes.push((file.rank, vnode)),
                Err(Error::Stale) => {}
                Err(Error::Io(error)) if Failure::of(&error) != Failure::Medium => {
                    return Err(error.into());
                }
                Err(_) => lost += 1,
            }
            file.blocks.iter().for_each(|run| cache.pin(run.clone(), &mut kept));
        }
        // With the gate closed, each read would keep all changes waiting.
        cache.restore(&kept);
        vnodes.sort_unstable_by_key(|(rank, _)| *rank);
        let vnodes = vnodes.into_iter().map(|(_, vnode)| vnode);
        let Some(Moved { files, damaged }) = volume.move_together(vnodes, unit.fragments)? else {
            return Ok(Step::NoRoom);
        };
        cache.unpin(kept);
        self.progress.damaged += lost + damaged;
        Ok(Step::Moved(files))
    }
}

/// What became of files that were to be moved.
#[derive(Default)]
struct Moved {
    /// The bytes of each one that was.
    files: Vec<u64>,
    damaged: u64,
}

impl Volume {
    /// Whether a file has contents that may be written anew elsewhere. One that changes in memory is
    /// about to be placed anyway.
    fn may_move(&self, file: &VnodeState) -> bool {
        let most = self.inodes().cache.tuning().placing.medium_bytes_max;
        let is_written = |map: &crate::inode::ExtentMap| !map.is_empty() && !map.has_unwritten();
        file.inode.file_type == FileType::Regular
            && (1..=most).contains(&file.inode.size)
            && file.pages.is_empty()
            && file.container.is_some()
            && file.inode.map().is_some_and(is_written)
    }

    /// Writes these files anew, side by side, and makes that durable. `None` if there is no run of so many
    /// fragments.
    fn move_together(
        &self,
        vnodes: impl Iterator<Item = Arc<Vnode>>,
        fragments: u32,
    ) -> Result<Option<Moved>> {
        let _patient = Patient::begin();
        let mut progress = self.writer.epochs.lock();
        self.writer.check_writable()?;
        let inodes = self.inodes();
        let mut write_back = WriteBack::new(inodes, WriteSet::default());
        let mut in_flight = Vec::new();
        let mut moved = Moved::default();
        {
            let _gate = self.writer.gate.write();
            if !inodes.alloc.reserve_moved(fragments)? {
                return Ok(None);
            }
            for vnode in vnodes {
                let mut file = VnodeGuard::new(&vnode);
                // It may have been written to, or protected, since it was looked at.
                if !self.may_move(&file) || Protection::of(file.inode.protection).any() {
                    continue;
                }
                match inodes.writer().move_whole(&mut file) {
                    Ok(()) => {}
                    // What is left has no promise of space: it stays.
                    Err(Error::NoSpace) => break,
                    Err(_) => {
                        moved.damaged += 1;
                        continue;
                    }
                }
                moved.files.push(file.inode.size);
                let key = file.inode.placement_key();
                let positions = file.pages.dirty_in(FileBlock::ALL).collect();
                let neighbours = Neighbours { owner: Owner::Moved, grown: false, asked: false };
                let placed = write_back.place_file(&mut file, positions, neighbours);
                drop(file);
                let placed = placed.and_then(|placed| {
                    inodes.alloc.forget(Owner::Key(key))?;
                    Ok(placed)
                });
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
