//! Metadata by its logical address: sectors, the entries and records in them, and extents.

use std::collections::{BTreeSet, HashSet};

use zerocopy::FromZeros;

use super::disk::{Disk, Place};
use super::fix::Patch;
use super::inventory::{Inventory, pieces};
use super::records::{MapCheck, OwnedEntry, OwnedRecord, PendingMap};
use crate::error::Corruption;
use crate::format::extent::{Extent, MAP_DEPTH_MAX, Node};
use crate::format::inode::{DiskInode, FileType, InodeFlags, Record};
use crate::format::sector::{self, Body, Sector};
use crate::format::superblock::{SUPERBLOCK_BYTES, Superblock};
use crate::format::{Checksum, Layout, locator};
use crate::units::{BlockNo, Container, EpochNo, FragRun, InodeNo, SectorIndex};

/// Sectors, records and extents, by inode, as far as the walk has found their places. They are read and
/// changed through the overlay.
pub(super) struct Metadata<'c> {
    pub disk: Disk<'c>,
    pub superblock: Superblock,
    pub layout: Layout,
    pub checksum: Checksum,
    /// The inventory of the current round.
    pub inventory: Inventory,
    /// The least epoch of a sector in which fast recovery changes names: it comes after the last checkpoint,
    /// so that another recovery counts them.
    pub epoch_min: Option<u64>,
    /// Directories whose names changed, and whose inodes have to be stamped with the count of marks.
    unstamped: BTreeSet<InodeNo>,
}

impl<'c> Metadata<'c> {
    /// The metadata of a volume of which nothing is known but its superblock.
    pub(super) fn new(disk: Disk<'c>, superblock: Superblock) -> Metadata<'c> {
        Metadata {
            disk,
            layout: Layout::new(&superblock),
            checksum: superblock.checksum(),
            superblock,
            inventory: Inventory::default(),
            epoch_min: None,
            unstamped: BTreeSet::new(),
        }
    }
}

impl Metadata<'_> {
    /// The image of a sector, good or bad; `None` if the container has no block for it.
    pub(super) fn load_sector(&mut self, container: Container) -> Option<Vec<u8>> {
        let places = self.inventory.sector_pieces(container, &self.layout);
        let image: Vec<u8> = self.disk.read_many(&places).concat();
        (image.len() == self.layout.sector_bytes as usize).then_some(image)
    }

    /// The image of a sector that its checks accept.
    pub(super) fn load_good_sector(&mut self, container: Container) -> Option<Vec<u8>> {
        let image = self.load_sector(container)?;
        self.verify_sector(&image, container).ok()?;
        Some(image)
    }

    /// Checks that the image is that of the sector.
    pub(super) fn verify_sector(
        &self,
        image: &[u8],
        container: Container,
    ) -> Result<(), Corruption> {
        sector::verify(image, container, self.container_generation(container), self.checksum)
    }

    /// The generation that the sectors of the container have.
    pub(super) fn container_generation(&self, container: Container) -> u32 {
        // The system area is no file and has generation 0.
        self.inventory.containers.get(&container.file).map_or(0, |file| file.generation)
    }

    /// Seals the image, with an epoch of recovery or its own, and puts it into the overlay.
    pub(super) fn store_sector(&mut self, container: Container, image: &mut [u8]) {
        let stamp = self.superblock.stamp();
        if stamp > 0 {
            // Any of its inodes and names may be another than before.
            sector::edit_inodes(image, |inode| inode.stamp(stamp));
            self.unstamped.insert(container.file);
        }
        let mut epoch = Sector::new(image).epoch();
        if let Some(least) = self.epoch_min {
            epoch.0 = epoch.0.max(least);
            self.inventory.epoch_max = self.inventory.epoch_max.max(epoch.0);
        }
        self.store_sector_of(container, image, epoch);
    }

    fn store_sector_of(&mut self, container: Container, image: &mut [u8], epoch: EpochNo) {
        debug_assert_eq!(image.len(), self.layout.sector_bytes as usize, "{container}");
        sector::seal(image, epoch, self.checksum);
        let mut rest = &*image;
        for place in self.inventory.sector_pieces(container, &self.layout) {
            let (head, tail) = rest.split_at(place.len.min(rest.len()));
            self.disk.change(place.offset, head);
            rest = tail;
        }
        debug_assert!(
            rest.is_empty() || rest.len() == image.len(),
            "a part of {container} is stored"
        );
    }

