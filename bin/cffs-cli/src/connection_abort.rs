//! Aborts the connection between the kernel and a server that dies but does not end.
//!
//! A thread of the server that notifies the kernel may wait for a lock of a directory or a page, and the
//! holder of the lock for an answer of the server. If the server is killed at that moment, the thread cannot
//! end, and it keeps `/dev/fuse` open, so the kernel does not abort the connection by itself: the mount, and
//! sync(2) of the whole machine, would hang. The monitor ([`crate::background`]) therefore aborts the
//! connection through fusectl, the kernel's file system for controlling connections. Then the holder gets an
//! error and releases the lock, and the thread ends.
//!
//! The monitor opens the connection's file `abort` as soon as the server is ready. The file belongs to the
//! user who mounted, so a monitor without capabilities can write to it. The open file stands for that
//! connection, and has no effect after it, even if another connection has the same number.

use std::fs::{self, File};
use std::io::Write;
use std::thread;
use std::time::Duration;

use rustix::process::Pid;

#[cfg(test)]
mod tests;

/// Where fusectl is mounted.
const FUSECTL: &str = "/sys/fs/fuse/connections";

/// Fields of `/proc/PID/stat`, counted from the state, which is the third: flags of the kernel's
/// `task_struct`, and pending signals.
const FLAGS: usize = 6;
const PENDING: usize = 28;
const PF_EXITING: u64 = 0x4;
const PF_SIGNALED: u64 = 0x400;
const SIGKILL_BIT: u64 = 1 << 8;

/// The interval between two looks at the server.
const INTERVAL: Duration = Duration::from_secs(2);

/// Opens the file by which a connection can be aborted. `None` if there is no number, or fusectl is not
/// mounted.
pub fn open(connection: &str) -> Option<File> {
    let number: u32 = connection.parse().ok()?;
    let path = format!("{FUSECTL}/{number}/abort");
    let opened = File::options().write(true).open(&path);
    opened
        .inspect_err(|error| tracing::debug!(path, %error, "the connection cannot be aborted"))
        .ok()
}

/// Starts a thread that aborts the connection when the server has been dying for an interval. The server is a
/// child of this process.
pub fn abort_when_dying(server: Pid, mut abort: File) {
    let watch = move || {
        wait_until_dying(server);
        let pid = server.as_raw_pid();
        // A connection that has ended meanwhile accepts this, too.
        match abort.write_all(b"1") {
            Ok(()) => tracing::warn!(
                pid,
                "a thread of the killed server has not ended; aborted its connection to the kernel"
            ),
            Err(error) => tracing::error!(
                pid, %error,
                "a thread of the killed server has not ended, and the connection cannot be aborted"
            ),
        }
    };
    if let Err(error) = thread::Builder::new().name("connection-abort".into()).spawn(watch) {
        tracing::warn!(%error, "the connection is not aborted if the server cannot end");
    }
}

/// Returns when two looks have found that a process is dying.
fn wait_until_dying(process: Pid) {
    // No descriptor of the process becomes readable before all its threads have ended: since Linux 6.15, that
    // applies to `PIDFD_THREAD` of the first thread as well.
    let mut was_dying = false;
    loop {
        thread::sleep(INTERVAL);
        let is_dying = is_dying(process);
        if was_dying && is_dying {
            return;
        }
        was_dying = is_dying;
    }
}

/// Whether a signal ends a process. That applies to all its threads, so the first one is examined.
fn is_dying(process: Pid) -> bool {
    let stat = fs::read(format!("/proc/{}/stat", process.as_raw_pid())).unwrap_or_default();
    is_dead_or_killed(&stat)
}

/// Examines what `/proc/PID/stat` shows: the thread has ended, is ending, or has not noticed SIGKILL yet.
fn is_dead_or_killed(stat: &[u8]) -> bool {
    // The name before it may have any bytes.
    let Some(name_end) = stat.iter().rposition(|byte| *byte == b')') else { return false };
    let fields = String::from_utf8_lossy(&stat[name_end + 1..]);
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let number = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok());
    let has_ended = matches!(fields.first(), Some(&("Z" | "X")));
    let is_ending = number(FLAGS).is_some_and(|flags| flags & (PF_EXITING | PF_SIGNALED) != 0);
    let is_killed = number(PENDING).is_some_and(|signals| signals & SIGKILL_BIT != 0);
    has_ended || is_ending || is_killed
}
