//! Page-aligned buffers that live as long as a server thread.

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Addresses that Linux gives to nothing by itself, with 47 bits and more: programs and their heaps lie
/// above, libraries, stacks and other mappings far above.
const PLACES: std::ops::Range<usize> = 0x2000_0000_0000..0x3000_0000_0000;

/// Addresses are multiples of this, which any page size divides.
const PLACE_ALIGNMENT: usize = 1 << 16;

/// How many addresses are tried. Some are taken, by what the program before this one has left.
const PLACES_TRIED: usize = 10_000;

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

    /// The same at an address that the next program in this process can have, too, whatever else is in its
    /// memory. Where there is none, at any address.
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

    /// The same at this address, where nothing else is.
    pub(crate) fn at(address: usize, len: usize) -> io::Result<Pages> {
        let is_place = PLACES.contains(&address) && len <= PLACES.end - address;
        if !is_place || !address.is_multiple_of(PLACE_ALIGNMENT) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        let wanted = std::ptr::without_provenance_mut(address);
        // SAFETY: the kernel replaces no mapping.
        let start = unsafe { mmap_anonymous(wanted, len, protection, flags) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let pages = Pages { start, len };
        // Kernels that do not know the flag choose another address.
        if pages.address() == address { Ok(pages) } else { Err(io::ErrorKind::AddrInUse.into()) }
    }

    /// Where it is.
    pub(crate) fn address(&self) -> usize {
        self.start.as_ptr().expose_provenance()
    }

    /// Whether the next program in this process can have memory at the same address.
    pub(crate) fn is_placed(&self) -> bool {
        PLACES.contains(&self.address())
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
        // SAFETY: the mapping is ours, and no borrow of it is left. Unmapping can only fail for
        // arguments that `mmap` did not return.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}
