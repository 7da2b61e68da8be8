//! The store: all vnodes in use, the queue for the next epoch, and access to sectors.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::table::VnodeTable;
use super::{Busy, Changed, Content, ExtentMap, Inode, Locator, Locked, Vnode, VnodeState};
use crate::alloc::Allocator;
use crate::cache::{Block, BufferCache, WriteSet};
use crate::clock::Clock;
use crate::error::{Corruption, Error, Result};
use crate::format::extent::Extent;
use crate::format::inode::{DISK_INODE_BYTES, FileType};
use crate::format::sector::{self, Sector};
use crate::format::superblock::{Incompat, Policy, RoCompat};
use crate::format::{Checksum, Layout, LiveLayout, NAME_BYTES_MAX, Superblock};
use crate::lock::{Mutex, Rank};
use crate::memory::{Held, Kind, Memory};
use crate::trace;
use crate::units::{Container, EpochNo, FileBlock, InodeNo, SectorIndex};

/// What mkfs decided, in the form that is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Features {
    /// Inodes lie in their directory.
    pub embed: bool,
    /// Large directories get an index.
    pub dir_index: bool,
    /// Small files have a checksum.
    pub content_checksum: bool,
    /// The longest inline contents, 0 if there are none.
    pub inline_bytes_max: usize,
    /// The co-location policy.
    pub policy: Policy,
    /// The seed of name hashes.
    pub hash_seed: [u8; 16],
}

/// The longest body of an entry: as much as leaves room in a sector for a name of any length, so
/// that no file is too large for its own name to change.
pub fn body_bytes_max(layout: &Layout) -> usize {
    let fixed = sector::SECTOR_HEADER_BYTES + sector::entry_bytes(NAME_BYTES_MAX, 0);
    (layout.sector_bytes as usize).saturating_sub(fixed)
}

/// Numbers up to that of the last inode of the volume itself.
const SYSTEM_INODES: usize = InodeNo::SYSTEM.0 as usize + 1;

/// Owns all vnodes and the way to the device.
pub struct Store {
    /// Where things lie.
    pub layout: LiveLayout,
    /// The volume's checksum.
    pub checksum: Checksum,
    /// What mkfs decided.
    pub features: Features,
    /// The buffer cache.
    pub cache: Arc<BufferCache>,
    /// The allocator.
    pub alloc: Allocator,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// The state of the inode locator table.
    pub locator: Locator,
    /// What changed since the last clean point.
    pub busy: Busy,
    /// The account of the memory that callers cause to be taken.
    pub memory: Arc<Memory>,
    vnodes: VnodeTable,
    /// Those of the volume itself, which are in the table as well.
    system: [OnceLock<Arc<Vnode>>; SYSTEM_INODES],
    queue: Mutex<Vec<Arc<Vnode>>>,
    epoch: AtomicU64,
}

/// A sector of a container, with the block that holds it.
pub struct SectorImage {
    block: Arc<Block>,
    at: usize,
    len: usize,
}

impl SectorImage {
    /// The sector, to read.
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
    /// The sectors, to read, in their order.
    pub fn iter(&self) -> impl Iterator<Item = (SectorIndex, Sector<'_>)> {
        let images = self.block.chunks_exact(self.len).map(Sector::new);
        (self.first.0..).map(SectorIndex).zip(images)
    }
}

impl Store {
    /// The store of a volume, with the system's own inodes in it.
    pub fn open(
        cache: Arc<BufferCache>,
        superblock: &Superblock,
        clock: Arc<dyn Clock>,
        memory: Arc<Memory>,
    ) -> Result<Store> {
        let layout = cache.layout().clone();
        let inline = superblock.incompat.contains(Incompat::INLINE);
        let contents_max = body_bytes_max(&layout).saturating_sub(DISK_INODE_BYTES);
        let store = Store {
            checksum: superblock.checksum(),
            features: Features {
                embed: superblock.incompat.contains(Incompat::EMBED),
                dir_index: superblock.ro_compat.contains(RoCompat::DIR_INDEX),
                content_checksum: superblock.ro_compat.contains(RoCompat::CONTENT_CHECKSUM),
                inline_bytes_max: if inline {
                    contents_max.min(superblock.inline_bytes_max.into())
                } else {
                    0
                },
                policy: superblock.policy,
                hash_seed: superblock.hash_seed,
            },
            alloc: Allocator::new(cache.clone(), superblock),
            cache,
            clock,
            locator: Locator::new(superblock),
            busy: Busy::new(*layout, superblock.checksum(), superblock.generation),
            vnodes: VnodeTable::new(memory.clone(), EpochNo(superblock.epoch)),
            system: Default::default(),
            memory,
            queue: Mutex::new(Rank::Leaf, Vec::new()),
            epoch: AtomicU64::new(superblock.epoch.wrapping_add(1)),
            layout,
        };
        store.open_system()?;
        Ok(store)
    }

