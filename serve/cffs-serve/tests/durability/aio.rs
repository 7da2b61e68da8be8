//! Asynchronous direct writes, as used by databases.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::{IoUring, opcode, types};

/// The alignment of direct writes.
pub const ALIGNMENT: usize = 4096;

/// A buffer with an address and length suitable for direct writes.
pub struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    pub fn filled(len: usize, byte: u8) -> Aligned {
        assert!(len.is_multiple_of(ALIGNMENT));
        let bytes = vec![byte; len + ALIGNMENT];
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        Aligned { bytes, start, len }
    }

    pub fn get(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

/// Writes through io_uring, which the kernel treats as an asynchronous write, and waits for its
/// completion.
pub fn write(file: BorrowedFd<'_>, data: &Aligned, offset: u64) -> io::Result<usize> {
    let mut ring = IoUring::new(2)?;
    let len = data.get().len() as u32;
    let entry = opcode::Write::new(types::Fd(file.as_raw_fd()), data.get().as_ptr(), len);
    // SAFETY: the buffer and the file outlive the request, since this function waits for its
    // completion.
    unsafe { ring.submission().push(&entry.offset(offset).build()) }.expect("room for one");
    ring.submit_and_wait(1)?;
    let completion = ring.completion().next().expect("one completion");
    let result = completion.result();
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result as usize) }
}
