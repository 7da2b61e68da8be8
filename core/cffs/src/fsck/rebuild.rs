//! Repairs after which the walk must be repeated.

use super::editor::Editor;
use super::fix::Patch;
use super::metadata::system_sector;
use super::records::OwnedRecord;
use super::{Code, Place};
use crate::format::checksum::name_hash;
use crate::format::extent::Extent;
use crate::format::inode::{FileType, InodeFlags, Record};
use crate::format::sector::{self, Body, Sector};
use crate::format::xattr;
use crate::units::{Container, FragRun, InodeNo, SectorIndex};

impl Editor<'_, '_> {
    pub(super) fn reset_sector(&mut self, container: Container) {
        let mut image = vec![0; self.walk.meta.layout.sector_bytes as usize];
        sector::init(&mut image, container, self.walk.meta.container_generation(container));
        self.walk.meta.store_sector(container, &mut image);
    }

    /// Copies the entries that are valid, or can be corrected, into a new image of the sector.
    pub(super) fn rebuild_sector(&mut self, container: Container) {
        let Some(old) = self.walk.meta.load_sector(container) else { return };
        let generation = self.walk.meta.container_generation(container);
        let mut image = vec![0; old.len()];
        sector::init(&mut image, container, generation);
        for entry in Sector::new(&old).entries() {
            let mut candidate = image.clone();
            let hash = match entry.name {
                b"" => entry.hash,
                name => name_hash(&self.walk.meta.superblock.hash_seed, name),
            };
            let inserted = match &entry.body {
                Body::Embedded(record) => {
                    let record = self.patched(record, entry.file_type);
                    let file_type = record.inode.file_type().unwrap_or(entry.file_type);
                    let body = Body::Embedded(record.as_record());
                    sector::insert(&mut candidate, hash, entry.name, file_type, &body)
                }
                Body::Reference { ino, .. } => {
                    let known = self.walk.meta.inventory.get(*ino).map(|found| found.file_type);
                    let file_type = known.unwrap_or(entry.file_type);
                    sector::insert(&mut candidate, hash, entry.name, file_type, &entry.body)
                }
            };
            sector::seal(&mut candidate, Sector::new(&old).epoch(), self.walk.meta.checksum);
            if inserted.is_some() && self.walk.meta.verify_sector(&candidate, container).is_ok() {
                image = candidate;
            } else if !entry.name.is_empty() {
                self.walk.losses.names.insert(entry.ino(), (container.file, entry.name.to_vec()));
            }
        }
        sector::seal(&mut image, Sector::new(&old).epoch(), self.walk.meta.checksum);
        self.walk.meta.store_sector(container, &mut image);
    }

    pub(super) fn fill_holes(&mut self, ino: InodeNo, end: u64) {
        let layout = self.walk.meta.layout;
        let Some(file) = self.walk.meta.inventory.containers.get(&ino).cloned() else { return };
        let fragments = u64::from(layout.block_fragments());
        let mut map = file.map.clone();
        let blocks = end / u64::from(layout.block_bytes);
        for block in 0..blocks {
            for logical in block * fragments..(block + 1) * fragments {
                let at = map.partition_point(|extent| extent.logical_end() <= logical);
                if map.get(at).is_some_and(|extent| extent.logical <= logical) {
                    continue;
                }
                let next = map.get(at).map_or(u64::MAX, |extent| extent.logical);
                let len = ((block + 1) * fragments).min(next) - logical;
                let Some(start) = self.maps().allocate(len as u32) else {
                    let message = "no space to fill the holes of a directory";
                    self.walk.findings.problem(Code::NoSpace, Place::Inode(ino), message);
                    return;
                };
                map.insert(at, Extent::new(logical, FragRun::new(start, len as u32)));
                // A stale sector at that place must not be taken for one of this file.
                let run = self.walk.meta.run_place(FragRun::new(start, len as u32));
                self.walk.meta.disk.change(run.offset, &vec![0; run.len]);
            }
        }
        self.walk.meta.patch(ino, &Patch { size: Some(end), ..Patch::default() });
        let sectors = file.sectors;
        if self.maps().set_map(ino, &map)
            && let Some(file) = self.walk.meta.inventory.containers.get_mut(&ino)
        {
            file.map = map;
        }
        for sector in (0..sectors).map(SectorIndex) {
            let container = Container { file: ino, sector };
            let image = self.walk.meta.load_sector(container);
            if image.is_some_and(|image| image.iter().all(|byte| *byte == 0)) {
                self.reset_sector(container);
            }
        }
    }

    /// Removes an inode with its name or names.
    pub(super) fn remove_inode(&mut self, ino: InodeNo) {
        let Some(found) = self.walk.meta.inventory.get(ino).copied() else { return };
        let mut image = match self.walk.meta.load_good_sector(found.container) {
            Some(image) => image,
            None => return,
        };
        self.walk.lose_entry(found.container, found.slot);
        sector::remove(&mut image, found.slot);
        self.walk.meta.store_sector(found.container, &mut image);
        self.walk.findings.touched.insert(found.container.file);
    }