    /// Stores a sector that is written after the one to which an inode moves from it.
    pub(super) fn store_last(&mut self, container: Container, image: &mut [u8]) {
        self.store_sector(container, image);
        for place in self.inventory.sector_pieces(container, &self.layout) {
            self.disk.write_last(place);
        }
    }

    /// The entry in a slot of a good sector.
    pub(super) fn load_entry(&mut self, container: Container, slot: u16) -> Option<OwnedEntry> {
        let image = self.load_good_sector(container)?;
        let sector = Sector::new(&image);
        let entry = sector.entries().find(|entry| entry.slot == slot)?;
        Some(OwnedEntry {
            name: entry.name.to_vec(),
            ino: entry.ino(),
            record: match &entry.body {
                Body::Embedded(record) => Some(OwnedRecord::new(record)),
                Body::Reference { .. } => None,
            },
            epoch: sector.epoch().0,
        })
    }

    /// The record of an inode that was found.
    pub(super) fn load_record(&mut self, ino: InodeNo) -> Option<OwnedRecord> {
        let found = *self.inventory.get(ino)?;
        let entry = self.load_entry(found.container, found.slot)?;
        entry.record.filter(|record| record.inode.number() == ino)
    }

    /// Changes a good sector; false if it is not good.
    pub(super) fn edit(&mut self, container: Container, change: impl FnOnce(&mut [u8])) -> bool {
        let Some(mut image) = self.load_good_sector(container) else { return false };
        change(&mut image);
        self.store_sector(container, &mut image);
        true
    }

    /// Changes a record in its place; it must not become longer.
    pub(super) fn edit_record(
        &mut self,
        ino: InodeNo,
        change: impl FnOnce(&mut OwnedRecord),
    ) -> bool {
        let Some(found) = self.inventory.get(ino).copied() else { return false };
        let Some(mut record) = self.load_record(ino) else { return false };
        let parent = record.inode.parent;
        change(&mut record);
        let stamp = self.superblock.stamp();
        record.inode.stamp(stamp);
        if record.inode.parent != parent {
            record.inode.stamp_name(stamp);
        }
        let Some(mut image) = self.load_good_sector(found.container) else { return false };
        sector::replace(&mut image, found.slot, &Body::Embedded(record.as_record()));
        if found.container.file == InodeNo::SYSTEM {
            self.store_sector(found.container, &mut image);
        } else {
            // The names in the sector did not change: with a new epoch, another recovery would count twice
            // those of inodes in the external table.
            let epoch = Sector::new(&image).epoch();
            self.store_sector_of(found.container, &mut image, epoch);
        }
        true
    }

    /// Sets fields of an inode.
    pub(super) fn patch(&mut self, ino: InodeNo, patch: &Patch) -> bool {
        let layout = self.layout;
        self.edit_record(ino, |record| patch.apply(record, &layout))
    }

    /// Stamps the inodes of the directories whose names have changed.
    pub(super) fn stamp_directories(&mut self) {
        let dirs = std::mem::take(&mut self.unstamped);
        // One that was not found yet is stamped in a later round.
        let left = dirs.into_iter().filter(|dir| !dir.is_system() || *dir == InodeNo::ROOT);
        let left: BTreeSet<InodeNo> = left.filter(|dir| !self.edit_record(*dir, |_| ())).collect();
        self.unstamped.extend(left);
    }

    /// Whose sector it is, if it is one.
    pub(super) fn identify(&self, image: &[u8]) -> Option<(Container, u32)> {
        sector::identify(image, self.checksum)
    }

    /// The map of the file's space, by its record.
    pub(super) fn describe_map(&self, record: &Record<'_>) -> PendingMap {
        let inode = record.inode;
        let root = inode.map_root.get();
        PendingMap {
            ino: inode.number(),
            generation: inode.generation.get(),
            file_type: inode.file_type().unwrap_or(FileType::Regular),
            inline: inode.inode_flags().contains(InodeFlags::INLINE),
            size: inode.size.get(),
            fragments_recorded: inode.fragments.get(),
            attribute_fragments: 0,
            root: (root != 0).then_some((BlockNo(root), inode.map_depth)),
            check: MapCheck::default(),
        }
    }

