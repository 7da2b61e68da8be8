//! A handle of an inode, and the calls on it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::attached::{AttachError, Remote, Session, Tree};
use super::copy::{CopyCause, is_privilege, without_acl};
use super::{DirItem, resolve};
use crate::device;
use crate::error::{Error, Result};
use crate::format::inode::FileType;
use crate::units::InodeNo;
use crate::vfs::types::{Access, Attr, NewFile, NewKind, RenameMode, SeekFor, SetAttr, XattrMode};
use crate::vfs::xattr::{follows_source, is_access_acl, is_own};
use crate::vfs::{Caller, Volume};

mod making;
mod removal;

pub use making::{Clears, Making, Put};

/// An inode in use. It exists until this is dropped, even if its last name is removed meanwhile.
pub struct Node {
    place: Place,
    ino: InodeNo,
    file_type: FileType,
}

/// The side that carries out the calls of a [`Node`].
enum Place {
    /// A volume that this program has open, and the number of references that the handle holds: 1, or 0 for
    /// the root, which always exists.
    Volume(Arc<Volume>, u64),
    /// The server of a mounted volume.
    Server(Arc<Remote>),
}

impl Node {
    /// The root directory.
    pub fn root(volume: &Arc<Volume>) -> Node {
        let (ino, file_type) = (InodeNo::ROOT, FileType::Directory);
        Node { place: Place::Volume(Arc::clone(volume), 0), ino, file_type }
    }

    /// Attaches this program to a directory of a mounted volume, whose server then carries out the calls of
    /// this handle, and of handles that are opened through it. The program has its own rights, as through the
    /// kernel: new files belong to its user, and lose the permissions of its umask.
    ///
    /// See [`Files::attach`](super::Files::attach).
    ///
    /// # Errors
    ///
    /// See [`AttachError`].
    pub fn attach(directory: &Path) -> Result<Node, AttachError> {
        let (root, attr) = Session::attach(directory, device::Access::ReadWrite)?.root();
        Ok(Node::remote((root, attr)))
    }

    pub(super) fn remote((remote, attr): (Remote, Attr)) -> Node {
        let Attr { ino, file_type, .. } = attr;
        Node { place: Place::Server(Arc::new(remote)), ino, file_type }
    }

    /// Takes over the reference that a call of the facade returned with these attributes.
    pub(super) fn adopt(volume: &Arc<Volume>, attr: &Attr) -> Node {
        let Attr { ino, file_type, .. } = *attr;
        Node { place: Place::Volume(Arc::clone(volume), 1), ino, file_type }
    }

    /// An inode of the same volume, by its number.
    ///
    /// # Errors
    ///
    /// [`Error::Stale`] if no file has the number.
    pub(super) fn find(&self, ino: InodeNo) -> Result<Node> {
        let volume = self.volume()?;
        Ok(Node::adopt(volume, &volume.find(ino)?))
    }

    /// A second handle of the same inode.
    ///
    /// # Errors
    ///
    /// See the [module](super#errors).
    pub fn try_clone(&self) -> Result<Node> {
        let (ino, file_type) = (self.ino, self.file_type);
        match &self.place {
            Place::Volume(volume, 0) => Ok(Node::root(volume)),
            Place::Volume(..) => self.find(ino),
            Place::Server(remote) => {
                Ok(Node { place: Place::Server(Arc::clone(remote)), ino, file_type })
            }
        }
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
        match &self.place {
            Place::Volume(volume, _) => volume.attr(self.ino),
            Place::Server(remote) => remote.attr(),
        }
    }

    /// Looks up a name in this directory.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`]; [`Error::NotDirectory`].
    pub fn lookup(&self, name: &[u8]) -> Result<Node> {
        match &self.place {
            Place::Volume(volume, _) => Ok(Node::adopt(volume, &volume.lookup(self.ino, name)?)),
            Place::Server(remote) => remote.lookup(name).map(Node::remote),
        }
    }

    /// Makes a file in this directory. The server of a mounted volume makes it without set-id bits, which
    /// [`set_attr`](Node::set_attr) gives to it, and makes no device but 0:0, a whiteout of
    /// overlayfs.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`]; [`Error::NotDirectory`].
    pub fn make(&self, name: &[u8], new: &NewFile<'_>) -> Result<Node> {
        match &self.place {
            Place::Volume(volume, _) => {
                let attr = volume.make(&Caller::ROOT, self.ino, name, new)?;
                Ok(Node::adopt(volume, &attr))
            }
            Place::Server(remote) => remote.make(name, new).map(Node::remote),
        }
    }

