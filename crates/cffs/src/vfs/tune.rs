//! Changing what mkfs decided, as far as that can change: name, identity, what happens at damage, and
//! the reserve.
//!
//! The copies of the superblock are written first, and block 0 when they are durable: what was changed
//! halfway is not changed. Metadata stays as it is under a new UUID, since its checksums keep their seed.

use super::Volume;
use crate::device::Patient;
use crate::error::{Error, Result};
use crate::format::Superblock;
use crate::format::superblock::{ErrorsPolicy, Reserve};
use crate::mkfs;
use crate::trace::OpKind;

/// Which properties of a volume to change; `None` leaves one as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetVolume {
    /// The volume's name: at most [`LABEL_BYTES_MAX`](crate::mkfs::LABEL_BYTES_MAX) bytes, none of
    /// them zero.
    pub label: Option<Vec<u8>>,
    /// What identifies this volume.
    pub uuid: Option<[u8; 16]>,
    /// What a mount does when it meets damage, unless its options say otherwise.
    pub errors: Option<ErrorsPolicy>,
    /// Space that only some may use: at most half of the volume.
    pub reserve: Option<Reserve>,
}

impl SetVolume {
    fn apply(&self, superblock: &mut Superblock) -> Result<()> {
        if let Some(label) = &self.label {
            mkfs::check_label(label)?;
            superblock.label.clone_from(label);
        }
        if let Some(uuid) = self.uuid {
            superblock.uuid = uuid;
        }
        if let Some(errors) = self.errors {
            superblock.errors_policy = errors;
        }
        if let Some(reserve) = self.reserve {
            mkfs::check_reserve(superblock, reserve.fragments)?;
            superblock.reserve = reserve;
        }
        superblock.check().map_err(Error::from)
    }
}

impl Volume {
    /// Changes properties of the volume, durably, while it is used, and returns its new superblock.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if a value cannot be; nothing is changed then. [`Error::Io`] if the
    /// device failed: the volume keeps its properties and is [latched](Volume::latched).
    pub fn tune(&self, changes: &SetVolume) -> Result<Superblock> {
        let _op = self.enter_volume(OpKind::Maintenance);
        let next = self.rewrite_superblock(|superblock| changes.apply(superblock))?;
        self.inodes().alloc.set_reserve(next.reserve.fragments);
        self.reserve.set(next.reserve);
        Ok(next)
    }

    /// Changes what the superblock and its copies describe, durably, and returns it.
    pub(super) fn rewrite_superblock(
        &self,
        change: impl FnOnce(&mut Superblock) -> Result<()>,
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
        Ok(next)
    }
}
