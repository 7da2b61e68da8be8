//! The inode (FORMAT: inode).
//!
//! An inode is in an entry of a sector, as [`Record`]: the fixed part below, then the data area (contents of
//! a tiny file, target of a symbolic link, or extents), then extended attributes if they fit, then linktags.
//! The data area is never smaller than [`DATA_AREA_BYTES_MIN`], so that a file always has room for its
//! extents when its contents move out of the inode.

use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::clock::Timestamp;
use crate::error::Corruption;
use crate::units::{Container, EpochNo, FragNo, FragRun, InodeNo, SectorIndex};

/// The bytes of the fixed part.
pub const DISK_INODE_BYTES: usize = 168;
/// The data area is at least this long: two extents.
pub const DATA_AREA_BYTES_MIN: usize = 32;
/// The bytes of a linktag.
pub const LINK_TAG_BYTES: usize = 28;
/// The bits of the first fragment in the field of the attribute block; those above are the count.
const ATTRIBUTE_START_BITS: u32 = 48;
/// How many linktags an inode can carry at once.
pub const LINK_TAGS_MAX: usize = 8;

bitflags::bitflags! {
    /// Flags that give the inode's other fields their meaning.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct InodeFlags: u16 {
        /// The data area is the file's contents; without it, the data area is a list of extents.
        const INLINE = 1 << 0;
        /// `content_checksum` is that of the file's contents.
        const CONTENT_CHECKSUM = 1 << 1;
        /// The directory has a hash index.
        const INDEXED = 1 << 2;
        /// Nothing of the file may change.
        const IMMUTABLE = 1 << 3;
        /// The contents can only grow at their end, and a directory can only gain names.
        const APPEND_ONLY = 1 << 4;
        /// New contents are compressed, whatever the volume's setting is. New files and directories get the
        /// flag from their directory.
        const COMPRESS = 1 << 5;
        /// New contents are not compressed. New files and directories get the flag from their directory.
        const NO_COMPRESS = 1 << 6;
        /// The flags that keep a file from changing.
        const PROTECTION = Self::IMMUTABLE.bits() | Self::APPEND_ONLY.bits();
        /// The flags that decide whether contents are compressed. A file has at most one of them.
        const COMPRESSION = Self::COMPRESS.bits() | Self::NO_COMPRESS.bits();
        /// The flags that users set.
        const SETTABLE = Self::PROTECTION.bits() | Self::COMPRESSION.bits();
    }
}

/// The most marks in the life of a volume: the field of a count has three bytes.
pub const MARKS_MAX: u32 = (1 << 24) - 1;

/// Counts of marks: the number of marks that the volume had been given at the time of a change. A change with
/// at least the count of a mark happened after that mark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamps {
    /// The last change of the inode or of the contents; of a directory, also of its names.
    pub changed: u32,
    /// Of a directory and of the external table: the last change of anything below it, or later.
    pub below: u32,
    /// Of a directory: the last change of its name.
    pub renamed: u32,
}

impl Stamps {
    /// The newest of a directory and of everything below it.
    pub fn newest(&self) -> u32 {
        self.changed.max(self.below)
    }
}

/// The type of a file, from the upper bits of its mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileType {
    /// A pipe with a name.
    Fifo = 1,
    /// A character device.
    CharDevice = 2,
    /// A directory.
    Directory = 4,
    /// A block device.
    BlockDevice = 6,
    /// A regular file.
    Regular = 8,
    /// A symbolic link.
    Symlink = 10,
    /// A socket.
    Socket = 12,
}

impl FileType {
    const ALL: [FileType; 7] = [
        FileType::Fifo,
        FileType::CharDevice,
        FileType::Directory,
        FileType::BlockDevice,
        FileType::Regular,
        FileType::Symlink,
        FileType::Socket,
    ];

    /// The type in a mode, if it is one.
    pub fn of_mode(mode: u32) -> Option<FileType> {
        FileType::from_byte((mode >> 12 & 0xf) as u8)
    }

