//! Changing options of mkfs: name, identity, the policies, the reserve, and the compression.
//!
//! The copies of the superblock are written first, and block 0 when they are durable: a change is complete
//! when block 0 has it. A new UUID does not affect metadata, since the seed of its checksums stays.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::format::Superblock;
use crate::format::superblock::{Compression, ErrorsPolicy, Incompat, Policy, Reserve};
use crate::mkfs;

/// Which properties of a volume to change; `None` leaves one unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetVolume {
    /// The volume's name: at most [`LABEL_BYTES_MAX`](crate::mkfs::LABEL_BYTES_MAX) bytes, none of
    /// them zero.
    pub label: Option<Vec<u8>>,
    /// The identity of the volume.
    pub uuid: Option<[u8; 16]>,
    /// The reaction of a mount to damage, unless its options say otherwise.
    pub errors: Option<ErrorsPolicy>,
    /// Space that only some may use: at most half of the volume.
    pub reserve: Option<Reserve>,
    /// How contents are compressed from now on. Only a volume that was made with a compression, or with
    /// [`Compression::Off`], can change it.
    pub compression: Option<Compression>,
    /// How files find their neighbours from now on. Files keep the key that they have until regrouping moves
    /// them or, with [`Policy::Access`], until their access time changes.
    pub policy: Option<Policy>,
}

impl SetVolume {
    /// Changes the superblock, or says why a value cannot be.
    pub(crate) fn apply(&self, superblock: &mut Superblock) -> Result<()> {
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
        if let Some(compression) = self.compression {
            if !superblock.incompat.contains(Incompat::CLUSTERS) {
                let why = "the volume was made without counts of references to compressed contents; \
                           make it with cffs mkfs --compress";
                return Err(Error::Unsupported(why.into()));
            }
            superblock.compression = compression;
        }
        if let Some(policy) = self.policy {
            let both_group = policy.groups() && superblock.policy.groups();
            if policy != superblock.policy && !both_group {
                let why = "policies without grouping are for comparison: only cffs mkfs can choose them, \
                           and they cannot be changed";
                return Err(Error::Unsupported(why.into()));
            }
            superblock.policy = policy;
        }
        superblock.check().map_err(Error::from)
    }
}
