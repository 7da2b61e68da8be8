//! A directory of the host as a source.

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

use cffs::clock::Timestamp;
use cffs::files::{self, CopyCause, CopyOptions, Files};
use cffs::format::inode::FileType;

use super::{Item, Source, Xattrs};

/// The longest list of names, and the longest value, that the kernel hands out.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// The tree below a directory, which is not being changed.
pub struct Directory(pub PathBuf);

impl Directory {
    fn path(&self, path: &[u8]) -> PathBuf {
        let relative = path.strip_prefix(b"/").unwrap_or(path);
        match relative {
            b"" => self.0.clone(),
            relative => self.0.join(OsStr::from_bytes(relative)),
        }
    }
}

impl Source for Directory {
    fn root(&self) -> Result<Item, CopyCause> {
        Ok(item(Vec::new(), &fs::metadata(&self.0)?))
    }

    fn list(&self, dir: &[u8]) -> Result<Vec<Item>, CopyCause> {
        let mut items = Vec::new();
        for entry in fs::read_dir(self.path(dir))? {
            let entry = entry?;
            items.push(item(entry.file_name().into_vec(), &entry.metadata()?));
        }
        items.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(items)
    }

    fn link_target(&self, path: &[u8]) -> Result<Vec<u8>, CopyCause> {
        Ok(fs::read_link(self.path(path))?.into_os_string().into_vec())
    }

    fn xattrs(&self, path: &[u8]) -> Result<Xattrs, CopyCause> {
        let path = self.path(path);
        let mut names = vec![0; XATTR_BYTES_MAX];
        let len = match rustix::fs::llistxattr(&path, &mut names) {
            Err(rustix::io::Errno::OPNOTSUPP) => return Ok(Vec::new()),
            len => len.map_err(io::Error::from)?,
        };
        let mut xattrs = Vec::new();
        for name in names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let mut value = vec![0; XATTR_BYTES_MAX];
            match rustix::fs::lgetxattr(&path, name, &mut value) {
                Ok(len) => value.truncate(len),
                // Removed meanwhile.
                Err(rustix::io::Errno::NODATA) => continue,
                Err(error) => return Err(io::Error::from(error).into()),
            }
            xattrs.push((name.to_vec(), value));
        }
        Ok(xattrs)
    }

    fn copy(&self, path: &[u8], _: &Item, files: &Files, to: &[u8]) -> Result<u64, CopyCause> {
        let options = CopyOptions::default();
        let copied = files::import(files, &self.path(path), to, &options, &());
        copied.map(|summary| summary.bytes).map_err(|error| error.cause)
    }
}

fn item(name: Vec<u8>, metadata: &Metadata) -> Item {
    let file_type = metadata.file_type();
    let device = metadata.rdev();
    Item {
        name,
        file_type: match () {
            () if file_type.is_dir() => FileType::Directory,
            () if file_type.is_symlink() => FileType::Symlink,
            () if file_type.is_fifo() => FileType::Fifo,
            () if file_type.is_socket() => FileType::Socket,
            () if file_type.is_char_device() => FileType::CharDevice,
            () if file_type.is_block_device() => FileType::BlockDevice,
            () => FileType::Regular,
        },
        size: metadata.size(),
        mtime: Timestamp { seconds: metadata.mtime(), nanoseconds: metadata.mtime_nsec() as u32 },
        permissions: metadata.mode() & 0o7777,
        uid: metadata.uid(),
        gid: metadata.gid(),
        nlink: metadata.nlink(),
        identity: (metadata.dev(), metadata.ino()),
        device: u64::from(rustix::fs::major(device)) << 32 | u64::from(rustix::fs::minor(device)),
    }
}
