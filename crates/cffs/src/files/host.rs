//! Files outside of the volume: what `std::fs` does not reach.

use std::ffi::CString;
use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, SeekFrom, Timespec, Timestamps, XattrFlags, lgetxattr, llistxattr, lsetxattr,
    utimensat,
};
use rustix::io::Errno;

use crate::clock::Timestamp;
use crate::format::xattr::XATTR_VALUE_BYTES_MAX;

/// The longest list of names that the kernel hands out.
const XATTR_LIST_BYTES_MAX: usize = 64 << 10;

/// The extended attributes of a file, by name. Where the file system has none, none.
pub fn xattrs(path: &Path) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut list = vec![0u8; XATTR_LIST_BYTES_MAX];
    let len = match llistxattr(path, &mut list) {
        Ok(len) => len,
        Err(Errno::OPNOTSUPP) => 0,
        Err(errno) => return Err(errno.into()),
    };
    let mut found = Vec::new();
    for name in list[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0u8; XATTR_VALUE_BYTES_MAX + 1];
        match lgetxattr(path, &CString::new(name)?, &mut value) {
            Ok(len) => {
                value.truncate(len);
                found.push((name.to_vec(), value));
            }
            // It went meanwhile, or is not ours to read.
            Err(Errno::NODATA | Errno::PERM | Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(found)
}

/// Sets an extended attribute.
pub fn set_xattr(path: &Path, name: &[u8], value: &[u8]) -> io::Result<()> {
    lsetxattr(path, &CString::new(name)?, value, XattrFlags::empty())?;
    Ok(())
}

/// Sets the times of last access and last change of the contents.
pub fn set_times(path: &Path, atime: Timestamp, mtime: Timestamp) -> io::Result<()> {
    let time =
        |time: Timestamp| Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() };
    let times = Timestamps { last_access: time(atime), last_modification: time(mtime) };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(())
}

/// The ranges of a file that have data. Where the file system cannot tell, all of it.
pub fn data_ranges(file: &File, metadata: &Metadata) -> io::Result<Vec<Range<u64>>> {
    let size = metadata.len();
    let everything = || Vec::from_iter([Range { start: 0, end: size }]);
    if metadata.blocks() * 512 >= size {
        return Ok(everything());
    }
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL | Errno::OPNOTSUPP) if at == 0 => return Ok(everything()),
            Err(errno) => return Err(errno.into()),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start))?.min(size);
        ranges.push(start..end);
        at = end;
    }
    Ok(ranges)
}

/// The name as bytes.
pub fn name_bytes(path: &Path) -> &[u8] {
    path.file_name().map_or(b"", |name| name.as_bytes())
}
