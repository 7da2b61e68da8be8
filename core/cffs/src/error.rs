//! Errors, in the core's own terms.
//!
//! Every layer returns [`Error`]. [`Corruption`] has one variant per check of bytes from the disk, and says
//! where they are. Neither knows errno: only `vfs::errno` maps them.

use std::io;

use crate::units::{BlockNo, CgIndex, Container, FragNo, InodeNo, SectorIndex};

/// The result of every fallible function of the core.
pub type Result<T, E = Error> = std::result::Result<T, E>;

const ADVICE_CORRUPTION: &str = "run cffs fsck -f on the volume";
const ADVICE_DAMAGED: &str = "run cffs fsck on the volume";

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device failed a request.
    #[error("device error: {0}")]
    Io(#[from] io::Error),
    /// The volume contradicts its format; it should be checked.
    #[error("{0}; {advice}", advice = ADVICE_CORRUPTION)]
    Corruption(#[from] Corruption),
    /// The device does not carry a volume that this program can use.
    #[error("{0}")]
    Unsupported(String),
    /// An earlier write of metadata failed, so the volume no longer accepts changes.
    #[error("the volume is read-only after a failed write: {0}")]
    Latched(String),
    /// The order of the change cannot be kept within the open epoch. `Volume` ends the epoch and
    /// tries again; callers never see this.
    #[error("the epoch has to end first")]
    EpochNeeded,
    /// The caller's condition of the change does not hold. Nothing has changed.
    #[error("the condition of the change does not hold")]
    Unmet,
    /// Damage was found, and by its options the volume accepts no changes after that.
    #[error("the volume refuses changes since damage was seen: {0}; {advice}", advice = ADVICE_DAMAGED)]
    Damaged(String),
    /// The volume was opened read-only.
    #[error("the volume is read-only")]
    ReadOnly,
    /// The mark on the volume says that another process, on this host or on another, has it open for
    /// writing.
    #[error("{0}")]
    InUse(String),
    /// No space is left for the operation.
    #[error("no space left on the volume")]
    NoSpace,
    /// The name or the inode does not exist.
    #[error("no such file or directory")]
    NotFound,
    /// The inode number names a file that is no longer there.
    #[error("stale file handle")]
    Stale,
    /// The name exists already.
    #[error("file exists")]
    Exists,
    /// A directory was needed.
    #[error("not a directory")]
    NotDirectory,
    /// A directory was given where none is possible.
    #[error("is a directory")]
    IsDirectory,
    /// The directory still has entries.
    #[error("directory not empty")]
    NotEmpty,
    /// The name is longer than 255 bytes.
    #[error("file name too long")]
    NameTooLong,
    /// The file would exceed the largest size.
    #[error("file too large")]
    TooLarge,
    /// The inode has as many names as the format can count.
    #[error("too many links")]
    TooManyLinks,
    /// The quota of the directory tree has no room for this. With the directory, if it is known.
    #[error("disk quota exceeded")]
    QuotaExceeded(Option<InodeNo>),
    /// The two directories do not belong to the same quota.
    #[error("the other directory belongs to another quota; copy instead")]
    OtherQuota,
    /// The path contains too many symbolic links, such as one that refers to itself.
    #[error("too many symbolic links in the path")]
    Loop,
    /// The argument has no meaning for this file.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// The caller may not do this, whatever the permissions of the file: it is not the owner, for example.
    #[error("operation not permitted")]
    NotPermitted,
    /// The permissions of the file do not allow this to the caller.
    #[error("permission denied")]
    AccessDenied,
    /// The extended attribute does not exist.
    #[error("no such attribute")]
    NoAttribute,
    /// The buffer or the attribute does not fit.
    #[error("result or argument does not fit")]
    Range,
    /// The file system cannot do this to any file.
    #[error("operation not supported")]
    NotSupported,
    /// No data is at or after the offset (`lseek` with `SEEK_DATA`).
    #[error("no data at or after the offset")]
    NoData,
    /// The server of a mounted volume makes no more calls for this program. It may have made those that were
    /// not answered.
    #[error("{0}")]
    Detached(String),
    /// The server of a mounted volume reports an error that has no variant here.
    #[error("{text}")]
    Answered {
        /// The Linux errno.
        errno: i32,
        /// The server's text.
        text: String,
    },
    /// The volume is mounted, and its server does not do this for attached programs.
    #[error("not supported for a mounted volume: {0}")]
    Mounted(&'static str),
}

impl Error {
    /// Whether each later change of the volume would fail, too, so that a copy of many files should end.
    pub fn is_final(&self) -> bool {
        matches!(self, Error::NoSpace | Error::Latched(_) | Error::ReadOnly | Error::Detached(_))
    }

    /// The advice with which the text of the error ends, if it gives any.
    pub fn advice(&self) -> Option<&'static str> {
        match self {
            Error::Corruption(_) => Some(ADVICE_CORRUPTION),
            Error::Damaged(_) => Some(ADVICE_DAMAGED),
            _ => None,
        }
    }

    /// The text of the error without its advice, for a caller that has better advice.
    pub fn without_advice(&self) -> String {
        let text = self.to_string();
        let end = self.advice().map_or(0, |advice| "; ".len() + advice.len());
        text[..text.len() - end].to_owned()
    }
}

/// One contradiction between the bytes on the device and the format, and where it was found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Corruption {
    /// The superblock's magic is not there.
    #[error("no C-FFS superblock at byte {offset}")]
    SuperblockMagic {
        /// Where the superblock was looked for, in bytes.
        offset: u64,
    },
    /// The superblock's checksum is wrong.
    #[error("superblock at byte {offset}: checksum mismatch")]
    SuperblockChecksum {
        /// Where the superblock is, in bytes.
        offset: u64,
    },
    /// A field of the superblock is out of its range.
    #[error("superblock: {field} is out of range ({value})")]
    SuperblockField {
        /// The field's name in the format's description.
        field: &'static str,
        /// The value that was found.
        value: u64,
    },
    /// No header of the journal is valid.
    #[error("journal at block {block}: neither of its headers is valid")]
    JournalHeader {
        /// The first block of the journal.
        block: BlockNo,
    },
    /// A record of the journal is bad, although later ones exist.
    #[error("journal: the record in block {block} is bad and others follow it")]
    JournalRecord {
        /// The record's first block.
        block: BlockNo,
    },
    /// The journal is older than the superblock.
    #[error(
        "journal: it is an older copy of the volume's journal (its header has number {sequence}, the \
         superblock knows number {noted})"
    )]
    JournalOlder {
        /// The number of the journal's header.
        sequence: u64,
        /// The number that the superblock has noted.
        noted: u64,
    },
    /// The journal belongs to another copy of the volume.
    #[error(
        "journal: it is that of another copy of this volume (the journal is of era {found:016x}, the volume \
         of era {noted:016x})"
    )]
    JournalForeign {
        /// The era of the journal's header, or of the one before.
        found: u64,
        /// The era that the superblock has noted.
        noted: u64,
    },
    /// The journal is newer than the superblock.
    #[error(
        "journal: it is newer than the volume, which is an older copy of itself (the journal's header has \
         number {sequence}, the superblock knows number {noted})"
    )]
    JournalNewer {
        /// The number of the journal's header.
        sequence: u64,
        /// The number that the superblock has noted.
        noted: u64,
    },
    /// A cylinder group's header does not identify itself or has a wrong checksum.
    #[error("cylinder group {cg}: bad header ({what})")]
    CgHeader {
        /// The group.
        cg: CgIndex,
        /// The fault.
        what: &'static str,
    },
    /// A cylinder group's bitmap does not match its checksum.
    #[error("cylinder group {cg}: bitmap checksum mismatch")]
    CgBitmap {
        /// The group.
        cg: CgIndex,
    },
    /// A sector of a container does not identify itself as that sector.
    #[error("{container}: {}", wrong_field(what, *expected, *found))]
    SectorIdentity {
        /// The sector that was read.
        container: Container,
        /// The header field that is wrong.
        what: &'static str,
        /// The expected value of the field.
        expected: u64,
        /// The value that was found.
        found: u64,
    },
    /// A sector's checksum is wrong.
    #[error("{container}: checksum mismatch")]
    SectorChecksum {
        /// The sector that was read.
        container: Container,
    },
    /// An entry of a sector does not fit the sector, or a field of it is impossible.
    #[error("{container}: bad entry at byte {offset} ({what})")]
    Entry {
        /// The sector that was read.
        container: Container,
        /// The entry's first byte within the sector.
        offset: u32,
        /// The fault.
        what: &'static str,
    },
    /// A field of an inode is impossible.
    #[error("inode {ino}: {what}")]
    Inode {
        /// The inode.
        ino: InodeNo,
        /// The fault.
        what: &'static str,
    },
    /// An extent points outside the volume, into metadata, or overlaps another of the same file.
    #[error("inode {ino}: bad extent at fragment {start} ({what})")]
    Extent {
        /// The inode.
        ino: InodeNo,
        /// The first fragment that the extent points at.
        start: FragNo,
        /// The fault.
        what: &'static str,
    },
    /// A cluster does not identify itself, has a wrong checksum, or lacks the part that the file refers to.
    #[error("inode {ino}: cluster at fragment {start}: {what}")]
    Cluster {
        /// A file that has contents in it.
        ino: InodeNo,
        /// The first fragment of the cluster.
        start: FragNo,
        /// The fault.
        what: &'static str,
    },
    /// A block of an extent tree does not identify itself or has a wrong checksum.
    #[error("inode {ino}: extent block {block}: {what}")]
    ExtentBlock {
        /// The inode that owns the tree.
        ino: InodeNo,
        /// The block.
        block: BlockNo,
        /// The fault.
        what: &'static str,
    },
    /// A block of extended attributes does not identify itself or has a wrong checksum.
    #[error("inode {ino}: attribute block at fragment {start}: {what}")]
    XattrBlock {
        /// The inode that owns the attributes.
        ino: InodeNo,
        /// The first fragment of the block.
        start: FragNo,
        /// The fault.
        what: &'static str,
    },
    /// A block of a directory's index is bad; the index can be rebuilt.
    #[error("directory {dir}: index block {index}: {what}")]
    IndexBlock {
        /// The directory.
        dir: InodeNo,
        /// The bucket.
        index: u32,
        /// The fault.
        what: &'static str,
    },
    /// A block of the inode locator table is bad.
    #[error("inode locator table, block {index}: {what}")]
    LocatorBlock {
        /// The block of the table.
        index: u64,
        /// The fault.
        what: &'static str,
    },
    /// A locator entry refers to a sector that does not have the inode.
    #[error("inode {ino} is not in {container} where the locator table says")]
    LocatorEntry {
        /// The inode that was looked for.
        ino: InodeNo,
        /// Where the table says that it is.
        container: Container,
    },
    /// A name refers to an inode that is not in the external inode table.
    #[error(
        "directory {dir}: a name refers to inode {ino}, not in the external table sector {sector}"
    )]
    Reference {
        /// The directory that has the name.
        dir: InodeNo,
        /// The inode that the name refers to.
        ino: InodeNo,
        /// The sector of the external inode table that the name refers to.
        sector: SectorIndex,
    },
    /// The file type that a name has is not that of the inode.
    #[error("directory {dir}: the name of inode {ino} has the wrong type")]
    EntryType {
        /// The directory that has the name.
        dir: InodeNo,
        /// The inode.
        ino: InodeNo,
    },
    /// A small file's contents do not match the checksum in its inode.
    #[error("inode {ino}: contents do not match their checksum")]
    Contents {
        /// The file.
        ino: InodeNo,
    },
    /// Directories contain each other in a circle, or are nested beyond any path.
    #[error("inode {ino}: directories form a loop")]
    Loop {
        /// A directory on the loop.
        ino: InodeNo,
    },
}

