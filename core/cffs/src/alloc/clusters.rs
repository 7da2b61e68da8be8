//! Clusters: runs that several extents refer to. Each group counts the references to the clusters that begin
//! in it, and a run is freed when the last reference goes.
//!
//! A change only notes that a reference was added or removed: the counts change when the epoch starts, and a
//! run without references is freed with that epoch.
//!
//! Invariant: when an epoch starts, no cluster has more than [`REFERENCES_MAX`] references.
//! [`share`](Clusters::share) refuses further ones, and [`share_for_now`](Clusters::share_for_now) is for a
//! file that removes a reference before the epoch starts.
//!
//! The counts on the device are those of the last checkpoint, and leave out files without a name: after a
//! crash, nothing refers to such files.

use std::collections::BTreeMap;

use foldhash::HashMap;

use super::groups::Groups;
use super::promise::Spender;
use super::request::Request;
use super::{Allocator, Found, State};
use crate::error::{Corruption, Result};
use crate::format::cluster::REFERENCES_MAX;
use crate::units::{CgIndex, FragNo, FragRun};

/// The most headers of groups that one call reads to count clusters.
const HEADERS_READ_MAX: u32 = 128;

/// The references to a cluster that were added and removed since the last epoch started.
#[derive(Clone, Copy, Debug, Default)]
struct Turnover {
    added: u32,
    removed: u32,
}

/// A cluster whose references changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangedCluster {
    /// Its run.
    pub run: FragRun,
    /// The references at the last checkpoint: 0 if no cluster began there.
    pub before: u8,
    /// The references now.
    pub now: u8,
}

/// The changes of references to clusters, in this epoch and since the last checkpoint.
#[derive(Default)]
pub(super) struct References {
    /// References that were added and removed in the open epoch.
    turnover: BTreeMap<FragRun, Turnover>,
    /// The references at the last checkpoint to clusters whose references have changed since.
    pub before: HashMap<FragNo, u8>,
    /// Clusters that the intent log does not list yet.
    new: Vec<FragRun>,
}

impl References {
    /// Whether references were added or removed in the open epoch.
    pub fn have_changed(&self) -> bool {
        !self.turnover.is_empty()
    }

    /// Counts the references that were added and removed since the last epoch started. The runs of clusters
    /// that have none left are added to `freed`.
    pub fn count(&mut self, groups: &mut Groups, freed: &mut Vec<FragRun>) -> Result<()> {
        for (run, Turnover { added, removed }) in std::mem::take(&mut self.turnover) {
            let before = groups.references(run.start)?;
            self.before.entry(run.start).or_insert(before);
            let now = (u32::from(before) + added).checked_sub(removed);
            let now = now.and_then(|now| u8::try_from(now).ok());
            let now = now.ok_or_else(|| wrong_count(groups, run))?;
            groups.set_references(run, now);
            if now == 0 {
                freed.push(run);
            }
        }
        Ok(())
    }

    /// The new clusters, and those of `touched`, with their references. Their groups count as changed.
    pub fn take_changed(
        &mut self,
        groups: &mut Groups,
        touched: &[FragRun],
    ) -> Result<Vec<ChangedCluster>> {
        let mut runs = std::mem::take(&mut self.new);
        runs.extend(touched);
        runs.sort_unstable();
        runs.dedup();
        let changed = |run: FragRun| {
            let now = groups.references(run.start)?;
            // The counts on the device leave out files without a name, so they may change although those in
            // memory do not.
            groups.mark_dirty(run.start)?;
            let before = self.before.get(&run.start).copied().unwrap_or(now);
            Ok(ChangedCluster { run, before, now })
        };
        runs.into_iter().map(changed).collect()
    }

    /// Begins to note changes since a checkpoint at which files without a name had these references.
    /// Returns the clusters that only such files refer to.
    pub fn begin_generation(
        &mut self,
        groups: &mut Groups,
        nameless: &[FragRun],
    ) -> Result<Vec<FragRun>> {
        self.before.clear();
        let mut unreferenced = Vec::new();
        for run in nameless {
            let count = groups.references(run.start)?;
            let before = self.before.entry(run.start).or_insert(count);
            *before = before.checked_sub(1).ok_or_else(|| wrong_count(groups, *run))?;
            if *before == 0 {
                unreferenced.push(*run);
            }
        }
        Ok(unreferenced)
    }
}

/// The run that is reserved for compaction, which must find space on a full volume.
#[derive(Default)]
pub(super) struct CompactionRun(FragRun);