    /// The extents of a record that was checked before, and the blocks of its tree, without
    /// claiming them.
    pub(super) fn collect_map(&mut self, record: &Record<'_>) -> MapCheck {
        let mut pending = self.describe_map(record);
        if !pending.inline {
            pending.check.extents = Extent::decode_list(record.data).collect();
        }
        let Some((root, depth)) = pending.root else {
            return pending.check;
        };
        let mut seen = HashSet::new();
        let mut level = vec![(root, depth)];
        while let Some((block, depth)) = level.pop() {
            if depth > MAP_DEPTH_MAX || block.0 >= self.layout.blocks || !seen.insert(block) {
                continue;
            }
            let place = self.block_place(block);
            let bytes = self.disk.read(place.offset, place.len);
            let (ino, generation) = (pending.ino, pending.generation);
            match Node::decode(&bytes, ino, generation, depth, block, self.checksum) {
                Ok(Node::Leaf(extents)) => pending.check.extents.extend(extents),
                Ok(Node::Inner(children)) => {
                    level.extend(children.iter().map(|child| (child.block, depth - 1)));
                }
                Err(_) => continue,
            }
            pending.check.tree_blocks.push(block);
        }
        pending.check
    }

    /// Whether a sector of the container is at this byte of it.
    pub(super) fn is_own_sector(&mut self, ino: InodeNo, offset: u64, map: &[Extent]) -> bool {
        let len = u64::from(self.layout.sector_bytes);
        let image = self.disk.read_many(&pieces(map, offset, len, &self.layout)).concat();
        let found = self.identify(&image).map(|(container, _)| container);
        found == Some(Container { file: ino, sector: SectorIndex((offset / len) as u32) })
    }

    /// Whether a sector is at the beginning of an extent that belongs to another place.
    pub(super) fn is_misplaced(&mut self, ino: InodeNo, extent: &Extent) -> bool {
        let len = u64::from(self.layout.sector_bytes);
        let image = self.disk.read(self.run_place(extent.run()).offset, len as usize);
        let sector = extent.logical * u64::from(self.layout.fragment_bytes) / len;
        let is_other =
            |(found, _): (Container, u32)| found.file != ino || u64::from(found.sector.0) != sector;
        self.identify(&image).is_some_and(is_other)
    }

    /// Whether a file's contents begin with the first sector of a directory with its number.
    pub(super) fn has_own_sectors(&mut self, record: &Record<'_>) -> bool {
        let extents = self.collect_map(record).extents;
        let Some(first) = extents.iter().find(|extent| extent.logical == 0) else { return false };
        if !self.layout.is_allocatable(first.start, first.len) {
            return false;
        }
        let offset = self.run_place(first.run()).offset;
        let image = self.disk.read(offset, self.layout.sector_bytes as usize);
        let found = self.identify(&image).map(|(container, _)| container);
        found == Some(Container { file: record.inode.number(), sector: SectorIndex(0) })
    }

    /// Whether the header of the sector at this place of a directory agrees.
    pub(super) fn is_in_place(&mut self, container: Container) -> bool {
        let own = Some((container, self.container_generation(container)));
        self.load_sector(container).is_some_and(|image| self.identify(&image) == own)
    }

    /// Whether by its header it is a sector of the external table, at any position.
    pub(super) fn is_of_table(&mut self, container: Container) -> bool {
        let table = (InodeNo::EXTERNAL, self.container_generation(container));
        let says = self.load_sector(container).and_then(|image| self.identify(&image));
        container.file == InodeNo::EXTERNAL
            && says.is_some_and(|(says, generation)| (says.file, generation) == table)
    }

    /// Whether the locator table can have an entry for the number.
    pub(super) fn is_possible_number(&self, ino: InodeNo) -> bool {
        let (block, _) = locator::position(ino, self.layout.block_bytes);
        (block + 1).saturating_mul(self.layout.block_fragments().into()) < 1 << 40
    }

