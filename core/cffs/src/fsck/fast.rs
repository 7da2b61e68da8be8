//! The fast check: recovery that reads only what changed since the last checkpoint.
//!
//! It is the same walk with a scope: only the listed containers, and only the blocks of the locator table and
//! the bitmaps that the intent log lists. The counters are those of the checkpoint, plus the changes in
//! these blocks.
//!
//! Invariants: any fault that a crash does not explain raises a doubt; then nothing is written, and the full
//! check follows. The intent log is valid until the superblock says "clean", so recovery that is interrupted
//! starts again; before it writes anything, it logs what it needs for that ([`super::intent_update`]).

use std::collections::{BTreeMap, BTreeSet};

use super::Code;
use super::cluster_counts::ClusterCounts;
use super::findings::Findings;
use super::mend_index::IndexMending;
use super::pass3::{Derived, LocatorTable};
use super::report::FastReport;
use super::walk::Walk;
use crate::error::Result;
use crate::format::cylinder_group::{CgHeader, bitmap_checksum, clusters_in};
use crate::format::locator::{self, Entry};
use crate::printable::counted;
use crate::units::{CgIndex, FragRun, InodeNo};

/// A group as it was at the checkpoint.
struct Group {
    header: CgHeader,
    bitmap: Vec<u8>,
    /// The references to its clusters.
    counts: Vec<u8>,
}

/// Recovers what the intent log lists, once the walk has found no reason for doubt.
pub(super) struct FastRecovery<'a, 'c> {
    pub walk: &'a mut Walk<'c>,
    /// Runs that repairs freed.
    pub released: Vec<FragRun>,
}

impl<'c> FastRecovery<'_, 'c> {
    fn table(&mut self) -> LocatorTable<'_, 'c> {
        LocatorTable { walk: self.walk }
    }
}

impl FastRecovery<'_, '_> {
    /// Writes the recovered state; returns false if a doubt was raised before anything was written.
    pub fn run(mut self) -> Result<bool> {
        let mut derived = Derived::new();
        IndexMending { walk: self.walk }.run(&mut derived);
        self.complete_locator()?;
        // A table that grew has left the blocks of its extent tree.
        self.released.append(&mut self.walk.space.used.take_released());
        let clusters = self.count_references();
        let groups = self.read_groups();
        let before = |group: &Group| (group.header.cg, group.header.free_fragments);
        let before: Vec<(CgIndex, u32)> = groups.values().map(before).collect();
        let inodes = self.recover_locator(&mut derived);
        let free = self.recover_bitmaps(groups, &clusters, &mut derived);
        if self.walk.meta.disk.is_changed() || !derived.is_empty() {
            self.log_recovery(&before);
        }
        if self.walk.findings.reason_for_doubt().is_some() {
            return Ok(false);
        }
        self.walk.meta.disk.commit()?;
        derived.iter().for_each(|(offset, bytes)| self.walk.meta.disk.change(*offset, bytes));
        self.walk.meta.disk.commit()?;
        self.walk.meta.superblock.inodes = inodes;
        self.walk.meta.superblock.free_fragments = free;
        // This recovery, or one that was interrupted, may have changed a sector that is not listed. The walk
        // does not read it.
        let patched = self.walk.scope.as_ref().map_or(0, |scope| scope.epoch_of_change(0));
        self.walk.meta.superblock.epoch =
            self.walk.meta.superblock.epoch.max(self.walk.meta.inventory.epoch_max).max(patched);
        self.walk.findings.report.consistent = true;
        self.report_fast();
        Ok(true)
    }

    fn report_fast(&mut self) {
        let Walk { meta, findings: Findings { report, .. }, scope, .. } = &mut *self.walk;
        report.inodes = meta.superblock.inodes;
        report.free_fragments = meta.superblock.free_fragments;
        report.used_fragments =
            meta.layout.allocatable_fragments().saturating_sub(report.free_fragments);
        report.fast = scope.as_ref().map(|scope| FastReport {
            intent_log_sectors: scope.intent_log_sectors.into(),
            directories: scope.entered.len() as u64,
            table_blocks: scope.table.len() as u64,
            locator_blocks: scope.locator.len() as u64,
            groups: scope.groups.len() as u64,
        });
    }

    /// Gives the locator table the blocks that it lacks.
    fn complete_locator(&mut self) -> Result<()> {
        let layout = self.walk.meta.layout;
        let block_of = |ino| locator::position(ino, layout.block_bytes).0;
        let users = self.walk.meta.inventory.users();
        let needed: BTreeSet<u64> = users.map(|found| block_of(found.ino)).collect();
        let table = self.table();
        let missing: Vec<u64> =
            needed.into_iter().filter(|b| !table.has_locator_block(*b)).collect();
        let is_listed =
            |block| self.walk.scope.as_ref().is_some_and(|s| s.locator.contains_key(block));
        if !missing.iter().all(is_listed) {
            self.walk.findings.doubt("a block of the locator table is missing");
        } else if !missing.is_empty() && !self.table().grow_locator(&missing, true)? {
            self.walk.findings.doubt("no space for the locator table");
        } else {
            self.table().check_locator_size();
            for block in missing {
                let mut bytes = vec![0; layout.block_bytes as usize];
                locator::init(&mut bytes, block);
                locator::seal(&mut bytes, self.walk.meta.checksum);
                for (offset, piece) in self.table().locator_pieces(block, &bytes) {
                    self.walk.meta.disk.change(offset, &piece);
                }
                if let Some(scope) = &mut self.walk.scope {
                    scope.locator_blocks.insert(block, Some(bytes));
                }
            }
        }
        Ok(())
    }

