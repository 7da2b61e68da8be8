//! Removes a tree with the rights of a user, as rm(1) does through the kernel: depth first; files that cannot
//! be removed stay and are reported.
//!
//! The user needs write and search permission on a directory to remove its names, and read permission to list
//! it. These rights are read when the directory is entered, and again after names were listed or a directory
//! in it was looked up. Each removal has the condition that the directory's owner and mode are those that
//! were read, so a change of them takes effect as soon as it has returned.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::ControlFlow;

use cffs::error::{Error, Result};
use cffs::format::inode::FileType;
use cffs::units::InodeNo;
use cffs::vfs::types::{Access, Attr};
use cffs::vfs::{Caller, Volume};
use cffs::wire::{PATH_BYTES_MAX, Removed};

use crate::access::{self, EXECUTE, READ, User, WRITE};
use crate::shared::{Change, Observer};

/// The names that are listed at once.
const BATCH: usize = 128;
/// The number of directories whose listed names are kept. Others are listed again from their last position,
/// so that a deep tree takes little memory.
const KEPT_BATCHES: usize = 64;
/// How often a removal is retried because the rights on the directory changed.
const TRIES_MAX: u32 = 4;

/// A file that could not be removed.
pub(super) struct Failed<'a> {
    pub path: Vec<u8>,
    pub error: &'a Error,
}

/// Called for each file and each failure; may end the removal.
pub(super) type Step<'a> = dyn FnMut(Option<Failed<'_>>, &Removed) -> ControlFlow<()> + 'a;

type RemoveName = fn(&Volume, &Caller<'_>, InodeNo, &[u8]) -> Result<()>;

pub(super) struct Removal<'a> {
    volume: &'a Volume,
    observer: &'a dyn Observer,
    user: &'a User,
    step: &'a mut Step<'a>,
    /// The directories from the top to the current one.
    levels: Vec<Level>,
    /// The length of the path to the current directory.
    path_bytes: usize,
    removed: Removed,
}

/// A directory, on which this holds a reference.
struct Level {
    ino: InodeNo,
    /// Its name in the directory above.
    name: Vec<u8>,
    rights: Rights,
    entries: VecDeque<Entry>,
    /// Where the listing continues; `None` at its end.
    cookie: Option<u64>,
    is_changed: bool,
    /// Whether a file in it stays.
    keeps: bool,
}

struct Entry {
    name: Vec<u8>,
    is_dir: bool,
    cookie: u64,
}

/// The rights of the user on a directory, and the owner and mode that they result from.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Rights {
    list: bool,
    search: bool,
    change: bool,
    of: (u32, u32, u32),
}

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        for level in &self.levels {
            self.volume.release(level.ino, 1);
        }
    }
}

