//! The superblock of an open volume: its state in memory, and writing it.
//!
//! Invariant: it is written only under the lock of epochs.

use std::sync::Arc;

use super::EpochWriter;
use crate::cache::{Block, Phase, WriteSet};
use crate::device::{BlockDevice, Patient};
use crate::error::{Error, Result};
use crate::format::superblock::{JournalFlags, SUPERBLOCK_BYTES, State};
use crate::format::{Layout, Superblock};
use crate::journal;
use crate::units::BlockNo;

/// Reads the superblock from the start of a device.
///
/// # Errors
///
/// [`Error::Unsupported`] if the device is too short for this or any volume; [`Error::Corruption`] if the
/// superblock is missing or contradicts the format; [`Error::Io`] if the device cannot be read.
pub fn read_superblock(device: &dyn BlockDevice) -> Result<Superblock> {
    let geometry = device.geometry();
    let len = (geometry.sector_bytes as usize).max(SUPERBLOCK_BYTES);
    if geometry.size_bytes < len as u64 {
        let what = format!("not a C-FFS volume (only {} bytes long)", geometry.size_bytes);
        return Err(Error::Unsupported(what));
    }
    let mut bytes = vec![0; len];
    device.read_at(0, &mut bytes)?;
    let superblock = Superblock::decode(&bytes, 0)?;
    let size = superblock.blocks * u64::from(superblock.block_bytes);
    if size > geometry.size_bytes {
        return Err(Error::Unsupported(format!(
            "the volume has {size} bytes, the device only {}: it was cut off; restore all of it",
            geometry.size_bytes
        )));
    }
    Ok(superblock)
}

impl EpochWriter {
    /// The present superblock.
    pub fn superblock(&self) -> Superblock {
        Superblock { damage: self.damage.get(), ..self.superblock.lock().clone() }
    }

    /// Marks the volume as in use, durably, before anything else is written; the nearest copies of the
    /// superblock as well if `copies`.
    pub(crate) fn mark_in_use(&self, copies: bool) -> Result<()> {
        if let Some(next) = self.in_use() {
            self.write_superblock(&next, copies)?;
            *self.superblock.lock() = next;
        }
        Ok(())
    }

    /// The superblock that marks the volume as in use; `None` if it is marked.
    pub(crate) fn in_use(&self) -> Option<Superblock> {
        let superblock = self.superblock();
        (superblock.state != State::InUse)
            .then_some(Superblock { state: State::InUse, ..superblock })
    }

    /// Records that the volume is opened for writing, and marks it as in use. The copies get the mark of this
    /// process as well: if the superblock is lost, a check finds it there.
    pub(crate) fn mark_mounted(&self) -> Result<()> {
        {
            let mut superblock = self.superblock.lock();
            superblock.mounts = superblock.mounts.saturating_add(1);
            superblock.mounted_at = self.inodes.clock.now().seconds.max(0) as u64;
        }
        self.mark_in_use(true)
    }

    pub(crate) fn write_superblock(&self, superblock: &Superblock, copies: bool) -> Result<()> {
        let _patient = Patient::begin();
        self.check_mark()?;
        let inodes = &*self.inodes;
        let block = self.superblock_block(superblock);
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

    pub(crate) fn superblock_block(&self, superblock: &Superblock) -> Arc<Block> {
        let mut block = Block::zeroed(self.inodes.layout.block_bytes as usize);
        // Damage may have been found while the superblock was put together.
        let mut superblock = Superblock { damage: self.damage.get(), ..superblock.clone() };
        if journal::has_journal(&superblock) && self.inodes.cache.device().journal().is_none() {
            // The journal is on a device that is missing. A journal that is present sets this flag itself.
            superblock.journal.flags |= JournalFlags::UNUSED;
        }
        let bytes = superblock.encode();
        block[..bytes.len()].copy_from_slice(&bytes);
        Arc::new(block)
    }

    /// Changes the superblock and its copies, durably, and returns it. `follow` takes over the new values,
    /// before the next change of the superblock.
    pub(crate) fn rewrite_superblock(
        &self,
        change: impl FnOnce(&mut Superblock) -> Result<()>,
        follow: impl FnOnce(&Superblock),
    ) -> Result<Superblock> {
        self.check_writable()?;
        let _patient = Patient::begin();
        let _epochs = self.epochs.lock();
        let mut next = self.superblock();
        change(&mut next)?;
        let written =
            self.write_copies(&next, |_| true).and_then(|()| self.write_superblock(&next, false));
        if let Err(error) = &written {
            self.latch(error);
        }
        written?;
        *self.superblock.lock() = next.clone();
        follow(&next);
        Ok(next)
    }

    /// Writes copies of the superblock and of the system area, and waits for them.
    pub(crate) fn write_copies(
        &self,
        superblock: &Superblock,
        is_wanted: impl Fn(&BlockNo) -> bool,
    ) -> Result<()> {
        let cache = &self.inodes.cache;
        let block = self.superblock_block(superblock);
        let system_area = cache.read(self.inodes.layout.system_area())?;
        let copy = [&block[..], &system_area[..]].concat();
        let copies = Layout::new(superblock).superblock_copies();
        for at in copies.into_iter().filter(is_wanted) {
            cache.write_uncached(at, &copy)?;
        }
        cache.sync()
    }
}
