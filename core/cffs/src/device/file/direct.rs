//! Requests that bypass the host's page cache.
//!
//! The kernel requires that the offset, the length and the memory of such a request are aligned. An unaligned
//! request uses an aligned buffer. A write of a part of an aligned block first reads the rest of the block,
//! while no other write runs.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;

use parking_lot::RwLock;
use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;

use super::{total_len, write_vectored};

/// If the kernel does not report the alignment: a page suits every device.
const PAGE_BYTES: u64 = 4096;

/// The alignment that the file requires of direct requests.
#[derive(Debug)]
pub(super) struct DirectAlignment {
    offset_bytes: u64,
    memory_bytes: usize,
    /// Shared by writes of whole aligned blocks; exclusive for one that must read first.
    turn: RwLock<()>,
}

impl DirectAlignment {
    pub(super) fn of(file: &File, is_block_device: bool) -> io::Result<DirectAlignment> {
        let offset_bytes = if is_block_device {
            u64::from(rustix::fs::ioctl_blksszget(file)?)
        } else {
            match rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) {
                Ok(stat) if stat.stx_dio_offset_align > 0 => u64::from(stat.stx_dio_offset_align),
                _ => PAGE_BYTES,
            }
        };
        let memory_bytes = offset_bytes.max(PAGE_BYTES) as usize;
        Ok(DirectAlignment { offset_bytes, memory_bytes, turn: RwLock::new(()) })
    }

    pub(super) fn read(
        &self,
        file: &File,
        size_bytes: u64,
        offset: u64,
        buf: &mut [u8],
    ) -> io::Result<()> {
        if self.suits(offset, buf) {
            return file.read_exact_at(buf, offset);
        }
        let (start, end) = self.widened(offset, buf.len() as u64);
        let mut bounce = AlignedBuffer::zeroed((end - start) as usize, self.memory_bytes);
        read_up_to(file, size_bytes, start, bounce.bytes())?;
        let from = (offset - start) as usize;
        buf.copy_from_slice(&bounce.bytes()[from..from + buf.len()]);
        Ok(())
    }

    pub(super) fn write(
        &self,
        file: &File,
        size_bytes: u64,
        offset: u64,
        bufs: &[IoSlice<'_>],
    ) -> io::Result<()> {
        let len = total_len(bufs);
        let whole = self.is_aligned(offset) && self.is_aligned(len);
        if whole {
            let _turn = self.turn.read();
            if bufs.iter().all(|buf| self.suits(0, buf)) {
                return write_vectored(file, offset, bufs);
            }
            let mut bounce = AlignedBuffer::zeroed(len as usize, self.memory_bytes);
            copy_to(bounce.bytes(), bufs);
            return file.write_all_at(bounce.bytes(), offset);
        }

        let _turn = self.turn.write();
        let (start, end) = self.widened(offset, len);
        if end > size_bytes {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("the size of the image is not a multiple of {} bytes", self.offset_bytes),
            ));
        }
        let mut bounce = AlignedBuffer::zeroed((end - start) as usize, self.memory_bytes);
        read_up_to(file, size_bytes, start, bounce.bytes())?;
        copy_to(&mut bounce.bytes()[(offset - start) as usize..], bufs);
        file.write_all_at(bounce.bytes(), start)
    }

    pub(super) fn is_aligned(&self, number: u64) -> bool {
        number.is_multiple_of(self.offset_bytes)
    }

    pub(super) fn suits(&self, offset: u64, buf: &[u8]) -> bool {
        self.is_aligned(offset)
            && self.is_aligned(buf.len() as u64)
            && buf.as_ptr().addr().is_multiple_of(self.memory_bytes)
    }

    /// The smallest aligned range around the request: its start and its end.
    fn widened(&self, offset: u64, len: u64) -> (u64, u64) {
        let start = offset / self.offset_bytes * self.offset_bytes;
        (start, (offset + len).next_multiple_of(self.offset_bytes))
    }
}

fn copy_to(mut target: &mut [u8], bufs: &[IoSlice<'_>]) {
    for buf in bufs {
        let (head, rest) = target.split_at_mut(buf.len());
        head.copy_from_slice(buf);
        target = rest;
    }
}

/// Fills `buf` from `start` on, as far as the file goes. Only the last block of a file may be short.
fn read_up_to(file: &File, size_bytes: u64, start: u64, buf: &mut [u8]) -> io::Result<()> {
    let wanted = (size_bytes - start).min(buf.len() as u64) as usize;
    let mut done = 0;
    while done < wanted {
        match rustix::io::pread(file, &mut buf[done..], start + done as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => done += read,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Memory that begins at a multiple of an alignment.
struct AlignedBuffer {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuffer {
    fn zeroed(len: usize, align_bytes: usize) -> AlignedBuffer {
        let memory = vec![0; len + align_bytes];
        let start = memory.as_ptr().addr().next_multiple_of(align_bytes) - memory.as_ptr().addr();
        AlignedBuffer { memory, start, len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}
