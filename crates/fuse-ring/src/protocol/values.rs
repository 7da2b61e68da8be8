//! The values that handlers and the kernel exchange: identifiers, attributes, entries.
//!
//! They are plain structures with the field names of `struct stat`; turning them into wire
//! structures is [`encode`](super::encode)'s work.

use std::time::Duration;

use super::OpenFlags;

/// The name under which the kernel knows an inode, chosen by the server and valid until forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root directory. It exists from the start, without a lookup.
    pub const ROOT: NodeId = NodeId(1);
}

/// The name of an open file, chosen by the server and valid until released. Zero where the opening
/// was elided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileHandle(pub u64);

/// The number of a request, by which an `INTERRUPT` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unique(pub u64);

/// The owner of a lock; an opaque hash of the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LockOwner(pub u64);

/// A point in time since 1970, negative before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// Whole seconds.
    pub seconds: i64,
    /// The rest, below 1,000,000,000.
    pub nanoseconds: u32,
}

/// A time to set: given, or the moment at which the server handles the request.
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

/// Major and minor number out of the kernel's 32-bit encoding.
pub const fn decode_device(device: u32) -> (u32, u32) {
    ((device & 0xf_ff00) >> 8, (device & 0xff) | ((device >> 12) & 0xf_ff00))
}

/// Attributes, and for how long the kernel may believe them.
///
/// A time of zero together with the mount option `default_permissions` makes the kernel ask for attributes
/// before every operation, which doubles the traffic. If the volume has no other writers, give long times and
/// send [notifications](crate::Notifier) for the exceptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttrReply {
    /// The attributes.
    pub attr: Attr,
    /// How long they hold.
    pub ttl: Duration,
}

/// A name that was found or made.
///
/// Every reply with an entry whose `node` is not zero counts as one lookup, until the kernel
/// [forgets](crate::Handler::forget) it. That holds for `LOOKUP`, for everything that creates, for
/// `LINK` and for each entry of a `READDIRPLUS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The inode's name towards the kernel.
    pub node: NodeId,
    /// Distinguishes two inodes that had the same `node` at different times.
    pub generation: u64,
    /// The attributes.
    pub attr: Attr,
    /// How long the name leads to this inode.
    pub entry_ttl: Duration,
    /// How long the attributes hold.
    pub attr_ttl: Duration,
}

impl Entry {
    /// The absence of a name, which the kernel may remember for a while. (Answering `ENOENT`
    /// reports the absence without letting it be remembered.)
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

/// A file that was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// The handle that later requests on the open file carry.
    pub handle: FileHandle,
    /// How it behaves.
    pub flags: OpenFlags,
}

/// The fields of `statx` that `stat` lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatxReply {
    /// The attributes.
    pub attr: Attr,
    /// How long they hold.
    pub ttl: Duration,
    /// Time of birth, if known.
    pub btime: Option<Timestamp>,
    /// `STATX_ATTR_*` bits that are set.
    pub attributes: u64,
    /// `STATX_ATTR_*` bits that are known.
    pub attributes_mask: u64,
}

/// The state of the file system as a whole.
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
