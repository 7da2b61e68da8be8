//! Compaction: contents in use move out of clusters whose other contents are dead.
//!
//! A cluster is freed when the last reference to it goes. Until then, contents that were deleted or rewritten
//! take space in it. Compaction finds the references to a cluster while a walk passes its files, expands
//! it, and compresses what is in use together with that of other such clusters.
//!
//! ```text
//!   expand ── compress ──▶ │ place ── repoint files │ ──▶ write ──▶ epoch: the old clusters are free
//!                          └──── gate closed ───────┘
//! ```
//!
//! Invariants: no epoch is written between expanding a cluster and repointing its files, so its run cannot
//! be used again meanwhile. A compaction that finds no room changes nothing in memory, so it leaves nothing
//! to be written.

use std::collections::HashMap;
use std::sync::Arc;

use crate::alloc::Clusters;
use crate::cache::WriteSet;
use crate::device::Patient;
use crate::epoch::{EpochKind, EpochWriter};
use crate::error::{Error, Result};
use crate::format::cluster::Compressor;
use crate::format::extent::Extent;
use crate::format::superblock::Compression;
use crate::inode::{MovedPart, VnodeState, WriteBack};
use crate::units::{FragRun, InodeNo};

/// A cluster is compacted if at least this part of its contents is dead.
const DEAD_PART: u32 = 4;
/// The clusters whose references a walk collects at a time. A walk passes directories that share a cluster
/// soon after each other.
const SURVEYED_MAX: usize = 4096;
/// The new clusters of one epoch.
const BATCH_CLUSTERS: usize = 64;
/// The level if new contents are not compressed any more.
const DEFAULT_LEVEL: i32 = 1;

/// The references to a cluster that a walk has found.
#[derive(Default)]
struct Found {
    extents: Vec<(InodeNo, Extent)>,
    /// Fragments of the expanded contents that are in use.
    live: u32,
}

/// A cluster in which much is dead.
type Sparse = (FragRun, Found);

/// The clusters that a walk has passed.
#[derive(Default)]
pub(super) struct Survey {
    clusters: HashMap<FragRun, Found>,
    /// Those all of whose references were found and in which much is dead, in the order of the walk.
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
    pub(super) fn new(writer: &'a EpochWriter) -> Compactor<'a> {
        Compactor { writer, survey: Survey::default() }
    }

    /// Notes the references of a file to clusters.
    pub(super) fn pass(&mut self, file: &VnodeState) -> Result<()> {
        let Some(map) = file.inode.map() else { return Ok(()) };
        for extent in map.iter().filter(|extent| extent.cluster.is_some()) {
            if self.survey.clusters.len() >= SURVEYED_MAX {
                self.survey.clusters.clear();
            }
            let run = extent.run();
            let found = self.survey.clusters.entry(run).or_default();
            found.extents.push((file.inode.ino, *extent));
            found.live += extent.len;
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
        found.live <= full - full / DEAD_PART
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
        self.writer.check_writable()?;
        let inodes = &*self.writer.inodes;
        let mut write_back = WriteBack::new(inodes, WriteSet::default());
        let mut compacted = Compacted::default();
        let mut left = Vec::new();
        let level = match self.writer.superblock().compression {
            Compression::Zstd(level) => level.into(),
            Compression::Off => DEFAULT_LEVEL,
        };
        let mut compressor = Compressor::new(level).map_err(Error::Io)?;
        Clusters::of(&inodes.alloc).reserve_run()?;
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
                match write_back.move_cluster(&group.parts, stored)? {
                    Some(run) => {
                        compacted.clusters += group.old.len() as u64;
                        let freed = group.old_fragments().saturating_sub(run.len);
                        compacted.fragments += u64::from(freed);
                    }
                    None => left.extend(group.old),
                }
            }
        }
        if compacted.clusters > 0 {
            progress.early.is_in_motion = true;
            inodes.write_ahead(write_back.writes).inspect_err(|error| self.writer.latch(error))?;
            self.writer.run_epoch(&mut progress, EpochKind::Plain)?;
        }
        Ok((compacted, left))
    }

    /// Expands clusters, and puts what is in use in them together up to the length of a cluster. Those in
    /// which too little is dead are left out, and so are those that cannot be read.
    fn group(&self, batch: Vec<Sparse>) -> Result<Vec<Group>> {
        let inodes = &*self.writer.inodes;
        let fragment_bytes = inodes.layout.fragment_bytes;
        let full_bytes = (self.fragments_max() * fragment_bytes) as usize;
        let mut groups = Vec::new();
        let mut open = Group::default();
        for (run, found) in batch {
            let Some((ino, _)) = found.extents.first() else { continue };
            let raw = match self.expand(*ino, run) {
                Ok(raw) => raw,
                Err(Error::Stale | Error::Corruption(_)) => continue,
                Err(error) => return Err(error),
            };
            let fragments = (raw.len() as u32).div_ceil(fragment_bytes);
            let dead = fragments.saturating_sub(found.live);
            if dead == 0 || dead < fragments / DEAD_PART {
                continue;
            }
            if open.raw.len() + (found.live * fragment_bytes) as usize > full_bytes {
                groups.push(std::mem::take(&mut open));
            }
            for (ino, extent) in &found.extents {
                let Ok(vnode) = self.writer.vnode(*ino) else { continue };
                let Some(of) = extent.cluster else { continue };
                let first = u32::from(of.offset) * fragment_bytes;
                let end = (first + extent.len * fragment_bytes) as usize;
                let Some(bytes) = raw.get(first as usize..end.min(raw.len())) else { continue };
                let offset = open.raw.len() as u32 / fragment_bytes;
                open.raw.extend_from_slice(bytes);
                open.raw.resize(open.raw.len().next_multiple_of(fragment_bytes as usize), 0);
                open.parts.push(MovedPart { vnode, extent: *extent, offset });
            }
            open.old.push((run, found));
        }
        groups.push(open);
        groups.retain(|group| !group.parts.is_empty());
        Ok(groups)
    }

    fn expand(&self, ino: InodeNo, run: FragRun) -> Result<Arc<Vec<u8>>> {
        let vnode = self.writer.vnode(ino)?;
        let file = vnode.state.read();
        self.writer.noted_contents(self.writer.inodes.contents().expand(&file, run))
    }
}
