//! Carries out the requests of a program that is attached to a directory, with its rights, and makes the
//! checks that the kernel makes for system calls. The kernel is notified of each change before the call is
//! answered.

use cffs::error::{Error, Result};
use cffs::format::inode::FileType;
use cffs::units::InodeNo;
use cffs::vfs::types::{Attr, NewFile, NewKind, SetAttr, SetTime, XattrMode};
use cffs::vfs::{Caller, Condition, Volume, check_acl, copy_xattrs, follows_source};
use cffs::wire::{Fault, Handle, Kind, Memory, Put, Reply, Request};

use super::handles::{Handles, Held};
use super::memory::SharedMemory;
use super::removal::{Failed, Removal, owner_and_mode};
use super::trees::Trees;
use super::xattrs;
use crate::access::{self, EXECUTE, READ, User, WRITE, checks};
use crate::shared::{Change, Observer};

mod names;
mod reading;

const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;

/// How often a change is retried because the rights on which it depends have changed.
const TRIES_MAX: u32 = 4;

/// A program that is attached, with its rights.
pub(super) struct Program<'a> {
    volume: &'a Volume,
    observer: &'a dyn Observer,
    user: &'a User,
    umask: u32,
    memory: SharedMemory,
    handles: Handles<'a>,
    trees: Trees<'a>,
    /// The contents of the current request.
    contents: Vec<u8>,
}

impl<'a> Program<'a> {
    pub fn new(
        volume: &'a Volume,
        observer: &'a dyn Observer,
        (user, umask): (&'a User, u32),
        memory: SharedMemory,
        handles: Handles<'a>,
    ) -> Program<'a> {
        observer.joined();
        let (trees, contents) = (Trees::new(volume), Vec::new());
        Program { volume, observer, user, umask, memory, handles, trees, contents }
    }

    /// Ends the session. If the program ended it, it no longer needs its memory; if the server is closing,
    /// the program may not have read its last contents yet.
    pub fn end(self, is_closing: bool) {
        if !is_closing && let Err(error) = self.memory.discard() {
            tracing::debug!(%error, "the memory of an attached program stays");
        }
    }

    /// Carries out a request. Returns its answer, or for a put, which has none, the failure.
    pub fn carry_out(&mut self, request: Request) -> Option<Reply> {
        let done = match request {
            Request::Lookup { dir, name, result } => {
                self.lookup(dir, &name, result).map(Reply::Attr)
            }
            Request::Attr { node } => self.attr(node).map(Reply::Attr),
            Request::SetAttr { node, changes } => self.set_attr(node, changes).map(done),
            Request::ReadLink { node } => self.read_link(node).map(Reply::Bytes),
            Request::Make { dir, name, kind, permissions, result } => {
                self.make(dir, &name, (&kind, permissions), result).map(Reply::Attr)
            }
            Request::MakeDir { dir, name, permissions, result } => {
                self.make_dir(dir, &name, permissions, result).map(Reply::Attr)
            }
            Request::Complete { node, changes, clears_user } => {
                self.complete(node, changes, clears_user).map(done)
            }
            Request::Put(put) => match self.put(&put) {
                Ok(()) => return None,
                Err(error) => Err(error),
            },
            Request::Write { node, at, contents } => self.write(node, at, contents).map(done),
            Request::Link { node, dir, name, result } => {
                self.link(node, dir, &name, result).map(Reply::Attr)
            }
            Request::Append { node, contents } => self.append(node, contents).map(Reply::Count),
            Request::Unlink { dir, name } => self.unlink(dir, &name).map(done),
            Request::RemoveDir { dir, name } => self.remove_dir(dir, &name).map(done),
            Request::Rename { dir, name, new_dir, new_name } => {
                self.rename((dir, &name), (new_dir, &new_name)).map(done)
            }
            Request::Sync { node } => self.sync(node).map(done),
            Request::Query(query) => self.query(query),
            Request::XattrNames { node } => self.xattr_names(node).map(Reply::Bytes),
            Request::SetXattr { node, name, value } => {
                self.change_xattr(node, &name, Some(&value)).map(done)
            }
            Request::RemoveXattr { node, name } => self.change_xattr(node, &name, None).map(done),
            Request::Forget { node } => {
                self.handles.forget(node);
                self.trees.end(node);
                return None;
            }
        };
        Some(done.unwrap_or_else(|error| Reply::Fault(Fault::from(&error))))
    }

