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
//! The counts on the device are those of the last clean point, and leave out files without a name: after a
//! crash, nothing refers to such files.

use super::group::{Among, Group};
use super::place::Request;
use super::promise::Spender;
use super::{Allocator, State};
use crate::error::{Corruption, Result};
use crate::format::cluster::REFERENCES_MAX;
use crate::format::cylinder_group::{CgHeader, clusters_in};
use crate::units::{CgIndex, FragNo, FragRun};

/// Compaction reserves the length of an expanded cluster, and on a tiny volume one in this many fragments.
const RESERVE_PART_MIN: u64 = 16;

/// The most headers of groups that one call reads to count clusters.
const HEADERS_READ_MAX: u32 = 128;

/// The references to a cluster that were added and removed since the last epoch started.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turnover {
    added: u32,
    removed: u32,
}

/// A cluster whose references changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangedCluster {
    /// Its run.
    pub run: FragRun,
    /// The references at the last clean point: 0 if no cluster began there.
    pub before: u8,
    /// The references now.
    pub now: u8,
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
    pub fn place(
        &self,
        request: &Request,
        references: u8,
        spender: Spender,
    ) -> Result<Option<FragRun>> {
        let Clusters(alloc) = self;
        assert!(references > 0 && request.len >= alloc.layout.block_fragments());
        let mut state = alloc.lock();
        state.clock += 1;
        let placed = match alloc.place_small(&mut state, request)? {
            None if spender == Spender::Compaction => {
                self.take_reserved(&mut state, request.len)?
            }
            placed => placed,
        };
        let Some(run) = placed else { return Ok(None) };
        assert_eq!(run.len, request.len, "a cluster is in one piece");
        alloc.check_placed(request, run)?;
        alloc.take(&mut state, run)?;
        let cg = alloc.layout.cg_of_fragment(run.start);
        let block = self.block_in_group(run.start);
        alloc.group(&mut state, cg)?.set_references(block, references);
        // A cluster that began there at the clean point was freed, and the intent log records this.
        state.references_before.insert(run.start, 0);
        state.new_clusters.push(run);
        Ok(Some(run))
    }

    /// The references to the cluster in a run. Those that came or went since the last epoch started are not
    /// counted yet.
    pub fn references_to(&self, run: FragRun) -> Result<u8> {
        self.references(&mut self.0.lock(), run.start)
    }

    /// The number of clusters on the volume; `None` until the clusters of all groups are counted. Each call
    /// reads the headers of at most [`HEADERS_READ_MAX`] groups that are not in memory.
    pub fn on_volume(&self) -> Result<Option<u64>> {
        let Clusters(alloc) = self;
        let mut read = 0;
        loop {
            let (next, is_in_memory) = {
                let state = alloc.lock();
                let next = CgIndex(state.cgs_counted);
                if next.0 >= state.cgs_made {
                    let here = state.groups.values().map(|group| u64::from(group.clusters));
                    return Ok(Some(state.clusters_elsewhere + here.sum::<u64>()));
                }
                (next, state.groups.contains_key(&next))
            };
            if !is_in_memory && read == HEADERS_READ_MAX {
                return Ok(None);
            }
            // The allocator is not locked while the device reads.
            let clusters = match is_in_memory {
                true => 0,
                false => self.read_count(next)?,
            };
            read += u32::from(!is_in_memory);
            let mut state = alloc.lock();
            if state.cgs_counted == next.0 {
                state.cgs_counted += 1;
                if !state.groups.contains_key(&next) {
                    state.clusters_elsewhere += u64::from(clusters);
                }
            }
        }
    }

    /// The number of clusters that begin in a group, from its header on the device.
    fn read_count(&self, cg: CgIndex) -> Result<u32> {
        let Clusters(Allocator { layout, cache, checksum, .. }) = self;
        let mut block = vec![0; layout.block_bytes as usize];
        cache.read_uncached(layout.cg_header(cg), &mut block)?;
        Ok(CgHeader::decode(&block, cg, *checksum)?.clusters)
    }

    /// Fragments that are kept for compaction, which frees more than it takes, but only with its epoch.
    pub(super) fn reserve_fragments(&self) -> u64 {
        let Clusters(Allocator { layout, cache, .. }) = self;
        if !layout.has_clusters() {
            return 0;
        }
        let cluster = cache.tuning().writing.cluster_bytes / u64::from(layout.fragment_bytes);
        cluster.min(layout.allocatable_fragments() / RESERVE_PART_MIN)
    }

    /// Takes fragments from the run that is reserved for compaction.
    fn take_reserved(&self, state: &mut State, len: u32) -> Result<Option<FragRun>> {
        let Some(run) = state.compaction_run.take_front(len) else { return Ok(None) };
        let cg = self.0.layout.cg_of_fragment(run.start);
        let at = self.0.in_group(cg, run.start);
        // Files may have been moved there.
        let is_free = self.0.group(state, cg)?.run_at(at, len, Among::All) == len;
        Ok(is_free.then_some(run))
    }

    /// Reserves a run for compaction if a group in use has one.
    pub fn reserve_compaction_run(&self) -> Result<()> {
        let Clusters(alloc) = self;
        if !alloc.layout.has_clusters() {
            return Ok(());
        }
        let mut state = alloc.lock();
        let wanted = self.reserve_fragments() as u32;
        if state.compaction_run.len >= wanted {
            return Ok(());
        }
        let old = std::mem::take(&mut state.compaction_run);
        if old.len > 0 {
            let cg = alloc.layout.cg_of_fragment(old.start);
            let at = alloc.in_group(cg, old.start);
            alloc.group(&mut state, cg)?.release(at, old.len);
        }
        let groups = state.cgs_made.max(1).min(alloc.layout.cgs());
        let mut len = wanted;
        while len >= alloc.layout.block_fragments() {
            for cg in (0..groups).rev().map(CgIndex) {
                let group = alloc.group(&mut state, cg)?;
                let end = group.fragments();
                if let Some(at) = group.find(0, end, len, 1, Among::Unreserved) {
                    group.reserve(at, len);
                    state.compaction_run = FragRun::new(alloc.of_group(cg, at), len);
                    return Ok(());
                }
            }
            len /= 2;
        }
        Ok(())
    }

    /// Adds a reference to a cluster; false if the cluster already has as many as it can.
    pub fn share(&self, run: FragRun) -> Result<bool> {
        let mut state = self.0.lock();
        let count = u32::from(self.references(&mut state, run.start)?);
        let turnover = state.references.entry(run).or_default();
        let has_room = count + turnover.added < u32::from(REFERENCES_MAX);
        turnover.added += u32::from(has_room);
        Ok(has_room)
    }

    /// Adds a reference to a cluster for a file that removes one before the epoch starts.
    pub fn share_for_now(&self, run: FragRun) {
        self.0.lock().references.entry(run).or_default().added += 1;
    }

    /// Removes a reference to a cluster.
    pub fn release(&self, run: FragRun) {
        self.0.lock().references.entry(run).or_default().removed += 1;
    }

    /// Counts the references that were added and removed since the last epoch started, and frees the runs of
    /// clusters that have none left.
    pub(super) fn count(&self, state: &mut State) -> Result<()> {
        for (run, Turnover { added, removed }) in std::mem::take(&mut state.references) {
            let before = self.references(state, run.start)?;
            state.references_before.entry(run.start).or_insert(before);
            let cg = self.0.layout.cg_of_fragment(run.start);
            let what = "the count of references to a cluster is wrong";
            let now = (u32::from(before) + added).checked_sub(removed);
            let now = now.and_then(|now| u8::try_from(now).ok());
            let now = now.ok_or(Corruption::CgHeader { cg, what })?;
            let block = self.block_in_group(run.start);
            self.0.group(state, cg)?.set_references(block, now);
            if now == 0 {
                state.freed.push(run);
            }
        }
        Ok(())
    }

    /// The new clusters, and those of `touched`, with their references. Their groups count as changed.
    pub(super) fn take_changed(
        &self,
        state: &mut State,
        touched: &[FragRun],
    ) -> Result<Vec<ChangedCluster>> {
        let mut runs = std::mem::take(&mut state.new_clusters);
        runs.extend(touched);
        runs.sort_unstable();
        runs.dedup();
        let changed = |run: FragRun| {
            let now = self.references(state, run.start)?;
            // The counts on the device leave out files without a name, so they may change although those in
            // memory do not.
            self.0.group(state, self.0.layout.cg_of_fragment(run.start))?.dirty = true;
            let before = state.references_before.get(&run.start).copied().unwrap_or(now);
            Ok(ChangedCluster { run, before, now })
        };
        runs.into_iter().map(changed).collect()
    }

    /// Begins to note changes since a clean point at which files without a name had these references.
    /// Returns the clusters that only such files refer to.
    pub(super) fn begin_generation(
        &self,
        state: &mut State,
        nameless: &[FragRun],
    ) -> Result<Vec<FragRun>> {
        state.references_before.clear();
        let mut unreferenced = Vec::new();
        for run in nameless {
            let count = self.references(state, run.start)?;
            let before = state.references_before.entry(run.start).or_insert(count);
            let cg = self.0.layout.cg_of_fragment(run.start);
            let what = "the count of references to a cluster is wrong";
            *before = before.checked_sub(1).ok_or(Corruption::CgHeader { cg, what })?;
            if *before == 0 {
                unreferenced.push(*run);
            }
        }
        Ok(unreferenced)
    }

    fn references(&self, state: &mut State, start: FragNo) -> Result<u8> {
        let cg = self.0.layout.cg_of_fragment(start);
        let block = self.block_in_group(start);
        Ok(self.0.group(state, cg)?.references(block))
    }

    /// The block of its group in which a fragment is.
    pub(super) fn block_in_group(&self, fragment: FragNo) -> u32 {
        let layout = &self.0.layout;
        self.0.in_group(layout.cg_of_fragment(fragment), fragment) / layout.block_fragments()
    }
}

impl Group {
    /// The references to the cluster that begins in this block of the group.
    fn references(&self, block: u32) -> u8 {
        self.references.get(block as usize).copied().unwrap_or(0)
    }

    fn set_references(&mut self, block: u32, count: u8) {
        let block = block as usize;
        if block >= self.references.len() {
            self.references.resize(block + 1, 0);
        }
        let before = std::mem::replace(&mut self.references[block], count);
        self.clusters = self.clusters + u32::from(count > 0) - u32::from(before > 0);
        self.dirty = true;
    }

    /// Takes over the counts of references that the device has.
    pub(super) fn load_references(&mut self, counts: &[u8]) {
        if counts.iter().any(|count| *count > 0) {
            self.references = counts.to_vec();
            self.clusters = clusters_in(counts);
        }
    }

    /// The counts of references as they go to the device, in `bytes` bytes. `before` has the counts of
    /// blocks for which the device keeps another count than memory.
    pub(super) fn save_references(&self, bytes: usize, before: &[(u32, u8)]) -> Vec<u8> {
        assert!(self.references.len() <= bytes, "a count for each block");
        let mut counts = self.references.clone();
        counts.resize(bytes, 0);
        for (block, count) in before {
            counts[*block as usize] = *count;
        }
        counts
    }
}
