//! Contents of files: read, write, allocate, seek.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use super::{Access, AllocateMode, AtimeMode, Caller, SeekFor, Volume};
use crate::alloc::Spender;
use crate::error::{Error, Result};
use crate::format::FILE_BYTES_MAX;
use crate::format::inode::FileType;
use crate::inode::{
    Content, DirtyLevel, Inode, InodeCache, Vnode, VnodeGuard, VnodeState, into_slice,
};
use crate::lock::{Mutex, MutexGuard, Rank};
use crate::namespace::Namespace;
use crate::trace::OpKind;
use crate::units::{Container, InodeNo};

const DAY_SECONDS: i64 = 24 * 60 * 60;
/// A write proceeds page by page under the file's lock, and releases it after this many bytes.
const WRITE_BYTES_MAX: usize = 1 << 20;
/// Locks of appenders: files whose numbers have the same remainder share one.
const APPEND_LOCKS: usize = 16;
/// The attribute with the privileges that an executable file gives.
pub(super) const CAPABILITY: &[u8] = b"security.capability";

pub(super) fn check_regular(inode: &Inode) -> Result<()> {
    match inode.file_type {
        FileType::Regular => Ok(()),
        FileType::Directory => Err(Error::IsDirectory),
        _ => Err(Error::Invalid("not a regular file")),
    }
}

/// Where a write begins.
#[derive(Clone, Copy)]
pub(super) enum Start {
    At(u64),
    /// At the end of the file, which is known only under its lock.
    End,
}

impl Start {
    /// The bytes of a file of this size that a write of `len` bytes covers.
    fn range(self, size: u64, len: usize) -> Result<Range<u64>> {
        let start = match self {
            Start::At(offset) => offset,
            Start::End => size,
        };
        let end = start.checked_add(len as u64).filter(|end| *end <= FILE_BYTES_MAX);
        end.map(|end| start..end).ok_or(Error::TooLarge)
    }

    /// Where the write continues after `done` bytes.
    fn after(self, done: usize) -> Start {
        match self {
            Start::At(offset) => Start::At(offset + done as u64),
            Start::End => Start::End,
        }
    }
}

/// Locks that appenders hold, so that the pieces of a long append stay together.
pub(super) struct Appends([Mutex<()>; APPEND_LOCKS]);

impl Default for Appends {
    fn default() -> Appends {
        Appends(std::array::from_fn(|_| Mutex::new(Rank::Appends, ())))
    }
}

impl Appends {
    fn lock(&self, ino: InodeNo) -> MutexGuard<'_, ()> {
        self.0[ino.0 as usize % APPEND_LOCKS].lock()
    }
}

