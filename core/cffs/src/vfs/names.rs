//! Names: lookup, make, link, rename, unlink, and reading directories.

use std::sync::Arc;

use super::new::Making;
use super::quota::unless_exists;
use super::references::delete_unused;
use super::rename::Renaming;
use super::types::{Access, Plus};
use super::{Attr, Caller, DirEntry, NewFile, RenameMode, SetAttr, Volume};
use crate::error::{Error, Result};
use crate::inode::{Inode, Vnode, VnodeGuard, VnodeState};
use crate::lock::ReadGuard;
use crate::namespace::{Names, Namespace, read_dir};
use crate::trace::OpKind;
use crate::units::InodeNo;

impl Volume {
    /// The attributes of a file, with one reference on it for the caller.
    pub(super) fn attr_with_reference(&self, vnode: &Arc<Vnode>) -> Result<Attr> {
        Ok(Attr::of(&self.inodes().layout, &*state_with_reference(self, vnode)?))
    }

    /// The file with this name in a directory. Takes one reference.
    ///
    /// # Errors
    ///
    /// `ENOENT` if the directory has no such name or is removed; `ENOTDIR` if `dir` is not a directory;
    /// `ENAMETOOLONG` above 255 bytes; `EINVAL` for an empty name and one with a slash or a zero byte; those
    /// of [reading](super#errors).
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use cffs::error::{Error, Result};
    /// # use cffs::units::InodeNo;
    /// # use cffs::vfs::{Caller, NewFile, NewKind, RenameMode};
    /// # let device = Arc::new(cffs::device::MemoryDevice::new(16 << 20));
    /// # cffs::mkfs::make(&device, &Default::default())?;
    /// # let volume = cffs::open(device, Arc::new(cffs::clock::SystemClock), Default::default())?;
    /// # let new = NewFile { kind: NewKind::Regular, permissions: 0o644, uid: 0, gid: 0, times: None };
    /// # let me = &Caller::ROOT;
    /// let made = volume.make(me, InodeNo::ROOT, b"f", &new)?;
    /// assert_eq!(volume.lookup(InodeNo::ROOT, b"f")?.ino, made.ino);
    /// assert!(matches!(volume.lookup(InodeNo::ROOT, b"g"), Err(Error::NotFound)));
    /// assert!(matches!(volume.lookup(made.ino, b"f"), Err(Error::NotDirectory)));
    /// volume.release(made.ino, 2);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn lookup(&self, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        let _op = self.writer.enter(OpKind::Lookup, dir);
        self.calls.lookups.count();
        let parent = self.writer.vnode(dir)?;
        self.readahead.before_read(self.inodes(), &parent);
        let vnode = self.writer.health.noted(self.names.lookup(&parent, name))?;
        let (attr, is_away) = {
            // If the file was deleted meanwhile, so was its name.
            let state = state_with_reference(self, &vnode).map_err(|_| Error::NotFound)?;
            (Attr::of(&self.inodes().layout, &state), is_away(&state))
        };
        if is_away {
            re_embed(self, &parent, name, &vnode);
        }
        Ok(attr)
    }

    /// Finds an inode by its number, for handles that outlive a name. Takes one reference.
    ///
    /// # Errors
    ///
    /// `ESTALE` if no inode has this number, or only the volume itself uses it; those of
    /// [reading](super#errors).
    pub fn find(&self, ino: InodeNo) -> Result<Attr> {
        let _op = self.writer.enter(OpKind::Lookup, ino);
        let vnode = self.writer.vnode(ino)?;
        self.attr_with_reference(&vnode)
    }

    /// The parent of a directory; the root is its own.
    ///
    /// # Errors
    ///
    /// `ENOTDIR` if `dir` is not a directory; those of [reading](super#errors).
    pub fn parent(&self, dir: InodeNo) -> Result<InodeNo> {
        let _op = self.writer.enter(OpKind::Lookup, dir);
        if dir == InodeNo::ROOT {
            return Ok(InodeNo::ROOT);
        }
        let vnode = self.writer.vnode(dir)?;
        let state = vnode.state.read();
        if state.inode.is_dir() { Ok(state.inode.parent) } else { Err(Error::NotDirectory) }
    }

    /// Makes a file with a name. Takes one reference. The caller's condition applies to the directory.
    ///
    /// # Errors
    ///
    /// `EEXIST` if the directory has the name already; those of names as of [`lookup`](Volume::lookup);
    /// `EMLINK` for a directory in one whose link count has reached its maximum; of a symbolic link, `ENOENT`
    /// if the target is empty, `ENAMETOOLONG` if it is longer than 4095 bytes, and `EINVAL` if it has a zero
    /// byte; `EPERM` in a directory that is immutable; those of [changes](super#errors). Then nothing has
    /// been made.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use cffs::error::{Error, Result};
    /// # use cffs::units::InodeNo;
    /// # use cffs::vfs::{Caller, NewFile, NewKind, RenameMode};
    /// # let device = Arc::new(cffs::device::MemoryDevice::new(16 << 20));
    /// # cffs::mkfs::make(&device, &Default::default())?;
    /// # let volume = cffs::open(device, Arc::new(cffs::clock::SystemClock), Default::default())?;
    /// # let new = NewFile { kind: NewKind::Regular, permissions: 0o644, uid: 0, gid: 0, times: None };
    /// # let me = &Caller::ROOT;
    /// volume.make(me, InodeNo::ROOT, b"f", &new)?;
    /// let again = volume.make(me, InodeNo::ROOT, b"f", &new);
    /// assert!(matches!(again, Err(Error::Exists)));
    /// let empty = NewFile { kind: NewKind::Symlink(b""), ..new };
    /// assert!(matches!(volume.make(me, InodeNo::ROOT, b"l", &empty), Err(Error::NotFound)));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn make(
        &self,
        caller: &Caller<'_>,
        dir: InodeNo,
        name: &[u8],
        new: &NewFile<'_>,
    ) -> Result<Attr> {
        make_with(self, caller, dir, name, new, &SetAttr::default())
    }

    /// Makes a file without a name, which `link` can name; otherwise it is deleted with its last reference.
    /// Takes one reference.
    ///
    /// # Errors
    ///
    /// `ENOTDIR` if `dir` is not a directory; `ENOENT` if it is removed; `EPERM` if it is immutable; those of
    /// [changes](super#errors).
    pub fn make_unnamed(
        &self,
        caller: &Caller<'_>,
        dir: InodeNo,
        new: &NewFile<'_>,
    ) -> Result<Attr> {
        let _op = self.writer.enter(OpKind::Create, dir);
        self.calls.creates.count();
        let parent = self.writer.vnode(dir)?;
        self.protections.check_new_name(&parent)?;
        let changes = &SetAttr::default();
        let making = Making { names: &self.names, caller, new, changes };
        making.check()?;
        let vnode = self.change(|names| {
            names.inodes.alloc.check_room(self.reserve.spender(caller))?;
            let build = |ino, generation, parent: &Inode| making.build(ino, generation, parent);
            let make = || names.create_unnamed(&parent, build);
            let vnode = self.accounts.make(&names.inodes, &parent, make)?;
            self.references.orphan(vnode.ino);
            Ok(vnode)
        })?;
        self.attr_with_reference(&vnode)
    }

    /// Gives a file another name. Takes one reference.
    ///
    /// # Errors
    ///
    /// `EEXIST` if the directory has the name already; those of names as of
    /// [`lookup`](Volume::lookup); `EPERM` if `ino` is a directory, if it is immutable or
    /// append-only, or if `dir` is immutable; `EMLINK` if the file has as many names as the format
    /// can count; those of [changes](super#errors).
    pub fn link(&self, ino: InodeNo, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        self.link_by(&Caller::ROOT, ino, dir, name)
    }

    /// The same for a caller.
    ///
    /// # Errors
    ///
    /// Those of [`link`](Volume::link).
    pub fn link_by(
        &self,
        caller: &Caller<'_>,
        ino: InodeNo,
        dir: InodeNo,
        name: &[u8],
    ) -> Result<Attr> {
        let _op = self.writer.enter(OpKind::Link, dir);
        self.calls.creates.count();
        let parent = self.writer.vnode(dir)?;
        self.protections.check_new_name(&parent)?;
        let vnode = self.writer.vnode(ino)?;
        self.protections.check_unprotected(&vnode)?;
        let may_give = caller.may_take();
        // Within the change, since the next one may take the name again.
        self.change_alone(|names| {
            let link = || names.link(&vnode, &parent, name, &may_give);
            let linked = self.accounts.link(&names.inodes, &vnode, &parent, link);
            linked.map_err(|error| unless_exists(names, &parent, name, error))?;
            self.references.adopted(ino);
            Ok(())
        })?;
        self.attr_with_reference(&vnode)
    }

    /// Removes a name of a file that is not a directory.
    ///
    /// # Errors
    ///
    /// `ENOENT`, `ENOTDIR` and those of names as of [`lookup`](Volume::lookup); `EISDIR` if the
    /// name is a directory's; `EPERM` if the file or the directory is immutable or append-only;
    /// those of [changes](super#errors).
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use cffs::error::{Error, Result};
    /// # use cffs::units::InodeNo;
    /// # use cffs::vfs::{Caller, NewFile, NewKind, RenameMode};
    /// # let device = Arc::new(cffs::device::MemoryDevice::new(16 << 20));
    /// # cffs::mkfs::make(&device, &Default::default())?;
    /// # let volume = cffs::open(device, Arc::new(cffs::clock::SystemClock), Default::default())?;
    /// # let new = NewFile { kind: NewKind::Regular, permissions: 0o644, uid: 0, gid: 0, times: None };
    /// # let me = &Caller::ROOT;
    /// volume.make(me, InodeNo::ROOT, b"d", &NewFile { kind: NewKind::Directory, ..new })?;
    /// assert!(matches!(volume.unlink(me, InodeNo::ROOT, b"d"), Err(Error::IsDirectory)));
    /// volume.remove_dir(me, InodeNo::ROOT, b"d")?;
    /// assert!(matches!(volume.unlink(me, InodeNo::ROOT, b"d"), Err(Error::NotFound)));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn unlink(&self, caller: &Caller<'_>, dir: InodeNo, name: &[u8]) -> Result<()> {
        let _op = self.writer.enter(OpKind::Remove, dir);
        self.calls.removes.count();
        let parent = self.writer.vnode(dir)?;
        self.protections.check_old_name(&self.names, &parent, name)?;
        let may_take = caller.may_take();
        let unlink = |names: &Namespace| {
            let unlink = || names.unlink(&parent, name, &may_take);
            Ok(self.note_unnamed(&self.accounts.remove_name(&names.inodes, &parent, unlink)?))
        };
        delete_unused(self, self.change(unlink)?);
        Ok(())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    ///
    /// `ENOTEMPTY` if it has entries; `ENOTDIR` if the name is another file's; `ENOENT` and those
    /// of names as of [`lookup`](Volume::lookup); `EPERM` as of [`unlink`](Volume::unlink); those
    /// of [changes](super#errors).
    pub fn remove_dir(&self, caller: &Caller<'_>, dir: InodeNo, name: &[u8]) -> Result<()> {
        let _op = self.writer.enter(OpKind::Remove, dir);
        self.calls.removes.count();
        let parent = self.writer.vnode(dir)?;
        self.protections.check_old_name(&self.names, &parent, name)?;
        let may_take = caller.may_take();
        let remove = |names: &Namespace| {
            let remove = || names.remove_dir(&parent, name, &may_take);
            Ok(self.note_unnamed(&self.accounts.remove_name(&names.inodes, &parent, remove)?))
        };
        delete_unused(self, self.change(remove)?);
        Ok(())
    }

    /// Records that a file has lost its last name, if it has, within the change that removed one. Returns its
    /// number if it is unused, for the caller to delete it.
    pub(super) fn note_unnamed(&self, vnode: &Arc<Vnode>) -> Option<InodeNo> {
        let is_unnamed = vnode.state.read().inode.nlink == 0;
        (is_unnamed && self.references.orphan(vnode.ino)).then_some(vnode.ino)
    }

    /// Frees a file and its number, if it has no name left and is unused. The release of its last reference
    /// does so otherwise.
    pub(super) fn delete(&self, ino: InodeNo) -> Result<()> {
        let Some(vnode) = self.inodes().peek(ino) else { return Ok(()) };
        let _gate = self.writer.gate.read();
        let mut file = VnodeGuard::new(&vnode);
        if file.inode.nlink > 0 || !self.references.take_unused(ino) {
            return Ok(());
        }
        let destroy = |file: &mut VnodeGuard<'_>| self.inodes().destroy(file);
        let deleted = self.accounts.deleted(&self.inodes().layout, &mut file, destroy);
        self.references.deleted(ino);
        self.writer.health.noted(deleted)
    }

    /// Whether a front end, or the kernel, has a reference to a file in addition to the `own` ones of the
    /// caller, and may know its attributes. References are taken before attributes are read: if a file has
    /// none after a change, then no other front end knows the state before the change.
    pub fn is_referenced(&self, ino: InodeNo, own: u64) -> bool {
        self.references.count(ino) > own
    }

    /// Releases references that lookups and similar calls took. A file without a name is deleted with its
    /// last reference.
    pub fn release(&self, ino: InodeNo, references: u64) {
        let _op = self.writer.enter(OpKind::Release, ino);
        if self.references.release(ino, references) && self.writer.health.check_writable().is_ok() {
            delete_unused(self, Some(ino));
        }
    }

    /// Gives a file a new name in place of its old one. Returns whether that changed anything: if both are
    /// names of one file, both stay, as specified for rename(2).
    ///
    /// # Errors
    ///
    /// `ENOENT` if the old name, or with [`Exchange`](RenameMode::Exchange) one of the two, does
    /// not exist; those of names as of [`lookup`](Volume::lookup); `EEXIST` if the new name exists
    /// and is not to be replaced; `ENOTDIR` if a directory would replace a file, and `EISDIR` the
    /// other way round; `ENOTEMPTY` if the directory to be replaced has entries; `EINVAL` if a
    /// directory would move below itself; `EMLINK` if the new directory has as many directories as
    /// its link count can hold; `EPERM` as of [`unlink`](Volume::unlink), for both names, and if
    /// the new directory is immutable; those of [changes](super#errors). Nothing has been
    /// renamed then, unless the device failed.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use cffs::error::{Error, Result};
    /// # use cffs::units::InodeNo;
    /// # use cffs::vfs::{Caller, NewFile, NewKind, RenameMode};
    /// # let device = Arc::new(cffs::device::MemoryDevice::new(16 << 20));
    /// # cffs::mkfs::make(&device, &Default::default())?;
    /// # let volume = cffs::open(device, Arc::new(cffs::clock::SystemClock), Default::default())?;
    /// # let new = NewFile { kind: NewKind::Regular, permissions: 0o644, uid: 0, gid: 0, times: None };
    /// # let me = &Caller::ROOT;
    /// volume.make(me, InodeNo::ROOT, b"a", &new)?;
    /// volume.make(me, InodeNo::ROOT, b"b", &new)?;
    /// let (root, keep) = (InodeNo::ROOT, RenameMode::NoReplace);
    /// assert!(matches!(volume.rename(me, root, b"a", root, b"b", keep), Err(Error::Exists)));
    /// assert!(volume.rename(me, root, b"a", root, b"b", RenameMode::Replace)?);
    /// assert!(matches!(volume.lookup(root, b"a"), Err(Error::NotFound)));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn rename(
        &self,
        caller: &Caller<'_>,
        dir: InodeNo,
        name: &[u8],
        new_dir: InodeNo,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<bool> {
        let _op = self.writer.enter(OpKind::Rename, dir);
        self.calls.renames.count();
        let from = self.writer.vnode(dir)?;
        let to = self.writer.vnode(new_dir)?;
        let names = Names { from: &from, name, to: &to, new_name };
        self.protections.check_rename(&self.names, &names)?;
        Renaming { volume: self, caller, names }.run(mode)
    }

    /// Visits the entries of a directory after `cookie` (0 for all), without `.` and `..`, until `visit`
    /// returns false for an entry, which then was not taken. With `plus`, entries have their attributes, and
    /// each taken one has one reference.
    ///
    /// # Errors
    ///
    /// `ENOTDIR` if `dir` is not a directory; those of [reading](super#errors). The entries before the one
    /// that failed have been visited.
    pub fn read_dir(
        &self,
        dir: InodeNo,
        cookie: u64,
        plus: bool,
        visit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let all: Plus<'_> = &|_| true;
        self.read_dir_plus(dir, cookie, plus.then_some(all), Access::Noted, visit)
    }

    /// The same, with attributes only for the entries that `plus` chooses, if given. `access` says whether it
    /// sets the access time.
    ///
    /// # Errors
    ///
    /// Those of [`Volume::read_dir`].
    pub fn read_dir_plus(
        &self,
        dir: InodeNo,
        cookie: u64,
        plus: Option<Plus<'_>>,
        access: Access,
        visit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let _op = self.writer.enter(OpKind::List, dir);
        self.calls.dir_reads.count();
        let vnode = self.writer.vnode(dir)?;
        self.readahead.before_read(self.inodes(), &vnode);
        let state = vnode.state.read();
        if plus.is_some() && cookie == 0 {
            self.readahead.before_listing(self.inodes(), &state);
        }
        let listed = read_dir(self.inodes(), &state, cookie, &mut |visited| {
            let mut entry = DirEntry {
                name: visited.name,
                ino: visited.ino,
                file_type: visited.file_type,
                cookie: visited.cookie,
                attr: None,
            };
            if !plus.is_some_and(|wants_attr| wants_attr(&entry)) {
                return Ok(visit(&entry));
            }
            // The reference comes before the visit, so that no other thread deletes the file in between.
            let file = self.names.vnode_visited(visited)?;
            entry.attr = Some(self.attr_with_reference(&file)?);
            let taken = visit(&entry);
            if !taken {
                self.references.release(visited.ino, 1);
            }
            Ok(taken)
        });
        self.writer.health.noted(listed)?;
        let stale_atime = access == Access::Noted && self.wants_atime(&state);
        drop(state);
        if stale_atime {
            self.set_atime(dir);
        }
        Ok(())
    }
}

