//! The header of a cylinder group and its bitmaps (FORMAT: cylinder groups).
//!
//! A bitmap has one bit per fragment of the group, bit 0 of byte 0 for the first; a set bit is a
//! free fragment. The fixed blocks at the head of the group count as used.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Checksum;
use crate::error::Corruption;
use crate::units::CgIndex;

/// The bytes of a header.
pub const CG_HEADER_BYTES: usize = 64;

const MAGIC: u32 = u32::from_le_bytes(*b"CFcg");
const CHECKSUM_AT: usize = 4;

/// The header of a cylinder group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgHeader {
    /// The group.
    pub cg: CgIndex,
    /// Set bits of the free bitmap.
    pub free_fragments: u32,
    /// Where the search for free fragments continues, counted from the group's first fragment.
    pub rotor: u32,
    /// CRC-32C of the free bitmap.
    pub bitmap_checksum: u32,
    /// The volume's generation when the header was written.
    pub generation: u64,
    /// How many clusters begin in the group.
    pub clusters: u32,
    /// CRC-32C of the counts of references.
    pub counts_checksum: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DiskCgHeader {
    magic: U32,
    checksum: U32,
    cg: U32,
    free_fragments: U32,
    rotor: U32,
    bitmap_checksum: U32,
    generation: U64,
    clusters: U32,
    counts_checksum: U32,
    reserved: [u8; 24],
}

const _: () = assert!(size_of::<DiskCgHeader>() == CG_HEADER_BYTES);

impl CgHeader {
    /// Decodes the block that was read as the header of `cg`.
    pub fn decode(block: &[u8], cg: CgIndex, checksum: Checksum) -> Result<CgHeader, Corruption> {
        let bad = |what| Corruption::CgHeader { cg, what };
        let (disk, _) =
            DiskCgHeader::ref_from_prefix(block).map_err(|_| bad("shorter than a header"))?;
        if disk.magic.get() != MAGIC {
            return Err(bad("not a header"));
        }
        if !checksum.verify(block, CHECKSUM_AT) {
            return Err(bad("checksum mismatch"));
        }
        if disk.cg.get() != cg.0 {
            return Err(bad("it is another group's"));
        }
        Ok(CgHeader {
            cg,
            free_fragments: disk.free_fragments.get(),
            rotor: disk.rotor.get(),
            bitmap_checksum: disk.bitmap_checksum.get(),
            generation: disk.generation.get(),
            clusters: disk.clusters.get(),
            counts_checksum: disk.counts_checksum.get(),
        })
    }

    /// Writes the header to the whole of `block`, sealed.
    pub fn encode_into(&self, block: &mut [u8], checksum: Checksum) {
        block.fill(0);
        let disk = DiskCgHeader {
            magic: MAGIC.into(),
            checksum: U32::ZERO,
            cg: self.cg.0.into(),
            free_fragments: self.free_fragments.into(),
            rotor: self.rotor.into(),
            bitmap_checksum: self.bitmap_checksum.into(),
            generation: self.generation.into(),
            clusters: self.clusters.into(),
            counts_checksum: self.counts_checksum.into(),
            reserved: [0; 24],
        };
        block[..CG_HEADER_BYTES].copy_from_slice(disk.as_bytes());
        checksum.seal(block, CHECKSUM_AT);
    }
}

/// The checksum of a free bitmap, or of counts of references, all its blocks.
pub fn bitmap_checksum(bitmap: &[u8]) -> u32 {
    crc32c::crc32c(bitmap)
}

/// How many clusters begin in a group with these counts of references.
pub fn clusters_in(counts: &[u8]) -> u32 {
    counts.iter().filter(|count| **count > 0).count() as u32
}
