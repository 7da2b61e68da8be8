//! The directories and files below a path, and their layout.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::extents::{self, Extent};

/// A directory with its own entries, without those of its subdirectories.
#[derive(Debug)]
pub struct Directory {
    pub path: PathBuf,
    pub inode: u64,
    /// Its size in bytes, as the file system reports it.
    pub bytes: u64,
    /// Its regular files, in the order of their names.
    pub files: Vec<FileEntry>,
    pub names_bytes: u64,
    /// The number of its entries, of any kind.
    pub entries: u64,
    /// The extents of its own blocks, if the file system reports them.
    pub extents: Vec<Extent>,
}

/// A regular file.
#[derive(Clone, Debug)]
pub struct FileEntry {
    pub path: PathBuf,
    pub inode: u64,
    pub bytes: u64,
    /// The extents of its contents, in file order.
    pub extents: Vec<Extent>,
}

impl FileEntry {
    /// The device offset of its first block; nothing for an empty file and one stored in its inode.
    pub fn begin(&self) -> Option<u64> {
        let plain = |extent: &&Extent| extent.kind == extents::Kind::Plain;
        self.extents.iter().find(plain).map(|extent| extent.physical)
    }

    /// Reads the properties of a regular file, not following links.
    pub fn look(path: PathBuf, sync: bool) -> io::Result<Option<FileEntry>> {
        // Opening must neither acquire a controlling terminal nor block on a pipe that replaced the file.
        let file = open_for_reading(&path)?;
        let status = file.metadata()?;
        if !status.is_file() {
            return Ok(None);
        }
        let extents = if status.len() == 0 { Vec::new() } else { extents::of(&file, sync)? };
        Ok(Some(FileEntry { path, inode: status.ino(), bytes: status.len(), extents }))
    }
}

/// Opens a file without following links and without blocking.
pub fn open_for_reading(path: &Path) -> io::Result<File> {
    const NO_WAIT: i32 =
        (rustix::fs::OFlags::NONBLOCK.bits() | rustix::fs::OFlags::NOFOLLOW.bits()) as i32;
    OpenOptions::new().read(true).custom_flags(NO_WAIT).open(path)
}

/// A path that a walk could not read, and the reason. The walk continues.
pub type Unseen = (PathBuf, io::Error);

/// The directories from `root` down, only on the volume of `root`, parents first and in the order of names.
/// With `sync`, contents without blocks are written back first.
pub fn walk(
    root: &Path,
    sync: bool,
    mut seen: impl FnMut(u64),
) -> Result<(Vec<Directory>, Vec<Unseen>)> {
    let device = fs::metadata(root).with_context(|| root.display().to_string())?.dev();
    let (mut found, mut unseen) = (Vec::new(), Vec::new());
    let mut pending = vec![root.to_owned()];
    while let Some(path) = pending.pop() {
        match directory(&path, device, sync, &mut unseen) {
            Ok(None) => {}
            Ok(Some((directory, mut below))) => {
                seen(directory.entries);
                found.push(directory);
                below.reverse();
                pending.append(&mut below);
            }
            Err(error) if path == root => return Err(error).context(root.display().to_string()),
            Err(error) => unseen.push((path, error)),
        }
    }
    Ok((found, unseen))
}

/// One directory and the paths of its subdirectories; nothing if it is on another volume.
fn directory(
    path: &Path,
    device: u64,
    sync: bool,
    unseen: &mut Vec<Unseen>,
) -> io::Result<Option<(Directory, Vec<PathBuf>)>> {
    let status = fs::metadata(path)?;
    if status.dev() != device {
        return Ok(None);
    }
    let mut entries = fs::read_dir(path)?
        .map(|entry| entry.and_then(|entry| Ok((entry.file_name(), entry.file_type()?))))
        .collect::<io::Result<Vec<_>>>()?;
    entries.sort_by(|(a, _), (b, _)| OsStr::as_bytes(a).cmp(OsStr::as_bytes(b)));
    let names_bytes = entries.iter().map(|(name, _)| name.len() as u64).sum();
    let mut below = Vec::new();
    let mut files = Vec::new();
    for (name, kind) in &entries {
        let at = path.join(name);
        if kind.is_dir() {
            below.push(at);
        } else if kind.is_file() {
            match FileEntry::look(at.clone(), sync) {
                Ok(file) => files.extend(file),
                // Removed meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => unseen.push((at, error)),
            }
        }
    }
    // A file system may refuse this for directories; XFS and ext4 do not.
    let extents = File::open(path).and_then(|file| extents::of(&file, false)).unwrap_or_default();
    let directory = Directory {
        path: path.to_owned(),
        inode: status.ino(),
        bytes: status.len(),
        files,
        names_bytes,
        entries: entries.len() as u64,
        extents,
    };
    Ok(Some((directory, below)))
}
