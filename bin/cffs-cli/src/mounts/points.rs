//! The mount points in a tree, wherever its file system is mounted.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use mount_list::Mount;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use super::own_list;

#[cfg(test)]
mod tests;

/// The place within the mounted file system of a path through this mount.
fn place(mount: &Mount<'_>, path: &Path) -> Option<PathBuf> {
    Some(mount.root.join(path.strip_prefix(&mount.point).ok()?))
}

/// A mount point, of any file system, at a name in a directory or below it. A mount point below a bind mount
/// of the same tree is one as well. The path of the directory is absolute and without symbolic links.
pub fn at_or_below(directory: &Path, name: &OsStr) -> anyhow::Result<Option<PathBuf>> {
    let (list, holding) = list(directory)?;
    Ok(find(&list, &directory.join(name), holding, at_or_in))
}

/// Likewise, below a directory: a mount on the directory itself does not count.
pub fn below(directory: &Path) -> anyhow::Result<Option<PathBuf>> {
    let directory = directory.canonicalize()?;
    let (list, holding) = list(&directory)?;
    Ok(find(&list, &directory, holding, |point, top| point != top && at_or_in(point, top)))
}

/// The list of mounts, and the number of the one that a directory is in.
fn list(directory: &Path) -> anyhow::Result<(Vec<u8>, u64)> {
    let list = own_list()?;
    let found = statx(CWD, directory, AtFlags::empty(), StatxFlags::MNT_ID)?;
    Ok((list, found.stx_mnt_id))
}

fn at_or_in(point: &Path, top: &Path) -> bool {
    point.starts_with(top)
}

/// A mount point in a path, according to `is_in`; the path passes through the mount with this number.
fn find(
    list: &[u8],
    path: &Path,
    holding: u64,
    is_in: fn(&Path, &Path) -> bool,
) -> Option<PathBuf> {
    let mounts: Vec<_> = mount_list::parse(list).collect();
    let with_id = |id| mounts.iter().find(|mount| mount.id == id);
    let here = with_id(holding).and_then(|mount| Some((mount.device, place(mount, path)?)));
    let is_in_place = |mount: &Mount<'_>| {
        let (Some((device, inside)), Some(parent)) = (&here, with_id(mount.parent)) else {
            return false;
        };
        parent.device == *device
            && place(parent, &mount.point).is_some_and(|point| is_in(&point, inside))
    };
    let found = mounts.iter().find(|mount| is_in(&mount.point, path) || is_in_place(mount));
    found.map(|mount| mount.point.clone())
}
