//! The types of the facade: attributes, changes of them, new files, directory entries.

use crate::clock::Timestamp;
use crate::format::inode::{FileType, InodeFlags};
pub use crate::format::superblock::ErrorsPolicy;
use crate::inode::Amount;
pub use crate::options::{AtimeMode, JournalMode, OpenOptions};
use crate::units::InodeNo;

/// The attributes of a file, as `stat` shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// The inode's number.
    pub ino: InodeNo,
    /// Distinguishes this file from earlier ones of the same number.
    pub generation: u32,
    /// The file's type.
    pub file_type: FileType,
    /// Permissions with set-user-ID, set-group-ID and sticky bit: the lower 12 bits of the mode.
    pub permissions: u32,
    /// Count of names; of a directory, 2 and the count of its subdirectories.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// The number of a device, `major << 32 | minor`; 0 for other files.
    pub device: u64,
    /// Bytes of the contents.
    pub size: u64,
    /// Bytes of the volume that the file occupies.
    pub allocated_bytes: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
    /// Counts changes of the file.
    pub change: u64,
    /// The flags of [`InodeFlags::SETTABLE`] that are set.
    pub flags: InodeFlags,
}

impl Attr {
    /// Type and permissions in one, as `st_mode` has them.
    pub fn mode(&self) -> u32 {
        self.file_type.mode_bits() | self.permissions
    }

    /// Whether this user may follow a symbolic link at the end of a path in this directory, as with
    /// `fs.protected_symlinks` = 1: in a directory like /tmp, others could redirect it.
    pub fn lets_follow(&self, link: &Attr, uid: u32) -> bool {
        const STICKY_AND_OTHERS_WRITE: u32 = 0o1002;
        let is_shared = self.permissions & STICKY_AND_OTHERS_WRITE == STICKY_AND_OTHERS_WRITE;
        !is_shared || link.uid == uid || link.uid == self.uid
    }
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time at which the call is served.
    Now,
    /// This time.
    To(Timestamp),
}

/// Which attributes to change; `None` leaves one unchanged. The change time is always set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// The lower 12 bits of the mode.
    pub permissions: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Owning group.
    pub gid: Option<u32>,
    /// Truncates or extends a regular file, in bytes, and removes its capabilities.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the contents.
    pub mtime: Option<SetTime>,
    /// Last change of the inode, if not now.
    pub ctime: Option<Timestamp>,
    /// Clears set-id bits as a write or a change of owner by an unprivileged user does, and removes the
    /// capabilities of an executable file (`security.capability`).
    pub clear_privileges: Option<Unprivileged>,
}

/// A user without the privilege to change a file and keep its set-id bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unprivileged {
    /// A member of the file's group: clears set-user-ID, and set-group-ID if the group may execute.
    Member,
    /// Any other user: clears both.
    Stranger,
}

/// The kind of a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewKind<'a> {
    /// An empty regular file.
    Regular,
    /// An empty directory.
    Directory,
    /// A symbolic link to this target.
    Symlink(&'a [u8]),
    /// A pipe with a name.
    Fifo,
    /// A socket.
    Socket,
    /// A character device, `major << 32 | minor`.
    CharDevice(u64),
    /// A block device, `major << 32 | minor`.
    BlockDevice(u64),
}

/// A file to make.
///
/// The directory's set-group-ID bit and default ACL are honoured: the ACL takes the place of the
/// umask if there is one.
#[derive(Clone, Copy, Debug)]
pub struct NewFile<'a> {
    /// Its kind.
    pub kind: NewKind<'a>,
    /// The lower 12 bits of the requested mode, before the umask.
    pub permissions: u32,
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory hands down its own. A program with an inherited group gets the
    /// set-group-ID bit only if the caller may act for the group.
    pub gid: u32,
    /// The times of access and change if they are not now. No crash shows the file without them.
    pub times: Option<(Timestamp, Timestamp)>,
}

/// How a rename treats the new name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Replaces the file that had the name.
    Replace,
    /// Fails if the name exists.
    NoReplace,
    /// Gives each of the two names the other's file.
    Exchange,
    /// As `Replace`, and leaves a whiteout (character device 0, 0) behind, for overlay file systems.
    Whiteout {
        /// Fails if the new name exists.
        no_replace: bool,
    },
}

/// How `allocate` changes a range of a regular file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateMode {
    /// Reserves space; the file grows if the range ends after it.
    Reserve,
    /// Reserves space; the size stays.
    ReserveKeepSize,
    /// Frees the range, which reads as zeros from then on; the size stays.
    PunchHole,
    /// Makes the range read as zeros, with space reserved.
    ZeroRange {
        /// Whether the size stays if the range ends after it.
        keep_size: bool,
    },
}

/// The object of a `seek`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekFor {
    /// The next byte that has data.
    Data,
    /// The next byte that has none; the end of the file counts.
    Hole,
}

/// Whether setting an extended attribute may create or replace it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Creates or replaces.
    Any,
    /// Fails if it exists.
    Create,
    /// Fails if it does not exist.
    Replace,
}

/// An entry that `read_dir` visits.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// The name.
    pub name: &'a [u8],
    /// The inode.
    pub ino: InodeNo,
    /// Its type.
    pub file_type: FileType,
    /// Reading continues after this entry with this cookie. It stays valid while the entry exists, also after
    /// the volume was closed and opened again.
    pub cookie: u64,
    /// The attributes, if they were requested.
    pub attr: Option<Attr>,
}

/// Chooses the entries that `read_dir_plus` visits with their attributes.
pub type Plus<'a> = &'a dyn Fn(&DirEntry<'_>) -> bool;

/// Sizes of the volume, as `statvfs` shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// The unit of allocation in bytes.
    pub fragment_bytes: u32,
    /// The preferred size of a request in bytes.
    pub block_bytes: u32,
    /// Fragments that files can have in all.
    pub fragments: u64,
    /// Free fragments.
    pub free_fragments: u64,
    /// Free fragments that files can have; the rest is for the file system's own structures.
    pub available_fragments: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Inodes that could still be made.
    pub free_inodes: u64,
    /// The longest name in bytes.
    pub name_bytes_max: u32,
}

impl StatFs {
    /// The sizes for a tree with these limits.
    pub(super) fn limited(self, limits: Amount, used: Amount) -> StatFs {
        let fragment = u64::from(self.fragment_bytes);
        let mut limited = self;
        if limits.bytes != u64::MAX {
            let left = limits.bytes.saturating_sub(used.bytes) / fragment;
            // df(1) leaves out a file system without space.
            limited.fragments = self.fragments.min(limits.bytes / fragment).max(1);
            limited.free_fragments = self.free_fragments.min(left);
            limited.available_fragments = self.available_fragments.min(left);
        }
        if limits.files != u64::MAX {
            limited.inodes = used.files;
            limited.free_inodes = self.free_inodes.min(limits.files.saturating_sub(used.files));
        }
        limited
    }
}

/// Whether a read counts as an access, which may set the access time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It does: the volume's [`AtimeMode`] decides.
    Noted,
    /// It does not, as with `O_NOATIME`.
    Unnoted,
}
