//! The result of a search in a directory.

use crate::format::inode::FileType;
use crate::format::sector::{Body, Entry};
use crate::units::{InodeNo, SectorIndex};

/// An entry that was found, by its place.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// The sector of the directory.
    pub sector: SectorIndex,
    /// The entry's number in the sector.
    pub slot: u16,
    /// The hash of its name.
    pub hash: u32,
    /// The file that it names.
    pub ino: InodeNo,
    /// The type of the file.
    pub file_type: FileType,
    /// The sector of the external inode table, if the inode is there.
    pub reference: Option<SectorIndex>,
}

impl Found {
    pub(super) fn new(sector: SectorIndex, entry: &Entry<'_>) -> Found {
        Found {
            sector,
            slot: entry.slot,
            hash: entry.hash,
            ino: entry.ino(),
            file_type: entry.file_type,
            reference: match entry.body {
                Body::Embedded(_) => None,
                Body::Reference { sector, .. } => Some(sector),
            },
        }
    }
}