    /// Takes a block of a file out of its map.
    pub(super) fn cut_block(&self, map: &mut Vec<Extent>, block: u64) {
        let fragments = u64::from(self.layout.block_fragments());
        let (from, to) = (block * fragments, (block + 1) * fragments);
        let cut = |extent: Extent| {
            let piece = |first: u64, end: u64| (first < end).then(|| extent.part(first..end));
            let before = piece(extent.logical, extent.logical_end().min(from));
            before.into_iter().chain(piece(extent.logical.max(to), extent.logical_end()))
        };
        *map = map.drain(..).flat_map(cut).collect();
    }

    /// The path of an inode that was found; one of them, if it has several names.
    pub(super) fn path_of(&mut self, ino: InodeNo) -> Option<Vec<u8>> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut at = ino;
        // A chain with more steps than directories exist is a loop.
        for _ in 0..=self.inventory.containers.len() {
            if at == InodeNo::ROOT {
                return Some(names.iter().rev().fold(b"/".to_vec(), |path, name| join(path, name)));
            }
            let found = *self.inventory.get(at)?;
            let (container, slot) = match found.is_external() {
                false => (found.container, found.slot),
                true => {
                    let names = &self.inventory.references;
                    let name = names.iter().find(|reference| reference.ino == at)?;
                    (name.container, name.slot)
                }
            };
            names.push(self.load_entry(container, slot)?.name);
            at = container.file;
        }
        None
    }

    /// An empty inode that a repair makes.
    pub(super) fn new_inode(
        &self,
        ino: InodeNo,
        file_type: FileType,
        permissions: u32,
    ) -> DiskInode {
        let mut inode = DiskInode::new_zeroed();
        inode.ino = ino.0.into();
        inode.mode = ((file_type.mode_bits() | permissions) as u16).into();
        inode.nlink = if file_type == FileType::Directory { 2 } else { 1 }.into();
        let seconds = self.superblock.mounted_at.max(self.superblock.made_at) as i64;
        for field in [
            &mut inode.atime_seconds,
            &mut inode.mtime_seconds,
            &mut inode.ctime_seconds,
            &mut inode.btime_seconds,
        ] {
            *field = seconds.into();
        }
        inode
    }

    /// The bytes of a block that holds the superblock.
    pub(super) fn superblock_block(&mut self, block: BlockNo) -> Vec<u8> {
        let place = self.block_place(block);
        let mut bytes = self.disk.read(place.offset, place.len);
        bytes[..SUPERBLOCK_BYTES].copy_from_slice(&self.superblock.encode());
        bytes
    }

    /// The image of a sector of the system area from the copy that was written last.
    pub(super) fn system_sector_copy(&mut self, index: u32) -> Option<Vec<u8>> {
        let container = system_sector(index);
        let bytes = self.layout.sector_bytes as usize;
        let within = u64::from(self.layout.block_bytes) + u64::from(index) * bytes as u64;
        let images: Vec<Vec<u8>> = self
            .layout
            .superblock_copies()
            .into_iter()
            .map(|block| self.disk.read(self.layout.block_offset(block) + within, bytes))
            .filter(|image| sector::verify(image, container, 0, self.checksum).is_ok())
            .collect();
        // Of equally old ones the nearest: unmounting refreshes the first copies only.
        images.into_iter().rev().max_by_key(|image| Sector::new(image).epoch())
    }

    /// The place of a block.
    pub(super) fn block_place(&self, block: BlockNo) -> Place {
        Place { offset: self.layout.block_offset(block), len: self.layout.block_bytes as usize }
    }

    /// The place of a run.
    pub(super) fn run_place(&self, run: FragRun) -> Place {
        let fragment = u64::from(self.layout.fragment_bytes);
        let len = (u64::from(run.len) * fragment) as usize;
        Place { offset: run.start.0 * fragment, len }
    }
}

/// The path of a name in a directory.
pub(super) fn join(mut path: Vec<u8>, name: &[u8]) -> Vec<u8> {
    if path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// A sector of the system area.
pub(super) fn system_sector(index: u32) -> Container {
    Container { file: InodeNo::SYSTEM, sector: SectorIndex(index) }
}
