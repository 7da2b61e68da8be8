//! The search for directories whose inodes are lost.
//!
//! When a sector is lost, so are the inodes in it; but the sectors of the directories among them still exist,
//! and each names its owner. The locator table knows which inodes the lost sector had. The search covers the
//! space that the walk did not reach and the bitmaps call used; if the bitmaps cannot be trusted, all space
//! that the walk did not reach. Of the directories that it finds, only those that no other contains get a
//! name in lost+found: the others come with them.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::fix::{Fix, Patch};
use super::inventory::pieces;
use super::walk::Walk;
use super::{Code, Phase, Place};
use crate::format::cylinder_group::{CgHeader, bitmap_checksum};
use crate::format::extent::Extent;
use crate::format::{locator, sector};
use crate::printable::counted;
use crate::units::{CgIndex, Container, FragNo, FragRun, InodeNo, SectorIndex};

/// The bytes that are read at once.
const STEP_BYTES: u64 = 1 << 20;

/// Blocks of a directory that were found: the block of the file, where it is, and the epoch in
/// which it was written.
pub(super) type Blocks = BTreeMap<u64, (FragNo, u64)>;

/// Missing inodes: the place of each in the locator table, if known, and its generation.
pub(super) type Missing = HashMap<InodeNo, Option<(Container, u32)>>;

/// The owners of the sectors to search for.
pub(super) enum Wanted {
    /// Those of these containers.
    Missing(Missing),
    /// The sectors of all directories that the walk did not reach, or that lack some.
    Unknown,
}

/// The searches of all rounds so far. Each search, and each repair by one, is tried once.
#[derive(Default)]
pub(super) struct Tried {
    /// Whether blocks that an old copy of the system area lacks were searched for.
    pub system_searched: bool,
    /// Whether the whole device was searched.
    pub salvaged: bool,
    /// Lost directories that got a new inode, or for which there was no space.
    pub resurrected: HashSet<InodeNo>,
    /// Directories to which a search returned lost sectors.
    pub completed: HashSet<InodeNo>,
}

/// Searches for directories that nothing refers to, and lists losses.
pub(super) struct Search<'a, 'c> {
    pub walk: &'a mut Walk<'c>,
    pub tried: &'a mut Tried,
}

impl Search<'_, '_> {
    /// After damage, or if inodes are missing: searches for directories that the walk did not reach.
    pub(super) fn search_lost(&mut self) {
        if self.walk.options.salvage {
            return self.salvage();
        }
        let users = self.walk.meta.inventory.users().count() as u64;
        let has_fewer = self.walk.findings.was_clean() && users < self.walk.meta.superblock.inodes;
        if !self.walk.findings.is_damaged() && !has_fewer {
            return;
        }
        let mut missing = self.missing_inodes();
        if missing.is_empty() && self.walk.losses.incomplete.is_empty() {
            return;
        }
        let homes: HashMap<InodeNo, InodeNo> = missing
            .iter()
            .filter_map(|(ino, place)| place.map(|(container, _)| (*ino, container.file)))
            .collect();
        missing.extend(self.walk.losses.incomplete.iter().map(|ino| (*ino, None)));
        let found = self.search_sectors(&Wanted::Missing(missing));
        for (ino, (generation, blocks)) in &found {
            let comes_with_other = homes.get(ino).is_some_and(|home| found.contains_key(home));
            if self.walk.meta.inventory.get(*ino).is_some() {
                self.complete_directory(*ino, *generation, blocks);
            } else if !comes_with_other {
                self.take_lost_directory(*ino, *generation, blocks);
            }
        }
    }

    /// Records that the directory with these blocks gets an inode and a name; only once.
    pub(super) fn take_lost_directory(&mut self, ino: InodeNo, generation: u32, blocks: &Blocks) {
        if !self.tried.resurrected.insert(ino) {
            return;
        }
        let blocks_found = counted(blocks.len() as u64, "block");
        let message = format!(
            "the inode of this directory is lost, but {blocks_found} with its entries could be found"
        );
        self.walk.findings.problem(Code::LostDirectory, Place::Inode(ino), message);
        let extents = self.claim_found(blocks, 0);
        self.walk.round.fixes.push(Fix::Resurrect { ino, generation, extents });
    }

