//! The inventory of a walk: inodes, container files, names of external inodes.
//!
//! Memory: an inode takes 64 bytes and its number some 20 more, a directory about 150, the name of
//! an external inode 40; so a million files with a tenth as many directories take about 100 MB.
//! The bitmap of used fragments (`used`) comes on top: 128 KiB per GiB that has files.

use std::collections::HashMap;

use crate::clock::Timestamp;
use crate::format::extent::Extent;
use crate::format::inode::FileType;
use crate::units::{Container, InodeNo};

use super::disk::Place;
use crate::format::Layout;

/// An inode that was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub ino: InodeNo,
    pub container: Container,
    pub slot: u16,
    pub file_type: FileType,
    pub generation: u32,
    pub nlink: u32,
    /// Names that were found, of an external inode.
    pub references: u32,
    /// Distinguishes two records that claim different space.
    pub fingerprint: u32,
    pub parent: InodeNo,
}

impl Found {
    pub fn is_external(&self) -> bool {
        self.container.file == InodeNo::EXTERNAL
    }
}

/// A file of sectors: a directory or the external table.
#[derive(Clone, Debug, Default)]
pub(super) struct ContainerFile {
    pub generation: u32,
    /// Sectors below its size.
    pub sectors: u32,
    /// All its extents, the index's too, in the order of the file.
    pub map: Vec<Extent>,
    /// The directory that has its name.
    pub parent: InodeNo,
    /// As recorded in the inode.
    pub recorded_entries: u32,
    pub buckets: u32,
    pub indexed: bool,
    pub changed: Timestamp,
    /// As they were found.
    pub entries: u32,
    pub subdirectories: u32,
    /// The time at which the youngest file in it was made.
    pub youngest: Timestamp,
    /// A repair changed names, so the index is no longer right.
    pub names_changed: bool,
}

/// A name of an external inode.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reference {
    pub ino: InodeNo,
    pub container: Container,
    pub slot: u16,
}

#[derive(Default)]
pub(super) struct Inventory {
    pub inodes: Vec<Found>,
    numbers: HashMap<u64, u32>,
    pub containers: HashMap<InodeNo, ContainerFile>,
    pub references: Vec<Reference>,
    /// The newest epoch and the highest generation that anything has.
    pub epoch_max: u64,
    pub generation_max: u32,
}

impl Inventory {
    /// The inodes of users.
    pub fn users(&self) -> impl Iterator<Item = &Found> {
        self.inodes.iter().filter(|found| !found.ino.is_system())
    }

    pub fn position(&self, ino: InodeNo) -> Option<usize> {
        self.numbers.get(&ino.0).map(|index| *index as usize)
    }

    pub fn get(&self, ino: InodeNo) -> Option<&Found> {
        self.position(ino).and_then(|index| self.inodes.get(index))
    }

    pub fn get_mut(&mut self, ino: InodeNo) -> Option<&mut Found> {
        self.position(ino).and_then(|index| self.inodes.get_mut(index))
    }

    pub fn add(&mut self, found: Found) {
        debug_assert!(self.get(found.ino).is_none(), "inode {} is added twice", found.ino);
        self.numbers.insert(found.ino.0, self.inodes.len() as u32);
        self.inodes.push(found);
    }

    /// Forgets an inode.
    pub fn remove(&mut self, ino: InodeNo) -> Option<Found> {
        let index = self.numbers.remove(&ino.0)? as usize;
        let found = self.inodes.swap_remove(index);
        if let Some(moved) = self.inodes.get(index) {
            self.numbers.insert(moved.ino.0, index as u32);
        }
        Some(found)
    }

    /// Each inode has one number, and each number refers to its inode. Debug builds check this after a round.
    pub fn check(&self) {
        assert_eq!(self.numbers.len(), self.inodes.len(), "as many numbers as inodes");
        for (index, found) in self.inodes.iter().enumerate() {
            assert_eq!(
                self.position(found.ino),
                Some(index),
                "inode {} is found by number",
                found.ino
            );
        }
    }

    /// The place of a sector, in pieces if its block is not in one.
    pub fn sector_pieces(&self, container: Container, layout: &Layout) -> Vec<Place> {
        let bytes = u64::from(layout.sector_bytes);
        if container.file == InodeNo::SYSTEM {
            let base = layout.block_offset(layout.system_area());
            let offset = base + u64::from(container.sector.0) * bytes;
            return vec![Place { offset, len: layout.sector_bytes as usize }];
        }
        match self.containers.get(&container.file) {
            Some(file) => pieces(&file.map, u64::from(container.sector.0) * bytes, bytes, layout),
            None => Vec::new(),
        }
    }

    /// Adds to a directory's counts of entries and of subdirectories.
    pub fn count_entry(&mut self, dir: InodeNo, entries: i32, subdirectories: i32) {
        if let Some(file) = self.containers.get_mut(&dir) {
            file.entries = file.entries.saturating_add_signed(entries);
            file.subdirectories = file.subdirectories.saturating_add_signed(subdirectories);
        }
    }

    /// Whether `dir` is `ancestor` or is below it.
    pub fn is_within(&self, dir: InodeNo, ancestor: InodeNo) -> bool {
        let mut at = dir;
        // A chain with more steps than directories exist is a loop.
        for _ in 0..=self.containers.len() {
            if at == ancestor {
                return true;
            }
            match self.containers.get(&at) {
                Some(file) if at != InodeNo::ROOT => at = file.parent,
                _ => return false,
            }
        }
        true
    }
}

/// Where bytes of a file are; fewer than `len` in all if there is a hole.
pub(super) fn pieces(map: &[Extent], start: u64, len: u64, layout: &Layout) -> Vec<Place> {
    let fragment = u64::from(layout.fragment_bytes);
    let end = start + len;
    let from = map.partition_point(|extent| extent.logical_end() * fragment <= start);
    map[from..]
        .iter()
        .take_while(|extent| extent.logical * fragment < end)
        .map(|extent| {
            let first = (extent.logical * fragment).max(start);
            let last = (extent.logical_end() * fragment).min(end);
            let offset = extent.start.0 * fragment + (first - extent.logical * fragment);
            Place { offset, len: (last - first) as usize }
        })
        .collect()
}
