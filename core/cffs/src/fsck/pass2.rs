//! Pass 2: names and inodes, link counts, counts of directories.

use std::collections::HashMap;

use super::fix::{Fix, Patch};
use super::interrupted_renames::InterruptedRenames;
use super::inventory::{Found, Reference};
use super::scope::Scope;
use super::walk::Walk;
use super::{Code, Phase, Place};
use crate::format::inode::FileType;
use crate::format::superblock::RoCompat;
use crate::printable::counted;
use crate::units::InodeNo;

impl Walk<'_> {
    pub(super) fn pass2(&mut self) {
        if self.findings.crashed() {
            if (InterruptedRenames { walk: self }).complete_exchanges() {
                return;
            }
            InterruptedRenames { walk: self }.complete_renames();
        }
        self.check_directory_names();
        let inodes: Vec<InodeNo> =
            self.meta.inventory.inodes.iter().map(|found| found.ino).collect();
        let total = inodes.len() as u64;
        for (done, ino) in inodes.into_iter().enumerate() {
            if done.is_multiple_of(1 << 14) {
                self.progress.report(Phase::Links, done as u64, total);
            }
            let Some(found) = self.meta.inventory.get(ino).copied() else { continue };
            if ino == InodeNo::LOCATOR || ino == InodeNo::EXTERNAL {
                continue;
            }
            if found.is_external() && found.references == 0 {
                self.settle_nameless(&found);
            } else {
                self.check_counts(&found);
            }
        }
        self.follow_names();
    }

    /// Leaves one name to a directory of the external table that has several.
    fn check_directory_names(&mut self) {
        let mut spare: Vec<Reference> = Vec::new();
        for reference in &self.meta.inventory.references {
            let found = self.meta.inventory.get(reference.ino);
            if found.is_some_and(|f| f.file_type == FileType::Directory && f.references > 1) {
                spare.push(*reference);
            }
        }
        spare.sort_by_key(|reference| reference.ino);
        for names in spare.chunk_by(|a, b| a.ino == b.ino) {
            let ino = names[0].ino;
            // The record in the external table names the place that the last move left.
            let left: Vec<_> = self.meta.load_record(ino).map_or(Vec::new(), |record| {
                let mut tags = record.link_tags();
                tags.sort_by_key(|tag| tag.epoch);
                tags.into_iter().map(|tag| tag.place).collect()
            });
            let parent = self.meta.inventory.get(ino).map(|found| found.parent);
            let reachable = |r: &&Reference| !self.meta.inventory.is_within(r.container.file, ino);
            let keep = names
                .iter()
                .filter(reachable)
                .max_by_key(|r| (!left.contains(&r.container), Some(r.container.file) == parent))
                .copied();
            let Some(keep) = keep else { continue };
            for name in names
                .iter()
                .filter(|name| name.container != keep.container || name.slot != keep.slot)
            {
                let place = Place::Entry(name.container, name.slot);
                let message = format!("directory {ino} has another name in {}", keep.container);
                self.findings.expected(Code::DirectoryNames, place, message);
                self.drop_entry(name.container, name.slot, false);
            }
            self.take_only_name(ino, keep);
        }
    }

    fn take_only_name(&mut self, ino: InodeNo, keep: Reference) {
        let parent = keep.container.file;
        let before = match self.meta.inventory.containers.get_mut(&ino) {
            Some(file) => std::mem::replace(&mut file.parent, parent),
            None => return,
        };
        if before != parent {
            self.meta.inventory.count_entry(before, 0, -1);
            self.meta.inventory.count_entry(parent, 0, 1);
        }
        self.meta.inventory.references.retain(|reference| reference.ino != ino);
        self.meta.inventory.references.push(keep);
        if let Some(found) = self.meta.inventory.get_mut(ino) {
            found.references = 1;
        }
    }

    /// An inode of the external table without a name: freed if it was being made or removed when the volume
    /// crashed, saved otherwise.
    fn settle_nameless(&mut self, found: &Found) {
        let is_damaged = !self.losses.sectors.is_empty() || self.findings.is_damaged();
        let in_motion = self.findings.crashed() && !is_damaged;
        let message = format!("no name refers to it; its link count is {}", found.nlink);
        self.findings.expected(Code::Nameless, Place::Inode(found.ino), message);
        let is_empty = self
            .meta
            .inventory
            .containers
            .get(&found.ino)
            .is_none_or(|file| file.recorded_entries == 0);
        let was_there = self.scope.as_ref().is_some_and(|scope| scope.had_names(found));
        if was_there && found.file_type == FileType::Directory && !is_empty {
            // Files below it may have no other name, and were not examined. Files below a new directory are
            // new, or still have their old names.
            return self.findings.doubt(format!("directory {} has lost its name", found.ino));
        }
        if in_motion || found.nlink == 0 || (found.file_type == FileType::Directory && is_empty) {
            self.forget(found.ino);
            self.drop_entry(found.container, found.slot, false);
        } else {
            self.round.fixes.push(Fix::Reconnect(found.ino));
        }
    }

    fn check_counts(&mut self, found: &Found) {
        let ino = found.ino;
        let mut patch = Patch::default();
        let Some(file) = self.meta.inventory.containers.get(&ino).cloned() else {
            let names = if found.is_external() { found.references } else { 1 };
            if found.nlink != names {
                let names_found = counted(names.into(), "name");
                let message = format!("its link count is {}, it has {names_found}", found.nlink);
                self.findings.counted(Code::LinkCount, ino, message);
                patch.nlink = Some(names);
            }
            if !found.is_external() && found.parent != found.container.file {
                let message =
                    format!("its parent is {}, its name {}", found.parent, found.container);
                self.findings.counted(Code::Parent, ino, message);
                patch.parent = Some(found.container.file);
            }
            return self.push_patch(ino, patch);
        };
        let nlink = file.subdirectories.saturating_add(2);
        let is_read = self.scope.as_ref().is_none_or(|scope| scope.entered.contains(&ino));
        if !is_read {
            // Its names and those below are as they were.
        } else if found.nlink != nlink || file.recorded_entries != file.entries {
            let message = format!(
                "it records {} and {}, and has {nlink} and {}",
                counted(found.nlink.into(), "link"),
                counted(file.recorded_entries.into(), "entry"),
                file.entries
            );
            self.findings.counted(Code::DirectoryCounts, ino, message);
            patch.nlink = Some(nlink);
            patch.entries = Some(file.entries);
        }
        // Names are made durable without their directory's times.
        if is_read
            && self.findings.crashed()
            && (patch.entries.is_some() || file.youngest > file.changed)
        {
            patch.changed_by = Some(file.youngest);
        }
        if ino != InodeNo::ROOT && found.parent != file.parent {
            let message = format!("its parent is {}, its name in {}", found.parent, file.parent);
            self.findings.counted(Code::Parent, ino, message);
            patch.parent = Some(file.parent);
        }
        if file.indexed && file.names_changed && !self.is_in_parts(ino) {
            self.round.fixes.push(Fix::DropIndex(ino));
        }
        self.push_patch(ino, patch);
    }

    /// Gives files of the external table one of the directories with their names as the parent, which decides
    /// about their quota: a crash may have separated the two.
    fn follow_names(&mut self) {
        let inventory = &self.meta.inventory;
        let quotas = self.meta.superblock.ro_compat.contains(RoCompat::QUOTAS);
        if !quotas || !self.findings.crashed() {
            return;
        }
        let mut astray: HashMap<InodeNo, Option<InodeNo>> = HashMap::new();
        for name in &inventory.references {
            let Some(found) = inventory.get(name.ino) else { continue };
            let dir = name.container.file;
            // The names in a directory that did not change are as they were.
            let is_read = |scope: &Scope| scope.entered.contains(&found.parent);
            if self.scope.as_ref().is_some_and(|scope| !is_read(scope)) {
                continue;
            }
            if found.file_type != FileType::Directory {
                let wanted = astray.entry(name.ino).or_insert(Some(dir));
                *wanted = wanted.filter(|_| dir != found.parent);
            }
        }
        for (ino, dir) in astray {
            self.push_patch(ino, Patch { parent: dir, ..Patch::default() });
        }
    }

    fn push_patch(&mut self, ino: InodeNo, patch: Patch) {
        if patch != Patch::default() {
            self.round.fixes.push(Fix::Patch(ino, patch));
        }
    }
}