/// A wrong field of a header. Magic numbers are printed in hexadecimal.
fn wrong_field(what: &str, expected: u64, found: u64) -> String {
    match what {
        "magic" => format!("bad magic ({found:#010x} instead of {expected:#010x})"),
        _ => format!("wrong {what} ({found} instead of {expected})"),
    }
}

impl Corruption {
    /// The code of this problem in `docs/FSCK.md`: 201 for CF0201.
    pub fn code(&self) -> u16 {
        match self {
            Corruption::SuperblockMagic { .. }
            | Corruption::SuperblockChecksum { .. }
            | Corruption::SuperblockField { .. } => 101,
            Corruption::JournalHeader { .. } => 107,
            Corruption::JournalRecord { .. }
            | Corruption::JournalForeign { .. }
            | Corruption::JournalOlder { .. }
            | Corruption::JournalNewer { .. } => 108,
            Corruption::SectorIdentity { container, .. }
            | Corruption::SectorChecksum { container } => match container.file {
                InodeNo::SYSTEM => 104,
                InodeNo::EXTERNAL => 202,
                _ => 201,
            },
            Corruption::Entry { .. } | Corruption::Inode { .. } => 203,
            Corruption::Reference { .. } => 209,
            Corruption::EntryType { .. } => 211,
            Corruption::Extent { .. } => 221,
            Corruption::ExtentBlock { .. } => 223,
            Corruption::Contents { .. } | Corruption::Cluster { .. } => 226,
            Corruption::XattrBlock { .. } => 232,
            Corruption::Loop { .. } => 307,
            Corruption::LocatorBlock { .. } => 402,
            Corruption::LocatorEntry { .. } => 403,
            Corruption::IndexBlock { .. } => 404,
            Corruption::CgHeader { .. } => 501,
            Corruption::CgBitmap { .. } => 502,
        }
    }