    /// Ends the target of a symbolic link early.
    pub(super) fn cut_target(&mut self, ino: InodeNo, len: usize) {
        let Some(record) = self.walk.meta.load_record(ino) else { return };
        if record.inode.inode_flags().contains(InodeFlags::INLINE) {
            self.walk.meta.edit_record(ino, |record| {
                record.data.truncate(len);
                record.inode.size = (record.data.len() as u64).into();
            });
            return;
        }
        let size = record.inode.size.get();
        let extents = self.walk.meta.collect_map(&record.as_record()).extents;
        let fragment = u64::from(self.walk.meta.layout.fragment_bytes);
        for extent in extents.iter().filter(|extent| !extent.unwritten) {
            let start = extent.logical * fragment;
            let keeps = (len as u64).saturating_sub(start);
            let place = self.walk.meta.run_place(extent.run());
            let mut bytes = self.walk.meta.disk.read(place.offset, place.len);
            if let Some(rest) = bytes.get_mut(keeps as usize..).filter(|_| start < size) {
                rest.fill(0);
                self.walk.meta.disk.change(place.offset, &bytes);
            }
        }
        self.walk.meta.patch(ino, &Patch { size: Some(len as u64), ..Patch::default() });
    }

    /// Gives an inode an attribute block with this list, at a new place.
    pub(super) fn set_attributes(&mut self, ino: InodeNo, list: &[u8]) {
        let Some(record) = self.walk.meta.load_record(ino) else { return };
        let Some(old) = record.inode.attribute_run() else { return };
        let Some(start) = self.maps().allocate(old.len) else {
            return self.walk.findings.no_space(ino);
        };
        let new = FragRun::new(start, old.len);
        let place = self.walk.meta.run_place(new);
        let generation = record.inode.generation.get();
        let block =
            xattr::encode_block(list, ino, generation, start, place.len, self.walk.meta.checksum);
        self.walk.meta.disk.change(place.offset, &block);
        self.walk.space.used.release(old);
        self.walk.meta.patch(ino, &Patch { attribute_block: Some(new), ..Patch::default() });
    }

    pub(super) fn restore_system(&mut self, index: u32) {
        let container = system_sector(index);
        match self.walk.meta.system_sector_copy(index) {
            Some(mut image) => self.walk.meta.store_sector(container, &mut image),
            None => self.reset_sector(container),
        }
    }

    pub(super) fn remake_system(&mut self, ino: InodeNo) {
        let container = self.walk.meta.layout.system_container(ino);
        let Some(mut image) = self.walk.meta.load_good_sector(container) else { return };
        let slot = Sector::new(&image).find_inode(ino).map(|entry| entry.slot);
        if let Some(slot) = slot {
            sector::remove(&mut image, slot);
        }
        let is_root = ino == InodeNo::ROOT;
        let file_type = if is_root { FileType::Directory } else { FileType::Regular };
        let mut inode =
            self.walk.meta.new_inode(ino, file_type, if is_root { 0o755 } else { 0o600 });
        inode.parent = InodeNo::ROOT.0.into();
        let body = Body::Embedded(Record { inode: &inode, data: &[], xattrs: &[], tags: &[] });
        sector::insert(&mut image, 0, b"", file_type, &body);
        self.walk.meta.store_sector(container, &mut image);
    }

    /// The record, with its fields corrected where that is possible.
    fn patched(&mut self, record: &Record<'_>, file_type: FileType) -> OwnedRecord {
        let is_directory = self.walk.meta.has_own_sectors(record);
        let mut record = OwnedRecord::new(record);
        let inode = &mut record.inode;
        if inode.file_type() != Some(file_type) {
            // The type is stored in two places. The mode's counts if it is valid, but a directory is
            // recognized by its sectors.
            let file_type = match is_directory {
                true => FileType::Directory,
                false => inode.file_type().unwrap_or(file_type),
            };
            let permissions = u32::from(inode.mode.get()) & 0o7777;
            inode.mode = ((file_type.mode_bits() | permissions) as u16).into();
        }
        inode.flags = (inode.flags.get() & InodeFlags::all().bits()).into();
        for nanoseconds in [
            &mut inode.atime_nanoseconds,
            &mut inode.mtime_nanoseconds,
            &mut inode.ctime_nanoseconds,
            &mut inode.btime_nanoseconds,
        ] {
            if nanoseconds.get() >= 1_000_000_000 {
                *nanoseconds = 0.into();
            }
        }
        let flags = inode.inode_flags();
        let file_type = inode.file_type();
        if flags.contains(InodeFlags::INLINE) {
            inode.size = (record.data.len() as u64).into();
            inode.map_root = 0.into();
        }
        if file_type != Some(FileType::Regular) {
            let flags = inode.inode_flags() - InodeFlags::CONTENT_CHECKSUM;
            inode.flags = flags.bits().into();
        }
        if file_type != Some(FileType::Directory) {
            let flags = inode.inode_flags() - InodeFlags::INDEXED;
            inode.flags = flags.bits().into();
        }
        if flags.contains(InodeFlags::COMPRESSION) {
            let flags = inode.inode_flags() - InodeFlags::COMPRESSION;
            inode.flags = flags.bits().into();
        }
        record
    }
}
