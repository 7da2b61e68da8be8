//! The values that handlers and the kernel exchange: identifiers, attributes, entries.
//!
//! They are plain structures with the field names of `struct stat`; [`encode`](super::encode) converts them
//! to wire structures.

use std::time::Duration;

use super::OpenFlags;

/// The kernel's identifier of an inode, chosen by the server and valid until forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root directory. It exists from the beginning, without a lookup.
    pub const ROOT: NodeId = NodeId(1);
}

/// The identifier of an open file, chosen by the server and valid until released. Zero if the opening was
/// elided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileHandle(pub u64);

/// The number of a request, used by `INTERRUPT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unique(pub u64);

/// The owner of a lock, as an opaque hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LockOwner(pub u64);

/// A point in time since 1970, negative before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// Whole seconds.
    pub seconds: i64,
    /// The fraction of the second, below 1,000,000,000.
    pub nanoseconds: u32,
}

/// A time to set: given, or the time at which the server handles the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// `UTIME_NOW`.
    Now,
    /// A given time.
    At(Timestamp),
}

/// The attributes of an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attr {
    /// The inode number that programs see; need not be the [`NodeId`].
    pub ino: u64,
    /// Size in bytes.
    pub size: u64,
    /// Allocated space in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Type and permissions, as in `st_mode`.
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a special file, in the kernel's 32-bit encoding (see [`encode_device`]).
    pub rdev: u32,
    /// Preferred size of I/O in bytes.
    pub blksize: u32,
}

/// The kernel's 32-bit encoding of a device number, as in [`Attr::rdev`] and `MKNOD`.
pub const fn encode_device(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// Major and minor number, decoded from the kernel's 32-bit encoding.
pub const fn decode_device(device: u32) -> (u32, u32) {
    ((device & 0xf_ff00) >> 8, (device & 0xff) | ((device >> 12) & 0xf_ff00))
}

/// Attributes, and how long the kernel may cache them.
///
/// With a lifetime of zero and the mount option `default_permissions`, the kernel requests attributes before
/// every operation, which doubles the number of requests. If the volume has no other writers, use long
/// lifetimes and send [notifications](crate::Notifier) for exceptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttrReply {
    /// The attributes.
    pub attr: Attr,
    /// Their lifetime in the kernel.
    pub ttl: Duration,
}

/// A name that was found or created.
///
/// Every reply with an entry whose `node` is not zero counts as one lookup, until the kernel
/// [forgets](crate::Handler::forget) it. This applies to `LOOKUP`, to all requests that create files, to
/// `LINK`, and to each entry of a `READDIRPLUS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The kernel's identifier of the inode.
    pub node: NodeId,
    /// Distinguishes inodes that have the same `node` at different times.
    pub generation: u64,
    /// The attributes.
    pub attr: Attr,
    /// The lifetime of the name in the kernel.
    pub entry_ttl: Duration,
    /// The lifetime of the attributes in the kernel.
    pub attr_ttl: Duration,
}

impl Entry {
    /// A missing name, which the kernel may cache for some time. (The error `ENOENT` is not cached.)
    pub fn negative(ttl: Duration) -> Entry {
        Entry {
            node: NodeId(0),
            generation: 0,
            attr: Attr::default(),
            entry_ttl: ttl,
            attr_ttl: Duration::ZERO,
        }
    }
}

/// An opened file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// The handle that later requests for the open file contain.
    pub handle: FileHandle,
    /// Its properties.
    pub flags: OpenFlags,
}

/// The fields of `statx` that `stat` lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatxReply {
    /// The attributes.
    pub attr: Attr,
    /// Their lifetime in the kernel.
    pub ttl: Duration,
    /// Time of creation, if known.
    pub btime: Option<Timestamp>,
    /// `STATX_ATTR_*` bits that are set.
    pub attributes: u64,
    /// `STATX_ATTR_*` bits that are supported.
    pub attributes_mask: u64,
}

/// The state of the file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statfs {
    /// Size in units of `frsize`.
    pub blocks: u64,
    /// Free space in units of `frsize`.
    pub bfree: u64,
    /// Free space for ordinary users in units of `frsize`.
    pub bavail: u64,
    /// Number of inodes.
    pub files: u64,
    /// Number of free inodes.
    pub ffree: u64,
    /// Preferred size of I/O in bytes.
    pub bsize: u32,
    /// Unit of allocation in bytes.
    pub frsize: u32,
    /// Longest name in bytes.
    pub namelen: u32,
}
