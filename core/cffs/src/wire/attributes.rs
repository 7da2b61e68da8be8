//! Attributes of files, and changes of them.

use super::{BadMessage, Fields, Result};
use crate::clock::Timestamp;
use crate::format::inode::{FileType, InodeFlags};
use crate::units::InodeNo;
use crate::vfs::types::{Attr, SetAttr, SetTime};

const TYPES: [FileType; 7] = [
    FileType::Regular,
    FileType::Directory,
    FileType::Symlink,
    FileType::Fifo,
    FileType::Socket,
    FileType::CharDevice,
    FileType::BlockDevice,
];

const NANOSECONDS: u32 = 1_000_000_000;

pub fn encode(attr: &Attr) -> Vec<u8> {
    let file_type = TYPES.iter().position(|known| *known == attr.file_type);
    let mut bytes = Vec::with_capacity(128);
    bytes.push(file_type.map_or(u8::MAX, |at| at as u8));
    for number in [attr.generation, attr.permissions, attr.nlink, attr.uid, attr.gid] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(attr.flags.bits().to_le_bytes());
    for number in [attr.ino.0, attr.device, attr.size, attr.allocated_bytes, attr.change] {
        bytes.extend(number.to_le_bytes());
    }
    for time in [attr.atime, attr.mtime, attr.ctime, attr.btime] {
        put_time(&mut bytes, time);
    }
    bytes
}

pub fn decode(fields: &mut Fields<'_>) -> Result<Attr> {
    let file_type = TYPES.get(usize::from(fields.u8()?)).copied().ok_or(BadMessage)?;
    Ok(Attr {
        file_type,
        generation: fields.u32()?,
        permissions: fields.permissions()?,
        nlink: fields.u32()?,
        uid: fields.u32()?,
        gid: fields.u32()?,
        flags: InodeFlags::from_bits_truncate(fields.u16()?),
        ino: InodeNo(fields.u64()?),
        device: fields.u64()?,
        size: fields.u64()?,
        allocated_bytes: fields.u64()?,
        change: fields.u64()?,
        atime: time(fields)?,
        mtime: time(fields)?,
        ctime: time(fields)?,
        btime: time(fields)?,
    })
}

/// The changes that a program may request: the server itself decides about set-id bits and the change time.
pub fn encode_changes(changes: &SetAttr) -> Vec<u8> {
    let SetAttr { permissions, uid, gid, size, atime, mtime, ctime: _, clear_privileges: _ } =
        changes;
    let mut bytes = Vec::with_capacity(64);
    for number in [permissions, uid, gid] {
        bytes.push(number.is_some().into());
        bytes.extend(number.unwrap_or_default().to_le_bytes());
    }
    bytes.push(size.is_some().into());
    bytes.extend(size.unwrap_or_default().to_le_bytes());
    for time in [atime, mtime] {
        let (kind, time) = match time {
            None => (0, Timestamp::default()),
            Some(SetTime::Now) => (1, Timestamp::default()),
            Some(SetTime::To(time)) => (2, *time),
        };
        bytes.push(kind);
        put_time(&mut bytes, time);
    }
    bytes
}

pub fn decode_changes(fields: &mut Fields<'_>) -> Result<SetAttr> {
    let has_permissions = fields.flag()?;
    let permissions = fields.permissions()?;
    let [uid, gid] = [number(fields)?, number(fields)?];
    let has_size = fields.flag()?;
    let size = fields.u64()?;
    Ok(SetAttr {
        permissions: has_permissions.then_some(permissions),
        uid,
        gid,
        size: has_size.then_some(size),
        atime: set_time(fields)?,
        mtime: set_time(fields)?,
        ..SetAttr::default()
    })
}

/// A user or a group. The largest number stands for none in system calls, and no file has it.
fn number(fields: &mut Fields<'_>) -> Result<Option<u32>> {
    let (has_number, number) = (fields.flag()?, fields.u32()?);
    if has_number && number == u32::MAX {
        Err(BadMessage)
    } else {
        Ok(has_number.then_some(number))
    }
}

fn set_time(fields: &mut Fields<'_>) -> Result<Option<SetTime>> {
    let (kind, time) = (fields.u8()?, time(fields)?);
    match kind {
        0 => Ok(None),
        1 => Ok(Some(SetTime::Now)),
        2 => Ok(Some(SetTime::To(time))),
        _ => Err(BadMessage),
    }
}

fn put_time(bytes: &mut Vec<u8>, time: Timestamp) {
    bytes.extend(time.seconds.to_le_bytes());
    bytes.extend(time.nanoseconds.to_le_bytes());
}

fn time(fields: &mut Fields<'_>) -> Result<Timestamp> {
    let (seconds, nanoseconds) = (fields.array().map(i64::from_le_bytes)?, fields.u32()?);
    if nanoseconds < NANOSECONDS { Ok(Timestamp { seconds, nanoseconds }) } else { Err(BadMessage) }
}