impl CompactionRun {
    /// Takes fragments from the run.
    fn take(&mut self, groups: &mut Groups, len: u32) -> Option<FragRun> {
        let run = self.0.take_front(len)?;
        // Files may have been moved there.
        groups.is_free(run).then_some(run)
    }

    /// Reserves a run of this length, or a shorter one, if a group in use has one.
    fn reserve(&mut self, groups: &mut Groups, wanted: u32) -> Result<()> {
        if self.0.len >= wanted {
            return Ok(());
        }
        groups.release(std::mem::take(&mut self.0));
        let mut len = wanted;
        while len >= groups.layout().block_fragments() {
            for cg in groups.existing().rev().map(CgIndex) {
                if let Some(run) = groups.find(cg, 0..u32::MAX, len, 1)? {
                    groups.reserve(run);
                    self.0 = run;
                    return Ok(());
                }
            }
            len /= 2;
        }
        Ok(())
    }
}

/// The clusters of an allocator's volume.
#[derive(Clone, Copy)]
pub struct Clusters<'a>(&'a Allocator);

impl<'a> Clusters<'a> {
    /// The clusters in the space that this allocator gives out.
    pub fn of(alloc: &'a Allocator) -> Clusters<'a> {
        Clusters(alloc)
    }

    /// Finds one run for a cluster with this many references, at least one, and takes it into use; `None` if
    /// there is no such run where files of the owner go.
    /// Compaction may use its own run, so that it frees space on a full volume.
    pub fn place(&self, request: &Request, count: u8, spender: Spender) -> Found {
        let State { space, references, compaction_run, .. } = &mut *self.0.lock();
        assert!(count > 0 && request.len >= space.layout.block_fragments());
        space.reservations.clock += 1;
        let placed = match space.place_small(request)? {
            None if spender == Spender::Compaction => {
                compaction_run.take(&mut space.groups, request.len)
            }
            placed => placed,
        };
        let Some(run) = placed else { return Ok(None) };
        assert_eq!(run.len, request.len, "a cluster is in one piece");
        space.take(request, run)?;
        space.groups.set_references(run, count);
        // A cluster that began there at the checkpoint was freed, and the intent log records this.
        references.before.insert(run.start, 0);
        references.new.push(run);
        Ok(Some(run))
    }

    /// The references to the cluster in a run. Those that came or went since the last epoch started are not
    /// counted yet.
    pub fn references_to(&self, run: FragRun) -> Result<u8> {
        self.0.lock().space.groups.references(run.start)
    }

    /// The number of clusters on the volume; `None` until the clusters of all groups are counted. Each call
    /// reads the headers of at most [`HEADERS_READ_MAX`] groups that are not in memory.
    pub fn on_volume(&self) -> Result<Option<u64>> {
        let Clusters(alloc) = self;
        let mut read = 0;
        loop {
            let counted = alloc.lock().space.groups.clusters();
            let next = match counted {
                Ok(clusters) => return Ok(Some(clusters)),
                Err(_) if read == HEADERS_READ_MAX => return Ok(None),
                Err(next) => next,
            };
            // The allocator is not locked while the device reads.
            let clusters = alloc.store.read_cluster_count(next)?;
            alloc.lock().space.groups.count_clusters(next, clusters);
            read += 1;
        }
    }

    /// Reserves a run for compaction if a group in use has one.
    pub fn reserve_compaction_run(&self) -> Result<()> {
        let State { space, promises, compaction_run, .. } = &mut *self.0.lock();
        compaction_run.reserve(&mut space.groups, promises.compaction_fragments() as u32)
    }

    /// Adds a reference to a cluster; false if the cluster already has as many as it can.
    pub fn share(&self, run: FragRun) -> Result<bool> {
        let State { space, references, .. } = &mut *self.0.lock();
        let count = u32::from(space.groups.references(run.start)?);
        let turnover = references.turnover.entry(run).or_default();
        let has_room = count + turnover.added < u32::from(REFERENCES_MAX);
        turnover.added += u32::from(has_room);
        Ok(has_room)
    }

    /// Adds a reference to a cluster for a file that removes one before the epoch starts.
    pub fn share_for_now(&self, run: FragRun) {
        self.0.lock().references.turnover.entry(run).or_default().added += 1;
    }

    /// Removes a reference to a cluster.
    pub fn release(&self, run: FragRun) {
        self.0.lock().references.turnover.entry(run).or_default().removed += 1;
    }
}

fn wrong_count(groups: &Groups, run: FragRun) -> Corruption {
    let cg = groups.layout().cg_of_fragment(run.start);
    Corruption::CgHeader { cg, what: "the count of references to a cluster is wrong" }
}