    /// Returns found sectors to a directory that lacks them; only once.
    pub(super) fn complete_directory(&mut self, ino: InodeNo, generation: u32, blocks: &Blocks) {
        let layout = self.walk.meta.layout;
        let Some(file) = self.walk.meta.inventory.containers.get(&ino).cloned() else { return };
        if !self.tried.completed.insert(ino) {
            return;
        }
        let per_block = layout.block_sectors();
        let fragments = layout.block_fragments();
        let (mut map, mut end, mut count) = (file.map, 0, 0);
        for (block, (start, _)) in blocks {
            let first = *block as u32 * per_block;
            let is_held = first < file.sectors
                && (first..first + per_block).map(SectorIndex).any(|sector| {
                    !self.walk.losses.sectors.contains(&Container { file: ino, sector })
                });
            if is_held || !self.walk.space.used.claim_free(FragRun::new(*start, fragments)) {
                continue;
            }
            self.walk.meta.cut_block(&mut map, *block);
            let logical = block * u64::from(fragments);
            let extent = Extent::new(logical, FragRun::new(*start, fragments));
            map.insert(map.partition_point(|other| other.logical < logical), extent);
            end = extent.logical_end() * u64::from(layout.fragment_bytes);
            count += 1;
        }
        if count > 0 {
            let blocks = counted(count, "block");
            let message = format!("found {blocks} of it that its inode does not point to");
            self.walk.findings.problem(Code::LostBlocks, Place::Inode(ino), message);
            let generation = (generation != file.generation).then_some(generation);
            let patch = Patch { size_min: Some(end), generation, ..Patch::default() };
            self.walk.round.fixes.push(Fix::SetMap(ino, map));
            self.walk.round.fixes.push(Fix::Patch(ino, patch));
        }
    }

    /// If the system area was lost: looks, once, for blocks of the root directory and the external
    /// table that a copy does not know. True if some were found.
    pub(super) fn search_system(&mut self) -> bool {
        let is_lost =
            |problem: &super::Problem| matches!(problem.code, Code::SystemArea | Code::SystemInode);
        if self.tried.system_searched || !self.walk.findings.report.problems.iter().any(is_lost) {
            return false;
        }
        self.tried.system_searched = true;
        let missing = Missing::from([(InodeNo::ROOT, None), (InodeNo::EXTERNAL, None)]);
        for (ino, (_, blocks)) in self.search_sectors(&Wanted::Missing(missing)) {
            self.extend_system(ino, &blocks);
        }
        !self.walk.round.fixes.is_empty()
    }

    /// The inodes that are in the locator table but were not found by the walk.
    pub(super) fn missing_inodes(&mut self) -> Missing {
        let layout = self.walk.meta.layout;
        let len = u64::from(layout.block_bytes);
        let per_block = locator::entries_per_block(layout.block_bytes);
        let fragments = u64::from(layout.block_fragments());
        let map = self.walk.round.locator.extents.clone();
        let mut missing = Missing::new();
        let mut homes = HashSet::new();
        for block in map.iter().flat_map(|e| e.logical / fragments..e.logical_end() / fragments) {
            let bytes =
                self.walk.meta.disk.read_many(&pieces(&map, block * len, len, &layout)).concat();
            if bytes.len() as u64 != len
                || locator::verify(&bytes, block, self.walk.meta.checksum).is_err()
            {
                continue;
            }
            for position in 0..per_block {
                let ino = InodeNo(block * u64::from(per_block) + u64::from(position));
                let entry = locator::get(&bytes, position as usize);
                let Some(container) = entry.container else { continue };
                self.walk.number_max = self.walk.number_max.max(ino.0);
                if !ino.is_system() && self.walk.meta.inventory.get(ino).is_none() {
                    missing.insert(ino, Some((container, entry.generation)));
                }
                homes.insert(container.file);
            }
        }
        if self.walk.findings.was_clean() {
            let is_known = |home: &InodeNo| self.walk.meta.inventory.containers.contains_key(home);
            for home in homes.into_iter().filter(|home| !home.is_system() && !is_known(home)) {
                missing.entry(home).or_insert(None);
            }
            return missing;
        }
        self.below_lost(missing)
    }

