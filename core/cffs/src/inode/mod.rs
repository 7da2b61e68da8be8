//! In-core inodes: the state of a file while it is in use.
//!
//! An inode has three types: [`DiskInode`] is the inode in its sector, [`Inode`] is the same decoded, and
//! [`Vnode`] is the inode in use, with its changed pages and its lock.
//!
//! [`InodeCache`] owns all vnodes, the queue of those that differ from the device, and the number of the open
//! epoch. The other types each do one job with fields borrowed from it:
//!
//! | type | job |
//! | --- | --- |
//! | [`Contents`] | reads contents, from memory and from the device, and verifies them |
//! | [`PageWriter`] | changes contents in memory: writes, cuts off, punches holes, preallocates |
//! | [`SpacePlan`] | promises space to files, maps it and frees it |
//! | [`Containers`] | reads and changes the sectors of directories and of the external inode table |
//! | [`LocatorTable`] | finds an inode by its number, and gives out numbers |
//! | [`WriteBack`] | places changed pages and encodes changed inodes for an epoch |
//! | [`Scrubber`] | compares the device with its checksums |
//!
//! Stands on `alloc`, `cache` and `format`. Knows no names: that is `namespace`.
//!
//! Invariants: an inode has one vnode at most; a vnode that differs from the device is queued for the next
//! epoch and is not evicted; locks are taken in the order directory, file, external inode table, locator
//! table, and a reader holds one, or a directory and one of its files.

mod allocated;
mod attributes;
mod change;
mod clusters;
mod containers;
mod decode;
mod extents;
mod inode_cache;
mod intent_log;
pub mod keys;
mod load;
mod locator;
mod map;
mod quota;
mod read;
mod scrub;
mod sharing;
mod space;
mod spill;
mod table;
mod vnode;
mod write_back;

pub use attributes::Attributes;
pub use change::PageWriter;
pub use clusters::{Cluster, ClusterPart, MovedPart};
pub use containers::{Containers, body_bytes_max};
pub use inode_cache::{Features, InodeCache};
pub use intent_log::{Fill, Holder, IntentLog, nameless_space};
pub use locator::{Locator, LocatorTable};
pub use map::{ExtentMap, Mapping, Removed};
pub use quota::{Account, Amount, Membership};
pub use read::{Contents, into_slice};
pub use scrub::Scrubber;
pub use space::SpacePlan;
pub use vnode::{DirtyLevel, Vnode, VnodeGuard, VnodeState};
pub use write_back::{Neighbours, WriteBack};

use crate::clock::Timestamp;
use crate::format::extent::EXTENT_BYTES;
use crate::format::inode::{DiskInode, FileType, InodeFlags, LinkTag, Record, Stamps};
use crate::units::{FragRun, InodeNo, Key};

/// The most extents in the inode itself; the rest goes to the tree.
pub(crate) const DIRECT_EXTENTS_MAX: usize = 6;
/// The count of extents that always find room there.
pub(crate) const DIRECT_EXTENTS_MIN: usize =
    crate::format::inode::DATA_AREA_BYTES_MIN / EXTENT_BYTES;

/// The contents of a file.
#[derive(Debug)]
pub enum Content {
    /// The bytes themselves: a tiny file or a short symbolic link.
    Inline(Vec<u8>),
    /// The places of its fragments.
    Map(ExtentMap),
}

