//! Copies between files of one volume.
//!
//! A copy reads and writes in turn, a piece at a time. It holds one file's lock at a time, so that copies in
//! opposite directions do not wait for each other; a change of the source meanwhile is in the pieces that
//! follow it. A hole in the source becomes a hole in the target, in whole blocks of the target. Durable
//! contents in clusters are shared instead of copied if both offsets are multiples of the block size
//! (`inode/sharing.rs`), unless the target has the flag NO_COMPRESS.

use std::sync::Arc;

use super::quota::{Charging, Growth};
use super::write::{CAPABILITY, check_regular, written};
use super::{Caller, Volume, xattr};
use crate::alloc::Spender;
use crate::error::{Error, Result};
use crate::format::FILE_BYTES_MAX;
use crate::format::inode::InodeFlags;
use crate::inode::{Content, Vnode, VnodeGuard};
use crate::units::InodeNo;

/// One call copies at most this many bytes, so that other callers are served and this one can be interrupted.
/// Holes do not count.
const BYTES_MAX: u64 = 16 << 20;
/// The length of one read: the data is still in the processor's cache when it is written.
const PIECE_BYTES: u64 = 256 << 10;

/// A place in a file.
pub(super) type Place = (InodeNo, u64);

/// A shared piece counts as this many bytes, because sharing takes much less time than copying.
const SHARED_BYTES: u64 = 256 << 10;

/// A part of a file that is a hole, or is not; where it ends.
struct Part {
    is_hole: bool,
    end: u64,
}

/// One copy.
pub(super) struct Copying<'a> {
    volume: &'a Volume,
    caller: &'a Caller<'a>,
    part: Part,
    buffer: Vec<u8>,
    /// The bytes that were copied, without holes; each shared piece counts as [`SHARED_BYTES`].
    moved: u64,
}

