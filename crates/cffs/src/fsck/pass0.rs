//! Pass 0: the superblock, its copies, and the system area.

use super::Checker;
use super::disk::Disk;
use super::editor::Fix;
use super::problems::Code;
use super::report::{Place, Problem, Report};
use super::sectors::OwnedRecord;
use crate::error::{Error, Result};
use crate::format::Layout;
use crate::format::inode::FileType;
use crate::format::sector::{self, Body, Sector};
use crate::format::superblock::{Incompat, SUPERBLOCK_BYTES, State, Superblock};
use crate::units::{BlockNo, Container, InodeNo, SectorIndex};

/// How much of the device's head is searched for a copy of a lost superblock.
const SEARCH_BYTES: u64 = 1 << 30;
const SEARCH_STEP_BYTES: usize = 1 << 20;
/// Superblocks lie at the start of blocks, and these are no smaller.
const BLOCK_BYTES_MIN: usize = 4096;

/// The superblock, or, if it is lost, the best of its copies; they are searched near the end and the
/// beginning of the device, or `everywhere`.
pub(super) fn find_superblock(
    disk: &mut Disk<'_>,
    report: &mut Report,
    everywhere: bool,
) -> Result<Superblock> {
    let size = disk.size_bytes();
    let search_end = if everywhere { size } else { size.min(SEARCH_BYTES) };
    let head = disk.read(0, SUPERBLOCK_BYTES.min(size as usize));
    let error = match Superblock::decode(&head, 0) {
        Ok(superblock) => return Ok(superblock),
        Err(error @ Error::Corruption(_)) => error,
        Err(error) => return Err(error),
    };
    let Some(mut copy) = copy_at_end(disk).or_else(|| copy_before(disk, search_end)) else {
        // What cannot be read may well be a superblock.
        disk.check_answers()?;
        return Err(error);
    };
    copy.state = State::Damaged;
    // A copy is as old as the last refresh: the process it names may be long gone.
    copy.holder = None;
    let message = format!("{error}; a copy of it was found");
    let code = Code::SuperblockLost;
    report.problems.push(Problem { code, place: Place::Volume, message, fixed: false });
    Ok(copy)
}

/// The last copy lies two blocks before the end, whatever the geometry.
fn copy_at_end(disk: &mut Disk<'_>) -> Option<Superblock> {
    let size = disk.size_bytes();
    (12..=16).find_map(|shift| {
        let offset = (size >> shift).checked_sub(2)? << shift;
        copy_at(disk, offset)
    })
}

fn copy_at(disk: &mut Disk<'_>, offset: u64) -> Option<Superblock> {
    let bytes = disk.read(offset, SUPERBLOCK_BYTES);
    let copy = Superblock::decode(&bytes, offset).ok()?;
    is_copy(&copy, offset).then_some(copy)
}

/// Whether a copy belongs at this place: a volume may lie in a file of another volume.
fn is_copy(copy: &Superblock, offset: u64) -> bool {
    let layout = Layout::new(copy);
    layout.superblock_copies().iter().any(|block| layout.block_offset(*block) == offset)
}

fn copy_before(disk: &mut Disk<'_>, end: u64) -> Option<Superblock> {
    for offset in (0..end).step_by(SEARCH_STEP_BYTES) {
        let len = (end - offset).min(SEARCH_STEP_BYTES as u64) as usize;
        let bytes = disk.read(offset, len);
        for at in (0..len).step_by(BLOCK_BYTES_MIN) {
            let offset = offset + at as u64;
            match Superblock::decode(&bytes[at..], offset) {
                Ok(copy) if is_copy(&copy, offset) => return Some(copy),
                _ => {}
            }
        }
    }
    None
}

