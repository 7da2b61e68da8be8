//! A volume as a source.

use cffs::error::Error;
use cffs::files::{CopyCause, Files, Node};
use cffs::format::inode::FileType;
use cffs::units::InodeNo;
use cffs::vfs::types::{Attr, NewKind, SeekFor, SetAttr, SetTime};
use cffs::vfs::{Caller, is_access_acl};

use super::{Item, Source, Xattrs, make};

const COPY_BYTES: usize = 1 << 20;

/// The tree of a volume that is open for reading.
pub struct Image {
    files: Files,
    /// The current directory, after its ancestors.
    dirs: Vec<Node>,
}

/// Marks a read error as belonging to the source, not to the volume that is written.
fn unread(error: Error) -> CopyCause {
    match error {
        Error::Io(error) => CopyCause::Host(error),
        error => CopyCause::Host(std::io::Error::other(error)),
    }
}

impl Source for Image {
    fn root(&mut self) -> Result<Item, CopyCause> {
        self.dirs.truncate(1);
        self.at().attr().map(|attr| item(Vec::new(), &attr)).map_err(unread)
    }

    fn list(&self) -> Result<Vec<Item>, CopyCause> {
        let items = self.at().entries().map_err(unread)?;
        Ok(items.into_iter().map(|found| item(found.name, &found.attr)).collect())
    }

    fn enter(&mut self, name: &[u8]) -> Result<(), CopyCause> {
        self.dirs.push(self.find(name)?);
        Ok(())
    }

    fn leave(&mut self) -> Result<(), CopyCause> {
        self.dirs.truncate((self.dirs.len() - 1).max(1));
        Ok(())
    }

    fn link_target(&self, name: &[u8]) -> Result<Vec<u8>, CopyCause> {
        self.files.volume().read_link(self.find(name)?.ino()).map_err(unread)
    }

    fn xattrs(&self) -> Result<Xattrs, CopyCause> {
        self.xattrs_of(self.at())
    }

    fn has_acl(&self, name: &[u8]) -> Result<bool, CopyCause> {
        let names = self.find(name)?.xattr_names().map_err(unread)?;
        Ok(names.iter().any(|name| is_access_acl(name)))
    }

    fn copy(&self, item: &Item, files: &Files, to: &Node) -> Result<u64, CopyCause> {
        let node = self.find(&item.name)?;
        let from = node.attr().map_err(unread)?;
        let target;
        let kind = match item.file_type {
            FileType::Symlink => {
                target = self.files.volume().read_link(from.ino).map_err(unread)?;
                NewKind::Symlink(&target)
            }
            FileType::Fifo => NewKind::Fifo,
            FileType::Socket => NewKind::Socket,
            FileType::CharDevice => NewKind::CharDevice(item.device),
            FileType::BlockDevice => NewKind::BlockDevice(item.device),
            FileType::Regular | FileType::Directory => NewKind::Regular,
        };
        let made = make(to, item, kind)?;
        let volume = files.volume();
        let is_regular = item.file_type == FileType::Regular;
        let bytes = if is_regular { self.contents(&from, files, made.ino())? } else { 0 };
        if is_regular {
            // Before the attributes, since a change of the size removes capabilities.
            let changes = SetAttr { size: Some(item.size), ..SetAttr::default() };
            volume.set_attr(&Caller::ROOT, made.ino(), &changes)?;
        }
        let (permissions, outcome) = made.copy_xattrs(&self.xattrs_of(&node)?, item.permissions);
        let changes = SetAttr {
            permissions: (item.file_type != FileType::Symlink).then_some(permissions),
            // In a set-group-ID directory, it was made with the group of the directory.
            gid: Some(item.gid),
            atime: Some(SetTime::To(from.atime)),
            mtime: Some(SetTime::To(from.mtime)),
            ..SetAttr::default()
        };
        volume.set_attr(&Caller::ROOT, made.ino(), &changes)?;
        outcome.map(|()| bytes)
    }
}

impl Image {
    /// The tree of this volume.
    pub fn new(files: Files) -> Image {
        Image { dirs: vec![Node::root(files.volume())], files }
    }

    pub fn files(&self) -> &Files {
        &self.files
    }

    fn at(&self) -> &Node {
        // The root is never removed.
        &self.dirs[self.dirs.len() - 1]
    }

    fn find(&self, name: &[u8]) -> Result<Node, CopyCause> {
        self.at().lookup(name).map_err(unread)
    }

    fn xattrs_of(&self, node: &Node) -> Result<Xattrs, CopyCause> {
        let (volume, ino) = (self.files.volume(), node.ino());
        let named = |name: Vec<u8>| {
            let value = volume.xattr(ino, &name).map_err(unread)?;
            Ok((name, value))
        };
        let names = volume.xattr_names(ino).map_err(unread)?;
        names.into_iter().filter(|name| node.copies_xattr(name, true)).map(named).collect()
    }

    /// Copies the data outside holes.
    fn contents(&self, from: &Attr, files: &Files, to: InodeNo) -> Result<u64, CopyCause> {
        let volume = self.files.volume();
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
                    written +=
                        files.volume().write(&Caller::ROOT, to, from, &buf[written..read])?;
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
