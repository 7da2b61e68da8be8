//! A handle of an inode, and the calls that need nothing but it.

use std::sync::Arc;

use super::DirItem;
use crate::error::{Error, Result};
use crate::format::inode::FileType;
use crate::units::InodeNo;
use crate::vfs::types::{Attr, NewFile, NewKind, SetAttr, XattrMode};
use crate::vfs::{Caller, Volume, copy_xattrs};

/// A whole file, except for its name, as [`Node::put`] makes it.
#[derive(Clone, Copy, Debug)]
pub struct Put<'a> {
    /// The file, as it is until its contents are written.
    pub new: NewFile<'a>,
    /// The contents; empty if it is not a regular file.
    pub contents: &'a [u8],
    /// The attributes that it gets afterwards.
    pub changes: SetAttr,
    /// Whether it keeps the ACLs that it inherits from its directory.
    pub inherits_acls: bool,
}

/// An inode in use. It exists until this is dropped, even if its last name goes meanwhile.
pub struct Node {
    volume: Arc<Volume>,
    ino: InodeNo,
    file_type: FileType,
    /// How many references this handle holds: 1, or 0 for the root, which is always there.
    references: u64,
}

impl Node {
    /// The root directory.
    pub fn root(volume: &Arc<Volume>) -> Node {
        let (ino, file_type) = (InodeNo::ROOT, FileType::Directory);
        Node { volume: Arc::clone(volume), ino, file_type, references: 0 }
    }

    /// Takes over the reference that a call of the facade returned with these attributes.
    pub(super) fn adopt(volume: &Arc<Volume>, attr: &Attr) -> Node {
        let Attr { ino, file_type, .. } = *attr;
        Node { volume: Arc::clone(volume), ino, file_type, references: 1 }
    }

    /// An inode of the same volume, by its number alone.
    ///
    /// # Errors
    ///
    /// [`Error::Stale`] if no file has the number.
    pub(super) fn find(&self, ino: InodeNo) -> Result<Node> {
        Ok(Node::adopt(&self.volume, &self.volume.find(ino)?))
    }

    /// A second handle of the same inode.
    ///
    /// # Errors
    ///
    /// See the [module](super#errors).
    pub fn try_clone(&self) -> Result<Node> {
        self.find(self.ino)
    }

    /// The inode's number.
    pub fn ino(&self) -> InodeNo {
        self.ino
    }

    /// The type of the inode, which never changes.
    pub fn file_type(&self) -> FileType {
        self.file_type
    }

    /// The attributes.
    ///
    /// # Errors
    ///
    /// See the [module](super#errors).
    pub fn attr(&self) -> Result<Attr> {
        self.volume.attr(self.ino)
    }

    /// Looks up a name in this directory.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`]; [`Error::NotDirectory`].
    pub fn lookup(&self, name: &[u8]) -> Result<Node> {
        let attr = self.volume.lookup(self.ino, name)?;
        Ok(Node::adopt(&self.volume, &attr))
    }

    /// Makes a file in this directory.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`]; [`Error::NotDirectory`].
    pub fn make(&self, name: &[u8], new: &NewFile<'_>) -> Result<Node> {
        let attr = self.volume.make(&Caller::ROOT, self.ino, name, new)?;
        Ok(Node::adopt(&self.volume, &attr))
    }

