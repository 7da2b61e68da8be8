//! For which process a thread works, as the front end knows it.
//!
//! Stands on nothing.

use std::cell::Cell;

thread_local! {
    static PROCESS: Cell<u32> = const { Cell::new(0) };
}

/// The process for which this thread works; 0 if that is not known.
pub fn process() -> u32 {
    PROCESS.get()
}

/// Says for which process this thread works from now on, by the number that the kernel has for it: of a
/// process with several threads, that of the thread that called.
pub fn set_process(process: u32) {
    PROCESS.set(process);
}
