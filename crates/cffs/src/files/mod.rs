//! Files by path: the convenient side of the library.
//!
//! Offers [`Files`], a view of a [`Volume`] by path with the calls that `std::fs` has, [`File`] and
//! [`Node`], handles that keep an inode and let go of it when they are dropped, [`Walk`], and
//! [`import()`] and [`export()`] of whole trees by several threads. Stands on the facade alone. No
//! system call is made per operation: everything happens within the process.
//!
//! ```no_run
//! # fn main() -> cffs::error::Result<()> {
//! use cffs::files::Files;
//!
//! let files = Files::open_image("tree.cffs".as_ref(), Default::default())?;
//! files.make_dir_all("/notes/2026")?;
//! files.write("/notes/2026/today", b"proud")?;
//! for entry in files.walk("/notes")? {
//!     println!("{}", entry?.path.escape_ascii());
//! }
//! files.close()
//! # }
//! ```
//!
//! Paths are bytes with `/` between names; whether they begin with one makes no difference, since
//! the root is where each begins. Symbolic links are followed within the volume. Nobody's
//! permissions are checked: whoever opens an image may do anything in it. Everything here may be
//! called from many threads at once.

use std::path::Path;
use std::sync::Arc;

use crate::clock::SystemClock;
use crate::device::{self, FileDevice};
use crate::error::{Error, Result};
use crate::format::inode::FileType;
use crate::units::InodeNo;
use crate::vfs::Volume;
use crate::vfs::types::{Attr, NewFile, NewKind, OpenOptions, RenameMode, SetAttr};

mod copy;
mod export;
mod file;
mod host;
mod import;
mod resolve;
mod survey;
mod walk;

#[cfg(test)]
mod tests;

pub use copy::{CopyError, CopyOptions, Observer, Summary};
pub use export::export;
pub use file::{File, Node};
pub use import::import;
pub use survey::{Survey, survey};
pub use walk::{Walk, WalkEntry};

/// An entry of a directory, with all that is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirItem {
    /// The name.
    pub name: Vec<u8>,
    /// Its inode.
    pub attr: Attr,
}

/// The files of a volume, by path. Cheap to clone.
#[derive(Clone)]
pub struct Files {
    volume: Arc<Volume>,
}

impl Files {
    /// The files of a volume that is open.
    pub fn new(volume: Arc<Volume>) -> Files {
        Files { volume }
    }

    /// Opens an image or a block device, alone (or, read-only, beside other readers).
    pub fn open_image(path: &Path, options: OpenOptions) -> Result<Files> {
        let access = match options.read_only {
            true => device::Access::ReadOnly,
            false => device::Access::ReadWrite,
        };
        let device = FileDevice::open(path, access)?;
        let volume = crate::open::open(Arc::new(device), Arc::new(SystemClock), options)?;
        Ok(Files::new(Arc::new(volume)))
    }

    /// The volume itself.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// Makes everything durable and closes the volume; later calls fail.
    pub fn close(&self) -> Result<()> {
        self.volume.close()
    }

    /// The inode at a path; a symbolic link at its end is followed.
    pub fn node(&self, path: impl AsRef<[u8]>) -> Result<Node> {
        resolve::node(&self.volume, path.as_ref(), true)
    }

    /// The inode at a path; a symbolic link at its end is the answer.
    pub fn node_itself(&self, path: impl AsRef<[u8]>) -> Result<Node> {
        resolve::node(&self.volume, path.as_ref(), false)
    }

    /// The attributes of what a path leads to.
    pub fn stat(&self, path: impl AsRef<[u8]>) -> Result<Attr> {
        self.node(path)?.attr()
    }

    /// The attributes of what a path names, also if that is a symbolic link.
    pub fn stat_itself(&self, path: impl AsRef<[u8]>) -> Result<Attr> {
        self.node_itself(path)?.attr()
    }

    /// Opens a file to read and write.
    pub fn open(&self, path: impl AsRef<[u8]>) -> Result<File> {
        File::of(self.node(path)?)
    }

