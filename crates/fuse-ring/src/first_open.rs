//! Opens a file on behalf of the session, before programs do.
//!
//! Where opening is [elided](crate::protocol::Granted::elide_open), the kernel learns this from the answer to
//! the first `OPEN`. From then on it sends no `RELEASE` either; on Linux 6.18 this includes files opened by
//! `CREATE`. Before that, each new file causes a `RELEASE` that no caller waits for: it wakes a thread of the
//! server on the caller's core, which competes with the caller. So the session first opens a file itself:
//! under a name that only the session knows, with a node of its own, and removed once it is closed. The
//! handler is not involved.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

use crate::apart;
use crate::protocol::{
    Attr, AttrReply, Dialect, Entry, Frame, NodeId, Opcode, Operation, Request, encode,
};

/// The node of the file. Handlers use other nodes.
pub(crate) const NODE: NodeId = NodeId(u64::MAX);

/// Its name, and whether it exists.
#[derive(Debug)]
pub(crate) struct FirstOpen {
    name: String,
    is_there: AtomicBool,
}

impl FirstOpen {
    pub(crate) fn new() -> FirstOpen {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let name = format!(".fuse-ring-{}-{}", std::process::id(), now.as_nanos());
        FirstOpen { name, is_there: AtomicBool::new(false) }
    }

    /// Opens the file below `root`, in a [child process](apart), while this process serves it; then, also on
    /// failure, calls `done`.
    pub(crate) fn run(
        self: Arc<Self>,
        root: PathBuf,
        done: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let path = CString::new(root.join(&self.name).into_os_string().into_vec())?;
        self.is_there.store(true, Ordering::Release);
        let open = move || {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            let opened = apart::run(|| openat(CWD, &path, flags, Mode::empty()).map(drop));
            // This affects only speed. Restrictions for programs, such as the mode of the root directory, may
            // apply here as well.
            if opened != Some(Ok(())) {
                tracing::debug!(?opened, "the kernel learns from a program that opening is elided");
            }
            self.is_there.store(false, Ordering::Release);
            done();
        };
        // Not joined: if the session is not served, the thread ends with the connection.
        thread::Builder::new().name(String::from("first-open")).spawn(open).map(drop)
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
            && self.is_there.load(Ordering::Acquire);
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

/// An empty file that anybody may read. The kernel does not cache its name.
fn entry() -> Entry {
    Entry {
        node: NODE,
        generation: 0,
        attr: Attr { ino: NODE.0, mode: 0o100_444, nlink: 1, blksize: 4096, ..Attr::default() },
        entry_ttl: Duration::ZERO,
        attr_ttl: Duration::from_secs(60),
    }
}