    /// The type by its number in a directory entry (that of `d_type`).
    pub fn from_byte(byte: u8) -> Option<FileType> {
        FileType::ALL.into_iter().find(|t| *t as u8 == byte)
    }

    /// The bits of a mode for this type.
    pub fn mode_bits(self) -> u32 {
        u32::from(self as u8) << 12
    }
}

/// The fixed part of an inode on disk.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiskInode {
    /// The inode's number.
    pub ino: U64,
    /// Distinguishes it from earlier files of the same number.
    pub generation: U32,
    /// Type and permissions.
    pub mode: U16,
    /// [`InodeFlags`].
    pub flags: U16,
    /// Owner.
    pub uid: U32,
    /// Owning group.
    pub gid: U32,
    /// Names of the inode; of a directory, 2 and the count of its subdirectories.
    pub nlink: U32,
    /// CRC-32C of the contents, if the flag says so; of a directory, the count of marks when it was last
    /// renamed.
    pub content_checksum: U32,
    /// Bytes of the contents; of a directory, of its sectors.
    pub size: U64,
    /// Last access, seconds.
    pub atime_seconds: I64,
    /// Last change of the contents, seconds.
    pub mtime_seconds: I64,
    /// Last change of the inode, seconds.
    pub ctime_seconds: I64,
    /// Creation, seconds.
    pub btime_seconds: I64,
    /// Last access, nanoseconds.
    pub atime_nanoseconds: U32,
    /// Last change of the contents, nanoseconds.
    pub mtime_nanoseconds: U32,
    /// Last change of the inode, nanoseconds.
    pub ctime_nanoseconds: U32,
    /// Creation, nanoseconds.
    pub btime_nanoseconds: U32,
    /// The directory that has the (last known) name.
    pub parent: U64,
    /// The co-location key, 0 for the policy's choice.
    pub key: U64,
    /// The first fragment of the run in which the key's files were last placed, 0 for none.
    pub hint_start: U64,
    /// The length of that run in fragments.
    pub hint_len: U32,
    /// Bytes of the data area that are used.
    pub data_len: U16,
    /// Bytes of extended attributes after the data area.
    pub xattr_len: U16,
    /// A device's number (`major << 32 | minor`); of a directory, its count of entries in the lower
    /// and its count of index buckets in the upper half.
    pub special: U64,
    /// Fragments that the inode occupies: data, extent blocks, attribute block.
    pub fragments: U64,
    /// Counts changes, for NFS and statx.
    pub change: U64,
    /// The block of attributes that do not fit: first fragment in the lower 48 bits, count of
    /// fragments in the upper 16; 0 for none.
    pub xattr_block: U64,
    /// The root block of the extent tree, 0 for none.
    pub map_root: U64,
    /// The height of the extent tree: 0 if its root is a leaf.
    pub map_depth: u8,
    /// How many linktags follow.
    pub tag_count: u8,
    /// The count of marks when the inode last changed.
    pub changed: [u8; 3],
    /// The highest count of marks with which anything below a directory changed.
    pub below: [u8; 3],
}

const _: () = assert!(size_of::<DiskInode>() == DISK_INODE_BYTES);

impl DiskInode {
    /// The inode's number.
    pub fn number(&self) -> InodeNo {
        InodeNo(self.ino.get())
    }

    /// The flags, with those that this code does not know.
    pub fn inode_flags(&self) -> InodeFlags {
        InodeFlags::from_bits_retain(self.flags.get())
    }

    /// The file's type; `None` if the mode has none.
    pub fn file_type(&self) -> Option<FileType> {
        FileType::of_mode(self.mode.get().into())
    }

    /// The last access.
    pub fn atime(&self) -> Timestamp {
        time(self.atime_seconds, self.atime_nanoseconds)
    }

