//! Changes that a caller begins and later waits for: the server of a mounted volume can have many in
//! progress.

use std::sync::Arc;

use super::{Node, Place};
use crate::error::{Error, Result};
use crate::files::attached::Asked;
use crate::format::inode::FileType;
use crate::units::InodeNo;
use crate::vfs::types::{NewFile, SetAttr};
use crate::vfs::xattr::is_acl;

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

/// A change that was begun, such as a file that [`Node::put`] makes. The server of a mounted volume may still
/// be making it.
#[derive(Debug)]
#[must_use = "the change may not have been made"]
pub struct Making(Change);

#[derive(Debug)]
enum Change {
    Made,
    Put(u64),
    Asked(Asked),
}

impl Making {
    /// Whether it has been made already, so that [`Node::finish`] neither waits nor fails.
    pub fn is_made(&self) -> bool {
        matches!(self.0, Change::Made)
    }
}

/// The extended attributes that a file loses because its source does not have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clears {
    /// None.
    Nothing,
    /// The ACLs, which it may have inherited from its directory.
    Acls,
    /// All that [`copy_xattrs`](crate::vfs::copy_xattrs) removes.
    All,
}

impl Node {
    /// Makes a file that is not a directory in this directory, with contents and attributes, and first
    /// removes another of the name. [`Node::finish`] completes it.
    ///
    /// # Errors
    ///
    /// Those of [`Node::replace`]. After another error, the file has a part of the contents, or lacks
    /// attributes; attached, no file has the name. Attached, [`Error::TooLarge`] for more than 1 MiB of
    /// contents; other errors are those of [`Node::finish`].
    pub fn put(&self, name: &[u8], file: &Put<'_>) -> Result<Making> {
        if let Place::Server(remote) = &self.place {
            return remote.put(name, file).map(|call| Making(Change::Put(call)));
        }
        let node = self.replace(name, &file.new)?;
        node.write_all_at(0, file.contents)?;
        if !file.inherits_acls {
            node.remove_xattrs_but(&[])?;
        }
        node.set_attr(&file.changes)?;
        Ok(Making(Change::Made))
    }

    /// Makes a directory in this one, or finds the one with this name. The handle can be used at once.
    /// Attached, it has the number 0, and if [`Node::finish`] fails, so does each call with the handle, by
    /// [`Error::Stale`].
    ///
    /// # Errors
    ///
    /// [`Error::NotDirectory`] if something else has the name; attached, those of [`Node::finish`].
    pub fn begin_dir(&self, name: &[u8], new: &NewFile<'_>) -> Result<(Node, Making)> {
        if let Place::Server(remote) = &self.place {
            let (remote, asked) = remote.begin_dir(name, new.permissions)?;
            let (place, ino) = (Place::Server(Arc::new(remote)), InodeNo(0));
            let node = Node { place, ino, file_type: FileType::Directory };
            return Ok((node, Making(Change::Asked(asked))));
        }
        let node = match self.make(name, new) {
            Err(Error::Exists) => self.lookup(name)?,
            made => made?,
        };
        match node.file_type {
            FileType::Directory => Ok((node, Making(Change::Made))),
            _ => Err(Error::NotDirectory),
        }
    }

    /// Changes attributes as [`set_attr`](Node::set_attr) does, after it has removed extended attributes.
    /// [`Node::finish`] completes it.
    ///
    /// # Errors
    ///
    /// Those of [`set_attr`](Node::set_attr), and of [`remove_xattr`](Node::remove_xattr).
    pub fn begin_attributes(&self, changes: &SetAttr, clears: Clears) -> Result<Making> {
        if let Place::Server(remote) = &self.place {
            let asked = match clears {
                Clears::Nothing => remote.begin_attributes(changes),
                Clears::Acls => remote.begin_complete(changes, false),
                Clears::All => remote.begin_complete(changes, true),
            };
            return asked.map(|asked| Making(Change::Asked(asked)));
        }
        match clears {
            Clears::Nothing => {}
            Clears::Acls => {
                for name in self.xattr_names()?.iter().filter(|name| is_acl(name)) {
                    self.remove_xattr(name)?;
                }
            }
            Clears::All => self.remove_xattrs_but(&[])?,
        }
        self.set_attr(changes)?;
        Ok(Making(Change::Made))
    }

    /// Waits until a change is made that this handle, or another of the same session, has begun.
    ///
    /// # Errors
    ///
    /// Those of the call that has begun it.
    pub fn finish(&self, making: Making) -> Result<()> {
        match (&self.place, making.0) {
            (Place::Server(remote), Change::Put(call)) => remote.session().finish(call),
            (Place::Server(remote), Change::Asked(asked)) => remote.session().made(asked),
            _ => Ok(()),
        }
    }
}
