//! Sealing: the last step of an epoch's preparation. Sectors and derived pages are put into their phase, with
//! epoch and checksum.

use std::sync::Arc;

use super::prepare::{PageKind, Preparation, page_kind};
use crate::cache::{Block, Phase};
use crate::error::{Corruption, Result};
use crate::format::sector::{self, Sector};
use crate::format::{Checksum, index, locator};
use crate::inode::{Vnode, VnodeGuard};
use crate::units::{BlockNo, EpochNo, FileBlock, InodeNo};

impl Preparation<'_> {
    /// Snapshots the pages of containers and of derived state.
    pub(crate) fn seal(&mut self) -> Result<()> {
        let base = FileBlock(index::index_base(self.inodes.layout.block_bytes));
        let containers: Vec<Arc<Vnode>> = self.batch.containers().cloned().collect();
        for vnode in &containers {
            let mut file = VnodeGuard::new(vnode);
            let kind = page_kind(&file);
            file.entries.have_left();
            let sectors_end = if kind == PageKind::Sectors { base } else { FileBlock(0) };
            let positions: Vec<FileBlock> = file.pages.dirty_in(FileBlock::ALL).collect();
            let mut taken = Vec::with_capacity(positions.len());
            for position in positions {
                if position < sectors_end {
                    self.seal_sectors(&mut file, position)?;
                } else if self.with_derived {
                    self.seal_derived(&mut file, position, kind)?;
                } else {
                    self.inodes.queue(vnode);
                    continue;
                }
                taken.push(position);
            }
            self.withdraw_unused_blocks(&mut file);
            // A refused change may have been promised space while pages waited.
            self.inodes.space().withdraw_unused(&mut file);
            if file.changes.dirty {
                self.inodes.queue(vnode);
            }
            self.in_flight.push((vnode.clone(), taken));
        }
        Ok(())
    }

    /// Withdraws promised blocks of pages that have a block already, as on a damaged volume.
    fn withdraw_unused_blocks(&self, file: &mut VnodeGuard<'_>) {
        let waiting = file.pages.dirty_count() as u64;
        let unused = file.promised.blocks.saturating_sub(waiting);
        if unused > 0 {
            file.promised.blocks -= unused;
            self.inodes.alloc.withdraw_blocks(unused);
        }
    }

    fn number_of(&self, file: &VnodeGuard<'_>, position: FileBlock) -> Result<BlockNo> {
        let fragments = self.inodes.layout.block_fragments();
        let map = file.inode.map();
        let what = "a changed block of it has no place";
        map.and_then(|map| map.block_at(position, fragments))
            .ok_or(Corruption::Inode { ino: file.inode.ino, what }.into())
    }

    fn take_page(&self, file: &mut VnodeGuard<'_>, position: FileBlock) -> Option<Arc<Block>> {
        let epoch = self.write_back.epoch;
        self.inodes.count_dirty(file, |file| file.pages.start_write(position, epoch))
    }

    fn seal_sectors(&mut self, file: &mut VnodeGuard<'_>, position: FileBlock) -> Result<()> {
        let number = self.number_of(file, position)?;
        let len = self.inodes.layout.sector_bytes as usize;
        let (epoch, checksum) = (self.write_back.epoch, self.inodes.checksum);
        let change = match file.inode.ino {
            InodeNo::EXTERNAL => Phase::Table,
            InodeNo::SYSTEM if self.changes_table() => Phase::Table,
            _ => Phase::Change,
        };
        let new = self
            .new_pages
            .get(&file.inode.ino)
            .is_some_and(|new| new.binary_search(&position).is_ok());
        let waits = new && self.names_wait(file, position);
        if waits {
            let empty = self.inodes.containers().empty_block(file, position);
            self.write_back.writes.put_block(
                Phase::New,
                number,
                sealed(empty, len, epoch, checksum),
            );
        }
        let Some(page) = self.inodes.dirty_page(file, position) else { return Ok(()) };
        let has = |what: &dyn Fn(Sector<'_>) -> bool| {
            page.chunks_exact(len).any(|image| what(Sector::new(image)))
        };
        let leaves = !new && has(&|sector| sector.has_leaving());
        let appears = has(&|sector| sector.has_appearing());
        let first = match (new, waits) {
            (true, false) => Phase::New,
            (true, true) => Phase::Change,
            (false, _) => change,
        };
        let phases =
            [Some(first), leaves.then_some(Phase::Settle), appears.then_some(Phase::Appear)];
        let mut phases: Vec<Phase> = phases.into_iter().flatten().collect();
        let last = phases.pop().unwrap_or(first);
        for phase in phases {
            let mut before = page.clone();
            let undo = match phase {
                Phase::Settle => sector::before_appearing,
                _ if new => sector::before_appearing,
                _ => sector::before_deferred,
            };
            before.chunks_exact_mut(len).for_each(undo);
            self.write_back.writes.put_block(phase, number, sealed(before, len, epoch, checksum));
        }
        for image in page.chunks_exact_mut(len) {
            sector::settle(image);
            sector::seal(image, epoch, checksum);
        }
        self.note_causes(file, position, number);
        if let Some(block) = self.take_page(file, position) {
            self.write_back.writes.put_block(last, number, block);
        }
        Ok(())
    }

    /// Whether the external inode table changes. Its inode points to its sectors and is stored in the system
    /// area. The root directory's inode is stored there as well, and may be written as late as the inodes of
    /// other directories.
    fn changes_table(&self) -> bool {
        self.batch.containers().any(|vnode| vnode.ino == InodeNo::EXTERNAL)
    }

    /// Whether a new block of a directory has to be written without its names first. The inode of the
    /// directory, which points to the block, and the inodes of names that moved here are changed in one
    /// phase, and a name must not exist before the tag that records its move.
    fn names_wait(&self, dir: &VnodeGuard<'_>, position: FileBlock) -> bool {
        let is_external = dir.container.is_some_and(|place| place.file == InodeNo::EXTERNAL);
        let Some(page) = dir.pages.get(position).filter(|_| is_external) else { return false };
        let moved = |ino| {
            let vnode = self.inodes.peek(ino);
            vnode.is_some_and(|vnode| {
                vnode.state.read().motion.lost_name == Some(self.write_back.epoch)
            })
        };
        page.chunks_exact(self.inodes.layout.sector_bytes as usize).any(|image| {
            let mut entries = Sector::new(image).entries();
            entries.any(|entry| match entry.body {
                sector::Body::Reference { ino, .. } => moved(ino),
                sector::Body::Embedded(_) => false,
            })
        })
    }

    fn seal_derived(
        &mut self,
        file: &mut VnodeGuard<'_>,
        position: FileBlock,
        kind: PageKind,
    ) -> Result<()> {
        let number = self.number_of(file, position)?;
        let checksum = self.inodes.checksum;
        // A page that is on the device is overwritten only after the intent log lists it.
        let new = self
            .new_pages
            .get(&file.inode.ino)
            .is_some_and(|new| new.binary_search(&position).is_ok());
        let phase = if new { Phase::New } else { Phase::Change };
        let Some(page) = self.inodes.dirty_page(file, position) else { return Ok(()) };
        match kind {
            PageKind::Locator => locator::seal(page, checksum),
            _ => index::seal(page, checksum),
        }
        self.note_causes(file, position, number);
        if let Some(block) = self.take_page(file, position) {
            self.write_back.writes.put_block(phase, number, block);
        }
        Ok(())
    }

    /// Attributes the write of a page to the operations that changed it.
    fn note_causes(&mut self, file: &VnodeGuard<'_>, position: FileBlock, number: BlockNo) {
        if let Some(causes) = file.pages.causes(position) {
            self.write_back.writes.note_causes(number, causes);
        }
    }
}

/// A block of sectors of `len` bytes, sealed.
fn sealed(mut block: Block, len: usize, epoch: EpochNo, checksum: Checksum) -> Arc<Block> {
    block.chunks_exact_mut(len).for_each(|image| sector::seal(image, epoch, checksum));
    Arc::new(block)
}