    /// A new file with the owner of this directory, since the library has no other user; attached, with that
    /// of the program.
    ///
    /// # Errors
    ///
    /// See the [module](super#errors).
    pub fn new_file<'a>(&self, kind: NewKind<'a>, permissions: u32) -> Result<NewFile<'a>> {
        let (uid, gid) = match &self.place {
            Place::Volume(volume, _) => {
                let Attr { uid, gid, .. } = volume.attr(self.ino)?;
                (uid, gid)
            }
            Place::Server(remote) => remote.session().owner(),
        };
        Ok(NewFile { kind, permissions, uid, gid, times: None })
    }

    /// Makes a file in this directory; first removes an existing file of the name.
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

    /// Runs `work` while due changes are written in the background, every `interval`. A change that `work`
    /// makes fails if they cannot be written. The server of a mounted volume writes by itself.
    pub fn with_background<T>(&self, interval: Duration, work: impl FnOnce() -> T) -> T {
        match &self.place {
            Place::Volume(volume, _) => {
                volume.writer().background().run_during(interval, drop, work)
            }
            Place::Server(_) => work(),
        }
    }

    /// The inode at a path from this directory on; a symbolic link at its end is followed.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`]; see the [module](super#errors).
    pub fn at(&self, path: impl AsRef<[u8]>) -> Result<Node> {
        resolve::node(self, path.as_ref(), true)
    }

    /// Makes a directory at a path, and missing directories above it.
    ///
    /// # Errors
    ///
    /// [`Error::NotDirectory`] if something else has one of the names.
    pub fn make_dir_all(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let path = path.as_ref();
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        for end in ends.chain([path.len()]) {
            let made = resolve::parent(self, &path[..end])
                .and_then(|(dir, name)| dir.make(&name, &dir.new_file(NewKind::Directory, 0o755)?));
            match made {
                Ok(_) | Err(Error::Exists | Error::Invalid(_)) => {}
                Err(error) => return Err(error),
            }
        }
        match self.at(path)?.file_type() {
            FileType::Directory => Ok(()),
            _ => Err(Error::NotDirectory),
        }
    }

    /// The target of this symbolic link.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if it is no symbolic link.
    pub fn read_link(&self) -> Result<Vec<u8>> {
        match &self.place {
            Place::Volume(volume, _) => volume.read_link(self.ino),
            Place::Server(remote) => remote.read_link(),
        }
    }

    /// Removes a name of this directory that is not a directory's.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`]; [`Error::IsDirectory`].
    pub fn unlink(&self, name: &[u8]) -> Result<()> {
        match &self.place {
            Place::Volume(volume, _) => volume.unlink(&Caller::ROOT, self.ino, name),
            Place::Server(remote) => remote.unlink(name),
        }
    }

    /// Removes an empty directory from this one.
    ///
    /// # Errors
    ///
    /// [`Error::NotEmpty`]; [`Error::NotDirectory`].
    pub fn remove_dir(&self, name: &[u8]) -> Result<()> {
        match &self.place {
            Place::Volume(volume, _) => volume.remove_dir(&Caller::ROOT, self.ino, name),
            Place::Server(remote) => remote.remove_dir(name),
        }
    }

    /// Renames a file of this directory into a directory, and replaces the file with the new name.
    ///
    /// # Errors
    ///
    /// Those of [`Files::rename`](super::Files::rename).
    pub fn rename(&self, name: &[u8], new_dir: &Node, new_name: &[u8]) -> Result<()> {
        match (&self.place, &new_dir.place) {
            (Place::Volume(volume, _), Place::Volume(..)) => {
                let (caller, mode) = (&Caller::ROOT, RenameMode::Replace);
                volume.rename(caller, self.ino, name, new_dir.ino, new_name, mode).map(drop)
            }
            (Place::Server(dir), Place::Server(new_dir)) => dir.rename(name, new_dir, new_name),
            _ => Err(Error::Invalid("a directory of another volume")),
        }
    }

    /// Changes attributes.
    ///
    /// # Errors
    ///
    /// [`Error::IsDirectory`] for a size of a directory; [`Error::TooLarge`] beyond the largest size.
    pub fn set_attr(&self, changes: &SetAttr) -> Result<()> {
        match &self.place {
            Place::Volume(volume, _) => volume.set_attr(&Caller::ROOT, self.ino, changes).map(drop),
            Place::Server(remote) => remote.set_attr(changes),
        }
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    ///
    /// [`Error::NoAttribute`].
    pub fn xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        match &self.place {
            Place::Volume(volume, _) => volume.xattr(self.ino, name),
            Place::Server(remote) => remote.xattr(name),
        }
    }

    /// The names of the extended attributes.
    ///
    /// # Errors
    ///
    /// See the [module](super#errors).
    pub fn xattr_names(&self) -> Result<Vec<Vec<u8>>> {
        match &self.place {
            Place::Volume(volume, _) => volume.xattr_names(self.ino),
            Place::Server(remote) => remote.xattr_names(),
        }
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    ///
    /// [`Error::NotSupported`] for an invalid name; [`Error::NoSpace`] if it does not fit.
    pub fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<()> {
        match &self.place {
            Place::Volume(volume, _) => {
                volume.set_xattr(&Caller::ROOT, self.ino, name, value, XattrMode::Any)
            }
            Place::Server(remote) => remote.set_xattr(name, value),
        }
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    ///
    /// [`Error::NoAttribute`] if it does not exist; an ACL may be missing.
    pub fn remove_xattr(&self, name: &[u8]) -> Result<()> {
        match &self.place {
            Place::Volume(volume, _) => volume.remove_xattr(self.ino, name),
            Place::Server(remote) => remote.remove_xattr(name),
        }
    }

    /// Removes the extended attributes that a copy must not have if its source has only these
    /// ([`follows_source`]).
    ///
    /// # Errors
    ///
    /// Those of [`Node::remove_xattr`].
    pub fn remove_xattrs_but(&self, source: &[(Vec<u8>, Vec<u8>)]) -> Result<()> {
        let is_gone = |name: &&Vec<u8>| {
            follows_source(name) && source.iter().all(|(wanted, _)| wanted != *name)
        };
        self.xattr_names()?.iter().filter(is_gone).try_for_each(|name| self.remove_xattr(name))
    }

    /// Sets these extended attributes, and removes those that a copy of a file with them must not have. One
    /// that is refused does not prevent the others. Returns the permissions that the file may get.
    ///
    /// # Errors
    ///
    /// The first error, next to the permissions.
    pub fn copy_xattrs(
        &self,
        xattrs: &[(Vec<u8>, Vec<u8>)],
        permissions: u32,
    ) -> (u32, Result<(), CopyCause>) {
        let mut outcome = self.remove_xattrs_but(xattrs).map_err(CopyCause::from);
        let mut has_its_acl = outcome.is_ok();
        for (name, value) in xattrs {
            let set = self.set_xattr(name, value);
            has_its_acl &= set.is_ok() || !is_access_acl(name);
            outcome = outcome.and(set.map_err(|error| CopyCause::of_attribute(name, error)));
        }
        (if has_its_acl { permissions } else { without_acl(permissions) }, outcome)
    }

    /// Gives an inode a name in this directory.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`]; [`Error::NotPermitted`] for a directory; [`Error::TooManyLinks`].
    pub fn link(&self, node: &Node, name: &[u8]) -> Result<Node> {
        match (&self.place, &node.place) {
            (Place::Volume(volume, _), Place::Volume(..)) => {
                Ok(Node::adopt(volume, &volume.link(node.ino, self.ino, name)?))
            }
            (Place::Server(dir), Place::Server(file)) => dir.link(file, name).map(Node::remote),
            _ => Err(Error::Invalid("a file of another volume")),
        }
    }

    /// The directory that contains this one.
    ///
    /// # Errors
    ///
    /// [`Error::NotDirectory`].
    pub fn parent(&self) -> Result<InodeNo> {
        self.volume()?.parent(self.ino)
    }

    /// The entries of this directory, in the order in which they were made.
    ///
    /// # Errors
    ///
    /// [`Error::NotDirectory`].
    pub fn entries(&self) -> Result<Vec<DirItem>> {
        let volume = match &self.place {
            Place::Volume(volume, _) => volume,
            Place::Server(remote) => return remote.entries(),
        };
        let mut items = Vec::new();
        let mut references = Vec::new();
        let read = volume.read_dir(self.ino, 0, true, &mut |entry| {
            if let Some(attr) = entry.attr {
                references.push(attr.ino);
                items.push(DirItem { name: entry.name.to_vec(), attr });
            }
            true
        });
        references.into_iter().for_each(|ino| volume.release(ino, 1));
        read.map(|()| items)
    }

    pub(super) fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        match &self.place {
            Place::Volume(volume, _) => volume.read(self.ino, offset, buf),
            Place::Server(remote) => remote.read_at(offset, buf),
        }
    }

    /// Reads up to `len` bytes from `offset` on, and passes them to `take` piece by piece, in order.
    pub(super) fn read_pieces_at(
        &self,
        offset: u64,
        len: usize,
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<usize> {
        match &self.place {
            Place::Volume(volume, _) => {
                volume.read_pieces(self.ino, offset, len, Access::Noted, take)
            }
            Place::Server(remote) => remote.read_pieces_at(offset, len, take),
        }
    }

    /// The first data at or after an offset, or the first hole.
    ///
    /// # Errors
    ///
    /// [`Error::NoData`] if only a hole follows, or the end.
    pub fn seek(&self, offset: u64, what: SeekFor) -> Result<u64> {
        match &self.place {
            Place::Volume(volume, _) => volume.seek(self.ino, offset, what),
            Place::Server(remote) => remote.seek(offset, what == SeekFor::Hole),
        }
    }

    /// Writes all of `data` at the end, and returns the new end.
    pub(super) fn append_all(&self, mut data: &[u8]) -> Result<u64> {
        let volume = match &self.place {
            Place::Volume(volume, _) => volume,
            Place::Server(remote) => return remote.append_all(data),
        };
        loop {
            let (written, end) = volume.append(&Caller::ROOT, self.ino, data)?;
            data = &data[written..];
            match written {
                _ if data.is_empty() => return Ok(end),
                0 => return Err(Error::NoSpace),
                _ => {}
            }
        }
    }

    /// Makes the contents and attributes of a file durable.
    pub(super) fn sync_file(&self) -> Result<()> {
        match &self.place {
            Place::Volume(volume, _) => volume.sync_file(self.ino, false),
            Place::Server(remote) => remote.sync(),
        }
    }

    /// Begins a walk below this directory, if it is at the server of a mounted volume.
    pub(super) fn descend(&self) -> Option<Result<Tree>> {
        match &self.place {
            Place::Volume(..) => None,
            Place::Server(remote) => Some(remote.descend()),
        }
    }

    /// The inode at a path from this directory on, at the server of a mounted volume; `None` if this program
    /// has the volume open.
    pub(super) fn walk_remote(&self, path: &[u8], follow_last: bool) -> Option<Result<Node>> {
        match &self.place {
            Place::Volume(..) => None,
            Place::Server(remote) => Some(remote.walk(path, follow_last).map(Node::remote)),
        }
    }

    /// Whether an attached program may follow this link in this directory; the library has no other user.
    pub(super) fn may_follow(&self, link: &Node) -> Result<bool> {
        let Place::Server(remote) = &self.place else { return Ok(true) };
        Ok(self.attr()?.lets_follow(&link.attr()?, remote.session().owner().0))
    }

    /// Writes from `offset` on, and returns how much.
    pub(super) fn write_at(&self, offset: u64, data: &[u8]) -> Result<usize> {
        match &self.place {
            Place::Volume(volume, _) => volume.write(&Caller::ROOT, self.ino, offset, data),
            Place::Server(remote) => remote.write_all(offset, data).map(|()| data.len()),
        }
    }

    pub(super) fn write_all_at(&self, mut offset: u64, mut data: &[u8]) -> Result<()> {
        while !data.is_empty() {
            let written = self.write_at(offset, data)?;
            if written == 0 {
                return Err(Error::NoSpace);
            }
            offset += written as u64;
            data = &data[written..];
        }
        Ok(())
    }

    /// Whether the server of a mounted volume carries out the calls.
    pub fn is_attached(&self) -> bool {
        matches!(self.place, Place::Server(_))
    }

    /// The device number of the mount whose server carries out the calls.
    pub(super) fn mount_device(&self) -> Result<Option<u64>> {
        match &self.place {
            Place::Volume(..) => Ok(None),
            Place::Server(remote) => remote.session().mount_device().map(Some),
        }
    }

    /// Whether new files can get other owners: a program that is attached needs root's rights for it.
    pub fn gives_owners(&self) -> bool {
        match &self.place {
            Place::Volume(..) => true,
            Place::Server(remote) => remote.session().owner().0 == 0,
        }
    }

    /// Whether a copy of a file gets an extended attribute of it. No copy has the attributes of the file
    /// system itself. A copy without the `owner` gets no capabilities, which give rights to callers that run
    /// it, as set-id bits do. The server of a mounted volume sets capabilities, but no other attributes of
    /// `security.` and none of `trusted.`: they fail for a caller that copies the owner, and so all
    /// attributes. Labels that this machine gives to its files are left out.
    pub fn copies_xattr(&self, name: &[u8], owner: bool) -> bool {
        match name {
            name if is_own(name) => false,
            name if is_privilege(name) => owner,
            _ if !self.is_attached() => true,
            name if is_label(name) => false,
            name => {
                owner || ![&b"trusted."[..], b"security."].iter().any(|of| name.starts_with(of))
            }
        }
    }

    /// The volume, if this program has it open.
    pub(super) fn volume(&self) -> Result<&Arc<Volume>> {
        match &self.place {
            Place::Volume(volume, _) => Ok(volume),
            Place::Server(_) => Err(Error::Mounted("unmount it, and open the image")),
        }
    }
}

/// Whether an attribute is one that SELinux, Smack, AppArmor, IMA or EVM gives to each file of a machine.
fn is_label(name: &[u8]) -> bool {
    let of_security = name.strip_prefix(b"security.").unwrap_or_default();
    of_security.starts_with(b"SMACK64")
        || [&b"selinux"[..], b"apparmor", b"ima", b"evm"].contains(&of_security)
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Place::Volume(volume, references @ 1..) = &self.place {
            volume.release(self.ino, *references);
        }
    }
}
