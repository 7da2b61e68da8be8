//! Conversions between the protocol's values and the facade's.

use std::time::Duration;

use cffs::clock::Timestamp;
use cffs::error::Error;
use cffs::units::InodeNo;
use cffs::vfs;
use cffs::vfs::types::{
    self, AllocateMode, NewFile, NewKind, RenameMode, SeekFor, StatFs, XattrMode,
};
use fuse_ring::Errno;
use fuse_ring::protocol::{self, Context, Create, Entry, FileHandle, NodeId, OpenFlags, Opened};

use crate::shared::log_fault;

#[cfg(test)]
mod tests;

const O_ACCMODE: u32 = 0o3;
const O_WRONLY: u32 = 0o1;
const FALLOC_FL_KEEP_SIZE: u32 = 0x01;
const FALLOC_FL_PUNCH_HOLE: u32 = 0x02;
const FALLOC_FL_ZERO_RANGE: u32 = 0x10;
const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;
const RENAME_WHITEOUT: u32 = 4;
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;
const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;
const TYPE_MASK: u32 = 0o170_000;
const PERMISSIONS_MASK: u32 = 0o7777;

/// The handle of a file that is written without the page cache. All others are opened by the kernel itself,
/// or as it would open them, and have the handle 0.
pub const UNCACHED: FileHandle = FileHandle(1);

/// The inode number of a node: they are the same.
pub fn ino(node: NodeId) -> InodeNo {
    InodeNo(node.0)
}

/// The error number for the kernel. Logs faults.
pub fn errno(operation: &'static str) -> impl Fn(Error) -> Errno {
    move |error| {
        log_fault(operation, &error);
        Errno::from_raw_os_error(vfs::errno(&error))
    }
}

/// The new file that a request describes.
pub fn new_file<'a>(cx: &Context<'_>, kind: NewKind<'a>, mode: u32) -> NewFile<'a> {
    let permissions = permissions(mode);
    NewFile { kind, permissions, uid: cx.uid, gid: cx.gid, times: None }
}

/// A file that is created for writing bypasses the page cache: its bytes are copied once less, and the kernel
/// does not query capabilities before each write. A write-only handle is never mapped; readers have their own
/// handles, with a cache.
pub fn opened(create: &Create) -> Opened {
    match create.flags & O_ACCMODE {
        O_WRONLY => Opened { handle: UNCACHED, flags: OpenFlags::DIRECT_IO },
        _ => Opened { handle: FileHandle(0), flags: OpenFlags::KEEP_CACHE },
    }
}

/// Attributes in the kernel's form.
pub fn attr(attr: &types::Attr, block_bytes: u32) -> protocol::Attr {
    protocol::Attr {
        ino: attr.ino.0,
        size: attr.size,
        blocks: attr.allocated_bytes.div_ceil(512),
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
        mode: attr.mode(),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: protocol::encode_device((attr.device >> 32) as u32, attr.device as u32),
        blksize: block_bytes,
    }
}

/// The answer of a lookup, which the kernel may cache for `ttl`. The node number is the inode number.
pub fn entry(found: &types::Attr, block_bytes: u32, ttl: Duration) -> Entry {
    Entry {
        node: NodeId(found.ino.0),
        generation: found.generation.into(),
        attr: attr(found, block_bytes),
        entry_ttl: ttl,
        attr_ttl: ttl,
    }
}

/// A time in the kernel's form.
pub fn time(time: Timestamp) -> protocol::Timestamp {
    protocol::Timestamp { seconds: time.seconds, nanoseconds: time.nanoseconds }
}

fn time_from(time: protocol::Timestamp) -> Timestamp {
    Timestamp { seconds: time.seconds, nanoseconds: time.nanoseconds }
}

fn set_time(time: protocol::SetTime) -> types::SetTime {
    match time {
        protocol::SetTime::Now => types::SetTime::Now,
        protocol::SetTime::At(at) => types::SetTime::To(time_from(at)),
    }
}

/// The changes that a `SETATTR` requests, except those of set-id bits, which depend on the caller.
pub fn set_attr(change: &protocol::SetAttr) -> types::SetAttr {
    types::SetAttr {
        permissions: change.mode.map(|mode| mode & PERMISSIONS_MASK),
        uid: change.uid,
        gid: change.gid,
        size: change.size,
        atime: change.atime.map(set_time),
        mtime: change.mtime.map(set_time),
        ctime: change.ctime.map(time_from),
        clear_privileges: None,
    }
}

/// The kind of file that a `MKNOD` makes.
pub fn new_kind(mode: u32, rdev: u32) -> Result<NewKind<'static>, Errno> {
    let (major, minor) = protocol::decode_device(rdev);
    let device = u64::from(major) << 32 | u64::from(minor);
    match mode & TYPE_MASK {
        0 | 0o100_000 => Ok(NewKind::Regular),
        0o010_000 => Ok(NewKind::Fifo),
        0o140_000 => Ok(NewKind::Socket),
        0o020_000 => Ok(NewKind::CharDevice(device)),
        0o060_000 => Ok(NewKind::BlockDevice(device)),
        _ => Err(Errno::INVAL),
    }
}

/// The permission bits of a mode.
pub fn permissions(mode: u32) -> u32 {
    mode & PERMISSIONS_MASK
}

pub fn rename_mode(flags: u32) -> Result<RenameMode, Errno> {
    match flags {
        0 => Ok(RenameMode::Replace),
        RENAME_NOREPLACE => Ok(RenameMode::NoReplace),
        RENAME_EXCHANGE => Ok(RenameMode::Exchange),
        RENAME_WHITEOUT => Ok(RenameMode::Whiteout { no_replace: false }),
        f if f == RENAME_WHITEOUT | RENAME_NOREPLACE => {
            Ok(RenameMode::Whiteout { no_replace: true })
        }
        _ => Err(Errno::INVAL),
    }
}

/// Converts the flags of fallocate.
pub fn allocate_mode(flags: u32) -> Result<AllocateMode, Errno> {
    let keep_size = flags & FALLOC_FL_KEEP_SIZE != 0;
    match flags & !FALLOC_FL_KEEP_SIZE {
        0 if keep_size => Ok(AllocateMode::ReserveKeepSize),
        0 => Ok(AllocateMode::Reserve),
        FALLOC_FL_PUNCH_HOLE if keep_size => Ok(AllocateMode::PunchHole),
        FALLOC_FL_ZERO_RANGE => Ok(AllocateMode::ZeroRange { keep_size }),
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// Converts the `whence` of lseek.
pub fn seek_for(whence: u32) -> Result<SeekFor, Errno> {
    match whence {
        SEEK_DATA => Ok(SeekFor::Data),
        SEEK_HOLE => Ok(SeekFor::Hole),
        _ => Err(Errno::INVAL),
    }
}

/// Converts the flags of setxattr.
pub fn xattr_mode(flags: u32) -> Result<XattrMode, Errno> {
    match flags {
        0 => Ok(XattrMode::Any),
        XATTR_CREATE => Ok(XattrMode::Create),
        XATTR_REPLACE => Ok(XattrMode::Replace),
        _ => Err(Errno::INVAL),
    }
}

/// The state of the volume in the kernel's form.
pub fn statfs(stat: &StatFs) -> protocol::Statfs {
    protocol::Statfs {
        blocks: stat.fragments,
        bfree: stat.free_fragments,
        bavail: stat.available_fragments,
        files: stat.inodes.saturating_add(stat.free_inodes),
        ffree: stat.free_inodes,
        bsize: stat.block_bytes,
        frsize: stat.fragment_bytes,
        namelen: stat.name_bytes_max,
    }
}