impl Volume {
    /// Reads from a regular file into `out` and returns how many bytes: fewer than asked for at the
    /// end of the file only.
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
        self.read_pieces_with(ino, offset, out.len(), access, &mut into_slice(out))
    }

    /// Reads up to `len` bytes from a regular file, as [`read`](Volume::read) does, and gives them to `take`
    /// piece by piece in their order, as they lie in memory. The file is locked meanwhile, so `take` must not
    /// call anything that may wait. Before an error it may have received damaged contents.
    ///
    /// # Errors
    ///
    /// As of [`read`](Volume::read).
    pub fn read_pieces(
        &self,
        ino: InodeNo,
        offset: u64,
        len: usize,
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<usize> {
        self.read_pieces_with(ino, offset, len, Access::Noted, take)
    }

    fn read_pieces_with(
        &self,
        ino: InodeNo,
        offset: u64,
        len: usize,
        access: Access,
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<usize> {
        let _op = self.enter(OpKind::Read, ino);
        self.calls.reads.count();
        let vnode = self.vnode(ino)?;
        self.readahead.before_read(self.inodes(), &vnode);
        let (len, stale_atime) = {
            let state = vnode.state.read();
            check_regular(&state.inode)?;
            let read = self
                .writer
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
    /// As of [`read`](Volume::read); contents that were damaged are not noticed.
    pub fn fetch(&self, ino: InodeNo) -> Result<()> {
        let _op = self.enter(OpKind::Read, ino);
        let vnode = self.vnode(ino)?;
        self.readahead.before_read(self.inodes(), &vnode);
        let state = vnode.state.read();
        check_regular(&state.inode)?;
        self.writer.noted_contents(self.inodes().contents().fetch(&state))
    }

    /// Prefetches the contents of the given files, in device order (by
    /// [`device_offset`](Volume::device_offset)), until the cache is full. Returns the number of files taken:
    /// at least one, if any were given. Errors are left to the following read.
    pub fn fetch_batch(&self, files: impl IntoIterator<Item = InodeNo>) -> usize {
        let mut files = files.into_iter().peekable();
        let Some(first) = files.peek() else { return 0 };
        let _op = self.enter(OpKind::Read, *first);
        let vnodes = files.map_while(|ino| self.vnode(ino).ok());
        self.readahead.before_batch(self.inodes(), vnodes).max(1)
    }

    /// Does `work` while some threads prefetch for sequential readers, so that the device
    /// need not wait for them. Without such threads, a volume makes the same requests each time. One call
    /// at a time.
    pub fn with_prefetch<T>(&self, threads: usize, work: impl FnOnce() -> T) -> T {
        self.inodes().cache.with_prefetch(threads, work)
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
        is_stale && self.writer.check_changeable().is_ok()
    }

    /// Records an access. If an epoch is about to start, or changes have reached their memory limit, it is
    /// not recorded: a read does not wait for an epoch.
    pub(super) fn set_atime(&self, ino: InodeNo) {
        if self.changed_bytes() >= self.options.dirty_bytes_max {
            return;
        }
        let Some(_gate) = self.writer.gate.try_read() else { return };
        let Ok(vnode) = self.vnode(ino) else { return };
        let mut file = VnodeGuard::new(&vnode);
        if file.inode.nlink > 0 {
            file.inode.atime = self.inodes().clock.now();
            self.inodes().mark_changed(&mut file, DirtyLevel::Times);
        }
    }

    /// Writes to a regular file and returns how many bytes: fewer than given only if space ran out.
    ///
    /// # Errors
    ///
    /// `EISDIR` for a directory, `EINVAL` for other files without contents; `EFBIG` if the end
    /// would lie above the largest size of a file; `ENOSPC` if not even a part finds space; `EPERM`
    /// if the file is immutable, or append-only and the offset lies before its end; those of
    /// [changes](super#errors).
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

    /// Writes at the end of a regular file, as a file of a kernel that is open with `O_APPEND`: data that
    /// others append or write meanwhile is never overwritten, and appended data stays in one piece among
    /// other appended data. Returns how many bytes were written, fewer than given only if space ran out,
    /// and the offset behind the last of them.
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
        let _together = self.appends.lock(ino);
        self.write_to(caller, ino, Start::End, data)
    }

    /// Returns how many bytes were written, and the offset behind the last of them.
    fn write_to(
        &self,
        caller: &Caller<'_>,
        ino: InodeNo,
        start: Start,
        data: &[u8],
    ) -> Result<(usize, u64)> {
        let _op = self.enter(OpKind::Write, ino);
        self.calls.writes.count();
        let spender = self.spender(caller);
        let vnode = &self.vnode(ino)?;
        self.check_write(vnode, start)?;
        let size = match start {
            Start::At(_) => 0,
            Start::End => vnode.state.read().inode.size,
        };
        let (mut done, mut end) = (0, start.range(size, data.len())?.start);
        for piece in data.chunks(WRITE_BYTES_MAX) {
            match self.write_piece(spender, vnode, start.after(done), piece) {
                Ok(piece_end) => (done, end) = (done + piece.len(), piece_end),
                Err(Error::NoSpace) if done > 0 => return Ok((done, end)),
                Err(Error::NoSpace) => return self.write_pages(spender, vnode, start, piece),
                Err(error) => return Err(error),
            }
        }
        Ok((done, end))
    }

    /// Returns the offset behind the last byte, as the others here do.
    fn write_piece(
        &self,
        spender: Spender,
        vnode: &Arc<Vnode>,
        start: Start,
        data: &[u8],
    ) -> Result<u64> {
        if let Some(end) = self.write_inline(vnode, start, data)? {
            return Ok(end);
        }
        match self.write_in_pages(spender, vnode, start, data) {
            Err(Error::NoSpace) if self.give_up_checksum(vnode.ino, start, data.len())? => {
                self.write_in_pages(spender, vnode, start, data)
            }
            other => other,
        }
    }

    fn write_in_pages(
        &self,
        spender: Spender,
        vnode: &Arc<Vnode>,
        start: Start,
        data: &[u8],
    ) -> Result<u64> {
        self.change_vnode_by(spender, vnode, |inodes, file| {
            check_regular(&file.inode)?;
            let range = start.range(file.inode.size, data.len())?;
            inodes.writer().leave_inline(file)?;
            inodes.writer().write(file, range.start, data)?;
            written(inodes, file);
            Ok(range.end)
        })
    }

    /// Page by page, when space runs out in the middle of a piece.
    fn write_pages(
        &self,
        spender: Spender,
        vnode: &Arc<Vnode>,
        start: Start,
        data: &[u8],
    ) -> Result<(usize, u64)> {
        let block_bytes = self.inodes().layout.block_bytes as usize;
        let mut end = start.range(vnode.state.read().inode.size, data.len())?.start;
        let mut done = 0;
        while done < data.len() {
            let len = (block_bytes - (end % block_bytes as u64) as usize).min(data.len() - done);
            let piece = &data[done..done + len];
            match self.write_in_pages(spender, vnode, start.after(done), piece) {
                Ok(piece_end) => (done, end) = (done + len, piece_end),
                Err(Error::NoSpace) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok((done, end))
    }

    /// On a full volume a small file cannot move to a new place with its next checksum. Where it
    /// has space already, it is overwritten there, once the device knows it without a checksum: until then
    /// a change of its pages finds no space either, which writes an epoch (`EpochWriter::retry`).
    fn give_up_checksum(&self, ino: InodeNo, start: Start, len: usize) -> Result<bool> {
        self.change_inode(ino, |inodes, file| {
            let within = start.range(file.inode.size, len)?.end <= file.inode.size;
            if within && file.inode.content_checksum.is_some() && file.pages.is_empty() {
                inodes.writer().drop_checksum(file);
                return Ok(true);
            }
            Ok(false)
        })
    }

    /// Writes to a file whose contents lie in its inode and still fit there; `None` if they do not.
    ///
    /// Every write passes here first. It removes the file's capabilities, as a kernel would.
    fn write_inline(&self, vnode: &Arc<Vnode>, start: Start, data: &[u8]) -> Result<Option<u64>> {
        let max = self.inodes().features.inline_bytes_max as u64;
        loop {
            let container = {
                let state = vnode.state.read();
                check_regular(&state.inode)?;
                let known = state.inode.known_attributes();
                match (&state.inode.content, state.container) {
                    _ if known.is_none_or(|known| known.has(CAPABILITY)) => None,
                    (Content::Inline(bytes), Some(container))
                        if start.range(bytes.len() as u64, data.len())?.end <= max =>
                    {
                        Some(container)
                    }
                    _ => return Ok(None),
                }
            };
            let Some(container) = container else {
                self.drop_xattr(vnode.ino, CAPABILITY)?;
                continue;
            };
            let end = Cell::new(0);
            let done = self.change(|names| {
                change_inline(names, vnode, container, &|_| Ok(()), |bytes| {
                    let range = start.range(bytes.len() as u64, data.len())?;
                    end.set(range.end);
                    bytes.resize(bytes.len().max(range.end as usize), 0);
                    bytes[range.start as usize..range.end as usize].copy_from_slice(data);
                    Ok(())
                })
            })?;
            if let Some(done) = done {
                return Ok(done.then(|| end.get()));
            }
        }
    }

    /// Sets the size of a file in its inode; false if the contents do not lie or fit there.
    pub(super) fn truncate_inline(
        &self,
        caller: &Caller<'_>,
        ino: InodeNo,
        size: u64,
    ) -> Result<bool> {
        let max = self.inodes().features.inline_bytes_max as u64;
        let vnode = self.vnode(ino)?;
        let may = |file: &VnodeState| self.check_condition(caller, file, None);
        loop {
            let container = {
                let state = vnode.state.read();
                match (&state.inode.content, state.container) {
                    (Content::Inline(_), Some(container)) if size <= max => container,
                    _ => return Ok(false),
                }
            };
            let done = self.change(|names| {
                change_inline(names, &vnode, container, &may, |bytes| {
                    bytes.resize(size as usize, 0);
                    Ok(())
                })
            })?;
            if let Some(done) = done {
                return Ok(done);
            }
        }
    }

    /// Reserves, frees or zeroes a range of a regular file.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an empty range; `EISDIR` and `EINVAL` as of [`write`](Volume::write); `EFBIG`
    /// if the range ends above the largest size of a file; `ENOSPC` if not all of it finds space,
    /// and then none of it is reserved, though the range to be zeroed is; `EPERM` if the file is
    /// immutable or append-only; those of [changes](super#errors).
    pub fn allocate(
        &self,
        caller: &Caller<'_>,
        ino: InodeNo,
        offset: u64,
        len: u64,
        mode: AllocateMode,
    ) -> Result<()> {
        let _op = self.enter(OpKind::Write, ino);
        self.check_unprotected(ino)?;
        if len == 0 {
            return Err(Error::Invalid("an empty range"));
        }
        let end = offset.checked_add(len).filter(|end| *end <= FILE_BYTES_MAX);
        let end = end.ok_or(Error::TooLarge)?;
        self.change_inode_by(self.spender(caller), ino, |inodes, file| {
            check_regular(&file.inode)?;
            inodes.writer().leave_inline(file)?;
            let grows = match mode {
                AllocateMode::Reserve => true,
                AllocateMode::ReserveKeepSize | AllocateMode::PunchHole => false,
                AllocateMode::ZeroRange { keep_size } => !keep_size,
            };
            if matches!(mode, AllocateMode::PunchHole | AllocateMode::ZeroRange { .. }) {
                inodes.writer().punch(file, offset, len)?;
            }
            if mode != AllocateMode::PunchHole {
                inodes.writer().preallocate(file, offset, len)?;
            }
            if grows && end > file.inode.size {
                inodes.writer().set_size(file, end)?;
            }
            written(inodes, file);
            Ok(())
        })
    }

    /// The next data or hole of a regular file at or after `offset`.
    ///
    /// # Errors
    ///
    /// `ENXIO` if `offset` is at the end or after it, or no data follows; `EISDIR` and `EINVAL` as
    /// of [`read`](Volume::read); those of [reading](super#errors).
    pub fn seek(&self, ino: InodeNo, offset: u64, what: SeekFor) -> Result<u64> {
        let _op = self.enter(OpKind::Read, ino);
        let vnode = self.vnode(ino)?;
        let state = vnode.state.read();
        check_regular(&state.inode)?;
        if offset >= state.inode.size {
            return Err(Error::NoData);
        }
        self.inodes().contents().seek(&state, offset, what == SeekFor::Data).ok_or(Error::NoData)
    }
}

/// Notes a change of a file's contents.
pub(super) fn written(inodes: &InodeCache, file: &mut VnodeGuard<'_>) {
    let now = inodes.clock.now();
    file.inode.mtime = now;
    file.inode.touch(now);
    inodes.mark_changed(file, DirtyLevel::Contents);
}

/// Changes contents that lie in the inode. `None` if the inode has moved meanwhile, `Some(false)` if
/// the sector has no room for the new contents.
fn change_inline(
    names: &Namespace,
    vnode: &Arc<Vnode>,
    container: Container,
    may: &dyn Fn(&VnodeState) -> Result<()>,
    change: impl FnOnce(&mut Vec<u8>) -> Result<()>,
) -> Result<Option<bool>> {
    let inodes = &names.inodes;
    let holder = inodes.get(container.file)?;
    let (mut holder, mut file) = VnodeGuard::with_holder(&holder, vnode);
    if file.container != Some(container) {
        return Ok(None);
    }
    let Content::Inline(bytes) = &file.inode.content else { return Ok(Some(false)) };
    may(&file)?;
    let mut bytes = bytes.clone();
    change(&mut bytes)?;
    let now = inodes.clock.now();
    let times = (file.inode.mtime, file.inode.ctime, file.inode.change);
    file.inode.mtime = now;
    file.inode.touch(now);
    let fits = names.put_inline(&mut holder, &mut file, bytes)?;
    if !fits {
        (file.inode.mtime, file.inode.ctime, file.inode.change) = times;
    }
    Ok(Some(fits))
}