    /// The last change of the contents.
    pub fn mtime(&self) -> Timestamp {
        time(self.mtime_seconds, self.mtime_nanoseconds)
    }

    /// The last change of the inode.
    pub fn ctime(&self) -> Timestamp {
        time(self.ctime_seconds, self.ctime_nanoseconds)
    }

    /// The creation.
    pub fn btime(&self) -> Timestamp {
        time(self.btime_seconds, self.btime_nanoseconds)
    }

    /// The run of the attribute block, if there is one.
    pub fn attribute_run(&self) -> Option<FragRun> {
        let field = self.xattr_block.get();
        let start = FragNo(field & ((1 << ATTRIBUTE_START_BITS) - 1));
        (field != 0).then(|| FragRun::new(start, (field >> ATTRIBUTE_START_BITS) as u32))
    }

    /// Sets the run of the attribute block; it is less than 2^16 fragments long.
    pub fn set_attribute_run(&mut self, run: Option<FragRun>) {
        let field = run.map_or(0, |run| run.start.0 | u64::from(run.len) << ATTRIBUTE_START_BITS);
        self.xattr_block = field.into();
    }

    /// A directory's count of entries.
    pub fn entries(&self) -> u32 {
        self.special.get() as u32
    }

    /// The buckets of a directory's index.
    pub fn buckets(&self) -> u32 {
        (self.special.get() >> 32) as u32
    }

    /// The counts of marks that the inode has.
    pub fn stamps(&self) -> Stamps {
        let count = |[a, b, c]: [u8; 3]| u32::from_le_bytes([a, b, c, 0]);
        let is_dir = self.file_type() == Some(FileType::Directory);
        Stamps {
            changed: count(self.changed),
            below: count(self.below),
            renamed: if is_dir { self.content_checksum.get() } else { 0 },
        }
    }

    /// Sets the counts of marks. Only a directory has a count for its name.
    pub fn set_stamps(&mut self, stamps: Stamps) {
        let bytes = |count: u32| {
            let [a, b, c, _] = count.min(MARKS_MAX).to_le_bytes();
            [a, b, c]
        };
        (self.changed, self.below) = (bytes(stamps.changed), bytes(stamps.below));
        if self.file_type() == Some(FileType::Directory) {
            self.content_checksum = stamps.renamed.min(MARKS_MAX).into();
        }
    }

    /// Stamps a change with this count of marks.
    pub fn stamp(&mut self, count: u32) {
        let stamps = self.stamps();
        self.set_stamps(Stamps { changed: stamps.changed.max(count), ..stamps });
    }

    /// Stamps a change of a directory's name with this count of marks.
    pub fn stamp_name(&mut self, count: u32) {
        let stamps = self.stamps();
        self.set_stamps(Stamps { renamed: stamps.renamed.max(count), ..stamps });
    }

    /// The number of a device; 0 of other files.
    pub fn device(&self) -> u64 {
        if self.file_type() == Some(FileType::Directory) { 0 } else { self.special.get() }
    }

    /// Sets the number of a device, of a file that is no directory.
    pub fn set_device(&mut self, number: u64) {
        self.special = number.into();
    }

    /// Sets a directory's count of entries and the buckets of its index.
    pub fn set_entries(&mut self, entries: u32, buckets: u32) {
        self.special = (u64::from(buckets) << 32 | u64::from(entries)).into();
    }

    /// Sets the times of the last change, of the contents and of the inode.
    pub fn set_changed(&mut self, time: Timestamp) {
        let (seconds, nanoseconds) = (time.seconds.into(), time.nanoseconds.into());
        (self.mtime_seconds, self.mtime_nanoseconds) = (seconds, nanoseconds);
        (self.ctime_seconds, self.ctime_nanoseconds) = (seconds, nanoseconds);
    }
}

fn time(seconds: I64, nanoseconds: U32) -> Timestamp {
    Timestamp { seconds: seconds.get(), nanoseconds: nanoseconds.get() }
}

