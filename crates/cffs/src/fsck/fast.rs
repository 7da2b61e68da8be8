//! The fast check: recovery that reads only what was in motion since the last clean point.
//!
//! It is the same walk with a scope: of containers, only the busy ones; of what is derived, only
//! the blocks of the locator table and the bitmaps that the busy log lists. Counters are those of
//! the clean point with what changed in these blocks.
//!
//! Invariants: what a crash does not explain raises a doubt, and nothing is written then: the full
//! check follows. Until the superblock says "clean", the busy log holds, so recovery that is cut
//! short begins anew; before it writes anything, it logs what it needs for that
//! ([`super::journal_update`]).

use std::collections::{BTreeMap, BTreeSet};

use super::disk::Place;
use super::inventory::pieces;
use super::lost_writes::LostWrites;
use super::pass1::Queue;
use super::scope::Scope;
use super::sectors::OwnedRecord;
use super::{Checker, Code, ROUNDS_MAX, Severity};
use crate::error::Result;
use crate::format::cylinder_group::{CgHeader, bitmap_checksum};
use crate::format::inode::FileType;
use crate::format::locator::{self, Entry};
use crate::format::sector::{Body, Sector};
use crate::units::{CgIndex, Container, FragRun, InodeNo};

/// More directories than this above another are a loop.
const ANCESTORS_MAX: usize = 1 << 16;

/// The extent of a fast check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastReport {
    /// Sectors of the busy log.
    pub log_sectors: u64,
    /// Directories whose sectors were read.
    pub directories: u64,
    /// Blocks of the external inode table.
    pub table_blocks: u64,
    /// Blocks of the locator table.
    pub locator_blocks: u64,
    /// Cylinder groups.
    pub groups: u64,
}

/// A group as it was at the clean point: its header and its bitmap.
type Group = (CgHeader, Vec<u8>);

/// Derived state, with its place on the device.
type Derived = Vec<(u64, Vec<u8>)>;

/// The state of a fast check over all its rounds.
#[derive(Default)]
pub(super) struct Fast {
    /// The scope; `None` in a full check.
    pub scope: Option<Scope>,
    /// Why the busy log does not explain what was found.
    pub doubts: Option<String>,
    /// Evidence that the device lost durable data.
    pub lost_writes: Option<LostWrites>,
    /// Runs that repairs freed.
    pub released: Vec<FragRun>,
}