    /// The missing inodes that a lost sector had, and those in directories among them. After a crash the
    /// others may just have been removed, and are still in the table.
    fn below_lost(&self, mut missing: Missing) -> Missing {
        let mut kept = Missing::new();
        loop {
            let is_lost = |entry: &Option<(Container, u32)>| {
                entry.is_some_and(|(container, _)| {
                    self.walk.losses.sectors.contains(&container)
                        || kept.contains_key(&container.file)
                })
            };
            let more: Vec<InodeNo> =
                missing.iter().filter(|(_, entry)| is_lost(entry)).map(|(ino, _)| *ino).collect();
            if more.is_empty() {
                return kept;
            }
            for ino in more {
                kept.insert(ino, missing.remove(&ino).flatten());
            }
        }
    }

    /// The sectors that are wanted in the space that nothing claims: by owner, the generation and
    /// the blocks.
    pub(super) fn search_sectors(&mut self, wanted: &Wanted) -> BTreeMap<InodeNo, (u32, Blocks)> {
        let mut found: BTreeMap<(InodeNo, u32), Blocks> = BTreeMap::new();
        let groups = self.walk.meta.superblock.cgs_made;
        for cg in (0..groups).map(CgIndex) {
            self.walk.progress.report(Phase::Search, cg.0.into(), groups.into());
            for run in self.unreached(cg) {
                self.search_run(run, wanted, &mut found);
            }
        }
        let mut by_owner: BTreeMap<InodeNo, (u32, Blocks)> = BTreeMap::new();
        for ((ino, generation), blocks) in found {
            let newest = |blocks: &Blocks| blocks.values().map(|(_, epoch)| *epoch).max();
            match by_owner.get(&ino) {
                Some((_, other)) if newest(other) >= newest(&blocks) => {}
                _ => {
                    by_owner.insert(ino, (generation, blocks));
                }
            }
        }
        by_owner
    }

    /// Runs of a group that the walk did not reach and that are not known to be free; for a salvage, also
    /// free ones.
    fn unreached(&mut self, cg: CgIndex) -> Vec<FragRun> {
        let layout = self.walk.meta.layout;
        let mut bits = self.walk.space.used.free_bitmap(cg);
        if self.walk.findings.was_clean()
            && !self.walk.options.salvage
            && let Some(old) = self.good_bitmap(cg)
        {
            bits.iter_mut().zip(old).for_each(|(bit, old)| *bit &= !old);
        }
        let start = layout.block_start(layout.cg_start(cg));
        let mut runs: Vec<FragRun> = Vec::new();
        for bit in 0..layout.cg_fragments(cg) {
            if bits[bit as usize / 8] >> (bit % 8) & 1 == 0 {
                continue;
            }
            let fragment = FragNo(start.0 + u64::from(bit));
            match runs.last_mut() {
                Some(run) if run.end() == fragment => run.len += 1,
                _ => runs.push(FragRun::new(fragment, 1)),
            }
        }
        runs
    }

    fn good_bitmap(&mut self, cg: CgIndex) -> Option<Vec<u8>> {
        let layout = self.walk.meta.layout;
        let block = layout.block_bytes as usize;
        let offset = layout.block_offset(layout.cg_header(cg));
        let bytes = self.walk.meta.disk.read(offset, block * (1 + layout.bitmap_blocks() as usize));
        let (head, bitmap) = bytes.split_at(block);
        let header = CgHeader::decode(head, cg, self.walk.meta.checksum).ok()?;
        (header.bitmap_checksum == bitmap_checksum(bitmap)).then(|| bitmap.to_vec())
    }

