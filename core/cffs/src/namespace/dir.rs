//! Entries of one directory: find, insert, remove.

use super::{Found, Namespace};
use crate::error::{Error, Result};
use crate::format::index;
use crate::format::inode::FileType;
use crate::format::sector::{self, Body, Sector};
use crate::inode::{DirtyLevel, VnodeGuard, VnodeState};
use crate::units::{FileBlock, InodeNo, SectorIndex};

/// The most sectors that are searched for a hole before a new entry gets a new sector, so that its cost does
/// not depend on the size of the directory.
const HOLE_SEARCH_SECTORS_MAX: u32 = 64;

/// A new entry for a directory, or for the external table if the name is empty.
pub(super) struct NewEntry<'a> {
    pub name: &'a [u8],
    pub hash: u32,
    pub file_type: FileType,
    pub body: Body<'a>,
    /// Bytes to leave free in the sector for the entry to grow.
    pub slack: usize,
    /// Whether the entry may be written in the last phase of the epoch. The only name of a new file may,
    /// since nothing else is lost without it; a directory may not, because of files that move into it.
    pub may_wait: bool,
}

impl NewEntry<'_> {
    pub(super) fn len(&self) -> usize {
        let body = match &self.body {
            Body::Embedded(record) => record.len(),
            Body::Reference { .. } => sector::REFERENCE_BYTES,
        };
        sector::entry_bytes(self.name.len(), body)
    }
}

impl Namespace {
    /// The entry with this name.
    pub fn find(&self, dir: &VnodeState, name: &[u8]) -> Result<Option<Found>> {
        self.find_hashed(dir, self.hash(name)?, name)
    }

