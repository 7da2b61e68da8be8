//! lost+found, and moving inodes to other sectors.

use super::map_writer::MapWriter;
use super::records::OwnedRecord;
use super::walk::Walk;
use crate::format::checksum::name_hash;
use crate::format::extent::Extent;
use crate::format::inode::{FileType, Record};
use crate::format::sector::{self, Body, Sector};
use crate::format::superblock::Incompat;
use crate::units::{Container, FragRun, InodeNo, SectorIndex};

use super::fix::Patch;

const LOST_FOUND: &[u8] = b"lost+found";

/// Gives inodes new places and names.
pub(super) struct LostFound<'a, 'c> {
    pub walk: &'a mut Walk<'c>,
}

impl<'c> LostFound<'_, 'c> {
    fn maps(&mut self) -> MapWriter<'_, 'c> {
        MapWriter { walk: self.walk }
    }
}

impl LostFound<'_, '_> {
    /// Gives an inode a name in lost+found; an embedded inode loses its old name.
    pub(super) fn reconnect(&mut self, ino: InodeNo) {
        let Some(found) = self.walk.meta.inventory.get(ino).copied() else { return };
        self.walk.findings.touched.insert(ino);
        self.walk.findings.touched.insert(found.container.file);
        let Some(home) = self.lost_found() else { return self.walk.findings.no_space(ino) };
        let name = format!("#{ino}").into_bytes();
        if found.is_external() {
            let sector = found.container.sector;
            let body = Body::Reference { ino, sector };
            if self.insert(home, &name, found.file_type, &body).is_none() {
                self.walk.findings.no_space(ino);
            }
            return;
        }
        let Some(record) = self.walk.meta.load_record(ino) else { return };
        let body = Body::Embedded(record.as_record());
        if self.insert(home, &name, found.file_type, &body).is_none() {
            return self.walk.findings.no_space(ino);
        }
        if let Some(mut image) = self.walk.meta.load_good_sector(found.container) {
            sector::remove(&mut image, found.slot);
            self.walk.meta.store_last(found.container, &mut image);
        }
    }

    /// Moves an embedded inode to the external table; its entry becomes a reference.
    pub(super) fn externalize(&mut self, ino: InodeNo) {
        let Some(found) = self.walk.meta.inventory.get(ino).copied() else { return };
        let Some(record) = self.walk.meta.load_record(ino) else { return };
        let body = Body::Embedded(record.as_record());
        let Some(container) = self.insert(InodeNo::EXTERNAL, b"", found.file_type, &body) else {
            return self.walk.findings.no_space(ino);
        };
        if let Some(mut image) = self.walk.meta.load_good_sector(found.container) {
            let body = Body::Reference { ino, sector: container.sector };
            sector::replace(&mut image, found.slot, &body);
            self.walk.meta.store_last(found.container, &mut image);
        }
    }

    /// The directory lost+found in the root directory, which is made if it does not exist.
    fn lost_found(&mut self) -> Option<InodeNo> {
        let hash = name_hash(&self.walk.meta.superblock.hash_seed, LOST_FOUND);
        let sectors = self.walk.meta.inventory.containers.get(&InodeNo::ROOT)?.sectors;
        for sector in (0..sectors).map(SectorIndex) {
            let container = Container { file: InodeNo::ROOT, sector };
            let Some(image) = self.walk.meta.load_good_sector(container) else { continue };
            let sector = Sector::new(&image);
            let Some(entry) = sector.find_name(hash, LOST_FOUND) else { continue };
            let ino = entry.ino();
            if self.walk.meta.inventory.containers.contains_key(&ino) {
                return Some(ino);
            }
            // Another file has the name, and is renamed.
            let slot = entry.slot;
            let ino = entry.ino();
            let body = entry.body;
            let file_type = entry.file_type;
            let name = format!("lost+found#{ino}").into_bytes();
            let mut changed = image.clone();
            sector::remove(&mut changed, slot);
            self.insert(InodeNo::ROOT, &name, file_type, &body)?;
            let mut now = self.walk.meta.load_good_sector(container)?;
            sector::remove(&mut now, slot);
            self.walk.meta.store_sector(container, &mut now);
        }
        self.make_directory(InodeNo::ROOT, LOST_FOUND, 0o700)
    }

    fn make_directory(&mut self, dir: InodeNo, name: &[u8], permissions: u32) -> Option<InodeNo> {
        let ino = self.free_number();
        self.walk.findings.touched.insert(ino);
        let mut inode = self.walk.meta.new_inode(ino, FileType::Directory, permissions);
        inode.generation = self.walk.meta.inventory.generation_max.wrapping_add(1).into();
        inode.parent = dir.0.into();
        let record = Record { inode: &inode, data: &[], xattrs: &[], tags: &[] };
        let record = OwnedRecord::new(&record);
        self.add_directory(dir, name, &record)?;
        Some(ino)
    }

    /// A number that no inode has, and that no lost inode had if there are enough numbers.
    fn free_number(&self) -> InodeNo {
        let highest = self.walk.meta.inventory.inodes.iter().map(|found| found.ino.0).max();
        let above = highest.unwrap_or(0).max(self.walk.number_max).max(InodeNo::FIRST_USER.0) + 1;
        if self.walk.meta.is_possible_number(InodeNo(above)) {
            return InodeNo(above);
        }
        let mut numbers = (InodeNo::FIRST_USER.0..).map(InodeNo);
        numbers.find(|ino| self.walk.meta.inventory.get(*ino).is_none()).unwrap_or_default()
    }

