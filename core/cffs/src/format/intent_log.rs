//! The intent log (FORMAT: intent log): what may have changed since the last checkpoint.
//!
//! Offers [`Record`] and the codec of a sector of the log. A record names a place that has changed since the
//! checkpoint, or its contents at that time; it is on the device before the change. After a crash, recovery
//! therefore examines only listed places.
//!
//! A record whose change was never written is harmless.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Checksum;
use crate::units::{CgIndex, FragNo, FragRun, InodeNo};

/// The bytes of a sector of the log before its records.
pub const HEADER_BYTES: usize = 32;

const MAGIC: u32 = u32::from_le_bytes(*b"CFbl");
const CHECKSUM_AT: usize = 4;
/// The log is incomplete: a full check is needed.
const INCOMPLETE: u16 = 1;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DiskHeader {
    magic: U32,
    checksum: U32,
    generation: U64,
    sequence: U32,
    used: U16,
    flags: U16,
    previous: U32,
    reserved: [u8; 4],
}

const _: () = assert!(size_of::<DiskHeader>() == HEADER_BYTES);

/// A record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Record {
    /// Sectors of the directory change, or its index as a whole does.
    Directory(InodeNo),
    /// Sectors in a block of the external table change.
    Table {
        /// The block of the table.
        position: u32,
    },
    /// An inode in a block of the external table that changes.
    External {
        /// The inode.
        ino: InodeNo,
        /// The names that it had at the checkpoint.
        names: u32,
    },
    /// A name of an external inode that existed at the checkpoint, in a block that changes.
    Reference {
        /// The directory.
        dir: InodeNo,
        /// The block of the directory.
        position: u32,
        /// The inode.
        ino: InodeNo,
    },
    /// A block of the locator table changes.
    Locator {
        /// The block of the table.
        position: u64,
        /// The entries that were in use at the checkpoint.
        used: u16,
    },
    /// Fragments of the group come into use, or become free.
    Group {
        /// The group.
        cg: CgIndex,
        /// The fragments that were free at the checkpoint.
        free: u32,
    },
    /// A run that was in use becomes free.
    Freed(FragRun),
    /// References to a cluster come or go.
    Cluster {
        /// Its run.
        run: FragRun,
        /// The references to it at the checkpoint. 0 if no cluster began there, or the former one was freed:
        /// then all references to it are of inodes whose containers the log lists.
        references: u8,
    },
    /// A file refers to a cluster more or less often than at the checkpoint.
    Referrer {
        /// The first fragment of the cluster.
        start: FragNo,
        /// The file.
        ino: InodeNo,
        /// How many of its extents referred to the cluster at the checkpoint.
        extents: u8,
    },
    /// Only the blocks of a large directory that [`Record::DirectoryBlock`] names change, and the buckets of
    /// its index that [`Record::Bucket`] names, unless [`Record::Directory`] names it too.
    LargeDirectory {
        /// The directory.
        dir: InodeNo,
        /// The names in it at the checkpoint.
        entries: u32,
        /// The directories among them.
        subdirectories: u32,
        /// The buckets of its index at the checkpoint.
        buckets: u32,
    },
    /// Sectors in a block of a large directory change.
    DirectoryBlock {
        /// The directory.
        dir: InodeNo,
        /// The block of the directory.
        position: u32,
        /// The names in it at the checkpoint.
        names: u16,
        /// The directories among them.
        subdirectories: u16,
    },
    /// A bucket of the index of a large directory changes.
    Bucket {
        /// The directory.
        dir: InodeNo,
        /// The bucket.
        bucket: u32,
    },
    /// The entry of an inode without a name in the locator table is void.
    Nameless(InodeNo),
    /// Derived state is being written for the next checkpoint: a listed bitmap, block of the locator
    /// table or bucket may be part old and part new.
    Settling,
    /// The end of the records of one epoch: records that none follows are of an epoch that changed
    /// nothing yet.
    End,
}

impl Record {
    /// The bytes of the record in a sector.
    pub fn encoded_bytes(&self) -> usize {
        1 + match self {
            Record::Directory(_) | Record::Nameless(_) => 8,
            Record::Table { .. } => 4,
            Record::Group { .. } => 8,
            Record::External { .. } | Record::Freed(_) | Record::Bucket { .. } => 12,
            Record::Cluster { .. } => 13,
            Record::DirectoryBlock { .. } => 16,
            Record::Referrer { .. } => 17,
            Record::Reference { .. } | Record::LargeDirectory { .. } => 20,
            Record::Locator { .. } => 10,
            Record::Settling | Record::End => 0,
        }
    }

