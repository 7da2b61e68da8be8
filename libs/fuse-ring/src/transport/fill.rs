//! Makes requests that fill the entries of rings, so that a session can be suspended ([`hold`](super::hold)).

use std::io;
use std::path::Path;
use std::thread;

use rustix::thread::{CpuSet, sched_setaffinity};

/// Makes concurrent requests to the file system that is mounted on a directory, the given number on each
/// core. Returns when the session after the suspended one has answered all of them.
///
/// # Errors
///
/// Errors of starting threads. Other errors are ignored: the session continues without these requests.
pub fn make_requests(directory: &Path, cores: &[(usize, usize)]) -> io::Result<()> {
    let request = |core: usize| {
        let mut set = CpuSet::new();
        set.set(core);
        // The kernel forwards this call every time, and puts it into the queue of this core.
        let _ = sched_setaffinity(None, &set).and_then(|()| rustix::fs::statfs(directory));
    };
    thread::scope(|scope| {
        for (core, count) in cores {
            for _ in 0..*count {
                thread::Builder::new().spawn_scoped(scope, move || request(*core))?;
            }
        }
        Ok(())
    })
}
