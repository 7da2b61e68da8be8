//! Writes contents ahead of their epoch, so that the device works while callers still make changes.
//!
//! Contents are placed and written while the epoch is open. The inode is written with the epoch, and that
//! makes the contents part of the file. Until then nothing on the device points to them, or they overwrite
//! contents in place, which promises no order: both are as in the first phase of an epoch. The barrier that
//! follows the first phase covers them, so they need none of their own.
//!
//! Contents that are likely to change or to be deleted soon wait, and so do parts of a file that would be
//! separated from parts still to come ([`EarlyWriter::choose`]). When the epoch is due, the remaining
//! contents are written first ([`EarlyWriter::write_contents_first`]), so that the device works while inodes
//! and names are prepared.

use std::collections::HashMap;

use super::EpochWriter;
use super::chosen::Chosen;
use super::packing::Packed;
use super::placing::{Placer, put_in_order, rank, rewritten};
use super::progress::{InFlight, Progress, finish_writes};
use crate::device::Patient;
use crate::error::Result;
use crate::inode::{InodeCache, VnodeState, WriteBack};
use crate::tuning::Writing;
use crate::units::{FileBlock, Key};

/// The most rounds in which an epoch compresses and writes contents before it closes the gate.
const ROUNDS_MAX: u32 = 3;

/// Writes contents ahead of their epoch.
pub(super) struct EarlyWriter<'a> {
    inodes: &'a InodeCache,
    writer: &'a EpochWriter,
}

