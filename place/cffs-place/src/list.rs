//! Lists of files, as in traces and pipes: one path per line, or each ended by a zero byte.

use std::ffi::OsStr;
use std::io::{self, BufRead, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The terminator of each path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// A line end, for people and most programs. A name with a line end cannot be listed.
    Line,
    /// A zero byte, as `find -print0` writes.
    Zero,
}

impl Ends {
    fn byte(self) -> u8 {
        match self {
            Ends::Line => b'\n',
            Ends::Zero => 0,
        }
    }
}

/// The paths of a list, in its order; empty ones are left out.
pub fn read(from: impl BufRead, ends: Ends) -> io::Result<Vec<PathBuf>> {
    from.split(ends.byte())
        .filter(|path| !matches!(path, Ok(bytes) if bytes.is_empty()))
        .map(|path| path.map(|bytes| PathBuf::from(OsStr::from_bytes(&bytes))))
        .collect()
}

/// Writes one path; false if this kind of list cannot contain it.
pub fn write(to: &mut impl Write, path: &Path, ends: Ends) -> io::Result<bool> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.contains(&ends.byte()) {
        return Ok(false);
    }
    to.write_all(bytes)?;
    to.write_all(&[ends.byte()])?;
    Ok(true)
}