    fn open_system(&self) -> Result<()> {
        let block_bytes = u64::from(self.layout.block_bytes);
        let now = self.clock.now();
        let mut system = Inode::new(InodeNo::SYSTEM, 0, FileType::Regular, InodeNo::SYSTEM, now);
        let mut map = ExtentMap::default();
        let extent = Extent {
            logical: 0,
            start: self.layout.block_start(self.layout.system_area()),
            len: self.layout.block_fragments(),
            unwritten: false,
        };
        map.load(extent, true).map_err(|what| Corruption::Inode { ino: system.ino, what })?;
        system.content = Content::Map(map);
        system.size = block_bytes;
        let system = self.vnode(system, None, false);
        self.insert(system.clone());
        let state = system.state.read();
        for ino in [InodeNo::ROOT, InodeNo::LOCATOR, InodeNo::EXTERNAL] {
            let container = self.layout.system_container(ino);
            let image = self.sector(&state, container.sector)?;
            let entry = image
                .get()
                .find_inode(ino)
                .ok_or(Corruption::Inode { ino, what: "the system area does not have it" })?;
            let sector::Body::Embedded(record) = entry.body else { continue };
            let vnode = self.adopt(&record, container)?;
            if let Some(place) = self.system.get(ino.0 as usize) {
                let _ = place.set(vnode.clone());
            }
            let state = vnode.state.read();
            let expected =
                if ino == InodeNo::ROOT { FileType::Directory } else { FileType::Regular };
            if state.inode.file_type != expected || state.inode.map().is_none() {
                let what = "a system inode of the wrong type";
                return Err(Corruption::Inode { ino, what }.into());
            }
        }
        Ok(())
    }

    /// The vnode if the inode is in use.
    pub fn peek(&self, ino: InodeNo) -> Option<Arc<Vnode>> {
        self.vnodes.get(ino)
    }

    /// A vnode for an inode that lies in `container`, to be entered; `durable` if the device has it there.
    pub fn vnode(&self, inode: Inode, container: Option<Container>, durable: bool) -> Arc<Vnode> {
        let mut vnode = Vnode::new(inode, container, durable);
        vnode.state.get_mut().open_account(&self.memory);
        Arc::new(vnode)
    }

    /// Enters a vnode, unless the inode has one: then that one counts.
    pub fn insert(&self, vnode: Arc<Vnode>) -> Arc<Vnode> {
        let vnode = self.vnodes.insert(vnode);
        self.vnodes.make_room();
        vnode
    }

    /// Forgets the vnode of an inode that is no more.
    pub fn remove(&self, ino: InodeNo) {
        self.vnodes.remove(ino);
    }

    /// How many vnodes are in memory.
    pub fn vnode_count(&self) -> usize {
        self.vnodes.len()
    }

    /// Whether an inode is in use that has no name, or lost its last one. For a moment at which no
    /// change is under way.
    pub fn has_nameless(&self) -> bool {
        !self.nameless().is_empty()
    }

    /// The inodes in use that have no name. For a moment at which no change is under way.
    pub fn nameless(&self) -> Vec<Arc<Vnode>> {
        let is_nameless = |vnode: &Arc<Vnode>| {
            vnode.ino != InodeNo::SYSTEM && vnode.state.read().container.is_none()
        };
        self.vnodes.parts().flatten().filter(is_nameless).collect()
    }

    /// A system inode's vnode: always in memory.
    pub fn system(&self, ino: InodeNo) -> Result<&Arc<Vnode>> {
        let what = "the system area does not have it";
        let vnode = self.system.get(ino.0 as usize).and_then(OnceLock::get);
        vnode.ok_or(Error::Corruption(Corruption::Inode { ino, what }))
    }

