//! Fragments with several users: one keeps them, the others get copies or holes.

use std::collections::HashMap;

use super::claims::{ClaimKind, PendingContents, Sharer};
use super::fix::Patch;
use super::map_writer::MapWriter;
use super::records::OwnedRecord;
use super::walk::Walk;
use super::{Code, Place};
use crate::format::cluster::REFERENCES_MAX;
use crate::format::extent::Extent;
use crate::format::inode::{FileType, InodeFlags};
use crate::units::{Container, FragNo, FragRun, InodeNo, SectorIndex};

/// Separates the users of shared fragments.
pub(super) struct Sharers<'a, 'c> {
    pub walk: &'a mut Walk<'c>,
}

impl<'c> Sharers<'_, 'c> {
    fn maps(&mut self) -> MapWriter<'_, 'c> {
        MapWriter { walk: self.walk }
    }
}

impl Sharers<'_, '_> {
    /// The round that finds fragments with two users is followed by one that records the users, and then
    /// each user but one gets a copy. Always another round.
    pub(super) fn part_sharers(&mut self) -> bool {
        if !self.walk.space.contested.is_empty() {
            self.walk.space.watched.append(&mut self.walk.space.contested);
            self.walk.space.watched.sort_unstable();
            merge_runs(&mut self.walk.space.watched);
            return false;
        }
        let sharers = std::mem::take(&mut self.walk.space.sharers);
        let mut proofs: HashMap<InodeNo, Proof> = HashMap::new();
        for sharer in &sharers {
            proofs.entry(sharer.ino).or_insert_with(|| self.proof_of(sharer.ino));
        }
        let mut ranked: Vec<(Rank, Sharer)> = sharers
            .into_iter()
            .map(|sharer| match sharer.kind {
                // Blocks that contain their own address stay.
                ClaimKind::Fixed => (Rank::Fixed, sharer),
                ClaimKind::Data | ClaimKind::Cluster => (Rank::Data(proofs[&sharer.ino]), sharer),
            })
            .collect();
        // Among equals, the first found keeps them.
        ranked.sort_by_key(|(rank, _)| *rank);
        let mut kept: Vec<(Rank, Sharer)> = Vec::new();
        for (rank, sharer) in ranked {
            let run = sharer.run;
            let is_same = |(_, kept): &&(Rank, Sharer)| is_of_one_cluster(kept, &sharer);
            let is_full = kept.iter().filter(is_same).count() >= usize::from(REFERENCES_MAX);
            let others: Vec<_> = kept
                .iter()
                .filter(|kept| excludes(&kept.1, &sharer) || is_full && is_same(kept))
                .copied()
                .collect();
            let Some((best, Sharer { ino: owner, .. })) = others.first().copied() else {
                kept.push((rank, sharer));
                continue;
            };
            let range = format!("fragments {} to {}", run.start, run.end().0 - 1);
            let is_anothers = !others.iter().any(|other| is_same(&other))
                && (best == Rank::Data(Proof::Right) || rank == Rank::Data(Proof::Wrong));
            let message = match is_anothers {
                true => format!("{range} have another user, inode {owner}, and are not its own"),
                false => format!("{range} have another user, inode {owner}"),
            };
            self.walk.findings.problem(Code::SharedFragments, Place::Inode(sharer.ino), message);
            match sharer.kind {
                ClaimKind::Data | ClaimKind::Cluster if is_anothers => {
                    let taken: Vec<FragRun> = others.iter().map(|(_, other)| other.run).collect();
                    self.leave_holes(sharer.ino, &taken);
                }
                ClaimKind::Data | ClaimKind::Cluster => self.copy_extent(sharer.ino, run),
                // At most one of two such blocks is genuine; the walk drops the other.
                ClaimKind::Fixed => {}
            }
        }
        debug_assert!(
            kept.iter()
                .enumerate()
                .all(|(i, (_, a))| !kept[..i].iter().any(|(_, b)| excludes(a, b))),
            "a fragment still has two users"
        );
        self.walk.space.watched.clear();
        false
    }

    /// The evidence of a file's contents that they belong to it.
    fn proof_of(&mut self, ino: InodeNo) -> Proof {
        let Some(record) = self.walk.meta.load_record(ino) else { return Proof::None };
        let inode = &record.inode;
        if inode.file_type() == Some(FileType::Directory) {
            return self.proof_of_directory(&record);
        }
        let has_checksum = inode.inode_flags().contains(InodeFlags::CONTENT_CHECKSUM)
            && inode.size.get() <= self.walk.meta.layout.segment_bytes.into();
        if !has_checksum {
            return Proof::None;
        }
        let mut extents = self.walk.meta.collect_map(&record.as_record()).extents;
        extents.sort_by_key(|extent| extent.logical);
        let (size, checksum) = (inode.size.get(), inode.content_checksum.get());
        match self.walk.claims().has_contents(&PendingContents { ino, size, checksum, extents }) {
            true => Proof::Right,
            false => Proof::Wrong,
        }
    }

