//! The files of a volume, mounted or not. Those of a mounted volume are read and written by its server.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use cffs::device::file::Access;
use cffs::files::{Files, Node};
use cffs::vfs::types::OpenOptions;
use cffs_object::Location;
use cffs_serve::shared::READ_AHEAD_THREADS;

use crate::names::OnMount;
use crate::{image, mounts, names};

/// Opens the files of the volume with this name for reading. If it is mounted, this attaches to its server; a
/// directory of the mount is then the root.
pub fn open_to_read(name: &Path) -> anyhow::Result<Files> {
    let mut refused = None;
    for directory in names::all_mounted(name)? {
        match attach_to_read(&directory, name.is_dir()) {
            Ok(files) => return Ok(files),
            // Each mount of several readers has its own user.
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    refused.map_or_else(|| image::open_files(name, image::read_only()), Err)
}

/// The same for this directory of a mount. If the volume `is_named` by a directory, something mounted below
/// it is an error; otherwise all files are read, also those that a mount hides.
pub fn attach_to_read(directory: &Path, is_named: bool) -> anyhow::Result<Files> {
    if is_named {
        check_below(directory, "read")?;
    }
    Files::attach(directory, Access::ReadOnly).with_context(|| directory.display().to_string())
}

/// Does `work`, which reads a tree, while threads read ahead. The server of a mounted volume does that
/// itself.
pub fn reading_ahead<T>(files: &Files, work: impl FnOnce() -> T) -> T {
    match files.opened() {
        Ok(volume) => volume.with_prefetch(READ_AHEAD_THREADS, work),
        Err(_) => work(),
    }
}

/// Fails if something is mounted below this directory of a mounted volume.
fn check_below(directory: &Path, access: &str) -> anyhow::Result<()> {
    match mounts::below(directory).with_context(|| directory.display().to_string())? {
        None => Ok(()),
        Some(point) => bail!(
            "something is mounted on {}, and the volume's server would {access} below it; name a directory \
             without mounts",
            point.display()
        ),
    }
}

/// The destination of a command that writes a tree.
pub struct Target {
    /// The root of the volume, or a directory of one that is mounted.
    pub root: Node,
    opened: Opened,
}

enum Opened {
    /// This command has opened the volume.
    Files(Files),
    /// The volume is mounted, and the root is this directory of the mount.
    Mounted(PathBuf),
}

impl Target {
    /// Opens the files of the volume with this name; if it is mounted, attaches to its server.
    pub fn open(name: &Path) -> anyhow::Result<Target> {
        let mounted = match names::mounted(name) {
            // The server does not answer. If another program has taken the volume over, the store knows.
            Err(_) if Location::url_of(name).is_some() => None,
            mounted => mounted?,
        };
        if let Some(OnMount { path: directory, .. }) = mounted {
            check_below(&directory, "write")?;
            let root = Node::attach(&directory).with_context(|| directory.display().to_string())?;
            return Ok(Target { root, opened: Opened::Mounted(directory) });
        }
        let files = image::open_files(name, OpenOptions::default())?;
        Ok(Target { root: files.root(), opened: Opened::Files(files) })
    }

    /// The directory that is the root, if the volume is mounted. The caller then has no more rights than
    /// through the kernel.
    pub fn directory(&self) -> Option<&Path> {
        match &self.opened {
            Opened::Files(_) => None,
            Opened::Mounted(directory) => Some(directory),
        }
    }

    /// Closes the volume, if this command has opened it. A server writes the remaining changes by itself.
    pub fn close(&self) -> Result<(), cffs::error::Error> {
        match &self.opened {
            Opened::Files(files) => files.close(),
            Opened::Mounted(_) => Ok(()),
        }
    }
}

/// A path with a name appended.
pub fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let separator: &[u8] = if dir.is_empty() || dir.ends_with(b"/") { b"" } else { b"/" };
    [dir, separator, name].concat()
}
