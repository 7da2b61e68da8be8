//! Compaction: contents in use move out of clusters whose other contents are dead.
//!
//! A cluster is freed when its last reference is removed. Until then, deleted and rewritten contents take
//! space in it. Compaction collects the references to each cluster during a walk, expands clusters with
//! enough dead contents, and compresses their live contents together.
//!
//! ```text
//!   expand ── compress ──▶ │ place │ ──▶ write ──▶ │ repoint files │ ──▶ epoch: the old clusters are free
//!                          └ gate ─┘               └──── gate ─────┘
//! ```
//!
//! Invariants: no epoch is written between expanding a cluster and repointing its files, so its run cannot
//! be used again meanwhile. A file is pointed to a new cluster once that is written, because readers take no
//! gate. A compaction that finds no room changes nothing in memory, so it leaves nothing to be written.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use crate::alloc::Clusters;
use crate::device::{Failure, Patient};
use crate::epoch::{EpochKind, EpochWriter};
use crate::error::{Error, Result};
use crate::format::cluster::{Compressor, REFERENCES_MAX};
use crate::format::extent::Extent;
use crate::inode::{MovedPart, VnodeState, WriteBack};
use crate::units::{FragRun, InodeNo};

/// The most clusters whose references are collected at a time. Directories that share a cluster are close to
/// each other in a walk.
const SURVEYED_MAX: usize = 4096;
/// The most old clusters that one epoch compacts.
const BATCH_CLUSTERS: usize = 64;

/// The references to a cluster that a walk has found.
#[derive(Default)]
struct Found {
    /// By file and position. A file with several names is passed several times.
    extents: BTreeMap<(InodeNo, u64), Extent>,
}

impl Found {
    /// The parts of the expanded contents that are in use, in fragments. Extents that map the same fragments
    /// share a part.
    fn live_parts(&self) -> Vec<Range<u32>> {
        let part = |extent: &Extent| {
            let offset = u32::from(extent.cluster?.offset);
            Some(offset..offset + extent.len)
        };
        let mut parts: Vec<Range<u32>> = self.extents.values().filter_map(part).collect();
        parts.sort_unstable_by_key(|part| part.start);
        parts.dedup_by(|next, before| {
            let overlaps = next.start < before.end;
            before.end = if overlaps { before.end.max(next.end) } else { before.end };
            overlaps
        });
        parts
    }

    /// Fragments of the expanded contents that are in use.
    fn live(&self) -> u32 {
        self.live_parts().into_iter().map(|part| part.len() as u32).sum()
    }
}

/// A cluster in which much is dead.
type Sparse = (FragRun, Found);

/// The clusters that a walk has passed.
#[derive(Default)]
pub(super) struct Survey {
    clusters: HashMap<FragRun, Found>,
    /// Clusters with all references found and enough dead contents, in the order of the walk.
    sparse: Vec<Sparse>,
}

/// The space that a compaction freed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Compacted {
    pub(super) clusters: u64,
    pub(super) fragments: u64,
}

/// Compacts the clusters of a volume.
pub(super) struct Compactor<'a> {
    writer: &'a EpochWriter,
    /// A cluster is compacted if at least one in this many of its fragments is dead.
    dead_part: u32,
    survey: Survey,
}

/// Contents that go into a new cluster.
#[derive(Default)]
struct Group {
    old: Vec<Sparse>,
    parts: Vec<MovedPart>,
    raw: Vec<u8>,
}

impl Group {
    fn old_fragments(&self) -> u32 {
        self.old.iter().map(|(run, _)| run.len).sum()
    }
}