/// An inode, decoded.
///
/// The fields that readers of attributes and contents use come first, in as few cache lines as possible.
#[derive(Debug)]
#[repr(C)]
pub struct Inode {
    /// Its number, constant for life.
    pub ino: InodeNo,
    /// Bytes of the contents.
    pub size: u64,
    /// The contents.
    pub content: Content,
    /// The checksum of a small file's contents on the device.
    pub content_checksum: Option<u32>,
    /// Distinguishes it from earlier ones of the same number.
    pub generation: u32,
    /// The lower 12 bits of the mode.
    pub permissions: u32,
    /// Count of names; of a directory, 2 and the count of its subdirectories.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// The flags of [`InodeFlags::SETTABLE`] that are set.
    pub flags: InodeFlags,
    /// Its type, constant for life.
    pub file_type: FileType,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
    /// Counter of changes.
    pub change: u64,
    /// A device's number.
    pub device: u64,
    /// The directory with the (last known) name.
    pub parent: InodeNo,
    /// The co-location key that the file was given; `None` for the policy's choice.
    pub key: Option<Key>,
    /// The place of the first files of its key; empty before.
    pub hint: FragRun,
    /// The entries of a directory.
    pub entry_count: u32,
    /// The buckets of a directory's index; 0 if it has none.
    pub bucket_count: u32,
    /// Extended attributes; `None` while only the device has them.
    pub(super) attributes: Option<Attributes>,
    /// Their run, if they are not next to the inode.
    pub xattr_block: FragRun,
    /// The counts of marks at its last changes.
    pub stamps: Stamps,
    /// The changes that the next epoch stamps.
    pub unstamped: Unstamped,
}

/// How an inode has changed since its counts of marks were last set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unstamped {
    /// Not at all, or only in its time of access and its place.
    #[default]
    Nothing,
    /// In its contents or attributes.
    Change,
    /// In its name.
    Name,
}

impl Inode {
    /// A new inode without contents.
    pub fn new(
        ino: InodeNo,
        generation: u32,
        file_type: FileType,
        parent: InodeNo,
        now: Timestamp,
    ) -> Inode {
        Inode {
            ino,
            generation,
            file_type,
            permissions: 0,
            nlink: 1,
            uid: 0,
            gid: 0,
            size: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            change: 1,
            parent,
            flags: InodeFlags::empty(),
            key: None,
            hint: FragRun::default(),
            device: 0,
            entry_count: 0,
            bucket_count: 0,
            content: Content::Map(ExtentMap::default()),
            content_checksum: None,
            attributes: Some(Attributes::default()),
            xattr_block: FragRun::default(),
            stamps: Stamps::default(),
            unstamped: Unstamped::Change,
        }
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.file_type == FileType::Directory
    }

    /// Whether the file is protected against changes.
    pub fn is_protected(&self) -> bool {
        self.flags.intersects(InodeFlags::PROTECTION)
    }

    /// The map of the contents; `None` if they are in the inode.
    pub fn map(&self) -> Option<&ExtentMap> {
        match &self.content {
            Content::Map(map) => Some(map),
            Content::Inline(_) => None,
        }
    }

    /// The map of the contents, to change it.
    pub fn map_mut(&mut self) -> Option<&mut ExtentMap> {
        match &mut self.content {
            Content::Map(map) => Some(map),
            Content::Inline(_) => None,
        }
    }

    /// Records a change of the inode at this time.
    pub fn touch(&mut self, now: Timestamp) {
        self.ctime = now;
        self.change = self.change.wrapping_add(1);
        self.unstamped = self.unstamped.max(Unstamped::Change);
    }

    /// Records a change of the inode's name.
    pub fn renamed(&mut self, parent: InodeNo, now: Timestamp) {
        self.parent = parent;
        self.touch(now);
        self.unstamped = Unstamped::Name;
    }

    /// Stamps the changes since the last call with this count of marks. Returns whether the count is new to
    /// the inode.
    pub fn stamp(&mut self, count: u32) -> bool {
        let before = self.stamps;
        let unstamped = std::mem::take(&mut self.unstamped);
        if unstamped >= Unstamped::Change {
            self.stamps.changed = self.stamps.changed.max(count);
        }
        if unstamped == Unstamped::Name && self.is_dir() {
            self.stamps.renamed = self.stamps.renamed.max(count);
        }
        self.stamps != before
    }

    /// The key by which the file is placed: its own, or its directory.
    pub fn placement_key(&self) -> Key {
        match self.key {
            Some(key) => key,
            None if self.is_dir() => Key(self.ino.0),
            None => Key(self.parent.0),
        }
    }

