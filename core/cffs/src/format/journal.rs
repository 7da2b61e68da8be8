//! The journal (FORMAT: the journal): whole epochs, each in one record, until they are written to their
//! places.
//!
//! Offers [`Header`], which says where the journal begins, and [`Record`], which has the addresses and
//! checksums of the blocks whose images follow it. Both fill a block.

use siphasher::sip::SipHasher13;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Checksum;
use crate::units::BlockNo;

/// Blocks at the start of the journal, each of which has the header.
pub const HEADER_BLOCKS: u32 = 2;
/// The most blocks of a journal.
pub const JOURNAL_BLOCKS_MAX: u32 = 1 << 20;
/// The fewest blocks of a journal: its headers, and a record of a few blocks.
pub const JOURNAL_BLOCKS_MIN: u32 = 16;
/// The longest gap between two records, in bytes, where the journal is long enough.
pub const GAP_BYTES_MAX: u32 = 512 << 10;
/// The highest number of a header: another one must be able to follow it.
pub const SEQUENCE_MAX: u64 = u64::MAX - 1;
/// The bytes of a header that have a meaning.
pub const HEADER_BYTES: usize = 64;
/// The bytes of a record before its entries.
pub const RECORD_HEADER_BYTES: usize = 32;
/// The bytes of an entry of a record.
pub const ENTRY_BYTES: usize = 16;

const HEADER_MAGIC: u32 = u32::from_le_bytes(*b"CFlh");
const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"CFlr");
const CHECKSUM_AT: usize = 4;

/// The header of a journal, which holds the records of this era, from its first place on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Counts headers; the valid one with the higher number counts.
    pub sequence: u64,
    /// A number that cannot be guessed without the volume's seed of hashes, so that contents of files in the
    /// journal cannot be taken for records. Copies of the volume get other numbers.
    pub era: u64,
    /// The era of the header before.
    pub previous: u64,
    /// The blocks of the journal.
    pub blocks: u32,
    /// The journal's UUID; zeros where it is on its volume.
    pub uuid: [u8; 16],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DiskHeader {
    magic: U32,
    checksum: U32,
    sequence: U64,
    era: U64,
    blocks: U32,
    uuid: [u8; 16],
    previous: U64,
    reserved: [u8; 12],
}

const _: () = assert!(size_of::<DiskHeader>() == HEADER_BYTES);

impl Header {
    /// The header that follows this one, with an era made of the seed of hashes and a
    /// [nonce](crate::device::BlockDevice::nonce).
    pub fn next(&self, hash_seed: &[u8; 16], nonce: u64) -> Header {
        let sequence = self.sequence + 1;
        let drawn = (u128::from(nonce) << 64 | u128::from(sequence)).to_le_bytes();
        let era = SipHasher13::new_with_key(hash_seed).hash(&drawn);
        Header { sequence, era, previous: self.era, ..*self }
    }

    /// The UUID in the header of a journal on a device of its own, for any volume, even if the header is
    /// damaged.
    pub fn journal_uuid(block: &[u8]) -> Option<[u8; 16]> {
        let disk = DiskHeader::ref_from_bytes(block.get(..HEADER_BYTES)?).ok()?;
        (disk.magic.get() == HEADER_MAGIC && disk.uuid != [0; 16]).then_some(disk.uuid)
    }

    /// Fills a block with the header.
    pub fn encode_into(&self, block: &mut [u8], checksum: Checksum) {
        let disk = DiskHeader {
            magic: HEADER_MAGIC.into(),
            checksum: U32::ZERO,
            sequence: self.sequence.into(),
            era: self.era.into(),
            blocks: self.blocks.into(),
            uuid: self.uuid,
            previous: self.previous.into(),
            reserved: [0; 12],
        };
        block.fill(0);
        block[..HEADER_BYTES].copy_from_slice(disk.as_bytes());
        checksum.seal(block, CHECKSUM_AT);
    }

    /// The header in a block, if there is one.
    pub fn decode(block: &[u8], checksum: Checksum) -> Option<Header> {
        let disk = DiskHeader::ref_from_bytes(block.get(..HEADER_BYTES)?).ok()?;
        if disk.magic.get() != HEADER_MAGIC || !checksum.verify(block, CHECKSUM_AT) {
            return None;
        }
        let header = Header {
            sequence: disk.sequence.get(),
            era: disk.era.get(),
            previous: disk.previous.get(),
            blocks: disk.blocks.get(),
            uuid: disk.uuid,
        };
        (header.sequence <= SEQUENCE_MAX).then_some(header)
    }
}

