//! A bucket of a directory's hash index (FORMAT: directory index).
//!
//! The index is a linear hash table: each bucket is one block and lists the hashes of names in their
//! order, with the sector that has each. It is derived from the directory's sectors. The blocks are
//! in the directory's own file, from [`index_base`] on, far after its sectors.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Checksum;
use super::block::{self, CHECKSUM_AT};
use crate::error::Corruption;
use crate::units::{InodeNo, SectorIndex};

const MAGIC: u32 = u32::from_le_bytes(*b"CFix");
const HEADER_BYTES: usize = 32;
const ENTRY_BYTES: usize = 8;
const OVERFLOWED: u16 = 1;
/// The distance from its expected position within which an entry is first searched for: a cache line.
const NEAR_ENTRIES: usize = 8;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DiskHeader {
    magic: U32,
    checksum: U32,
    owner: U64,
    generation: U32,
    bucket: U32,
    count: U16,
    flags: U16,
    reserved: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DiskEntry {
    hash: U32,
    sector: U32,
}

const _: () = assert!(size_of::<DiskHeader>() == HEADER_BYTES);
const _: () = assert!(size_of::<DiskEntry>() == ENTRY_BYTES);

impl DiskEntry {
    fn sector(&self) -> SectorIndex {
        SectorIndex(self.sector.get())
    }
}

/// The byte of a directory's file at which its index begins.
pub const INDEX_OFFSET_BYTES: u64 = 1 << 40;

/// The block of a directory's file at which its index begins.
pub fn index_base(block_bytes: u32) -> u64 {
    INDEX_OFFSET_BYTES / u64::from(block_bytes)
}

/// How many names a bucket of `block_bytes` lists.
pub fn bucket_capacity(block_bytes: u32) -> usize {
    (block_bytes as usize - HEADER_BYTES) / ENTRY_BYTES
}

/// The bucket of a hash among `buckets` (at least one), by linear hashing: the buckets before the
/// split point have one more bit than the others.
pub fn bucket_of(hash: u32, buckets: u32) -> u32 {
    let mask = (u64::from(buckets)).next_power_of_two() - 1;
    let bucket = u64::from(hash) & mask;
    if bucket < u64::from(buckets) { bucket as u32 } else { (bucket & (mask >> 1)) as u32 }
}

/// Makes `bytes` an empty bucket.
pub fn init(bytes: &mut [u8], owner: InodeNo, generation: u32, bucket: u32) {
    bytes.fill(0);
    let header = DiskHeader {
        magic: MAGIC.into(),
        checksum: U32::ZERO,
        owner: owner.0.into(),
        generation: generation.into(),
        bucket: bucket.into(),
        count: U16::ZERO,
        flags: U16::ZERO,
        reserved: U32::ZERO,
    };
    bytes[..HEADER_BYTES].copy_from_slice(header.as_bytes());
}

/// Checks that `bytes`, read from the device, are that bucket.
pub fn verify(
    bytes: &[u8],
    owner: InodeNo,
    generation: u32,
    bucket: u32,
    checksum: Checksum,
) -> Result<(), Corruption> {
    let bad = |what| Corruption::IndexBlock { dir: owner, index: bucket, what };
    let (header, entries): (&DiskHeader, _) =
        block::header(bytes, MAGIC, "not an index block", checksum).map_err(bad)?;
    if header.owner.get() != owner.0 || header.generation.get() != generation {
        return Err(bad("it belongs to another directory"));
    }
    if header.bucket.get() != bucket {
        return Err(bad("it is another bucket"));
    }
    if usize::from(header.count.get()) > entries.len() / ENTRY_BYTES {
        return Err(bad("more entries than fit"));
    }
    if !list(bytes).is_sorted_by_key(|entry| entry.hash.get()) {
        return Err(bad("the entries are not in the order of their hashes"));
    }
    Ok(())
}

/// Computes the checksum, before the bucket is written.
pub fn seal(bytes: &mut [u8], checksum: Checksum) {
    checksum.seal(bytes, CHECKSUM_AT);
}

/// How many names the bucket lists.
pub fn count(bytes: &[u8]) -> usize {
    usize::from(u16::from_le_bytes([bytes[24], bytes[25]]))
}

/// Whether names that belong here found no room: then only a scan of the directory finds them.
pub fn overflowed(bytes: &[u8]) -> bool {
    u16::from_le_bytes([bytes[26], bytes[27]]) & OVERFLOWED != 0
}

/// The sectors in which names with this hash may be.
pub fn find(bytes: &[u8], hash: u32) -> impl Iterator<Item = SectorIndex> {
    let from_hash_on = &list(bytes)[first_not_below(bytes, hash)..];
    from_hash_on.iter().take_while(move |entry| entry.hash.get() == hash).map(DiskEntry::sector)
}

/// All names of the bucket: hash and sector, in the order of the hashes.
pub fn entries(bytes: &[u8]) -> impl Iterator<Item = (u32, SectorIndex)> {
    list(bytes).iter().map(|entry| (entry.hash.get(), entry.sector()))
}

fn list(bytes: &[u8]) -> &[DiskEntry] {
    let room = bucket_capacity(bytes.len() as u32) * ENTRY_BYTES;
    let entries = <[DiskEntry]>::ref_from_bytes(&bytes[HEADER_BYTES..HEADER_BYTES + room]);
    // Whole entries, and they need no alignment.
    let entries = entries.expect("the room is a multiple of an entry");
    &entries[..count(bytes).min(entries.len())]
}

/// The position of the first entry whose hash is this one or a later one.
///
/// Hashes are distributed evenly, so the hash predicts the position. The search widens from there, and so
/// touches few cache lines.
fn first_not_below(bytes: &[u8], hash: u32) -> usize {
    let list = list(bytes);
    let guess = ((u64::from(hash) * list.len() as u64) >> 32) as usize;
    let (mut from, mut to, mut step) = (guess, guess, NEAR_ENTRIES);
    while from > 0 && list[from - 1].hash.get() >= hash {
        to = from - 1;
        from = from.saturating_sub(step);
        step *= 2;
    }
    while to < list.len() && list[to].hash.get() < hash {
        from = to + 1;
        to = (to + step).min(list.len());
        step *= 2;
    }
    from + list[from..to].partition_point(|entry| entry.hash.get() < hash)
}

/// Adds a name; if the bucket is full, marks it as overflowed instead.
pub fn insert(bytes: &mut [u8], hash: u32, sector: SectorIndex) {
    let count = count(bytes);
    let end = HEADER_BYTES + count * ENTRY_BYTES;
    if end + ENTRY_BYTES > bytes.len() {
        bytes[26] |= OVERFLOWED as u8;
        return;
    }
    let at = HEADER_BYTES + first_not_below(bytes, hash) * ENTRY_BYTES;
    bytes.copy_within(at..end, at + ENTRY_BYTES);
    let entry = DiskEntry { hash: hash.into(), sector: sector.0.into() };
    bytes[at..at + ENTRY_BYTES].copy_from_slice(entry.as_bytes());
    set_count(bytes, count + 1);
}

/// Removes a name; false if it is not listed.
pub fn remove(bytes: &mut [u8], hash: u32, sector: SectorIndex) -> bool {
    let first = first_not_below(bytes, hash);
    let listed = list(bytes)[first..].iter().take_while(|entry| entry.hash.get() == hash);
    let Some(after) = listed.map(DiskEntry::sector).position(|listed| listed == sector) else {
        return false;
    };
    let at = HEADER_BYTES + (first + after) * ENTRY_BYTES;
    let end = HEADER_BYTES + count(bytes) * ENTRY_BYTES;
    bytes.copy_within(at + ENTRY_BYTES..end, at);
    bytes[end - ENTRY_BYTES..end].fill(0);
    set_count(bytes, count(bytes) - 1);
    true
}

fn set_count(bytes: &mut [u8], count: usize) {
    bytes[24..26].copy_from_slice(&(count as u16).to_le_bytes());
}
