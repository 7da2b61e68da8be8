//! The list of quotas, an attribute of the root directory (FORMAT: quotas).

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::units::InodeNo;

/// The attribute's name.
pub const QUOTAS_NAME: &[u8] = b"trusted.cffs.quotas";

/// The most quotas of a volume: as many as fit in an attribute.
pub const QUOTAS_MAX: usize = 1024;

/// The bytes of a quota in the list.
pub const RECORD_BYTES: usize = size_of::<DiskQuota>();

/// The unit of `st_blocks`, in which contents in the inode are charged.
pub const STAT_BLOCK_BYTES: u64 = 512;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DiskQuota {
    directory: U64,
    generation: U32,
    mounts: U32,
    limit_bytes: U64,
    limit_files: U64,
    used_bytes: U64,
    used_files: U64,
}

const _: () = assert!(RECORD_BYTES == 48);

/// A quota as the list has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaRecord {
    /// The directory.
    pub dir: InodeNo,
    /// Its generation.
    pub generation: u32,
    /// `mounts` of the superblock when the volume was closed with this account; 0 if the account is not
    /// known.
    pub mounts: u32,
    /// The most bytes; the largest number for no limit.
    pub limit_bytes: u64,
    /// The most files.
    pub limit_files: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Files in use.
    pub used_files: u64,
}

/// Encodes a list.
pub fn encode(records: &[QuotaRecord]) -> Vec<u8> {
    let encode = |record: &QuotaRecord| DiskQuota {
        directory: record.dir.0.into(),
        generation: record.generation.into(),
        mounts: record.mounts.into(),
        limit_bytes: record.limit_bytes.into(),
        limit_files: record.limit_files.into(),
        used_bytes: record.used_bytes.into(),
        used_files: record.used_files.into(),
    };
    records.iter().flat_map(|record| encode(record).as_bytes().to_vec()).collect()
}

/// Decodes a list; a piece at its end that is too short for a quota is ignored.
pub fn decode(list: &[u8]) -> Vec<QuotaRecord> {
    let count = (list.len() / RECORD_BYTES).min(QUOTAS_MAX);
    let (records, _) = <[DiskQuota]>::ref_from_prefix_with_elems(list, count).unwrap_or((&[], &[]));
    let decode = |disk: &DiskQuota| QuotaRecord {
        dir: InodeNo(disk.directory.get()),
        generation: disk.generation.get(),
        mounts: disk.mounts.get(),
        limit_bytes: disk.limit_bytes.get(),
        limit_files: disk.limit_files.get(),
        used_bytes: disk.used_bytes.get(),
        used_files: disk.used_files.get(),
    };
    records.iter().map(decode).collect()
}
