//! Encoding of replies.
//!
//! Each function writes the payload of one kind of reply to the beginning of a buffer and returns
//! its length. A buffer of [`FIXED_LEN_MAX`] bytes is large enough for each.

use std::time::Duration;

use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

use super::{Attr, AttrReply, Entry, Opened, Statfs, StatxReply, Timestamp, decode_device, wire};

/// The longest reply of fixed length.
pub const FIXED_LEN_MAX: usize = size_of::<wire::StatxOut>();

/// The header of a reply: an error, or the length of the payload that follows.
pub fn header(unique: u64, result: Result<usize, Errno>) -> [u8; 16] {
    let (payload_len, error) = match result {
        Ok(len) => (len, 0),
        Err(errno) => (0, -to_kernel(errno)),
    };
    let len = size_of::<wire::OutHeader>() + payload_len;
    let out = wire::OutHeader { len: u32::try_from(len).unwrap_or(u32::MAX), error, unique };
    zerocopy::transmute!(out)
}

/// The kernel accepts errors from 1 to 511 and drops the whole reply for any other, so that the
/// caller would wait forever.
fn to_kernel(errno: Errno) -> i32 {
    match errno.raw_os_error() {
        number @ 1..512 => number,
        _ => Errno::IO.raw_os_error(),
    }
}

/// The reply to requests that find or create a name.
pub fn entry(buf: &mut [u8], entry: &Entry) -> usize {
    put(buf, &entry_out(entry))
}

/// The reply to `CREATE` and `TMPFILE`.
pub fn created(buf: &mut [u8], entry: &Entry, opened: &Opened) -> usize {
    let len = put(buf, &entry_out(entry));
    len + put(&mut buf[len..], &open_out(opened))
}

/// The reply to `GETATTR` and `SETATTR`.
pub fn attr(buf: &mut [u8], reply: &AttrReply) -> usize {
    put(
        buf,
        &wire::AttrOut {
            attr_valid: reply.ttl.as_secs(),
            attr_valid_nsec: reply.ttl.subsec_nanos(),
            dummy: 0,
            attr: attr_out(&reply.attr),
        },
    )
}

/// The reply to `STATX`.
pub fn statx(buf: &mut [u8], reply: &StatxReply) -> usize {
    const STATX_BASIC_STATS: u32 = 0x7ff;
    const STATX_BTIME: u32 = 0x800;
    let attr = &reply.attr;
    let (rdev_major, rdev_minor) = decode_device(attr.rdev);
    let btime_bit = if reply.btime.is_some() { STATX_BTIME } else { 0 };
    put(
        buf,
        &wire::StatxOut {
            attr_valid: reply.ttl.as_secs(),
            attr_valid_nsec: reply.ttl.subsec_nanos(),
            flags: 0,
            spare: [0; 2],
            stat: wire::Statx {
                mask: STATX_BASIC_STATS | btime_bit,
                blksize: attr.blksize,
                attributes: reply.attributes,
                nlink: attr.nlink,
                uid: attr.uid,
                gid: attr.gid,
                // `st_mode` has 16 bits: four of type and twelve of permissions.
                mode: (attr.mode & 0xffff) as u16,
                ino: attr.ino,
                size: attr.size,
                blocks: attr.blocks,
                attributes_mask: reply.attributes_mask,
                atime: statx_time(attr.atime),
                btime: statx_time(reply.btime.unwrap_or_default()),
                ctime: statx_time(attr.ctime),
                mtime: statx_time(attr.mtime),
                rdev_major,
                rdev_minor,
                ..wire::Statx::default()
            },
        },
    )
}

/// The reply to `OPEN` and `OPENDIR`.
pub fn opened(buf: &mut [u8], opened: &Opened) -> usize {
    put(buf, &open_out(opened))
}

/// The reply to `STATFS`.
pub fn statfs(buf: &mut [u8], statfs: &Statfs) -> usize {
    put(
        buf,
        &wire::StatfsOut {
            blocks: statfs.blocks,
            bfree: statfs.bfree,
            bavail: statfs.bavail,
            files: statfs.files,
            ffree: statfs.ffree,
            bsize: statfs.bsize,
            namelen: statfs.namelen,
            frsize: statfs.frsize,
            ..wire::StatfsOut::default()
        },
    )
}

/// The reply to `WRITE`, to the narrow `COPY_FILE_RANGE`, and to queries of an xattr's size.
pub fn size(buf: &mut [u8], size: u32) -> usize {
    put(buf, &wire::WriteOut { size, padding: 0 })
}

/// The reply to `LSEEK`, `BMAP` and the wide `COPY_FILE_RANGE`.
pub fn offset(buf: &mut [u8], offset: u64) -> usize {
    put(buf, &wire::LseekOut { offset })
}

/// The head of the reply to `IOCTL`, before the data.
pub fn ioctl(buf: &mut [u8]) -> usize {
    put(buf, &wire::IoctlOut::default())
}

/// Lifetimes in the encoding of the protocol; the maximum means forever.
fn entry_out(entry: &Entry) -> wire::EntryOut {
    let split = |ttl: Duration| (ttl.as_secs(), ttl.subsec_nanos());
    let (entry_valid, entry_valid_nsec) = split(entry.entry_ttl);
    let (attr_valid, attr_valid_nsec) = split(entry.attr_ttl);
    wire::EntryOut {
        nodeid: entry.node.0,
        generation: entry.generation,
        entry_valid,
        attr_valid,
        entry_valid_nsec,
        attr_valid_nsec,
        attr: attr_out(&entry.attr),
    }
}

fn attr_out(attr: &Attr) -> wire::Attr {
    wire::Attr {
        ino: attr.ino,
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime.seconds.cast_unsigned(),
        mtime: attr.mtime.seconds.cast_unsigned(),
        ctime: attr.ctime.seconds.cast_unsigned(),
        atimensec: attr.atime.nanoseconds,
        mtimensec: attr.mtime.nanoseconds,
        ctimensec: attr.ctime.nanoseconds,
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: attr.blksize,
        flags: 0,
    }
}

fn statx_time(time: Timestamp) -> wire::StatxTime {
    wire::StatxTime { tv_sec: time.seconds, tv_nsec: time.nanoseconds, reserved: 0 }
}

fn open_out(opened: &Opened) -> wire::OpenOut {
    wire::OpenOut { fh: opened.handle.0, open_flags: opened.flags.bits(), backing_id: 0 }
}

pub(super) fn entry_bytes(entry: &Entry) -> [u8; size_of::<wire::EntryOut>()] {
    zerocopy::transmute!(entry_out(entry))
}

fn put(buf: &mut [u8], value: &(impl IntoBytes + Immutable)) -> usize {
    let bytes = value.as_bytes();
    buf[..bytes.len()].copy_from_slice(bytes);
    bytes.len()
}
