//! Memory that a program shares with the server.
//!
//! The server reads and writes it by system calls and never maps it, so a program cannot change memory that
//! the server is using. The program cannot shorten it, since it is sealed.

use std::io;
use std::os::fd::OwnedFd;

use cffs::error::{Error, Result};
use cffs::wire::{MEMORY_BYTES_MAX, Memory};
use rustix::fs::{FallocateFlags, SealFlags, fallocate, fcntl_get_seals, fstat, fstatfs};
use rustix::io::{pread, pwrite};

/// `TMPFS_MAGIC` of `linux/magic.h`.
const TMPFS: u64 = 0x0102_1994;

pub(super) struct SharedMemory {
    file: OwnedFd,
    bytes: u32,
}

impl SharedMemory {
    /// The memory of a descriptor that a program sent.
    ///
    /// # Errors
    ///
    /// It is not a sealed memory file of this size. Only the kernel's own memory has seals: a file of a file
    /// system could be on this very mount, and reading it would wait for this server.
    pub fn new(file: OwnedFd, bytes: u32) -> io::Result<SharedMemory> {
        let wanted = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        let is_sealed = fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(wanted));
        // Files of large pages have seals, too, but large pages are scarce.
        let is_memory = is_sealed && fstatfs(&file)?.f_type as u64 == TMPFS;
        let is_whole = is_memory && fstat(&file)?.st_size == i64::from(bytes);
        if !is_whole || bytes > MEMORY_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a sealed memory file"));
        }
        Ok(SharedMemory { file, bytes })
    }

    /// Reads a range into the buffer.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the range is not in the memory.
    pub fn read(&self, range: Memory, buffer: &mut Vec<u8>) -> Result<()> {
        self.check(range)?;
        buffer.resize(range.len as usize, 0);
        let mut filled = 0;
        while filled < buffer.len() {
            let at = u64::from(range.offset) + filled as u64;
            match pread(&self.file, &mut buffer[filled..], at).map_err(io::Error::from)? {
                // Sealed memory does not become shorter.
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                read => filled += read,
            }
        }
        Ok(())
    }

    /// Checks a range that is to be written.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the range is not in the memory.
    pub fn check(&self, range: Memory) -> Result<()> {
        match range.offset.checked_add(range.len).is_some_and(|end| end <= self.bytes) {
            true => Ok(()),
            false => Err(Error::Invalid("not a range of the shared memory")),
        }
    }

    /// Frees all pages. The server has filled them, so they count as its memory as long as the program keeps
    /// the file.
    ///
    /// # Errors
    ///
    /// None that sealed memory can cause.
    pub fn discard(&self) -> io::Result<()> {
        let all = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.file, all, 0, self.bytes.into())?)
    }

    /// Writes contents to a range that was checked.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], for example if the program has sealed the memory against writes.
    pub fn write(&self, offset: u32, contents: &[u8]) -> Result<()> {
        let mut written = 0;
        while written < contents.len() {
            let at = u64::from(offset) + written as u64;
            match pwrite(&self.file, &contents[written..], at).map_err(io::Error::from)? {
                0 => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                more => written += more,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
