//! Pass 1: the walk of what cannot be recomputed.
//!
//! It reads the external table first, then the directories from the root on. Of the sectors that are
//! queued, it reads those that come next on the disk, as an elevator does.

use super::claims::fingerprint;
use super::contents::{good_attributes, has_bad_name};
use super::disk::Place as DiskPlace;
use super::duplicates::Duplicates;
use super::fix::{Fix, Patch};
use super::index::Index;
use super::inventory::{ContainerFile, Found, Reference, pieces};
use super::listed_walk::ListedWalk;
use super::queue::{Job, NameEntry, Queue};
use super::records::MapCheck;
use super::walk::Walk;
use super::{Code, Phase, Place};
use crate::error::Corruption;
use crate::format::checksum::name_hash;
use crate::format::extent::Extent;
use crate::format::index::INDEX_OFFSET_BYTES;
use crate::format::inode::{FileType, InodeFlags, Record};
use crate::format::sector::{Body, Sector};
use crate::format::superblock::Incompat;
use crate::format::xattr;
use crate::units::{Container, InodeNo, SectorIndex};

/// Sectors of one directory that are read at once.
const JOB_BYTES: u32 = 256 << 10;
/// The most blocks that a repair puts into the holes of a directory.
const HOLE_BLOCKS_MAX: u64 = 4096;

