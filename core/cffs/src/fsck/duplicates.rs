//! Duplicates: an inode in two places, a name twice in one directory.
//!
//! A crash leaves both behind in the middle of a move or a replacement (DESIGN: epochs). The one that counts
//! is, in this order:
//!
//! 1. the inode with a linktag that names the other place, of two such the one of the later epoch;
//! 2. of a volume that was left clean, the place that the locator table names;
//! 3. the later generation of the inode number;
//! 4. the record in the sector that was written in the later epoch;
//! 5. the record in the external table;
//! 6. the one that was found first.

use std::cmp::Reverse;

use super::claims::fingerprint;
use super::fix::Fix;
use super::pass3::LocatorTable;
use super::records::{OwnedEntry, OwnedRecord};
use super::walk::Walk;
use super::{Code, Place};
use crate::format::inode::{FileType, LinkTagKind, Record};
use crate::units::{Container, InodeNo, SectorIndex};

/// One of two places.
struct Candidate<'a> {
    record: &'a OwnedRecord,
    container: Container,
    epoch: u64,
}

impl Candidate<'_> {
    /// The epoch in which the inode moved here from the other place.
    fn moved_from(&self, other: Container) -> Option<u64> {
        let from = |tag: &crate::format::inode::LinkTag| {
            tag.kind == LinkTagKind::MovedFrom && tag.place == other
        };
        self.record.link_tags().iter().filter(|tag| from(tag)).map(|tag| tag.epoch.0).max()
    }
}

/// Decides between two places of an inode, and between two entries of one name.
pub(super) struct Duplicates<'a, 'c> {
    pub walk: &'a mut Walk<'c>,
}

impl Duplicates<'_, '_> {
    /// A known inode was found again: decides which place counts.
    pub(super) fn second_place(
        &mut self,
        record: &Record<'_>,
        container: Container,
        slot: u16,
        epoch: u64,
    ) {
        let ino = record.inode.number();
        let Some(first) = self.walk.meta.inventory.get(ino).copied() else { return };
        let is_directory = record.inode.file_type() == Some(FileType::Directory);
        if is_directory && container.file != InodeNo::EXTERNAL {
            self.walk.meta.inventory.count_entry(container.file, 0, 1);
        }
        if is_directory && self.walk.meta.inventory.is_within(container.file, ino) {
            let message = format!("it refers back to directory {ino}");
            self.walk.findings.problem(Code::DirectoryLoop, Place::Entry(container, slot), message);
            self.walk.drop_entry(container, slot, true);
            return;
        }
        let second = OwnedRecord::new(record);
        let Some(entry) = self.walk.meta.load_entry(first.container, first.slot) else { return };
        let OwnedEntry { record: Some(known), epoch: known_epoch, .. } = entry else { return };
        let a = Candidate { record: &known, container: first.container, epoch: known_epoch };
        let b = Candidate { record: &second, container, epoch };
        // On a volume that was left clean, the locator table knows.
        let located = if self.walk.findings.was_clean() {
            (LocatorTable { walk: self.walk }).located(ino)
        } else {
            None
        };
        let rank = |one: &Candidate<'_>, other: &Candidate<'_>| {
            let generation = one.record.inode.generation.get();
            let is_external = one.container.file == InodeNo::EXTERNAL;
            let is_located = located == Some(one.container);
            (one.moved_from(other.container), is_located, generation, one.epoch, is_external)
        };
        let (rank_a, rank_b) = (rank(&a, &b), rank(&b, &a));
        let second_counts = rank_b > rank_a;
        let (loser, loser_slot) =
            if second_counts { (first.container, first.slot) } else { (container, slot) };
        let message = format!("it is in {} and in {container}", first.container);
        // A small sector with a long name has no room for the tag. Both places belong to the same file, which
        // was in each of them at some time.
        let same_file = a.record.inode.generation == b.record.inode.generation;
        if rank_a.0.is_some() || rank_b.0.is_some() || (self.walk.findings.crashed() && same_file) {
            self.walk.findings.expected(Code::TwoPlaces, Place::Inode(ino), message);
        } else {
            self.walk.findings.problem(Code::TwoPlaces, Place::Inode(ino), message);
        }
        if second_counts {
            self.move_found(ino, &known, &second, container, slot);
        }
        // The name of an inode that moved to the external table becomes a reference to it.
        let external = if second_counts { container } else { first.container };
        let winner_rank = if second_counts { rank_b.0 } else { rank_a.0 };
        if external.file == InodeNo::EXTERNAL
            && loser.file != InodeNo::EXTERNAL
            && winner_rank.is_some()
        {
            let sector: SectorIndex = external.sector;
            self.walk.round.fixes.push(Fix::ToReference {
                container: loser,
                slot: loser_slot,
                ino,
                sector,
            });
            let reference = super::inventory::Reference { ino, container: loser, slot: loser_slot };
            self.walk.meta.inventory.references.push(reference);
            if let Some(found) = self.walk.meta.inventory.get_mut(ino) {
                found.references += 1;
            }
            if is_directory {
                // Its sectors are read when a name that refers to it is found.
                self.walk.round.fixes.push(Fix::Again);
            }
        } else {
            self.walk.drop_entry(loser, loser_slot, is_directory);
        }
    }

