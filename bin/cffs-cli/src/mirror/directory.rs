//! A directory of the host as a source.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cffs::clock::Timestamp;
use cffs::files::{self, CopyCause, CopyOptions, Files, Node};
use cffs::format::inode::FileType;
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, Stat, openat, readlinkat, statat};
use rustix::io::Errno;

use super::{Item, Source, Xattrs};

/// The longest list of names, and the longest value, that the kernel returns.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// The tree below a directory, which must not be changed meanwhile. Only one directory is open at a time,
/// whatever the depth.
pub struct Directory {
    path: PathBuf,
    /// The current directory.
    at: File,
    /// Its ancestors, from the top down.
    above: Vec<Identity>,
}

/// Identifies a file of the host.
type Identity = (u64, u64);

impl Directory {
    /// The tree below this directory.
    pub fn open(path: PathBuf) -> io::Result<Directory> {
        let at = openat(CWD, &path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Directory { path, at: at.into(), above: Vec::new() })
    }

    /// The top directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn below(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.at, name, flags, Mode::empty())?.into())
    }

    /// A path of a file in the current directory, whose depth has no limit.
    fn path_of(&self, name: &[u8]) -> PathBuf {
        let at = PathBuf::from(format!("/proc/self/fd/{}", self.at.as_raw_fd()));
        at.join(OsStr::from_bytes(name))
    }
}

fn identity(dir: &File) -> io::Result<Identity> {
    let metadata = dir.metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}

impl Source for Directory {
    fn root(&mut self) -> Result<Item, CopyCause> {
        Ok(item(Vec::new(), &rustix::fs::fstat(&self.at).map_err(io::Error::from)?))
    }

    fn list(&self) -> Result<Vec<Item>, CopyCause> {
        let mut items = Vec::new();
        for entry in Dir::read_from(&self.at)? {
            let name = entry?.file_name().to_owned();
            if name.as_bytes() != b"." && name.as_bytes() != b".." {
                let found = statat(&self.at, &name, AtFlags::SYMLINK_NOFOLLOW)?;
                items.push(item(name.into_bytes(), &found));
            }
        }
        items.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(items)
    }

    fn enter(&mut self, name: &[u8]) -> Result<(), CopyCause> {
        let below = self.below(OsStr::from_bytes(name))?;
        self.above.push(identity(&self.at)?);
        self.at = below;
        Ok(())
    }

    fn leave(&mut self) -> Result<(), CopyCause> {
        let above = self.below(OsStr::new(".."))?;
        if self.above.pop() != Some(identity(&above)?) {
            return Err(
                io::Error::other("a directory was moved while it was being published").into()
            );
        }
        self.at = above;
        Ok(())
    }

    fn link_target(&self, name: &[u8]) -> Result<Vec<u8>, CopyCause> {
        Ok(readlinkat(&self.at, OsStr::from_bytes(name), Vec::new())?.into_bytes())
    }

    fn xattrs(&self) -> Result<Xattrs, CopyCause> {
        let mut names = vec![0; XATTR_BYTES_MAX];
        let len = match rustix::fs::flistxattr(&self.at, &mut names) {
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            len => len?,
        };
        let mut xattrs = Vec::new();
        for name in names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let mut value = vec![0; XATTR_BYTES_MAX];
            match rustix::fs::fgetxattr(&self.at, name, &mut value) {
                Ok(len) => value.truncate(len),
                // Removed meanwhile.
                Err(Errno::NODATA) => continue,
                Err(error) => return Err(error.into()),
            }
            xattrs.push((name.to_vec(), value));
        }
        Ok(xattrs)
    }

    fn has_acl(&self, name: &[u8]) -> Result<bool, CopyCause> {
        let path = self.path_of(name);
        match rustix::fs::lgetxattr(&path, "system.posix_acl_access", &mut [0_u8; 0][..]) {
            Ok(_) => Ok(true),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn copy(&self, item: &Item, _: &Files, to: &Node) -> Result<u64, CopyCause> {
        let (path, options) = (self.path_of(&item.name), CopyOptions::default());
        let copied = files::import_file(&path, to, &item.name, &options, &());
        copied.map(|summary| summary.bytes).map_err(|error| error.cause)
    }
}

fn item(name: Vec<u8>, found: &Stat) -> Item {
    let device = found.st_rdev;
    Item {
        name,
        file_type: match rustix::fs::FileType::from_raw_mode(found.st_mode) {
            rustix::fs::FileType::Directory => FileType::Directory,
            rustix::fs::FileType::Symlink => FileType::Symlink,
            rustix::fs::FileType::Fifo => FileType::Fifo,
            rustix::fs::FileType::Socket => FileType::Socket,
            rustix::fs::FileType::CharacterDevice => FileType::CharDevice,
            rustix::fs::FileType::BlockDevice => FileType::BlockDevice,
            _ => FileType::Regular,
        },
        size: found.st_size as u64,
        mtime: Timestamp { seconds: found.st_mtime, nanoseconds: found.st_mtime_nsec as u32 },
        permissions: found.st_mode & 0o7777,
        uid: found.st_uid,
        gid: found.st_gid,
        nlink: found.st_nlink,
        identity: (found.st_dev, found.st_ino),
        device: u64::from(rustix::fs::major(device)) << 32 | u64::from(rustix::fs::minor(device)),
    }
}
