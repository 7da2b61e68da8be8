//! Sectors and the records in them, read and changed through the overlay.

use super::Checker;
use super::disk::Place;
use crate::error::Corruption;
use crate::format::inode::{DiskInode, LinkTag, Record};
use crate::format::sector::{self, Body, Sector};
use crate::units::{Container, InodeNo};

/// An inode with its attributes and tags, taken out of its sector.
#[derive(Clone)]
pub(super) struct OwnedRecord {
    pub inode: DiskInode,
    pub data: Vec<u8>,
    pub xattrs: Vec<u8>,
    pub tags: Vec<u8>,
}

impl OwnedRecord {
    pub fn new(record: &Record<'_>) -> OwnedRecord {
        OwnedRecord {
            inode: *record.inode,
            data: record.data.to_vec(),
            xattrs: record.xattrs.to_vec(),
            tags: record.tags.to_vec(),
        }
    }

    pub fn as_record(&self) -> Record<'_> {
        Record { inode: &self.inode, data: &self.data, xattrs: &self.xattrs, tags: &self.tags }
    }

    pub fn link_tags(&self) -> Vec<LinkTag> {
        self.as_record().link_tags().collect()
    }
}

/// An entry with its name, taken out of its sector.
#[derive(Clone)]
pub(super) struct OwnedEntry {
    pub name: Vec<u8>,
    pub ino: InodeNo,
    /// `None` for a reference.
    pub record: Option<OwnedRecord>,
    /// The epoch of the sector.
    pub epoch: u64,
}

impl Checker<'_> {
    /// The image of a sector, whatever its bytes; `None` if no block is there for it.
    pub(super) fn load_sector(&mut self, container: Container) -> Option<Vec<u8>> {
        let places = self.walk.inventory.sector_pieces(container, &self.layout);
        let image: Vec<u8> = self.disk.read_many(&places).concat();
        (image.len() == self.layout.sector_bytes as usize).then_some(image)
    }

    /// The image of a sector that its checks accept.
    pub(super) fn load_good_sector(&mut self, container: Container) -> Option<Vec<u8>> {
        let image = self.load_sector(container)?;
        self.verify_sector(&image, container).ok()?;
        Some(image)
    }

    pub(super) fn verify_sector(
        &self,
        image: &[u8],
        container: Container,
    ) -> Result<(), Corruption> {
        sector::verify(image, container, self.container_generation(container), self.checksum)
    }

    pub(super) fn container_generation(&self, container: Container) -> u32 {
        // The system area is no file and has generation 0.
        self.walk.inventory.containers.get(&container.file).map_or(0, |file| file.generation)
    }

    /// Seals the image, which keeps its epoch, and puts it into the overlay.
    pub(super) fn store_sector(&mut self, container: Container, image: &mut [u8]) {
        let mut epoch = Sector::new(image).epoch();
        if let Some(scope) = &self.fast.scope {
            epoch.0 = scope.epoch_of_change(epoch.0);
            self.walk.epoch_max = self.walk.epoch_max.max(epoch.0);
        }
        sector::seal(image, epoch, self.checksum);
        let mut rest = &*image;
        for place in self.walk.inventory.sector_pieces(container, &self.layout) {
            let (head, tail) = rest.split_at(place.len.min(rest.len()));
            self.disk.change(place.offset, head);
            rest = tail;
        }
    }

    /// Has a sector written after the one to which an inode moves from it.
    pub(super) fn store_last(&mut self, container: Container, image: &mut [u8]) {
        self.store_sector(container, image);
        for place in self.walk.inventory.sector_pieces(container, &self.layout) {
            self.disk.write_last(place);
        }
    }

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
        let found = *self.walk.inventory.get(ino)?;
        let entry = self.load_entry(found.container, found.slot)?;
        entry.record.filter(|record| record.inode.number() == ino)
    }

    /// The places of a list of extents' worth of whole blocks.
    pub(super) fn block_place(&self, block: crate::units::BlockNo) -> Place {
        Place { offset: self.layout.block_offset(block), len: self.layout.block_bytes as usize }
    }
}
