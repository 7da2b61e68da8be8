//! What is mounted, as the kernel tells it in `/proc/self/mountinfo`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

#[cfg(test)]
mod tests;

/// A mounted C-FFS volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// The image or device.
    pub source: PathBuf,
    /// The directory that it is mounted on.
    pub directory: PathBuf,
    /// The device number that its files show.
    pub device: (u32, u32),
}

/// The type under which C-FFS volumes are mounted.
pub const FILE_SYSTEM_TYPE: &str = "fuse.cffs";

/// The C-FFS volumes that are mounted, in the order of mounting.
pub fn all() -> anyhow::Result<Vec<Mounted>> {
    let table = std::fs::read("/proc/self/mountinfo").context("reading /proc/self/mountinfo")?;
    Ok(table.split(|byte| *byte == b'\n').filter_map(parse_line).collect())
}

/// The volume that is mounted exactly on `directory`. Does not touch the volume itself, so that it
/// also works where the server has died.
pub fn on(directory: &Path) -> anyhow::Result<Mounted> {
    let wanted = absolute(directory)?;
    let found = all()?.into_iter().rev().find(|mounted| mounted.directory == wanted);
    match found {
        Some(mounted) => Ok(mounted),
        None => bail!("no C-FFS volume is mounted on {}", directory.display()),
    }
}

/// Where the image or device is mounted.
pub fn of_source(source: &Path) -> Option<Mounted> {
    let source = source.canonicalize().ok()?;
    all().ok()?.into_iter().rev().find(|mounted| mounted.source == source)
}

/// The path as the mount table shows it. The last component is not looked at, only its directory:
/// asking for the root of a dead mount fails.
fn absolute(directory: &Path) -> anyhow::Result<PathBuf> {
    if let Ok(path) = directory.canonicalize() {
        return Ok(path);
    }
    let (Some(parent), Some(name)) = (directory.parent(), directory.file_name()) else {
        bail!("{} has no canonical path", directory.display());
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let parent =
        parent.canonicalize().with_context(|| format!("no directory {}", parent.display()))?;
    Ok(parent.join(name))
}

/// A line is `id parent major:minor root directory options fields... - type source options`.
fn parse_line(line: &[u8]) -> Option<Mounted> {
    let mut fields = line.split(|byte| *byte == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let directory = unescape(fields.nth(1)?);
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    if rest.next()? != FILE_SYSTEM_TYPE.as_bytes() {
        return None;
    }
    Some(Mounted {
        source: unescape(rest.next()?).into(),
        directory: directory.into(),
        device: (major.parse().ok()?, minor.parse().ok()?),
    })
}

/// The kernel writes space, tab, line end and backslash as `\` and three octal digits.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|digits| digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        match (first, octal) {
            (b'\\', Some(digits)) => {
                let value = digits.iter().fold(0u32, |sum, d| sum * 8 + u32::from(d - b'0'));
                bytes.push(value as u8);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(bytes)
}
