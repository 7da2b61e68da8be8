//! Files by number: their contents and attributes.

use std::cell::Cell;

use super::copy::{Copying, Place};
use super::ids::check_id;
use super::quota::{Growth, change_contents};
use super::write::{CAPABILITY, Inline, Start, Write, check_regular, written};
use super::xattr::is_own;
use super::{
    Access, AllocateMode, AtimeMode, Attr, Caller, SeekFor, SetAttr, Volume, XattrMode, acl,
    attributes, xattr,
};
use crate::alloc::Spender;
use crate::error::{Error, Result};
use crate::format::inode::{FileType, InodeFlags};
use crate::format::quota::QUOTAS_NAME;
use crate::format::superblock::Incompat;
use crate::format::{FILE_BYTES_MAX, Superblock};
use crate::inode::{Content, DirtyLevel, VnodeGuard, VnodeState, into_slice, keys};
use crate::lock::Rule;
use crate::trace::OpKind;
use crate::units::InodeNo;

const DAY_SECONDS: i64 = 24 * 60 * 60;

impl Volume {
    /// Reads from a regular file into `out` and returns the number of bytes: less than requested only at the
    /// end of the file.
    ///
    /// # Errors
    ///
    /// `EISDIR` for a directory, `EINVAL` for other files without contents; `EUCLEAN` if a small
    /// file does not match its checksum; those of [reading](super#errors).
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
    /// let file = volume.make(me, InodeNo::ROOT, b"f", &new)?.ino;
    /// volume.write(me, file, 0, b"contents")?;
    /// let mut out = [0; 16];
    /// assert_eq!(volume.read(file, 3, &mut out)?, 5);
    /// assert_eq!(&out[..5], b"tents");
    /// assert!(matches!(volume.read(InodeNo::ROOT, 0, &mut out), Err(Error::IsDirectory)));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn read(&self, ino: InodeNo, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.read_with(ino, offset, out, Access::Noted)
    }

    /// The same; `access` says whether it sets the access time.
    ///
    /// # Errors
    ///
    /// As of [`read`](Volume::read).
    pub fn read_with(
        &self,
        ino: InodeNo,
        offset: u64,
        out: &mut [u8],
        access: Access,
    ) -> Result<usize> {
        self.read_pieces(ino, offset, out.len(), access, &mut into_slice(out))
    }

    /// Reads up to `len` bytes from a regular file, as [`read`](Volume::read) does, and passes them to `take`
    /// piece by piece, in order, from memory. The file is locked meanwhile, so `take` must not call anything
    /// that may wait. Before an error it may have received damaged contents.
    ///
    /// # Errors
    ///
    /// As of [`read`](Volume::read).
    pub fn read_pieces(
        &self,
        ino: InodeNo,
        offset: u64,
        len: usize,
        access: Access,
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<usize> {
        let _op = self.writer.enter(OpKind::Read, ino);
        self.calls.reads.count();
        let vnode = self.writer.vnode(ino)?;
        self.readahead.before_read(self.inodes(), &vnode);
        let (len, stale_atime) = {
            let state = vnode.state.read();
            check_regular(&state.inode)?;
            if let (Some(used), 0, Access::Noted) = (&self.used, offset, access) {
                used.note(&state);
            }
            let read = self
                .writer
                .health
                .noted_contents(self.inodes().contents().read(&state, offset, len, take));
            (read?, access == Access::Noted && self.wants_atime(&state))
        };
        if stale_atime {
            self.set_atime(ino);
        }
        Ok(len)
    }

    /// Reads the contents of a regular file into the cache without returning them: for files that will be
    /// read soon, and to measure the cost of reading.
    ///
    /// # Errors
    ///
    /// As of [`read`](Volume::read), but damaged contents are not detected.
    pub fn fetch(&self, ino: InodeNo) -> Result<()> {
        let _op = self.writer.enter(OpKind::Read, ino);
        let vnode = self.writer.vnode(ino)?;
        self.readahead.before_read(self.inodes(), &vnode);
        let state = vnode.state.read();
        check_regular(&state.inode)?;
        self.writer.health.noted_contents(self.inodes().contents().fetch(&state))
    }

    /// Prefetches the contents of the given files, in device order (by
    /// [`device_offset`](super::Admin::device_offset)), until the cache is full. Returns the number of files
    /// taken: at least one, if any were given. Errors are left to the following read.
    pub fn fetch_batch(&self, files: impl IntoIterator<Item = InodeNo>) -> usize {
        let mut files = files.into_iter().peekable();
        let Some(first) = files.peek() else { return 0 };
        let _op = self.writer.enter(OpKind::Read, *first);
        let vnodes = files.map_while(|ino| self.writer.vnode(ino).ok());
        self.readahead.before_batch(self.inodes(), vnodes).max(1)
    }

    /// Does `work` while some threads prefetch for sequential readers, so that the device
    /// need not wait for them. Without such threads, a volume makes the same requests each time. One call
    /// at a time.
    pub fn with_prefetch<T>(&self, threads: usize, work: impl FnOnce() -> T) -> T {
        self.readahead.during(self.inodes(), threads, work)
    }

    pub(super) fn wants_atime(&self, file: &VnodeState) -> bool {
        let inode = &file.inode;
        let is_stale = match self.options.atime {
            AtimeMode::Never => false,
            AtimeMode::Strict => true,
            AtimeMode::Relative => {
                inode.atime <= inode.mtime
                    || inode.atime <= inode.ctime
                    || inode.atime.seconds + DAY_SECONDS <= self.inodes().clock.now().seconds
            }
        };
        is_stale && self.writer.health.check_changeable().is_ok()
    }

    /// Records an access. If an epoch is about to start, or changes have reached their memory limit, it is
    /// not recorded: a read does not wait for an epoch.
    pub(super) fn set_atime(&self, ino: InodeNo) {
        if self.inodes().memory.unwritten_bytes() >= self.options.dirty_bytes_max {
            return;
        }
        let Some(_gate) = self.writer.gate.try_read() else { return };
        let Ok(vnode) = self.writer.vnode(ino) else { return };
        let mut file = VnodeGuard::new(&vnode);
        if file.inode.nlink > 0 {
            file.inode.atime = self.inodes().clock.now();
            keys::follow_access(self.inodes().policy(), &mut file.inode);
            self.inodes().mark_changed(&mut file, DirtyLevel::Times);
        }
    }

    /// Writes to a regular file and returns the number of bytes: less than requested only if space ran out.
    ///
    /// # Errors
    ///
    /// `EISDIR` for a directory, `EINVAL` for other files without contents; `EFBIG` if the end would exceed
    /// the largest size of a file; `ENOSPC` if there is no space for any part; `EPERM` if the file is
    /// immutable, or append-only and the offset is before its end; those of [changes](super#errors).
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
    /// let file = volume.make(me, InodeNo::ROOT, b"f", &new)?.ino;
    /// assert_eq!(volume.write(me, file, 1 << 20, b"after a hole")?, 12);
    /// assert!(matches!(volume.write(me, file, u64::MAX - 1, b"far"), Err(Error::TooLarge)));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn write(
        &self,
        caller: &Caller<'_>,
        ino: InodeNo,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        self.write_to(caller, ino, Start::At(offset), data).map(|(written, _)| written)
    }

    /// Writes at the end of a regular file, like a write with `O_APPEND`: data that others append or write
    /// meanwhile is never overwritten, and appended data stays in one piece among other appended data.
    /// Returns how many bytes were written, fewer than given only if space ran out, and the offset after the
    /// last of them.
    ///
    /// # Errors
    ///
    /// As of [`write`](Volume::write).
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
    /// let file = volume.make(me, InodeNo::ROOT, b"f", &new)?.ino;
    /// volume.append(me, file, b"one, ")?;
    /// assert_eq!(volume.append(me, file, b"two")?, (3, 8));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn append(&self, caller: &Caller<'_>, ino: InodeNo, data: &[u8]) -> Result<(usize, u64)> {
        let _together = Rule::AppendsTogether.holds().then(|| self.appends.lock(ino));
        self.write_to(caller, ino, Start::End, data)
    }

    /// Returns how many bytes were written, and the offset after the last of them.
    fn write_to(
        &self,
        caller: &Caller<'_>,
        ino: InodeNo,
        start: Start,
        data: &[u8],
    ) -> Result<(usize, u64)> {
        let _op = self.writer.enter(OpKind::Write, ino);
        self.calls.writes.count();
        let vnode = &self.writer.vnode(ino)?;
        self.protections.check_write(vnode, start)?;
        let spender = self.reserve.spender(caller);
        Write { volume: self, caller, vnode, spender }.run(start, data)
    }

    /// Reserves, frees or zeroes a range of a regular file.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an empty range; `EISDIR` and `EINVAL` as of [`write`](Volume::write); `EFBIG` if the
    /// range ends after the largest size of a file; `ENOSPC` if space for a part of it is missing: then
    /// nothing is reserved, but a range to be zeroed is zeroed; `EPERM` if the file is immutable, or
    /// append-only unless the call reserves; those of [changes](super#errors).
    pub fn allocate(
        &self,
        caller: &Caller<'_>,
        ino: InodeNo,
        offset: u64,
        len: u64,
        mode: AllocateMode,
    ) -> Result<()> {
        let _op = self.writer.enter(OpKind::Write, ino);
        let vnode = self.writer.vnode(ino)?;
        self.protections.check_allocate(&vnode, mode)?;
        if len == 0 {
            return Err(Error::Invalid("an empty range"));
        }
        let end = offset.checked_add(len).filter(|end| *end <= FILE_BYTES_MAX);
        let end = end.ok_or(Error::TooLarge)?;
        let growth = |_: &VnodeState| match mode {
            AllocateMode::PunchHole => Ok(Growth::Unknown),
            _ => Ok(Growth::Reserve(offset..end)),
        };
        let spender = self.reserve.spender(caller);
        change_contents(self, spender, &vnode, growth, |inodes, file| {
            check_regular(&file.inode)?;
            xattr::remove(inodes, file, CAPABILITY)?;
            inodes.writer().leave_inline(file)?;
            let zeroes = matches!(mode, AllocateMode::PunchHole | AllocateMode::ZeroRange { .. });
            let grows = match mode {
                AllocateMode::Reserve => true,
                AllocateMode::ReserveKeepSize | AllocateMode::PunchHole => false,
                AllocateMode::ZeroRange { keep_size } => !keep_size,
            };
            let change = |file: &mut VnodeGuard<'_>| {
                if zeroes {
                    inodes.writer().punch(file, offset, len)?;
                }
                if mode != AllocateMode::PunchHole {
                    inodes.writer().preallocate(file, offset, len)?;
                }
                if grows && end > file.inode.size {
                    inodes.writer().set_size(file, end)?;
                }
                Ok(())
            };
            let changed = change(file);
            // A call that fails may have zeroed the range, or a part of it.
            if changed.is_ok() || zeroes {
                written(inodes, file);
            }
            changed
        })
    }

    /// The next data or hole of a regular file at or after `offset`.
    ///
    /// # Errors
    ///
    /// `ENXIO` if `offset` is at the end or after it, or no data follows; `EISDIR` and `EINVAL` as
    /// of [`read`](Volume::read); those of [reading](super#errors).
    pub fn seek(&self, ino: InodeNo, offset: u64, what: SeekFor) -> Result<u64> {
        let _op = self.writer.enter(OpKind::Read, ino);
        let vnode = self.writer.vnode(ino)?;
        let state = vnode.state.read();
        check_regular(&state.inode)?;
        if offset >= state.inode.size {
            return Err(Error::NoData);
        }
        self.inodes().contents().seek(&state, offset, what == SeekFor::Data).ok_or(Error::NoData)
    }

    /// Copies up to `len` bytes of one regular file, from an offset on, to an offset of another one, or of
    /// the same if the two ranges do not overlap. Returns the number of bytes: 0 at the end of the source,
    /// and less than requested if the copy is long, or after an error, which a call for the rest reports.
    ///
    /// # Errors
    ///
    /// As of [`read`](Volume::read) for the source and of [`write`](Volume::write) for the target;
    /// `EINVAL` if the ranges overlap.
    pub fn copy(&self, caller: &Caller<'_>, from: Place, to: Place, len: u64) -> Result<u64> {
        let _op = self.writer.enter(OpKind::Write, to.0);
        self.protections.check_write(&*self.writer.vnode(to.0)?, Start::At(to.1))?;
        Copying::new(self, caller).run(from, to, len)
    }

    /// The attributes of a file.
    ///
    /// # Errors
    ///
    /// Those of [reading](super#errors).
    pub fn attr(&self, ino: InodeNo) -> Result<Attr> {
        let _op = self.writer.enter(OpKind::Stat, ino);
        let vnode = self.writer.vnode(ino)?;
        let state = vnode.state.read();
        Ok(Attr::of(&self.inodes().layout, &state))
    }

    /// Changes attributes and returns the new ones.
    ///
    /// # Errors
    ///
    /// `EINVAL` for the user or group 4294967295. Of a size, `EFBIG` above the largest size of a file,
    /// `EISDIR` for a directory, `EINVAL` for other files that have no contents; `EPERM` if the file is
    /// immutable, or append-only and more changes than both times to now; those of [changes](super#errors).
    /// If the size was changed and the rest could not be, the size stays. This includes the case that the
    /// caller's condition no longer holds after another change in between.
    pub fn set_attr(&self, caller: &Caller<'_>, ino: InodeNo, changes: &SetAttr) -> Result<Attr> {
        let _op = self.writer.enter(OpKind::SetAttributes, ino);
        changes.uid.into_iter().chain(changes.gid).try_for_each(check_id)?;
        self.protections.check_set_attr(&*self.writer.vnode(ino)?, changes)?;
        // Setting the size is a separate change, which comes first.
        let sets_more = SetAttr { size: None, ..*changes } != SetAttr::default();
        let sized = changes.size.map(|size| self.truncate(caller, ino, size)).transpose()?;
        self.change_inode(Spender::Privileged, ino, |inodes, file| {
            // The condition held for the size. This change itself may violate it, but no other one may.
            if sized != Some(file.inode.change) && (sized.is_none() || sets_more) {
                caller.check(file, None)?;
            }
            if changes.clear_privileges.is_some() {
                xattr::remove(inodes, file, CAPABILITY)?;
            }
            if changes.permissions.is_some() {
                inodes.load_attributes(file)?;
                // The access ACL follows the mode, in a new place.
                let attributes = file.inode.attributes();
                if attributes.has(acl::ACCESS) {
                    inodes.space().take_xattr_space(file, attributes.encoded_len())?;
                }
            }
            attributes::apply(inodes, file, changes);
            Ok(Attr::of(&inodes.layout, file))
        })
    }

    /// Sets the size of a file, and returns its number of changes after that.
    fn truncate(&self, caller: &Caller<'_>, ino: InodeNo, size: u64) -> Result<u64> {
        let vnode = self.writer.vnode(ino)?;
        attributes::check_size(vnode.state.read().inode.file_type, size)?;
        let is_privileged = xattr::look_at(self.inodes(), &vnode, |known| known.has(CAPABILITY))?;
        if !is_privileged && let Some(change) = truncate_inline(self, caller, ino, size)? {
            return Ok(change);
        }
        self.change_inode(Spender::Privileged, ino, |inodes, file| {
            caller.check(file, None)?;
            xattr::remove(inodes, file, CAPABILITY)?;
            inodes.writer().leave_inline(file)?;
            inodes.writer().set_size(file, size)?;
            written(inodes, file);
            Ok(file.inode.change)
        })
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is not a symbolic link; those of [reading](super#errors).
    pub fn read_link(&self, ino: InodeNo) -> Result<Vec<u8>> {
        let _op = self.writer.enter(OpKind::Read, ino);
        let vnode = self.writer.vnode(ino)?;
        let state = vnode.state.read();
        if state.inode.file_type != FileType::Symlink {
            return Err(Error::Invalid("not a symbolic link"));
        }
        let len = state.inode.size as usize;
        let mut target = Vec::with_capacity(len);
        self.writer.health.noted(
            self.inodes().contents().read(&state, 0, len, &mut |piece| target.extend(piece)),
        )?;
        Ok(target)
    }

    /// Replaces the flags of [`InodeFlags::SETTABLE`] of a regular file or a directory. The front end checks
    /// the permissions of the caller. The first protected file adds the feature PROTECTION to the volume,
    /// durably.
    ///
    /// # Errors
    ///
    /// [`Error::NotSupported`] for other files and other flags, and for flags of compression on a volume
    /// without clusters; [`Error::Invalid`] for both flags of compression; [`Error::NotPermitted`] if a flag
    /// of compression changes and the file stays protected; otherwise as for changes.
    pub fn set_flags(&self, ino: InodeNo, flags: InodeFlags) -> Result<()> {
        let _op = self.writer.enter(OpKind::SetAttributes, ino);
        let file_type = self.writer.vnode(ino)?.state.read().inode.file_type;
        let supported = match self.inodes().layout.has_clusters() {
            true => InodeFlags::SETTABLE,
            false => InodeFlags::PROTECTION,
        };
        let has_flags = matches!(file_type, FileType::Regular | FileType::Directory);
        if !has_flags || !supported.contains(flags) {
            return Err(Error::NotSupported);
        }
        if flags.contains(InodeFlags::COMPRESSION) {
            return Err(Error::Invalid("new contents are either compressed or not"));
        }
        if flags.intersects(InodeFlags::PROTECTION) && !self.protections.are_any() {
            let protect = |superblock: &mut Superblock| {
                superblock.incompat.insert(Incompat::PROTECTION);
                Ok(())
            };
            self.writer.rewrite_superblock(protect, |_| self.protections.expect_some())?;
        }
        self.change_inode(Spender::Privileged, ino, |inodes, file| {
            let (kept, changed) = (file.inode.flags & flags, file.inode.flags ^ flags);
            if kept.intersects(InodeFlags::PROTECTION)
                && changed.intersects(InodeFlags::COMPRESSION)
            {
                return Err(Error::NotPermitted);
            }
            file.inode.flags = flags;
            file.inode.touch(inodes.clock.now());
            inodes.mark_dirty(file);
            Ok(())
        })
    }

    /// The value of an attribute.
    ///
    /// # Errors
    ///
    /// `ENODATA` if the file does not have it and it is not an ACL, and for an attribute of the file system;
    /// those of [reading](super#errors).
    pub fn xattr(&self, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
        if is_own(name) { Err(Error::NoAttribute) } else { xattr::value_of(self, ino, name) }
    }

    /// The names of a file's attributes, in their order, without those of the file system.
    ///
    /// # Errors
    ///
    /// Those of [reading](super#errors).
    pub fn xattr_names(&self, ino: InodeNo) -> Result<Vec<Vec<u8>>> {
        let _op = self.writer.enter(OpKind::Xattr, ino);
        xattr::look_at(self.inodes(), &self.writer.vnode(ino)?, |known| {
            known.names().filter(|name| !is_own(name)).cloned().collect()
        })
    }

    /// Sets an attribute. A POSIX access ACL changes the mode as well.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` for a name outside `user.`, `trusted.`, `security.` and the two POSIX ACLs of `system.`,
    /// and for an attribute of the file system; `ERANGE` for a name longer than 255 bytes and for a value
    /// that is too long; `EEXIST` and `ENODATA` as `mode` demands; `EINVAL` for a value that is not an ACL;
    /// `ENOSPC` if the file's attributes, or their names, would take too much together; `EPERM` if the file
    /// is immutable or append-only, or for a default ACL on anything but a directory; those of
    /// [changes](super#errors).
    pub fn set_xattr(
        &self,
        caller: &Caller<'_>,
        ino: InodeNo,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        if is_own(name) {
            return Err(Error::NotSupported);
        }
        xattr::set_value(self, caller, ino, name, value, mode)
    }

    /// Removes an attribute, for root.
    ///
    /// # Errors
    ///
    /// `ENODATA` if the file does not have it; `EOPNOTSUPP`, `ERANGE` and `EPERM` as of
    /// [`set_xattr`](Volume::set_xattr); those of [changes](super#errors).
    pub fn remove_xattr(&self, ino: InodeNo, name: &[u8]) -> Result<()> {
        self.remove_xattr_by(&Caller::ROOT, ino, name)
    }

    /// Removes an attribute, for a caller.
    ///
    /// # Errors
    ///
    /// Those of [`remove_xattr`](Volume::remove_xattr).
    pub fn remove_xattr_by(&self, caller: &Caller<'_>, ino: InodeNo, name: &[u8]) -> Result<()> {
        let _op = self.writer.enter(OpKind::Xattr, ino);
        xattr::check_name(name)?;
        if name == QUOTAS_NAME {
            return Err(Error::NotSupported);
        }
        let vnode = self.writer.vnode(ino)?;
        self.protections.check_unprotected(&vnode)?;
        let removed = self.change_vnode(Spender::Privileged, &vnode, |inodes, file| {
            caller.check(file, None)?;
            xattr::remove(inodes, file, name)
        })?;
        // An ACL that is equivalent to the mode is not stored, but removing it succeeds, as on Linux.
        if removed || xattr::is_acl(name) { Ok(()) } else { Err(Error::NoAttribute) }
    }
}

/// Sets the size of a file in its inode, and returns its number of changes after that; `None` if the contents
/// are not in the inode, or fit there with the new size.
fn truncate_inline(
    volume: &Volume,
    caller: &Caller<'_>,
    ino: InodeNo,
    size: u64,
) -> Result<Option<u64>> {
    let max = volume.inodes().features.inline_bytes_max as u64;
    let vnode = volume.writer.vnode(ino)?;
    let before = Cell::new(0);
    let may = |file: &VnodeState| {
        before.set(file.inode.change);
        caller.check(file, None)
    };
    loop {
        let container = {
            let state = vnode.state.read();
            match (&state.inode.content, state.container) {
                (Content::Inline(_), Some(container)) if size <= max => container,
                _ => return Ok(None),
            }
        };
        let done = volume.change(|names| {
            let account = volume.accounts.of_file(&names.inodes, &vnode)?;
            let inline = Inline { vnode: &vnode, container, account: account.as_ref() };
            inline.change(names, &may, |bytes| {
                bytes.resize(size as usize, 0);
                Ok(())
            })
        })?;
        if let Some(done) = done {
            return Ok(done.then(|| before.get().wrapping_add(1)));
        }
    }
}
