//! Work that may wait for the file system itself.
//!
//! A call into a mount waits in the kernel for an answer of its server, and a signal does not end that once
//! the server has the request. The kernel aborts a connection when the last reference to it goes. A
//! descriptor is one, and so is each command on a ring, until the ring is closed. A ring is closed when its
//! last descriptor is closed and its memory is unmapped, and a process unmaps its memory when its last thread
//! has ended. So a thread of the server that waits for its own mount keeps the connection alive when the
//! process is killed, and waits for ever; sync(2) of the whole machine then waits with it.
//!
//! Therefore such calls are made by a child process that has neither the descriptors nor the memory of rings.
//! The server ends, the connection is aborted, and the call fails.

use nix::libc::{self, c_int};
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, waitpid};

/// Descriptors from here on are closed in the child: all but those of standard input and output.
const FIRST: u32 = 3;

/// The child's status if it could not close them. No error has this number.
const FAILED: c_int = 255;

/// Runs `work` in a child process, and waits for it. Returns `None` if no child could be started, or its
/// result is not known.
///
/// `work` may make system calls and nothing else: other threads of this process may have held any lock, the
/// allocator's for one, when the child was made.
pub(crate) fn run(work: impl FnOnce() -> Result<(), Errno>) -> Option<Result<(), Errno>> {
    // SAFETY: the child makes system calls only, and leaves without running destructors or handlers.
    match unsafe { libc::fork() } {
        0 => {
            let status = if close_descriptors() { status_of(work()) } else { FAILED };
            // SAFETY: it ends the child at once.
            unsafe { libc::_exit(status) }
        }
        child => wait(Pid::from_raw(child)?),
    }
}

/// Closes the descriptors that the child has from its parent (Linux 5.9).
fn close_descriptors() -> bool {
    // SAFETY: the child uses none of them.
    unsafe { libc::syscall(libc::SYS_close_range, FIRST, u32::MAX, 0) == 0 }
}

fn status_of(result: Result<(), Errno>) -> c_int {
    result.map_or_else(Errno::raw_os_error, |()| 0)
}

fn wait(child: Pid) -> Option<Result<(), Errno>> {
    let ended = loop {
        match waitpid(Some(child), WaitOptions::empty()) {
            Err(Errno::INTR) => {}
            ended => break ended,
        }
    };
    match ended.ok()??.1.exit_status()? {
        0 => Some(Ok(())),
        FAILED => None,
        code => Some(Err(Errno::from_raw_os_error(code))),
    }
}

#[cfg(test)]
mod tests;
