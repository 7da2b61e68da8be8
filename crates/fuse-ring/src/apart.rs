//! Work that may wait for the file system itself.
//!
//! A call into a mount waits in the kernel for an answer of its server, and a signal does not end that once
//! the server has the request. The kernel gives up a connection when the last descriptor of it is closed; a
//! process closes its descriptors when its last thread has ended. So a thread of the server that waits for
//! its own mount keeps the connection alive when the process is killed, and waits for ever; sync(2) of the
//! whole machine then waits with it.
//!
//! Therefore such calls are made by a thread with a table of descriptors of its own, in which the connection
//! is not. The other threads end, the connection is aborted, and the call fails.

use std::io;
use std::thread;

use rustix::io::Errno;

/// Descriptors from here on are closed in the thread: all but those of standard input and output.
const FIRST: u32 = 3;

/// `CLOSE_RANGE_UNSHARE` (Linux 5.9): the calling thread gets a table of its own.
const UNSHARE: u32 = 1 << 1;

/// Runs `work` in a thread that has none of the process's descriptors, and waits for it.
///
/// `work` must neither use nor drop a descriptor that was opened elsewhere: its number means nothing here. So
/// it logs nothing.
///
/// # Errors
///
/// Those of starting the thread; `Unsupported` where the kernel cannot give it a table of its own.
pub(crate) fn run<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let apart = move || {
        leave_descriptors()?;
        work()
    };
    let thread = thread::Builder::new().name(String::from(name)).spawn(apart)?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("panicked")))
}

/// Gives the calling thread an empty table of descriptors.
fn leave_descriptors() -> io::Result<()> {
    // SAFETY: the table that the other threads use stays as it is, and this thread has no use for any of
    // the descriptors that it loses.
    let result =
        unsafe { nix::libc::syscall(nix::libc::SYS_close_range, FIRST, u32::MAX, UNSHARE) };
    if result == 0 {
        return Ok(());
    }
    Err(match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(Errno::NOSYS.raw_os_error()) => {
            io::Error::new(io::ErrorKind::Unsupported, "the kernel has no close_range(2)")
        }
        error => error,
    })
}

#[cfg(test)]
mod tests;
