//! Newtypes for every number that could be swapped with another.
//!
//! Offers the addresses, counts and identities that the layers hand to each other. Stands on
//! nothing. Arithmetic is spelled out through methods that name the conversion, so that a block
//! number never silently becomes a fragment number.

use std::fmt;
use std::ops::Range;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
    };
}

number! {
    /// A block of the volume, counted from its start. The unit is the superblock's block size.
    BlockNo(u64)
}
number! {
    /// A fragment of the volume, counted from its start: the unit of allocation.
    FragNo(u64)
}
number! {
    /// A cylinder group, counted from the start of the volume.
    CgIndex(u32)
}
number! {
    /// The number of an inode, constant for its life.
    InodeNo(u64)
}
number! {
    /// A sector of a container file (a directory or the external inode table), counted from its
    /// start.
    SectorIndex(u32)
}
number! {
    /// The number of an epoch, counted up over the life of the volume.
    EpochNo(u64)
}
number! {
    /// A co-location key: files with one key share segments.
    Key(u64)
}

impl Key {
    /// Whether this is a key of files' own, and not their directory, whose key is its number.
    pub fn is_own(self) -> bool {
        self.0 >> 63 == 1
    }
}

number! {
    /// A block of a file, counted from the file's start.
    FileBlock(u64)
}
number! {
    /// A fragment of a file, counted from the file's start.
    FileFrag(u64)
}

impl FileBlock {
    /// After the last block that a file can have.
    pub const END: FileBlock = FileBlock(u64::MAX);
    /// All blocks of a file.
    pub const ALL: Range<FileBlock> = FileBlock(0)..FileBlock::END;

    /// The block after this one.
    pub fn next(self) -> FileBlock {
        FileBlock(self.0 + 1)
    }
}

impl FileFrag {
    /// After the last fragment that a file can have.
    pub const END: FileFrag = FileFrag(u64::MAX);
    /// All fragments of a file.
    pub const ALL: Range<FileFrag> = FileFrag(0)..FileFrag::END;

    /// The fragment this many after this one.
    pub fn plus(self, fragments: u64) -> FileFrag {
        FileFrag(self.0 + fragments)
    }
}

impl InodeNo {
    /// The root directory.
    pub const ROOT: InodeNo = InodeNo(1);
    /// The inode locator table.
    pub const LOCATOR: InodeNo = InodeNo(2);
    /// The external inode table.
    pub const EXTERNAL: InodeNo = InodeNo(3);
    /// Not a file: the owner of the system area, which contains the three inodes above.
    pub const SYSTEM: InodeNo = InodeNo(4);
    /// The first number that is given to a file of the user's.
    pub const FIRST_USER: InodeNo = InodeNo(16);

    /// Whether the number belongs to the file system itself.
    pub fn is_system(self) -> bool {
        self < InodeNo::FIRST_USER
    }
}

/// Where an inode is: a sector of a container file.
///
/// The container is a directory, the external inode table, or the system area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Container {
    /// The file whose sectors contain the inode.
    pub file: InodeNo,
    /// The sector of that file.
    pub sector: SectorIndex,
}

impl fmt::Display for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "inode {} sector {}", self.file, self.sector)
    }
}

/// The contents of a block, as far as placement and caching distinguish them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Contents of files.
    Files,
    /// Sectors of directories, extent trees, and other metadata.
    Metadata,
}

/// A run of fragments: `len` of them from `start` on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FragRun {
    /// The first fragment.
    pub start: FragNo,
    /// How many fragments.
    pub len: u32,
}

impl FragRun {
    /// Takes the first `len` fragments; `None` if the run is shorter.
    pub fn take_front(&mut self, len: u32) -> Option<FragRun> {
        let rest = self.len.checked_sub(len)?;
        let first = FragRun::new(self.start, len);
        *self = FragRun::new(first.end(), rest);
        Some(first)
    }

    /// The run of `len` fragments from `start` on.
    pub fn new(start: FragNo, len: u32) -> FragRun {
        FragRun { start, len }
    }

    /// The first fragment after the run.
    pub fn end(self) -> FragNo {
        FragNo(self.start.0 + u64::from(self.len))
    }
}