    fn search_run(
        &mut self,
        run: FragRun,
        wanted: &Wanted,
        found: &mut BTreeMap<(InodeNo, u32), Blocks>,
    ) {
        let layout = self.walk.meta.layout;
        let whole = self.walk.meta.run_place(run);
        let sector = u64::from(layout.sector_bytes);
        let step = sector.min(layout.fragment_bytes.into());
        let end = whole.offset + whole.len as u64;
        let mut from = whole.offset;
        while from + sector <= end {
            // A sector that begins within this step may end after it.
            let len = (STEP_BYTES + sector - step).min(end - from);
            let bytes = self.walk.meta.disk.read(from, len as usize);
            let last = len.saturating_sub(sector).min(STEP_BYTES - step);
            for at in (0..=last).step_by(step as usize) {
                let image = &bytes[at as usize..(at + sector) as usize];
                self.look_at(from + at, image, wanted, found);
            }
            from += STEP_BYTES;
        }
    }

    fn look_at(
        &self,
        offset: u64,
        image: &[u8],
        wanted: &Wanted,
        found: &mut BTreeMap<(InodeNo, u32), Blocks>,
    ) {
        let layout = self.walk.meta.layout;
        let Some((container, generation)) = self.walk.meta.identify(image) else { return };
        let file = container.file;
        let is_wanted = match wanted {
            Wanted::Missing(missing) => missing.get(&file).is_some_and(|place| {
                place.is_none_or(|(_, wanted_generation)| wanted_generation == generation)
            }),
            Wanted::Unknown => {
                !file.is_system() && self.walk.meta.inventory.get(file).is_none()
                    || self.walk.losses.incomplete.contains(&file)
            }
        };
        let per_block = layout.block_sectors();
        let within = container.sector.0 % per_block * layout.sector_bytes;
        let fragment = u64::from(layout.fragment_bytes);
        let Some(start) = offset.checked_sub(within.into()) else { return };
        // Directories consist of whole blocks, so a sector at any other place is not genuine.
        if !is_wanted || !start.is_multiple_of(layout.block_bytes.into()) {
            return;
        }
        let start = FragNo(start / fragment);
        if !layout.is_allocatable(start, layout.block_fragments()) {
            return;
        }
        let epoch = sector::Sector::new(image).epoch().0;
        let block = u64::from(container.sector.0 / per_block);
        let blocks = found.entry((container.file, generation)).or_default();
        let newest = blocks.entry(block).or_insert((start, epoch));
        if epoch > newest.1 {
            *newest = (start, epoch);
        }
    }

    /// Claims the otherwise unclaimed blocks from `first` on.
    fn claim_found(&mut self, blocks: &Blocks, first: u64) -> Vec<Extent> {
        let len = self.walk.meta.layout.block_fragments();
        let mut extents = Vec::new();
        for (block, (start, _)) in blocks.range(first..) {
            if self.walk.space.used.claim_free(FragRun::new(*start, len)) {
                let logical = block * u64::from(len);
                extents.push(Extent::new(logical, FragRun::new(*start, len)));
            }
        }
        extents
    }

    /// Gives the root directory or the external table, restored from an old copy or made again, the
    /// blocks that the copy did not know.
    fn extend_system(&mut self, ino: InodeNo, blocks: &Blocks) {
        let layout = self.walk.meta.layout;
        let Some(file) = self.walk.meta.inventory.containers.get(&ino).cloned() else { return };
        let known = u64::from(file.sectors / layout.block_sectors());
        let mut extents = self.claim_found(blocks, known);
        if let Some(last) = extents.last() {
            let end = last.logical_end() * u64::from(layout.fragment_bytes);
            extents.splice(0..0, file.map);
            extents.sort_by_key(|extent| extent.logical);
            let patch = Patch { size_min: Some(end), ..Patch::default() };
            self.walk.round.fixes.push(Fix::Patch(ino, patch));
            self.walk.round.fixes.push(Fix::SetMap(ino, extents));
        }
    }
}
