//! The parts of one inode: its record, its entry, and its extents.

use crate::format::extent::Extent;
use crate::format::inode::{DiskInode, FileType, LinkTag, Record};
use crate::units::{BlockNo, FragRun, InodeNo};

/// An inode with its attributes and tags, taken out of its sector.
#[derive(Clone)]
pub(super) struct OwnedRecord {
    pub inode: DiskInode,
    pub data: Vec<u8>,
    pub xattrs: Vec<u8>,
    pub tags: Vec<u8>,
}

impl OwnedRecord {
    pub fn new(record: &Record<'_>) -> OwnedRecord {
        OwnedRecord {
            inode: *record.inode,
            data: record.data.to_vec(),
            xattrs: record.xattrs.to_vec(),
            tags: record.tags.to_vec(),
        }
    }

    pub fn as_record(&self) -> Record<'_> {
        Record { inode: &self.inode, data: &self.data, xattrs: &self.xattrs, tags: &self.tags }
    }

    pub fn link_tags(&self) -> Vec<LinkTag> {
        self.as_record().link_tags().collect()
    }
}

/// An entry with its name, taken out of its sector.
#[derive(Clone)]
pub(super) struct OwnedEntry {
    pub name: Vec<u8>,
    pub ino: InodeNo,
    /// `None` for a reference.
    pub record: Option<OwnedRecord>,
    /// The epoch of the sector.
    pub epoch: u64,
}

/// A file's extents as far as they are valid.
#[derive(Clone, Debug, Default)]
pub(super) struct MapCheck {
    /// In the order of the file, once finished; before, those of the inode first.
    pub extents: Vec<Extent>,
    pub tree_blocks: Vec<BlockNo>,
    pub damaged: bool,
}

/// A file whose extents are being collected.
#[derive(Clone, Debug)]
pub(super) struct PendingMap {
    pub ino: InodeNo,
    pub generation: u32,
    pub file_type: FileType,
    pub inline: bool,
    pub size: u64,
    pub fragments_recorded: u64,
    pub attribute_fragments: u64,
    pub root: Option<(BlockNo, u8)>,
    pub check: MapCheck,
}

/// The use of a cluster by an extent of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClusterUse {
    pub ino: InodeNo,
    pub run: FragRun,
    /// The end of the file's contents in the expanded bytes.
    pub end: u32,
}
