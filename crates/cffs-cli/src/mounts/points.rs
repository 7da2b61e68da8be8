//! The mount points in a tree, wherever its file system is mounted.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use super::unescape;

#[cfg(test)]
mod tests;

/// A mount of any file system.
struct Mount {
    id: u64,
    parent: u64,
    /// The device number, as text.
    device: Vec<u8>,
    /// The directory of the file system that is mounted.
    root: PathBuf,
    point: PathBuf,
}

impl Mount {
    fn parse(line: &[u8]) -> Option<Mount> {
        let mut fields = line.split(|byte| *byte == b' ');
        let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse().ok();
        let (id, parent) = (number()?, number()?);
        let device = fields.next()?.to_vec();
        let [root, point] = [fields.next()?, fields.next()?].map(|field| unescape(field).into());
        Some(Mount { id, parent, device, root, point })
    }

    /// The place within the file system of a path through this mount.
    fn place(&self, path: &Path) -> Option<PathBuf> {
        Some(self.root.join(path.strip_prefix(&self.point).ok()?))
    }
}

/// A mount point, of any file system, at a name in a directory or below it. A mount point below a bind mount
/// of the same tree is one as well. The path of the directory is absolute and without symbolic links.
pub fn at_or_below(directory: &Path, name: &OsStr) -> anyhow::Result<Option<PathBuf>> {
    let (table, holding) = table(directory)?;
    Ok(find(&table, &directory.join(name), holding, at_or_in))
}

/// Likewise, below a directory: a mount on the directory itself does not count.
pub fn below(directory: &Path) -> anyhow::Result<Option<PathBuf>> {
    let directory = directory.canonicalize()?;
    let (table, holding) = table(&directory)?;
    Ok(find(&table, &directory, holding, |point, top| point != top && at_or_in(point, top)))
}

/// The list of mounts, and the number of the one that a directory is in.
fn table(directory: &Path) -> anyhow::Result<(Vec<u8>, u64)> {
    let table = fs::read("/proc/self/mountinfo").context("reading /proc/self/mountinfo")?;
    let found = statx(CWD, directory, AtFlags::empty(), StatxFlags::MNT_ID)?;
    Ok((table, found.stx_mnt_id))
}

fn at_or_in(point: &Path, top: &Path) -> bool {
    point.starts_with(top)
}

/// A mount point of which `is_in` says that it is in a path, which leads through the mount with this number.
fn find(
    table: &[u8],
    path: &Path,
    holding: u64,
    is_in: fn(&Path, &Path) -> bool,
) -> Option<PathBuf> {
    let mounts: Vec<_> = table.split(|byte| *byte == b'\n').filter_map(Mount::parse).collect();
    let with_id = |id| mounts.iter().find(|mount| mount.id == id);
    let place = with_id(holding).and_then(|mount| Some((&mount.device, mount.place(path)?)));
    let is_in_place = |mount: &Mount| {
        let (Some((device, place)), Some(parent)) = (&place, with_id(mount.parent)) else {
            return false;
        };
        parent.device == **device
            && parent.place(&mount.point).is_some_and(|point| is_in(&point, place))
    };
    let found = mounts.iter().find(|mount| is_in(&mount.point, path) || is_in_place(mount));
    found.map(|mount| mount.point.clone())
}
