//! Decoded requests.
//!
//! [`Request::decode`] is pure and total. It allocates nothing, every slice that it returns borrows from the
//! message, and an inconsistent message is a [`Malformed`](super::Malformed), never a panic: normally the
//! kernel writes messages, but in tests a fuzzer does.

use super::{Extensions, FileHandle, InitRequest, LockOwner, NodeId, SetTime, Timestamp, Unique};

/// A request, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The caller.
    pub context: Context<'a>,
    /// The inode that the request is about.
    pub node: NodeId,
    /// The operation and its arguments.
    pub operation: Operation<'a>,
}

/// The user and the group of a caller that the kernel does not identify (`FUSE_INVALID_UIDGID`). No user has
/// this number.
pub const UNKNOWN_ID: u32 = u32::MAX;

/// The caller, from the header of every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context<'a> {
    /// The number of the request.
    pub unique: Unique,
    /// The caller's user; with [`ALLOW_IDMAP`](super::Features::ALLOW_IDMAP), [`UNKNOWN_ID`] in most
    /// requests.
    pub uid: u32,
    /// The caller's group; likewise.
    pub gid: u32,
    /// The caller's process; zero for the kernel itself and for other PID namespaces.
    pub pid: u32,
    /// Extensions of a request that creates a file.
    pub extensions: Extensions<'a>,
}

/// An operation and its arguments. Equivalent opcodes of different protocol versions are one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are documented in the structures they hold")]
pub enum Operation<'a> {
    /// Find a name.
    Lookup {
        name: &'a [u8],
    },
    /// Drop this many lookups of the node. Never answered.
    Forget {
        lookups: u64,
    },
    /// Drop lookups of many nodes. Never answered.
    BatchForget(Forgets<'a>),
    GetAttr {
        handle: Option<FileHandle>,
    },
    Statx {
        handle: Option<FileHandle>,
        flags: u32,
        mask: u32,
    },
    SetAttr(SetAttr),
    ReadLink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MkNod {
        name: &'a [u8],
        mode: u32,
        rdev: u32,
        umask: u32,
    },
    MkDir {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    RmDir {
        name: &'a [u8],
    },
    Rename(Rename<'a>),
    /// Add a name to an existing inode (`target`) in the node.
    Link {
        target: NodeId,
        name: &'a [u8],
    },
    Open(Open),
    Read(Read),
    Write(Write<'a>),
    StatFs,
    Release(Release),
    Fsync {
        handle: FileHandle,
        data_only: bool,
    },
    SetXattr(SetXattr<'a>),
    GetXattr {
        name: &'a [u8],
        size: u32,
    },
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    Flush {
        handle: FileHandle,
        lock_owner: LockOwner,
    },
    Init(InitRequest),
    OpenDir(Open),
    ReadDir(Read),
    ReadDirPlus(Read),
    ReleaseDir(Release),
    FsyncDir {
        handle: FileHandle,
        data_only: bool,
    },
    /// `GETLK`, `SETLK` or `SETLKW`: not expected, since locks are never negotiated.
    Lock,
    Access {
        mask: u32,
    },
    Create {
        name: &'a [u8],
        create: Create,
    },
    TmpFile {
        create: Create,
    },
    /// The caller of an earlier request was interrupted. Never answered.
    Interrupt {
        unique: Unique,
    },
    /// The device block of block `block` of a file: only for file systems on a block device.
    Bmap {
        block: u64,
        block_size: u32,
    },
    Destroy,
    Ioctl(Ioctl<'a>),
    Poll {
        handle: FileHandle,
    },
    Fallocate(Fallocate),
    Lseek {
        handle: FileHandle,
        offset: u64,
        whence: u32,
    },
    CopyFileRange(CopyFileRange),
    SyncFs,
    /// An operation unknown to this crate.
    Unknown {
        opcode: u32,
    },
}

/// Arguments of `IOCTL`. The kernel forwards ioctls whose number contains the lengths of input and output,
/// and those on file flags (`FS_IOC_GETFLAGS` and the like).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ioctl<'a> {
    /// The open file or directory.
    pub handle: FileHandle,
    /// The ioctl's number.
    pub command: u32,
    /// The input.
    pub data: &'a [u8],
    /// The size of the caller's output buffer.
    pub out_size: u32,
}

/// Arguments of `SETATTR`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// The open file through which the change is made, if any.
    pub handle: Option<FileHandle>,
    /// Type and permissions.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the contents.
    pub mtime: Option<SetTime>,
    /// Last change of the inode; sent only if the kernel caches writes.
    pub ctime: Option<Timestamp>,
    /// The lock owner that truncates, for mandatory locks.
    pub lock_owner: Option<LockOwner>,
    /// Clear the set-id bits, as specified by [`HANDLE_KILLPRIV_V2`](super::Features::HANDLE_KILLPRIV_V2).
    pub kill_suid_sgid: bool,
}

/// Arguments of `RENAME` and `RENAME2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rename<'a> {
    /// The old name, in the node of the request.
    pub name: &'a [u8],
    /// The directory of the new name.
    pub new_parent: NodeId,
    /// The new name.
    pub new_name: &'a [u8],
    /// `RENAME_NOREPLACE`, `RENAME_EXCHANGE`, `RENAME_WHITEOUT`.
    pub flags: u32,
}

/// Arguments of `OPEN` and `OPENDIR`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// `O_*` flags, without those that the kernel has handled.
    pub flags: u32,
    /// Clear the set-id bits (with `O_TRUNC`).
    pub kill_suid_sgid: bool,
}

/// Arguments of `CREATE` and `TMPFILE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Create {
    /// `O_*` flags.
    pub flags: u32,
    /// Type and permissions of the new file.
    pub mode: u32,
    /// The caller's umask; already applied unless `DONT_MASK` was negotiated.
    pub umask: u32,
    /// Clear the set-id bits, if the file exists and is truncated.
    pub kill_suid_sgid: bool,
}

