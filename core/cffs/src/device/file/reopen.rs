//! Other descriptors of an open file.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::OFlags;

use super::Access;

/// Another descriptor of an open file. It has no lock of its own, and is closed before the one that has.
pub(super) fn again(file: &File, access: Access, flags: OFlags) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let writing = access == Access::ReadWrite;
    File::options().read(true).write(writing).custom_flags(flags.bits() as i32).open(path)
}
