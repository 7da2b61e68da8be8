//! Repairs after which the truth must be walked again.

use std::collections::HashMap;

use super::editor::Patch;
use super::map::{ClaimKind, PendingContents, Sharer};
use super::pass0::system_sector;
use super::sectors::OwnedRecord;
use super::{Checker, Code, Place};
use crate::format::checksum::name_hash;
use crate::format::extent::Extent;
use crate::format::inode::{DiskInode, FileType, InodeFlags, Record};
use crate::format::sector::{self, Body, Sector};
use crate::format::xattr;
use crate::units::{Container, FragNo, FragRun, InodeNo, SectorIndex};
use zerocopy::FromZeros;

impl Checker<'_> {
    pub(super) fn reset_sector(&mut self, container: Container) {
        let mut image = vec![0; self.layout.sector_bytes as usize];
        sector::init(&mut image, container, self.container_generation(container));
        self.store_sector(container, &mut image);
    }

    /// Puts what is valid, or can be made valid, into a new image of the sector.
    pub(super) fn rebuild_sector(&mut self, container: Container) {
        let Some(old) = self.load_sector(container) else { return };
        let generation = self.container_generation(container);
        let mut image = vec![0; old.len()];
        sector::init(&mut image, container, generation);
        for entry in Sector::new(&old).entries() {
            let mut candidate = image.clone();
            let hash = match entry.name {
                b"" => entry.hash,
                name => name_hash(&self.superblock.hash_seed, name),
            };
            let inserted = match &entry.body {
                Body::Embedded(record) => {
                    let record = self.patched(record, entry.file_type);
                    let file_type = record.inode.file_type().unwrap_or(entry.file_type);
                    let body = Body::Embedded(record.as_record());
                    sector::insert(&mut candidate, hash, entry.name, file_type, &body)
                }
                Body::Reference { ino, .. } => {
                    let known = self.walk.inventory.get(*ino).map(|found| found.file_type);
                    let file_type = known.unwrap_or(entry.file_type);
                    sector::insert(&mut candidate, hash, entry.name, file_type, &entry.body)
                }
            };
            sector::seal(&mut candidate, Sector::new(&old).epoch(), self.checksum);
            if inserted.is_some() && self.verify_sector(&candidate, container).is_ok() {
                image = candidate;
            } else if !entry.name.is_empty() {
                self.losses.names.insert(entry.ino(), (container.file, entry.name.to_vec()));
            }
        }
        sector::seal(&mut image, Sector::new(&old).epoch(), self.checksum);
        self.store_sector(container, &mut image);
    }

    pub(super) fn fill_holes(&mut self, ino: InodeNo, end: u64) {
        let Some(file) = self.walk.inventory.containers.get(&ino).cloned() else { return };
        let fragments = u64::from(self.layout.block_fragments());
        let mut map = file.map.clone();
        let blocks = end / u64::from(self.layout.block_bytes);
        for block in 0..blocks {
            for logical in block * fragments..(block + 1) * fragments {
                let at = map.partition_point(|extent| extent.logical_end() <= logical);
                if map.get(at).is_some_and(|extent| extent.logical <= logical) {
                    continue;
                }
                let next = map.get(at).map_or(u64::MAX, |extent| extent.logical);
                let len = ((block + 1) * fragments).min(next) - logical;
                let Some(start) = self.allocate(len as u32) else {
                    let message = "no space to fill the holes of a directory";
                    self.problem(Code::NoSpace, Place::Inode(ino), message);
                    return;
                };
                map.insert(at, Extent { logical, start, len: len as u32, unwritten: false });
                // A stale sector that happens to lie there must not pass for one of this file.
                let run = self.run_place(FragRun::new(start, len as u32));
                self.disk.change(run.offset, &vec![0; run.len]);
            }
        }
        self.patch(ino, &Patch { size: Some(end), ..Patch::default() });
        let sectors = file.sectors;
        if self.set_map(ino, &map)
            && let Some(file) = self.walk.inventory.containers.get_mut(&ino)
        {
            file.map = map;
        }
        for sector in (0..sectors).map(SectorIndex) {
            let container = Container { file: ino, sector };
            let image = self.load_sector(container);
            if image.is_some_and(|image| image.iter().all(|byte| *byte == 0)) {
                self.reset_sector(container);
            }
        }
    }

    /// Removes an inode with its name or names.
    pub(super) fn remove_inode(&mut self, ino: InodeNo) {
        let Some(found) = self.walk.inventory.get(ino).copied() else { return };
        let mut image = match self.load_good_sector(found.container) {
            Some(image) => image,
            None => return,
        };
        self.lose_entry(found.container, found.slot);
        sector::remove(&mut image, found.slot);
        self.store_sector(found.container, &mut image);
        self.touched.insert(found.container.file);
    }

    /// Ends the target of a symbolic link early.
    pub(super) fn cut_target(&mut self, ino: InodeNo, len: usize) {
        let Some(record) = self.load_record(ino) else { return };
        if record.inode.inode_flags().contains(InodeFlags::INLINE) {
            self.edit_record(ino, |record| {
                record.data.truncate(len);
                record.inode.size = (record.data.len() as u64).into();
            });
            return;
        }
        let size = record.inode.size.get();
        let extents = self.collect_map(&record.as_record()).extents;
        let fragment = u64::from(self.layout.fragment_bytes);
        for extent in extents.iter().filter(|extent| !extent.unwritten) {
            let start = extent.logical * fragment;
            let keeps = (len as u64).saturating_sub(start);
            let place = self.run_place(extent.run());
            let mut bytes = self.disk.read(place.offset, place.len);
            if let Some(rest) = bytes.get_mut(keeps as usize..).filter(|_| start < size) {
                rest.fill(0);
                self.disk.change(place.offset, &bytes);
            }
        }
        self.patch(ino, &Patch { size: Some(len as u64), ..Patch::default() });
    }

    /// Gives an inode an attribute block with this list, at a new place.
    pub(super) fn set_attributes(&mut self, ino: InodeNo, list: &[u8]) {
        let Some(record) = self.load_record(ino) else { return };
        let Some(old) = record.inode.attribute_run() else { return };
        let Some(start) = self.allocate(old.len) else { return self.no_space(ino) };
        let new = FragRun::new(start, old.len);
        let place = self.run_place(new);
        let generation = record.inode.generation.get();
        let block = xattr::encode_block(list, ino, generation, start, place.len, self.checksum);
        self.disk.change(place.offset, &block);
        self.walk.used.release(old);
        self.patch(ino, &Patch { attribute_block: Some(new), ..Patch::default() });
    }

    pub(super) fn restore_system(&mut self, index: u32) {
        let container = system_sector(index);
        match self.system_sector_copy(index) {
            Some(mut image) => self.store_sector(container, &mut image),
            None => self.reset_sector(container),
        }
    }

    pub(super) fn remake_system(&mut self, ino: InodeNo) {
        let container = self.layout.system_container(ino);
        let Some(mut image) = self.load_good_sector(container) else { return };
        let slot = Sector::new(&image).find_inode(ino).map(|entry| entry.slot);
        if let Some(slot) = slot {
            sector::remove(&mut image, slot);
        }
        let is_root = ino == InodeNo::ROOT;
        let file_type = if is_root { FileType::Directory } else { FileType::Regular };
        let mut inode = self.new_inode(ino, file_type, if is_root { 0o755 } else { 0o600 });
        inode.parent = InodeNo::ROOT.0.into();
        let body = Body::Embedded(Record { inode: &inode, data: &[], xattrs: &[], tags: &[] });
        sector::insert(&mut image, 0, b"", file_type, &body);
        self.store_sector(container, &mut image);
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

    /// After a round that found fragments with two users, a round that finds out who they are;
    /// then each but one gets a copy. Always another round.
    pub(super) fn part_sharers(&mut self) -> bool {
        if !self.walk.contested.is_empty() {
            self.watched.append(&mut self.walk.contested);
            self.watched.sort_unstable();
            merge_runs(&mut self.watched);
            return false;
        }
        let sharers = std::mem::take(&mut self.walk.sharers);
        let mut proofs: HashMap<InodeNo, Proof> = HashMap::new();
        for sharer in &sharers {
            proofs.entry(sharer.ino).or_insert_with(|| self.proof_of(sharer.ino));
        }
        let mut ranked: Vec<(Rank, Sharer)> = sharers
            .into_iter()
            .map(|sharer| match sharer.kind {
                // What knows its own address stays.
                ClaimKind::Fixed => (Rank::Fixed, sharer),
                ClaimKind::Data => (Rank::Data(proofs[&sharer.ino]), sharer),
            })
            .collect();
        // Among equals, the first found keeps them.
        ranked.sort_by_key(|(rank, _)| *rank);
        let mut kept: Vec<(Rank, FragRun, InodeNo)> = Vec::new();
        for (rank, sharer) in ranked {
            let run = sharer.run;
            let others: Vec<_> = kept
                .iter()
                .filter(|(_, kept, _)| kept.start < run.end() && run.start < kept.end())
                .copied()
                .collect();
            let Some((best, _, owner)) = others.first().copied() else {
                kept.push((rank, run, sharer.ino));
                continue;
            };
            let range = format!("fragments {} to {}", run.start, run.end().0 - 1);
            let is_anothers = best == Rank::Data(Proof::Right) || rank == Rank::Data(Proof::Wrong);
            let message = match is_anothers {
                true => format!("{range} have another user, inode {owner}, and are not its own"),
                false => format!("{range} have another user, inode {owner}"),
            };
            self.problem(Code::SharedFragments, Place::Inode(sharer.ino), message);
            match sharer.kind {
                ClaimKind::Data if is_anothers => {
                    let taken: Vec<FragRun> = others.iter().map(|(_, run, _)| *run).collect();
                    self.leave_holes(sharer.ino, &taken);
                }
                ClaimKind::Data => self.copy_extent(sharer.ino, run),
                // At most one of two such blocks is what it should be; the walk drops the other.
                ClaimKind::Fixed => {}
            }
        }
        self.watched.clear();
        false
    }

    /// The evidence of a file's contents that they belong to it.
    fn proof_of(&mut self, ino: InodeNo) -> Proof {
        let Some(record) = self.load_record(ino) else { return Proof::None };
        let inode = &record.inode;
        if inode.file_type() == Some(FileType::Directory) {
            return self.proof_of_directory(&record);
        }
        let has_checksum = inode.inode_flags().contains(InodeFlags::CONTENT_CHECKSUM)
            && inode.size.get() <= self.layout.segment_bytes.into();
        if !has_checksum {
            return Proof::None;
        }
        let mut extents = self.collect_map(&record.as_record()).extents;
        extents.sort_by_key(|extent| extent.logical);
        let (size, checksum) = (inode.size.get(), inode.content_checksum.get());
        match self.has_contents(&PendingContents { ino, size, checksum, extents }) {
            true => Proof::Right,
            false => Proof::Wrong,
        }
    }

    fn proof_of_directory(&mut self, record: &OwnedRecord) -> Proof {
        let extents = self.collect_map(&record.as_record()).extents;
        let fragments = u64::from(self.layout.block_fragments());
        let ino = record.inode.number();
        let sector_bytes = self.layout.sector_bytes;
        let (mut own, mut others) = (0u64, 0u64);
        for extent in extents.iter().filter(|extent| extent.is_of_blocks(fragments as u32)) {
            for at in (0..u64::from(extent.len)).step_by(fragments as usize) {
                let run = FragRun::new(FragNo(extent.start.0 + at), fragments as u32);
                let image = self.disk.read(self.run_place(run).offset, sector_bytes as usize);
                let offset = (extent.logical + at) * u64::from(self.layout.fragment_bytes);
                let sector = SectorIndex((offset / u64::from(sector_bytes)) as u32);
                match self.identify(&image) {
                    None => {}
                    Some((found, _)) if found == (Container { file: ino, sector }) => own += 1,
                    Some(_) => others += 1,
                }
            }
        }
        match (own, others) {
            (_, 1..) => Proof::Wrong,
            (1.., 0) => Proof::Right,
            (0, 0) => Proof::None,
        }
    }

    /// Takes fragments that are others' out of a file's map.
    fn leave_holes(&mut self, ino: InodeNo, taken: &[FragRun]) {
        let Some(record) = self.load_record(ino) else { return };
        let mut extents = self.collect_map(&record.as_record()).extents;
        extents.sort_by_key(|extent| extent.logical);
        for run in taken {
            extents = extents.into_iter().flat_map(|extent| without(extent, *run)).collect();
        }
        self.set_map(ino, &extents);
        let clear_flags = InodeFlags::CONTENT_CHECKSUM;
        self.patch(ino, &Patch { clear_flags, ..Patch::default() });
    }

    /// Gives a file a copy of an extent that it shares.
    fn copy_extent(&mut self, ino: InodeNo, run: FragRun) {
        let Some(record) = self.load_record(ino) else { return };
        let mut extents = self.collect_map(&record.as_record()).extents;
        extents.sort_by_key(|extent| extent.logical);
        let Some(position) = extents.iter().rposition(|extent| extent.run() == run) else { return };
        match self.allocate(run.len) {
            Some(start) => {
                let from = self.run_place(run);
                let bytes = self.disk.read(from.offset, from.len);
                let to = self.run_place(FragRun::new(start, run.len));
                self.disk.change(to.offset, &bytes);
                extents[position].start = start;
            }
            None => {
                let message = "no space for a copy of an extent; the file has a hole there";
                self.problem(Code::NoSpace, Place::Inode(ino), message);
                extents.remove(position);
            }
        }
        self.set_map(ino, &extents);
    }

    /// The record with what can be set right set right.
    fn patched(&mut self, record: &Record<'_>, file_type: FileType) -> OwnedRecord {
        let is_directory = self.has_own_sectors(record);
        let mut record = OwnedRecord::new(record);
        let inode = &mut record.inode;
        if inode.file_type() != Some(file_type) {
            // The type stands in two places; that of the mode counts if it is one, but a directory is
            // known by its sectors.
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
        record
    }

    /// Whether a file's contents begin with the first sector of a directory with its number.
    fn has_own_sectors(&mut self, record: &Record<'_>) -> bool {
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
}

/// Evidence that contents belong to their file, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Proof {
    /// They match its checksum.
    Right,
    /// It has none.
    None,
    /// They do not.
    Wrong,
}

/// Which of the users of shared fragments keeps them: the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Fixed,
    Data(Proof),
}

/// The parts of an extent outside of a run.
fn without(extent: Extent, run: FragRun) -> impl Iterator<Item = Extent> {
    let (first, end) = (extent.start.0, extent.run().end().0);
    let piece = move |from: u64, to: u64| {
        (from < to).then(|| Extent {
            logical: extent.logical + (from - first),
            start: FragNo(from),
            len: (to - from) as u32,
            ..extent
        })
    };
    let before = piece(first, end.min(run.start.0));
    before.into_iter().chain(piece(first.max(run.end().0), end))
}

fn merge_runs(runs: &mut Vec<FragRun>) {
    let mut merged: Vec<FragRun> = Vec::with_capacity(runs.len());
    for run in runs.drain(..) {
        match merged.last_mut() {
            Some(last) if run.start <= last.end() => {
                let end = last.end().max(run.end());
                // Runs lie within a group, so that merged ones that go on in the next stay apart.
                match u32::try_from(end.0 - last.start.0) {
                    Ok(len) => last.len = len,
                    Err(_) => merged.push(run),
                }
            }
            _ => merged.push(run),
        }
    }
    *runs = merged;
}
