//! Clusters: each that a file uses is read and expanded, as a reader of the file does (pass 1).
//!
//! The contents in a damaged cluster are lost for all files that use it: a repair leaves holes instead.

use std::collections::{BTreeMap, HashMap};

use super::claims::Claims;
use super::disk::{BATCH_BYTES, Place as DiskPlace};
use super::fix::Fix;
use super::metadata::Metadata;
use super::records::{ClusterUse, PendingMap};
use super::{Code, Phase, Place};
use crate::error::Corruption;
use crate::format::cluster;
use crate::format::extent::Extent;
use crate::units::{FragRun, InodeNo};

/// The reason for which contents in a cluster cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The device cannot read a sector of it.
    Unreadable,
    /// Its bytes are wrong.
    Damaged(&'static str),
}

impl Fault {
    /// The fault of a cluster for a file that needs more bytes than it has.
    pub const TOO_SHORT: Fault = Fault::Damaged("it ends before the file's contents in it do");
}

/// The clusters that were expanded: the expanded lengths, or the faults.
#[derive(Default)]
pub(super) struct KnownClusters {
    clusters: HashMap<FragRun, Result<u32, Fault>>,
    /// The last one that was expanded for a file: the next file is likely to have contents in it, too.
    last: Option<(FragRun, Vec<u8>)>,
}

impl KnownClusters {
    /// The expanded bytes of a cluster.
    pub fn expand(&mut self, meta: &mut Metadata<'_>, run: FragRun) -> Result<&[u8], Fault> {
        if self.last.as_ref().is_none_or(|(last, _)| *last != run) {
            if let Some(Err(fault)) = self.clusters.get(&run) {
                return Err(*fault);
            }
            let place = meta.run_place(run);
            let stored = meta.disk.read(place.offset, place.len);
            let raw = self.add(meta, run, &stored)?;
            self.last = Some((run, raw));
        }
        Ok(self.last.as_ref().map_or(&[], |(_, raw)| raw))
    }

    /// Expands a cluster that was read.
    fn add(&mut self, meta: &Metadata<'_>, run: FragRun, stored: &[u8]) -> Result<Vec<u8>, Fault> {
        let raw = match meta.disk.is_unreadable(meta.run_place(run)) {
            true => Err(Fault::Unreadable),
            false => cluster::decode(stored, meta.checksum).map_err(Fault::Damaged),
        };
        self.clusters.insert(run, raw.as_ref().map(|raw| raw.len() as u32).map_err(|fault| *fault));
        raw
    }

    /// The damage of a cluster, for a file with contents in it up to `end`.
    fn damage(&self, run: FragRun, end: u32) -> Option<&'static str> {
        let fault = match self.clusters.get(&run)? {
            Ok(len) => (*len < end).then_some(Fault::TOO_SHORT)?,
            Err(fault) => *fault,
        };
        match fault {
            // The file keeps its extents: reads fail as long as the device reports the error.
            Fault::Unreadable => None,
            Fault::Damaged(what) => Some(what),
        }
    }
}

impl Claims<'_, '_> {
    /// Records the clusters in which a file has contents, if contents are to be read.
    pub(super) fn remember_clusters(&mut self, pending: &PendingMap) {
        if !self.options.contents || pending.check.damaged {
            return;
        }
        for extent in pending.check.extents.iter().filter(|extent| extent.cluster.is_some()) {
            if self.lost_parts(&[*extent]).is_empty() {
                let end = self.end_in_cluster(extent, pending.size);
                let of = ClusterUse { ino: pending.ino, run: extent.run(), end };
                self.space.pending_clusters.push(of);
            }
        }
    }

    /// The end of an extent of a file of this size, in the expanded bytes of the cluster.
    fn end_in_cluster(&self, extent: &Extent, size: u64) -> u32 {
        let fragment_bytes = u64::from(self.meta.layout.fragment_bytes);
        let len = u64::from(extent.len) * fragment_bytes;
        let len = len.min(size.saturating_sub(extent.logical * fragment_bytes));
        let offset = extent.cluster.map_or(0, |part| u64::from(part.offset)) * fragment_bytes;
        if len == 0 { 0 } else { (offset + len) as u32 }
    }

    /// Reads the clusters that are not known yet, and removes the damaged ones from the files that use them.
    pub(super) fn check_clusters(&mut self, mut known: KnownClusters, files: u64) {
        let mut uses = std::mem::take(&mut self.space.pending_clusters);
        uses.sort_unstable_by_key(|of| (of.run, of.ino));
        let mut runs: Vec<FragRun> = uses.iter().map(|of| of.run).collect();
        runs.dedup();
        runs.retain(|run| !known.clusters.contains_key(run));
        let total = files + runs.len() as u64;
        let mut done = files;
        let mut rest = &runs[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |run: &&FragRun| {
                bytes += self.meta.run_place(**run).len;
                bytes <= BATCH_BYTES
            };
            let count = rest.iter().take_while(fits).count().max(1);
            let (batch, tail) = rest.split_at(count);
            let places: Vec<DiskPlace> =
                batch.iter().map(|run| self.meta.run_place(*run)).collect();
            let blobs = self.meta.disk.read_many(&places);
            for (run, stored) in batch.iter().zip(blobs) {
                // The fault stays known.
                drop(known.add(self.meta, *run, &stored));
            }
            done += count as u64;
            self.progress.report(Phase::Contents, done, total);
            rest = tail;
        }
        let mut losers: BTreeMap<InodeNo, Vec<(FragRun, &'static str)>> = BTreeMap::new();
        for of in &uses {
            if let Some(what) = known.damage(of.run, of.end) {
                losers.entry(of.ino).or_default().push((of.run, what));
            }
        }
        for (ino, damaged) in losers {
            self.lose_clusters(ino, &damaged, &known);
        }
    }

    /// Reports a file with contents in damaged clusters. It keeps its other contents.
    fn lose_clusters(
        &mut self,
        ino: InodeNo,
        damaged: &[(FragRun, &'static str)],
        known: &KnownClusters,
    ) {
        for (run, what) in damaged {
            let error = Corruption::Cluster { ino, start: run.start, what };
            self.meta.disk.contradict(&[self.meta.run_place(*run)], &error);
            self.findings.problem(Code::Contents, Place::Inode(ino), error.to_string());
        }
        let Some(record) = self.meta.load_record(ino) else { return };
        let size = record.inode.size.get();
        let mut extents = self.meta.collect_map(&record.as_record()).extents;
        extents.sort_by_key(|extent| extent.logical);
        extents.retain(|extent| {
            extent.cluster.is_none()
                || known.damage(extent.run(), self.end_in_cluster(extent, size)).is_none()
        });
        self.fixes.push(Fix::SetMap(ino, extents));
    }
}
