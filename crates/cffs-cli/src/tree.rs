//! The files of a volume, mounted or not, for commands that read them by path.

use std::collections::VecDeque;
use std::fs::{self, Metadata};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use cffs::clock::Timestamp;
use cffs::files::{DirItem, Files, WalkEntry};
use cffs::format::inode::FileType;
use cffs::units::InodeNo;
use cffs::vfs::types::Attr;
use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2, readlinkat};

use crate::output::printable;
use crate::{image, names};

const COPY_BYTES: usize = 1 << 20;

/// The files of a volume.
pub enum Tree {
    /// The files of a volume that is not in use.
    Image(Files),
    /// The files below a directory of a mounted volume, which is the root of absolute paths and
    /// links.
    Mount {
        /// The path of that directory, for messages.
        directory: PathBuf,
        root: OwnedFd,
    },
}

impl Tree {
    /// The files of the volume with this name.
    pub fn open(name: &Path) -> anyhow::Result<Tree> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut refused = None;
        for path in names::all_mounted(name)? {
            match open(&path, flags, Mode::empty()) {
                Ok(root) => return Ok(Tree::Mount { directory: path, root }),
                // Each mount of several readers has its own user.
                Err(error) => refused = refused.or(Some((path, error))),
            }
        }
        match refused {
            Some((path, error)) => Err(error).with_context(|| path.display().to_string()),
            None => Ok(Tree::Image(image::open_files(name, image::read_only())?)),
        }
    }

    /// A path in messages. The root of a mount is a directory with another path for the caller.
    pub fn shown(&self, path: &[u8]) -> String {
        match self {
            Tree::Mount { directory, .. } if path.iter().all(|byte| *byte == b'/') => {
                printable(directory.as_os_str().as_bytes())
            }
            _ => printable(path),
        }
    }

    /// The attributes of the file at a path; of the link itself if that is a symbolic link.
    pub fn stat_itself(&self, path: &[u8]) -> anyhow::Result<Attr> {
        match self {
            Tree::Image(files) => Ok(files.stat_itself(path)?),
            Tree::Mount { root, .. } => {
                let file = fs::File::from(within(root, path, OFlags::PATH | OFlags::NOFOLLOW)?);
                Ok(attr(&file.metadata()?))
            }
        }
    }

    /// The entries of a directory, in the order of their creation.
    pub fn read_dir(&self, path: &[u8]) -> anyhow::Result<Vec<DirItem>> {
        let root = match self {
            Tree::Image(files) => return Ok(files.read_dir(path)?),
            Tree::Mount { root, .. } => root,
        };
        let directory = within(root, path, OFlags::DIRECTORY)?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&directory)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(name);
            }
        }
        let item = |name: Vec<u8>| {
            let itself = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&directory, &*name, itself, Mode::empty())?;
            Ok(DirItem { attr: attr(&fs::File::from(file).metadata()?), name })
        };
        // Files removed meanwhile are skipped.
        let items = names.into_iter().map(item).filter(|item: &io::Result<DirItem>| {
            !item.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        });
        Ok(items.collect::<io::Result<_>>()?)
    }

    /// Visits everything at and below a directory, each directory before its entries. A directory that cannot
    /// be read is an error, which is visited as well, and the walk continues after it.
    pub fn walk(
        &self,
        path: &[u8],
        mut visit: impl FnMut(anyhow::Result<(&[u8], &Attr)>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        if let Tree::Image(files) = self {
            let mut last = path.to_vec();
            for entry in files.walk(path)? {
                match entry {
                    Ok(WalkEntry { path, attr, .. }) => {
                        visit(Ok((&path, &attr)))?;
                        last = path;
                    }
                    Err(error) => visit(Err(error).with_context(|| printable(&last)))?,
                }
            }
            return Ok(());
        }
        let mut pending = VecDeque::from([(path.to_vec(), self.stat_itself(path)?)]);
        while let Some((path, attr)) = pending.pop_front() {
            visit(Ok((&path, &attr)))?;
            if attr.file_type != FileType::Directory {
                continue;
            }
            match self.read_dir(&path).with_context(|| self.shown(&path)) {
                Ok(items) => items.into_iter().rev().for_each(|DirItem { name, attr }| {
                    pending.push_front((join(&path, &name), attr));
                }),
                Err(error) => visit(Err(error))?,
            }
        }
        Ok(())
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, path: &[u8]) -> anyhow::Result<Vec<u8>> {
        match self {
            Tree::Image(files) => Ok(files.read_link(path)?),
            Tree::Mount { root, .. } => {
                let link = within(root, path, OFlags::PATH | OFlags::NOFOLLOW)?;
                Ok(readlinkat(&link, "", Vec::new())?.into_bytes())
            }
        }
    }

    /// Writes the contents of a file, with at most one piece of it in memory.
    pub fn copy(&self, path: &[u8], out: &mut impl Write) -> anyhow::Result<()> {
        match self {
            Tree::Image(files) => {
                let file = files.open(path)?;
                copy_all(|at, buf| Ok(file.read_at(at, buf)?), out)
            }
            Tree::Mount { root, .. } => {
                let mut file = fs::File::from(within(root, path, OFlags::RDONLY)?);
                copy_all(|_, buf| Ok(file.read(buf)?), out)
            }
        }
    }
}

/// Copies the whole input, from offset 0 on.
fn copy_all(
    mut read: impl FnMut(u64, &mut [u8]) -> anyhow::Result<usize>,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let mut buf = vec![0; COPY_BYTES];
    let mut at = 0;
    loop {
        match read(at, &mut buf)? {
            0 => return Ok(()),
            count => {
                out.write_all(&buf[..count])?;
                at += count as u64;
            }
        }
    }
}

/// Opens the file at a path, as if the directory were the root of the file system.
fn within(root: &OwnedFd, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
    let path = if path.is_empty() { &b"/"[..] } else { path };
    let flags = flags | OFlags::CLOEXEC;
    Ok(openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT)?)
}

/// A path with a name appended.
pub fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let separator: &[u8] = if dir.is_empty() || dir.ends_with(b"/") { b"" } else { b"/" };
    [dir, separator, name].concat()
}

/// Converts the kernel's attributes of a file to the library's.
fn attr(data: &Metadata) -> Attr {
    let time = |seconds, nanoseconds: i64| Timestamp { seconds, nanoseconds: nanoseconds as u32 };
    let device = data.rdev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    Attr {
        ino: InodeNo(data.ino()),
        generation: 0,
        file_type: file_type(data.mode()),
        permissions: data.mode() & 0o7777,
        nlink: data.nlink() as u32,
        uid: data.uid(),
        gid: data.gid(),
        device: u64::from(major) << 32 | u64::from(minor),
        size: data.size(),
        allocated_bytes: data.blocks() * 512,
        atime: time(data.atime(), data.atime_nsec()),
        mtime: time(data.mtime(), data.mtime_nsec()),
        ctime: time(data.ctime(), data.ctime_nsec()),
        btime: Timestamp::default(),
        change: 0,
        flags: Default::default(),
    }
}

fn file_type(mode: u32) -> FileType {
    let types = [
        FileType::Directory,
        FileType::Symlink,
        FileType::Fifo,
        FileType::Socket,
        FileType::CharDevice,
        FileType::BlockDevice,
    ];
    let is_it = |file_type: &FileType| file_type.mode_bits() == mode & 0o170_000;
    types.into_iter().find(is_it).unwrap_or(FileType::Regular)
}