impl<'a> EarlyWriter<'a> {
    pub(super) fn new(writer: &'a EpochWriter) -> EarlyWriter<'a> {
        EarlyWriter { inodes: &writer.inodes, writer }
    }

    /// Writes the contents that need not wait for the epoch. Returns the number of bytes.
    pub(super) fn run(&self, progress: &mut Progress) -> Result<u64> {
        let _patient = Patient::begin();
        self.try_run(progress).inspect_err(|error| self.writer.latch(error))
    }

    fn try_run(&self, progress: &mut Progress) -> Result<u64> {
        let pages = self.write_chosen(progress, || self.choose())?;
        if pages > 0 {
            self.writer.counts.early_writes.count();
        }
        Ok(pages as u64 * u64::from(self.inodes.layout.block_bytes))
    }

    /// Writes the contents of the next epoch, if they keep the device busy while the rest of the epoch is
    /// prepared. While contents are compressed, callers add more, which the epoch itself would write without
    /// compression. So this repeats, up to [`ROUNDS_MAX`] times.
    pub(super) fn write_contents_first(&self, progress: &mut Progress) -> Result<()> {
        let piece = self.inodes.cache.tuning().writing.piece_bytes;
        let least = piece.min(self.writer.options.early_bytes);
        let rounds = if self.inodes.layout.has_clusters() { ROUNDS_MAX } else { 1 };
        for _ in 0..rounds {
            let is_enough = self.inodes.dirty_bytes() >= least;
            if !is_enough || self.write_chosen(progress, || self.choose_all(least))? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Places and writes the contents that `choose` finds with the gate closed. On a volume with clusters, it
    /// first compresses the contents that `choose` finds now, and leaves others to the next call. Returns the
    /// count of pages.
    fn write_chosen(
        &self,
        progress: &mut Progress,
        choose: impl Fn() -> Vec<Chosen>,
    ) -> Result<usize> {
        let inodes = self.inodes;
        let packed = match inodes.layout.has_clusters() {
            true => {
                let before = choose();
                Packed::new(inodes, self.writer.superblock.get().compression, &before)
                    .zip(Some(before))
            }
            false => None,
        };
        let mut write_back = WriteBack::new(inodes, inodes.cache.write_set());
        let mut in_flight = InFlight::new();
        {
            let _gate = self.writer.gate.write();
            let hints = std::mem::take(&mut progress.early.hints);
            let mut chosen = choose();
            let mut waiting = packed
                .map(|(packed, before)| packed.limit(&inodes.layout, before, &mut chosen))
                .unwrap_or_default();
            let rewritten = rewritten(inodes, chosen.iter().map(|file| &file.vnode));
            let mut placer = Placer::new(inodes, hints, rewritten);
            for Chosen { vnode, mut positions, .. } in chosen {
                for cluster in waiting.take(vnode.ino) {
                    in_flight.extend(placer.place_cluster(cluster, &mut write_back)?);
                }
                let file = vnode.state.read();
                positions.retain(|position| file.pages.is_dirty(*position));
                drop(file);
                let placed = placer.place(&vnode, positions, false, &mut write_back)?;
                in_flight.push((vnode, placed));
            }
            progress.early.hints = std::mem::take(placer.hints());
            self.writer.counts.note_clusters(placer.placed, inodes.layout.fragment_bytes);
            write_back.writes.keep_used(|block| inodes.alloc.used_fragments(block));
        }
        self.writer.throttle.taken_over();
        let pages: usize = in_flight.iter().map(|(_, positions)| positions.len()).sum();
        if pages > 0 {
            progress.early.is_in_motion = true;
            inodes.write_ahead(write_back.writes)?;
            finish_writes(in_flight, write_back.epoch);
        }
        Ok(pages)
    }

    /// The files to write ahead, in the order of their places.
    ///
    /// - Of a large file: its long runs of new pages, since programs write such files from start to end. If
    ///   it is compressed, the pages after its last whole cluster wait. A file of a few mebibytes waits until
    ///   all of it is in memory, because its parts would break up the space that directories need.
    /// - Small files, whole: those in the older half of the changed ones, if the younger half has no file of
    ///   their key or if they make a long piece. None of them if callers fill several directories in turns.
    fn choose(&self) -> Vec<Chosen> {
        let inodes = self.inodes;
        let writing = &inodes.cache.tuning().writing;
        let piece = writing.piece_bytes.min(self.writer.options.early_bytes);
        let whole_max = piece.max(inodes.layout.small_bytes_max());
        let page_bytes = u64::from(inodes.layout.block_bytes);
        let compression =
            inodes.layout.has_clusters().then(|| self.writer.superblock.get().compression);
        let mut chosen = Vec::new();
        let mut small: Vec<(Key, Chosen)> = Vec::new();
        for vnode in inodes.queued() {
            let file = vnode.state.read();
            if !has_new_contents(&file) {
                continue;
            }
            let rank = rank(&file);
            if file.inode.size > whole_max {
                let is_compressed = compression.is_some_and(|it| it.applies_to(file.inode.flags));
                let unit =
                    if is_compressed { writing.cluster_bytes.max(page_bytes) } else { page_bytes };
                let end = FileBlock(file.inode.size / unit * (unit / page_bytes));
                let least = self.writer.options.early_bytes.div_ceil(page_bytes);
                let positions = long_runs(&file, end, least);
                drop(file);
                chosen.push(Chosen { rank, vnode, positions });
            } else {
                let positions = file.pages.dirty_in(FileBlock::ALL).collect();
                let key = file.inode.placement_key();
                drop(file);
                small.push((key, Chosen { rank, vnode, positions }));
            }
        }
        chosen.extend(ready(small, (piece / page_bytes) as usize, writing));
        chosen.retain(|file| !file.positions.is_empty());
        put_in_order(&mut chosen, |file| (file.rank, &file.vnode));
        chosen
    }

    /// All new contents, in the order of their places; none if they have fewer than `least` bytes.
    fn choose_all(&self, least: u64) -> Vec<Chosen> {
        let inodes = self.inodes;
        let mut chosen = Vec::new();
        let mut pages = 0;
        for vnode in inodes.queued() {
            let file = vnode.state.read();
            if has_new_contents(&file) {
                let positions: Vec<FileBlock> = file.pages.dirty_in(FileBlock::ALL).collect();
                pages += positions.len() as u64;
                let rank = rank(&file);
                drop(file);
                chosen.push(Chosen { rank, vnode, positions });
            }
        }
        if pages * u64::from(inodes.layout.block_bytes) < least {
            chosen.clear();
        }
        put_in_order(&mut chosen, |file| (file.rank, &file.vnode));
        chosen
    }
}

/// Whether a file has a name and changed pages.
pub(super) fn has_new_contents(file: &VnodeState) -> bool {
    let is_data = !file.inode.is_dir() && !file.inode.ino.is_system();
    is_data && file.pages.dirty_count() > 0 && file.container.is_some()
}

/// The small files that may be written ahead; `small` is in the order in which they were changed.
fn ready(
    mut small: Vec<(Key, Chosen)>,
    piece_pages: usize,
    writing: &Writing,
) -> impl Iterator<Item = Chosen> {
    let young = small.split_off(small.len().div_ceil(2));
    let mut pages: HashMap<Key, usize> = HashMap::new();
    for (key, file) in &small {
        *pages.entry(*key).or_default() += file.positions.len();
    }
    let keys = pages.len();
    for (key, _) in young {
        if pages.get(&key).is_some_and(|pages| *pages < piece_pages) {
            pages.remove(&key);
        }
    }
    // One directory may be incomplete. If several are, callers fill them in turns, and the files written now
    // would be separated from the next ones.
    let unfinished = (keys - pages.len()).saturating_sub(1);
    if unfinished * writing.turns_part > keys {
        pages.clear();
    }
    small.retain(|(key, _)| pages.contains_key(key));
    small.into_iter().map(|(_, file)| file)
}

/// The changed pages of a file before `end` that are in runs of at least `least` pages.
fn long_runs(file: &VnodeState, end: FileBlock, least: u64) -> Vec<FileBlock> {
    let mut positions: Vec<FileBlock> = Vec::new();
    let mut first = 0;
    let mut close = |positions: &mut Vec<FileBlock>| {
        if ((positions.len() - first) as u64) < least {
            positions.truncate(first);
        }
        first = positions.len();
    };
    for position in file.pages.dirty_in(FileBlock(0)..end) {
        if positions.last().is_some_and(|last| last.next() != position) {
            close(&mut positions);
        }
        positions.push(position);
    }
    close(&mut positions);
    positions
}
