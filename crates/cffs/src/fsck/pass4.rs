//! Pass 4: bitmaps, group headers and the superblock's counters; then the volume is clean.

use super::disk::Place as DiskPlace;
use super::{Checker, Code, Phase, Place};
use crate::error::Result;
use crate::format::cylinder_group::{CgHeader, bitmap_checksum};
use crate::format::superblock::State;
use crate::units::{BlockNo, CgIndex};

/// Groups whose bitmaps are read at once.
const BATCH_GROUPS: u32 = 64;

impl Checker<'_> {
    pub(super) fn pass4(&mut self, may_write: bool) -> Result<()> {
        let made = self.superblock.cgs_made;
        let needed = self.walk.used.last_cg().map_or(0, |cg| cg.0 + 1).max(1);
        if needed > made {
            let message = format!("{made} groups were made, group {} is in use", needed - 1);
            self.derived(Code::GroupsMade, Place::Volume, message);
            self.superblock.cgs_made = needed;
        }
        for first in (0..made.max(needed)).step_by(BATCH_GROUPS as usize) {
            let groups: Vec<CgIndex> =
                (first..made.max(needed).min(first + BATCH_GROUPS)).map(CgIndex).collect();
            let blocks = 1 + self.layout.bitmap_blocks();
            let places: Vec<DiskPlace> = groups
                .iter()
                .map(|cg| DiskPlace {
                    offset: self.layout.block_offset(self.layout.cg_header(*cg)),
                    len: (blocks * self.layout.block_bytes) as usize,
                })
                .collect();
            let blobs = self.disk.read_many(&places);
            for ((cg, place), bytes) in groups.iter().zip(&places).zip(blobs) {
                if let Some(bytes) = self.check_group(*cg, &bytes, cg.0 < made)
                    && may_write
                {
                    self.disk.write(place.offset, &bytes)?;
                }
            }
            self.progress.report(Phase::Bitmaps, first.into(), made.max(needed).into());
        }
        self.check_counters();
        Ok(())
    }

    /// Compares a group's header and bitmap with what was found; their right bytes if they differ.
    fn check_group(&mut self, cg: CgIndex, bytes: &[u8], is_made: bool) -> Option<Vec<u8>> {
        let (head, disk_bitmap) = bytes.split_at(self.layout.block_bytes as usize);
        let bitmap = self.walk.used.free_bitmap(cg);
        let free = bitmap.iter().map(|byte| byte.count_ones()).sum();
        let mut header = CgHeader {
            cg,
            free_fragments: free,
            rotor: 0,
            bitmap_checksum: bitmap_checksum(&bitmap),
            // Not of the clean point from which the busy log goes on.
            generation: self.superblock.generation.wrapping_add(1),
        };
        let place = Place::Cg(cg);
        let mut is_wrong = !is_made;
        match CgHeader::decode(head, cg, self.checksum) {
            Ok(old) => {
                header.rotor = if old.rotor < self.layout.cg_fragments(cg) { old.rotor } else { 0 };
                if is_made
                    && (old.bitmap_checksum != header.bitmap_checksum || bitmap != disk_bitmap)
                {
                    let differ = disk_bitmap.iter().zip(&bitmap).map(|(a, b)| (a ^ b).count_ones());
                    let message = format!("{} fragments are marked wrong", differ.sum::<u32>());
                    self.derived(Code::Bitmap, place, message);
                    is_wrong = true;
                } else if is_made && old.free_fragments != free {
                    let message = format!("it counts {} fragments, {free} are", old.free_fragments);
                    self.derived(Code::FreeCount, place, message);
                    is_wrong = true;
                }
            }
            Err(error) if is_made => {
                self.derived(Code::GroupHeader, place, error.to_string());
                is_wrong = true;
            }
            Err(_) => {}
        }
        is_wrong.then(|| {
            let mut right = vec![0; head.len()];
            header.encode_into(&mut right, self.checksum);
            right.extend_from_slice(&bitmap);
            right
        })
    }

    fn check_counters(&mut self) {
        let free = self.layout.allocatable_fragments().saturating_sub(self.walk.used.total());
        let inodes =
            self.walk.inventory.inodes.iter().filter(|found| !found.ino.is_system()).count() as u64;
        let own = &self.superblock;
        let is_right =
            own.free_fragments == free && own.inodes == inodes && own.epoch >= self.walk.epoch_max;
        if !is_right {
            let message = format!(
                "it says {} free fragments, {} inodes, epoch {}; there are {free}, {inodes}, {}",
                own.free_fragments, own.inodes, own.epoch, self.walk.epoch_max
            );
            self.derived(Code::Counters, Place::Volume, message);
        }
        self.superblock.free_fragments = free;
        self.superblock.inodes = inodes;
        self.superblock.epoch = self.superblock.epoch.max(self.walk.epoch_max);
        self.report.consistent = !self.report.problems.iter().any(|p| p.code.is_final());
    }

    /// Called before the truth is changed: an interrupted repair starts over.
    pub(super) fn mark_damaged(&mut self) -> Result<()> {
        let state = std::mem::replace(&mut self.superblock.state, State::Damaged);
        let bytes = self.superblock_block(BlockNo(0));
        self.superblock.state = state;
        self.disk.write(0, &bytes)?;
        self.disk.barrier()?;
        Ok(())
    }

    /// After the last repair: refreshes bad copies, and marks the volume clean.
    pub(super) fn mark_clean(&mut self) -> Result<()> {
        let is_doubted = self.superblock.damage.take().is_some();
        let is_right = self.was_clean() && self.report.problems.is_empty() && !is_doubted;
        if is_right || !self.report.consistent {
            return Ok(());
        }
        self.superblock.state = State::Clean;
        // The next one may have a log already, of a clean point that was not reached.
        self.superblock.generation = self.superblock.generation.wrapping_add(2);
        let system = self.block_place(self.layout.system_area());
        let system = self.disk.read(system.offset, system.len);
        for copy in self.layout.superblock_copies() {
            let area = BlockNo(copy.0 + 1);
            if self.bad_copies.contains(&copy) {
                let bytes = self.superblock_block(copy);
                self.disk.write(self.layout.block_offset(copy), &bytes)?;
            }
            if self.bad_copies.contains(&area) {
                self.disk.write(self.layout.block_offset(area), &system)?;
            }
        }
        self.disk.barrier()?;
        let bytes = self.superblock_block(BlockNo(0));
        self.disk.write(0, &bytes)?;
        self.disk.sync()?;
        Ok(())
    }
}
