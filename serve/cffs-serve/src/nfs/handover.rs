//! The state that an NFS server hands over when the program is replaced during a mount.
//!
//! ```text
//!   Running::pause                Running::hand_over                  Server::resume
//!   all calls answered, no   ───▶ volume closed: Handover,       ───▶ volume opened again; clients that
//!   connection is left            clients wait for the listener       waited repeat unanswered calls
//! ```
//!
//! The volume was closed in between, so all writes are durable, and the verifier stays the same. Replies are
//! kept, since a client may not have received the last ones; so are exports, including changes at run time,
//! and the key of handles, which a read-only volume does not store.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, RawFd};

use cffs::device::file::inherited_descriptor;
use rustix::io::{FdFlags, fcntl_setfd};
use serde::{Deserialize, Serialize};

/// A server without its volume and its threads.
#[derive(Debug)]
pub struct Handover {
    pub(super) listener: TcpListener,
    pub(super) kept: Kept,
    pub(super) replies: Vec<u8>,
}

/// The unchanged part of the state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Kept {
    /// The exports, with the inode numbers of their directories.
    pub(super) exports: Vec<(String, u64)>,
    pub(super) key: [u8; 16],
    pub(super) verifier: [u8; 8],
}

/// The serialised form for the next program, in which the listener has the same descriptor; without replies.
#[derive(Debug, Serialize, Deserialize)]
pub struct State {
    listener: RawFd,
    kept: Kept,
}

impl Handover {
    /// Sets whether the listener stays open over an `exec`.
    ///
    /// # Errors
    ///
    /// Errors of `fcntl(2)`.
    pub fn outlive_exec(&self, outlive: bool) -> io::Result<()> {
        let flags = if outlive { FdFlags::empty() } else { FdFlags::CLOEXEC };
        Ok(fcntl_setfd(&self.listener, flags)?)
    }

    /// The state for the next program, without the [replies](Self::replies).
    pub fn state(&self) -> State {
        State { listener: self.listener.as_raw_fd(), kept: self.kept.clone() }
    }

    /// The replies for repeated calls.
    pub fn replies(&self) -> &[u8] {
        &self.replies
    }

    /// Rebuilds the state that the previous program handed over.
    ///
    /// # Errors
    ///
    /// `EBADF` if the descriptor is not open.
    pub fn from_state(state: State, replies: Vec<u8>) -> io::Result<Handover> {
        let listener = inherited_descriptor(state.listener)?.into();
        Ok(Handover { listener, kept: state.kept, replies })
    }
}