    fn caller<'c>(&'c self, condition: Option<&'c Condition<'c>>) -> Caller<'c> {
        Caller { umask: self.umask, ..self.user.caller(condition) }
    }

    fn attr(&self, node: Handle) -> Result<Attr> {
        self.volume.attr(self.handles.get(node)?.ino)
    }

    fn lookup(&mut self, dir: Handle, name: &[u8], result: Handle) -> Result<Attr> {
        let dir = self.handles.directory(dir)?;
        self.handles.check_room(result)?;
        checks::check(self.volume, self.user, &self.volume.attr(dir)?, EXECUTE)?;
        let found = self.volume.lookup(dir, name)?;
        self.handles.add(result, &found, false);
        Ok(found)
    }

    fn read_link(&self, node: Handle) -> Result<Vec<u8>> {
        self.volume.read_link(self.handles.get(node)?.ino)
    }

    /// Adds a name to a directory by `add`, which gets the owner and the mode that were checked, to make them
    /// its condition.
    fn add_name<T>(
        &self,
        dir: InodeNo,
        name: &[u8],
        add: impl Fn((u32, u32, u32)) -> Result<T>,
    ) -> Result<T> {
        retried(|| {
            let attr = self.volume.attr(dir)?;
            checks::check(self.volume, self.user, &attr, EXECUTE)?;
            if !checks::may(self.volume, self.user, &attr, WRITE | EXECUTE)? {
                // The kernel looks for the name first.
                return Err(match self.volume.lookup(dir, name) {
                    Ok(found) => {
                        self.volume.release(found.ino, 1);
                        Error::Exists
                    }
                    Err(Error::NotFound) => Error::AccessDenied,
                    Err(error) => error,
                });
            }
            add(owner_and_mode(&attr))
        })
    }

    /// Makes a file. The caller gets a reference, and notifies the kernel.
    fn make_file(&self, dir: InodeNo, name: &[u8], new: (&Kind, u32)) -> Result<Attr> {
        let (kind, mut permissions) = (new.0.borrowed(), new.1);
        if kind == NewKind::Directory {
            permissions &= 0o777 | access::STICKY;
        }
        // No program makes devices, whatever its capabilities. A whiteout of an overlay file system is none.
        let is_device = matches!(kind, NewKind::CharDevice(1..) | NewKind::BlockDevice(_));
        let User { uid, gid, .. } = *self.user;
        let new = NewFile { kind, permissions, uid, gid, times: None };
        self.add_name(dir, name, |checked| {
            if is_device {
                return Err(Error::NotPermitted);
            }
            let is_unchanged = |dir: &Attr, _: Option<&Attr>| owner_and_mode(dir) == checked;
            self.volume.make(&self.caller(Some(&is_unchanged)), dir, name, &new)
        })
    }

    fn make(
        &mut self,
        dir: Handle,
        name: &[u8],
        new: (&Kind, u32),
        result: Handle,
    ) -> Result<Attr> {
        let dir = self.handles.directory(dir)?;
        self.handles.check_room(result)?;
        let made = self.make_file(dir, name, new)?;
        self.tell_name(dir, name);
        self.handles.add(result, &made, true);
        Ok(made)
    }

    /// Makes a directory, or finds the one with this name.
    fn make_dir(
        &mut self,
        dir: Handle,
        name: &[u8],
        permissions: u32,
        result: Handle,
    ) -> Result<Attr> {
        match self.make(dir, name, (&Kind::Directory, permissions), result) {
            Err(Error::Exists) => {}
            made => return made,
        }
        let (_, found) = self.named_in(self.handles.directory(dir)?, name)?;
        let found = found?;
        if found.attr.file_type != FileType::Directory {
            return Err(Error::NotDirectory);
        }
        // The handle gets a reference of its own.
        self.handles.add(result, &self.volume.find(found.attr.ino)?, false);
        Ok(found.attr)
    }

    fn complete(&self, node: Handle, changes: SetAttr, clears_user: bool) -> Result<()> {
        let names = self.volume.xattr_names(self.handles.get(node)?.ino)?;
        for name in names.iter().filter(|name| follows_source(name)) {
            if clears_user || !name.starts_with(b"user.") {
                self.change_xattr(node, name, None)?;
            }
        }
        self.set_attr(node, changes)
    }

    fn put(&mut self, put: &Put) -> Result<()> {
        self.with_contents(put.contents, |program, contents| program.put_whole(put, contents))
    }

    /// Reads a range of the shared memory, and calls `work` with it.
    fn with_contents(
        &mut self,
        range: Memory,
        work: impl FnOnce(&Self, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut contents = std::mem::take(&mut self.contents);
        let read = self.memory.read(range, &mut contents);
        let done = read.and_then(|()| work(self, &contents));
        self.contents = contents;
        done
    }

    /// Makes a file, and replaces an existing file of the name. If that fails, no file has the name.
    fn put_whole(&self, put: &Put, contents: &[u8]) -> Result<()> {
        let dir = self.handles.directory(put.dir)?;
        let new = (&put.kind, put.permissions);
        let made = match self.make_file(dir, &put.name, new) {
            Err(Error::Exists) => {
                self.unlink(put.dir, &put.name)?;
                self.make_file(dir, &put.name, new)?
            }
            made => made?,
        };
        let filled = self.fill(&made, put, contents);
        if filled.is_err() {
            // If this fails, too, the first error is the more useful one.
            let _ = self.take_back(dir, &put.name, &made);
        }
        self.tell_name(dir, &put.name);
        // Another program may have examined it before it was complete.
        if self.volume.is_referenced(made.ino, 1) {
            self.observer.changed(Change::Contents(made.ino, 0, None));
        }
        self.volume.release(made.ino, 1);
        filled
    }

    /// Gives a new file its contents and attributes.
    fn fill(&self, made: &Attr, put: &Put, contents: &[u8]) -> Result<()> {
        self.write_all(made.ino, 0, contents)?;
        if !put.inherits_acls {
            let is_unchanged =
                |file: &Attr, _: Option<&Attr>| owner_and_mode(file) == owner_and_mode(made);
            copy_xattrs(self.volume, &self.caller(Some(&is_unchanged)), made.ino, &[])?;
        }
        if put.changes == SetAttr::default() {
            Ok(())
        } else {
            self.change(made.ino, true, put.changes)
        }
    }

    /// Removes a new file, if the program may, and the file is still as it was made.
    fn take_back(&self, dir: InodeNo, name: &[u8], made: &Attr) -> Result<()> {
        let attr = self.volume.attr(dir)?;
        checks::check(self.volume, self.user, &attr, WRITE | EXECUTE)?;
        let is_unchanged = |file: &Attr, dir: Option<&Attr>| {
            (file.ino, owner_and_mode(file)) == (made.ino, owner_and_mode(made))
                && dir.is_some_and(|dir| owner_and_mode(dir) == owner_and_mode(&attr))
        };
        self.volume.unlink(&self.caller(Some(&is_unchanged)), dir, name)
    }

    fn write_all(&self, ino: InodeNo, at: u64, contents: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < contents.len() {
            let at = at.checked_add(done as u64).ok_or(Error::TooLarge)?;
            match checks::write(self.volume, self.user, ino, at, &contents[done..])? {
                0 => return Err(Error::NoSpace),
                written => done += written,
            }
        }
        Ok(())
    }

    /// The regular file of a handle, if the program may write to it.
    fn writable(&self, node: Handle) -> Result<InodeNo> {
        let Held { ino, file_type, is_own, .. } = self.handles.get(node)?;
        reading::check_regular(file_type)?;
        if !is_own {
            checks::check(self.volume, self.user, &self.volume.attr(ino)?, WRITE)?;
        }
        Ok(ino)
    }

    fn write(&mut self, node: Handle, at: u64, range: Memory) -> Result<()> {
        let ino = self.writable(node)?;
        let written =
            self.with_contents(range, |program, contents| program.write_all(ino, at, contents));
        self.tell(ino, Change::Contents(ino, at, Some(range.len.into())));
        written
    }

    /// Returns the new end.
    fn append(&mut self, node: Handle, range: Memory) -> Result<u64> {
        let ino = self.writable(node)?;
        let mut end = 0;
        let written = self.with_contents(range, |program, contents| {
            let mut done = 0;
            while done < contents.len() {
                let (written, at) =
                    checks::append(program.volume, program.user, ino, &contents[done..])?;
                end = at;
                done += match written {
                    0 => return Err(Error::NoSpace),
                    written => written,
                };
            }
            Ok(())
        });
        self.tell(ino, Change::Contents(ino, 0, None));
        written.map(|()| end)
    }

    fn sync(&self, node: Handle) -> Result<()> {
        match self.handles.get(node)? {
            Held { file_type: FileType::Directory, .. } => self.volume.sync(),
            Held { ino, .. } => self.volume.sync_file(ino, false),
        }
    }

    fn set_attr(&self, node: Handle, changes: SetAttr) -> Result<()> {
        let Held { ino, file_type, is_own, .. } = self.handles.get(node)?;
        if changes.size.is_some() {
            reading::check_regular(file_type)?;
        }
        let changed = self.change(ino, is_own, changes);
        let change = match changes.size {
            Some(size) => Change::Contents(ino, size, None),
            None => Change::Attributes(ino),
        };
        self.tell(ino, change);
        changed
    }

    /// Changes attributes. The program may write to its own new files.
    fn change(&self, ino: InodeNo, is_own: bool, wanted: SetAttr) -> Result<()> {
        retried(|| {
            let attr = self.volume.attr(ino)?;
            let mut changes = wanted;
            checks::check_owner(self.user, &attr, &changes)?;
            let sets_now = [changes.atime, changes.mtime].contains(&Some(SetTime::Now));
            let needs_write = changes.size.is_some() && !is_own;
            if needs_write || sets_now && !self.user.owns(&attr) {
                checks::check(self.volume, self.user, &attr, WRITE)?;
            }
            checks::complete(self.user, &attr, &mut changes);
            if wanted.permissions.is_some() {
                // The new mode is set after the owner, as by chown(2) and then chmod(2), which needs the
                // rights of the new owner.
                let given = Attr { uid: changes.uid.unwrap_or(attr.uid), ..attr };
                if !self.user.owns(&given) {
                    return Err(Error::NotPermitted);
                }
                changes.clear_privileges = None;
            }
            let is_unchanged =
                |file: &Attr, _: Option<&Attr>| owner_and_mode(file) == owner_and_mode(&attr);
            self.volume.set_attr(&self.caller(Some(&is_unchanged)), ino, &changes).map(drop)
        })
    }

    fn link(&mut self, node: Handle, dir: Handle, name: &[u8], result: Handle) -> Result<Attr> {
        let (file, dir) = (self.handles.get(node)?, self.handles.directory(dir)?);
        self.handles.check_room(result)?;
        self.check_link(file.ino, dir, name)?;
        let linked = self.add_name(dir, name, |checked| {
            let attr = self.volume.attr(file.ino)?;
            if attr.nlink == 0 {
                return Err(Error::NotFound);
            }
            if !self.may_link(&attr)? {
                return Err(Error::NotPermitted);
            }
            let is_unchanged = |file: &Attr, dir: Option<&Attr>| {
                file.nlink > 0
                    && owner_and_mode(file) == owner_and_mode(&attr)
                    && dir.is_some_and(|dir| owner_and_mode(dir) == checked)
            };
            self.volume.link_by(&self.caller(Some(&is_unchanged)), file.ino, dir, name)
        })?;
        self.tell_name(dir, name);
        self.tell(file.ino, Change::Attributes(file.ino));
        self.handles.add(result, &linked, file.is_own);
        Ok(linked)
    }

    /// Fails if the program may not give names to a file. The kernel looks up the name before this check, and
    /// checks the right to change the directory after it.
    fn check_link(&self, file: InodeNo, dir: InodeNo, name: &[u8]) -> Result<()> {
        if self.may_link(&self.volume.attr(file)?)? {
            return Ok(());
        }
        match self.named_in(dir, name)?.1 {
            Ok(_) => Err(Error::Exists),
            Err(Error::NotFound) => Err(Error::NotPermitted),
            Err(error) => Err(error),
        }
    }

    /// Whether the program may give a file names: a user who does not own it as with
    /// `fs.protected_hardlinks` = 1.
    fn may_link(&self, attr: &Attr) -> Result<bool> {
        if self.user.owns(attr) {
            return Ok(true);
        }
        let set_group_id = SET_GROUP_ID | GROUP_EXECUTE;
        let gives_rights =
            attr.permissions & SET_USER_ID != 0 || attr.permissions & set_group_id == set_group_id;
        let is_plain = attr.file_type == FileType::Regular && !gives_rights;
        Ok(is_plain && checks::may(self.volume, self.user, attr, READ | WRITE)?)
    }

    /// Removes a name that is not a directory's, and notifies the kernel.
    fn unlink(&self, dir: Handle, name: &[u8]) -> Result<()> {
        let dir = self.handles.directory(dir)?;
        // The kernel looks up the name first, even if the program may not remove it.
        self.named_in(dir, name)?.1?;
        self.volume.find(dir)?;
        let mut failed = Ok(());
        let mut step = |failure: Option<Failed<'_>>, _: &_| {
            if let Some(failure) = failure {
                failed = Err(Error::from(Fault::from(failure.error)));
            }
            std::ops::ControlFlow::Continue(())
        };
        Removal::new(self.volume, self.observer, self.user, &mut step).run(dir, name, false);
        failed
    }

    fn xattr_names(&self, node: Handle) -> Result<Vec<u8>> {
        let mut list = Vec::new();
        for name in self.volume.xattr_names(self.handles.get(node)?.ino)? {
            if xattrs::is_shown(&name) {
                list.extend(name);
                list.push(0);
            }
        }
        Ok(list)
    }

    /// Sets an extended attribute, or removes it.
    fn change_xattr(&self, node: Handle, name: &[u8], value: Option<&[u8]>) -> Result<()> {
        let Held { ino, is_own, .. } = self.handles.get(node)?;
        let changed = retried(|| {
            let attr = self.volume.attr(ino)?;
            xattrs::check_change(self.volume, self.user, (&attr, is_own), name)?;
            let mut checked = owner_and_mode(&attr);
            if let Some(value) = value.filter(|_| name == access::ACL)
                && self.loses_set_group_id(&attr)
            {
                check_acl(value)?;
                // Before the ACL, so that the file never has both. If there is no space for the ACL, the bit
                // is still cleared.
                let permissions = Some(attr.permissions & !SET_GROUP_ID);
                let changes = SetAttr { permissions, ..SetAttr::default() };
                let is_unchanged =
                    |file: &Attr, _: Option<&Attr>| owner_and_mode(file) == owner_and_mode(&attr);
                let caller = self.caller(Some(&is_unchanged));
                checked = owner_and_mode(&self.volume.set_attr(&caller, ino, &changes)?);
            }
            let is_unchanged = |file: &Attr, _: Option<&Attr>| owner_and_mode(file) == checked;
            let caller = self.caller(Some(&is_unchanged));
            match value {
                Some(value) => self.volume.set_xattr(&caller, ino, name, value, XattrMode::Any),
                None => self.volume.remove_xattr_by(&caller, ino, name),
            }
        });
        self.tell(ino, Change::Attributes(ino));
        changed
    }

    /// Whether a file loses its set-group-ID bit when the user sets its ACL.
    fn loses_set_group_id(&self, attr: &Attr) -> bool {
        attr.permissions & SET_GROUP_ID != 0
            && !self.user.privileges.fsetid
            && !self.user.is_member(attr.gid)
    }

    /// Notifies the kernel of a changed file, if it may know the file.
    fn tell(&self, ino: InodeNo, change: Change<'_>) {
        if self.handles.is_known_to_others(ino) {
            self.observer.changed(change);
        }
    }

    /// Notifies the kernel of a new name, if it may know the directory.
    fn tell_name(&self, dir: InodeNo, name: &[u8]) {
        self.tell(dir, Change::Name(dir, name));
    }
}

/// Retries a change as long as the rights on which it depends change meanwhile.
fn retried<T>(change: impl Fn() -> Result<T>) -> Result<T> {
    for _ in 0..TRIES_MAX {
        match change() {
            Err(Error::Unmet) => {}
            done => return done,
        }
    }
    Err(Error::NotPermitted)
}

fn done((): ()) -> Reply {
    Reply::Done
}