/// The event that a linktag records (DESIGN: epochs).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum LinkTagKind {
    /// The inode moved here from `place`; if both records exist, this one counts.
    MovedFrom = 1,
    /// A name was removed from `place`, where its entry has the slot `count`; [`LinkTag::NO_SLOT`] if another
    /// file took the name.
    Unlinked = 2,
    /// The name was that of another file in `place`; if both entries exist, this one counts. Of an inode in
    /// the external table, the entry has the slot `count` and must be a name of this inode.
    Replaced = 3,
}

impl LinkTagKind {
    const ALL: [LinkTagKind; 3] =
        [LinkTagKind::MovedFrom, LinkTagKind::Unlinked, LinkTagKind::Replaced];
}

/// A record next to an inode that makes an operation on two sectors recoverable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkTag {
    /// The epoch in which the operation was made: only in that epoch the tag counts.
    pub epoch: EpochNo,
    /// The event.
    pub kind: LinkTagKind,
    /// The other sector of the operation.
    pub place: Container,
    /// The link count, or the slot of the entry.
    pub count: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DiskLinkTag {
    epoch: U64,
    file: U64,
    sector: U32,
    count: U32,
    kind: U32,
}

const _: () = assert!(size_of::<DiskLinkTag>() == LINK_TAG_BYTES);

impl LinkTag {
    /// The `count` of an unlinked name that another file has taken.
    pub const NO_SLOT: u32 = u32::MAX;

    /// Appends the tag's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let disk = DiskLinkTag {
            epoch: self.epoch.0.into(),
            file: self.place.file.0.into(),
            sector: self.place.sector.0.into(),
            count: self.count.into(),
            kind: (self.kind as u32).into(),
        };
        out.extend_from_slice(disk.as_bytes());
    }

    fn decode(bytes: &[u8]) -> Option<LinkTag> {
        let disk = DiskLinkTag::ref_from_bytes(bytes).ok()?;
        let kind = LinkTagKind::ALL.into_iter().find(|kind| *kind as u32 == disk.kind.get())?;
        Some(LinkTag {
            epoch: EpochNo(disk.epoch.get()),
            kind,
            place: Container {
                file: InodeNo(disk.file.get()),
                sector: SectorIndex(disk.sector.get()),
            },
            count: disk.count.get(),
        })
    }
}

/// An inode with its attributes, tags and contents, borrowed from its sector or about to be put into
/// one.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    /// The fixed part. Its `data_len`, `xattr_len` and `tag_count` are those of the parts below.
    pub inode: &'a DiskInode,
    /// Contents, target or extents: the used bytes of the data area.
    pub data: &'a [u8],
    /// Extended attributes, as `xattr` encodes them.
    pub xattrs: &'a [u8],
    /// Linktags, encoded.
    pub tags: &'a [u8],
}

impl<'a> Record<'a> {
    /// The length of a record whose parts have these lengths.
    pub fn encoded_len(data: usize, xattrs: usize, tags: usize) -> usize {
        DISK_INODE_BYTES + data.max(DATA_AREA_BYTES_MIN) + xattrs + tags * LINK_TAG_BYTES
    }

    /// The bytes that this record takes.
    pub fn len(&self) -> usize {
        Record::encoded_len(self.data.len(), self.xattrs.len(), self.tags.len() / LINK_TAG_BYTES)
    }

    /// Never: a record has a fixed part.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Writes the record to `out`, which is [`Record::len`] bytes long.
    pub fn encode_into(&self, out: &mut [u8]) {
        let area = self.data.len().max(DATA_AREA_BYTES_MIN);
        let (inode, rest) = out.split_at_mut(DISK_INODE_BYTES);
        let (data, rest) = rest.split_at_mut(area);
        let (xattrs, tags) = rest.split_at_mut(self.xattrs.len());
        let mut fixed = *self.inode;
        fixed.data_len = (self.data.len() as u16).into();
        fixed.xattr_len = (self.xattrs.len() as u16).into();
        fixed.tag_count = (self.tags.len() / LINK_TAG_BYTES) as u8;
        inode.copy_from_slice(fixed.as_bytes());
        data[..self.data.len()].copy_from_slice(self.data);
        data[self.data.len()..].fill(0);
        xattrs.copy_from_slice(self.xattrs);
        tags.copy_from_slice(self.tags);
    }

