//! The calls of an attached program.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use rustix::process::{getegid, geteuid};

use super::connection::{Arrived, Asked, Connection};
use super::door::{AttachError, Door};
use crate::device;
use crate::error::{Error, Result};
use crate::files::node::Put;
use crate::format::SYMLINK_BYTES_MAX;
use crate::format::inode::FileType;
use crate::vfs::types::{Attr, NewFile, NewKind, SetAttr};
use crate::wire::{self, CONTENTS_BYTES_MAX, Handle, Memory, Reply, Request, VALUE_BYTES_MAX};

mod many;
mod reading;
mod tree;

pub(crate) use tree::Tree;

/// The longest name of a file, and of an extended attribute.
const NAME_BYTES_MAX: usize = 255;
const NO_HANDLE: &str = "the program has found too many files since it has attached: attach again";
const FORKED: &str = "attached programs cannot fork: attach again in the child";
/// The bits that a new file never has.
const SET_ID: u32 = 0o6000;

/// A session at the server of a mounted volume. Its calls are carried out in their order.
pub(crate) struct Session {
    /// `None` after the program has ended the session.
    connection: Mutex<Option<Connection>>,
    root: Attr,
    next: AtomicU32,
    /// The user and the group that new files belong to.
    owner: (u32, u32),
    access: device::Access,
    /// The process that has attached. A child of it has the same connection, which it must not use.
    process: u32,
    /// The number of files that the next request for many files names.
    files_at_once: AtomicUsize,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.close();
    }
}

/// A handle of a file in a session. The server forgets it when this is dropped.
pub(crate) struct Remote {
    session: Arc<Session>,
    handle: Handle,
    is_regular: bool,
}

impl Drop for Remote {
    fn drop(&mut self) {
        if self.handle != Handle::ROOT {
            // If the session has ended, so has the handle.
            let forget = Request::Forget { node: self.handle };
            let _ = self.session.connection().and_then(|mut connection| {
                connection.begin(&forget)?;
                // The server keeps the space of a file that was removed. The program may make no other call.
                if self.is_regular { connection.send() } else { Ok(()) }
            });
        }
    }
}

impl Session {
    /// Attaches this program to a directory of a mounted volume.
    ///
    /// # Errors
    ///
    /// See [`AttachError`].
    pub fn attach(directory: &Path, access: device::Access) -> Result<Arc<Session>, AttachError> {
        let (connection, root) = Connection::open(Door::open(directory, access)?)?;
        Ok(Session::new(connection, root, access))
    }

    fn new(connection: Connection, root: Attr, access: device::Access) -> Arc<Session> {
        Arc::new(Session {
            connection: Mutex::new(Some(connection)),
            root,
            next: AtomicU32::new(1),
            owner: (geteuid().as_raw(), getegid().as_raw()),
            access,
            process: std::process::id(),
            files_at_once: AtomicUsize::new(many::FILES_AT_FIRST),
        })
    }