    /// Whether the bytes are not those of a structure that belongs there: a magic number, a checksum or an
    /// identity is wrong. If not, a program wrote them in this form.
    pub fn is_of_bytes(&self) -> bool {
        matches!(
            self,
            Corruption::SuperblockMagic { .. }
                | Corruption::SuperblockChecksum { .. }
                | Corruption::CgHeader { .. }
                | Corruption::CgBitmap { .. }
                | Corruption::SectorIdentity { .. }
                | Corruption::SectorChecksum { .. }
                | Corruption::ExtentBlock { .. }
                | Corruption::XattrBlock { .. }
                | Corruption::LocatorBlock { .. }
                | Corruption::IndexBlock { .. }
                | Corruption::Cluster { .. }
                | Corruption::Contents { .. }
        )
    }

    /// The inode that has it: of a sector, the container; 0 where there is none.
    pub fn ino(&self) -> InodeNo {
        match self {
            Corruption::SuperblockMagic { .. }
            | Corruption::SuperblockChecksum { .. }
            | Corruption::SuperblockField { .. }
            | Corruption::JournalHeader { .. }
            | Corruption::JournalRecord { .. }
            | Corruption::JournalForeign { .. }
            | Corruption::JournalOlder { .. }
            | Corruption::JournalNewer { .. }
            | Corruption::CgHeader { .. }
            | Corruption::CgBitmap { .. } => InodeNo::default(),
            Corruption::SectorIdentity { container, .. }
            | Corruption::SectorChecksum { container }
            | Corruption::Entry { container, .. } => container.file,
            Corruption::Inode { ino, .. }
            | Corruption::Extent { ino, .. }
            | Corruption::Cluster { ino, .. }
            | Corruption::ExtentBlock { ino, .. }
            | Corruption::XattrBlock { ino, .. }
            | Corruption::LocatorEntry { ino, .. }
            | Corruption::Reference { ino, .. }
            | Corruption::EntryType { ino, .. }
            | Corruption::Contents { ino }
            | Corruption::Loop { ino } => *ino,
            Corruption::IndexBlock { dir, .. } => *dir,
            Corruption::LocatorBlock { .. } => InodeNo::LOCATOR,
        }
    }
}
