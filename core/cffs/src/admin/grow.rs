//! Growing: adding new blocks of the device to a volume in use (FORMAT: growing).
//!
//! ```text
//!   copies beyond the old end │ the other copies │ bitmap of the last group │ block 0 │ old last copy
//!                           sync               sync                       sync      sync      erased
//! ```
//!
//! Invariants: until block 0 is written, the volume has its old size in every respect, and its new blocks
//! contain nothing: data is placed only under the lock of epochs, which growing holds. Reservations that are
//! made there meanwhile are used by a later epoch.

use crate::device::Patient;
use crate::epoch::{EpochKind, EpochWriter, Progress};
use crate::error::{Error, Result};
use crate::format::Superblock;
use crate::inode::InodeCache;
use crate::mkfs;
use crate::trace::OpKind;
use crate::units::BlockNo;

/// A volume grows by at least as many blocks as its last copy of the superblock has, so that the new
/// one is not on the old one.
const GAIN_BLOCKS_MIN: u64 = 2;

/// The most epochs that are written to place all data; one usually suffices.
const EPOCHS_MAX: u32 = 16;

/// Makes a volume larger.
pub(crate) struct Grow<'a> {
    inodes: &'a InodeCache,
    writer: &'a EpochWriter,
}

impl<'a> Grow<'a> {
    pub(crate) fn new(writer: &'a EpochWriter) -> Grow<'a> {
        Grow { inodes: &writer.inodes, writer }
    }
}

impl Grow<'_> {
    /// Makes the volume larger; see [`Admin::grow`](crate::vfs::Admin::grow).
    pub(crate) fn run(&self, size_bytes: Option<u64>) -> Result<u64> {
        let _op = self.writer.enter_volume(OpKind::Maintenance);
        self.writer.health.check_writable()?;
        let device = self.inodes.cache.device();
        let old = self.writer.superblock.get();
        let old_bytes = old.blocks * u64::from(old.block_bytes);
        if let Some(wanted) = size_bytes.filter(|wanted| *wanted < old_bytes) {
            return Err(Error::Unsupported(format!(
                "the volume has {old_bytes} bytes and cannot shrink to {wanted}; make a smaller one \
                 and copy the files"
            )));
        }
        device.control().grow(size_bytes.unwrap_or(0))?;
        let there = device.geometry().size_bytes;
        let wanted = size_bytes.unwrap_or(there);
        if wanted > there {
            return Err(Error::Unsupported(format!(
                "the device has {there} bytes, less than {wanted}; make it larger first"
            )));
        }
        let mut progress = self.writer.epochs.lock();
        let _patient = Patient::begin();
        let grown = self.try_grow(&mut progress, wanted);
        if let Err(error) = &grown
            && !matches!(error, Error::Unsupported(_) | Error::EpochNeeded)
        {
            self.writer.latch(error);
        }
        grown
    }

    fn try_grow(&self, progress: &mut Progress, size_bytes: u64) -> Result<u64> {
        let old = self.writer.superblock.get();
        let next = grown(&old, size_bytes)?;
        if next.blocks >= old.blocks + GAIN_BLOCKS_MIN {
            self.writer.superblock.write_copies(&next, |copy| copy.0 >= old.blocks)?;
            self.writer
                .superblock
                .write_copies(&next, |copy| copy.0 < old.blocks - GAIN_BLOCKS_MIN)?;
            self.take_in(progress, &next)?;
            self.erase_copy(&old)?;
            tracing::info!(from = old.blocks, to = next.blocks, "the volume has grown, in blocks");
        }
        let now = self.writer.superblock.get();
        Ok(now.blocks * u64::from(now.block_bytes))
    }

    /// Erases the old last copy of the superblock, which is in free space now: a later search for copies must
    /// not find a volume of the old size.
    fn erase_copy(&self, old: &Superblock) -> Result<()> {
        let cache = &self.inodes.cache;
        let zeros = vec![0; GAIN_BLOCKS_MIN as usize * old.block_bytes as usize];
        cache.write_uncached(BlockNo(old.blocks - GAIN_BLOCKS_MIN), &zeros)?;
        cache.sync()
    }

    /// Reaches a checkpoint at which the volume has its new size.
    fn take_in(&self, progress: &mut Progress, next: &Superblock) -> Result<()> {
        // The long part runs while changes continue.
        self.writer.run_epoch(progress, EpochKind::Derived)?;
        let prepared = {
            let _gate = self.writer.gate.write();
            for _ in 0..EPOCHS_MAX {
                self.writer.write_all(progress)?;
                if self.inodes.queue_len() == 0 {
                    break;
                }
            }
            if self.inodes.queue_len() > 0 {
                return Err(Error::EpochNeeded);
            }
            self.inodes.alloc.grow(next.blocks)?;
            self.writer.checkpoints().prepare(progress, |superblock| {
                superblock.blocks = next.blocks;
            })?
        };
        self.writer.complete(progress, prepared)
    }
}

/// The superblock of the same volume on a device of `size_bytes`. The intent log keeps its size: it is
/// before the first files.
fn grown(old: &Superblock, size_bytes: u64) -> Result<Superblock> {
    let blocks = mkfs::blocks_of(old, size_bytes)?.max(old.blocks);
    let next = Superblock { blocks, ..old.clone() };
    next.check()?;
    Ok(next)
}
