//! The mapping of the core's errors to errno, here and only here.

use crate::error::Error;

/// The Linux errno of an error.
pub fn errno(error: &Error) -> i32 {
    use rustix::io::Errno;
    let errno = match error {
        Error::Io(io) => return io.raw_os_error().unwrap_or(Errno::IO.raw_os_error()),
        Error::Corruption(_) => Errno::UCLEAN,
        Error::Unsupported(_) => Errno::OPNOTSUPP,
        Error::Latched(_) | Error::Damaged(_) | Error::ReadOnly => Errno::ROFS,
        Error::InUse(_) => Errno::BUSY,
        Error::EpochNeeded => Errno::AGAIN,
        Error::NoSpace => Errno::NOSPC,
        Error::NotFound => Errno::NOENT,
        Error::Stale => Errno::STALE,
        Error::Exists => Errno::EXIST,
        Error::NotDirectory => Errno::NOTDIR,
        Error::IsDirectory => Errno::ISDIR,
        Error::NotEmpty => Errno::NOTEMPTY,
        Error::NameTooLong => Errno::NAMETOOLONG,
        Error::TooLarge => Errno::FBIG,
        Error::TooManyLinks => Errno::MLINK,
        Error::Invalid(_) => Errno::INVAL,
        Error::NotPermitted => Errno::PERM,
        Error::NoAttribute => Errno::NODATA,
        Error::Range => Errno::RANGE,
        Error::NotSupported => Errno::OPNOTSUPP,
        Error::NoData => Errno::NXIO,
    };
    errno.raw_os_error()
}