    /// Makes an empty file, or empties the one that is there, and opens it.
    pub fn create(&self, path: impl AsRef<[u8]>) -> Result<File> {
        let (dir, name) = resolve::parent(&self.volume, path.as_ref())?;
        let new = owned_by(&self.volume, dir.ino(), NewKind::Regular, 0o644)?;
        match dir.make(&name, &new) {
            Err(Error::Exists) => {
                let file = self.open(path)?;
                file.set_len(0)?;
                Ok(file)
            }
            made => File::of(made?),
        }
    }

    /// The contents of a file.
    pub fn read(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        self.open(path)?.contents()
    }

    /// Makes a file with these contents, or gives them to the one that is there.
    pub fn write(&self, path: impl AsRef<[u8]>, contents: &[u8]) -> Result<()> {
        self.create(path)?.write_all_at(0, contents)
    }

    /// Makes a directory.
    pub fn make_dir(&self, path: impl AsRef<[u8]>) -> Result<()> {
        self.make(path.as_ref(), NewKind::Directory, 0o755).map(drop)
    }

    /// Makes a directory and those above it, as far as they are missing.
    pub fn make_dir_all(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let path = path.as_ref();
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        for end in ends.chain([path.len()]) {
            match self.make_dir(&path[..end]) {
                Ok(()) | Err(Error::Exists | Error::Invalid(_)) => {}
                Err(error) => return Err(error),
            }
        }
        match self.stat(path)?.file_type {
            FileType::Directory => Ok(()),
            _ => Err(Error::NotDirectory),
        }
    }

    /// Makes a symbolic link.
    pub fn symlink(&self, target: &[u8], path: impl AsRef<[u8]>) -> Result<()> {
        self.make(path.as_ref(), NewKind::Symlink(target), 0o777).map(drop)
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        self.volume.read_link(self.node_itself(path)?.ino())
    }

    /// Gives a file another name.
    pub fn hard_link(&self, path: impl AsRef<[u8]>, new_path: impl AsRef<[u8]>) -> Result<()> {
        let node = self.node_itself(path)?;
        let (dir, name) = resolve::parent(&self.volume, new_path.as_ref())?;
        dir.link(&node, &name).map(drop)
    }

    /// Renames, and replaces what had the new name.
    pub fn rename(&self, path: impl AsRef<[u8]>, new_path: impl AsRef<[u8]>) -> Result<()> {
        let (dir, name) = resolve::parent(&self.volume, path.as_ref())?;
        let (new_dir, new_name) = resolve::parent(&self.volume, new_path.as_ref())?;
        self.volume.rename(dir.ino(), &name, new_dir.ino(), &new_name, RenameMode::Replace)
    }

    /// Removes a name that is not a directory's.
    pub fn remove_file(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let (dir, name) = resolve::parent(&self.volume, path.as_ref())?;
        self.volume.unlink(dir.ino(), &name)
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let (dir, name) = resolve::parent(&self.volume, path.as_ref())?;
        self.volume.remove_dir(dir.ino(), &name)
    }

    /// The entries of a directory, in the order in which they were made.
    pub fn read_dir(&self, path: impl AsRef<[u8]>) -> Result<Vec<DirItem>> {
        self.node(path)?.entries()
    }

    /// Everything at and below a path, each directory before what is in it. Symbolic links are
    /// told, not followed.
    pub fn walk(&self, path: impl AsRef<[u8]>) -> Result<Walk> {
        Walk::new(&self.volume, path.as_ref())
    }

    /// Changes attributes of what a path leads to.
    pub fn set_attr(&self, path: impl AsRef<[u8]>, changes: &SetAttr) -> Result<Attr> {
        self.volume.set_attr(self.node(path)?.ino(), changes)
    }

    fn make(&self, path: &[u8], kind: NewKind<'_>, permissions: u32) -> Result<Node> {
        let (dir, name) = resolve::parent(&self.volume, path)?;
        dir.make(&name, &owned_by(&self.volume, dir.ino(), kind, permissions)?)
    }
}

/// A new file that belongs to whom its directory belongs to: the library has no other user.
fn owned_by<'a>(
    volume: &Volume,
    dir: InodeNo,
    kind: NewKind<'a>,
    permissions: u32,
) -> Result<NewFile<'a>> {
    let Attr { uid, gid, .. } = volume.attr(dir)?;
    Ok(NewFile { kind, permissions, umask: 0, uid, gid })
}