    /// Corrects the listed blocks of the locator table; returns the count of inodes.
    fn recover_locator(&mut self, derived: &mut Derived) -> u64 {
        let listed =
            self.walk.scope.as_ref().map_or(BTreeMap::new(), |scope| scope.locator.clone());
        let before: u64 = listed.values().map(|used| u64::from(*used)).sum();
        let mut inodes = self.walk.meta.superblock.inodes;
        let there: Vec<u64> =
            listed.into_keys().filter(|b| self.table().has_locator_block(*b)).collect();
        for block in there {
            let Some(mut bytes) = self.table().locator_block(block) else {
                return 0;
            };
            let is_torn = locator::verify(&bytes, block, self.walk.meta.checksum).is_err();
            let is_wrong = self.set_locator_block(block, &mut bytes) || is_torn;
            inodes += locator::used_count(&bytes) as u64;
            if is_wrong {
                *self.walk.findings.report.recovered.entry(Code::LocatorEntry).or_default() += 1;
                locator::seal(&mut bytes, self.walk.meta.checksum);
                derived.extend(self.table().locator_pieces(block, &bytes));
            }
        }
        if inodes < before {
            self.walk.findings.doubt("the locator table does not fit its count");
        }
        inodes.saturating_sub(before)
    }

    /// Sets the entries of a block to what the walk found; true if any was wrong. Entries of inodes in blocks
    /// of containers that did not change are right, unless the log lists the inode as one without a name.
    fn set_locator_block(&self, block: u64, bytes: &mut [u8]) -> bool {
        let per_block = u64::from(locator::entries_per_block(self.walk.meta.layout.block_bytes));
        let mut is_wrong = false;
        for position in 0..per_block {
            let ino = InodeNo(block * per_block + position);
            let old = locator::get(bytes, position as usize);
            let is_void = |place| {
                let scope = self.walk.scope.as_ref();
                scope.is_some_and(|s| s.is_listed(place) || s.nameless.contains(&ino))
            };
            let new = match self.walk.meta.inventory.get(ino).filter(|_| !ino.is_system()) {
                Some(found) => {
                    Entry { container: Some(found.container), generation: found.generation }
                }
                None if old.container.is_some_and(is_void) => {
                    Entry { container: None, generation: old.generation }
                }
                None => old,
            };
            if new != old {
                locator::set(bytes, position as usize, new);
                is_wrong = true;
            }
        }
        is_wrong
    }

    /// Counts the references to the clusters that are listed. The runs of those without any are freed.
    fn count_references(&mut self) -> ClusterCounts {
        let Some(scope) = &self.walk.scope else { return ClusterCounts::default() };
        match ClusterCounts::of(scope, &self.walk.space, &self.walk.meta.layout) {
            Ok((counts, unreferenced)) => {
                self.released.extend(unreferenced);
                counts
            }
            Err(why) => {
                self.walk.findings.doubt(why);
                ClusterCounts::default()
            }
        }
    }

    /// Reads the listed groups as they were at the checkpoint.
    fn read_groups(&mut self) -> BTreeMap<u32, Group> {
        let layout = self.walk.meta.layout;
        let Some(scope) = &mut self.walk.scope else { return BTreeMap::new() };
        for run in scope.freed.iter().chain(&self.released) {
            if layout.is_allocatable(run.start, run.len) {
                scope.groups.entry(layout.cg_of_fragment(run.start).0).or_default();
            } else {
                self.walk.findings.doubt.get_or_insert_with(|| "the intent log is damaged".into());
            }
        }
        let groups: Vec<u32> = scope.groups.keys().copied().collect();
        let last = groups.last().map_or(0, |last| last + 1);
        if last > layout.cgs() {
            self.walk.findings.doubt("the intent log is damaged");
            return BTreeMap::new();
        }
        // Groups are made in order.
        let fresh = self.walk.meta.superblock.cgs_made..last;
        let groups: std::collections::BTreeSet<u32> = groups.into_iter().chain(fresh).collect();
        groups.into_iter().filter_map(|cg| Some((cg, self.read_group(CgIndex(cg))?))).collect()
    }