    /// Writes a set, which is charged meanwhile, and returns when it is durable.
    pub fn commit(&self, writes: WriteSet) -> Result<()> {
        let _in_flight = self.charge_writes(&writes);
        writes.commit(&self.cache)
    }

    /// Writes a set of new blocks ahead of their epoch.
    pub fn write_ahead(&self, writes: WriteSet) -> Result<()> {
        let _in_flight = self.charge_writes(&writes);
        writes.write_ahead(&self.cache)
    }

    fn charge_writes(&self, writes: &WriteSet) -> Held {
        let bytes = writes.block_count() * u64::from(self.layout.block_bytes);
        Held::new(&self.memory, Kind::InFlight, bytes)
    }

    /// Queues a vnode for the next epoch.
    pub fn queue(&self, vnode: &Arc<Vnode>) {
        if vnode.set_queued() {
            self.queue.lock().push(vnode.clone());
            self.memory.queued();
        }
    }

    /// Takes the queue, at the start of an epoch.
    pub fn take_queue(&self) -> Vec<Arc<Vnode>> {
        let queue = std::mem::take(&mut *self.queue.lock());
        queue.iter().for_each(|vnode| vnode.clear_queued());
        self.memory.taken(queue.len() as u64);
        self.vnodes.look_again();
        queue
    }

    /// What waits for the next epoch, in the order in which it was changed first.
    pub fn queued(&self) -> Vec<Arc<Vnode>> {
        self.queue.lock().clone()
    }

    /// How many vnodes wait for the next epoch.
    pub fn queue_len(&self) -> u64 {
        self.memory.queue_len()
    }

    /// Marks an inode as changed, in whatever way.
    pub fn mark_dirty(&self, file: &mut Locked<'_>) {
        self.mark_changed(file, Changed::Anything);
    }

    /// Marks an inode as changed in this way.
    pub fn mark_changed(&self, file: &mut Locked<'_>, changed: Changed) {
        file.changes.note(changed);
        file.changes.causes.note(trace::cause());
        self.queue(file.vnode);
        self.weigh(file);
    }

    /// Charges a vnode with what it takes now, and makes room if that is more than before and too
    /// much for all of them.
    pub fn weigh(&self, file: &mut VnodeState) {
        if file.weigh() {
            self.vnodes.make_room();
        }
    }

    /// Bytes of changed pages that no epoch has taken yet.
    pub fn dirty_bytes(&self) -> u64 {
        self.memory.charged(Kind::Pages)
    }

    /// Adjusts the count of changed pages after `change` changed those of a file.
    pub fn count_dirty<T>(
        &self,
        file: &mut VnodeState,
        change: impl FnOnce(&mut VnodeState) -> T,
    ) -> T {
        let before = file.pages.dirty_count() as u64;
        let result = change(file);
        let after = file.pages.dirty_count() as u64;
        let bytes = |pages: u64| pages * u64::from(self.layout.block_bytes);
        if after > before {
            self.memory.add(Kind::Pages, bytes(after - before));
        } else if before > after {
            self.memory.sub(Kind::Pages, bytes(before - after));
        }
        result
    }

    /// The open epoch: the one to which changes belong now.
    pub fn epoch(&self) -> EpochNo {
        EpochNo(self.epoch.load(Ordering::Acquire))
    }

    /// The device has all epochs up to this one.
    pub fn epoch_done(&self, epoch: EpochNo) {
        self.vnodes.epoch_done(epoch);
    }

