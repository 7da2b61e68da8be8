//! The clusters to which the files of a tree refer: how much space they save, and how much of them is dead.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::alloc::Clusters;
use crate::error::{Corruption, Result};
use crate::format::cluster::REFERENCES_MAX;
use crate::format::extent::Extent;
use crate::units::{FragRun, InodeNo};
use crate::vfs::Volume;

/// The clusters of a tree, in bytes of whole fragments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterUse {
    /// Clusters to which files of the tree refer.
    pub clusters: u64,
    /// Clusters to which other files refer as well. Their dead contents are unknown.
    pub incomplete: u64,
    /// Contents of the tree's files that are in clusters.
    pub bytes: u64,
    /// The space that the clusters take.
    pub stored_bytes: u64,
    /// Expanded contents to which no file refers, of the clusters that are complete.
    pub dead_bytes: u64,
    /// Expanded contents to which files of the tree refer more than once.
    pub shared_bytes: u64,
}

impl ClusterUse {
    /// The bytes of contents for each byte that the clusters take; `None` without clusters.
    pub fn ratio(&self) -> Option<f64> {
        (self.stored_bytes > 0).then(|| self.bytes as f64 / self.stored_bytes as f64)
    }
}

/// The references to each cluster that a walk has found.
#[derive(Default)]
pub(super) struct Found(BTreeMap<FragRun, Vec<(InodeNo, Extent)>>);

impl Found {
    /// Records the references of a file. A file with several names may be passed several times.
    pub fn pass(&mut self, volume: &Volume, ino: InodeNo) -> Result<()> {
        let vnode = volume.writer().vnode(ino)?;
        let file = vnode.state.read();
        let extents = file.inode.map().into_iter().flat_map(|map| map.iter());
        for extent in extents.filter(|extent| extent.cluster.is_some()) {
            self.0.entry(extent.run()).or_default().push((ino, *extent));
        }
        Ok(())
    }

    /// The use of the clusters. Reads the header of each cluster to which no other files refer.
    pub fn finish(self, volume: &Volume) -> Result<ClusterUse> {
        let inodes = &volume.writer().inodes;
        let fragment_bytes = u64::from(inodes.layout.fragment_bytes);
        let mut used = ClusterUse::default();
        for (run, mut references) in self.0 {
            references.sort_unstable_by_key(|(ino, extent)| (*ino, extent.logical));
            references.dedup_by_key(|(ino, extent)| (*ino, extent.logical));
            let mapped: u64 = references.iter().map(|(_, extent)| u64::from(extent.len)).sum();
            let Mapped { live, shared } = Mapped::by(references.iter().map(|(_, extent)| extent));
            used.clusters += 1;
            used.bytes += mapped * fragment_bytes;
            used.stored_bytes += u64::from(run.len) * fragment_bytes;
            used.shared_bytes += shared * fragment_bytes;
            let counted = Clusters::of(&inodes.alloc).references_to(run)?;
            if references.len() < usize::from(counted) {
                used.incomplete += 1;
                continue;
            }
            let Some((ino, _)) = references.first() else { continue };
            let bad = Corruption::Cluster { ino: *ino, start: run.start, what: "not a cluster" };
            let expanded = inodes.contents().expanded_bytes(run)?.ok_or(bad)?;
            let dead = expanded.div_ceil(fragment_bytes).saturating_sub(live);
            used.dead_bytes += dead * fragment_bytes;
        }
        Ok(used)
    }
}

/// How extents map the expanded contents of their cluster, in fragments.
#[derive(Debug, PartialEq, Eq)]
struct Mapped {
    /// Mapped at least once.
    live: u64,
    /// Mapped more than once.
    shared: u64,
}

impl Mapped {
    fn by<'a>(extents: impl Iterator<Item = &'a Extent>) -> Mapped {
        // An extent ends at the latest after this many fragments of its cluster.
        let mut times = [0_u8; REFERENCES_MAX as usize];
        for extent in extents {
            let Some(of) = extent.cluster else { continue };
            let first = usize::from(of.offset);
            let mapped = times.get_mut(first..first + extent.len as usize).unwrap_or_default();
            mapped.iter_mut().for_each(|times| *times = times.saturating_add(1));
        }
        let count = |least| times.iter().filter(|times| **times >= least).count() as u64;
        Mapped { live: count(1), shared: count(2) }
    }
}

#[cfg(test)]
mod tests;