    /// Puts a directory's record next to a new name, or into the external table where the rules
    /// require that.
    fn add_directory(
        &mut self,
        dir: InodeNo,
        name: &[u8],
        record: &OwnedRecord,
    ) -> Option<Container> {
        let body = Body::Embedded(record.as_record());
        let ino = record.inode.number();
        let file_type = FileType::Directory;
        let container = if self.walk.meta.superblock.incompat.contains(Incompat::EMBED) {
            self.insert(dir, name, file_type, &body)?
        } else {
            let container = self.insert(InodeNo::EXTERNAL, b"", file_type, &body)?;
            let reference = Body::Reference { ino, sector: container.sector };
            self.insert(dir, name, file_type, &reference)?;
            container
        };
        let image = self.walk.meta.load_good_sector(container)?;
        let slot = Sector::new(&image).find_inode(ino).map(|entry| entry.slot)?;
        self.walk.add_found(&record.as_record(), container, slot);
        let mut pending = self.walk.meta.collect_map(&record.as_record());
        pending.extents.sort_by_key(|extent| extent.logical);
        let file = self.walk.container_file(&record.as_record(), pending, dir);
        self.walk.meta.inventory.containers.insert(ino, file);
        Some(container)
    }

    /// Adds an entry where there is room; the container grows if there is none.
    fn insert(
        &mut self,
        file: InodeNo,
        name: &[u8],
        file_type: FileType,
        body: &Body<'_>,
    ) -> Option<Container> {
        self.walk.findings.touched.insert(file);
        let hash = match name {
            b"" => 0,
            name => name_hash(&self.walk.meta.superblock.hash_seed, name),
        };
        let sectors = self.walk.meta.inventory.containers.get(&file)?.sectors;
        // The last sectors have room most often; a large directory is not searched to its beginning.
        let nearest = (sectors.saturating_sub(64)..sectors).rev();
        for sector in nearest.map(SectorIndex) {
            if let Some(container) =
                self.insert_into(Container { file, sector }, hash, name, file_type, body)
            {
                return Some(container);
            }
        }
        self.grow(file)?;
        let container = Container { file, sector: SectorIndex(sectors) };
        self.insert_into(container, hash, name, file_type, body)
    }

    fn insert_into(
        &mut self,
        container: Container,
        hash: u32,
        name: &[u8],
        file_type: FileType,
        body: &Body<'_>,
    ) -> Option<Container> {
        let mut image = self.walk.meta.load_good_sector(container)?;
        sector::insert(&mut image, hash, name, file_type, body)?;
        self.walk.meta.store_sector(container, &mut image);
        Some(container)
    }

    /// Appends a block of empty sectors to a container.
    fn grow(&mut self, file: InodeNo) -> Option<()> {
        let layout = self.walk.meta.layout;
        let fragments = layout.block_fragments();
        let start = self.maps().allocate(fragments)?;
        let container = self.walk.meta.inventory.containers.get_mut(&file)?;
        let first = container.sectors;
        let bytes = u64::from(first) * u64::from(layout.sector_bytes);
        let logical = bytes / u64::from(layout.fragment_bytes);
        let extent = Extent::new(logical, FragRun::new(start, fragments));
        let at = container.map.partition_point(|other| other.logical < logical);
        match container.map.get_mut(at.wrapping_sub(1)) {
            Some(before) if before.logical_end() == logical && before.run().end() == start => {
                before.len += fragments;
            }
            _ => container.map.insert(at, extent),
        }
        container.sectors += layout.block_sectors();
        let (map, end) = (container.map.clone(), container.sectors);
        let generation = container.generation;
        for sector in (first..end).map(SectorIndex) {
            let container = Container { file, sector };
            let mut image = vec![0; layout.sector_bytes as usize];
            sector::init(&mut image, container, generation);
            self.walk.meta.store_sector(container, &mut image);
        }
        let size = u64::from(end) * u64::from(layout.sector_bytes);
        let grown = self.maps().set_map(file, &map)
            && self.walk.meta.patch(file, &Patch { size: Some(size), ..Patch::default() });
        if !grown {
            self.walk.space.used.release(FragRun::new(start, fragments));
        }
        grown.then_some(())
    }

    /// Gives a lost directory a new inode, with a name in lost+found.
    pub(super) fn resurrect(&mut self, ino: InodeNo, generation: u32, extents: &[Extent]) {
        self.walk.findings.touched.insert(ino);
        let Some(home) = self.lost_found() else { return self.walk.findings.no_space(ino) };
        let mut inode = self.walk.meta.new_inode(ino, FileType::Directory, 0o700);
        inode.generation = generation.into();
        inode.parent = home.0.into();
        let record = Record { inode: &inode, data: &[], xattrs: &[], tags: &[] };
        let record = OwnedRecord::new(&record);
        let name = format!("#{ino}").into_bytes();
        if self.add_directory(home, &name, &record).is_none() || !self.maps().set_map(ino, extents)
        {
            return self.walk.findings.no_space(ino);
        }
        let end = extents.last().map_or(0, Extent::logical_end);
        let size = end * u64::from(self.walk.meta.layout.fragment_bytes);
        self.walk.meta.patch(ino, &Patch { size: Some(size), ..Patch::default() });
    }
}