    /// The entry with this name, whose hash is `hash`.
    pub(super) fn find_hashed(
        &self,
        dir: &VnodeState,
        hash: u32,
        name: &[u8],
    ) -> Result<Option<Found>> {
        if let Some(bucket) = self.index().find(dir, hash)? {
            for index in index::find(&bucket, hash) {
                if index.0 < self.inodes.containers().sector_count(dir)
                    && let Some(found) = self.find_in(dir, index, hash, name)?
                {
                    return Ok(Some(found));
                }
            }
            return Ok(None);
        }
        for position in (0..self.inodes.layout.file_block(dir.inode.size).0).map(FileBlock) {
            let sectors = self.inodes.containers().sectors(dir, position)?;
            let find = |(index, sector): (SectorIndex, Sector<'_>)| {
                sector.find_name(hash, name).map(|entry| Found::new(index, &entry))
            };
            if let Some(found) = sectors.iter().find_map(find) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn find_in(
        &self,
        dir: &VnodeState,
        index: SectorIndex,
        hash: u32,
        name: &[u8],
    ) -> Result<Option<Found>> {
        let image = self.inodes.containers().sector(dir, index)?;
        Ok(image.get().find_name(hash, name).map(|entry| Found::new(index, &entry)))
    }

    /// Adds an entry to a directory or to the external table, which does not have the name yet. If the open
    /// epoch removes the name from the device, the entry must be written after that.
    pub(super) fn insert_entry(
        &self,
        dir: &mut VnodeGuard<'_>,
        entry: &NewEntry<'_>,
    ) -> Result<(SectorIndex, u16)> {
        let waits = dir.entries.is_leaving(entry.hash) && !entry.name.is_empty();
        if waits && !entry.may_wait {
            return Err(Error::EpochNeeded);
        }
        let index = self.sector_with_room(dir, entry.len() + entry.slack)?;
        let slot = self.insert_entry_in(dir, index, entry)?.ok_or(Error::NoSpace)?;
        if waits {
            sector::defer_appearance(self.inodes.containers().sector_mut(dir, index)?, slot);
        }
        Ok((index, slot))
    }

    /// Adds an entry to this sector; `None` if it does not fit there.
    fn insert_entry_in(
        &self,
        dir: &mut VnodeGuard<'_>,
        index: SectorIndex,
        entry: &NewEntry<'_>,
    ) -> Result<Option<u16>> {
        let image = self.inodes.containers().sector_mut(dir, index)?;
        let slot = sector::insert(image, entry.hash, entry.name, entry.file_type, &entry.body);
        if slot.is_some() {
            self.entry_added(dir, entry.hash, index)?;
        }
        Ok(slot)
    }

    /// Counts and indexes an entry that was put into a sector.
    pub(super) fn entry_added(
        &self,
        dir: &mut VnodeGuard<'_>,
        hash: u32,
        index: SectorIndex,
    ) -> Result<()> {
        if dir.inode.is_dir() {
            // The intent log has the count of the checkpoint, so the sector comes first.
            debug_assert!(self.inodes.intent_log.has_noted(dir.inode.ino), "its sector is noted");
            let count = dir.inode.entry_count.saturating_add(1);
            dir.inode.entry_count = count;
            self.index().insert(dir, hash, index)?;
            self.inodes.mark_changed(dir, DirtyLevel::Times);
        }
        Ok(())
    }

    /// Removes an entry: at once, or, if `deferred`, from the device in the last phase.
    pub(super) fn remove_entry(
        &self,
        dir: &mut VnodeGuard<'_>,
        index: SectorIndex,
        slot: u16,
        hash: u32,
        deferred: bool,
    ) -> Result<()> {
        self.hide_entry(dir, index, slot, hash, deferred)?;
        if dir.inode.is_dir() && dir.inode.entry_count == 0 {
            self.release_sectors(dir)?;
        }
        Ok(())
    }

    /// Removes an entry and keeps its sector even if it is empty, since another entry follows.
    pub(super) fn hide_entry(
        &self,
        dir: &mut VnodeGuard<'_>,
        index: SectorIndex,
        slot: u16,
        hash: u32,
        deferred: bool,
    ) -> Result<()> {
        self.recent.forget(dir.inode.ino, hash);
        // The steps that can fail come first: a name that is only removed from its sector would be lost.
        self.inodes.containers().sector_mut(dir, index)?;
        if dir.inode.is_dir() {
            self.index().remove(dir, hash, index)?;
        }
        let image = self.inodes.containers().sector_mut(dir, index)?;
        if deferred {
            sector::defer_removal(image, slot);
            dir.entries.leave(hash);
        } else {
            sector::remove(image, slot);
        }
        dir.entries.room_from = dir.entries.room_from.min(index.0);
        if dir.inode.is_dir() {
            debug_assert!(self.inodes.intent_log.has_noted(dir.inode.ino), "its sector is noted");
            let count = dir.inode.entry_count.saturating_sub(1);
            dir.inode.entry_count = count;
            self.inodes.mark_changed(dir, DirtyLevel::Times);
        }
        Ok(())
    }

    /// Renames an entry in place, so that a listing shows it once; returns false if its sector has no room
    /// for the name. The rest of the entry stays or becomes shorter.
    pub(super) fn rename_in_sector(
        &self,
        dir: &mut VnodeGuard<'_>,
        old: &Found,
        entry: &NewEntry<'_>,
    ) -> Result<bool> {
        if dir.entries.is_leaving(entry.hash) {
            return Err(Error::EpochNeeded);
        }
        let room = {
            let image = self.inodes.containers().sector(dir, old.sector)?;
            image.get().free_bytes() + image.get().entry_len(old.slot)
        };
        if entry.len() > room {
            return Ok(false);
        }
        // The steps that can fail come first. An index that is made now would contain the old name.
        if dir.inode.bucket_count > 0 {
            self.index().insert(dir, entry.hash, old.sector)?;
        }
        self.hide_entry(dir, old.sector, old.slot, old.hash, false)?;
        let image = self.inodes.containers().sector_mut(dir, old.sector)?;
        let NewEntry { hash, name, file_type, body, .. } = entry;
        let slot = sector::insert_at(image, old.slot, *hash, name, *file_type, body);
        debug_assert_eq!(slot, Some(old.slot), "the slot and the room were just freed");
        debug_assert!(self.inodes.intent_log.has_noted(dir.inode.ino), "its sector is noted");
        let count = dir.inode.entry_count.saturating_add(1);
        dir.inode.entry_count = count;
        Ok(true)
    }

    /// A sector with `len` free bytes: that of [`room_in`](Namespace::room_in), or else a new one.
    fn sector_with_room(&self, dir: &mut VnodeGuard<'_>, len: usize) -> Result<SectorIndex> {
        match self.room_in(dir, len)? {
            Some(index) => Ok(index),
            None => self.inodes.containers().append_sectors(dir),
        }
    }

    /// A sector with `len` free bytes, if one is found: the last one if it has them, so that entries stay in
    /// the order of creation; else one with a hole.
    pub(super) fn room_in(
        &self,
        dir: &mut VnodeGuard<'_>,
        len: usize,
    ) -> Result<Option<SectorIndex>> {
        if let Some(index) = self.room_at_end(dir, len)? {
            return Ok(Some(index));
        }
        let count = self.inodes.containers().sector_count(dir);
        let from = dir.entries.room_from.min(count);
        let to = count.min(from + HOLE_SEARCH_SECTORS_MAX);
        for index in from..to {
            if self.inodes.containers().sector(dir, SectorIndex(index))?.get().room() >= len {
                dir.entries.room_from = index;
                return Ok(Some(SectorIndex(index)));
            }
        }
        // The skipped sectors have less room than such an entry takes. A shorter entry may miss room in them;
        // a removal lowers the mark again.
        dir.entries.room_from = to;
        Ok(None)
    }

    /// The first sector of the last block that has `len` free bytes, if the last one has them: a new
    /// block has several empty sectors.
    fn room_at_end(&self, dir: &VnodeState, len: usize) -> Result<Option<SectorIndex>> {
        let Some(end) = dir.inode.size.checked_sub(1) else { return Ok(None) };
        let sectors = self.inodes.containers().sectors(dir, self.inodes.layout.file_block(end))?;
        let has_room = |(_, sector): &(SectorIndex, Sector<'_>)| sector.room() >= len;
        if !sectors.iter().last().as_ref().is_some_and(has_room) {
            return Ok(None);
        }
        Ok(sectors.iter().find(has_room).map(|(index, _)| index))
    }

    /// Frees the sectors of a directory that has become empty, unless one of their entries must still be
    /// removed from the device in the last phase.
    fn release_sectors(&self, dir: &mut VnodeGuard<'_>) -> Result<()> {
        if dir.inode.nlink == 0 || dir.inode.ino == InodeNo::EXTERNAL {
            return Ok(());
        }
        if self.has_deferred(dir) {
            return Ok(());
        }
        dir.inode.bucket_count = 0;
        dir.entries.room_from = 0;
        self.inodes.writer().set_size(dir, 0)
    }

    /// Whether an entry of the directory must still be removed from the device in the last phase of the
    /// epoch. Until then the directory must stay, since the entry is the device's only record of a file that
    /// moved.
    fn has_deferred(&self, dir: &VnodeState) -> bool {
        let sectors_end = self.inodes.layout.file_block(dir.inode.size);
        dir.pages.dirty_in(FileBlock(0)..sectors_end).any(|position| {
            let len = self.inodes.layout.sector_bytes as usize;
            let block = dir.pages.get(position);
            block.is_some_and(|b| b.chunks_exact(len).any(|s| Sector::new(s).has_deferred()))
        })
    }

    /// Fails unless the directory can be removed in this epoch: it has no entry, not even on the device.
    pub(super) fn check_can_go(&self, dir: &VnodeState) -> Result<()> {
        if !self.is_empty(dir) {
            return Err(Error::NotEmpty);
        }
        if self.has_deferred(dir) { Err(Error::EpochNeeded) } else { Ok(()) }
    }

    /// Whether the directory has an entry.
    fn is_empty(&self, dir: &VnodeState) -> bool {
        dir.inode.entry_count == 0
    }
}