impl<'a> Removal<'a> {
    pub fn new(
        volume: &'a Volume,
        observer: &'a dyn Observer,
        user: &'a User,
        step: &'a mut Step<'a>,
    ) -> Removal<'a> {
        let (levels, removed) = Default::default();
        Removal { volume, observer, user, step, levels, path_bytes: 0, removed }
    }

    /// Removes a name from a directory, and takes over the caller's reference; with `recursive`, removes a
    /// directory with all its entries.
    pub fn run(mut self, dir: InodeNo, name: &[u8], recursive: bool) -> Removed {
        let rights = match self.volume.attr(dir).and_then(|attr| self.rights(&attr)) {
            Ok(rights) => rights,
            Err(error) => {
                self.volume.release(dir, 1);
                let _ =
                    (self.step)(Some(Failed { path: name.to_vec(), error: &error }), &self.removed);
                return self.removed;
            }
        };
        let entry = Entry { name: name.to_vec(), is_dir: recursive, cookie: 0 };
        self.enter(dir, Vec::new(), rights);
        if let Some(top) = self.levels.last_mut() {
            (top.entries, top.cookie) = (VecDeque::from([entry]), None);
        }
        // The top is left on the stack until the end, since it stays.
        while self.levels.len() > 1 || self.levels.iter().any(|top| !top.entries.is_empty()) {
            if self.advance().is_break() {
                break;
            }
        }
        for level in &self.levels {
            self.tell_listing(level);
        }
        self.removed
    }

    /// Handles the next name, continues the listing, or leaves the directory.
    fn advance(&mut self) -> ControlFlow<()> {
        let Some(level) = self.levels.last_mut() else { return ControlFlow::Break(()) };
        let Some(entry) = level.entries.pop_front() else {
            return match level.cookie {
                Some(cookie) => self.list(cookie),
                None => self.leave(),
            };
        };
        let done = if entry.is_dir { self.descend(&entry) } else { self.remove_file(&entry.name) };
        self.report(&entry.name, done)
    }

    /// Reports the outcome of removing a name of the current directory.
    fn report(&mut self, name: &[u8], done: Result<()>) -> ControlFlow<()> {
        let Err(error) = done else { return (self.step)(None, &self.removed) };
        if let Some(level) = self.levels.last_mut() {
            level.keeps = true;
        }
        let mut path = Vec::with_capacity(self.path_bytes + name.len());
        for level in self.levels.iter().skip(1) {
            path.extend_from_slice(&level.name);
            path.push(b'/');
        }
        path.extend_from_slice(name);
        (self.step)(Some(Failed { path, error: &error }), &self.removed)?;
        match error {
            // The volume cannot be changed at all.
            Error::Io(_) | Error::Latched(_) | Error::Damaged(_) | Error::ReadOnly => {
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        }
    }

    /// The rights on a directory with these attributes.
    fn rights(&self, dir: &Attr) -> Result<Rights> {
        let acl = match self.volume.xattr(dir.ino, access::ACL) {
            Ok(acl) => Some(acl),
            Err(Error::NoAttribute) => None,
            Err(error) => return Err(error),
        };
        let may = |wanted| self.user.may(dir, acl.as_deref(), wanted);
        Ok(Rights {
            list: may(READ),
            search: may(EXECUTE),
            change: may(WRITE | EXECUTE),
            of: owner_and_mode(dir),
        })
    }

    fn enter(&mut self, ino: InodeNo, name: Vec<u8>, rights: Rights) {
        self.path_bytes += name.len() + 1;
        // A directory that cannot be listed is removed if it is empty.
        let cookie = rights.list.then_some(0);
        let entries = VecDeque::new();
        self.levels.push(Level {
            ino,
            name,
            rights,
            entries,
            cookie,
            is_changed: false,
            keeps: false,
        });
    }

    /// Reads the rights on the current directory again.
    fn rights_now(&mut self) -> Result<Rights> {
        let Some(ino) = self.levels.last().map(|level| level.ino) else {
            return Err(Error::Stale);
        };
        let now = self.rights(&self.volume.attr(ino)?)?;
        if let Some(level) = self.levels.last_mut() {
            level.rights = now;
        }
        Ok(now)
    }

    /// Lists some names of the current directory, unless the user may no longer list it.
    fn list(&mut self, cookie: u64) -> ControlFlow<()> {
        let Some(level) = self.levels.last_mut() else { return ControlFlow::Break(()) };
        let (ino, entries) = (level.ino, &mut level.entries);
        let mut is_whole = true;
        let listed = self.volume.read_dir_plus(ino, cookie, None, Access::Unnoted, &mut |entry| {
            is_whole = entries.len() < BATCH;
            if is_whole {
                let is_dir = entry.file_type == FileType::Directory;
                entries.push_back(Entry {
                    name: entry.name.to_vec(),
                    is_dir,
                    cookie: entry.cookie,
                });
            }
            is_whole
        });
        level.cookie = match (is_whole || listed.is_err(), entries.back()) {
            (false, Some(last)) => Some(last.cookie),
            _ => None,
        };
        match listed.and_then(|()| self.rights_now()) {
            Ok(Rights { list: true, .. }) => ControlFlow::Continue(()),
            Ok(_) => {
                if let Some(level) = self.levels.last_mut() {
                    (level.entries, level.cookie) = (VecDeque::new(), None);
                }
                ControlFlow::Continue(())
            }
            Err(error) => self.report(b"", Err(error)),
        }
    }

    fn remove_file(&mut self, name: &[u8]) -> Result<()> {
        if let Some(ino) = self.remove_name(name, None, Volume::unlink)? {
            self.removed.files += 1;
            self.tell_removed(name, ino, Change::Attributes(ino));
        }
        Ok(())
    }

    /// Enters a directory, or removes the name if it is another file by now.
    fn descend(&mut self, entry: &Entry) -> Result<()> {
        let Some(level) = self.levels.last() else { return Ok(()) };
        let found = self.volume.lookup(level.ino, &entry.name);
        let may_search = self.rights_now().and_then(|rights| match rights.search {
            true => Ok(()),
            false => Err(Error::AccessDenied),
        });
        if let Err(denied) = may_search {
            found.iter().for_each(|found| self.volume.release(found.ino, 1));
            return Err(denied);
        }
        let found = match found {
            // Another program has removed it. Only the name that the caller gave must exist.
            Err(Error::NotFound) if self.levels.len() > 1 => return Ok(()),
            found => found?,
        };
        if found.file_type != FileType::Directory {
            self.volume.release(found.ino, 1);
            return self.remove_file(&entry.name);
        }
        let rights = match self.rights(&found) {
            Ok(rights) if self.path_bytes + entry.name.len() < PATH_BYTES_MAX - 256 => rights,
            other => {
                self.volume.release(found.ino, 1);
                return other.and(Err(Error::NameTooLong));
            }
        };
        if self.levels.len() > KEPT_BATCHES
            && let Some(level) = self.levels.last_mut()
            && !level.entries.is_empty()
        {
            level.entries = VecDeque::new();
            level.cookie = Some(entry.cookie);
        }
        self.enter(found.ino, entry.name.clone(), rights);
        Ok(())
    }

    /// Removes the current directory from its parent, if it is empty.
    fn leave(&mut self) -> ControlFlow<()> {
        let Some(level) = self.levels.pop() else { return ControlFlow::Break(()) };
        let done = match level.keeps {
            // The failures in it were reported.
            true => Ok(None),
            false => self.remove_name(&level.name, Some(level.ino), Volume::remove_dir),
        };
        self.path_bytes -= level.name.len() + 1;
        self.volume.release(level.ino, 1);
        if let (true, Some(above)) = (level.keeps, self.levels.last_mut()) {
            above.keeps = true;
        }
        match &done {
            Ok(Some(ino)) => {
                self.removed.directories += 1;
                self.tell_removed(&level.name, *ino, Change::Contents(*ino, 0, None));
            }
            _ if self.volume.is_referenced(level.ino, 0) => self.tell_listing(&level),
            _ => {}
        }
        let done = done.map(drop).map_err(|error| match error {
            // Its names were not listed.
            Error::NotEmpty if !level.rights.list => Error::AccessDenied,
            error => error,
        });
        self.report(&level.name, done)
    }

    /// Removes a name of the current directory, if the user may, and only if it is that of the `expected`
    /// inode, if one is given. Returns the inode; `None` if another program has removed the name.
    fn remove_name(
        &mut self,
        name: &[u8],
        expected: Option<InodeNo>,
        remove: RemoveName,
    ) -> Result<Option<InodeNo>> {
        for _ in 0..TRIES_MAX {
            match self.try_to_remove(name, expected, remove) {
                Err(Error::Unmet) => {}
                done => return done,
            }
        }
        Err(Error::NotPermitted)
    }

    /// Fails with [`Error::Unmet`] if the rights on the directory have changed.
    fn try_to_remove(
        &mut self,
        name: &[u8],
        expected: Option<InodeNo>,
        remove: RemoveName,
    ) -> Result<Option<InodeNo>> {
        // The name that the caller gave must exist; others may have been removed by other programs.
        let may_be_gone = self.levels.len() > 1;
        let Some(level) = self.levels.last_mut() else { return Ok(None) };
        let (dir, rights) = (level.ino, level.rights);
        if !rights.change {
            return Err(Error::AccessDenied);
        }
        let (taken, may_take) = (Cell::new(None), self.user.may_take());
        let condition = |file: &Attr, dir: Option<&Attr>| {
            taken.set(Some(file.ino));
            dir.is_none_or(|dir| owner_and_mode(dir) == rights.of)
                && expected.is_none_or(|expected| expected == file.ino)
                && may_take(file, dir)
        };
        match remove(self.volume, &self.user.caller(Some(&condition)), dir, name) {
            Ok(()) => {
                level.is_changed = true;
                return Ok(taken.get());
            }
            Err(Error::NotFound) if may_be_gone => return Ok(None),
            Err(Error::Unmet) => {}
            Err(error) => return Err(error),
        }
        if expected.is_some_and(|expected| taken.get() != Some(expected)) {
            // The directory was moved away, and another file has its name.
            return Err(Error::Stale);
        }
        match self.rights_now()? {
            now if now.of == rights.of => Err(Error::NotPermitted),
            _ => Err(Error::Unmet),
        }
    }

    /// Notifies the kernel of the removal of a name of the current directory, if it knows the inode.
    fn tell_removed(&self, name: &[u8], ino: InodeNo, inode: Change<'_>) {
        if let Some(level) = self.levels.last()
            && self.volume.is_referenced(ino, 0)
        {
            self.observer.changed(Change::Removed(level.ino, name));
            self.observer.changed(inode);
        }
    }

    /// Notifies the kernel that the listing of a directory has changed, if it has.
    fn tell_listing(&self, level: &Level) {
        if level.is_changed {
            self.observer.changed(Change::Contents(level.ino, 0, None));
        }
    }
}

/// The owner and the mode of a file: the rights on it result from them and its ACL.
pub(super) fn owner_and_mode(dir: &Attr) -> (u32, u32, u32) {
    (dir.uid, dir.gid, dir.permissions)
}