    /// The second place counts, so the inventory is set to it.
    fn move_found(
        &mut self,
        ino: InodeNo,
        known: &OwnedRecord,
        second: &OwnedRecord,
        container: Container,
        slot: u16,
    ) {
        let record = second.as_record();
        let same_space = fingerprint(&known.as_record()) == fingerprint(&record)
            && known.inode.size == second.inode.size
            && known.inode.fragments == second.inode.fragments;
        let is_directory = record.inode.file_type() == Some(FileType::Directory);
        let same_type = known.inode.file_type() == second.inode.file_type();
        if !same_type || !same_space && is_directory {
            // Its sectors may already be queued by the wrong map, and its names compared with the wrong type.
            self.walk.round.fixes.push(Fix::Again);
        } else if !same_space {
            self.walk.claims().release_record(&known.as_record());
            self.walk.claim_record(&record, container.file);
        }
        if !is_directory {
            // Data that was read by its number may belong to another inode.
            self.walk.meta.inventory.containers.remove(&ino);
        }
        if let Some(file) = self.walk.meta.inventory.containers.get_mut(&ino) {
            file.parent = container.file;
            file.recorded_entries = record.inode.entries();
        }
        if let Some(found) = self.walk.meta.inventory.get_mut(ino) {
            found.container = container;
            found.slot = slot;
            found.generation = record.inode.generation.get();
            found.file_type = record.inode.file_type().unwrap_or(found.file_type);
            found.nlink = record.inode.nlink.get();
            found.fingerprint = fingerprint(&record);
            found.parent = InodeNo(record.inode.parent.get());
        }
    }

    /// Finds the names that a directory has twice; they wait until the walk is complete, since one of the two
    /// may be removed for another reason.
    pub(super) fn find_namesakes(&mut self, dir: InodeNo, names: &[(u32, u32, u16)]) {
        for group in names.chunk_by(|a, b| a.0 == b.0).filter(|group| group.len() > 1) {
            let mut known: Vec<(Vec<u8>, Container, u16)> = Vec::new();
            for (_, sector, slot) in group {
                let container = Container { file: dir, sector: SectorIndex(*sector) };
                let Some(entry) = self.walk.meta.load_entry(container, *slot) else { continue };
                if let Some((_, other, other_slot)) =
                    known.iter().find(|(name, ..)| *name == entry.name)
                {
                    let pair = ((*other, *other_slot), (container, *slot));
                    self.walk.round.namesakes.push(pair);
                }
                known.push((entry.name, container, *slot));
            }
        }
    }

    /// Decides between entries of one name.
    pub(super) fn settle_namesakes(&mut self) {
        for (first, second) in std::mem::take(&mut self.walk.round.namesakes) {
            if self.walk.round.gone.contains(&first) || self.walk.round.gone.contains(&second) {
                continue;
            }
            let place = Place::Entry(second.0, second.1);
            let message = format!("entry {} of {} has the same name", first.1, first.0);
            self.walk.findings.expected(Code::NameTwice, place, message);
            let ranks = [
                self.name_rank(first.0, first.1, second.0),
                self.name_rank(second.0, second.1, first.0),
            ];
            let loser = if ranks[1] >= ranks[0] { first } else { second };
            self.lose_name(loser.0, loser.1);
        }
    }

    /// The newest is the greatest: by the tag that records a replacement in the other place, by the
    /// latest linktag, by the sector, by the inode's creation.
    fn name_rank(&mut self, container: Container, slot: u16, other: Container) -> impl Ord + use<> {
        let entry = self.walk.meta.load_entry(container, slot);
        let epoch = entry.as_ref().map(|entry| entry.epoch);
        let record = match entry {
            Some(OwnedEntry { record: Some(record), .. }) => Some(record),
            Some(OwnedEntry { ino, .. }) => self.walk.meta.load_record(ino),
            None => None,
        };
        let replaced = record.as_ref().and_then(|record| {
            let tags = record.link_tags();
            let here = |tag: &&crate::format::inode::LinkTag| {
                tag.kind == LinkTagKind::Replaced && tag.place == other
            };
            tags.iter().filter(here).map(|tag| tag.epoch.0).max()
        });
        let tag = record.as_ref().and_then(|r| r.link_tags().iter().map(|tag| tag.epoch.0).max());
        let born = record.map(|record| record.inode.btime());
        (replaced, tag, epoch, born, Reverse(container.sector), slot)
    }

    /// Removes the name of a file that lost it to another one. After a crash the file was replaced; otherwise
    /// it is a user's file and goes to lost+found.
    fn lose_name(&mut self, container: Container, slot: u16) {
        let Some(entry) = self.walk.meta.load_entry(container, slot) else { return };
        let Some(found) = self.walk.meta.inventory.get(entry.ino).copied() else { return };
        let is_directory = found.file_type == FileType::Directory;
        if entry.record.is_none() {
            self.walk.drop_entry(container, slot, is_directory);
            self.walk
                .meta
                .inventory
                .references
                .retain(|r| (r.container, r.slot) != (container, slot));
            if let Some(found) = self.walk.meta.inventory.get_mut(entry.ino) {
                found.references -= 1;
            }
            return;
        }
        let is_read =
            self.walk.scope.as_ref().is_none_or(|scope| scope.entered.contains(&entry.ino));
        let file = self.walk.meta.inventory.containers.get(&entry.ino);
        let is_empty =
            file.is_none_or(|file| if is_read { file.entries } else { file.recorded_entries } == 0);
        if self.walk.findings.crashed() && is_empty {
            self.walk.forget(entry.ino);
            self.walk.drop_entry(container, slot, is_directory);
        } else {
            if self.walk.is_fast() {
                return self.walk.findings.doubt(format!("inode {} has lost its name", entry.ino));
            }
            self.walk.round.fixes.push(Fix::Reconnect(entry.ino));
        }
    }
}