    /// Encodes the inode for its sector. `embeds_xattrs` says whether the attributes are there, too.
    pub fn encode(
        &self,
        embeds_xattrs: bool,
        tags: &[LinkTag],
        block_fragments: u32,
    ) -> EncodedInode {
        let mut flags = self.flags;
        flags.set(InodeFlags::INDEXED, self.bucket_count > 0);
        flags.set(InodeFlags::CONTENT_CHECKSUM, self.content_checksum.is_some());
        let (data, map_root, map_depth, fragments) = match &self.content {
            Content::Inline(bytes) => {
                flags |= InodeFlags::INLINE;
                (bytes.clone(), 0, 0, 0)
            }
            Content::Map(map) => {
                let data = map.direct().flat_map(|extent| extent.encode()).collect();
                let root = map.root().map_or(0, |block| block.0);
                (data, root, map.depth(), map.fragments(block_fragments))
            }
        };
        let xattr_fragments = u64::from(self.xattr_block.len);
        let mut inode = DiskInode {
            ino: self.ino.0.into(),
            generation: self.generation.into(),
            mode: ((self.file_type.mode_bits() | self.permissions) as u16).into(),
            flags: flags.bits().into(),
            uid: self.uid.into(),
            gid: self.gid.into(),
            nlink: self.nlink.into(),
            content_checksum: self.content_checksum.unwrap_or(0).into(),
            size: self.size.into(),
            atime_seconds: self.atime.seconds.into(),
            mtime_seconds: self.mtime.seconds.into(),
            ctime_seconds: self.ctime.seconds.into(),
            btime_seconds: self.btime.seconds.into(),
            atime_nanoseconds: self.atime.nanoseconds.into(),
            mtime_nanoseconds: self.mtime.nanoseconds.into(),
            ctime_nanoseconds: self.ctime.nanoseconds.into(),
            btime_nanoseconds: self.btime.nanoseconds.into(),
            parent: self.parent.0.into(),
            key: self.key.map_or(0, |key| key.0).into(),
            hint_start: self.hint.start.0.into(),
            hint_len: self.hint.len.into(),
            data_len: 0.into(),
            xattr_len: 0.into(),
            special: 0.into(),
            fragments: (fragments + xattr_fragments).into(),
            change: self.change.into(),
            xattr_block: 0.into(),
            map_root: map_root.into(),
            map_depth,
            tag_count: 0,
            changed: [0; 3],
            below: [0; 3],
        };
        inode.set_stamps(self.stamps);
        inode.set_attribute_run((self.xattr_block.len > 0).then_some(self.xattr_block));
        if self.is_dir() {
            inode.set_entries(self.entry_count, self.bucket_count);
        } else {
            inode.set_device(self.device);
        }
        let embedded = self.attributes.as_ref().filter(|_| embeds_xattrs);
        let xattrs = embedded.map_or(Vec::new(), Attributes::encode);
        let mut encoded_tags = Vec::new();
        tags.iter().for_each(|tag| tag.encode(&mut encoded_tags));
        EncodedInode { inode, data, xattrs, tags: encoded_tags }
    }
}

/// An inode with its attributes and tags, ready to be put into a sector.
pub struct EncodedInode {
    /// The fixed part.
    pub inode: DiskInode,
    /// Contents or extents.
    pub data: Vec<u8>,
    /// Attributes, encoded.
    pub xattrs: Vec<u8>,
    /// Linktags, encoded.
    pub tags: Vec<u8>,
}

impl EncodedInode {
    /// A copy of a record in a sector.
    pub fn from_record(record: &Record<'_>) -> EncodedInode {
        EncodedInode {
            inode: *record.inode,
            data: record.data.to_vec(),
            xattrs: record.xattrs.to_vec(),
            tags: record.tags.to_vec(),
        }
    }

    /// Replaces the linktags.
    pub fn set_tags(&mut self, tags: &[LinkTag]) {
        self.tags.clear();
        tags.iter().for_each(|tag| tag.encode(&mut self.tags));
    }

    /// Borrows it for a sector.
    pub fn record(&self) -> Record<'_> {
        Record { inode: &self.inode, data: &self.data, xattrs: &self.xattrs, tags: &self.tags }
    }
}

#[cfg(test)]
pub(crate) use self::extents::tests::VISITS as EXTENT_VISITS;
#[cfg(test)]
mod tests;
