//! Pure codecs: bytes in, struct out, and back.
//!
//! Offers one module per on-disk structure of `docs/FORMAT.md` and [`Layout`], the arithmetic of their
//! places. Stands on `units` and `error`. This layer does no I/O and has no policy: a codec checks bytes and
//! refuses invalid ones with a [`Corruption`](crate::error::Corruption) that names the place.
//!
//! Invariants: everything is little-endian; sizes and offsets are pinned at compile time; every
//! metadata block has a magic, its owner, and a CRC-32C that is seeded for the volume, so that a
//! block of another or an earlier volume never passes for one of this volume's.

use crate::units::InodeNo;

mod block;
pub mod checksum;
pub mod cluster;
pub mod cylinder_group;
pub mod extent;
pub mod index;
pub mod inode;
pub mod intent_log;
pub mod journal;
pub mod layout;
mod live;
pub mod locator;
pub mod quota;
pub mod sector;
pub mod superblock;
pub mod xattr;

pub use checksum::Checksum;
pub use layout::Layout;
pub use live::LiveLayout;
pub use superblock::Superblock;

/// The longest name of a file, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// The longest target of a symbolic link, in bytes.
pub const SYMLINK_BYTES_MAX: usize = 4095;

/// The largest size of a file, in bytes: what extents can map with the smallest fragments.
pub const FILE_BYTES_MAX: u64 = 512 << 40;

/// The largest number of an inode: the locator table, with 16 bytes for each number, is a file too.
pub const INODE_NO_MAX: InodeNo = InodeNo(1 << 44);

/// The largest count of names of one inode.
pub const LINKS_MAX: u32 = 1_000_000_000;

#[cfg(test)]
mod tests;
