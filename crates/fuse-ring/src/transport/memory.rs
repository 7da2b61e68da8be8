//! Page-aligned buffers that live as long as a server thread.

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Anonymous memory: zeroed, page-aligned, at a fixed address, and backed by pages only where it
/// was touched, so that a mebibyte for the rare long request costs nothing to those that never
/// see one.
pub(crate) struct Pages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: `Pages` owns its memory exclusively, like a `Box<[u8]>`.
unsafe impl Send for Pages {}
// SAFETY: shared access only reads.
unsafe impl Sync for Pages {}

impl Pages {
    /// At least `len` bytes, which must not be zero.
    pub(crate) fn new(len: usize) -> io::Result<Pages> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel picks an address that nothing else uses.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, MapFlags::PRIVATE) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Pages { start, len })
    }

    /// Where the first `head_len` bytes are, and everything from `tail_start` on, as the kernel
    /// wants to be notified of it.
    pub(crate) fn iovecs(&mut self, head_len: usize, tail_start: usize) -> [Iovec; 2] {
        let (head, tail) = self.split_at_mut(tail_start);
        [Iovec::of(&mut head[..head_len]), Iovec::of(tail)]
    }
}

/// A `struct iovec`: an address and a length, for the kernel's use.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Iovec {
    base: usize,
    len: usize,
}

impl Iovec {
    fn of(bytes: &mut [u8]) -> Iovec {
        Iovec { base: bytes.as_mut_ptr().expose_provenance(), len: bytes.len() }
    }
}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping has `len` initialised bytes and lives until `drop`; nobody writes to
        // them while this borrow of `self` lasts.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no borrow of it is left. Unmapping can only fail for
        // arguments that `mmap` did not return.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}
