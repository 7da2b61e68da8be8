//! The inode cache: all vnodes in use, the queue of those that the next epoch writes, and its number.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::decode::Decoder;
use super::table::VnodeTable;
use super::{
    Attributes, Containers, Content, Contents, DirtyLevel, ExtentMap, Inode, IntentLog, Locator,
    LocatorTable, PageWriter, SpacePlan, Vnode, VnodeGuard, VnodeState, body_bytes_max,
};
use crate::alloc::Allocator;
use crate::cache::{Block, BufferCache, WriteSet};
use crate::clock::Clock;
use crate::error::{Corruption, Error, Result};
use crate::format::extent::Extent;
use crate::format::inode::{DISK_INODE_BYTES, FileType};
use crate::format::sector;
use crate::format::superblock::{Incompat, Policy, RoCompat};
use crate::format::{Checksum, LiveLayout, Superblock};
use crate::lock::{Mutex, Rank};
use crate::memory::{Held, Kind, Memory};
use crate::trace;
use crate::units::{Container, EpochNo, FileBlock, FileFrag, FragRun, InodeNo};

/// The features that mkfs chose, decoded.
#[derive(Clone, Copy, Debug)]
pub struct Features {
    /// Inodes are in their directory.
    pub embed: bool,
    /// Large directories get an index.
    pub dir_index: bool,
    /// Small files have a checksum.
    pub content_checksum: bool,
    /// The longest inline contents, 0 if there are none.
    pub inline_bytes_max: usize,
    /// Files of one key are placed together, and read together.
    pub groups: bool,
    /// The seed of name hashes.
    pub hash_seed: [u8; 16],
}

/// Numbers up to that of the last inode of the volume itself.
const SYSTEM_INODES: usize = InodeNo::SYSTEM.0 as usize + 1;

/// Owns all vnodes, and the queue of those that differ from the device.
pub struct InodeCache {
    /// The layout of the volume.
    pub layout: LiveLayout,
    /// The volume's checksum.
    pub checksum: Checksum,
    /// The features that mkfs chose.
    pub features: Features,
    /// The co-location policy, as the superblock has it.
    policy: AtomicU8,
    /// The buffer cache.
    pub cache: Arc<BufferCache>,
    /// The allocator.
    pub alloc: Allocator,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// The state of the inode locator table.
    pub locator: Locator,
    /// The intent log: changes since the last checkpoint.
    pub intent_log: IntentLog,
    /// The account of the memory that is taken on behalf of callers.
    pub memory: Arc<Memory>,
    vnodes: VnodeTable,
    /// The vnodes of the system inodes, which are in the table too.
    system: [OnceLock<Arc<Vnode>>; SYSTEM_INODES],
    queue: Mutex<Vec<Arc<Vnode>>>,
    epoch: AtomicU64,
    /// See [`InodeCache::concerns_unchanged`].
    concerns_unchanged: AtomicU64,
    /// See [`InodeCache::stamp`].
    stamp: AtomicU32,
}