/// Makes a file as [`Volume::make`] does, which has attributes of `changes` from the beginning, in
/// place of those of `new` and of those that it inherits. No other call sees it without them.
///
/// # Errors
///
/// Those of [`Volume::make`]; of a size, `EFBIG` above the largest size of a file, `EISDIR` for a
/// directory, `EINVAL` for other files that have no contents.
pub fn make_with(
    volume: &Volume,
    caller: &Caller<'_>,
    dir: InodeNo,
    name: &[u8],
    new: &NewFile<'_>,
    changes: &SetAttr,
) -> Result<Attr> {
    let _op = volume.writer.enter(OpKind::Create, dir);
    volume.calls.creates.count();
    let parent = volume.writer.vnode(dir)?;
    volume.protections.check_new_name(&parent)?;
    let making = Making { names: &volume.names, caller, new, changes };
    making.check()?;
    let may_add = |dir: &VnodeState| caller.check(dir, None);
    let make = |names: &Namespace| {
        let build = |ino, generation, parent: &Inode| making.build(ino, generation, parent);
        let vnode = names.create(&parent, name, &may_add, build)?;
        if let Err(error) = making.fill_long_target(&vnode) {
            names.unlink(&parent, name, &|_, _| Ok(()))?;
            names.inodes.destroy(&mut VnodeGuard::new(&vnode))?;
            return Err(error);
        }
        Ok(vnode)
    };
    let vnode = volume.change(|names| {
        names.inodes.alloc.check_room(volume.reserve.spender(caller))?;
        let made = volume.accounts.make(&names.inodes, &parent, || make(names));
        made.map_err(|error| unless_exists(names, &parent, name, error))
    })?;
    volume.attr_with_reference(&vnode)
}

