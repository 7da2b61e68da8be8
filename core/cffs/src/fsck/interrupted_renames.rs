//! Renames of external inodes that a crash interrupted.
//!
//! An inode in the external table is written before the names that refer to it, with linktags that name the
//! entries that are about to change, by sector and slot. So a half-done rename of such a name, or exchange of
//! two names, is recognized and completed.

use super::fix::Fix;
use super::inventory::Reference;
use super::walk::Walk;
use super::{Code, Place};
use crate::format::inode::{FileType, LinkTag, LinkTagKind};
use crate::units::InodeNo;

/// Completes renames of external inodes that a crash interrupted.
pub(super) struct InterruptedRenames<'a, 'c> {
    pub walk: &'a mut Walk<'c>,
}

impl InterruptedRenames<'_, '_> {
    /// The tags of one kind of the last epoch in which the inode was tagged.
    fn last_tags(&mut self, ino: InodeNo, kind: LinkTagKind) -> Vec<LinkTag> {
        let tags = self.walk.meta.load_record(ino).map_or(Vec::new(), |record| record.link_tags());
        let last = tags.iter().map(|tag| tag.epoch).max();
        tags.into_iter().filter(|tag| Some(tag.epoch) == last && tag.kind == kind).collect()
    }

    /// The number of names that an inode should have by its own count.
    fn names_due(&self, ino: InodeNo) -> Option<(u32, u32)> {
        let found = self.walk.meta.inventory.get(ino).filter(|found| found.is_external())?;
        let due = if found.file_type == FileType::Directory { 1 } else { found.nlink };
        Some((found.references, due))
    }

    fn external(&self, which: impl Fn(u32, u32) -> bool) -> Vec<InodeNo> {
        let inos = self.walk.meta.inventory.inodes.iter().map(|found| found.ino);
        let is = |ino: &InodeNo| {
            self.names_due(*ino).is_some_and(|(references, due)| which(references, due))
        };
        inos.filter(|ino| !ino.is_system() && is(ino)).collect()
    }

    /// Gives an inode that lacks a name the one that it was to take from another file. Returns true if it
    /// did; another round follows.
    pub(super) fn complete_exchanges(&mut self) -> bool {
        let mut completed = false;
        for ino in self.external(|references, due| references < due) {
            let Some(sector) =
                self.walk.meta.inventory.get(ino).map(|found| found.container.sector)
            else {
                continue;
            };
            for tag in self.last_tags(ino, LinkTagKind::Replaced) {
                let Some(name) = self.reference_at(&tag) else { continue };
                if self.names_due(name.ino).is_none_or(|(references, due)| references <= due) {
                    continue;
                }
                let message = format!("the name was to be that of inode {ino}");
                self.walk.findings.expected(
                    Code::Nameless,
                    Place::Entry(name.container, name.slot),
                    message,
                );
                let (container, slot) = (name.container, name.slot);
                self.walk.round.fixes.push(Fix::ToReference { container, slot, ino, sector });
                completed = true;
                break;
            }
        }
        if completed {
            self.walk.round.fixes.push(Fix::Again);
        }
        completed
    }

    /// Removes the names that were about to be removed, from files that have more names than they should.
    pub(super) fn complete_renames(&mut self) {
        for ino in self.external(|references, due| references > due) {
            if self.walk.meta.inventory.containers.contains_key(&ino) {
                continue;
            }
            for tag in self.last_tags(ino, LinkTagKind::Unlinked) {
                let Some((references, due)) = self.names_due(ino) else { break };
                let name = self.reference_at(&tag).filter(|name| name.ino == ino);
                let Some(name) = name.filter(|_| references > due) else { continue };
                let message = format!("inode {ino} was about to lose the name");
                self.walk.findings.expected(
                    Code::LinkCount,
                    Place::Entry(name.container, name.slot),
                    message,
                );
                self.walk.drop_entry(name.container, name.slot, false);
                let gone = (name.container, name.slot);
                self.walk.meta.inventory.references.retain(|r| (r.container, r.slot) != gone);
                if let Some(found) = self.walk.meta.inventory.get_mut(ino) {
                    found.references -= 1;
                }
            }
        }
    }

    /// The name that a tag refers to.
    fn reference_at(&self, tag: &LinkTag) -> Option<Reference> {
        let is_it = |r: &&Reference| r.container == tag.place && u32::from(r.slot) == tag.count;
        self.walk.meta.inventory.references.iter().find(is_it).copied()
    }
}
