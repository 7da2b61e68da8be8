//! The inode locator table in use: the places of inodes, and the free numbers (thesis 2.1.5).
//!
//! A path walk never uses it. The table is derived state: its changed pages stay in memory until a
//! checkpoint or until there are many.
//!
//! A rotor finds free numbers: it moves over the table number by number and skips blocks that are nearly
//! full; the table grows if at least half of it is in use. So a number costs a fraction of a read even after
//! millions of files were made and removed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::HashSet;

use super::{Inode, InodeCache, VnodeGuard, VnodeState};
use crate::cache::Block;
use crate::error::{Corruption, Result};
use crate::format::locator::{self, Entry};
use crate::format::{LiveLayout, Superblock};
use crate::lock::{Mutex, Rank};
use crate::units::{BlockNo, Container, FileBlock, InodeNo};

#[derive(Default)]
struct Numbers {
    /// The number at which the next search begins.
    rotor: u64,
    /// Numbers of inodes deleted in the open epoch: on the device they are still in use.
    freed: HashSet<InodeNo>,
    /// The same for the epoch that is being written.
    freeing: HashSet<InodeNo>,
}

/// The part of the table that is not in its pages: free numbers and the count of inodes.
pub struct Locator {
    numbers: Mutex<Numbers>,
    inodes: AtomicU64,
}

impl Locator {
    /// The table as the superblock describes it.
    pub fn new(superblock: &Superblock) -> Locator {
        Locator {
            numbers: Mutex::new(
                Rank::Numbers,
                Numbers { rotor: superblock.inode_rotor, ..Numbers::default() },
            ),
            inodes: AtomicU64::new(superblock.inodes),
        }
    }

    /// Inodes in use, the system's own not counted.
    pub fn inodes(&self) -> u64 {
        self.inodes.load(Ordering::Relaxed)
    }

    /// The number at which the next search begins.
    pub fn rotor(&self) -> u64 {
        self.numbers.lock().rotor
    }

    /// The open epoch begins its way to the device.
    pub fn epoch_started(&self) {
        let mut numbers = self.numbers.lock();
        let freed = std::mem::take(&mut numbers.freed);
        numbers.freeing.extend(freed);
    }

    /// The epoch is on the device: the numbers that it freed can be reused.
    pub fn epoch_done(&self) {
        self.numbers.lock().freeing.clear();
    }
}

/// Reads and changes the locator table.
#[derive(Clone, Copy)]
pub struct LocatorTable<'a> {
    inodes: &'a InodeCache,
    layout: &'a LiveLayout,
}