/// The position of a record among the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The header's.
    pub era: u64,
    /// Counts the records of the era, from 0 on.
    pub sequence: u64,
    /// The checksum of the record before; 0 in the first.
    pub previous: u32,
}

/// A block whose image a record has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The block's place on the volume.
    pub block: BlockNo,
    /// The CRC-32C of its image.
    pub checksum: u32,
}

/// The first block of a record: the contents of the blocks after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Where it stands.
    pub place: Place,
    /// The blocks, in the order of their images.
    pub entries: Vec<Entry>,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DiskRecord {
    magic: U32,
    checksum: U32,
    era: U64,
    sequence: U64,
    previous: U32,
    count: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DiskEntry {
    block: U64,
    checksum: U32,
    reserved: [u8; 4],
}

const _: () = assert!(size_of::<DiskRecord>() == RECORD_HEADER_BYTES);
const _: () = assert!(size_of::<DiskEntry>() == ENTRY_BYTES);

/// The most blocks that a record has images of.
pub fn entries_max(block_bytes: u32) -> u32 {
    (block_bytes - RECORD_HEADER_BYTES as u32) / ENTRY_BYTES as u32
}

/// The largest gap between two records of a journal of `journal_blocks` blocks, in blocks.
pub fn gap_max(block_bytes: u32, journal_blocks: u32) -> u32 {
    (GAP_BYTES_MAX / block_bytes).min((journal_blocks - HEADER_BLOCKS) / 8)
}

impl Record {
    /// Fills a block with the record, which has no more entries than fit, and returns its checksum.
    pub fn encode_into(&self, block: &mut [u8], checksum: Checksum) -> u32 {
        let disk = DiskRecord {
            magic: RECORD_MAGIC.into(),
            checksum: U32::ZERO,
            era: self.place.era.into(),
            sequence: self.place.sequence.into(),
            previous: self.place.previous.into(),
            count: (self.entries.len() as u32).into(),
        };
        block.fill(0);
        let (head, rest) = block.split_at_mut(RECORD_HEADER_BYTES);
        head.copy_from_slice(disk.as_bytes());
        for (place, entry) in rest.chunks_exact_mut(ENTRY_BYTES).zip(&self.entries) {
            let (block, checksum) = (entry.block.0.into(), entry.checksum.into());
            place.copy_from_slice(DiskEntry { block, checksum, reserved: [0; 4] }.as_bytes());
        }
        checksum.seal(block, CHECKSUM_AT);
        checksum_in(block)
    }

    /// The record in a block, with its checksum, if there is one.
    pub fn decode(block: &[u8], checksum: Checksum) -> Option<(Record, u32)> {
        let disk = DiskRecord::ref_from_bytes(block.get(..RECORD_HEADER_BYTES)?).ok()?;
        if disk.magic.get() != RECORD_MAGIC || !checksum.verify(block, CHECKSUM_AT) {
            return None;
        }
        let count = disk.count.get();
        if count == 0 || count > entries_max(block.len() as u32) {
            return None;
        }
        let (era, sequence) = (disk.era.get(), disk.sequence.get());
        let place = Place { era, sequence, previous: disk.previous.get() };
        let entries = block[RECORD_HEADER_BYTES..].chunks_exact(ENTRY_BYTES).take(count as usize);
        let entries = entries
            .map(|entry| DiskEntry::ref_from_bytes(entry).ok())
            .map(|entry| {
                let DiskEntry { block, checksum, .. } = entry?;
                Some(Entry { block: BlockNo(block.get()), checksum: checksum.get() })
            })
            .collect::<Option<Vec<Entry>>>()?;
        Some((Record { place, entries }, checksum_in(block)))
    }
}

fn checksum_in(block: &[u8]) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|index| block[CHECKSUM_AT + index]))
}

/// The checksum of a block's image.
pub fn image_checksum(image: &[u8]) -> u32 {
    crc32c::crc32c(image)
}
