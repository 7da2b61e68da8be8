//! The superblock and the copies of it and of the system area: checked, marked and refreshed.

use std::collections::BTreeSet;

use super::disk::Place as DiskPlace;
use super::findings::Findings;
use super::metadata::{Metadata, system_sector};
use super::{Code, Place};
use crate::error::{Corruption, Error, Result};
use crate::format::Layout;
use crate::format::sector;
use crate::format::superblock::{Incompat, RoCompat, State, Superblock};
use crate::units::BlockNo;

/// Checks and writes the superblock and the copies.
pub(super) struct Copies<'a, 'c> {
    pub meta: &'a mut Metadata<'c>,
    pub findings: &'a mut Findings,
    /// Blocks of bad copies, which a repair writes.
    pub bad: &'a mut BTreeSet<BlockNo>,
}

impl Copies<'_, '_> {
    /// Checks the copies of the superblock and of the system area; remembers those to be written.
    pub(super) fn check_copies(&mut self) {
        let layout = self.meta.layout;
        let copies = layout.superblock_copies();
        let len = 2 * layout.block_bytes as usize;
        let places: Vec<_> = copies
            .iter()
            .map(|block| DiskPlace { offset: layout.block_offset(*block), len })
            .collect();
        let blobs = self.meta.disk.read_many(&places);
        for (block, bytes) in copies.into_iter().zip(blobs) {
            let offset = layout.block_offset(block);
            let copy = Superblock::decode(&bytes, offset);
            if let Err(Error::Corruption(error)) = &copy {
                self.meta.disk.contradict(&[DiskPlace { offset, len: len / 2 }], error);
            }
            if !copy.is_ok_and(|copy| self.is_same_volume(&copy)) {
                let message = "it is bad, or describes another volume";
                self.findings.derived(Code::SuperblockCopy, Place::Block(block), message);
                self.bad.insert(block);
            }
            if let Err(error) = self.check_system_copy(&bytes[len / 2..]) {
                let block = BlockNo(block.0 + 1);
                self.meta.disk.contradict(&[self.meta.block_place(block)], &error);
                self.findings.derived(
                    Code::SystemCopy,
                    Place::Block(block),
                    "a sector of it is bad",
                );
                self.bad.insert(block);
            }
        }
    }

    /// Whether a copy describes this volume, perhaps under another name. It may have a larger size or an
    /// additional feature: a change was interrupted before it reached the superblock itself.
    fn is_same_volume(&self, copy: &Superblock) -> bool {
        let own = &self.meta.superblock;
        let may_differ = Incompat::PROTECTION;
        copy.blocks >= own.blocks
            && Layout::new(copy).with_blocks(own.blocks) == self.meta.layout
            && copy.checksum_seed == own.checksum_seed
            && copy.incompat.difference(may_differ) == own.incompat.difference(may_differ)
            && copy.hash_seed == own.hash_seed
    }

    fn check_system_copy(&self, block: &[u8]) -> Result<(), Corruption> {
        let mut sectors = block.chunks_exact(self.meta.layout.sector_bytes as usize).enumerate();
        sectors.try_for_each(|(index, image)| {
            sector::verify(image, system_sector(index as u32), 0, self.meta.checksum)
        })
    }

    /// Called before primary metadata is changed: an interrupted repair starts over.
    pub(super) fn mark_damaged(&mut self) -> Result<()> {
        let state = std::mem::replace(&mut self.meta.superblock.state, State::Damaged);
        let bytes = self.meta.superblock_block(BlockNo(0));
        self.meta.superblock.state = state;
        self.meta.disk.write(0, &bytes)?;
        self.meta.disk.barrier()?;
        Ok(())
    }

    /// After the last repair: refreshes bad copies, and marks the volume clean.
    pub(super) fn mark_clean(&mut self) -> Result<()> {
        let layout = self.meta.layout;
        let is_doubted = self.meta.superblock.damage.take().is_some();
        let is_right =
            self.findings.was_clean() && self.findings.report.problems.is_empty() && !is_doubted;
        if is_right || !self.findings.report.consistent {
            return Ok(());
        }
        self.meta.superblock.state = State::Clean;
        // The crash or the repairs may have separated a change from the stamps of the directories above it.
        self.meta.superblock.marks_walked = self.meta.superblock.marks;
        // Accounts of quotas count only if the volume was not opened since they were written: a repair counts
        // as an opening.
        if self.meta.superblock.ro_compat.contains(RoCompat::QUOTAS) {
            self.meta.superblock.mounts = self.meta.superblock.mounts.saturating_add(1);
        }
        // The next generation may already have a log, of a checkpoint that was not completed.
        self.meta.superblock.generation = self.meta.superblock.generation.wrapping_add(2);
        let system = self.meta.block_place(layout.system_area());
        let system = self.meta.disk.read(system.offset, system.len);
        for copy in layout.superblock_copies() {
            let area = BlockNo(copy.0 + 1);
            if self.bad.contains(&copy) {
                // The mark of this check is removed from the superblock, not from the copies.
                let holder = self.meta.superblock.holder.take();
                let bytes = self.meta.superblock_block(copy);
                self.meta.superblock.holder = holder;
                self.meta.disk.write(layout.block_offset(copy), &bytes)?;
            }
            if self.bad.contains(&area) {
                self.meta.disk.write(layout.block_offset(area), &system)?;
            }
        }
        self.meta.disk.barrier()?;
        let bytes = self.meta.superblock_block(BlockNo(0));
        self.meta.disk.write(0, &bytes)?;
        self.meta.disk.sync()?;
        Ok(())
    }
}