impl<'a> LocatorTable<'a> {
    pub(super) fn new(inodes: &'a InodeCache) -> LocatorTable<'a> {
        LocatorTable { inodes, layout: &inodes.layout }
    }

    fn page(&self, table: &VnodeState, index: u64) -> Result<Option<Arc<Block>>> {
        match table.pages.get(FileBlock(index)) {
            Some(block) => Ok(Some(block.clone())),
            None => self.clean_page(&table.inode, index),
        }
    }

    /// The page that is on the device.
    fn clean_page(&self, table: &Inode, index: u64) -> Result<Option<Arc<Block>>> {
        let Some(number) = self.block_of(table, index) else { return Ok(None) };
        let block = self.inodes.contents().read_whole(number)?;
        block.verify_as(InodeNo::LOCATOR, |bytes| {
            locator::verify(bytes, index, self.inodes.checksum)
        })?;
        Ok(Some(block))
    }

    fn block_of(&self, table: &Inode, index: u64) -> Option<BlockNo> {
        let fragments = self.layout.block_fragments();
        table.map()?.block_at(FileBlock(index), fragments)
    }

    fn page_mut<'f>(&self, table: &'f mut VnodeGuard<'_>, index: u64) -> Result<&'f mut Block> {
        self.inodes.queue(table.vnode);
        if table.pages.get(FileBlock(index)).is_none()
            && self.block_of(&table.inode, index).is_none()
        {
            self.add_page(table, index)?;
        }
        let (block, made_dirty) = self.inodes.dirty_page_or(table, FileBlock(index), |table| {
            let what = "it has no block";
            let missing = Corruption::LocatorBlock { index, what };
            self.clean_page(table, index)?.ok_or(missing.into())
        })?;
        // A checkpoint takes all changed pages, so the first change after it passes here.
        if made_dirty {
            self.inodes.intent_log.locator(index, block);
        }
        Ok(block)
    }

    fn add_page(&self, table: &mut VnodeGuard<'_>, index: u64) -> Result<()> {
        self.inodes.space().promise_block(table)?;
        let mut block = Block::zeroed(self.layout.block_bytes as usize);
        locator::init(&mut block, index);
        block.trust_as(InodeNo::LOCATOR);
        self.inodes.intent_log.locator(index, &block);
        let end = (index + 1) * u64::from(self.layout.block_bytes);
        table.inode.size = table.inode.size.max(end);
        self.inodes.mark_dirty(table);
        self.inodes.count_dirty(table, |table| {
            table.pages.insert(FileBlock(index), Arc::new(block));
        });
        Ok(())
    }

    /// The place of an inode according to the table; `None` if the number is free.
    pub fn find(&self, ino: InodeNo) -> Result<Option<Container>> {
        let table = self.inodes.system(InodeNo::LOCATOR)?.state.read();
        let (index, position) = locator::position(ino, self.layout.block_bytes);
        let page = self.page(&table, index)?;
        Ok(page.and_then(|page| locator::get(&page, position).container))
    }

    /// The numbers in use among those of a block of the table.
    pub fn numbers(&self, index: u64) -> Result<Vec<InodeNo>> {
        let table = self.inodes.system(InodeNo::LOCATOR)?.state.read();
        let per_block = locator::entries_per_block(self.layout.block_bytes);
        let Some(page) = self.page(&table, index)? else { return Ok(Vec::new()) };
        let used = |position: &u32| locator::get(&page, *position as usize).container.is_some();
        let number = |position| InodeNo(index * u64::from(per_block) + u64::from(position));
        Ok((0..per_block).filter(used).map(number).collect())
    }

    /// Records the entry of an inode without a name in the intent log: recovery removes it.
    pub fn note_nameless(&self, ino: InodeNo) -> Result<()> {
        let page = {
            let table = self.inodes.system(InodeNo::LOCATOR)?.state.read();
            self.page(&table, locator::position(ino, self.layout.block_bytes).0)?
        };
        let Some(page) = page else { return Ok(()) };
        let (index, position) = locator::position(ino, self.layout.block_bytes);
        self.inodes.intent_log.locator(index, &page);
        let Some(place) = locator::get(&page, position).container else { return Ok(()) };
        let block = FileBlock(u64::from(place.sector.0 / self.layout.block_sectors()));
        if place.file != InodeNo::EXTERNAL {
            self.inodes.intent_log.nameless_entry(ino, place.file, block);
            return Ok(());
        }
        let table = self.inodes.system(InodeNo::EXTERNAL)?.state.read();
        self.inodes.containers().note(&table, block)
    }

    /// Records the place of an inode.
    pub fn set(&self, ino: InodeNo, generation: u32, container: Container) -> Result<()> {
        let mut table = VnodeGuard::new(self.inodes.system(InodeNo::LOCATOR)?);
        let (index, position) = locator::position(ino, self.layout.block_bytes);
        let page = self.page_mut(&mut table, index)?;
        locator::set(page, position, Entry { container: Some(container), generation });
        Ok(())
    }

    /// Frees the number of a deleted inode. It can be reused after the epoch.
    pub fn free(&self, ino: InodeNo, generation: u32) -> Result<()> {
        let mut table = VnodeGuard::new(self.inodes.system(InodeNo::LOCATOR)?);
        let (index, position) = locator::position(ino, self.layout.block_bytes);
        let page = self.page_mut(&mut table, index)?;
        locator::set(page, position, Entry { container: None, generation });
        self.inodes.locator.numbers.lock().freed.insert(ino);
        self.inodes.locator.inodes.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    /// Takes a free number into use, and returns the generation of its new inode.
    pub fn allocate(&self) -> Result<(InodeNo, u32)> {
        let mut table = VnodeGuard::new(self.inodes.system(InodeNo::LOCATOR)?);
        let mut numbers = self.inodes.locator.numbers.lock();
        let per_block = u64::from(locator::entries_per_block(self.layout.block_bytes));
        let blocks = table.inode.size / u64::from(self.layout.block_bytes);
        let sparse = self.inodes.locator.inodes() < blocks * per_block / 2;
        let mut index = numbers.rotor / per_block;
        let mut from = (numbers.rotor % per_block) as usize;
        let mut wrapped = false;
        loop {
            if index >= blocks {
                (index, from) = (blocks, 0);
                if sparse && !wrapped {
                    (index, wrapped) = (0, true);
                }
            }
            if let Some(position) = self.free_position(&table, &numbers, index, from)? {
                numbers.rotor = index * per_block + position as u64 + 1;
                return self.take_number(&mut table, index, position, per_block);
            }
            if index == blocks {
                let what = "a new block of the table has no free number";
                return Err(Corruption::LocatorBlock { index, what }.into());
            }
            (index, from) = (index + 1, 0);
        }
    }

    /// The position of a free number of this block at or after `from`. A block that is nearly full
    /// is skipped by a search that begins at its start.
    fn free_position(
        &self,
        table: &VnodeState,
        numbers: &Numbers,
        index: u64,
        from: usize,
    ) -> Result<Option<usize>> {
        let per_block = locator::entries_per_block(self.layout.block_bytes) as usize;
        let page = self.page(table, index)?;
        let page = page.as_deref();
        if from == 0 && page.is_some_and(|page| locator::used_count(page) >= per_block * 7 / 8) {
            return Ok(None);
        }
        let first = if index == 0 { InodeNo::FIRST_USER.0 as usize } else { 0 };
        let mut from = from.max(first);
        while from < per_block {
            let free = page.map_or(Some(from), |page| locator::find_free(page, from));
            let Some(position) = free else { break };
            let ino = InodeNo(index * per_block as u64 + position as u64);
            if !numbers.freed.contains(&ino) && !numbers.freeing.contains(&ino) {
                return Ok(Some(position));
            }
            from = position + 1;
        }
        Ok(None)
    }

    fn take_number(
        &self,
        table: &mut VnodeGuard<'_>,
        index: u64,
        position: usize,
        per_block: u64,
    ) -> Result<(InodeNo, u32)> {
        let ino = InodeNo(index * per_block + position as u64);
        let page = self.page_mut(table, index)?;
        let generation = locator::get(page, position).generation.wrapping_add(1);
        // The caller sets the real place later; until then the number is taken.
        let place = self.layout.system_container(InodeNo::ROOT);
        locator::set(page, position, Entry { container: Some(place), generation });
        self.inodes.locator.inodes.fetch_add(1, Ordering::Relaxed);
        Ok((ino, generation))
    }
}
