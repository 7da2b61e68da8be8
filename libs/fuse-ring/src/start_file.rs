//! A file that only the session uses, while it starts. It has a name that only the session knows, a node of
//! its own, and is removed once the session has started. The handler is not involved.
//!
//! It has two uses:
//!
//! - *Opening is elided.* Where opening is [elided](crate::protocol::Granted::elide_open), the kernel learns
//!   this from the answer to the first `OPEN`. From then on it sends no `RELEASE` either; on Linux 6.18 this
//!   includes files opened by `CREATE`. Before that, each new file causes a `RELEASE` that no caller waits
//!   for: it wakes a thread of the server on the caller's core, which competes with the caller. So the
//!   session opens this file before programs open others.
//! - *Requests that wait in a queue of io_uring.* The kernel delivers them when an entry of the queue is
//!   answered, but not when one is [registered](crate::transport::hold). A request that arrives while few
//!   entries are registered would wait until one of the requests in these is answered, although other threads
//!   are idle. So once all entries are registered, the session makes as many requests for this file on each
//!   core as the core has entries.

use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, statat};
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::apart::{self, Stop};
use crate::protocol::{
    Attr, AttrReply, Dialect, Entry, Frame, NodeId, Opcode, Operation, Request, encode,
};

/// The node of the file. Handlers use other nodes.
pub(crate) const NODE: NodeId = NodeId(u64::MAX);

/// Its name, whether it exists, and what ends its use.
#[derive(Debug)]
pub(crate) struct StartFile {
    name: String,
    exists: AtomicBool,
    stop: Stop,
}

impl StartFile {
    pub(crate) fn new() -> StartFile {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let name = format!(".fuse-ring-{}-{}", std::process::id(), now.as_nanos());
        StartFile { name, exists: AtomicBool::new(false), stop: Stop::default() }
    }

    /// Makes no more calls, since the next session on this connection does not know the file. It only gets
    /// the requests of a call in flight.
    pub(crate) fn stop(&self) {
        self.stop.stop();
    }

    /// Uses the file below `root` in a [child process](apart), in a thread of its own, while this process
    /// serves it, until it is [stopped](StartFile::stop); then, also on failure, calls `done`. Opens it if
    /// `opens`. `cores` waits until all entries are registered, and returns the number of requests to make on
    /// each core.
    pub(crate) fn run(
        self: Arc<Self>,
        root: PathBuf,
        opens: bool,
        cores: impl FnOnce() -> Vec<(usize, usize)> + Send + 'static,
        done: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let path = CString::new(root.join(&self.name).into_os_string().into_vec())?;
        let start = move || {
            let cores = cores();
            self.exists.store(true, Ordering::Release);
            let used = apart::run_until(&self.stop, || {
                let opened = if opens { open(&path) } else { Ok(()) };
                cores.iter().for_each(|(core, count)| look_up(&path, *core, *count));
                opened
            });
            // This affects only speed. Restrictions for programs, such as the mode of the root directory, may
            // apply here as well.
            if used != Some(Ok(())) {
                tracing::debug!(?used, "the kernel learns from a program that opening is elided");
            }
            self.exists.store(false, Ordering::Release);
            done();
        };
        // Not joined: if the session is not served, the thread ends with the connection.
        thread::Builder::new().name(String::from("fuse-start")).spawn(start).map(drop)
    }

    /// Answers a request about the file; `None` for other requests.
    pub(crate) fn answer(
        &self,
        frame: &Frame<'_>,
        dialect: Dialect,
        out: &mut [u8],
    ) -> Option<Result<usize, Errno>> {
        let is_sought = frame.node() == NodeId::ROOT
            && frame.opcode() == Some(Opcode::Lookup)
            && self.exists.load(Ordering::Acquire);
        if frame.node() != NODE && !is_sought {
            return None;
        }
        Some(match Request::decode(frame, dialect).ok()?.operation {
            Operation::Lookup { name } if is_sought => {
                if name != self.name.as_bytes() {
                    return None;
                }
                Ok(encode::entry(out, &entry()))
            }
            Operation::GetAttr { .. } => {
                let Entry { attr, attr_ttl: ttl, .. } = entry();
                Ok(encode::attr(out, &AttrReply { attr, ttl }))
            }
            Operation::Open(_) => Err(Errno::NOSYS),
            Operation::Flush { .. } | Operation::Release(_) | Operation::Forget { .. } => Ok(0),
            _ => Err(Errno::NOENT),
        })
    }
}

fn open(path: &CStr) -> Result<(), Errno> {
    openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map(drop)
}

/// Makes requests from one core, each after the answer to the one before. The kernel caches no name of the
/// file, so it forwards each call. A core on which this process may not run is left out.
fn look_up(path: &CStr, core: usize, count: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    if sched_setaffinity(None, &set).is_ok() {
        for _ in 0..count {
            let _ = statat(CWD, path, AtFlags::empty());
        }
    }
}

/// An empty file that any program may read. The kernel does not cache its name.
fn entry() -> Entry {
    Entry {
        node: NODE,
        generation: 0,
        attr: Attr { ino: NODE.0, mode: 0o100_444, nlink: 1, blksize: 4096, ..Attr::default() },
        entry_ttl: Duration::ZERO,
        attr_ttl: Duration::from_secs(60),
    }
}
