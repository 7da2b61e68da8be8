//! The procedures on names: lookup, creation, removal, renaming, listing.

use cffs::error::Error;
use cffs::format::inode::FileType;
use cffs::units::InodeNo;
use cffs::vfs::make_with;
use cffs::vfs::types::{Attr, NewFile, NewKind, Plus, RenameMode, SetAttr};
use nfs_wire::nfs::reply::{self, Listing};
use nfs_wire::nfs::{DirEntry, How, NewNode, SetAttributes, Status, Time};
use nfs_wire::xdr::Writer;

use super::file::File;
use super::handle::HANDLE_BYTES;
use super::request::{Request, TRANSFER_BYTES_MAX};
use super::translate;
use crate::access::{EXECUTE, READ, WRITE};
use crate::shared::Change;

/// Cookies of the two entries that the volume does not store; the volume's own cookies are shifted by this.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;

/// The mode of a new file or directory if the caller gives none.
const FILE_MODE: u32 = 0o644;
const DIR_MODE: u32 = 0o755;

/// The file of a CREATE or similar call, and whether it is new, which changes its directory.
type Made = (Attr, bool);

/// A created or found file, with its handle.
type Named = ([u8; HANDLE_BYTES], Attr);

impl Request<'_> {
    pub(super) fn lookup(&self, w: &mut Writer, at: DirEntry<'_>) {
        let dir = match self.file(at.dir) {
            Ok(dir) => dir,
            Err(status) => return reply::found(w, Err(status), None),
        };
        let found = self.find(&dir, at.name);
        let outcome = found.as_ref().map_err(|status| *status);
        let fsid = self.exported.fsid;
        let outcome =
            outcome.map(|(handle, attr)| (&handle[..], translate::attributes(attr, fsid)));
        reply::found(w, outcome, dir.after().as_ref());
    }

    fn find(&self, dir: &File<'_>, name: &[u8]) -> Result<Named, Status> {
        dir.check_dir()?;
        dir.check(EXECUTE)?;
        let volume = &self.exported.volume;
        let failed = translate::status("lookup");
        let attr = match name {
            b"." => dir.attr,
            b".." => volume.attr(self.parent(dir)?).map_err(failed)?,
            name => {
                let attr = volume.lookup(dir.ino(), name).map_err(failed)?;
                volume.release(attr.ino, 1);
                attr
            }
        };
        Ok((dir.handle_of(&attr), attr))
    }

    /// The parent of a directory, within the export.
    fn parent(&self, dir: &File<'_>) -> Result<InodeNo, Status> {
        if dir.ino() == dir.directory.root {
            return Ok(dir.ino());
        }
        self.exported.volume.parent(dir.ino()).map_err(translate::status("lookup"))
    }

    pub(super) fn create(&self, w: &mut Writer, at: DirEntry<'_>, how: How) {
        self.reply_made(w, at, |dir| match how {
            How::Guarded(attributes) => {
                self.make(dir, at.name, NewKind::Regular, FILE_MODE, &attributes)
            }
            How::Unchecked(attributes) => {
                match self.make(dir, at.name, NewKind::Regular, FILE_MODE, &attributes) {
                    Err(Status::Exist) => Ok((self.take(dir, at.name, &attributes)?, false)),
                    other => other,
                }
            }
            How::Exclusive(verifier) => self.make_exclusive(dir, at.name, verifier),
        });
    }

    pub(super) fn make_dir(&self, w: &mut Writer, at: DirEntry<'_>, attributes: &SetAttributes) {
        let make =
            |dir: &File<'_>| self.make(dir, at.name, NewKind::Directory, DIR_MODE, attributes);
        self.reply_made(w, at, make);
    }

    pub(super) fn symlink(
        &self,
        w: &mut Writer,
        at: DirEntry<'_>,
        attributes: &SetAttributes,
        target: &[u8],
    ) {
        let attributes = SetAttributes { mode: None, size: None, ..*attributes };
        let kind = NewKind::Symlink(target);
        self.reply_made(w, at, |dir| self.make(dir, at.name, kind, FILE_MODE, &attributes));
    }

    pub(super) fn make_node(&self, w: &mut Writer, at: DirEntry<'_>, node: NewNode) {
        let device = |(major, minor): (u32, u32)| u64::from(major) << 32 | u64::from(minor);
        let (kind, attributes) = match node {
            NewNode::CharDevice(attributes, number) => {
                (NewKind::CharDevice(device(number)), attributes)
            }
            NewNode::BlockDevice(attributes, number) => {
                (NewKind::BlockDevice(device(number)), attributes)
            }
            NewNode::Socket(attributes) => (NewKind::Socket, attributes),
            NewNode::Fifo(attributes) => (NewKind::Fifo, attributes),
            NewNode::Other => return self.reply_made(w, at, |_| Err(Status::BadType)),
        };
        let is_device = matches!(kind, NewKind::CharDevice(_) | NewKind::BlockDevice(_));
        let attributes = SetAttributes { size: None, ..attributes };
        self.reply_made(w, at, |dir| {
            if is_device && !dir.user.is_root() {
                return Err(Status::Perm);
            }
            self.make(dir, at.name, kind, FILE_MODE, &attributes)
        });
    }

    fn reply_made(
        &self,
        w: &mut Writer,
        at: DirEntry<'_>,
        make: impl FnOnce(&File<'_>) -> Result<Made, Status>,
    ) {
        let dir = match self.file(at.dir) {
            Ok(dir) => dir,
            Err(status) => return reply::made(w, Err(status), &Default::default()),
        };
        let made = check_new_name(at.name).and_then(|()| make(&dir)).and_then(|made| {
            dir.durable(&[made.0.ino, dir.ino()])?;
            Ok(made)
        });
        let is_change = matches!(made, Ok((_, true)));
        let wcc = dir.wcc_of(is_change.into());
        let made = made.map(|(attr, _)| (dir.handle_of(&attr), attr));
        let fsid = self.exported.fsid;
        let outcome = made.as_ref().map_err(|status| *status);
        let outcome =
            outcome.map(|(handle, attr)| (&handle[..], translate::attributes(attr, fsid)));
        reply::made(w, outcome, &wcc);
    }

    fn make(
        &self,
        dir: &File<'_>,
        name: &[u8],
        kind: NewKind<'_>,
        mode: u32,
        attributes: &SetAttributes,
    ) -> Result<Made, Status> {
        dir.check_names()?;
        let mut changes = translate::set_attr(attributes)?;
        let new = new_file(dir, kind, changes.permissions.take().unwrap_or(mode));
        if !dir.user.is_root() {
            // A new file belongs to its creator.
            (changes.uid, changes.gid) = (None, None);
        }
        // A new file is empty already.
        changes.size = changes.size.filter(|size| *size > 0);
        let volume = &self.exported.volume;
        let caller = dir.user.caller(None);
        let made = make_with(volume, &caller, dir.ino(), name, &new, &changes);
        let attr = made.map_err(translate::status("create"))?;
        dir.changed_name(name);
        volume.release(attr.ino, 1);
        Ok((attr, true))
    }

    /// The existing file with the name, for CREATE; only its size is set.
    fn take(
        &self,
        dir: &File<'_>,
        name: &[u8],
        attributes: &SetAttributes,
    ) -> Result<Attr, Status> {
        let (handle, attr) = self.find(dir, name)?;
        if attr.file_type != FileType::Regular {
            return Err(Status::Exist);
        }
        let Some(size) = attributes.size else { return Ok(attr) };
        let file = self.file(&handle)?;
        let mut changes = SetAttr { size: Some(size), ..SetAttr::default() };
        file.check_set_attr(&mut changes)?;
        let set = self.exported.volume.set_attr(&dir.user.caller(None), attr.ino, &changes);
        dir.changed(Change::Contents(attr.ino, 0, None));
        set.map_err(translate::status("create"))
    }

    /// The verifier is kept in the times of the new file until the client sets them: so a repeated call finds
    /// its file, even after a crash.
    fn make_exclusive(
        &self,
        dir: &File<'_>,
        name: &[u8],
        verifier: [u8; 8],
    ) -> Result<Made, Status> {
        dir.check_names()?;
        let [a, b, c, d, e, f, g, h] = verifier;
        let time = |bytes| Time { seconds: u32::from_be_bytes(bytes), nanoseconds: 0 };
        let atime = translate::timestamp(time([a, b, c, d]))?;
        let mtime = translate::timestamp(time([e, f, g, h]))?;
        let volume = &self.exported.volume;
        // Its owner can write to it anyway, and other users cannot before the client has set the mode.
        let times = Some((atime, mtime));
        let new = NewFile { times, ..new_file(dir, NewKind::Regular, 0) };
        match volume.make(&dir.user.caller(None), dir.ino(), name, &new) {
            Ok(attr) => {
                dir.changed_name(name);
                volume.release(attr.ino, 1);
                Ok((attr, true))
            }
            Err(Error::Exists) => {
                let (_, attr) = self.find(dir, name)?;
                let is_it = (attr.atime, attr.mtime) == (atime, mtime);
                let is_regular = attr.file_type == FileType::Regular;
                if is_it && is_regular { Ok((attr, false)) } else { Err(Status::Exist) }
            }
            Err(error) => Err(translate::status("create")(error)),
        }
    }

    pub(super) fn remove(&self, w: &mut Writer, at: DirEntry<'_>, is_dir: bool) {
        let dir = match self.file(at.dir) {
            Ok(dir) => dir,
            Err(status) => return reply::changed(w, Err(status), &Default::default()),
        };
        let outcome = self.remove_from(&dir, at.name, is_dir);
        reply::changed(w, outcome, &dir.wcc(&outcome));
    }

    fn remove_from(&self, dir: &File<'_>, name: &[u8], is_dir: bool) -> Result<(), Status> {
        check_old_name(name)?;
        dir.check_names()?;
        let removed = self.named(dir, name)?;
        let volume = &self.exported.volume;
        let may_take = dir.user.may_take();
        let caller = dir.user.caller(Some(&may_take));
        match is_dir {
            true => volume.remove_dir(&caller, dir.ino(), name),
            false => volume.unlink(&caller, dir.ino(), name),
        }
        .map_err(translate::status("remove"))?;
        dir.changed_name(name);
        if let Some(file) = removed {
            dir.changed(Change::Attributes(file.ino));
        }
        dir.durable(&[dir.ino()])
    }

    /// The file with a name, if it exists.
    fn named(&self, dir: &File<'_>, name: &[u8]) -> Result<Option<Attr>, Status> {
        let volume = &self.exported.volume;
        let attr = match volume.lookup(dir.ino(), name) {
            Ok(attr) => attr,
            Err(Error::NotFound) => return Ok(None),
            Err(error) => return Err(translate::status("lookup")(error)),
        };
        volume.release(attr.ino, 1);
        Ok(Some(attr))
    }

    pub(super) fn rename(&self, w: &mut Writer, from: DirEntry<'_>, to: DirEntry<'_>) {
        let dirs = self.file(from.dir).and_then(|dir| Ok((dir, self.file(to.dir)?)));
        let (from_dir, to_dir) = match dirs {
            Ok(dirs) => dirs,
            Err(status) => {
                let none = Default::default();
                return reply::renamed(w, Err(status), &none, &none);
            }
        };
        let outcome = self.rename_between((&from_dir, from.name), (&to_dir, to.name));
        // If both directories are the same, it is changed twice.
        let changes = if from_dir.ino() == to_dir.ino() { 2 } else { 1 };
        let own = if outcome == Ok(true) { changes } else { 0 };
        let outcome = outcome.map(drop);
        reply::renamed(w, outcome, &from_dir.wcc_of(own), &to_dir.wcc_of(own));
    }

    /// Whether the rename changes anything: if both names refer to one file, both stay.
    fn rename_between(
        &self,
        (from, old): (&File<'_>, &[u8]),
        (to, new): (&File<'_>, &[u8]),
    ) -> Result<bool, Status> {
        check_old_name(old)?;
        check_old_name(new)?;
        if from.directory.id != to.directory.id {
            return Err(Status::XDev);
        }
        from.check_names()?;
        to.check_names()?;
        let moved = self.named(from, old)?.ok_or(Status::NoEnt)?;
        let replaced = self.named(to, new)?;
        if moved.file_type == FileType::Directory && from.ino() != to.ino() {
            // Its entry `..` changes.
            self.file(&from.handle_of(&moved))?.check(WRITE)?;
        }
        let may_take = from.user.may_take();
        let caller = from.user.caller(Some(&may_take));
        let has_moved = self
            .exported
            .volume
            .rename(&caller, from.ino(), old, to.ino(), new, RenameMode::Replace)
            .map_err(translate::status("rename"))?;
        from.changed_name(old);
        to.changed_name(new);
        for file in [Some(moved), replaced].into_iter().flatten() {
            from.changed(Change::Attributes(file.ino));
        }
        from.durable(&[from.ino(), to.ino(), moved.ino])?;
        Ok(has_moved)
    }

    pub(super) fn link(&self, w: &mut Writer, handle: &[u8], to: DirEntry<'_>) {
        let files = self.file(handle).and_then(|file| Ok((file, self.file(to.dir)?)));
        let (file, dir) = match files {
            Ok(files) => files,
            Err(status) => return reply::linked(w, Err(status), None, &Default::default()),
        };
        let outcome = self.link_to(&file, &dir, to.name);
        reply::linked(w, outcome, file.after().as_ref(), &dir.wcc(&outcome));
    }

    fn link_to(&self, file: &File<'_>, dir: &File<'_>, name: &[u8]) -> Result<(), Status> {
        check_new_name(name)?;
        if file.directory.id != dir.directory.id {
            return Err(Status::XDev);
        }
        dir.check_names()?;
        let volume = &self.exported.volume;
        let linked = volume.link(file.ino(), dir.ino(), name);
        let attr = linked.map_err(translate::status("link"))?;
        volume.release(attr.ino, 1);
        dir.changed_name(name);
        dir.changed(Change::Attributes(file.ino()));
        dir.durable(&[file.ino(), dir.ino()])
    }

    pub(super) fn read_dir(&self, w: &mut Writer, handle: &[u8], cookie: u64, bytes_max: u32) {
        let dir = match self.listed(handle) {
            Ok(dir) => dir,
            Err(status) => return reply::failed(w, status, None),
        };
        let (begin, attributes) = (w.bytes().len(), dir.after());
        let mut listing = Listing::new(w, attributes.as_ref(), bytes_max.min(TRANSFER_BYTES_MAX));
        let listed = self.list(&dir, cookie, false, |name, ino, cookie, _| {
            listing.push(ino.0, name, cookie, None)
        });
        if let Err(status) = listed.and_then(|()| listing.finish()) {
            w.cut(begin);
            reply::failed(w, status, attributes.as_ref());
        }
    }

    pub(super) fn read_dir_plus(
        &self,
        w: &mut Writer,
        handle: &[u8],
        cookie: u64,
        names_max: u32,
        bytes_max: u32,
    ) {
        let dir = match self.listed(handle) {
            Ok(dir) => dir,
            Err(status) => return reply::failed(w, status, None),
        };
        let (begin, attributes) = (w.bytes().len(), dir.after());
        let bytes_max = bytes_max.min(TRANSFER_BYTES_MAX);
        let mut listing = Listing::plus(w, attributes.as_ref(), names_max, bytes_max);
        let fsid = self.exported.fsid;
        let listed = self.list(&dir, cookie, true, |name, ino, cookie, attr| {
            let file = attr.map(|attr| (dir.handle_of(attr), translate::attributes(attr, fsid)));
            let file = file.as_ref().map(|(handle, attributes)| (&handle[..], attributes));
            listing.push(ino.0, name, cookie, file)
        });
        if let Err(status) = listed.and_then(|()| listing.finish()) {
            w.cut(begin);
            reply::failed(w, status, attributes.as_ref());
        }
    }

    /// The directory to list.
    ///
    /// Cookies stay valid, so the verifier that accompanies one is ignored: some clients begin with a
    /// non-zero verifier.
    fn listed(&self, handle: &[u8]) -> Result<File<'_>, Status> {
        let dir = self.file(handle)?;
        dir.check_dir()?;
        dir.check(READ)?;
        Ok(dir)
    }

    fn list(
        &self,
        dir: &File<'_>,
        mut from: u64,
        plus: bool,
        mut push: impl FnMut(&[u8], InodeNo, u64, Option<&Attr>) -> bool,
    ) -> Result<(), Status> {
        let volume = &self.exported.volume;
        let failed = translate::status("readdir");
        while from < DOT_DOT {
            let (ino, cookie, name) = match from {
                0 => (dir.ino(), DOT, &b"."[..]),
                _ => (self.parent(dir)?, DOT_DOT, &b".."[..]),
            };
            let attr = if plus { Some(volume.attr(ino).map_err(&failed)?) } else { None };
            if !push(name, ino, cookie, attr.as_ref()) {
                return Ok(());
            }
            from = cookie;
        }
        // References are dropped after the directory is unlocked.
        let mut seen = Vec::new();
        let (from, all): (_, Plus<'_>) = (from - DOT_DOT, &|_| true);
        let (plus_all, access) = (plus.then_some(all), dir.access());
        let listed = volume.read_dir_plus(dir.ino(), from, plus_all, access, &mut |entry| {
            let cookie = entry.cookie + DOT_DOT;
            let taken = push(entry.name, entry.ino, cookie, entry.attr.as_ref());
            if taken && plus {
                seen.push(entry.ino);
            }
            taken
        });
        seen.into_iter().for_each(|ino| volume.release(ino, 1));
        listed.map_err(failed)
    }
}

fn new_file<'a>(dir: &File<'_>, kind: NewKind<'a>, permissions: u32) -> NewFile<'a> {
    let (uid, gid) = (dir.user.uid, dir.user.gid);
    NewFile { kind, permissions: permissions & 0o7777, uid, gid, times: None }
}

/// Refuses to create the two names that every directory has.
fn check_new_name(name: &[u8]) -> Result<(), Status> {
    if matches!(name, b"." | b"..") { Err(Status::Exist) } else { Ok(()) }
}

/// Refuses to remove them.
fn check_old_name(name: &[u8]) -> Result<(), Status> {
    if matches!(name, b"." | b"..") { Err(Status::Inval) } else { Ok(()) }
}
