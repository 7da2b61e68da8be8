//! The list of mounts that Linux shows in `/proc/PID/mountinfo` (proc_pid_mountinfo(5)).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

#[cfg(test)]
mod tests;

/// The list of the mount namespace of this process.
pub const OWN: &str = "/proc/self/mountinfo";

/// A mount of any file system. Options are separated by commas, and are shown as the list has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount<'a> {
    /// The number of the mount.
    pub id: u64,
    /// The number of the mount that contains the mount point. The root mount may name itself.
    pub parent: u64,
    /// The major and the minor number of the file system's device.
    pub device: (u32, u32),
    /// The directory of the file system that is mounted.
    pub root: PathBuf,
    /// The mount point.
    pub point: PathBuf,
    /// The options of this mount.
    pub options: &'a [u8],
    /// The type of the file system.
    pub kind: &'a [u8],
    /// The device, or what else the file system is made from.
    pub source: PathBuf,
    /// The options that all mounts of the file system share.
    pub shared_options: &'a [u8],
}

/// The mounts of a list, in its order. Lines that are not understood are skipped.
pub fn parse(list: &[u8]) -> impl DoubleEndedIterator<Item = Mount<'_>> {
    list.split(|byte| *byte == b'\n').filter_map(Mount::parse)
}

/// The options of a list that is separated by commas.
pub fn options(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|byte| *byte == b',')
}

impl<'a> Mount<'a> {
    /// Parses a line: `ID PARENT MAJOR:MINOR ROOT POINT OPTIONS FIELD... - TYPE SOURCE SHARED-OPTIONS`.
    fn parse(line: &'a [u8]) -> Option<Mount<'a>> {
        let mut fields = line.split(|byte| *byte == b' ');
        let (id, parent) = (number(fields.next()?)?, number(fields.next()?)?);
        let (major, minor) = text(fields.next()?)?.split_once(':')?;
        let [root, point] = [fields.next()?, fields.next()?].map(unescaped);
        let options = fields.next()?;
        let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
        Some(Mount {
            id,
            parent,
            device: (major.parse().ok()?, minor.parse().ok()?),
            root,
            point,
            options,
            kind: fields.next()?,
            source: unescaped(fields.next()?),
            shared_options: fields.next()?,
        })
    }

    /// Whether the file system is read-only through all its mounts.
    pub fn is_read_only(&self) -> bool {
        options(self.shared_options).next() == Some(b"ro")
    }
}

fn text(field: &[u8]) -> Option<&str> {
    std::str::from_utf8(field).ok()
}

fn number(field: &[u8]) -> Option<u64> {
    text(field)?.parse().ok()
}

/// Replaces `\` and three octal digits, by which the kernel shows spaces, tabs, line ends and backslashes.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let code = tail.get(..3).filter(|_| *first == b'\\').and_then(octal);
        bytes.push(code.unwrap_or(*first));
        rest = &tail[if code.is_some() { 3 } else { 0 }..];
    }
    PathBuf::from(OsString::from_vec(bytes))
}

fn octal(digits: &[u8]) -> Option<u8> {
    u8::from_str_radix(text(digits).filter(|text| !text.starts_with('+'))?, 8).ok()
}
