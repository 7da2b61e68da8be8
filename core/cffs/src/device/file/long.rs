//! Long requests of a block device, past the host's page cache.
//!
//! The page cache would keep a second copy of the data in the cache above. It also passes single pages to the
//! device, which accepts few of these in one request: 128 by the kernel's default, half a mebibyte. Data in
//! huge pages is sent in requests as long as the device accepts.
//!
//! The kernel keeps both ways consistent: before a request that bypasses its cache it writes its cached data
//! of the range, and after such a write it drops it.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;

use parking_lot::Mutex;
use rustix::fs::OFlags;

use super::direct::DirectAlignment;
use super::{Access, reopen, total_len};
use crate::device::LongBuffer;

/// Reads of at least this length bypass the page cache.
const READ_BYTES: usize = 256 << 10;
/// Writes of at least this length bypass it. They wait for the device. Shorter ones gather in the page cache,
/// so that the device can choose among many.
const WRITE_BYTES: u64 = 1 << 20;
/// The most that is written at once.
const WRITE_BYTES_MAX: usize = 8 << 20;

/// A block device, opened again.
#[derive(Debug)]
pub(super) struct LongRequests {
    file: File,
    alignment: DirectAlignment,
    page_bytes: u64,
    /// The data being written, aligned for the device.
    memory: Mutex<LongBuffer>,
}

impl LongRequests {
    /// For a block device that is open.
    pub(super) fn of(device: &File, access: Access) -> io::Result<LongRequests> {
        let file = reopen::again(device, access, OFlags::DIRECT)?;
        let alignment = DirectAlignment::of(&file, true)?;
        Ok(LongRequests::new(file, alignment))
    }

    pub(super) fn new(file: File, alignment: DirectAlignment) -> LongRequests {
        let page_bytes = rustix::param::page_size() as u64;
        let memory = Mutex::new(LongBuffer::new(WRITE_BYTES_MAX));
        LongRequests { file, alignment, page_bytes, memory }
    }

    /// Reads if the request is long and suits the device. Otherwise, or on failure, the caller uses the page
    /// cache.
    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) -> bool {
        buf.len() >= READ_BYTES
            && self.alignment.suits(offset, buf)
            && self.file.read_exact_at(buf, offset).is_ok()
    }

    /// Writes if the request is long and of whole pages; `None` if it is not. If parts of a page were changed
    /// here and in the page cache at the same time, one of the changes could be lost.
    pub(super) fn write(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Option<io::Result<()>> {
        let len = total_len(bufs);
        let is_whole =
            |at: u64| at.is_multiple_of(self.page_bytes) && self.alignment.is_aligned(at);
        let suits = len >= WRITE_BYTES && is_whole(offset) && is_whole(len);
        suits.then(|| self.write_gathered(offset, bufs))
    }

    fn write_gathered(&self, mut offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let mut memory = self.memory.lock();
        let memory = memory.bytes();
        let mut filled = 0;
        for buf in bufs {
            let mut rest: &[u8] = buf;
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(rest.len().min(memory.len() - filled));
                memory[filled..filled + piece.len()].copy_from_slice(piece);
                filled += piece.len();
                rest = after;
                if filled == memory.len() {
                    self.file.write_all_at(memory, offset)?;
                    offset += filled as u64;
                    filled = 0;
                }
            }
        }
        self.file.write_all_at(&memory[..filled], offset)
    }
}
