//! Containers: files of sectors, which have entries and inodes in them. Directories, the external inode table
//! and the system area are containers.
//!
//! A sector is verified when its block first comes from the device. The intent log lists each block before
//! its first change.

use std::sync::Arc;

use super::{Holder, Inode, InodeCache, VnodeGuard, VnodeState};
use crate::cache::Block;
use crate::error::{Corruption, Result};
use crate::format::sector::{self, Sector};
use crate::format::{Layout, LiveLayout, NAME_BYTES_MAX};
use crate::units::{Container, FileBlock, SectorIndex};

/// The longest body of an entry: a sector has room for it and a name of any length, so that every file can be
/// given a longer name.
pub fn body_bytes_max(layout: &Layout) -> usize {
    let fixed = sector::SECTOR_HEADER_BYTES + sector::entry_bytes(NAME_BYTES_MAX, 0);
    (layout.sector_bytes as usize).saturating_sub(fixed)
}

/// A sector of a container, with the block that holds it.
pub struct SectorImage {
    block: Arc<Block>,
    at: usize,
    len: usize,
}

impl SectorImage {
    /// The sector, for reading.
    pub fn get(&self) -> Sector<'_> {
        Sector::new(&self.block[self.at..self.at + self.len])
    }
}

/// The sectors of one block of a container, with the block that holds them.
pub struct SectorImages {
    block: Arc<Block>,
    first: SectorIndex,
    len: usize,
}

impl SectorImages {
    /// The sectors in order, for reading.
    pub fn iter(&self) -> impl Iterator<Item = (SectorIndex, Sector<'_>)> {
        let images = self.block.chunks_exact(self.len).map(Sector::new);
        (self.first.0..).map(SectorIndex).zip(images)
    }
}

/// The sectors of container files.
#[derive(Clone, Copy)]
pub struct Containers<'a> {
    inodes: &'a InodeCache,
    layout: &'a LiveLayout,
}

impl<'a> Containers<'a> {
    pub(super) fn new(inodes: &'a InodeCache) -> Containers<'a> {
        Containers { inodes, layout: &inodes.layout }
    }

    /// The sector of a container file, verified.
    pub fn sector(&self, file: &VnodeState, index: SectorIndex) -> Result<SectorImage> {
        let per_block = self.layout.block_sectors();
        let block = self.block(file, FileBlock(u64::from(index.0 / per_block)))?;
        let len = self.layout.sector_bytes as usize;
        Ok(SectorImage { block, at: (index.0 % per_block) as usize * len, len })
    }

    /// The sectors of a block of a container file, verified.
    pub fn sectors(&self, file: &VnodeState, position: FileBlock) -> Result<SectorImages> {
        let block = self.block(file, position)?;
        let first = SectorIndex(position.0 as u32 * self.layout.block_sectors());
        Ok(SectorImages { block, first, len: self.layout.sector_bytes as usize })
    }

    /// The sector of a container file, for changing it.
    pub fn sector_mut<'f>(
        &self,
        file: &'f mut VnodeGuard<'_>,
        index: SectorIndex,
    ) -> Result<&'f mut [u8]> {
        let per_block = self.layout.block_sectors();
        let position = FileBlock(u64::from(index.0 / per_block));
        let holder = Holder::of(file);
        self.inodes.queue(file.vnode);
        let (block, made_dirty) =
            self.inodes.dirty_page_or(file, position, |inode| self.clean_block(inode, position))?;
        // After a checkpoint no page is dirty, so the first change of each passes here.
        if made_dirty {
            self.inodes.intent_log.container(&holder, position, Some(block));
        }
        debug_assert!(self.inodes.intent_log.has_block(&holder, position), "its block is noted");
        let len = self.layout.sector_bytes as usize;
        let at = (index.0 % per_block) as usize * len;
        Ok(&mut block[at..at + len])
    }

    /// Records a block of a container in the intent log, before it changes.
    pub(super) fn note(&self, file: &VnodeState, position: FileBlock) -> Result<()> {
        let block = self.block(file, position)?;
        self.inodes.intent_log.container(&Holder::of(file), position, Some(&block));
        Ok(())
    }

    fn block(&self, file: &VnodeState, position: FileBlock) -> Result<Arc<Block>> {
        match file.pages.get(position) {
            Some(block) => Ok(block.clone()),
            None => self.clean_block(&file.inode, position),
        }
    }

    /// The block of a container that is on the device.
    fn clean_block(&self, inode: &Inode, position: FileBlock) -> Result<Arc<Block>> {
        let per_block = self.layout.block_sectors();
        let first = SectorIndex(position.0 as u32 * per_block);
        let number = inode
            .map()
            .and_then(|map| map.block_at(position, self.layout.block_fragments()))
            .ok_or(Corruption::Inode {
                ino: inode.ino,
                what: "a sector of the container has no whole block",
            })?;
        let block = self.inodes.contents().read_whole(number)?;
        block.verify_as(inode.ino, |bytes| {
            let sectors = bytes.chunks_exact(self.layout.sector_bytes as usize);
            (first.0..).zip(sectors).try_for_each(|(index, bytes)| {
                let container = Container { file: inode.ino, sector: SectorIndex(index) };
                sector::verify(bytes, container, inode.generation, self.inodes.checksum)
            })
        })?;
        Ok(block)
    }

    /// The count of sectors of a container file.
    pub fn sector_count(&self, file: &VnodeState) -> u32 {
        (file.inode.size / u64::from(self.layout.sector_bytes)) as u32
    }

    /// The block of a container at this position, with empty sectors.
    pub fn empty_block(&self, file: &VnodeState, position: FileBlock) -> Block {
        let mut block = Block::zeroed(self.layout.block_bytes as usize);
        let first = position.0 as u32 * self.layout.block_sectors();
        let sectors = block.chunks_exact_mut(self.layout.sector_bytes as usize);
        for (index, image) in (first..).zip(sectors) {
            let container = Container { file: file.inode.ino, sector: SectorIndex(index) };
            sector::init(image, container, file.inode.generation);
        }
        block
    }

    /// Appends a block of empty sectors to a container and returns the first.
    pub fn append_sectors(&self, file: &mut VnodeGuard<'_>) -> Result<SectorIndex> {
        let first = SectorIndex(self.sector_count(file));
        self.inodes.space().promise_block(file)?;
        let position = self.layout.file_block(file.inode.size);
        let block = self.empty_block(file, position);
        block.trust_as(file.inode.ino);
        self.inodes.intent_log.container(&Holder::of(file), position, None);
        self.inodes.count_dirty(file, |file| {
            file.pages.insert(position, Arc::new(block));
        });
        file.inode.size += u64::from(self.layout.block_bytes);
        self.inodes.mark_dirty(file);
        Ok(first)
    }
}