/// The state of a file, with one reference on it for the caller. Fails with `ESTALE` if the file was
/// deleted since the caller found it: another front end may have removed its name meanwhile.
fn state_with_reference<'a>(
    volume: &Volume,
    vnode: &'a Arc<Vnode>,
) -> Result<ReadGuard<'a, VnodeState>> {
    volume.references.take(vnode.ino);
    let state = vnode.state.read();
    // A deletion checks for references and removes the vnode from the table while it holds the state for
    // writing. A file without a name is in the table until then.
    let is_known =
        || volume.inodes().peek(vnode.ino).is_some_and(|known| Arc::ptr_eq(&known, vnode));
    if state.inode.nlink > 0 || is_known() {
        return Ok(state);
    }
    drop(state);
    volume.release(vnode.ino, 1);
    Err(Error::Stale)
}

/// Whether an inode is in the external table although it has a single name.
fn is_away(file: &VnodeState) -> bool {
    file.inode.nlink == 1 && file.container.is_some_and(|place| place.file == InodeNo::EXTERNAL)
}

/// An inode that lost its other names returns to its directory, now that it is known which one is left. If
/// the change is not possible now, a later lookup makes it.
fn re_embed(volume: &Volume, parent: &Arc<Vnode>, name: &[u8], vnode: &Arc<Vnode>) {
    let writer = &volume.writer;
    if !volume.inodes().features.embed
        || vnode.is_queued()
        || writer.health.check_changeable().is_err()
    {
        return;
    }
    let Some(_gate) = writer.gate.try_read() else { return };
    if let Err(error) = writer.health.noted(volume.names.return_to_directory(parent, name)) {
        tracing::warn!("inode {} stays in the external table: {error}", vnode.ino);
    }
}