    fn read_group(&mut self, cg: CgIndex) -> Option<Group> {
        let layout = self.walk.meta.layout;
        if cg.0 >= self.walk.meta.superblock.cgs_made {
            let bitmap = super::used::UsedMap::new(layout).free_bitmap(cg);
            let header = CgHeader {
                cg,
                free_fragments: bitmap.iter().map(|byte| byte.count_ones()).sum(),
                rotor: 0,
                bitmap_checksum: 0,
                generation: self.walk.meta.superblock.generation,
                clusters: 0,
                counts_checksum: 0,
            };
            return Some(Group { header, bitmap, counts: vec![0; layout.count_bytes()] });
        }
        let blocks = 1 + layout.bitmap_blocks() + layout.count_blocks;
        let offset = layout.block_offset(layout.cg_header(cg));
        let mut head = self.walk.meta.disk.read(offset, (blocks * layout.block_bytes) as usize);
        let mut bitmap = head.split_off(layout.block_bytes as usize);
        let counts = bitmap.split_off((layout.bitmap_blocks() * layout.block_bytes) as usize);
        let (settling, before) = match &self.walk.scope {
            Some(scope) => (scope.settling, scope.groups.get(&cg.0).copied().flatten()),
            None => (false, None),
        };
        match CgHeader::decode(&head, cg, self.walk.meta.checksum) {
            // A bitmap that was written after the checkpoint differs from it only in what the log lists,
            // and so do counts of references; its count is no longer that of the checkpoint.
            Ok(mut header)
                if (settling && before.is_some()
                    || header.bitmap_checksum == bitmap_checksum(&bitmap)
                        && header.counts_checksum == bitmap_checksum(&counts))
                    && (before.is_some()
                        || header.generation <= self.walk.meta.superblock.generation) =>
            {
                self.check_kept(&header, settling, before);
                header.free_fragments = before.unwrap_or(header.free_fragments);
                Some(Group { header, bitmap, counts })
            }
            Ok(_) => {
                self.walk
                    .findings
                    .doubt(format!("the bitmap of group {cg} is not of the checkpoint"));
                None
            }
            Err(error) => {
                self.walk.findings.doubt(error.to_string());
                None
            }
        }
    }

    /// A group that was not written since the checkpoint agrees with the log, and no group is of a
    /// checkpoint that did not begin.
    fn check_kept(&mut self, header: &CgHeader, settling: bool, listed: Option<u32>) {
        let (cg, found, own) = (header.cg, header.generation, self.walk.meta.superblock.generation);
        if found > own.wrapping_add(1) {
            self.walk.findings.lost_writes(format!(
                "the bitmap of group {cg} is of generation {found}, the superblock of {own}"
            ));
        }
        let free = header.free_fragments;
        if let Some(listed) = listed.filter(|listed| !settling && found <= own && *listed != free) {
            self.walk.findings.lost_writes(format!(
                "group {cg} has {}, and had {listed} at the last checkpoint",
                counted(free.into(), "free fragment")
            ));
        }
    }

    /// Corrects the bitmaps and the counts of references of the listed groups; returns the count of free
    /// fragments.
    fn recover_bitmaps(
        &mut self,
        mut groups: BTreeMap<u32, Group>,
        clusters: &ClusterCounts,
        derived: &mut Derived,
    ) -> u64 {
        let layout = self.walk.meta.layout;
        let freed: Vec<_> = match &self.walk.scope {
            Some(scope) => scope.freed.iter().chain(&self.released).copied().collect(),
            None => Vec::new(),
        };
        for run in freed {
            let cg = layout.cg_of_fragment(run.start);
            let first = layout.block_start(layout.cg_start(cg)).0;
            let Some(Group { bitmap, .. }) = groups.get_mut(&cg.0) else { continue };
            for bit in (run.start.0 - first) as usize..(run.end().0 - first) as usize {
                bitmap[bit / 8] |= 1 << (bit % 8);
            }
        }
        let mut free = self.walk.meta.superblock.free_fragments;
        for (cg, Group { mut header, mut bitmap, mut counts }) in groups {
            let unclaimed = self.walk.space.used.free_bitmap(CgIndex(cg));
            bitmap.iter_mut().zip(&unclaimed).for_each(|(byte, free)| *byte &= free);
            let before = std::mem::replace(
                &mut header.free_fragments,
                bitmap.iter().map(|byte| byte.count_ones()).sum(),
            );
            free = (free + u64::from(header.free_fragments)).saturating_sub(before.into());
            let sum = bitmap_checksum(&bitmap);
            let is_torn = self.walk.scope.as_ref().is_some_and(|scope| scope.settling);
            let are_counts_right = !clusters.apply(&layout, CgIndex(cg), &mut counts);
            let is_made = cg < self.walk.meta.superblock.cgs_made;
            if sum == header.bitmap_checksum && are_counts_right && !is_torn && is_made {
                continue;
            }
            header.bitmap_checksum = sum;
            header.clusters = clusters_in(&counts);
            header.counts_checksum = bitmap_checksum(&counts);
            header.generation = self.walk.meta.superblock.generation.wrapping_add(1);
            let mut bytes = vec![0; layout.block_bytes as usize];
            header.encode_into(&mut bytes, self.walk.meta.checksum);
            bytes.extend_from_slice(&bitmap);
            bytes.extend_from_slice(&counts);
            derived.push((layout.block_offset(layout.cg_header(CgIndex(cg))), bytes));
            *self.walk.findings.report.recovered.entry(Code::Bitmap).or_default() += 1;
            self.walk.meta.superblock.cgs_made = self.walk.meta.superblock.cgs_made.max(cg + 1);
        }
        free
    }
}