    fn encode(&self, out: &mut [u8]) {
        let mut at = 0;
        let mut put = |field: &[u8]| {
            out[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(&[self.kind()]);
        match self {
            Record::Directory(ino) | Record::Nameless(ino) => put(&ino.0.to_le_bytes()),
            Record::Table { position } => put(&position.to_le_bytes()),
            Record::External { ino, names } => {
                put(&ino.0.to_le_bytes());
                put(&names.to_le_bytes());
            }
            Record::Reference { dir, position, ino } => {
                put(&dir.0.to_le_bytes());
                put(&position.to_le_bytes());
                put(&ino.0.to_le_bytes());
            }
            Record::Locator { position, used } => {
                put(&position.to_le_bytes());
                put(&used.to_le_bytes());
            }
            Record::Group { cg, free } => {
                put(&cg.0.to_le_bytes());
                put(&free.to_le_bytes());
            }
            Record::Freed(run) => {
                put(&run.start.0.to_le_bytes());
                put(&run.len.to_le_bytes());
            }
            Record::Settling | Record::End => {}
            Record::Cluster { run, references } => {
                put(&run.start.0.to_le_bytes());
                put(&run.len.to_le_bytes());
                put(&[*references]);
            }
            Record::Referrer { start, ino, extents } => {
                put(&start.0.to_le_bytes());
                put(&ino.0.to_le_bytes());
                put(&[*extents]);
            }
            Record::LargeDirectory { dir, entries, subdirectories, buckets } => {
                put(&dir.0.to_le_bytes());
                for count in [entries, subdirectories, buckets] {
                    put(&count.to_le_bytes());
                }
            }
            Record::DirectoryBlock { dir, position, names, subdirectories } => {
                put(&dir.0.to_le_bytes());
                put(&position.to_le_bytes());
                put(&names.to_le_bytes());
                put(&subdirectories.to_le_bytes());
            }
            Record::Bucket { dir, bucket } => {
                put(&dir.0.to_le_bytes());
                put(&bucket.to_le_bytes());
            }
        }
        debug_assert_eq!(at, self.encoded_bytes(), "{self:?}");
    }

    fn kind(&self) -> u8 {
        match self {
            Record::Directory(_) => 1,
            Record::Table { .. } => 2,
            Record::External { .. } => 3,
            Record::Reference { .. } => 4,
            Record::Locator { .. } => 5,
            Record::Group { .. } => 6,
            Record::Freed(_) => 7,
            Record::Settling => 8,
            Record::End => 9,
            Record::Cluster { .. } => 10,
            Record::Referrer { .. } => 11,
            Record::LargeDirectory { .. } => 12,
            Record::DirectoryBlock { .. } => 13,
            Record::Bucket { .. } => 14,
            Record::Nameless(_) => 15,
        }
    }

    /// The first record in `bytes`, and what comes after it.
    fn decode(bytes: &[u8]) -> Option<(Record, &[u8])> {
        let (kind, fields) = bytes.split_first()?;
        let u64_at = |at| U64::ref_from_bytes(fields.get(at..at + 8)?).ok().map(|n| n.get());
        let u32_at = |at| U32::ref_from_bytes(fields.get(at..at + 4)?).ok().map(|n| n.get());
        let u16_at = |at| U16::ref_from_bytes(fields.get(at..at + 2)?).ok().map(|n| n.get());
        let record = match kind {
            1 => Record::Directory(InodeNo(u64_at(0)?)),
            2 => Record::Table { position: u32_at(0)? },
            3 => Record::External { ino: InodeNo(u64_at(0)?), names: u32_at(8)? },
            4 => Record::Reference {
                dir: InodeNo(u64_at(0)?),
                position: u32_at(8)?,
                ino: InodeNo(u64_at(12)?),
            },
            5 => Record::Locator { position: u64_at(0)?, used: u16_at(8)? },
            6 => Record::Group { cg: CgIndex(u32_at(0)?), free: u32_at(4)? },
            7 => Record::Freed(FragRun::new(FragNo(u64_at(0)?), u32_at(8)?)),
            8 => Record::Settling,
            9 => Record::End,
            10 => Record::Cluster {
                run: FragRun::new(FragNo(u64_at(0)?), u32_at(8)?),
                references: *fields.get(12)?,
            },
            11 => Record::Referrer {
                start: FragNo(u64_at(0)?),
                ino: InodeNo(u64_at(8)?),
                extents: *fields.get(16)?,
            },
            12 => Record::LargeDirectory {
                dir: InodeNo(u64_at(0)?),
                entries: u32_at(8)?,
                subdirectories: u32_at(12)?,
                buckets: u32_at(16)?,
            },
            13 => Record::DirectoryBlock {
                dir: InodeNo(u64_at(0)?),
                position: u32_at(8)?,
                names: u16_at(12)?,
                subdirectories: u16_at(14)?,
            },
            14 => Record::Bucket { dir: InodeNo(u64_at(0)?), bucket: u32_at(8)? },
            15 => Record::Nameless(InodeNo(u64_at(0)?)),
            _ => return None,
        };
        bytes.get(record.encoded_bytes()..).map(|rest| (record, rest))
    }
}

/// The contents of a sector of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Its records.
    pub records: Vec<Record>,
    /// The log is incomplete.
    pub incomplete: bool,
}

/// Where a sector of a log stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The generation of the volume that the log belongs to.
    pub generation: u64,
    /// The sectors of the generation before it.
    pub sequence: u32,
    /// The checksum of the one before it; 0 for the first. The last sector of a log is rewritten repeatedly,
    /// and the next one follows only its last version.
    pub previous: u32,
}

