//! The walk of a fast check: the containers that the intent log lists, and the directories above them.

use super::pass3::LocatorTable;
use super::queue::Queue;
use super::records::OwnedRecord;
use super::walk::Walk;
use crate::format::inode::FileType;
use crate::format::sector::{Body, Sector};
use crate::units::{Container, InodeNo};

/// More directories than this above another are a loop.
const ANCESTORS_MAX: usize = 1 << 16;

/// Walks the listed containers.
pub(super) struct ListedWalk<'a, 'c> {
    pub walk: &'a mut Walk<'c>,
}

impl ListedWalk<'_, '_> {
    /// Walks the listed containers.
    pub(super) fn walk_listed(&mut self, queue: &mut Queue) {
        self.walk.enqueue(queue, InodeNo::EXTERNAL);
        self.walk.sweep(queue);
        self.walk.enqueue(queue, InodeNo::ROOT);
        while self.walk.findings.doubt.is_none() {
            let Some(scope) = &self.walk.scope else { return };
            let rest: Vec<InodeNo> =
                scope.directories.iter().filter(|ino| !scope.entered.contains(ino)).collect();
            for ino in rest {
                self.find_directory(queue, ino);
                if self.walk.findings.doubt.is_some() {
                    return;
                }
            }
            if queue.is_empty() {
                return;
            }
            self.walk.sweep(queue);
        }
    }

    /// Queues a listed directory if its parents are known or not listed. Otherwise the walk reaches it, or it
    /// no longer exists.
    fn find_directory(&mut self, queue: &mut Queue, ino: InodeNo) {
        if let Some(found) = self.walk.meta.inventory.get(ino) {
            // Its name is in an unchanged block. Without a name, it is being made or removed.
            if found.is_external() && found.references > 0 {
                self.walk.enqueue(queue, ino);
            }
            return;
        }
        let mut chain: Vec<(InodeNo, Container)> = Vec::new();
        let mut at = ino;
        while !self.walk.meta.inventory.containers.contains_key(&at) {
            let Some(place) = LocatorTable { walk: self.walk }.located(at) else { return };
            if self.walk.scope.as_ref().is_none_or(|scope| scope.is_listed(place)) {
                return;
            }
            chain.push((at, place));
            if chain.len() > ANCESTORS_MAX {
                return self.walk.findings.doubt(format!("inode {ino} is below itself"));
            }
            at = place.file;
        }
        while let Some((ino, place)) = chain.pop() {
            if !self.open_directory(queue, ino, place) {
                return self.walk.findings.doubt(format!("inode {ino} is not in {place}"));
            }
        }
    }

    /// Adds a directory whose record is in an unchanged block.
    fn open_directory(&mut self, queue: &mut Queue, ino: InodeNo, place: Container) -> bool {
        let Some(image) = self.walk.meta.load_good_sector(place) else { return false };
        let sector = Sector::new(&image);
        let Some(entry) = sector.find_inode(ino) else { return false };
        let Body::Embedded(record) = &entry.body else { return false };
        if record.inode.file_type() != Some(FileType::Directory) {
            return false;
        }
        let is_listed =
            self.walk.scope.as_ref().is_some_and(|scope| scope.directories.contains(ino));
        if is_listed {
            self.walk.register(record, place, entry.slot, sector.epoch().0);
            self.walk.enqueue(queue, ino);
            return true;
        }
        // Only its contents are needed: its own space did not change.
        let owned = OwnedRecord::new(record);
        let mut check = self.walk.meta.collect_map(&owned.as_record());
        check.extents.sort_by_key(|extent| extent.logical);
        let file = self.walk.container_file(&owned.as_record(), check, place.file);
        self.walk.meta.inventory.containers.insert(ino, file);
        true
    }
}
