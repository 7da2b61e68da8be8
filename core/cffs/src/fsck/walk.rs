//! The walk of primary metadata, which cannot be recomputed (passes 1 and 2): its state, and functions for
//! both passes.

use std::collections::{BTreeSet, HashSet};

use super::claims::{Claims, Space};
use super::findings::{Findings, Losses};
use super::fix::Fix;
use super::inventory::Inventory;
use super::metadata::Metadata;
use super::records::MapCheck;
use super::scope::Scope;
use super::{CheckOptions, Progress};
use crate::units::{Container, InodeNo, SectorIndex};

/// A sector and the slot of an entry in it.
pub(super) type EntryPlace = (Container, u16);

/// The walk: it reads the metadata, builds the inventory, and records problems and repairs.
pub(super) struct Walk<'c> {
    pub meta: Metadata<'c>,
    pub findings: Findings,
    pub space: Space,
    pub losses: Losses,
    /// The scope of a fast check; `None` in a full check.
    pub scope: Option<Scope>,
    pub round: Round,
    /// The highest inode number that any search has seen: higher ones are free.
    pub number_max: u64,
    pub options: &'c CheckOptions,
    pub progress: &'c dyn Progress,
}

/// The findings of one round of the walk, except the inventory and the space in use.
#[derive(Default)]
pub(super) struct Round {
    pub locator: MapCheck,
    pub locator_size: u64,
    /// Repairs of primary metadata, to be made at the end of the pass.
    pub fixes: Vec<Fix>,
    /// Pairs of entries of one directory that have the same name.
    pub namesakes: Vec<(EntryPlace, EntryPlace)>,
    /// Entries that a repair removes.
    pub gone: HashSet<EntryPlace>,
    /// Intact sectors of containers that belong to other containers.
    pub misfits: BTreeSet<Container>,
    pub names: u64,
}

impl<'c> Walk<'c> {
    pub fn new(
        meta: Metadata<'c>,
        findings: Findings,
        options: &'c CheckOptions,
        progress: &'c dyn Progress,
    ) -> Walk<'c> {
        Walk {
            space: Space::new(meta.layout),
            meta,
            findings,
            losses: Losses::default(),
            scope: None,
            round: Round::default(),
            number_max: 0,
            options,
            progress,
        }
    }

    /// Forgets the findings of the last round. Findings, losses and changes of the metadata stay.
    pub fn start_round(&mut self) {
        self.round = Round::default();
        self.meta.inventory = Inventory::default();
        self.space.start_round(self.meta.layout);
        if let Some(scope) = &mut self.scope {
            scope.entered.clear();
        }
    }

    /// The invariants of a round's findings, for debug builds.
    pub fn check(&self) {
        self.meta.inventory.check();
        self.space.check();
        let entered = self.scope.iter().flat_map(|scope| &scope.entered);
        let is_listed =
            |ino: &InodeNo| self.scope.as_ref().is_some_and(|s| s.directories.contains(*ino));
        assert!(entered.into_iter().all(is_listed), "a fast check reads listed directories only");
        assert_eq!(
            self.scope.is_some(),
            self.meta.epoch_min.is_some(),
            "recovery has a least epoch"
        );
    }

    /// The part of the walk that records the space of files.
    pub fn claims(&mut self) -> Claims<'_, 'c> {
        Claims {
            meta: &mut self.meta,
            findings: &mut self.findings,
            space: &mut self.space,
            fixes: &mut self.round.fixes,
            options: self.options,
            progress: self.progress,
        }
    }
}

impl Walk<'_> {
    /// Whether the walk is that of a fast check.
    pub(super) fn is_fast(&self) -> bool {
        self.scope.is_some()
    }

    /// Whether only parts of the directory are read: then its index is recovered after the walk.
    pub(super) fn is_in_parts(&self, dir: InodeNo) -> bool {
        self.scope.as_ref().is_some_and(|scope| scope.directories.parts_of(dir).is_some())
    }

    /// Whether repairs were recorded that the walk's inventory cannot reflect.
    pub(super) fn has_late_fixes(&self) -> bool {
        self.round.fixes.iter().any(Fix::needs_round)
    }

    /// Removes a name with its embedded inode, but keeps the inode's claims.
    pub(super) fn drop_entry(&mut self, container: Container, slot: u16, is_directory: bool) {
        self.round.fixes.push(Fix::RemoveEntry { container, slot });
        self.round.gone.insert((container, slot));
        if container.file == InodeNo::EXTERNAL {
            return;
        }
        if self.scope.as_ref().is_some_and(|scope| !scope.is_listed(container)) {
            // Neither the counts nor the index of its directory would be corrected.
            self.findings.doubt(format!("a name in {container}, which did not change, is wrong"));
        }
        self.findings.touched.insert(container.file);
        self.round.names = self.round.names.saturating_sub(1);
        self.meta.inventory.count_entry(container.file, -1, if is_directory { -1 } else { 0 });
        if let Some(file) = self.meta.inventory.containers.get_mut(&container.file) {
            file.names_changed = true;
        }
    }

    /// Forgets an inode and frees what it claims. Its record has to be removed apart from this.
    pub(super) fn forget(&mut self, ino: InodeNo) {
        if let Some(record) = self.meta.load_record(ino) {
            self.claims().release_record(&record.as_record());
        }
        self.meta.inventory.remove(ino);
        self.meta.inventory.containers.remove(&ino);
    }

    /// Records the name of a file that is removed.
    pub(super) fn lose_entry(&mut self, container: Container, slot: u16) {
        if container.file == InodeNo::EXTERNAL {
            return;
        }
        if let Some(entry) = self.meta.load_entry(container, slot) {
            self.losses.names.insert(entry.ino, (container.file, entry.name));
        }
    }

    /// Removes blocks with sectors of other containers from a container, so that they are found as those of
    /// the others. If another sector of the block is in its place, the header of the misplaced one is wrong
    /// instead, and its contents stay. So do the contents of a sector of the external table with another
    /// number, since names refer to the inodes in it by its place.
    pub(super) fn let_misfits_go(&mut self) {
        let per_block = self.meta.layout.block_sectors();
        let misfits = std::mem::take(&mut self.round.misfits);
        let dirs: BTreeSet<InodeNo> = misfits.iter().map(|container| container.file).collect();
        for dir in dirs {
            let Some(file) = self.meta.inventory.containers.get(&dir) else { continue };
            let mut map = file.map.clone();
            let mut goes = false;
            for misfit in misfits.iter().filter(|container| container.file == dir) {
                let block = misfit.sector.0 / per_block;
                let sectors = block * per_block..(block + 1) * per_block;
                let mut sectors =
                    sectors.map(|sector| Container { file: dir, sector: SectorIndex(sector) });
                if self.meta.is_of_table(*misfit)
                    || sectors.any(|container| self.meta.is_in_place(container))
                {
                    self.round.fixes.push(Fix::RebuildSector(*misfit));
                } else {
                    self.meta.cut_block(&mut map, u64::from(block));
                    goes = true;
                }
            }
            if goes {
                self.round.fixes.push(Fix::SetMap(dir, map));
            }
        }
    }
}
