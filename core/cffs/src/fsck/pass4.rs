//! Pass 4: bitmaps, group headers and the superblock's counters; then the volume is clean.

use super::claims::Space;
use super::disk::Place as DiskPlace;
use super::findings::Findings;
use super::metadata::Metadata;
use super::{Code, Phase, Place, Progress};
use crate::error::{Corruption, Result};
use crate::format::cylinder_group::{CgHeader, bitmap_checksum, clusters_in};
use crate::printable::counted;
use crate::units::CgIndex;

/// Groups whose bitmaps are read at once.
const BATCH_GROUPS: u32 = 64;

/// Holds bitmaps and counters against the space in use.
pub(super) struct Bitmaps<'a, 'c> {
    pub meta: &'a mut Metadata<'c>,
    pub findings: &'a mut Findings,
    pub space: &'a Space,
    pub progress: &'a dyn Progress,
}

impl Bitmaps<'_, '_> {
    pub(super) fn pass4(&mut self, may_write: bool) -> Result<()> {
        let layout = self.meta.layout;
        let made = self.meta.superblock.cgs_made;
        let needed = self.space.used.last_cg().map_or(0, |cg| cg.0 + 1).max(1);
        if needed > made {
            let made = counted(made.into(), "group");
            let message = format!("it records {made}, but group {} is in use", needed - 1);
            self.findings.derived(Code::GroupsMade, Place::Volume, message);
            self.meta.superblock.cgs_made = needed;
        }
        for first in (0..made.max(needed)).step_by(BATCH_GROUPS as usize) {
            let groups: Vec<CgIndex> =
                (first..made.max(needed).min(first + BATCH_GROUPS)).map(CgIndex).collect();
            let blocks = 1 + layout.bitmap_blocks() + layout.count_blocks;
            let places: Vec<DiskPlace> = groups
                .iter()
                .map(|cg| DiskPlace {
                    offset: layout.block_offset(layout.cg_header(*cg)),
                    len: (blocks * layout.block_bytes) as usize,
                })
                .collect();
            let blobs = self.meta.disk.read_many(&places);
            for ((cg, place), bytes) in groups.iter().zip(&places).zip(blobs) {
                if cg.0 < made && self.findings.was_clean() {
                    self.check_bytes(*cg, *place, &bytes);
                }
                if let Some(bytes) = self.check_group(*cg, &bytes, cg.0 < made)
                    && may_write
                {
                    self.meta.disk.write(place.offset, &bytes)?;
                }
            }
            self.progress.report(Phase::Bitmaps, first.into(), made.max(needed).into());
        }
        self.check_counters();
        Ok(())
    }

    /// Checks that a group's header and bitmap match their own checksums.
    fn check_bytes(&mut self, cg: CgIndex, place: DiskPlace, bytes: &[u8]) {
        let (head, rest) = bytes.split_at(self.meta.layout.block_bytes as usize);
        let bitmap =
            &rest[..(self.meta.layout.bitmap_blocks() * self.meta.layout.block_bytes) as usize];
        let error = match CgHeader::decode(head, cg, self.meta.checksum) {
            Ok(header) if header.bitmap_checksum == bitmap_checksum(bitmap) => return,
            Ok(_) => Corruption::CgBitmap { cg },
            Err(error) => error,
        };
        self.meta.disk.contradict(&[place], &error);
    }

    /// Compares a group's header and bitmap with the findings; returns their correct bytes if they differ.
    fn check_group(&mut self, cg: CgIndex, bytes: &[u8], is_made: bool) -> Option<Vec<u8>> {
        let layout = self.meta.layout;
        let (head, rest) = bytes.split_at(layout.block_bytes as usize);
        let (disk_bitmap, disk_counts) =
            rest.split_at((layout.bitmap_blocks() * layout.block_bytes) as usize);
        let counts = self.space.used.references(cg);
        let clusters = clusters_in(&counts);
        let bitmap = self.space.used.free_bitmap(cg);
        let free = bitmap.iter().map(|byte| byte.count_ones()).sum();
        let mut header = CgHeader {
            cg,
            free_fragments: free,
            rotor: 0,
            bitmap_checksum: bitmap_checksum(&bitmap),
            // Not of the checkpoint from which the intent log continues.
            generation: self.meta.superblock.generation.wrapping_add(1),
            clusters,
            counts_checksum: bitmap_checksum(&counts),
        };
        let place = Place::Cg(cg);
        let mut is_wrong = !is_made;
        match CgHeader::decode(head, cg, self.meta.checksum) {
            Ok(old) => {
                header.rotor = if old.rotor < layout.cg_fragments(cg) { old.rotor } else { 0 };
                if is_made
                    && (old.bitmap_checksum != header.bitmap_checksum || bitmap != disk_bitmap)
                {
                    let differ = disk_bitmap.iter().zip(&bitmap).map(|(a, b)| (a ^ b).count_ones());
                    let differ = counted(differ.sum::<u32>().into(), "fragment");
                    let message = format!("it is wrong for {differ}");
                    self.findings.derived(Code::Bitmap, place, message);
                    is_wrong = true;
                } else if is_made && old.free_fragments != free {
                    let (old, free) = (old.free_fragments.into(), free.into());
                    let [old, free] = [old, free].map(|count| counted(count, "free fragment"));
                    let message = format!("it records {old}, and has {free}");
                    self.findings.derived(Code::FreeCount, place, message);
                    is_wrong = true;
                }
                let has_counts = (old.clusters, old.counts_checksum)
                    == (clusters, header.counts_checksum)
                    && disk_counts == counts;
                if is_made && !has_counts {
                    let clusters = counted(clusters.into(), "cluster");
                    let message = format!("the references to its {clusters} are counted wrong");
                    self.findings.derived(Code::ClusterReferences, place, message);
                    is_wrong = true;
                }
            }
            Err(error) if is_made => {
                self.findings.derived(Code::GroupHeader, place, error.to_string());
                is_wrong = true;
            }
            Err(_) => {}
        }
        is_wrong.then(|| {
            let mut right = vec![0; head.len()];
            header.encode_into(&mut right, self.meta.checksum);
            right.extend_from_slice(&bitmap);
            right.extend_from_slice(&counts);
            right
        })
    }

    fn check_counters(&mut self) {
        let free = self.meta.layout.allocatable_fragments().saturating_sub(self.space.used.total());
        let inodes = self.meta.inventory.users().count() as u64;
        let own = &self.meta.superblock;
        let is_right = own.free_fragments == free
            && own.inodes == inodes
            && own.epoch >= self.meta.inventory.epoch_max;
        if !is_right {
            let message = format!(
                "it records {}, {}, epoch {}; the volume has {free}, {inodes}, {}",
                counted(own.free_fragments, "free fragment"),
                counted(own.inodes, "inode"),
                own.epoch,
                self.meta.inventory.epoch_max
            );
            self.findings.derived(Code::Counters, Place::Volume, message);
        }
        self.meta.superblock.free_fragments = free;
        self.meta.superblock.inodes = inodes;
        self.meta.superblock.epoch = self.meta.superblock.epoch.max(self.meta.inventory.epoch_max);
        // A volume is consistent although contents of its files are lost.
        let is_left = |code: Code| code.is_final() && code != Code::ContentsLost;
        self.findings.report.consistent =
            !self.findings.report.problems.iter().any(|problem| is_left(problem.code));
    }
}