impl Checker<'_> {
    /// False, and noted, if the device does not hold the whole volume.
    pub(super) fn check_size(&mut self) -> bool {
        let volume = self.layout.block_offset(BlockNo(self.layout.blocks));
        let device = self.disk.size_bytes();
        if volume > device {
            let message = format!("the volume has {volume} bytes, the device {device}");
            self.problem(Code::DeviceTooSmall, Place::Volume, message);
        }
        volume <= device
    }

    /// Checks the copies of the superblock and of the system area; remembers those to be written.
    pub(super) fn check_copies(&mut self) {
        let copies = self.layout.superblock_copies();
        let len = 2 * self.layout.block_bytes as usize;
        let places: Vec<_> = copies
            .iter()
            .map(|block| super::disk::Place { offset: self.layout.block_offset(*block), len })
            .collect();
        let blobs = self.disk.read_many(&places);
        for (block, bytes) in copies.into_iter().zip(blobs) {
            let offset = self.layout.block_offset(block);
            let copy = Superblock::decode(&bytes, offset).ok();
            if !copy.is_some_and(|copy| self.is_same_volume(&copy)) {
                let message = "it is bad, or describes another volume";
                self.derived(Code::SuperblockCopy, Place::Block(block), message);
                self.bad_copies.insert(block);
            }
            if !self.is_system_copy(&bytes[len / 2..]) {
                let block = BlockNo(block.0 + 1);
                self.derived(Code::SystemCopy, Place::Block(block), "a sector of it is bad");
                self.bad_copies.insert(block);
            }
        }
    }

    /// Whether a copy describes this volume, perhaps under another name. It may have a larger size
    /// or a feature more: a change was interrupted before the superblock itself had it.
    fn is_same_volume(&self, copy: &Superblock) -> bool {
        let own = &self.superblock;
        let may_differ = Incompat::CHECKSUM_SEED | Incompat::BUSY_LOG_BLOCKS | Incompat::PROTECTION;
        copy.blocks >= own.blocks
            && Layout::new(copy).with_blocks(own.blocks) == self.layout
            && copy.metadata_seed() == own.metadata_seed()
            && copy.incompat.difference(may_differ) == own.incompat.difference(may_differ)
            && copy.hash_seed == own.hash_seed
    }

    fn is_system_copy(&self, block: &[u8]) -> bool {
        let sectors = block.chunks_exact(self.layout.sector_bytes as usize);
        sectors.enumerate().all(|(index, image)| {
            let container = system_sector(index as u32);
            sector::verify(image, container, 0, self.checksum).is_ok()
        })
    }

    /// Reads the inodes that everything else starts from.
    pub(super) fn read_system_area(&mut self) {
        for index in 0..self.layout.block_sectors() {
            let container = system_sector(index);
            if let Err(error) = self.read_system_sector(container) {
                self.problem(Code::SystemArea, Place::Sector(container), error.to_string());
                self.walk.fixes.push(Fix::RestoreSystem(index));
            }
        }
        for (ino, file_type) in SYSTEM_FILES {
            let found = self.walk.inventory.get(ino).map(|found| found.file_type);
            if found != Some(file_type) && self.walk.fixes.is_empty() {
                let message = "it is not there, or not of its type";
                self.problem(Code::SystemInode, Place::Inode(ino), message);
                self.walk.fixes.push(Fix::RemakeSystem(ino));
            }
        }
    }

    fn read_system_sector(
        &mut self,
        container: Container,
    ) -> std::result::Result<(), crate::error::Corruption> {
        let image = self.load_sector(container).unwrap_or_default();
        self.verify_sector(&image, container)?;
        let sector = Sector::new(&image);
        self.walk.epoch_max = self.walk.epoch_max.max(sector.epoch().0);
        for entry in sector.entries() {
            let Body::Embedded(record) = &entry.body else { continue };
            let ino = record.inode.number();
            let known = SYSTEM_FILES.iter().any(|(system, file_type)| {
                *system == ino
                    && *file_type == entry.file_type
                    && self.layout.system_container(ino) == container
            });
            if known && self.walk.inventory.get(ino).is_none() {
                let record = OwnedRecord::new(record);
                self.register_system(&record, container, entry.slot);
            }
        }
        Ok(())
    }

    fn register_system(&mut self, record: &OwnedRecord, container: Container, slot: u16) {
        let record = record.as_record();
        let ino = record.inode.number();
        self.add_found(&record, container, slot);
        let pending = self.start_map(&record);
        let check = self.finish_at_once(pending);
        match ino {
            InodeNo::LOCATOR => {
                self.walk.locator = check;
                self.walk.locator_size = record.inode.size.get();
            }
            _ => {
                let file = self.container_file(&record, check, InodeNo::ROOT);
                self.walk.inventory.containers.insert(ino, file);
            }
        }
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
}

/// The files of the system area.
pub(super) const SYSTEM_FILES: [(InodeNo, FileType); 3] = [
    (InodeNo::ROOT, FileType::Directory),
    (InodeNo::LOCATOR, FileType::Regular),
    (InodeNo::EXTERNAL, FileType::Regular),
];

pub(super) fn system_sector(index: u32) -> Container {
    Container { file: InodeNo::SYSTEM, sector: SectorIndex(index) }
}