impl<'a> Copying<'a> {
    pub(super) fn new(volume: &'a Volume, caller: &'a Caller<'a>) -> Copying<'a> {
        let part = Part { is_hole: false, end: 0 };
        Copying { volume, caller, part, buffer: Vec::new(), moved: 0 }
    }

    /// See [`Volume::copy`].
    pub(super) fn run(&mut self, from: Place, to: Place, len: u64) -> Result<u64> {
        let len = len.min(self.bytes_from(from)?);
        if len == 0 {
            return Ok(0);
        }
        if from.0 == to.0 && from.1.abs_diff(to.1) < len {
            return Err(Error::Invalid("the ranges of a copy overlap"));
        }
        let len = len.min(FILE_BYTES_MAX.saturating_sub(to.1));
        if len == 0 {
            return Err(Error::TooLarge);
        }
        let mut done = 0;
        while done < len && self.moved < BYTES_MAX {
            let (source, target) = ((from.0, from.1 + done), (to.0, to.1 + done));
            match self.copy_piece(source, target, len - done) {
                Ok(0) => break,
                Ok(bytes) => done += bytes,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// How many bytes a regular file has from a place on.
    fn bytes_from(&self, (ino, offset): Place) -> Result<u64> {
        let vnode = self.volume.writer.vnode(ino)?;
        let state = vnode.state.read();
        check_regular(&state.inode)?;
        Ok(state.inode.size.saturating_sub(offset))
    }

    fn copy_piece(&mut self, from: Place, to: Place, len: u64) -> Result<u64> {
        let block_bytes = u64::from(self.volume.inodes().layout.block_bytes);
        if from.1.is_multiple_of(block_bytes) && to.1.is_multiple_of(block_bytes) {
            let bytes = self.share(from, to, len)?;
            if bytes > 0 {
                self.moved += SHARED_BYTES;
                return Ok(bytes);
            }
        }
        if from.1 >= self.part.end {
            self.part = self.part_at(from)?;
        }
        let mut len = len.min(self.part.end - from.1);
        if self.part.is_hole {
            let bytes = self.make_hole(to, len)?;
            if bytes > 0 {
                return Ok(bytes);
            }
            // The target has a hole from its next block on.
            len = len.min(block_bytes - to.1 % block_bytes);
        } else if from.1 % block_bytes == to.1 % block_bytes {
            // So the next piece begins at a block, and can be shared.
            len = len.min(PIECE_BYTES - from.1 % block_bytes);
        }
        let len = len.min(PIECE_BYTES) as usize;
        self.buffer.resize(self.buffer.len().max(len), 0);
        let piece = &mut self.buffer[..len];
        let read = self.volume.read(from.0, from.1, piece)?;
        let written = self.volume.write(self.caller, to.0, to.1, &piece[..read])? as u64;
        self.moved += written;
        Ok(written)
    }

    /// Makes the target refer to the contents of the source. Returns the number of bytes; 0 if nothing can be
    /// shared.
    fn share(&self, from: Place, to: Place, len: u64) -> Result<u64> {
        if !self.volume.inodes().layout.has_clusters() {
            return Ok(0);
        }
        let (source, target) = (self.volume.writer.vnode(from.0)?, self.volume.writer.vnode(to.0)?);
        let spender = self.volume.reserve.spender(self.caller);
        let (size, flags) = {
            let target = target.state.read();
            (target.inode.size, target.inode.flags)
        };
        if flags.contains(InodeFlags::NO_COMPRESS) {
            return Ok(0);
        }
        // Before the contents change: if it failed afterwards, new contents would have the capabilities.
        self.drop_capability(&target)?;
        let bytes = self.volume.change(|names| {
            let (writer, layout) = (names.inodes.writer(), &*names.inodes.layout);
            let account = self.volume.accounts.of_file(&names.inodes, &target)?;
            let lent = {
                let source = source.state.read();
                check_regular(&source.inode)?;
                let with_end = size <= to.1 + source.inode.size.saturating_sub(from.1);
                writer.lend(&source, from.1, len, with_end)?
            };
            let Some(lent) = lent else { return Ok(0) };
            let mut file = VnodeGuard::by(&target, spender);
            let charging = match &account {
                Some(account) => {
                    let growth = Growth::Write(to.1..to.1 + lent.len());
                    match Charging::begin(account, layout, &mut file, &growth) {
                        Ok(charging) => Some(charging),
                        Err(_) => {
                            // Writing copies the part that fits.
                            writer.give_back(&lent);
                            return Ok(0);
                        }
                    }
                }
                None => None,
            };
            let shared =
                check_regular(&file.inode).and_then(|()| writer.borrow(&mut file, to.1, &lent));
            match &shared {
                Ok(1..) => written(&names.inodes, &mut file),
                _ => writer.give_back(&lent),
            }
            if shared.is_err() {
                names.inodes.space().withdraw_unused(&mut file);
            }
            if let Some(charging) = charging {
                charging.end(&mut file);
            }
            shared
        })?;
        if bytes > 0 {
            self.volume.calls.writes.count();
        }
        Ok(bytes)
    }

    /// Removes the capabilities of an executable file, as a write does.
    fn drop_capability(&self, vnode: &Arc<Vnode>) -> Result<()> {
        if xattr::look_at(self.volume.inodes(), vnode, |known| known.has(CAPABILITY))? {
            self.volume.change_vnode(Spender::Privileged, vnode, |inodes, file| {
                xattr::remove(inodes, file, CAPABILITY)
            })?;
        }
        Ok(())
    }

    /// Whether a file is a hole at a place, and how far.
    fn part_at(&self, (ino, offset): Place) -> Result<Part> {
        let vnode = self.volume.writer.vnode(ino)?;
        let state = vnode.state.read();
        let size = state.inode.size;
        if offset >= size {
            // It has become shorter; the read there finds that out.
            return Ok(Part { is_hole: false, end: u64::MAX });
        }
        let data = self.volume.inodes().contents().seek(&state, offset, true).unwrap_or(size);
        if data > offset {
            return Ok(Part { is_hole: true, end: data });
        }
        let end = self.volume.inodes().contents().seek(&state, offset, false).unwrap_or(size);
        Ok(Part { is_hole: false, end })
    }

    /// Makes a hole of the whole blocks in the range: up to the end of the file by freeing their space, after
    /// it by extending the file. Returns the number of bytes: 0 if zeros must be written first. It is
    /// complete or fails.
    fn make_hole(&self, (ino, offset): Place, len: u64) -> Result<u64> {
        let block_bytes = u64::from(self.volume.inodes().layout.block_bytes);
        if len < block_bytes {
            return Ok(0);
        }
        let vnode = self.volume.writer.vnode(ino)?;
        self.drop_capability(&vnode)?;
        self.volume.calls.writes.count();
        self.volume.change_vnode(Spender::Privileged, &vnode, |inodes, file| {
            check_regular(&file.inode)?;
            let size = file.inode.size;
            let mut made = 0;
            if offset >= size {
                inodes.writer().leave_inline(file)?;
                inodes.writer().set_size(file, offset + len)?;
                made = len;
            } else if offset % block_bytes == 0 && matches!(file.inode.content, Content::Map(_)) {
                made = if offset + len < size {
                    len / block_bytes * block_bytes
                } else {
                    size - offset
                };
                inodes.writer().punch(file, offset, made)?;
            }
            if made > 0 {
                written(inodes, file);
            }
            Ok(made)
        })
    }
}
