//! A block of the inode locator table (FORMAT: inode locator table; thesis 2.1.5).
//!
//! The table is a file that maps an inode number to the sector that contains the inode. It is
//! derived: a walk of the directories can rebuild it.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Checksum;
use super::block::{self, CHECKSUM_AT};
use crate::error::Corruption;
use crate::units::{Container, InodeNo, SectorIndex};

/// The bytes of an entry.
pub const ENTRY_BYTES: usize = 16;

const MAGIC: u32 = u32::from_le_bytes(*b"CFlo");
const HEADER_BYTES: usize = 32;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DiskHeader {
    magic: U32,
    checksum: U32,
    index: U64,
    used: U16,
    reserved: [u8; 14],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DiskEntry {
    file: U64,
    sector: U32,
    generation: U32,
}

const _: () = assert!(size_of::<DiskHeader>() == HEADER_BYTES);
const _: () = assert!(size_of::<DiskEntry>() == ENTRY_BYTES);

/// An entry of the table for an inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where the inode is; `None` if the number is free.
    pub container: Option<Container>,
    /// The generation of the inode, or, if the number is free, of the last inode that had it.
    pub generation: u32,
}

/// How many entries a block of `block_bytes` holds.
pub fn entries_per_block(block_bytes: u32) -> u32 {
    (block_bytes - HEADER_BYTES as u32) / ENTRY_BYTES as u32
}

/// The block of the table that has the entry of `ino`, and the entry's position in it.
pub fn position(ino: InodeNo, block_bytes: u32) -> (u64, usize) {
    let per_block = u64::from(entries_per_block(block_bytes));
    (ino.0 / per_block, (ino.0 % per_block) as usize)
}

/// Makes `bytes` block `index` of the table, with all numbers free.
pub fn init(bytes: &mut [u8], index: u64) {
    bytes.fill(0);
    let header = DiskHeader {
        magic: MAGIC.into(),
        checksum: U32::ZERO,
        index: index.into(),
        used: U16::ZERO,
        reserved: [0; 14],
    };
    bytes[..HEADER_BYTES].copy_from_slice(header.as_bytes());
}

/// Checks that `bytes`, read from the device, are block `index` of the table.
pub fn verify(bytes: &[u8], index: u64, checksum: Checksum) -> Result<(), Corruption> {
    let bad = |what| Corruption::LocatorBlock { index, what };
    let (header, _): (&DiskHeader, _) =
        block::header(bytes, MAGIC, "not a block of the table", checksum).map_err(bad)?;
    if header.index.get() != index {
        return Err(bad("it is another block of the table"));
    }
    Ok(())
}

/// Whether by their header `bytes` are block `index` of the table, perhaps a mixture of two versions.
pub fn is_block(bytes: &[u8], index: u64) -> bool {
    DiskHeader::ref_from_prefix(bytes)
        .is_ok_and(|(header, _)| header.magic.get() == MAGIC && header.index.get() == index)
}

/// Computes the block's count of used entries and its checksum, before it is written.
pub fn seal(bytes: &mut [u8], checksum: Checksum) {
    let used = used_count(bytes) as u16;
    bytes[16..18].copy_from_slice(&used.to_le_bytes());
    checksum.seal(bytes, CHECKSUM_AT);
}

/// How many numbers of the block are in use.
pub fn used_count(bytes: &[u8]) -> usize {
    bytes[HEADER_BYTES..].chunks_exact(ENTRY_BYTES).filter(|entry| entry[..8] != [0; 8]).count()
}

/// The entry at `position`.
pub fn get(bytes: &[u8], position: usize) -> Entry {
    let at = HEADER_BYTES + position * ENTRY_BYTES;
    match DiskEntry::ref_from_bytes(&bytes[at..at + ENTRY_BYTES]) {
        Ok(entry) => Entry {
            container: (entry.file.get() != 0).then(|| Container {
                file: InodeNo(entry.file.get()),
                sector: SectorIndex(entry.sector.get()),
            }),
            generation: entry.generation.get(),
        },
        Err(_) => Entry { container: None, generation: 0 },
    }
}

/// Sets the entry at `position`.
pub fn set(bytes: &mut [u8], position: usize, entry: Entry) {
    let at = HEADER_BYTES + position * ENTRY_BYTES;
    let disk = DiskEntry {
        file: entry.container.map_or(0, |c| c.file.0).into(),
        sector: entry.container.map_or(0, |c| c.sector.0).into(),
        generation: entry.generation.into(),
    };
    bytes[at..at + ENTRY_BYTES].copy_from_slice(disk.as_bytes());
}

/// The position of a free number at or after `from`.
pub fn find_free(bytes: &[u8], from: usize) -> Option<usize> {
    bytes[HEADER_BYTES..]
        .chunks_exact(ENTRY_BYTES)
        .enumerate()
        .skip(from)
        .find(|(_, entry)| entry[..8] == [0; 8])
        .map(|(position, _)| position)
}
