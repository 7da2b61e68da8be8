//! Memory for long requests.

/// The size of a huge page of the host.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Memory for direct device I/O. It is aligned to huge pages, and uses them if the host has them: a disk
/// accepts few pieces of memory per request (AHCI 168), so a long request over scattered pages would be
/// split.
#[derive(Debug)]
pub struct LongBuffer {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl LongBuffer {
    /// A buffer of `len` zeros, which takes no memory until it is written.
    pub fn new(len: usize) -> LongBuffer {
        let whole = len.next_multiple_of(HUGE_PAGE_BYTES);
        let mut memory = vec![0; whole + HUGE_PAGE_BYTES];
        let address = memory.as_ptr().addr();
        let start = address.next_multiple_of(HUGE_PAGE_BYTES) - address;
        debug_assert!(start + whole <= memory.len(), "the buffer ends after its memory");
        prefer_huge_pages(&mut memory[start..start + whole]);
        LongBuffer { memory, start, len }
    }

    /// All of it.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

fn prefer_huge_pages(memory: &mut [u8]) {
    let advice = rustix::mm::Advice::LinuxHugepage;
    // SAFETY: the advice changes how the memory is backed, not its contents, and the buffer owns all of it. A
    // host without huge pages refuses the hint.
    let _ = unsafe { rustix::mm::madvise(memory.as_mut_ptr().cast(), memory.len(), advice) };
}
