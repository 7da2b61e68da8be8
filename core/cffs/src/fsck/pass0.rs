//! Pass 0: the superblock, its copies, and the system area.

use super::disk::{Disk, Place as DiskPlace};
use super::fix::Fix;
use super::metadata::system_sector;
use super::problems::Code;
use super::records::OwnedRecord;
use super::report::{Place, Problem, Report};
use super::walk::Walk;
use crate::error::{Error, Result};
use crate::format::Layout;
use crate::format::inode::FileType;
use crate::format::sector::{Body, Sector};
use crate::format::superblock::{Holder, SUPERBLOCK_BYTES, State, Superblock};
use crate::units::{Container, InodeNo};

/// How much of the device's head is searched for a copy of a lost superblock.
const SEARCH_BYTES: u64 = 1 << 30;
const SEARCH_STEP_BYTES: usize = 1 << 20;
/// Superblocks are at the start of blocks, and these are no smaller.
const BLOCK_BYTES_MIN: usize = 4096;

/// The superblock, or, if it is lost, the best of its copies; they are searched near the end and the
/// beginning of the device, or `everywhere`. A copy has the mark of the process that has the volume open,
/// or had it when the volume was last opened for writing.
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
        Err(Error::Corruption(error)) => error,
        Err(error) => return Err(error),
    };
    disk.contradict(&[DiskPlace { offset: 0, len: head.len() }], &error);
    disk.check_reached()?;
    let Some(mut copy) = copy_at_end(disk).or_else(|| copy_before(disk, search_end)) else {
        // What cannot be read may well be a superblock.
        disk.check_answers()?;
        return Err(error.into());
    };
    copy.state = State::Damaged;
    copy.holder = newest_mark(disk, &copy);
    let message = format!("{error}; a copy of it was found");
    let code = Code::SuperblockLost;
    report.problems.push(Problem { code, place: Place::Volume, message, fixed: false });
    Ok(copy)
}

/// The mark in the newest copy of a superblock: opening a volume, and closing it, refreshes the nearest ones.
fn newest_mark(disk: &mut Disk<'_>, copy: &Superblock) -> Option<Holder> {
    let layout = Layout::new(copy);
    let last = disk.size_bytes().checked_sub(SUPERBLOCK_BYTES as u64)?;
    let offsets = layout.superblock_copies().into_iter().map(|block| layout.block_offset(block));
    let copies =
        offsets.filter(|offset| *offset <= last).filter_map(|offset| copy_at(disk, offset));
    let of_volume = copies.filter(|other| other.uuid == copy.uuid);
    of_volume.max_by_key(|other| (other.mounts, other.generation))?.holder
}

/// The last copy is two blocks before the end, whatever the geometry.
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

/// Whether a copy belongs at this place: a volume may be in a file of another volume.
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

/// Reads the system area.
pub(super) struct SystemArea<'a, 'c> {
    pub walk: &'a mut Walk<'c>,
}

impl SystemArea<'_, '_> {
    /// Reads the inodes that everything else starts from.
    pub(super) fn read_system_area(&mut self) {
        for index in 0..self.walk.meta.layout.block_sectors() {
            let container = system_sector(index);
            if let Err(error) = self.read_system_sector(container) {
                let pieces =
                    self.walk.meta.inventory.sector_pieces(container, &self.walk.meta.layout);
                self.walk.meta.disk.contradict(&pieces, &error);
                self.walk.findings.problem(
                    Code::SystemArea,
                    Place::Sector(container),
                    error.to_string(),
                );
                self.walk.round.fixes.push(Fix::RestoreSystem(index));
            }
        }
        for (ino, file_type) in SYSTEM_FILES {
            let found = self.walk.meta.inventory.get(ino).map(|found| found.file_type);
            if found != Some(file_type) && self.walk.round.fixes.is_empty() {
                let message = "it is not there, or not of its type";
                self.walk.findings.problem(Code::SystemInode, Place::Inode(ino), message);
                self.walk.round.fixes.push(Fix::RemakeSystem(ino));
            }
        }
    }

    fn read_system_sector(
        &mut self,
        container: Container,
    ) -> std::result::Result<(), crate::error::Corruption> {
        let image = self.walk.meta.load_sector(container).unwrap_or_default();
        self.walk.meta.verify_sector(&image, container)?;
        let sector = Sector::new(&image);
        self.walk.meta.inventory.epoch_max =
            self.walk.meta.inventory.epoch_max.max(sector.epoch().0);
        for entry in sector.entries() {
            let Body::Embedded(record) = &entry.body else { continue };
            let ino = record.inode.number();
            let known = SYSTEM_FILES.iter().any(|(system, file_type)| {
                *system == ino
                    && *file_type == entry.file_type
                    && self.walk.meta.layout.system_container(ino) == container
            });
            if known && self.walk.meta.inventory.get(ino).is_none() {
                let record = OwnedRecord::new(record);
                self.register_system(&record, container, entry.slot);
            }
        }
        Ok(())
    }

    fn register_system(&mut self, record: &OwnedRecord, container: Container, slot: u16) {
        let record = record.as_record();
        let ino = record.inode.number();
        self.walk.add_found(&record, container, slot);
        let pending = self.walk.claims().start_map(&record);
        let check = self.walk.claims().finish_at_once(pending);
        match ino {
            InodeNo::LOCATOR => {
                self.walk.round.locator = check;
                self.walk.round.locator_size = record.inode.size.get();
            }
            _ => {
                let file = self.walk.container_file(&record, check, InodeNo::ROOT);
                self.walk.meta.inventory.containers.insert(ino, file);
            }
        }
    }
}

/// The files of the system area.
pub(super) const SYSTEM_FILES: [(InodeNo, FileType); 3] = [
    (InodeNo::ROOT, FileType::Directory),
    (InodeNo::LOCATOR, FileType::Regular),
    (InodeNo::EXTERNAL, FileType::Regular),
];