/// Makes `sector` an empty one.
pub fn init(sector: &mut [u8], position: Position) {
    sector.fill(0);
    let header = DiskHeader {
        magic: MAGIC.into(),
        checksum: U32::ZERO,
        generation: position.generation.into(),
        sequence: position.sequence.into(),
        used: U16::ZERO,
        flags: U16::ZERO,
        previous: position.previous.into(),
        reserved: [0; 4],
    };
    sector[..HEADER_BYTES].copy_from_slice(header.as_bytes());
}

/// Appends a record; false if there is no room.
pub fn append(sector: &mut [u8], record: &Record) -> bool {
    let Ok((header, records)) = DiskHeader::mut_from_prefix(sector) else { return false };
    let used = usize::from(header.used.get());
    match records.get_mut(used..used + record.encoded_bytes()) {
        Some(room) => {
            record.encode(room);
            header.used = ((used + record.encoded_bytes()) as u16).into();
            true
        }
        None => false,
    }
}

/// Marks the log as incomplete.
pub fn set_incomplete(sector: &mut [u8]) {
    if let Ok((header, _)) = DiskHeader::mut_from_prefix(sector) {
        header.flags = INCOMPLETE.into();
    }
}

/// Computes the sector's checksum, before it is written, and returns it.
pub fn seal(sector: &mut [u8], checksum: Checksum) -> u32 {
    checksum.seal(sector, CHECKSUM_AT);
    checksum_of(sector)
}

fn checksum_of(sector: &[u8]) -> u32 {
    DiskHeader::ref_from_prefix(sector).map_or(0, |(header, _)| header.checksum.get())
}

/// The position of a sector in a log.
pub fn position_of(sector: &[u8], checksum: Checksum) -> Option<Position> {
    let (header, _) = DiskHeader::ref_from_prefix(sector).ok()?;
    let is_one = header.magic.get() == MAGIC && checksum.verify(sector, CHECKSUM_AT);
    is_one.then(|| Position {
        generation: header.generation.get(),
        sequence: header.sequence.get(),
        previous: header.previous.get(),
    })
}

/// Whether a sector at a position of the log was written only in part. A device that writes sectors
/// atomically never does this.
pub fn is_torn(sector: &[u8], position: Position, checksum: Checksum) -> bool {
    DiskHeader::ref_from_prefix(sector).is_ok_and(|(header, _)| {
        header.magic.get() == MAGIC
            && header.generation.get() == position.generation
            && header.sequence.get() == position.sequence
            && !checksum.verify(sector, CHECKSUM_AT)
    })
}

/// The marks in the sector at a position of the log; `None` if the log ends before it. The position
/// moves on.
pub fn decode(sector: &[u8], position: &mut Position, checksum: Checksum) -> Option<Marks> {
    if position_of(sector, checksum)? != *position {
        return None;
    }
    let (header, records) = DiskHeader::ref_from_prefix(sector).ok()?;
    position.sequence += 1;
    position.previous = header.checksum.get();
    let mut marks = Marks { incomplete: header.flags.get() != 0, ..Marks::default() };
    let mut rest = records.get(..header.used.get().into()).unwrap_or_else(|| {
        marks.incomplete = true;
        &[]
    });
    while !rest.is_empty() {
        match Record::decode(rest) {
            Some((record, after)) => {
                marks.records.push(record);
                rest = after;
            }
            // A kind that a later program writes: its meaning is not known.
            None => {
                marks.incomplete = true;
                break;
            }
        }
    }
    Some(marks)
}
