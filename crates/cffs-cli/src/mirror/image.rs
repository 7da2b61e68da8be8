//! A volume as a source.

use cffs::error::Error;
use cffs::files::{CopyCause, Files};
use cffs::format::inode::FileType;
use cffs::units::InodeNo;
use cffs::vfs::types::{Attr, NewKind, SeekFor, SetAttr, SetTime};

use super::{Item, Source, Xattrs, make};

const COPY_BYTES: usize = 1 << 20;

/// The tree of a volume that is open for reading.
pub struct Image(pub Files);

/// What cannot be read of it is its failure, and not that of the volume that is written.
fn unread(error: Error) -> CopyCause {
    match error {
        Error::Io(error) => CopyCause::Host(error),
        error => CopyCause::Host(std::io::Error::other(error)),
    }
}

impl Source for Image {
    fn root(&self) -> Result<Item, CopyCause> {
        self.0.stat("/").map(|attr| item(Vec::new(), &attr)).map_err(unread)
    }

    fn list(&self, dir: &[u8]) -> Result<Vec<Item>, CopyCause> {
        let items = self.0.read_dir(dir).map_err(unread)?;
        Ok(items.into_iter().map(|found| item(found.name, &found.attr)).collect())
    }

    fn link_target(&self, path: &[u8]) -> Result<Vec<u8>, CopyCause> {
        self.0.read_link(path).map_err(unread)
    }

    fn xattrs(&self, path: &[u8]) -> Result<Xattrs, CopyCause> {
        let volume = self.0.volume();
        let ino = self.0.stat_itself(path).map_err(unread)?.ino;
        let named = |name: Vec<u8>| {
            let value = volume.xattr(ino, &name).map_err(unread)?;
            Ok((name, value))
        };
        volume.xattr_names(ino).map_err(unread)?.into_iter().map(named).collect()
    }

    fn copy(&self, path: &[u8], item: &Item, files: &Files, to: &[u8]) -> Result<u64, CopyCause> {
        let from = self.0.stat_itself(path).map_err(unread)?;
        let target;
        let kind = match item.file_type {
            FileType::Symlink => {
                target = self.link_target(path)?;
                NewKind::Symlink(&target)
            }
            FileType::Fifo => NewKind::Fifo,
            FileType::Socket => NewKind::Socket,
            FileType::CharDevice => NewKind::CharDevice(item.device),
            FileType::BlockDevice => NewKind::BlockDevice(item.device),
            FileType::Regular | FileType::Directory => NewKind::Regular,
        };
        let made = make(files, to, item, kind)?;
        let volume = files.volume();
        let is_regular = item.file_type == FileType::Regular;
        let bytes = if is_regular { self.contents(&from, files, made.ino)? } else { 0 };
        volume.copy_xattrs(made.ino, &self.xattrs(path)?)?;
        let changes = SetAttr {
            permissions: (item.file_type != FileType::Symlink).then_some(item.permissions),
            size: is_regular.then_some(item.size),
            atime: Some(SetTime::To(from.atime)),
            mtime: Some(SetTime::To(from.mtime)),
            ..SetAttr::default()
        };
        volume.set_attr(made.ino, &changes)?;
        Ok(bytes)
    }
}

impl Image {
    /// Copies what is not a hole.
    fn contents(&self, from: &Attr, files: &Files, to: InodeNo) -> Result<u64, CopyCause> {
        let volume = self.0.volume();
        let mut buf = vec![0; COPY_BYTES.min(from.size as usize)];
        let (mut at, mut copied) = (0, 0);
        while at < from.size {
            let start = match volume.seek(from.ino, at, SeekFor::Data) {
                Err(Error::NoData) => break,
                start => start.map_err(unread)?,
            };
            let end = volume.seek(from.ino, start, SeekFor::Hole).map_err(unread)?;
            at = start;
            while at < end {
                let wanted = buf.len().min((end - at) as usize);
                let read = volume.read(from.ino, at, &mut buf[..wanted]).map_err(unread)?;
                if read == 0 {
                    return Ok(copied);
                }
                let mut written = 0;
                while written < read {
                    let from = at + written as u64;
                    written += files.volume().write(to, from, &buf[written..read])?;
                }
                at += read as u64;
                copied += read as u64;
            }
        }
        Ok(copied)
    }
}

fn item(name: Vec<u8>, attr: &Attr) -> Item {
    Item {
        name,
        file_type: attr.file_type,
        size: attr.size,
        mtime: attr.mtime,
        permissions: attr.permissions,
        uid: attr.uid,
        gid: attr.gid,
        nlink: attr.nlink.into(),
        identity: (0, attr.ino.0),
        device: attr.device,
    }
}
