//! The mapping of the core's errors to errno, here and only here.

use std::io;

use crate::error::Error;

/// The Linux errno of an error.
pub fn errno(error: &Error) -> i32 {
    use rustix::io::Errno;
    let errno = match error {
        Error::Io(error) => return errno_of_io(error),
        Error::Answered { errno, .. } => return *errno,
        Error::Corruption(_) => Errno::UCLEAN,
        Error::Unsupported(_) => Errno::OPNOTSUPP,
        Error::Latched(_) | Error::Damaged(_) | Error::ReadOnly => Errno::ROFS,
        Error::InUse(_) => Errno::BUSY,
        Error::EpochNeeded | Error::Unmet => Errno::AGAIN,
        Error::NoSpace => Errno::NOSPC,
        Error::QuotaExceeded(_) => Errno::DQUOT,
        Error::OtherQuota => Errno::XDEV,
        Error::NotFound => Errno::NOENT,
        Error::Stale => Errno::STALE,
        Error::Exists => Errno::EXIST,
        Error::NotDirectory => Errno::NOTDIR,
        Error::IsDirectory => Errno::ISDIR,
        Error::NotEmpty => Errno::NOTEMPTY,
        Error::NameTooLong => Errno::NAMETOOLONG,
        Error::TooLarge => Errno::FBIG,
        Error::TooManyLinks => Errno::MLINK,
        Error::Loop => Errno::LOOP,
        Error::Invalid(_) => Errno::INVAL,
        Error::NotPermitted => Errno::PERM,
        Error::AccessDenied => Errno::ACCESS,
        Error::NoAttribute => Errno::NODATA,
        Error::Range => Errno::RANGE,
        Error::NotSupported | Error::Mounted(_) => Errno::OPNOTSUPP,
        Error::NoData => Errno::NXIO,
        Error::Detached(_) => Errno::NOTCONN,
    };
    errno.raw_os_error()
}

/// An error of the device, with the system's errno. An error with a text of its own has only a kind.
fn errno_of_io(error: &io::Error) -> i32 {
    use rustix::io::Errno;
    error.raw_os_error().unwrap_or_else(|| {
        let errno = match error.kind() {
            io::ErrorKind::NotFound => Errno::NOENT,
            io::ErrorKind::PermissionDenied => Errno::ACCESS,
            io::ErrorKind::ResourceBusy => Errno::BUSY,
            io::ErrorKind::ReadOnlyFilesystem => Errno::ROFS,
            io::ErrorKind::StorageFull => Errno::NOSPC,
            io::ErrorKind::InvalidInput => Errno::INVAL,
            _ => Errno::IO,
        };
        errno.raw_os_error()
    })
}