    fn proof_of_directory(&mut self, record: &OwnedRecord) -> Proof {
        let layout = self.walk.meta.layout;
        let extents = self.walk.meta.collect_map(&record.as_record()).extents;
        let fragments = u64::from(layout.block_fragments());
        let ino = record.inode.number();
        let sector_bytes = layout.sector_bytes;
        let (mut own, mut others) = (0u64, 0u64);
        for extent in extents.iter().filter(|extent| extent.is_of_blocks(fragments as u32)) {
            for at in (0..u64::from(extent.len)).step_by(fragments as usize) {
                let run = FragRun::new(FragNo(extent.start.0 + at), fragments as u32);
                let image = self
                    .walk
                    .meta
                    .disk
                    .read(self.walk.meta.run_place(run).offset, sector_bytes as usize);
                let offset = (extent.logical + at) * u64::from(layout.fragment_bytes);
                let sector = SectorIndex((offset / u64::from(sector_bytes)) as u32);
                match self.walk.meta.identify(&image) {
                    None => {}
                    Some((found, _)) if found == (Container { file: ino, sector }) => own += 1,
                    Some(_) => others += 1,
                }
            }
        }
        match (own, others) {
            (_, 1..) => Proof::Wrong,
            (1.., 0) => Proof::Right,
            (0, 0) => Proof::None,
        }
    }

    /// Removes fragments of other files from a file's map.
    fn leave_holes(&mut self, ino: InodeNo, taken: &[FragRun]) {
        let Some(record) = self.walk.meta.load_record(ino) else { return };
        let mut extents = self.walk.meta.collect_map(&record.as_record()).extents;
        extents.sort_by_key(|extent| extent.logical);
        for run in taken {
            extents = extents.into_iter().flat_map(|extent| without(extent, *run)).collect();
        }
        self.maps().set_map(ino, &extents);
        let clear_flags = InodeFlags::CONTENT_CHECKSUM;
        self.walk.meta.patch(ino, &Patch { clear_flags, ..Patch::default() });
    }

    /// Gives a file a copy of an extent that it shares.
    fn copy_extent(&mut self, ino: InodeNo, run: FragRun) {
        let Some(record) = self.walk.meta.load_record(ino) else { return };
        let mut extents = self.walk.meta.collect_map(&record.as_record()).extents;
        extents.sort_by_key(|extent| extent.logical);
        let Some(position) = extents.iter().rposition(|extent| extent.run() == run) else { return };
        match self.maps().allocate(run.len) {
            Some(start) => {
                let from = self.walk.meta.run_place(run);
                let bytes = self.walk.meta.disk.read(from.offset, from.len);
                let to = self.walk.meta.run_place(FragRun::new(start, run.len));
                self.walk.meta.disk.change(to.offset, &bytes);
                extents[position].start = start;
            }
            None => {
                let message = "no space for a copy of an extent; the file has a hole there";
                self.walk.findings.problem(Code::NoSpace, Place::Inode(ino), message);
                extents.remove(position);
            }
        }
        self.maps().set_map(ino, &extents);
    }
}

/// Evidence that contents belong to their file, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Proof {
    /// They match its checksum.
    Right,
    /// It has none.
    None,
    /// They do not.
    Wrong,
}

/// The ranking of the users of shared fragments: the least one keeps them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Fixed,
    Data(Proof),
}

/// The parts of an extent outside of a run; nothing of an extent whose cluster the run touches.
fn without(extent: Extent, run: FragRun) -> impl Iterator<Item = Extent> {
    let own = extent.run();
    let piece = move |from: u64, to: u64| {
        let at = |fragment: u64| extent.logical + (fragment - own.start.0);
        (from < to).then(|| extent.part(at(from)..at(to)))
    };
    let (first, end) = (own.start.0, own.end().0);
    let is_apart = end <= run.start.0 || run.end().0 <= first;
    let (before, after) = match extent.cluster {
        Some(_) => (is_apart.then_some(extent), None),
        None => (piece(first, end.min(run.start.0)), piece(first.max(run.end().0), end)),
    };
    before.into_iter().chain(after)
}

/// Whether two claims overlap, and are not of one cluster.
fn excludes(a: &Sharer, b: &Sharer) -> bool {
    let overlaps = a.run.start < b.run.end() && b.run.start < a.run.end();
    overlaps && !is_of_one_cluster(a, b)
}

fn is_of_one_cluster(a: &Sharer, b: &Sharer) -> bool {
    a.kind == ClaimKind::Cluster && b.kind == ClaimKind::Cluster && a.run == b.run
}

fn merge_runs(runs: &mut Vec<FragRun>) {
    let mut merged: Vec<FragRun> = Vec::with_capacity(runs.len());
    for run in runs.drain(..) {
        match merged.last_mut() {
            Some(last) if run.start <= last.end() => {
                let end = last.end().max(run.end());
                // Runs stay within a group, so merged runs are split at its end.
                match u32::try_from(end.0 - last.start.0) {
                    Ok(len) => last.len = len,
                    Err(_) => merged.push(run),
                }
            }
            _ => merged.push(run),
        }
    }
    *runs = merged;
}