impl InodeCache {
    /// The cache of a volume, with the system's own inodes in it.
    pub fn open(
        cache: Arc<BufferCache>,
        superblock: &Superblock,
        clock: Arc<dyn Clock>,
        memory: Arc<Memory>,
    ) -> Result<InodeCache> {
        let layout = cache.layout().clone();
        let large_dir_bytes = cache.tuning().writing.large_dir_bytes;
        let inline = superblock.incompat.contains(Incompat::INLINE);
        let contents_max = body_bytes_max(&layout).saturating_sub(DISK_INODE_BYTES);
        let inodes = InodeCache {
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
                groups: superblock.policy.groups(),
                hash_seed: superblock.hash_seed,
            },
            policy: AtomicU8::new(superblock.policy as u8),
            alloc: Allocator::new(cache.clone(), superblock),
            cache,
            clock,
            locator: Locator::new(superblock),
            intent_log: IntentLog::new(
                *layout,
                superblock.checksum(),
                superblock.generation,
                large_dir_bytes,
            ),
            vnodes: VnodeTable::new(memory.clone(), EpochNo(superblock.epoch)),
            system: Default::default(),
            memory,
            queue: Mutex::new(Rank::Leaf, Vec::new()),
            epoch: AtomicU64::new(superblock.epoch.wrapping_add(1)),
            concerns_unchanged: AtomicU64::new(0),
            stamp: AtomicU32::new(superblock.stamp()),
            layout,
        };
        inodes.open_system()?;
        Ok(inodes)
    }

    /// The co-location policy. It decides about the next new file.
    pub fn policy(&self) -> Policy {
        Policy::from_byte(self.policy.load(Ordering::Relaxed)).unwrap_or(Policy::Directory)
    }

    /// Sets the policy.
    pub fn set_policy(&self, policy: Policy) {
        self.policy.store(policy as u8, Ordering::Relaxed);
    }

    /// The count of marks with which epochs stamp changes; 0 if the volume has no marks.
    pub fn stamp(&self) -> u32 {
        self.stamp.load(Ordering::Acquire)
    }

    /// Sets the count of marks, which the superblock on the device already has. Call only while no epoch is
    /// being prepared.
    pub fn set_stamp(&self, stamp: u32) {
        self.stamp.store(stamp, Ordering::Release);
    }

    fn open_system(&self) -> Result<()> {
        let block_bytes = u64::from(self.layout.block_bytes);
        let now = self.clock.now();
        let mut system = Inode::new(InodeNo::SYSTEM, 0, FileType::Regular, InodeNo::SYSTEM, now);
        let mut map = ExtentMap::default();
        let area = self.layout.block_start(self.layout.system_area());
        let extent = Extent::new(0, FragRun::new(area, self.layout.block_fragments()));
        map.load(extent, true).map_err(|what| Corruption::Inode { ino: system.ino, what })?;
        system.content = Content::Map(map);
        system.size = block_bytes;
        let system = self.vnode(system, None, false);
        self.insert(system.clone());
        let state = system.state.read();
        for ino in [InodeNo::ROOT, InodeNo::LOCATOR, InodeNo::EXTERNAL] {
            let container = self.layout.system_container(ino);
            let image = self.containers().sector(&state, container.sector)?;
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

    /// The reader of contents.
    pub fn contents(&self) -> Contents<'_> {
        Contents::new(self)
    }

    /// The writer of pages.
    pub fn writer(&self) -> PageWriter<'_> {
        PageWriter::new(self)
    }

    /// The plan of space for files.
    pub fn space(&self) -> SpacePlan<'_> {
        SpacePlan::new(self)
    }

    /// Access to the sectors of container files.
    pub fn containers(&self) -> Containers<'_> {
        Containers::new(self)
    }

    /// The locator table.
    pub fn locator_table(&self) -> LocatorTable<'_> {
        LocatorTable::new(self)
    }

    /// The decoder of inodes.
    pub(super) fn decoder(&self) -> Decoder<'_> {
        Decoder::new(self)
    }

    /// The vnode if the inode is in use.
    pub fn peek(&self, ino: InodeNo) -> Option<Arc<Vnode>> {
        self.vnodes.get(ino)
    }

    /// A vnode for an inode that is in `container`, to be entered; `durable` if the device has it there.
    pub fn vnode(&self, inode: Inode, container: Option<Container>, durable: bool) -> Arc<Vnode> {
        let mut vnode = Vnode::new(inode, container, durable);
        vnode.state.get_mut().open_account(&self.memory);
        Arc::new(vnode)
    }

    /// Enters a vnode, unless the inode has one already, which then counts.
    pub fn insert(&self, vnode: Arc<Vnode>) -> Arc<Vnode> {
        let vnode = self.vnodes.insert(vnode);
        self.vnodes.make_room();
        vnode
    }

    /// Forgets the vnode of a deleted inode.
    pub fn remove(&self, ino: InodeNo) {
        self.vnodes.remove(ino);
    }

    /// The count of vnodes in memory.
    pub fn vnode_count(&self) -> usize {
        self.vnodes.len()
    }

    /// Whether an inode without a name is in use. Call only while no change is in progress.
    pub fn has_nameless(&self) -> bool {
        !self.nameless().is_empty()
    }

    /// The inodes in use that have no name. Call only while no change is in progress.
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

    /// The vnodes that wait for the next epoch, in the order of their first change.
    pub fn queued(&self) -> Vec<Arc<Vnode>> {
        self.queue.lock().clone()
    }

    /// The count of vnodes that wait for the next epoch.
    pub fn queue_len(&self) -> u64 {
        self.memory.queue_len()
    }

    /// Marks an inode as changed in names, space or attributes.
    pub fn mark_dirty(&self, file: &mut VnodeGuard<'_>) {
        self.mark_changed(file, DirtyLevel::Anything);
    }

    /// Marks an inode as changed, up to this level.
    pub fn mark_changed(&self, file: &mut VnodeGuard<'_>, changed: DirtyLevel) {
        file.changes.note(changed);
        file.changes.causes.note(trace::cause());
        self.queue(file.vnode);
        self.weigh(file);
    }

    /// Charges a vnode with its current memory, and evicts others if it grew and all of them take too much.
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

    /// Whether this epoch or a later one has a change that an fsync of an unchanged file must make durable: a
    /// directory was renamed, which changes the path of files below it; or a file got the former name of
    /// another file, whose new name is in an earlier epoch.
    pub fn concerns_unchanged(&self, epoch: EpochNo) -> bool {
        self.concerns_unchanged.load(Ordering::Acquire) >= epoch.0
    }

    /// Notes that the open epoch has such a change.
    pub fn note_concerns_unchanged(&self) {
        self.concerns_unchanged.store(self.epoch().0, Ordering::Release);
    }

    /// Marks a page that is in memory as dirty, and returns it.
    pub fn dirty_page<'a>(
        &self,
        file: &'a mut VnodeState,
        position: FileBlock,
    ) -> Option<&'a mut Block> {
        let (block, made_dirty) = file.pages.get_mut(position)?;
        self.dirtied(made_dirty);
        Some(block)
    }

    /// Marks a page as dirty and returns it, and whether it was clean before. `load` reads a page that is not
    /// in memory.
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

    /// Frees all space of an inode without names and users, and its number.
    pub fn destroy(&self, file: &mut VnodeGuard<'_>) -> Result<()> {
        self.writer().drop_pages(file, FileBlock::ALL);
        self.space().settle_spill(file);
        self.space().free_tree(file);
        self.space().unmap(file, FileFrag::ALL);
        file.inode.content = Content::Map(ExtentMap::default());
        self.alloc.free(std::mem::take(&mut file.inode.xattr_block));
        self.alloc.free(std::mem::take(&mut file.promised.xattr_space));
        self.drop_inode(file);
        self.locator_table().free(file.inode.ino, file.inode.generation)?;
        self.remove(file.inode.ino);
        Ok(())
    }

    /// Drops all changes and cached data of a destroyed inode.
    fn drop_inode(&self, file: &mut VnodeState) {
        file.inode.attributes = Some(Attributes::default());
        (file.changes.dirty, file.changes.xattrs) = (false, false);
        self.weigh(file);
    }
}