    /// A new file with the owner of this directory: the library has no other user.
    ///
    /// # Errors
    ///
    /// See the [module](super#errors).
    pub fn new_file<'a>(&self, kind: NewKind<'a>, permissions: u32) -> Result<NewFile<'a>> {
        let Attr { uid, gid, .. } = self.attr()?;
        Ok(NewFile { kind, permissions, uid, gid, times: None })
    }

    /// Makes a file in this directory, and first removes another of the name, unless that is a directory.
    ///
    /// # Errors
    ///
    /// [`Error::IsDirectory`] if the name is a directory's; [`Error::NotDirectory`].
    pub fn replace(&self, name: &[u8], new: &NewFile<'_>) -> Result<Node> {
        match self.make(name, new) {
            Err(Error::Exists) => {
                self.unlink(name)?;
                self.make(name, new)
            }
            made => made,
        }
    }

    /// Makes a file that is not a directory in this directory, with contents and attributes, and first
    /// removes another of the name.
    ///
    /// # Errors
    ///
    /// Those of [`Node::replace`]. After another error, the file has a part of the contents, or lacks
    /// attributes.
    pub fn put(&self, name: &[u8], file: &Put<'_>) -> Result<()> {
        let node = self.replace(name, &file.new)?;
        node.write_all_at(0, file.contents)?;
        if !file.inherits_acls {
            node.copy_xattrs(&[])?;
        }
        node.set_attr(&file.changes)
    }

    /// Removes a name of this directory that is not a directory's.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`]; [`Error::IsDirectory`].
    pub fn unlink(&self, name: &[u8]) -> Result<()> {
        self.volume.unlink(&Caller::ROOT, self.ino, name)
    }

    /// Changes attributes.
    ///
    /// # Errors
    ///
    /// [`Error::IsDirectory`] for a size of a directory; [`Error::TooLarge`] beyond the largest size.
    pub fn set_attr(&self, changes: &SetAttr) -> Result<()> {
        self.volume.set_attr(&Caller::ROOT, self.ino, changes).map(drop)
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    ///
    /// [`Error::NotSupported`] for a name that no attribute has; [`Error::NoSpace`] if it does not fit.
    pub fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<()> {
        self.volume.set_xattr(&Caller::ROOT, self.ino, name, value, XattrMode::Any)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    ///
    /// [`Error::NoAttribute`] if it does not exist; an ACL may be missing.
    pub fn remove_xattr(&self, name: &[u8]) -> Result<()> {
        self.volume.remove_xattr(self.ino, name)
    }

    /// Gives a copy the extended attributes of its source, as [`copy_xattrs`] does.
    ///
    /// # Errors
    ///
    /// Those of [`Node::set_xattr`].
    pub fn copy_xattrs(&self, source: &[(Vec<u8>, Vec<u8>)]) -> Result<()> {
        copy_xattrs(&self.volume, &Caller::ROOT, self.ino, source)
    }

    /// Gives an inode a name in this directory.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`]; [`Error::NotPermitted`] for a directory; [`Error::TooManyLinks`].
    pub fn link(&self, node: &Node, name: &[u8]) -> Result<Node> {
        let attr = self.volume.link(node.ino, self.ino, name)?;
        Ok(Node::adopt(&self.volume, &attr))
    }

    /// The directory that contains this one.
    ///
    /// # Errors
    ///
    /// [`Error::NotDirectory`].
    pub fn parent(&self) -> Result<InodeNo> {
        self.volume.parent(self.ino)
    }

    /// The entries of this directory, in the order in which they were made.
    ///
    /// # Errors
    ///
    /// [`Error::NotDirectory`].
    pub fn entries(&self) -> Result<Vec<DirItem>> {
        let mut items = Vec::new();
        let mut references = Vec::new();
        let read = self.volume.read_dir(self.ino, 0, true, &mut |entry| {
            if let Some(attr) = entry.attr {
                references.push(attr.ino);
                items.push(DirItem { name: entry.name.to_vec(), attr });
            }
            true
        });
        references.into_iter().for_each(|ino| self.volume.release(ino, 1));
        read.map(|()| items)
    }

    pub(super) fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.volume.read(self.ino, offset, buf)
    }

    pub(super) fn write_all_at(&self, mut offset: u64, mut data: &[u8]) -> Result<()> {
        while !data.is_empty() {
            let written = self.volume.write(&Caller::ROOT, self.ino, offset, data)?;
            if written == 0 {
                return Err(Error::NoSpace);
            }
            offset += written as u64;
            data = &data[written..];
        }
        Ok(())
    }

    pub(super) fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.references > 0 {
            self.volume.release(self.ino, self.references);
        }
    }
}
