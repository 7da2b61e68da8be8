//! Requests: what stands in them once their bytes were checked.
//!
//! [`Request::decode`] is pure and total. It allocates nothing, every slice that it yields borrows
//! the message, and a message that does not add up is a [`Malformed`](super::Malformed), never a
//! panic: the bytes come from a kernel, but a fuzzer may hold the pen.

use super::{Extensions, FileHandle, InitRequest, LockOwner, NodeId, SetTime, Timestamp, Unique};

/// A request, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The caller.
    pub context: Context<'a>,
    /// The inode that is asked about.
    pub node: NodeId,
    /// The operation and its arguments.
    pub operation: Operation<'a>,
}

/// The user and the group of a caller whom the kernel does not name (`FUSE_INVALID_UIDGID`). No user has
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
    /// The caller's group, in the same way.
    pub gid: u32,
    /// The caller's process; zero for the kernel itself and for other pid namespaces.
    pub pid: u32,
    /// Extensions of a request that creates.
    pub extensions: Extensions<'a>,
}

/// An operation and its arguments. Opcodes that mean the same in two dialects are one operation.
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
    /// Give an existing inode (`target`) another name in the node.
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
    /// The caller of an earlier request no longer wants to wait. Never answered.
    Interrupt {
        unique: Unique,
    },
    /// Where block `block` of a file lies: for files of a block device only.
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
    /// An operation that this crate does not know.
    Unknown {
        opcode: u32,
    },
}

/// Arguments of `IOCTL`. The kernel passes on commands whose number has the lengths of input and output, and
/// those on flags of files (`FS_IOC_GETFLAGS` and the like).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ioctl<'a> {
    /// The open file or directory.
    pub handle: FileHandle,
    /// The command's number.
    pub command: u32,
    /// The input.
    pub data: &'a [u8],
    /// The bytes that the caller has room for.
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
    /// Last change of the inode; sent only where the kernel caches writes.
    pub ctime: Option<Timestamp>,
    /// The lock owner that truncates, for mandatory locks.
    pub lock_owner: Option<LockOwner>,
    /// Clear the set-id bits, as [`HANDLE_KILLPRIV_V2`](super::Features::HANDLE_KILLPRIV_V2) has it.
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
    /// `O_*` flags, without those that the kernel has dealt with.
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
    /// How many bytes are wanted at most.
    pub size: u32,
    /// `O_*` flags of the open file.
    pub flags: u32,
    /// The lock owner that reads, for mandatory locks.
    pub lock_owner: Option<LockOwner>,
}

/// Arguments of `WRITE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write<'a> {
    /// The open file; a guess if `from_cache`.
    pub handle: FileHandle,
    /// Offset in bytes.
    pub offset: u64,
    /// The bytes to write.
    pub data: &'a [u8],
    /// `O_*` flags of the open file.
    pub flags: u32,
    /// The write comes from the page cache, after the fact and not from the writer.
    pub from_cache: bool,
    /// Clear the set-id bits.
    pub kill_suid_sgid: bool,
    /// The lock owner that writes, for mandatory locks.
    pub lock_owner: Option<LockOwner>,
}

/// Arguments of `RELEASE` and `RELEASEDIR`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// The open file, which is gone after this.
    pub handle: FileHandle,
    /// `O_*` flags of the open file.
    pub flags: u32,
    /// A `FLUSH` is due first.
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
    /// The new access ACL costs the file its set-group-id bit.
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
    /// No flags are defined yet.
    pub flags: u64,
    /// The reply has room for 64 bits.
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
    /// Whether the kernel waits for an answer.
    pub fn wants_reply(&self) -> bool {
        !matches!(
            self.operation,
            Operation::Forget { .. } | Operation::BatchForget(_) | Operation::Interrupt { .. }
        )
    }
}
