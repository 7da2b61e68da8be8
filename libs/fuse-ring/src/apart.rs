//! System calls that may wait for this process's own file system.
//!
//! A call into a mount waits in the kernel for an answer of its server, and once the server has the request,
//! a signal does not end the call. The kernel aborts a connection when the last reference to it is dropped. A
//! descriptor is a reference, and so is each command on a ring, until the ring is closed. A ring is closed
//! when its last descriptor is closed and its memory is unmapped, and a process unmaps its memory when its
//! last thread has ended. So a thread of the server that waits for its own mount keeps the connection alive
//! when the process is killed, and waits forever; sync(2) of the whole machine then waits as well.
//!
//! Therefore a child process makes such calls, which has neither the descriptors nor the memory of rings.
//! When the server is killed, the connection is aborted, and the call fails.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc::{self, c_int};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, waitpid,
};

/// The first descriptor to close in the child: all except standard input, output and error.
const FIRST: u32 = 3;

/// The child's status if closing failed. No error has this number.
const FAILED: c_int = 255;

/// Runs `work` in a child process, and waits for it. Returns `None` if the child could not be started, or its
/// result is unknown.
///
/// `work` may only make system calls: when the child was created, other threads of this process may have held
/// any lock, for example the allocator's.
pub(crate) fn run(work: impl FnOnce() -> Result<(), Errno>) -> Option<Result<(), Errno>> {
    run_until(&Stop::default(), work)
}

/// Does the same until it is [stopped](Stop::stop): then the result is unknown.
pub(crate) fn run_until(
    stop: &Stop,
    work: impl FnOnce() -> Result<(), Errno>,
) -> Option<Result<(), Errno>> {
    if stop.is_stopped.load(Ordering::SeqCst) {
        return None;
    }
    // SAFETY: the child only makes system calls, and exits without running destructors or handlers.
    match unsafe { libc::fork() } {
        0 => {
            let status = if close_descriptors() { status_of(work()) } else { FAILED };
            // SAFETY: this ends the child immediately.
            unsafe { libc::_exit(status) }
        }
        child => {
            let child = Pid::from_raw(child)?;
            // The child has not been waited for, so no other process has its number.
            if let Ok(child) = pidfd_open(child, PidfdFlags::empty()) {
                let _ = stop.child.set(child);
            }
            if stop.is_stopped.load(Ordering::SeqCst) {
                stop.stop();
            }
            wait(child)
        }
    }
}

/// Stops the child of one [`run_until`] from another thread.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    is_stopped: AtomicBool,
    child: OnceLock<OwnedFd>,
}

impl Stop {
    /// Kills the child, or prevents that it is created. A call of the child that a server has received ends
    /// with its answer; the child makes no other.
    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        if let Some(child) = self.child.get() {
            let _ = pidfd_send_signal(child, Signal::KILL);
        }
    }
}

/// Closes the descriptors that the child inherited (Linux 5.9).
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
