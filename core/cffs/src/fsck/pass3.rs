//! Pass 3: the inode locator table, compared with the inodes that were found.
//!
//! Correct blocks of the table are not written. A free number keeps the generation of its last inode. If that
//! is lost, it gets the highest generation of all inodes, so that no handle of an old file is valid for a new
//! one.

use super::disk::Place as DiskPlace;
use super::fix::Patch;
use super::inventory::pieces;
use super::map_writer::MapWriter;
use super::walk::Walk;
use super::{Code, Phase, Place};
use crate::error::Result;
use crate::format::extent::Extent;
use crate::format::locator::{self, Entry};
use crate::printable::counted;
use crate::units::{Container, FragRun, InodeNo};

/// Blocks of the table that are read at once.
const BATCH_BLOCKS: usize = 256;

/// Derived state, with its place on the device.
pub(super) type Derived = Vec<(u64, Vec<u8>)>;

/// The locator table: read by number, and compared with the inventory.
pub(super) struct LocatorTable<'a, 'c> {
    pub walk: &'a mut Walk<'c>,
}

impl LocatorTable<'_, '_> {
    pub(super) fn pass3(&mut self, may_write: bool) -> Result<()> {
        let layout = self.walk.meta.layout;
        let mut numbers: Vec<u64> =
            self.walk.meta.inventory.users().map(|found| found.ino.0).collect();
        numbers.sort_unstable();
        let block_fragments = u64::from(layout.block_fragments());
        let extents = self.walk.round.locator.extents.iter();
        let mut blocks: Vec<u64> = extents
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
            let len = u64::from(layout.block_bytes);
            let places: Vec<_> = batch
                .iter()
                .map(|block| pieces(&self.walk.round.locator.extents, block * len, len, &layout))
                .collect();
            let mut blobs = self.walk.meta.disk.read_many(&places.concat()).into_iter();
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
                        self.walk.meta.disk.write(place.offset, &bytes[at..at + place.len])?;
                        at += place.len;
                    }
                }
            }
            done += batch.len() as u64;
            self.walk.progress.report(Phase::Locator, done, total);
        }
        if may_write && self.walk.meta.disk.is_changed() {
            // The blocks of the table before the inode that refers to them.
            self.walk.meta.disk.barrier()?;
            self.walk.meta.disk.commit()?;
        }
        Ok(())
    }

    pub(super) fn check_locator_size(&mut self) {
        let layout = self.walk.meta.layout;
        let block = u64::from(layout.block_bytes);
        let fragment = u64::from(layout.fragment_bytes);
        let end = self.walk.round.locator.extents.last().map_or(0, Extent::logical_end);
        let end = (end * fragment).next_multiple_of(block);
        let size = self.walk.round.locator_size;
        if size < end || !size.is_multiple_of(block) {
            let message = format!("its size is {size} bytes, its blocks end at {end}");
            self.walk.findings.derived(Code::LocatorSize, Place::Inode(InodeNo::LOCATOR), message);
            self.walk.meta.patch(InodeNo::LOCATOR, &Patch { size: Some(end), ..Patch::default() });
        }
    }

    /// Missing blocks of the table.
    fn missing_blocks(&self, numbers: &[u64], blocks: &[u64]) -> Vec<u64> {
        let mut needed: Vec<u64> = numbers
            .iter()
            .map(|number| locator::position(InodeNo(*number), self.walk.meta.layout.block_bytes).0)
            .collect();
        needed.dedup();
        needed.retain(|block| blocks.binary_search(block).is_err());
        needed
    }

    /// Gives the table its missing blocks; false if there is no space.
    pub(super) fn grow_locator(&mut self, missing: &[u64], may_write: bool) -> Result<bool> {
        let layout = self.walk.meta.layout;
        let message = format!("the table lacks {}", counted(missing.len() as u64, "block"));
        self.walk.findings.derived(Code::LocatorEntry, Place::Inode(InodeNo::LOCATOR), message);
        if !may_write {
            return Ok(false);
        }
        let block_fragments = layout.block_fragments();
        for block in missing {
            let Some(start) = MapWriter { walk: self.walk }.allocate(block_fragments) else {
                let message = "no space for the locator table";
                self.walk.findings.problem(Code::NoSpace, Place::Inode(InodeNo::LOCATOR), message);
                return Ok(false);
            };
            let logical = block * u64::from(block_fragments);
            let extent = Extent::new(logical, FragRun::new(start, block_fragments));
            let extents = &mut self.walk.round.locator.extents;
            let at = extents.partition_point(|other| other.logical < logical);
            match extents.get_mut(at.wrapping_sub(1)) {
                Some(before) if before.logical_end() == logical && follows(before, &extent) => {
                    before.len += block_fragments;
                }
                _ => extents.insert(at, extent),
            }
        }
        let end = missing.last().map_or(0, |block| block + 1) * u64::from(layout.block_bytes);
        let extents = self.walk.round.locator.extents.clone();
        let patch = Patch { size_min: Some(end), ..Patch::default() };
        self.walk.round.locator_size = self.walk.round.locator_size.max(end);
        Ok(MapWriter { walk: self.walk }.set_map(InodeNo::LOCATOR, &extents)
            && self.walk.meta.patch(InodeNo::LOCATOR, &patch))
    }

    /// Compares a block of the table with its inodes; returns the right bytes if it is wrong.
    fn check_locator_block(
        &mut self,
        block: u64,
        mut bytes: Vec<u8>,
        numbers: &[u64],
        is_fresh: bool,
    ) -> Option<Vec<u8>> {
        let layout = self.walk.meta.layout;
        let mut is_wrong = is_fresh;
        let mut lost_generation = None;
        bytes.resize(layout.block_bytes as usize, 0);
        if is_fresh {
            locator::init(&mut bytes, block);
        } else if let Err(error) = locator::verify(&bytes, block, self.walk.meta.checksum) {
            // After a crash it may not have been written yet.
            if self.walk.findings.was_clean() {
                let len = bytes.len() as u64;
                let extents = &self.walk.round.locator.extents;
                let places = pieces(extents, block * len, len, &layout);
                self.walk.meta.disk.contradict(&places, &error);
            }
            self.walk.findings.derived(
                Code::LocatorBlock,
                Place::Inode(InodeNo::LOCATOR),
                error.to_string(),
            );
            locator::init(&mut bytes, block);
            lost_generation = Some(self.walk.meta.inventory.generation_max);
            is_wrong = true;
        }
        let per_block = u64::from(locator::entries_per_block(layout.block_bytes));
        let mut wrong_entries = 0;
        let mut numbers = numbers.iter().peekable();
        for position in 0..per_block {
            let number = block * per_block + position;
            let old = locator::get(&bytes, position as usize);
            let found = numbers
                .next_if_eq(&&number)
                .and_then(|number| self.walk.meta.inventory.get(InodeNo(*number)));
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
            let message = format!("block {block}: {}", counted(wrong_entries, "wrong entry"));
            self.walk.findings.derived(Code::LocatorEntry, Place::Inode(InodeNo::LOCATOR), message);
        }
        (is_wrong || wrong_entries > 0).then(|| {
            locator::seal(&mut bytes, self.walk.meta.checksum);
            bytes
        })
    }

    /// Where the locator table says that an inode is.
    pub(super) fn located(&mut self, ino: InodeNo) -> Option<Container> {
        let (block, position) = locator::position(ino, self.walk.meta.layout.block_bytes);
        let bytes = self.locator_block(block)?;
        locator::get(&bytes, position).container
    }

    /// A block of the locator table as it is on the device; `None` if there is none, or it is bad,
    /// which raises a doubt.
    pub(super) fn locator_block(&mut self, block: u64) -> Option<Vec<u8>> {
        let layout = self.walk.meta.layout;
        if let Some(known) = self.walk.scope.as_ref().and_then(|s| s.locator_blocks.get(&block)) {
            return known.clone();
        }
        let len = u64::from(layout.block_bytes);
        let places = pieces(&self.walk.round.locator.extents, block * len, len, &layout);
        let bytes = self.walk.meta.disk.read_many(&places).concat();
        let good = if bytes.is_empty() {
            None
        } else if self.is_settling(block) && locator::is_block(&bytes, block) {
            Some(bytes)
        } else if let Err(error) = locator::verify(&bytes, block, self.walk.meta.checksum) {
            self.walk.findings.doubt(error.to_string());
            None
        } else {
            self.check_locator_count(block, &bytes);
            Some(bytes)
        };
        if let Some(scope) = &mut self.walk.scope {
            scope.locator_blocks.insert(block, good.clone());
        }
        good
    }

    /// A block that was not written since the checkpoint has the entries that the log lists.
    fn check_locator_count(&mut self, block: u64, bytes: &[u8]) {
        let Some(scope) = self.walk.scope.as_ref().filter(|scope| !scope.settling) else { return };
        let Some(listed) = scope.locator.get(&block).copied() else { return };
        let used = locator::used_count(bytes);
        if used != usize::from(listed) {
            self.walk.findings.lost_writes(format!(
                "block {block} of the locator table has {}, and had {listed} at the last checkpoint",
                counted(used as u64, "entry")
            ));
        }
    }

    /// Whether a block of the locator table may be part old and part new.
    fn is_settling(&self, block: u64) -> bool {
        self.walk.scope.as_ref().is_some_and(|s| s.settling && s.locator.contains_key(&block))
    }

    pub(super) fn has_locator_block(&self, block: u64) -> bool {
        let fragments = u64::from(self.walk.meta.layout.block_fragments());
        let extents = &self.walk.round.locator.extents;
        let after = extents.partition_point(|e| e.logical_end() <= block * fragments);
        extents.get(after).is_some_and(|e| e.logical <= block * fragments)
    }

    /// The pieces of a block of the locator table, with their places.
    pub(super) fn locator_pieces(&self, block: u64, bytes: &[u8]) -> Derived {
        let len = bytes.len() as u64;
        let mut rest = bytes;
        let places =
            pieces(&self.walk.round.locator.extents, block * len, len, &self.walk.meta.layout);
        let piece = |place: DiskPlace| {
            let (piece, after) = rest.split_at(place.len);
            rest = after;
            (place.offset, piece.to_vec())
        };
        places.into_iter().map(piece).collect()
    }
}

fn follows(before: &Extent, extent: &Extent) -> bool {
    before.run().end() == extent.start
        && before.len + extent.len <= crate::format::extent::EXTENT_FRAGMENTS_MAX
}