    /// Opens the next epoch.
    pub fn next_epoch(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// The sector of a container file, verified.
    pub fn sector(&self, file: &VnodeState, index: SectorIndex) -> Result<SectorImage> {
        let per_block = self.layout.block_sectors();
        let block = self.container_block(file, FileBlock(u64::from(index.0 / per_block)))?;
        let len = self.layout.sector_bytes as usize;
        Ok(SectorImage { block, at: (index.0 % per_block) as usize * len, len })
    }

    /// The sectors of a block of a container file, verified.
    pub fn sectors(&self, file: &VnodeState, position: FileBlock) -> Result<SectorImages> {
        let block = self.container_block(file, position)?;
        let first = SectorIndex(position.0 as u32 * self.layout.block_sectors());
        Ok(SectorImages { block, first, len: self.layout.sector_bytes as usize })
    }

    /// The sector of a container file, to change it.
    pub fn sector_mut<'a>(
        &self,
        file: &'a mut Locked<'_>,
        index: SectorIndex,
    ) -> Result<&'a mut [u8]> {
        let per_block = self.layout.block_sectors();
        let position = FileBlock(u64::from(index.0 / per_block));
        let holder = file.inode.ino;
        self.queue(file.vnode);
        let (block, made_dirty) = self
            .dirty_page_or(file, position, |inode| self.clean_container_block(inode, position))?;
        // After a clean point no page is dirty, so the first change of one is seen here.
        if made_dirty {
            self.busy.container(holder, position, Some(block));
        }
        let len = self.layout.sector_bytes as usize;
        let at = (index.0 % per_block) as usize * len;
        Ok(&mut block[at..at + len])
    }

    /// Notes in the busy log what a block of a container is before it changes.
    pub(super) fn note_container(&self, file: &VnodeState, position: FileBlock) -> Result<()> {
        let block = self.container_block(file, position)?;
        self.busy.container(file.inode.ino, position, Some(&block));
        Ok(())
    }

    /// A page that is in memory, dirty from now on.
    pub fn dirty_page<'a>(
        &self,
        file: &'a mut VnodeState,
        position: FileBlock,
    ) -> Option<&'a mut Block> {
        let (block, made_dirty) = file.pages.get_mut(position)?;
        self.dirtied(made_dirty);
        Some(block)
    }

    /// A page, dirty from now on, and whether it was not before; `load` brings it if it is not in
    /// memory.
    pub fn dirty_page_or<'a>(
        &self,
        file: &'a mut VnodeState,
        position: FileBlock,
        load: impl FnOnce(&Inode) -> Result<Arc<Block>>,
    ) -> Result<(&'a mut Block, bool)> {
        let VnodeState { inode, pages, .. } = file;
        let (block, made_dirty) = pages.get_or_load(position, || load(inode))?;
        self.dirtied(made_dirty);
        Ok((block, made_dirty))
    }

    fn dirtied(&self, made_dirty: bool) {
        if made_dirty {
            self.memory.add(Kind::Pages, self.layout.block_bytes.into());
        }
    }

    fn container_block(&self, file: &VnodeState, position: FileBlock) -> Result<Arc<Block>> {
        match file.pages.get(position) {
            Some(block) => Ok(block.clone()),
            None => self.clean_container_block(&file.inode, position),
        }
    }

    /// The block of a container as the device has it.
    fn clean_container_block(&self, inode: &Inode, position: FileBlock) -> Result<Arc<Block>> {
        let per_block = self.layout.block_sectors();
        let first = SectorIndex(position.0 as u32 * per_block);
        let number = inode
            .map()
            .and_then(|map| map.block_at(position, self.layout.block_fragments()))
            .ok_or(Corruption::Inode {
                ino: inode.ino,
                what: "a sector of the container has no whole block",
            })?;
        let block = self.read_whole(number)?;
        block.verify_as(inode.ino, |bytes| {
            let sectors = bytes.chunks_exact(self.layout.sector_bytes as usize);
            (first.0..).zip(sectors).try_for_each(|(index, bytes)| {
                let container = Container { file: inode.ino, sector: SectorIndex(index) };
                sector::verify(bytes, container, inode.generation, self.checksum)
            })
        })?;
        Ok(block)
    }

    /// How many sectors a container file has.
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
    pub fn append_sectors(&self, file: &mut Locked<'_>) -> Result<SectorIndex> {
        let first = SectorIndex(self.sector_count(file));
        self.promise_block(file)?;
        let position = self.layout.file_block(file.inode.size);
        let block = self.empty_block(file, position);
        block.trust_as(file.inode.ino);
        self.busy.container(file.inode.ino, position, None);
        self.count_dirty(file, |file| {
            file.pages.insert(position, Arc::new(block));
        });
        file.inode.size += u64::from(self.layout.block_bytes);
        self.mark_dirty(file);
        Ok(first)
    }
}