    /// The connection, for one call.
    ///
    /// # Errors
    ///
    /// [`Error::Detached`] in a child of the process that has attached; [`Error::Stale`] after the end.
    fn connection(&self) -> Result<MappedMutexGuard<'_, Connection>> {
        // Checked before locking: another thread of the parent may have held the lock at the fork.
        if self.is_in_child() {
            return Err(Error::Detached(String::from(FORKED)));
        }
        MutexGuard::try_map(self.connection.lock(), Option::as_mut).map_err(|_| Error::Stale)
    }

    fn is_in_child(&self) -> bool {
        std::process::id() != self.process
    }

    /// Fails if the program has attached only to read.
    fn check_writable(&self) -> Result<()> {
        match self.access {
            device::Access::ReadWrite => Ok(()),
            device::Access::ReadOnly => Err(Error::ReadOnly),
        }
    }

    /// Ends the session; later calls fail with [`Error::Stale`]. All calls must have been waited for, except
    /// unfinished puts. A child of the process leaves the session as it is, and closes its own descriptors.
    pub fn close(&self) {
        if self.is_in_child() {
            // Another thread of the parent may have held the lock at the fork.
            drop(self.connection.try_lock().and_then(|mut connection| connection.take()));
        } else if let Some(connection) = self.connection.lock().take() {
            connection.shut_down();
        }
    }

    /// A session over this connection, which needs no mount.
    #[cfg(test)]
    pub(super) fn over(connection: Connection, root: Attr) -> Arc<Session> {
        Session::new(connection, root, device::Access::ReadWrite)
    }

    /// The socket as a child of this process has it.
    #[cfg(test)]
    pub(super) fn stream_of_child(&self) -> std::os::fd::OwnedFd {
        self.connection().expect("it has not ended").stream_of_child()
    }

    /// The directory of the session, and its attributes when the session began.
    pub fn root(self: &Arc<Self>) -> (Remote, Attr) {
        let session = Arc::clone(self);
        (Remote { session, handle: Handle::ROOT, is_regular: false }, self.root)
    }

    /// The user and the group that new files belong to.
    pub fn owner(&self) -> (u32, u32) {
        self.owner
    }

    /// Waits until a put was carried out, and returns its failure.
    pub fn finish(&self, put: u64) -> Result<()> {
        self.connection()?.finish(put)
    }

    /// Waits until a call was carried out, and returns its failure.
    pub fn made(&self, asked: Asked) -> Result<()> {
        match self.answer(asked)?.reply {
            Reply::Done | Reply::Attr(_) => Ok(()),
            _ => Err(unexpected()),
        }
    }

    fn call(&self, request: &Request) -> Result<Reply> {
        if request.is_change() {
            self.check_writable()?;
        }
        self.connection()?.call(request)
    }

    fn done(&self, request: &Request) -> Result<()> {
        match self.call(request)? {
            Reply::Done => Ok(()),
            _ => Err(unexpected()),
        }
    }

    /// The file to which the server has given a handle.
    fn remote(self: &Arc<Self>, handle: Handle, attr: &Attr) -> Remote {
        let is_regular = attr.file_type == FileType::Regular;
        Remote { session: Arc::clone(self), handle, is_regular }
    }

    /// Waits for the reply to a call.
    fn answer(&self, asked: Asked) -> Result<Arrived> {
        self.connection()?.answer(asked)
    }

    fn next_handle(&self) -> Result<Handle> {
        let next = |next: u32| next.checked_add(1);
        let number = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        number.map(Handle).map_err(|_| Error::InUse(String::from(NO_HANDLE)))
    }

    /// Makes a call that gives a handle to a file.
    fn found(self: &Arc<Self>, request: impl FnOnce(Handle) -> Request) -> Result<(Remote, Attr)> {
        let handle = self.next_handle()?;
        match self.call(&request(handle))? {
            Reply::Attr(attr) => Ok((self.remote(handle, &attr), attr)),
            _ => Err(unexpected()),
        }
    }
}

impl Remote {
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    pub fn attr(&self) -> Result<Attr> {
        match self.session.call(&Request::Attr { node: self.handle })? {
            Reply::Attr(attr) => Ok(attr),
            _ => Err(unexpected()),
        }
    }

    pub fn set_attr(&self, changes: &SetAttr) -> Result<()> {
        self.session.done(&Request::SetAttr { node: self.handle, changes: *changes })
    }

    pub fn read_link(&self) -> Result<Vec<u8>> {
        match self.session.call(&Request::ReadLink { node: self.handle })? {
            Reply::Bytes(target) => Ok(target),
            _ => Err(unexpected()),
        }
    }

    pub fn lookup(&self, name: &[u8]) -> Result<(Remote, Attr)> {
        let name = checked(name)?;
        self.session.found(|result| Request::Lookup { dir: self.handle, name, result })
    }

    pub fn make(&self, name: &[u8], new: &NewFile<'_>) -> Result<(Remote, Attr)> {
        let (name, kind) = (checked(name)?, checked_kind(new.kind)?);
        let (dir, permissions) = (self.handle, new.permissions & !SET_ID & 0o7777);
        self.session.found(|result| Request::Make { dir, name, kind, permissions, result })
    }

    /// Makes a directory, or finds the one with this name. If that fails, so does each call with its handle.
    pub fn begin_dir(&self, name: &[u8], permissions: u32) -> Result<(Remote, Asked)> {
        let (dir, name, result) = (self.handle, checked(name)?, self.session.next_handle()?);
        let permissions = permissions & !SET_ID & 0o7777;
        let asked = self.ask(&Request::MakeDir { dir, name, permissions, result })?;
        let session = self.session.clone();
        Ok((Remote { session, handle: result, is_regular: false }, asked))
    }

    /// Changes attributes.
    pub fn begin_attributes(&self, changes: &SetAttr) -> Result<Asked> {
        self.ask(&Request::SetAttr { node: self.handle, changes: *changes })
    }

    /// Removes the ACLs, and with `clears_user` attributes of `user.`, and changes attributes.
    pub fn begin_complete(&self, changes: &SetAttr, clears_user: bool) -> Result<Asked> {
        self.ask(&Request::Complete { node: self.handle, changes: *changes, clears_user })
    }

    fn ask(&self, request: &Request) -> Result<Asked> {
        self.session.check_writable()?;
        self.session.connection()?.ask(request, Memory::default())
    }