impl Checker<'_> {
    /// Whether the walk is one of what is busy.
    pub(super) fn is_fast(&self) -> bool {
        self.fast.scope.is_some()
    }

    /// Notes that the busy log does not explain what was found.
    pub(super) fn doubt(&mut self, why: impl Into<String>) {
        self.fast.doubts.get_or_insert_with(|| why.into());
    }

    /// Notes that the device lost what was durable.
    pub(super) fn lost_writes(&mut self, what: impl Into<String>) {
        let (what, generation) = (what.into(), self.superblock.generation);
        self.doubt(what.clone());
        self.fast.lost_writes.get_or_insert(LostWrites { what, generation });
    }

    /// Why this check cannot be trusted.
    pub(super) fn reason_for_doubt(&self) -> Option<String> {
        let worse = |problem: &&super::Problem| problem.code.severity() > Severity::Derived;
        let problem = self.report.problems.iter().find(worse);
        self.fast.doubts.clone().or_else(|| problem.map(|problem| problem.to_string()))
    }

    /// Recovers what is busy; stops where a doubt was raised.
    pub(super) fn run_fast(&mut self) -> Result<()> {
        if !self.check_size() {
            return Ok(());
        }
        let mut converged = false;
        while !converged && self.report.rounds < ROUNDS_MAX {
            self.report.rounds += 1;
            converged = self.round();
            self.fast.released.append(&mut self.walk.used.take_released());
            if self.reason_for_doubt().is_some() {
                return Ok(());
            }
        }
        if !converged || !self.superblock.writable() {
            self.doubt("recovery comes to no end");
            return Ok(());
        }
        self.complete_locator()?;
        // A table that grew has left the blocks of its extent tree.
        self.fast.released.append(&mut self.walk.used.take_released());
        let groups = self.read_groups();
        let before = |(header, _): &Group| (header.cg, header.free_fragments);
        let before: Vec<(CgIndex, u32)> = groups.values().map(before).collect();
        let mut derived = Derived::new();
        let inodes = self.recover_locator(&mut derived);
        let free = self.recover_bitmaps(groups, &mut derived);
        if self.disk.is_changed() || !derived.is_empty() {
            self.log_recovery(&before);
        }
        if self.reason_for_doubt().is_some() {
            return Ok(());
        }
        self.disk.commit()?;
        derived.iter().for_each(|(offset, bytes)| self.disk.change(*offset, bytes));
        self.disk.commit()?;
        self.superblock.inodes = inodes;
        self.superblock.free_fragments = free;
        // A sector that this recovery patched, or one that was interrupted, may lie where nothing was busy:
        // the walk does not come to it.
        let patched = self.fast.scope.as_ref().map_or(0, |scope| scope.epoch_of_change(0));
        self.superblock.epoch = self.superblock.epoch.max(self.walk.epoch_max).max(patched);
        self.report.consistent = true;
        self.report_fast();
        self.mark_clean()
    }

    fn report_fast(&mut self) {
        let total = self.layout.allocatable_fragments();
        self.report.inodes = self.superblock.inodes;
        self.report.free_fragments = self.superblock.free_fragments;
        self.report.used_fragments = total.saturating_sub(self.superblock.free_fragments);
        self.report.fast = self.fast.scope.as_ref().map(|scope| FastReport {
            log_sectors: scope.log_sectors.into(),
            directories: scope.entered.len() as u64,
            table_blocks: scope.table.len() as u64,
            locator_blocks: scope.locator.len() as u64,
            groups: scope.groups.len() as u64,
        });
    }

    /// Walks the busy containers.
    pub(super) fn walk_busy(&mut self, queue: &mut Queue) {
        self.enqueue(queue, InodeNo::EXTERNAL);
        self.sweep(queue);
        self.enqueue(queue, InodeNo::ROOT);
        loop {
            let Some(scope) = &self.fast.scope else { return };
            let rest: Vec<InodeNo> = scope
                .directories
                .iter()
                .filter(|ino| !scope.entered.contains(ino))
                .copied()
                .collect();
            for ino in rest {
                self.find_directory(queue, ino);
            }
            if queue.is_empty() || self.fast.doubts.is_some() {
                return;
            }
            self.sweep(queue);
        }
    }

    /// Queues a busy directory if what leads to it is known or is not busy. Otherwise the walk comes
    /// to it, or it is no more.
    fn find_directory(&mut self, queue: &mut Queue, ino: InodeNo) {
        if let Some(found) = self.walk.inventory.get(ino) {
            // Its name is where nothing changed; with none, it is on its way in or out.
            if found.is_external() && found.references > 0 {
                self.enqueue(queue, ino);
            }
            return;
        }
        let mut chain: Vec<(InodeNo, Container)> = Vec::new();
        let mut at = ino;
        while !self.walk.inventory.containers.contains_key(&at) {
            let Some(place) = self.located(at) else { return };
            if self.fast.scope.as_ref().is_none_or(|scope| scope.is_busy(place)) {
                return;
            }
            chain.push((at, place));
            if chain.len() > ANCESTORS_MAX {
                return self.doubt(format!("inode {ino} lies below itself"));
            }
            at = place.file;
        }
        while let Some((ino, place)) = chain.pop() {
            if !self.open_directory(queue, ino, place) {
                return self.doubt(format!("inode {ino} is not in {place}"));
            }
        }
    }

    /// Takes in a directory that lies where nothing changed.
    fn open_directory(&mut self, queue: &mut Queue, ino: InodeNo, place: Container) -> bool {
        let Some(image) = self.load_good_sector(place) else { return false };
        let sector = Sector::new(&image);
        let Some(entry) = sector.find_inode(ino) else { return false };
        let Body::Embedded(record) = &entry.body else { return false };
        if record.inode.file_type() != Some(FileType::Directory) {
            return false;
        }
        let is_busy =
            self.fast.scope.as_ref().is_some_and(|scope| scope.directories.contains(&ino));
        if is_busy {
            self.register(record, place, entry.slot, sector.epoch().0);
            self.enqueue(queue, ino);
            return true;
        }
        // Only what it contains is asked for: its own space is as it was.
        let owned = OwnedRecord::new(record);
        let mut check = self.collect_map(&owned.as_record());
        check.extents.sort_by_key(|extent| extent.logical);
        let file = self.container_file(&owned.as_record(), check, place.file);
        self.walk.inventory.containers.insert(ino, file);
        true
    }

    /// Where the locator table says that an inode lies.
    pub(super) fn located(&mut self, ino: InodeNo) -> Option<Container> {
        let (block, position) = locator::position(ino, self.layout.block_bytes);
        let bytes = self.locator_block(block)?;
        locator::get(&bytes, position).container
    }

    /// A block of the locator table as it is on the device; `None` if there is none, or it is bad,
    /// which raises a doubt.
    fn locator_block(&mut self, block: u64) -> Option<Vec<u8>> {
        if let Some(known) = self.fast.scope.as_ref().and_then(|s| s.locator_blocks.get(&block)) {
            return known.clone();
        }
        let len = u64::from(self.layout.block_bytes);
        let places = pieces(&self.walk.locator.extents, block * len, len, &self.layout);
        let bytes = self.disk.read_many(&places).concat();
        let good = if bytes.is_empty() {
            None
        } else if self.is_settling(block) && locator::is_block(&bytes, block) {
            Some(bytes)
        } else if let Err(error) = locator::verify(&bytes, block, self.checksum) {
            self.doubt(error.to_string());
            None
        } else {
            self.check_locator_count(block, &bytes);
            Some(bytes)
        };
        if let Some(scope) = &mut self.fast.scope {
            scope.locator_blocks.insert(block, good.clone());
        }
        good
    }

    /// A block that was not written since the clean point has the entries that the log lists.
    fn check_locator_count(&mut self, block: u64, bytes: &[u8]) {
        let Some(scope) = self.fast.scope.as_ref().filter(|scope| !scope.settling) else { return };
        let Some(listed) = scope.locator.get(&block).copied() else { return };
        let used = locator::used_count(bytes);
        if used != usize::from(listed) {
            self.lost_writes(format!(
                "block {block} of the locator table has {used} entries, and had {listed} at the last \
                 clean point"
            ));
        }
    }

    /// Whether a block of the locator table may be part old and part new.
    fn is_settling(&self, block: u64) -> bool {
        self.fast.scope.as_ref().is_some_and(|s| s.settling && s.locator.contains_key(&block))
    }

    /// Gives the locator table the blocks that it lacks.
    fn complete_locator(&mut self) -> Result<()> {
        let users = self.walk.inventory.inodes.iter().filter(|found| !found.ino.is_system());
        let block_of = |ino| locator::position(ino, self.layout.block_bytes).0;
        let needed: BTreeSet<u64> = users.map(|found| block_of(found.ino)).collect();
        let missing: Vec<u64> =
            needed.into_iter().filter(|b| !self.has_locator_block(*b)).collect();
        let is_listed =
            |block| self.fast.scope.as_ref().is_some_and(|s| s.locator.contains_key(block));
        if !missing.iter().all(is_listed) {
            self.doubt("a block of the locator table is missing");
        } else if !missing.is_empty() && !self.grow_locator(&missing, true)? {
            self.doubt("no space for the locator table");
        } else {
            self.check_locator_size();
            for block in missing {
                let mut bytes = vec![0; self.layout.block_bytes as usize];
                locator::init(&mut bytes, block);
                locator::seal(&mut bytes, self.checksum);
                for (offset, piece) in self.locator_pieces(block, &bytes) {
                    self.disk.change(offset, &piece);
                }
                if let Some(scope) = &mut self.fast.scope {
                    scope.locator_blocks.insert(block, Some(bytes));
                }
            }
        }
        Ok(())
    }

    fn has_locator_block(&self, block: u64) -> bool {
        let fragments = u64::from(self.layout.block_fragments());
        let extents = &self.walk.locator.extents;
        let after = extents.partition_point(|e| e.logical_end() <= block * fragments);
        extents.get(after).is_some_and(|e| e.logical <= block * fragments)
    }

    /// The places of a block of the locator table, with what is there.
    fn locator_pieces(&self, block: u64, bytes: &[u8]) -> Derived {
        let len = bytes.len() as u64;
        let mut rest = bytes;
        let places = pieces(&self.walk.locator.extents, block * len, len, &self.layout);
        let piece = |place: Place| {
            let (piece, after) = rest.split_at(place.len);
            rest = after;
            (place.offset, piece.to_vec())
        };
        places.into_iter().map(piece).collect()
    }

    /// Sets the busy blocks of the locator table right; the inodes that there are then.
    fn recover_locator(&mut self, derived: &mut Derived) -> u64 {
        let busy = self.fast.scope.as_ref().map_or(BTreeMap::new(), |scope| scope.locator.clone());
        let before: u64 = busy.values().map(|used| u64::from(*used)).sum();
        let mut inodes = self.superblock.inodes;
        let there: Vec<u64> = busy.into_keys().filter(|b| self.has_locator_block(*b)).collect();
        for block in there {
            let Some(mut bytes) = self.locator_block(block) else { return 0 };
            let is_torn = locator::verify(&bytes, block, self.checksum).is_err();
            let is_wrong = self.set_locator_block(block, &mut bytes) || is_torn;
            inodes += locator::used_count(&bytes) as u64;
            if is_wrong {
                *self.report.recovered.entry(Code::LocatorEntry).or_default() += 1;
                locator::seal(&mut bytes, self.checksum);
                derived.extend(self.locator_pieces(block, &bytes));
            }
        }
        if inodes < before {
            self.doubt("the locator table does not fit its count");
        }
        inodes.saturating_sub(before)
    }

    /// Sets the entries of a block by what the walk found; whether any was wrong. What lies where
    /// nothing changed is right.
    fn set_locator_block(&self, block: u64, bytes: &mut [u8]) -> bool {
        let per_block = u64::from(locator::entries_per_block(self.layout.block_bytes));
        let mut is_wrong = false;
        for position in 0..per_block {
            let ino = InodeNo(block * per_block + position);
            let old = locator::get(bytes, position as usize);
            let is_busy =
                |place| self.fast.scope.as_ref().is_some_and(|scope| scope.is_busy(place));
            let new = match self.walk.inventory.get(ino).filter(|_| !ino.is_system()) {
                Some(found) => {
                    Entry { container: Some(found.container), generation: found.generation }
                }
                None if old.container.is_some_and(is_busy) => {
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

    /// Reads the busy groups as they were at the clean point.
    fn read_groups(&mut self) -> BTreeMap<u32, Group> {
        let Some(scope) = &mut self.fast.scope else { return BTreeMap::new() };
        for run in scope.freed.iter().chain(&self.fast.released) {
            if self.layout.is_allocatable(run.start, run.len) {
                scope.groups.entry(self.layout.cg_of_fragment(run.start).0).or_default();
            } else {
                self.fast.doubts.get_or_insert_with(|| "the busy log is damaged".into());
            }
        }
        let groups: Vec<u32> = scope.groups.keys().copied().collect();
        let last = groups.last().map_or(0, |last| last + 1);
        if last > self.layout.cgs() {
            self.doubt("the busy log is damaged");
            return BTreeMap::new();
        }
        // Groups are made in order.
        let fresh = self.superblock.cgs_made..last;
        let groups: std::collections::BTreeSet<u32> = groups.into_iter().chain(fresh).collect();
        groups.into_iter().filter_map(|cg| Some((cg, self.read_group(CgIndex(cg))?))).collect()
    }

    fn read_group(&mut self, cg: CgIndex) -> Option<Group> {
        if cg.0 >= self.superblock.cgs_made {
            let bitmap = super::used::UsedMap::new(self.layout).free_bitmap(cg);
            let header = CgHeader {
                cg,
                free_fragments: bitmap.iter().map(|byte| byte.count_ones()).sum(),
                rotor: 0,
                bitmap_checksum: 0,
                generation: self.superblock.generation,
            };
            return Some((header, bitmap));
        }
        let blocks = 1 + self.layout.bitmap_blocks();
        let offset = self.layout.block_offset(self.layout.cg_header(cg));
        let mut head = self.disk.read(offset, (blocks * self.layout.block_bytes) as usize);
        let bitmap = head.split_off(self.layout.block_bytes as usize);
        let (settling, before) = match &self.fast.scope {
            Some(scope) => (scope.settling, scope.groups.get(&cg.0).copied().flatten()),
            None => (false, None),
        };
        match CgHeader::decode(&head, cg, self.checksum) {
            // A bitmap that was written after the clean point differs from it in nothing but what
            // the log lists; only its count does not say how it was.
            Ok(mut header)
                if (settling && before.is_some()
                    || header.bitmap_checksum == bitmap_checksum(&bitmap))
                    && (before.is_some() || header.generation <= self.superblock.generation) =>
            {
                self.check_kept(&header, settling, before);
                header.free_fragments = before.unwrap_or(header.free_fragments);
                Some((header, bitmap))
            }
            Ok(_) => {
                self.doubt(format!("the bitmap of group {cg} is not of the clean point"));
                None
            }
            Err(error) => {
                self.doubt(error.to_string());
                None
            }
        }
    }

    /// A group that was not written since the clean point is as the log says, and none is of a
    /// clean point that did not begin.
    fn check_kept(&mut self, header: &CgHeader, settling: bool, listed: Option<u32>) {
        let (cg, found, own) = (header.cg, header.generation, self.superblock.generation);
        if found > own.wrapping_add(1) {
            self.lost_writes(format!(
                "the bitmap of group {cg} is of generation {found}, the superblock of {own}"
            ));
        }
        let free = header.free_fragments;
        if let Some(listed) = listed.filter(|listed| !settling && found <= own && *listed != free) {
            self.lost_writes(format!(
                "group {cg} has {free} free fragments, and had {listed} at the last clean point"
            ));
        }
    }

    /// Sets the bitmaps of the busy groups right; the free fragments that there are then.
    fn recover_bitmaps(&mut self, mut groups: BTreeMap<u32, Group>, derived: &mut Derived) -> u64 {
        let freed: Vec<_> = match &self.fast.scope {
            Some(scope) => scope.freed.iter().chain(&self.fast.released).copied().collect(),
            None => Vec::new(),
        };
        for run in freed {
            let cg = self.layout.cg_of_fragment(run.start);
            let first = self.layout.block_start(self.layout.cg_start(cg)).0;
            let Some((_, bitmap)) = groups.get_mut(&cg.0) else { continue };
            for bit in (run.start.0 - first) as usize..(run.end().0 - first) as usize {
                bitmap[bit / 8] |= 1 << (bit % 8);
            }
        }
        let mut free = self.superblock.free_fragments;
        for (cg, (mut header, mut bitmap)) in groups {
            let unclaimed = self.walk.used.free_bitmap(CgIndex(cg));
            bitmap.iter_mut().zip(&unclaimed).for_each(|(byte, free)| *byte &= free);
            let before = std::mem::replace(
                &mut header.free_fragments,
                bitmap.iter().map(|byte| byte.count_ones()).sum(),
            );
            free = (free + u64::from(header.free_fragments)).saturating_sub(before.into());
            let sum = bitmap_checksum(&bitmap);
            let is_torn = self.fast.scope.as_ref().is_some_and(|scope| scope.settling);
            if sum == header.bitmap_checksum && !is_torn && cg < self.superblock.cgs_made {
                continue;
            }
            header.bitmap_checksum = sum;
            header.generation = self.superblock.generation.wrapping_add(1);
            let mut bytes = vec![0; self.layout.block_bytes as usize];
            header.encode_into(&mut bytes, self.checksum);
            bytes.extend_from_slice(&bitmap);
            derived.push((self.layout.block_offset(self.layout.cg_header(CgIndex(cg))), bytes));
            *self.report.recovered.entry(Code::Bitmap).or_default() += 1;
            self.superblock.cgs_made = self.superblock.cgs_made.max(cg + 1);
        }
        free
    }
}
