//! Writing to regular files: [`Write`].

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use super::quota::{Growth, change_contents, charge_inline};
use super::{Caller, Volume, xattr};
use crate::alloc::Spender;
use crate::error::{Error, Result};
use crate::format::FILE_BYTES_MAX;
use crate::format::inode::FileType;
use crate::inode::{
    Account, Content, DirtyLevel, Inode, InodeCache, Vnode, VnodeGuard, VnodeState,
};
use crate::lock::{Mutex, MutexGuard, Rank};
use crate::namespace::Namespace;
use crate::units::{Container, InodeNo};

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
    pub(super) fn lock(&self, ino: InodeNo) -> MutexGuard<'_, ()> {
        self.0[ino.0 as usize % APPEND_LOCKS].lock()
    }
}

/// One write to a regular file.
pub(super) struct Write<'a> {
    pub(super) volume: &'a Volume,
    pub(super) caller: &'a Caller<'a>,
    pub(super) vnode: &'a Arc<Vnode>,
    pub(super) spender: Spender,
}

impl Write<'_> {
    /// Returns how many bytes were written, and the offset after the last of them.
    pub(super) fn run(&self, start: Start, data: &[u8]) -> Result<(usize, u64)> {
        let size = match start {
            Start::At(_) => 0,
            Start::End => self.vnode.state.read().inode.size,
        };
        let (mut done, mut end) = (0, start.range(size, data.len())?.start);
        for piece in data.chunks(WRITE_BYTES_MAX) {
            match self.write_piece(start.after(done), piece) {
                Ok(piece_end) => (done, end) = (done + piece.len(), piece_end),
                Err(Error::NoSpace | Error::QuotaExceeded(_)) if done > 0 => {
                    return Ok((done, end));
                }
                Err(Error::NoSpace | Error::QuotaExceeded(_)) => {
                    return self.write_pages(start, piece);
                }
                Err(error) => return Err(error),
            }
        }
        Ok((done, end))
    }

    /// Returns the offset after the last byte.
    fn write_piece(&self, start: Start, data: &[u8]) -> Result<u64> {
        if let Some(end) = self.write_inline(start, data)? {
            return Ok(end);
        }
        match self.write_in_pages(start, data) {
            Err(Error::NoSpace) if self.give_up_checksum(start, data.len())? => {
                self.write_in_pages(start, data)
            }
            other => other,
        }
    }

    /// Fails if the caller's condition does not hold.
    fn may(&self, file: &VnodeState) -> Result<()> {
        self.caller.check(file, None)
    }

    fn write_in_pages(&self, start: Start, data: &[u8]) -> Result<u64> {
        let growth =
            |file: &VnodeState| Ok(Growth::Write(start.range(file.inode.size, data.len())?));
        change_contents(self.volume, self.spender, self.vnode, growth, |inodes, file| {
            check_regular(&file.inode)?;
            self.may(file)?;
            let range = start.range(file.inode.size, data.len())?;
            inodes.writer().leave_inline(file)?;
            inodes.writer().write(file, range.start, data)?;
            written(inodes, file);
            Ok(range.end)
        })
    }

    /// Page by page, when space runs out in the middle of a piece.
    fn write_pages(&self, start: Start, data: &[u8]) -> Result<(usize, u64)> {
        let block_bytes = self.volume.inodes().layout.block_bytes as usize;
        let mut end = start.range(self.vnode.state.read().inode.size, data.len())?.start;
        let mut done = 0;
        while done < data.len() {
            let len = (block_bytes - (end % block_bytes as u64) as usize).min(data.len() - done);
            let piece = &data[done..done + len];
            match self.write_in_pages(start.after(done), piece) {
                Ok(piece_end) => (done, end) = (done + len, piece_end),
                Err(Error::NoSpace | Error::QuotaExceeded(_)) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok((done, end))
    }

    /// On a full volume a small file cannot move to a new place with its next checksum. Where it
    /// has space already, it is overwritten there, once the device knows it without a checksum: until then
    /// a change of its pages finds no space either, which writes an epoch (`EpochWriter::retry`).
    fn give_up_checksum(&self, start: Start, len: usize) -> Result<bool> {
        self.volume.change_vnode(Spender::Privileged, self.vnode, |inodes, file| {
            let within = start.range(file.inode.size, len)?.end <= file.inode.size;
            if within && file.inode.content_checksum.is_some() && file.pages.is_empty() {
                inodes.writer().drop_checksum(file);
                return Ok(true);
            }
            Ok(false)
        })
    }

    /// Writes to a file whose contents are in its inode and still fit there; `None` if they do not.
    ///
    /// Every write calls this first. It removes the file's capabilities, as a kernel would.
    fn write_inline(&self, start: Start, data: &[u8]) -> Result<Option<u64>> {
        let max = self.volume.inodes().features.inline_bytes_max as u64;
        loop {
            let container = {
                let state = self.vnode.state.read();
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
                self.volume.change_vnode(Spender::Privileged, self.vnode, |inodes, file| {
                    self.may(file)?;
                    xattr::remove(inodes, file, CAPABILITY)
                })?;
                continue;
            };
            let end = Cell::new(0);
            let done = self.volume.change(|names| {
                let account = self.volume.accounts.of_file(&names.inodes, self.vnode)?;
                let inline = Inline { vnode: self.vnode, container, account: account.as_ref() };
                inline.change(names, &|file| self.may(file), |bytes| {
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
}

/// Notes a change of a file's contents.
pub(super) fn written(inodes: &InodeCache, file: &mut VnodeGuard<'_>) {
    let now = inodes.clock.now();
    file.inode.mtime = now;
    file.inode.touch(now);
    inodes.mark_changed(file, DirtyLevel::Contents);
}

/// A file whose contents are in its inode, which is in this container.
pub(super) struct Inline<'a> {
    pub vnode: &'a Arc<Vnode>,
    pub container: Container,
    pub account: Option<&'a Arc<Account>>,
}

impl Inline<'_> {
    /// Changes the contents. `None` if the inode has moved meanwhile, `Some(false)` if the sector has no room
    /// for the new contents.
    pub(super) fn change(
        &self,
        names: &Namespace,
        may: &dyn Fn(&VnodeState) -> Result<()>,
        change: impl FnOnce(&mut Vec<u8>) -> Result<()>,
    ) -> Result<Option<bool>> {
        let inodes = &names.inodes;
        let holder = inodes.get(self.container.file)?;
        let (mut holder, mut file) = VnodeGuard::with_holder(&holder, self.vnode);
        if file.container != Some(self.container) {
            return Ok(None);
        }
        let Content::Inline(bytes) = &file.inode.content else { return Ok(Some(false)) };
        may(&file)?;
        let mut bytes = bytes.clone();
        change(&mut bytes)?;
        let now = inodes.clock.now();
        let len = bytes.len();
        let put = |file: &mut VnodeGuard<'_>| {
            let times = (file.inode.mtime, file.inode.ctime, file.inode.change);
            file.inode.mtime = now;
            file.inode.touch(now);
            let fits = names.put_inline(&mut holder, file, bytes)?;
            if !fits {
                (file.inode.mtime, file.inode.ctime, file.inode.change) = times;
            }
            Ok(fits)
        };
        charge_inline(self.account, &inodes.layout, &mut file, len, put).map(Some)
    }
}