    /// Splits the bytes of a record, which must be used up exactly.
    pub fn decode(bytes: &'a [u8]) -> Result<Record<'a>, &'static str> {
        let (inode, rest) =
            DiskInode::ref_from_prefix(bytes).map_err(|_| "shorter than an inode")?;
        let data_len = usize::from(inode.data_len.get());
        let area = data_len.max(DATA_AREA_BYTES_MIN);
        let xattr_len = usize::from(inode.xattr_len.get());
        let tags_len = usize::from(inode.tag_count) * LINK_TAG_BYTES;
        if usize::from(inode.tag_count) > LINK_TAGS_MAX {
            return Err("too many linktags");
        }
        if rest.len() != area + xattr_len + tags_len {
            return Err("the lengths of its parts do not add up");
        }
        let (data, rest) = rest.split_at(area);
        let (xattrs, tags) = rest.split_at(xattr_len);
        Ok(Record { inode, data: &data[..data_len], xattrs, tags })
    }

    /// The linktags; one of an unknown kind ends the list.
    pub fn link_tags(&self) -> impl Iterator<Item = LinkTag> + 'a {
        self.tags.chunks_exact(LINK_TAG_BYTES).map_while(LinkTag::decode)
    }

    /// Checks each field by itself and those that depend on each other.
    pub fn check(&self) -> Result<(), Corruption> {
        let ino = self.inode.number();
        let bad = |what| Err(Corruption::Inode { ino, what });
        if ino.0 == 0 || ino > super::INODE_NO_MAX {
            return bad("there is no such number");
        }
        let Some(file_type) = self.inode.file_type() else {
            return bad("the mode has no file type");
        };
        let flags = self.inode.inode_flags();
        if !(flags - InodeFlags::all()).is_empty() {
            return bad("unknown flags");
        }
        let nanoseconds = [
            self.inode.atime_nanoseconds,
            self.inode.mtime_nanoseconds,
            self.inode.ctime_nanoseconds,
            self.inode.btime_nanoseconds,
        ];
        if nanoseconds.iter().any(|n| n.get() >= 1_000_000_000) {
            return bad("a time has 1,000,000,000 nanoseconds or more");
        }
        if self.inode.size.get() > super::FILE_BYTES_MAX {
            return bad("larger than the largest file");
        }
        if flags.contains(InodeFlags::INLINE) {
            if !matches!(file_type, FileType::Regular | FileType::Symlink) {
                return bad("only files and symbolic links have their contents inline");
            }
            if self.inode.size.get() != self.data.len() as u64 {
                return bad("the size is not that of the inline contents");
            }
            if self.inode.map_root.get() != 0 {
                return bad("both inline contents and an extent tree");
            }
        } else if !self.data.len().is_multiple_of(super::extent::EXTENT_BYTES) {
            return bad("the data area is not a list of extents");
        }
        if flags.contains(InodeFlags::CONTENT_CHECKSUM) && file_type != FileType::Regular {
            return bad("only a regular file has a checksum of its contents");
        }
        if flags.contains(InodeFlags::INDEXED) && file_type != FileType::Directory {
            return bad("only a directory has an index");
        }
        if flags.contains(InodeFlags::COMPRESSION) {
            return bad("both flags of compression are set");
        }
        if file_type == FileType::Symlink && self.inode.size.get() > super::SYMLINK_BYTES_MAX as u64
        {
            return bad("the target of the symbolic link is too long");
        }
        Ok(())
    }
}
