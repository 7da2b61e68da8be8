//! Page-aligned buffers that live as long as a server thread.

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// A range of 47-bit or longer address spaces that Linux does not use by default: programs and their heaps
/// are above it, and libraries, stacks and other mappings far above.
const PLACES: std::ops::Range<usize> = 0x2000_0000_0000..0x3000_0000_0000;

/// The alignment of addresses, a multiple of every page size.
const PLACE_ALIGNMENT: usize = 1 << 16;

/// How many addresses are tried. Memory left by the previous program occupies some.
const PLACES_TRIED: usize = 10_000;

/// Anonymous memory: zeroed, page-aligned, at a fixed address, and backed by pages only where it was touched,
/// so that a mebibyte for rare long requests costs nothing if there are none.
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
        // SAFETY: the kernel chooses an unused address.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, MapFlags::PRIVATE) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Pages { start, len })
    }

    /// The same at an address that is likely to be free in the next program in this process as well. If none
    /// is found, at any address.
    pub(crate) fn placed(len: usize) -> io::Result<Pages> {
        static NEXT: AtomicUsize = AtomicUsize::new(PLACES.start);
        let room = len.next_multiple_of(PLACE_ALIGNMENT);
        for _ in 0..PLACES_TRIED {
            let address = NEXT.fetch_add(room, Ordering::Relaxed);
            if let Ok(pages) = Pages::at(address, len) {
                return Ok(pages);
            }
        }
        Pages::new(len)
    }

    /// The same at this address; fails if that is in use.
    pub(crate) fn at(address: usize, len: usize) -> io::Result<Pages> {
        let is_place = PLACES.contains(&address) && len <= PLACES.end - address;
        if !is_place || !address.is_multiple_of(PLACE_ALIGNMENT) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        let wanted = std::ptr::without_provenance_mut(address);
        // SAFETY: with these flags, the kernel replaces no existing mapping.
        let start = unsafe { mmap_anonymous(wanted, len, protection, flags) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let pages = Pages { start, len };
        // Kernels that ignore the flag choose another address.
        if pages.address() == address { Ok(pages) } else { Err(io::ErrorKind::AddrInUse.into()) }
    }

    /// Its address.
    pub(crate) fn address(&self) -> usize {
        self.start.as_ptr().expose_provenance()
    }

    /// Whether the next program in this process can use the same address.
    pub(crate) fn is_placed(&self) -> bool {
        PLACES.contains(&self.address())
    }

    /// The first `head_len` bytes and everything from `tail_start` on, as address ranges for the kernel.
    pub(crate) fn iovecs(&mut self, head_len: usize, tail_start: usize) -> [Iovec; 2] {
        let (head, tail) = self.split_at_mut(tail_start);
        [Iovec::of(&mut head[..head_len]), Iovec::of(tail)]
    }
}

/// A `struct iovec` for the kernel: an address and a length.
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
        // SAFETY: the mapping has `len` initialised bytes and lives until `drop`; they are not written during
        // this borrow of `self`.
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
        // SAFETY: this value owns the mapping, and no borrow of it is left. Unmapping can only fail for
        // arguments that `mmap` did not return.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}
