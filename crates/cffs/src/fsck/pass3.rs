//! Pass 3: the inode locator table, held against the inodes that were found.
//!
//! Blocks of the table that are right are not written. A number that is free keeps the generation
//! of its last inode; where that is lost, it takes the highest that any inode has, so that no
//! handle of an old file fits a new one.

use super::editor::Patch;
use super::inventory::pieces;
use super::{Checker, Code, Phase, Place};
use crate::error::Result;
use crate::format::extent::Extent;
use crate::format::locator::{self, Entry};
use crate::units::InodeNo;

/// Blocks of the table that are read at once.
const BATCH_BLOCKS: usize = 256;

impl Checker<'_> {
    pub(super) fn pass3(&mut self, may_write: bool) -> Result<()> {
        let mut numbers: Vec<u64> = self
            .walk
            .inventory
            .inodes
            .iter()
            .filter(|found| !found.ino.is_system())
            .map(|found| found.ino.0)
            .collect();
        numbers.sort_unstable();
        let block_fragments = u64::from(self.layout.block_fragments());
        let mut blocks: Vec<u64> = self
            .walk
            .locator
            .extents
            .iter()
            .flat_map(|e| e.logical / block_fragments..e.logical_end().div_ceil(block_fragments))
            .collect();
        blocks.dedup();
        let missing = self.missing_blocks(&numbers, &blocks);
        if !missing.is_empty() && !self.grow_locator(&missing, may_write)? {
            return Ok(());
        }
        let mut fresh = missing.into_iter().peekable();
        self.check_locator_size();
        let mut all: Vec<u64> = blocks.into_iter().chain(fresh.clone()).collect();
        all.sort_unstable();
        let mut rest = &numbers[..];
        let total = all.len() as u64;
        let mut done = 0;
        for batch in all.chunks(BATCH_BLOCKS) {
            let len = u64::from(self.layout.block_bytes);
            let places: Vec<_> = batch
                .iter()
                .map(|block| pieces(&self.walk.locator.extents, block * len, len, &self.layout))
                .collect();
            let mut blobs = self.disk.read_many(&places.concat()).into_iter();
            for (block, places) in batch.iter().zip(&places) {
                let bytes: Vec<u8> = blobs.by_ref().take(places.len()).collect::<Vec<_>>().concat();
                let is_fresh = fresh.next_if_eq(block).is_some();
                let end = (block + 1) * u64::from(locator::entries_per_block(len as u32));
                let (own, others) = rest.split_at(rest.partition_point(|number| *number < end));
                rest = others;
                if let Some(bytes) = self.check_locator_block(*block, bytes, own, is_fresh)
                    && may_write
                {
                    let mut at = 0;
                    for place in places {
                        self.disk.write(place.offset, &bytes[at..at + place.len])?;
                        at += place.len;
                    }
                }
            }
            done += batch.len() as u64;
            self.progress.report(Phase::Locator, done, total);
        }
        if may_write && self.disk.is_changed() {
            // The blocks of the table before the inode that leads to them.
            self.disk.barrier()?;
            self.disk.commit()?;
        }
        Ok(())
    }

    pub(super) fn check_locator_size(&mut self) {
        let block = u64::from(self.layout.block_bytes);
        let fragment = u64::from(self.layout.fragment_bytes);
        let end = self.walk.locator.extents.last().map_or(0, Extent::logical_end);
        let end = (end * fragment).next_multiple_of(block);
        let size = self.walk.locator_size;
        if size < end || !size.is_multiple_of(block) {
            let message = format!("its size is {size} bytes, its blocks end at {end}");
            self.derived(Code::LocatorSize, Place::Inode(InodeNo::LOCATOR), message);
            self.patch(InodeNo::LOCATOR, &Patch { size: Some(end), ..Patch::default() });
        }
    }

    /// Blocks of the table that have to be there and are not.
    fn missing_blocks(&self, numbers: &[u64], blocks: &[u64]) -> Vec<u64> {
        let mut needed: Vec<u64> = numbers
            .iter()
            .map(|number| locator::position(InodeNo(*number), self.layout.block_bytes).0)
            .collect();
        needed.dedup();
        needed.retain(|block| blocks.binary_search(block).is_err());
        needed
    }

    /// Gives the table the blocks that it misses; false if there is no space.
    pub(super) fn grow_locator(&mut self, missing: &[u64], may_write: bool) -> Result<bool> {
        let message = format!("{} blocks of the table are missing", missing.len());
        self.derived(Code::LocatorEntry, Place::Inode(InodeNo::LOCATOR), message);
        if !may_write {
            return Ok(false);
        }
        let block_fragments = self.layout.block_fragments();
        for block in missing {
            let Some(start) = self.allocate(block_fragments) else {
                let message = "no space for the locator table";
                self.problem(Code::NoSpace, Place::Inode(InodeNo::LOCATOR), message);
                return Ok(false);
            };
            let logical = block * u64::from(block_fragments);
            let extent = Extent { logical, start, len: block_fragments, unwritten: false };
            let extents = &mut self.walk.locator.extents;
            let at = extents.partition_point(|other| other.logical < logical);
            match extents.get_mut(at.wrapping_sub(1)) {
                Some(before) if before.logical_end() == logical && follows(before, &extent) => {
                    before.len += block_fragments;
                }
                _ => extents.insert(at, extent),
            }
        }
        let end = missing.last().map_or(0, |block| block + 1) * u64::from(self.layout.block_bytes);
        let extents = self.walk.locator.extents.clone();
        let patch = Patch { size_min: Some(end), ..Patch::default() };
        self.walk.locator_size = self.walk.locator_size.max(end);
        Ok(self.set_map(InodeNo::LOCATOR, &extents) && self.patch(InodeNo::LOCATOR, &patch))
    }

    /// Compares a block of the table with the inodes that belong into it; its right bytes if it is
    /// wrong.
    fn check_locator_block(
        &mut self,
        block: u64,
        mut bytes: Vec<u8>,
        numbers: &[u64],
        is_fresh: bool,
    ) -> Option<Vec<u8>> {
        let mut is_wrong = is_fresh;
        let mut lost_generation = None;
        bytes.resize(self.layout.block_bytes as usize, 0);
        if is_fresh {
            locator::init(&mut bytes, block);
        } else if let Err(error) = locator::verify(&bytes, block, self.checksum) {
            self.derived(Code::LocatorBlock, Place::Inode(InodeNo::LOCATOR), error.to_string());
            locator::init(&mut bytes, block);
            lost_generation = Some(self.walk.generation_max);
            is_wrong = true;
        }
        let per_block = u64::from(locator::entries_per_block(self.layout.block_bytes));
        let mut wrong_entries = 0;
        let mut numbers = numbers.iter().peekable();
        for position in 0..per_block {
            let number = block * per_block + position;
            let old = locator::get(&bytes, position as usize);
            let found = numbers
                .next_if_eq(&&number)
                .and_then(|number| self.walk.inventory.get(InodeNo(*number)));
            let new = match found {
                Some(found) => {
                    Entry { container: Some(found.container), generation: found.generation }
                }
                None => {
                    Entry { container: None, generation: lost_generation.unwrap_or(old.generation) }
                }
            };
            if old != new {
                locator::set(&mut bytes, position as usize, new);
                wrong_entries += 1;
            }
        }
        if wrong_entries > 0 && !is_wrong {
            let message = format!("block {block}: {wrong_entries} entries are wrong");
            self.derived(Code::LocatorEntry, Place::Inode(InodeNo::LOCATOR), message);
        }
        (is_wrong || wrong_entries > 0).then(|| {
            locator::seal(&mut bytes, self.checksum);
            bytes
        })
    }
}

fn follows(before: &Extent, extent: &Extent) -> bool {
    before.run().end() == extent.start
        && before.len + extent.len <= crate::format::extent::EXTENT_FRAGMENTS_MAX
}
