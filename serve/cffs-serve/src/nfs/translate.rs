//! Conversions between the protocol's values and the facade's.

use cffs::clock::Timestamp;
use cffs::error::Error;
use cffs::format::inode::FileType;
use cffs::vfs::types::{self, Attr};
use nfs_wire::nfs::{self, Attributes, Before, SetAttributes, Status, Time};

use crate::shared::log_fault;

/// The status of an error. Logs faults.
pub fn status(operation: &'static str) -> impl Fn(Error) -> Status {
    move |error| {
        log_fault(operation, &error);
        match error {
            Error::Io(_) | Error::Corruption(_) | Error::Detached(_) | Error::Answered { .. } => {
                Status::Io
            }
            Error::Latched(_) | Error::Damaged(_) | Error::ReadOnly => Status::RoFs,
            Error::InUse(_) | Error::EpochNeeded => Status::Jukebox,
            Error::NoSpace => Status::NoSpc,
            Error::QuotaExceeded(_) => Status::DQuot,
            Error::OtherQuota => Status::XDev,
            Error::NotFound => Status::NoEnt,
            Error::Stale => Status::Stale,
            Error::Exists => Status::Exist,
            Error::NotDirectory => Status::NotDir,
            Error::IsDirectory => Status::IsDir,
            Error::NotEmpty => Status::NotEmpty,
            Error::NameTooLong => Status::NameTooLong,
            Error::TooLarge => Status::FBig,
            Error::TooManyLinks => Status::MLink,
            Error::NotPermitted | Error::Unmet => Status::Perm,
            Error::AccessDenied => Status::Access,
            Error::Invalid(_) | Error::Range | Error::Loop => Status::Inval,
            Error::NoAttribute | Error::NoData => Status::NxIo,
            Error::Unsupported(_) | Error::NotSupported | Error::Mounted(_) => Status::NotSupp,
        }
    }
}

/// Attributes in the form of the protocol.
pub fn attributes(attr: &Attr, fsid: u64) -> Attributes {
    Attributes {
        file_type: match attr.file_type {
            FileType::Regular => nfs::FileType::Regular,
            FileType::Directory => nfs::FileType::Directory,
            FileType::Symlink => nfs::FileType::Symlink,
            FileType::Fifo => nfs::FileType::Fifo,
            FileType::Socket => nfs::FileType::Socket,
            FileType::CharDevice => nfs::FileType::CharDevice,
            FileType::BlockDevice => nfs::FileType::BlockDevice,
        },
        mode: attr.permissions,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        size: attr.size,
        used: attr.allocated_bytes,
        device: ((attr.device >> 32) as u32, attr.device as u32),
        fsid,
        fileid: attr.ino.0,
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
    }
}

/// The pre-operation attributes, as far as the protocol has them.
pub fn before(attr: &Attr) -> Before {
    Before { size: attr.size, mtime: time(attr.mtime), ctime: time(attr.ctime) }
}

/// A time in the form of the protocol: the nearest that it can express.
pub fn time(time: Timestamp) -> Time {
    match u32::try_from(time.seconds) {
        Ok(seconds) => Time { seconds, nanoseconds: time.nanoseconds },
        Err(_) if time.seconds < 0 => Time { seconds: 0, nanoseconds: 0 },
        Err(_) => Time { seconds: u32::MAX, nanoseconds: 0 },
    }
}

/// A time that a client sets.
pub fn timestamp(time: Time) -> Result<Timestamp, Status> {
    const SECOND: u32 = 1_000_000_000;
    if time.nanoseconds >= SECOND {
        return Err(Status::Inval);
    }
    Ok(Timestamp { seconds: time.seconds.into(), nanoseconds: time.nanoseconds })
}

/// The attribute changes that a client requests.
pub fn set_attr(changes: &SetAttributes) -> Result<types::SetAttr, Status> {
    let set_time = |set| {
        Ok(match set {
            nfs::SetTime::Now => types::SetTime::Now,
            nfs::SetTime::To(time) => types::SetTime::To(timestamp(time)?),
        })
    };
    Ok(types::SetAttr {
        permissions: changes.mode.map(|mode| mode & 0o7777),
        uid: changes.uid,
        gid: changes.gid,
        size: changes.size,
        atime: changes.atime.map(set_time).transpose()?,
        mtime: changes.mtime.map(set_time).transpose()?,
        ..types::SetAttr::default()
    })
}