/// Arguments of `READ`, `READDIR` and `READDIRPLUS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The open file.
    pub handle: FileHandle,
    /// Offset in bytes; in a directory the cookie of the last entry seen.
    pub offset: u64,
    /// The most bytes to read.
    pub size: u32,
    /// `O_*` flags of the open file.
    pub flags: u32,
    /// The lock owner that reads, for mandatory locks.
    pub lock_owner: Option<LockOwner>,
}

/// Arguments of `WRITE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write<'a> {
    /// The open file; a guess by the kernel if `from_cache`.
    pub handle: FileHandle,
    /// Offset in bytes.
    pub offset: u64,
    /// The bytes to write.
    pub data: &'a [u8],
    /// `O_*` flags of the open file.
    pub flags: u32,
    /// Whether this is write-back from the page cache, not sent by the writer.
    pub from_cache: bool,
    /// Clear the set-id bits.
    pub kill_suid_sgid: bool,
    /// The lock owner that writes, for mandatory locks.
    pub lock_owner: Option<LockOwner>,
}

/// Arguments of `RELEASE` and `RELEASEDIR`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// The open file, whose handle becomes invalid.
    pub handle: FileHandle,
    /// `O_*` flags of the open file.
    pub flags: u32,
    /// Whether a `FLUSH` must be done first.
    pub flush: bool,
    /// Whether to drop the file's `flock` lock.
    pub flock_unlock: bool,
    /// The owner of the locks.
    pub lock_owner: LockOwner,
}

/// Arguments of `SETXATTR`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetXattr<'a> {
    /// The name, with its prefix.
    pub name: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// `XATTR_CREATE` or `XATTR_REPLACE`.
    pub flags: u32,
    /// Whether the new access ACL clears the file's set-group-id bit.
    pub kill_sgid: bool,
}

/// Arguments of `FALLOCATE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fallocate {
    /// The open file.
    pub handle: FileHandle,
    /// Offset in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// `FALLOC_FL_*` flags.
    pub mode: u32,
}

/// Arguments of `COPY_FILE_RANGE`: a copy from the node of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyFileRange {
    /// The source.
    pub handle_in: FileHandle,
    /// Offset in the source in bytes.
    pub offset_in: u64,
    /// The target's inode.
    pub node_out: NodeId,
    /// The target.
    pub handle_out: FileHandle,
    /// Offset in the target in bytes.
    pub offset_out: u64,
    /// Length in bytes.
    pub length: u64,
    /// Flags; none are defined yet.
    pub flags: u64,
    /// Whether the reply has 64 bits.
    pub wide: bool,
}

/// The nodes of a `BATCH_FORGET`, each with its number of lookups to drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgets<'a>(pub(super) &'a [[u8; 16]]);

impl Iterator for Forgets<'_> {
    type Item = (NodeId, u64);

    fn next(&mut self) -> Option<(NodeId, u64)> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        let half = |at| u64::from_ne_bytes(std::array::from_fn(|i| first[at + i]));
        Some((NodeId(half(0)), half(8)))
    }
}

impl Request<'_> {
    /// Whether the kernel expects a reply.
    pub fn wants_reply(&self) -> bool {
        !matches!(
            self.operation,
            Operation::Forget { .. } | Operation::BatchForget(_) | Operation::Interrupt { .. }
        )
    }
}
