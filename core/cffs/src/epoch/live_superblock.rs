//! The superblock of an open volume: its state in memory, and writing it.
//!
//! Invariant: it is written only under the lock of epochs.

use std::sync::Arc;

use super::health::Health;
use super::mark;
use crate::cache::{Block, Phase, WriteSet};
use crate::device::Patient;
use crate::error::Result;
use crate::format::superblock::{JournalFlags, State};
use crate::format::{Layout, Superblock};
use crate::inode::InodeCache;
use crate::journal;
use crate::lock::{Mutex, Rank};
use crate::units::BlockNo;

/// Keeps the superblock of a volume in use, in memory and on the device.
pub struct LiveSuperblock {
    inodes: Arc<InodeCache>,
    health: Arc<Health>,
    present: Mutex<Superblock>,
}

impl LiveSuperblock {
    /// The superblock of a volume that is being opened.
    pub(super) fn new(
        inodes: Arc<InodeCache>,
        health: Arc<Health>,
        superblock: Superblock,
    ) -> LiveSuperblock {
        LiveSuperblock { inodes, health, present: Mutex::new(Rank::Leaf, superblock) }
    }

    /// The present superblock.
    pub fn get(&self) -> Superblock {
        Superblock { damage: self.health.damage.get(), ..self.present.lock().clone() }
    }

    /// Whether it says that the volume is clean.
    pub(super) fn is_clean(&self) -> bool {
        self.present.lock().state == State::Clean
    }

    /// Takes over a superblock that is on the device now.
    pub(super) fn set(&self, next: Superblock) {
        *self.present.lock() = next;
    }

    /// Marks the volume as in use, durably, before anything else is written; the nearest copies of the
    /// superblock as well if `copies`.
    pub(super) fn mark_in_use(&self, copies: bool) -> Result<()> {
        if let Some(next) = self.in_use() {
            self.write(&next, copies)?;
            self.set(next);
        }
        Ok(())
    }

    /// The superblock that marks the volume as in use; `None` if it is marked.
    pub(super) fn in_use(&self) -> Option<Superblock> {
        let superblock = self.get();
        (superblock.state != State::InUse)
            .then_some(Superblock { state: State::InUse, ..superblock })
    }

    /// Records that the volume is opened for writing, and marks it as in use. The copies get the mark of this
    /// process as well: if the superblock is lost, a check finds it there.
    pub(crate) fn mark_mounted(&self) -> Result<()> {
        {
            let mut superblock = self.present.lock();
            superblock.mounts = superblock.mounts.saturating_add(1);
            superblock.mounted_at = self.inodes.clock.now().seconds.max(0) as u64;
        }
        self.mark_in_use(true)
    }

    /// Records that directories above changes have old stamps: lists of changes since earlier marks enter
    /// all directories.
    pub(super) fn mark_walked(&self) {
        let mut superblock = self.present.lock();
        superblock.marks_walked = superblock.stamp();
    }

    /// Writes the superblock if it lacks damage that was found; under the lock of epochs.
    pub(super) fn save_damage(&self) -> Result<()> {
        if self.health.damage.take_unsaved() { self.write(&self.get(), false) } else { Ok(()) }
    }

    /// Writes a superblock, and its nearest copies if `copies`.
    pub(super) fn write(&self, superblock: &Superblock, copies: bool) -> Result<()> {
        let _patient = Patient::begin();
        self.check_mark()?;
        let inodes = &*self.inodes;
        let block = self.encode(superblock);
        let mut writes = WriteSet::default();
        if copies {
            let system = inodes.cache.read(inodes.layout.system_area())?;
            // The nearest copies suffice to replace a lost superblock; the others keep the superblock of
            // mkfs, which has the geometry.
            for copy in inodes.layout.superblock_copies().into_iter().take(2) {
                writes.put_block(Phase::New, copy, block.clone());
                writes.put_block(Phase::New, BlockNo(copy.0 + 1), system.clone());
            }
        }
        writes.put_block(Phase::Change, BlockNo(0), block);
        inodes.commit(writes)
    }

    /// The block with a superblock.
    pub(super) fn encode(&self, superblock: &Superblock) -> Arc<Block> {
        let mut block = Block::zeroed(self.inodes.layout.block_bytes as usize);
        // Damage may have been found while the superblock was put together.
        let mut superblock = Superblock { damage: self.health.damage.get(), ..superblock.clone() };
        if journal::has_journal(&superblock) && self.inodes.cache.device().journal().is_none() {
            // The journal is on a device that is missing. A journal that is present sets this flag itself.
            superblock.journal.flags |= JournalFlags::UNUSED;
        }
        let bytes = superblock.encode();
        block[..bytes.len()].copy_from_slice(&bytes);
        Arc::new(block)
    }

    /// Writes copies of a superblock and of the system area, and waits for them.
    pub(crate) fn write_copies(
        &self,
        superblock: &Superblock,
        is_wanted: impl Fn(&BlockNo) -> bool,
    ) -> Result<()> {
        let cache = &self.inodes.cache;
        let block = self.encode(superblock);
        let system_area = cache.read(self.inodes.layout.system_area())?;
        let copy = [&block[..], &system_area[..]].concat();
        let copies = Layout::new(superblock).superblock_copies();
        for at in copies.into_iter().filter(is_wanted) {
            cache.write_uncached(at, &copy)?;
        }
        cache.sync()
    }

    /// Fails if another process has taken the volume over: the device belongs to that process now.
    pub(super) fn check_mark(&self) -> Result<()> {
        let own = self.present.lock().holder.clone();
        own.map_or(Ok(()), |own| mark::check(self.inodes.cache.device(), &own))
    }
}