impl<'a> Compactor<'a> {
    /// Compacts clusters of which at least one in `dead_part` fragments is dead.
    pub(super) fn new(writer: &'a EpochWriter, dead_part: u32) -> Compactor<'a> {
        assert!(dead_part > 0, "a divisor");
        Compactor { writer, dead_part, survey: Survey::default() }
    }

    /// Notes the references of a file to clusters.
    pub(super) fn pass(&mut self, file: &VnodeState) -> Result<()> {
        let Some(map) = file.inode.map().filter(|_| !file.inode.is_protected()) else {
            return Ok(());
        };
        for extent in map.iter().filter(|extent| extent.cluster.is_some()) {
            if self.survey.clusters.len() >= SURVEYED_MAX {
                self.survey.clusters.clear();
            }
            let run = extent.run();
            let found = self.survey.clusters.entry(run).or_default();
            found.extents.insert((file.inode.ino, extent.logical), *extent);
            let references = Clusters::of(&self.writer.inodes.alloc).references_to(run)?;
            if found.extents.len() == usize::from(references)
                && let Some(found) = self.survey.clusters.remove(&run)
                && self.may_be_sparse(&found)
            {
                self.survey.sparse.push((run, found));
            }
        }
        Ok(())
    }

    /// Whether a full cluster with these contents in use would be compacted.
    fn may_be_sparse(&self, found: &Found) -> bool {
        let full = self.fragments_max();
        found.live() <= full - full / self.dead_part
    }

    fn fragments_max(&self) -> u32 {
        let inodes = &self.writer.inodes;
        let bytes = inodes.cache.tuning().writing.cluster_bytes;
        (bytes / u64::from(inodes.layout.fragment_bytes)) as u32
    }

    /// Compacts the sparse clusters that the walk has passed, if they suffice for an epoch or the walk
    /// `is_over`.
    pub(super) fn compact(&mut self, is_over: bool) -> Result<Compacted> {
        let mut compacted = Compacted::default();
        while self.survey.sparse.len() >= BATCH_CLUSTERS
            || is_over && !self.survey.sparse.is_empty()
        {
            let take = self.survey.sparse.len().min(BATCH_CLUSTERS);
            let batch: Vec<_> = self.survey.sparse.drain(..take).collect();
            let (done, mut left) = self.compact_batch(batch)?;
            compacted.clusters += done.clusters;
            compacted.fragments += done.fragments;
            if done.clusters > 0 {
                // The epoch has made room for more.
                left.append(&mut self.survey.sparse);
                self.survey.sparse = left;
            }
        }
        Ok(compacted)
    }

    /// Compacts clusters with one epoch. Returns those for which there was no room as well.
    fn compact_batch(&self, batch: Vec<Sparse>) -> Result<(Compacted, Vec<Sparse>)> {
        let _patient = Patient::begin();
        let mut progress = self.writer.epochs.lock();
        self.writer.health.check_writable()?;
        let inodes = &*self.writer.inodes;
        let mut write_back = WriteBack::new(inodes, inodes.cache.write_set());
        let mut compacted = Compacted::default();
        let (mut placed, mut left) = (Vec::new(), Vec::new());
        let latch = |error: &Error| self.writer.latch(error);
        let level = self.writer.superblock.get().compression.level();
        let mut compressor = Compressor::new(level).map_err(Error::Io)?;
        Clusters::of(&inodes.alloc).reserve_compaction_run()?;
        let encode = |group: Group| {
            // At least a fragment is gained, and a cluster takes at least a block.
            let fragments_max = group.old_fragments().checked_sub(1)?;
            if fragments_max < inodes.layout.block_fragments() {
                return None;
            }
            let stored_max = (fragments_max * inodes.layout.fragment_bytes) as usize;
            let stored = compressor.encode(&group.raw, stored_max, inodes.checksum)?;
            Some((group, stored))
        };
        let groups: Vec<(Group, Vec<u8>)> =
            self.group(batch)?.into_iter().filter_map(encode).collect();
        {
            let _gate = self.writer.gate.write();
            for (group, stored) in groups {
                match write_back.place_moved(&group.parts, stored).inspect_err(latch)? {
                    Some(run) => placed.push((group, run)),
                    None => left.extend(group.old),
                }
            }
        }
        if !placed.is_empty() {
            progress.early.is_in_motion = true;
            let writes = std::mem::replace(&mut write_back.writes, inodes.cache.write_set());
            inodes.write_ahead(writes).inspect_err(latch)?;
            // Readers may follow a file to its new cluster from here on, so it has to be written.
            let gate = self.writer.gate.write();
            for (group, run) in placed {
                let mut all_moved = true;
                for part in &group.parts {
                    all_moved &= write_back.repoint(part, run).inspect_err(latch)?;
                }
                if all_moved {
                    compacted.clusters += group.old.len() as u64;
                    let freed = group.old_fragments().saturating_sub(run.len);
                    compacted.fragments += u64::from(freed);
                }
            }
            drop(gate);
            self.writer.run_epoch(&mut progress, EpochKind::Plain)?;
        }
        Ok((compacted, left))
    }

    /// Expands clusters, and groups their live contents up to the length of a cluster. Leaves out unreadable
    /// clusters, and those with too few dead contents.
    fn group(&self, batch: Vec<Sparse>) -> Result<Vec<Group>> {
        let inodes = &*self.writer.inodes;
        let fragment_bytes = inodes.layout.fragment_bytes;
        let full_bytes = (self.fragments_max() * fragment_bytes) as usize;
        let mut groups = Vec::new();
        let mut open = Group::default();
        for (run, found) in batch {
            let Some(((ino, _), extent)) = found.extents.first_key_value() else { continue };
            let raw = match self.expand(*ino, extent) {
                Ok(raw) => raw,
                Err(Error::Stale | Error::Corruption(_)) => continue,
                Err(Error::Io(error)) if Failure::of(&error).is_of_data() => continue,
                Err(error) => return Err(error),
            };
            let fragments = (raw.len() as u32).div_ceil(fragment_bytes);
            let dead = fragments.saturating_sub(found.live());
            if dead == 0 || dead < fragments / self.dead_part {
                continue;
            }
            let is_full = open.raw.len() + (found.live() * fragment_bytes) as usize > full_bytes
                || open.parts.len() + found.extents.len() > usize::from(REFERENCES_MAX);
            if is_full {
                groups.push(std::mem::take(&mut open));
            }
            self.add_live(&mut open, &found, &raw);
            open.old.push((run, found));
        }
        groups.push(open);
        groups.retain(|group| !group.parts.is_empty());
        Ok(groups)
    }

    /// Adds each live part of a cluster to a group once, and all extents that map these parts.
    fn add_live(&self, group: &mut Group, found: &Found, raw: &[u8]) {
        let fragment_bytes = self.writer.inodes.layout.fragment_bytes;
        // The live parts of the old cluster, and their offsets in the new one once they are added.
        let mut parts: Vec<(Range<u32>, Option<u32>)> =
            found.live_parts().into_iter().map(|part| (part, None)).collect();
        for ((ino, _), extent) in &found.extents {
            let Ok(vnode) = self.writer.vnode(*ino) else { continue };
            let Some(old) = extent.cluster.map(|of| u32::from(of.offset)) else { continue };
            let at = parts.partition_point(|(part, _)| part.end <= old);
            let (part, begin) = &mut parts[at];
            let bytes =
                (part.start * fragment_bytes) as usize..(part.end * fragment_bytes) as usize;
            // Only the last fragment may be cut off.
            if bytes.end >= raw.len() + fragment_bytes as usize {
                continue;
            }
            let Some(bytes) = raw.get(bytes.start..bytes.end.min(raw.len())) else { continue };
            let begin = *begin.get_or_insert_with(|| {
                let begin = group.raw.len() as u32 / fragment_bytes;
                group.raw.extend_from_slice(bytes);
                group.raw.resize(group.raw.len().next_multiple_of(fragment_bytes as usize), 0);
                begin
            });
            let offset = begin + (old - part.start);
            group.parts.push(MovedPart { vnode, extent: *extent, offset });
        }
    }

    fn expand(&self, ino: InodeNo, extent: &Extent) -> Result<Arc<Vec<u8>>> {
        let vnode = self.writer.vnode(ino)?;
        let file = vnode.state.read();
        let expanded = self.writer.inodes.contents().expand(&file, extent);
        // The cluster may have been freed since the walk passed it.
        self.writer.health.noted_contents(expanded)?.ok_or(Error::Stale)
    }
}