    /// Makes a whole file, without waiting for it. Returns the number of the call.
    pub fn put(&self, name: &[u8], put: &Put<'_>) -> Result<u64> {
        let (name, kind) = (checked(name)?, checked_kind(put.new.kind)?);
        if put.contents.len() > CONTENTS_BYTES_MAX as usize {
            return Err(Error::TooLarge);
        }
        self.session.check_writable()?;
        let mut connection = self.session.connection()?;
        let contents = connection.share(put.contents)?;
        connection.begin(&Request::Put(wire::Put {
            dir: self.handle,
            name,
            kind,
            permissions: put.new.permissions & !SET_ID & 0o7777,
            contents,
            changes: put.changes,
            inherits_acls: put.inherits_acls,
        }))
    }

    pub fn write_all(&self, mut at: u64, contents: &[u8]) -> Result<()> {
        self.session.check_writable()?;
        for part in contents.chunks(CONTENTS_BYTES_MAX as usize) {
            let mut connection = self.session.connection()?;
            let contents = connection.share(part)?;
            connection.call(&Request::Write { node: self.handle, at, contents })?;
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Writes to the end of the file, and returns the new end.
    pub fn append_all(&self, contents: &[u8]) -> Result<u64> {
        if contents.is_empty() {
            return Ok(self.attr()?.size);
        }
        self.session.check_writable()?;
        let mut end = 0;
        for part in contents.chunks(CONTENTS_BYTES_MAX as usize) {
            let mut connection = self.session.connection()?;
            let contents = connection.share(part)?;
            end = match connection.call(&Request::Append { node: self.handle, contents })? {
                Reply::Count(end) => end,
                _ => return Err(unexpected()),
            };
        }
        Ok(end)
    }

    pub fn link(&self, file: &Remote, name: &[u8]) -> Result<(Remote, Attr)> {
        let (name, node, dir) = (checked(name)?, file.handle, self.handle);
        self.session.found(|result| Request::Link { node, dir, name, result })
    }

    pub fn unlink(&self, name: &[u8]) -> Result<()> {
        self.session.done(&Request::Unlink { dir: self.handle, name: checked(name)? })
    }

    pub fn remove_dir(&self, name: &[u8]) -> Result<()> {
        self.session.done(&Request::RemoveDir { dir: self.handle, name: checked(name)? })
    }

    pub fn rename(&self, name: &[u8], new_dir: &Remote, new_name: &[u8]) -> Result<()> {
        let (name, new_name) = (checked(name)?, checked(new_name)?);
        let (dir, new_dir) = (self.handle, new_dir.handle);
        self.session.done(&Request::Rename { dir, name, new_dir, new_name })
    }

    /// Makes the file durable, or with a directory the whole volume.
    pub fn sync(&self) -> Result<()> {
        self.session.done(&Request::Sync { node: self.handle })
    }

    pub fn xattr_names(&self) -> Result<Vec<Vec<u8>>> {
        match self.session.call(&Request::XattrNames { node: self.handle })? {
            Reply::Bytes(list) => {
                let names = list.split(|byte| *byte == 0).filter(|name| !name.is_empty());
                Ok(names.map(<[u8]>::to_vec).collect())
            }
            _ => Err(unexpected()),
        }
    }

    pub fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<()> {
        let name = checked_xattr(name)?;
        if value.len() > VALUE_BYTES_MAX {
            return Err(Error::Range);
        }
        let value = value.to_vec();
        self.session.done(&Request::SetXattr { node: self.handle, name, value })
    }

    pub fn remove_xattr(&self, name: &[u8]) -> Result<()> {
        let name = checked_xattr(name)?;
        self.session.done(&Request::RemoveXattr { node: self.handle, name })
    }
}

/// A name that can be sent.
fn checked(name: &[u8]) -> Result<Vec<u8>> {
    match name {
        b"" | b"." | b".." => Err(Error::Invalid("not a name of a file")),
        name if name.len() > NAME_BYTES_MAX => Err(Error::NameTooLong),
        name if name.iter().any(|byte| [b'/', 0].contains(byte)) => {
            Err(Error::Invalid("not a name of a file"))
        }
        name => Ok(name.to_vec()),
    }
}

/// A name of an extended attribute that can be sent.
fn checked_xattr(name: &[u8]) -> Result<Vec<u8>> {
    let is_name = (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.contains(&0);
    if is_name { Ok(name.to_vec()) } else { Err(Error::Range) }
}

fn checked_kind(kind: NewKind<'_>) -> Result<wire::Kind> {
    match kind {
        NewKind::Symlink(target) if target.len() > SYMLINK_BYTES_MAX => Err(Error::NameTooLong),
        kind => Ok(kind.into()),
    }
}

fn unexpected() -> Error {
    Error::Io(wire::BadMessage.into())
}