impl Walk<'_> {
    /// False if the external table must be repaired before names can be compared with it.
    pub(super) fn pass1(&mut self) -> bool {
        let mut queue = Queue::default();
        if self.is_fast() {
            ListedWalk { walk: self }.walk_listed(&mut queue);
        } else {
            self.enqueue(&mut queue, InodeNo::EXTERNAL);
            self.sweep(&mut queue);
            self.let_misfits_go();
            if self.round.fixes.iter().any(Fix::restores_table) {
                return false;
            }
            self.enqueue(&mut queue, InodeNo::ROOT);
            self.sweep(&mut queue);
        }
        Duplicates { walk: self }.settle_namesakes();
        self.let_misfits_go();
        let mut pending = std::mem::take(&mut self.space.pending_maps);
        self.claims().read_trees(&mut pending);
        for file in pending {
            self.claims().finish_map(file);
        }
        self.claims().check_targets();
        self.claims().check_attribute_blocks();
        if self.options.contents {
            self.claims().check_contents();
        }
        true
    }

    pub(super) fn sweep(&mut self, queue: &mut Queue) {
        while let Some(batch) = queue.next_batch() {
            let places: Vec<DiskPlace> =
                batch.iter().flat_map(|job| job.places.iter().copied()).collect();
            let mut blobs = self.meta.disk.read_many(&places).into_iter();
            for job in batch {
                let mut bytes = blobs.next().unwrap_or_default();
                for _ in 1..job.places.len() {
                    bytes.extend_from_slice(&blobs.next().unwrap_or_default());
                }
                let sectors = bytes.chunks_exact(self.meta.layout.sector_bytes as usize);
                for (index, image) in sectors.enumerate() {
                    let sector = SectorIndex(job.first + index as u32);
                    self.read_sector(queue, Container { file: job.file, sector }, image);
                }
                if let Some(names) = queue.finish_job(job.file)
                    && job.file != InodeNo::EXTERNAL
                {
                    self.close_directory(job.file, names);
                }
            }
            let found = self.meta.inventory.inodes.len() as u64;
            self.progress.report(Phase::Walk, found, self.meta.superblock.inodes.max(found));
        }
    }

    /// Queues all sectors of a container, or those that are listed.
    pub(super) fn enqueue(&mut self, queue: &mut Queue, file: InodeNo) {
        let layout = self.meta.layout;
        let Some(container) = self.meta.inventory.containers.get(&file) else {
            return;
        };
        let bytes = u64::from(layout.sector_bytes);
        let per_block = layout.block_sectors();
        let step = JOB_BYTES / layout.sector_bytes;
        let whole = (0..container.sectors).step_by(step as usize).map(|first| (first, step));
        let block = |block: &u32| (block.saturating_mul(per_block), per_block);
        let there = |range: &(u32, u32)| range.0 < container.sectors;
        let ranges: Vec<(u32, u32)> = match &mut self.scope {
            None => whole.collect(),
            Some(scope) if file == InodeNo::EXTERNAL => {
                scope.table.iter().map(block).filter(there).collect()
            }
            Some(scope) => {
                if !scope.directories.contains(file) || !scope.entered.insert(file) {
                    return;
                }
                match scope.directories.parts_of(file) {
                    Some(parts) => parts.blocks.keys().map(block).filter(there).collect(),
                    None => whole.collect(),
                }
            }
        };
        let mut jobs = Vec::new();
        for (first, count) in ranges {
            let count = count.min(container.sectors - first);
            let start = u64::from(first) * bytes;
            let len = u64::from(count) * bytes;
            let places = pieces(&container.map, start, len, &layout);
            if covers(&places, len) {
                jobs.push(Job { file, first, places });
                continue;
            }
            for first in first..first + count {
                let places = pieces(&container.map, u64::from(first) * bytes, bytes, &layout);
                if covers(&places, bytes) {
                    jobs.push(Job { file, first, places });
                }
            }
        }
        queue.insert(file, jobs);
    }

    /// Checks the names of a directory when all sectors that were queued have been read. `names` has hash,
    /// sector and slot of each entry.
    fn close_directory(&mut self, dir: InodeNo, mut names: Vec<NameEntry>) {
        names.sort_unstable();
        // A crash leaves two entries of one name only in blocks that changed.
        Duplicates { walk: self }.find_namesakes(dir, &names);
        if self.is_in_parts(dir) {
            return;
        }
        Index { meta: &mut self.meta, findings: &mut self.findings, fixes: &mut self.round.fixes }
            .check_index(dir, names);
    }

    fn read_sector(&mut self, queue: &mut Queue, container: Container, image: &[u8]) {
        if let Err(error) = self.meta.verify_sector(image, container) {
            self.bad_sector(container, image, &error);
            return;
        }
        let sector = Sector::new(image);
        let sector_epoch = sector.epoch().0;
        self.meta.inventory.epoch_max = self.meta.inventory.epoch_max.max(sector_epoch);
        for entry in sector.entries() {
            if container.file != InodeNo::EXTERNAL {
                self.round.names += 1;
                queue.add_name(container.file, (entry.hash, container.sector.0, entry.slot));
                self.meta.inventory.count_entry(container.file, 1, 0);
                if entry.hash != name_hash(&self.meta.superblock.hash_seed, entry.name) {
                    let place = Place::Entry(container, entry.slot);
                    self.findings.problem(
                        Code::NameHash,
                        place,
                        "its hash is not that of its name",
                    );
                    self.round.fixes.push(Fix::RebuildSector(container));
                }
            }
            match &entry.body {
                Body::Embedded(record) => {
                    if let Some(file) = self.meta.inventory.containers.get_mut(&container.file) {
                        file.youngest = file.youngest.max(record.inode.btime());
                    }
                    let may_enter = self.register(record, container, entry.slot, sector.epoch().0);
                    if may_enter && container.file != InodeNo::EXTERNAL {
                        self.enqueue(queue, record.inode.number());
                    }
                }
                Body::Reference { ino, sector } => {
                    let reference = Reference { ino: *ino, container, slot: entry.slot };
                    let (file_type, epoch) = (entry.file_type, sector_epoch);
                    if self.register_reference(reference, *sector, file_type, epoch) {
                        self.enqueue(queue, *ino);
                    }
                }
            }
        }
    }

    fn bad_sector(&mut self, container: Container, image: &[u8], error: &Corruption) {
        let place = Place::Sector(container);
        let pieces = self.meta.inventory.sector_pieces(container, &self.meta.layout);
        self.meta.disk.contradict(&pieces, error);
        let says = self.meta.identify(image);
        let is_own = says == Some((container, self.meta.container_generation(container)));
        if is_own || matches!(error, Corruption::Entry { .. } | Corruption::Inode { .. }) {
            self.findings.problem(Code::BadEntry, place, error.to_string());
            self.round.fixes.push(Fix::RebuildSector(container));
        } else {
            let code = match container.file {
                InodeNo::EXTERNAL => Code::TableSectorLost,
                _ => Code::SectorLost,
            };
            self.findings.problem(code, place, error.to_string());
            if says.is_some() {
                // The sector belongs to another container, so the map that refers to it is wrong.
                self.round.misfits.insert(container);
            } else {
                self.round.fixes.push(Fix::ResetSector(container));
            }
            self.losses.incomplete.insert(container.file);
        }
        self.losses.sectors.insert(container);
        self.findings.touched.insert(container.file);
    }

    /// Adds an inode to the inventory; true if it is a directory that was not yet known.
    pub(super) fn register(
        &mut self,
        record: &Record<'_>,
        container: Container,
        slot: u16,
        epoch: u64,
    ) -> bool {
        let ino = record.inode.number();
        if ino.is_system() || !self.meta.is_possible_number(ino) {
            let place = Place::Entry(container, slot);
            self.findings.problem(
                Code::BadNumber,
                place,
                format!("an inode cannot have number {ino}"),
            );
            self.drop_entry(container, slot, false);
            return false;
        }
        let is_external = container.file == InodeNo::EXTERNAL;
        if !is_external && !self.meta.superblock.incompat.contains(Incompat::EMBED) {
            let message = format!("inode {ino} is embedded in a directory");
            self.findings.problem(Code::EmbeddedForbidden, Place::Entry(container, slot), message);
            self.round.fixes.push(Fix::Externalize(ino));
        }
        if self.meta.inventory.get(ino).is_some() {
            Duplicates { walk: self }.second_place(record, container, slot, epoch);
            return false;
        }
        let is_directory = record.inode.file_type() == Some(FileType::Directory);
        // The counts of a directory begin with those of the blocks that are not read.
        let is_read = self.scope.as_ref().is_none_or(|scope| scope.is_listed(container));
        if is_directory && !is_external && is_read {
            self.meta.inventory.count_entry(container.file, 0, 1);
        }
        for tag in record.link_tags() {
            self.meta.inventory.epoch_max = self.meta.inventory.epoch_max.max(tag.epoch.0);
        }
        self.add_found(record, container, slot);
        self.claim_record(record, container.file);
        if self.is_fast()
            && is_external
            && let Some(file) = self.meta.inventory.containers.get_mut(&ino)
        {
            // Its name may be in a directory that did not change.
            file.parent = InodeNo(record.inode.parent.get());
        }
        is_directory
    }

    pub(super) fn add_found(&mut self, record: &Record<'_>, container: Container, slot: u16) {
        let inode = record.inode;
        let generation = inode.generation.get();
        let is_dir = inode.file_type() == Some(FileType::Directory);
        let names = if is_dir { 1 } else { inode.nlink.get() };
        let references = match &self.scope {
            Some(scope) if container.file == InodeNo::EXTERNAL => {
                scope.names_elsewhere(inode.number(), container, names)
            }
            _ => 0,
        };
        self.meta.inventory.generation_max = self.meta.inventory.generation_max.max(generation);
        self.meta.inventory.add(Found {
            ino: inode.number(),
            container,
            slot,
            file_type: inode.file_type().unwrap_or(FileType::Regular),
            generation,
            nlink: inode.nlink.get(),
            references,
            fingerprint: fingerprint(record),
            parent: InodeNo(inode.parent.get()),
        });
    }

    /// Claims the space of a user's file and checks its attributes and tags.
    pub(super) fn claim_record(&mut self, record: &Record<'_>, parent: InodeNo) {
        let ino = record.inode.number();
        let broken = xattr::iter(record.xattrs).find_map(Result::err);
        let named = has_bad_name(record.xattrs).then_some("an attribute's name has a zero byte");
        if let Some(what) = broken.or(named) {
            self.findings.problem(Code::AttributeList, Place::Inode(ino), what);
            let good = good_attributes(record.xattrs);
            let patch = Patch { attributes: Some(good), ..Patch::default() };
            self.round.fixes.push(Fix::Patch(ino, patch));
        }
        self.check_fields(record);
        let pending = self.claims().start_map(record);
        if record.inode.file_type() == Some(FileType::Directory) {
            let check = self.claims().finish_at_once(pending);
            if check.damaged {
                self.losses.incomplete.insert(ino);
            }
            let file = self.container_file(record, check, parent);
            self.meta.inventory.containers.insert(ino, file);
        } else if pending.root.is_some() {
            self.space.pending_maps.push(pending);
        } else {
            let check = self.claims().finish_map(pending);
            self.claims().remember_contents(record, check);
        }
    }

    /// Checks fields that the codec cannot check without the geometry.
    fn check_fields(&mut self, record: &Record<'_>) {
        let layout = self.meta.layout;
        let inode = record.inode;
        let mut patch = Patch::default();
        let has_checksum = inode.inode_flags().contains(InodeFlags::CONTENT_CHECKSUM);
        if has_checksum && inode.size.get() > layout.segment_bytes.into() {
            patch.clear_flags = InodeFlags::CONTENT_CHECKSUM;
        }
        let hint_end = inode.hint_start.get().saturating_add(inode.hint_len.get().into());
        patch.drop_hint = hint_end > layout.fragments();
        if patch != Patch::default() {
            let message = "its checksum or its hint cannot be";
            self.findings.problem(Code::Fields, Place::Inode(inode.number()), message);
            self.round.fixes.push(Fix::Patch(inode.number(), patch));
        }
    }

    /// The container that a directory's inode, or the external table's, describes.
    pub(super) fn container_file(
        &mut self,
        record: &Record<'_>,
        check: MapCheck,
        parent: InodeNo,
    ) -> ContainerFile {
        let inode = record.inode;
        let size = self.check_container_size(inode.number(), inode.size.get(), &check);
        let unread = self.scope.as_ref().map(|scope| scope.unread(inode.number()));
        let (entries, subdirectories) = unread.unwrap_or_default();
        ContainerFile {
            entries,
            subdirectories,
            generation: inode.generation.get(),
            sectors: (size / u64::from(self.meta.layout.sector_bytes)) as u32,
            map: check.extents,
            parent,
            recorded_entries: inode.entries(),
            changed: inode.ctime(),
            buckets: inode.buckets(),
            indexed: inode.inode_flags().contains(InodeFlags::INDEXED),
            ..ContainerFile::default()
        }
    }

    /// The size of a container as far as its blocks cover it.
    fn check_container_size(&mut self, ino: InodeNo, size: u64, check: &MapCheck) -> u64 {
        let layout = self.meta.layout;
        let block = u64::from(layout.block_bytes);
        let fragment = u64::from(layout.fragment_bytes);
        let sectors_max = u64::from(u32::MAX / 2);
        let limit = INDEX_OFFSET_BYTES.min(sectors_max * u64::from(layout.sector_bytes));
        let is_size = size.is_multiple_of(block) && size <= limit;
        let wanted = size.min(limit);
        let below = check.extents.iter().take_while(|e| e.logical * fragment < wanted);
        let sectors = check.extents.iter().take_while(|e| e.logical * fragment < limit);
        let prefix = sectors.clone().try_fold(0, |at, extent| {
            if extent.logical == at { Ok(extent.logical_end()) } else { Err(at) }
        });
        let (Ok(prefix) | Err(prefix)) = prefix.map(|at| at * fragment).map_err(|at| at * fragment);
        if is_size && prefix > size && self.meta.is_own_sector(ino, size, &check.extents) {
            let message = format!("its size is {size} bytes, its sectors go on to {prefix}");
            self.findings.problem(Code::DirectorySize, Place::Inode(ino), message);
            let patch = Patch { size: Some(prefix), ..Patch::default() };
            self.round.fixes.push(Fix::Patch(ino, patch));
            self.round.fixes.push(Fix::Again);
            return prefix;
        }
        if is_size && prefix >= size {
            return size;
        }
        let message = format!("its size is {size} bytes, its blocks cover {prefix}");
        self.findings.problem(Code::DirectorySize, Place::Inode(ino), message);
        self.losses.incomplete.insert(ino);
        let kept: Vec<Extent> = check
            .extents
            .iter()
            .filter(|extent| !self.meta.is_misplaced(ino, extent))
            .copied()
            .collect();
        if kept.len() < check.extents.len() {
            self.round.fixes.push(Fix::SetMap(ino, kept));
        }
        let last = below.last().map_or(0, |extent| extent.logical_end() * fragment);
        let end = last.min(limit).next_multiple_of(block);
        let whole = prefix.min(limit) / block * block;
        if end - whole <= HOLE_BLOCKS_MAX * block && end > whole {
            self.round.fixes.push(Fix::FillHoles(ino, end));
            end
        } else {
            let patch = Patch { size: Some(whole), ..Patch::default() };
            self.round.fixes.push(Fix::Patch(ino, patch));
            self.round.fixes.push(Fix::Again);
            whole
        }
    }

    /// Adds a name of an external inode; true if it is the first name of a directory.
    fn register_reference(
        &mut self,
        reference: Reference,
        sector: SectorIndex,
        file_type: FileType,
        epoch: u64,
    ) -> bool {
        let Reference { ino, container, slot } = reference;
        let place = Place::Entry(container, slot);
        let external = Container { file: InodeNo::EXTERNAL, sector };
        if self.scope.as_ref().is_some_and(|scope| !scope.is_listed(external))
            && self.meta.inventory.get(ino).is_none()
        {
            // Neither the inode nor its names changed.
            let is_directory = file_type == FileType::Directory;
            self.meta.inventory.count_entry(container.file, 0, is_directory.into());
            return false;
        }
        let is_counted = self.scope.as_ref().is_none_or(|scope| scope.is_counted(container, epoch));
        let found = match self.meta.inventory.get(ino) {
            Some(found) if found.is_external() => *found,
            _ => {
                let message = format!("inode {ino} is not in the external inode table");
                self.findings.expected(Code::Dangling, place, message);
                self.lose_entry(container, slot);
                self.drop_entry(container, slot, false);
                return false;
            }
        };
        if found.container.sector != sector {
            let message = format!("inode {ino} is in sector {}", found.container.sector);
            self.findings.expected(Code::ReferenceSector, place, message);
            let sector = found.container.sector;
            self.round.fixes.push(Fix::ToReference { container, slot, ino, sector });
        }
        if found.file_type != file_type {
            let message = format!("inode {ino} is of another type");
            self.findings.problem(Code::EntryType, place, message);
            self.round.fixes.push(Fix::RebuildSector(container));
        }
        let is_directory = found.file_type == FileType::Directory;
        self.meta.inventory.references.push(reference);
        if let Some(found) = self.meta.inventory.get_mut(ino) {
            found.references += u32::from(is_counted);
        }
        if !is_directory {
            return false;
        }
        if (is_counted && found.references > 0) || ino == container.file {
            // Pass 2 decides which name stays.
            return false;
        }
        self.meta.inventory.count_entry(container.file, 0, 1);
        if let Some(file) = self.meta.inventory.containers.get_mut(&ino) {
            file.parent = container.file;
        }
        true
    }
}

fn covers(places: &[DiskPlace], len: u64) -> bool {
    places.iter().map(|place| place.len as u64).sum::<u64>() == len
}
