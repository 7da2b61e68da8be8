//! Suspending a session, so that another goes on with its connection to the kernel.
//!
//! A server that is replaced, by a newer version of itself for one, stops reading requests and
//! answers those that it has read. The file system stays mounted: callers wait in the kernel, for the
//! session that is [resumed](super::Session::resume) on the same connection.
//!
//! No request is lost: what was not read stays in the kernel's queue, in its order. Threads that wait in
//! the kernel for a request are called back, so that a file system that nobody uses is suspended, too.
//!
//! Sessions on io_uring cannot be suspended. Until a ring has gone, the kernel puts requests into its
//! entries, and nothing takes an entry out of its hands before that; what is in them when the ring goes
//! fails with `ECANCELED`.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use super::Transport;
use crate::protocol::Granted;
use crate::transport::device::Device;
use crate::transport::seats::Seats;

/// How a session ended.
#[derive(Debug)]
pub enum Ended {
    /// The file system was unmounted.
    Unmounted,
    /// The session was suspended. The file system is mounted, and callers wait.
    Suspended(Connection),
}

/// A connection to the kernel that no session serves. When it is dropped, callers get `ENOTCONN`.
#[derive(Debug)]
pub struct Connection {
    pub(super) device: Device,
    pub(super) path: PathBuf,
    pub(super) granted: Granted,
}

impl Connection {
    /// A connection from its parts, which another process has taken apart.
    pub fn from_parts(device: OwnedFd, path: PathBuf, granted: Granted) -> Connection {
        Connection { device: Device::from_fd(device), path, granted }
    }

    /// The descriptor of `/dev/fuse`, the directory, and what was agreed on with the kernel.
    pub fn into_parts(self) -> (OwnedFd, PathBuf, Granted) {
        (self.device.into_fd(), self.path, self.granted)
    }
}

/// Asks a session to suspend itself, from another thread. Can be cloned; does not keep the session
/// alive.
#[derive(Clone, Debug)]
pub struct Suspender(Weak<Suspension>);

impl Suspender {
    pub(super) fn new(suspension: &Arc<Suspension>) -> Suspender {
        Suspender(Arc::downgrade(suspension))
    }

    /// From here on threads stop once they have answered what they have. Does nothing if the session
    /// is over.
    pub fn suspend(&self) {
        if let Some(suspension) = self.0.upgrade() {
            suspension.asked.store(true, Ordering::Release);
            suspension.seats.end();
        }
    }
}

/// How the threads of a session that read `/dev/fuse` learn that it ends.
#[derive(Debug)]
pub(super) struct Suspension {
    asked: AtomicBool,
    pub(super) seats: Arc<Seats>,
}

impl Suspension {
    pub(super) fn new(transport: &Transport) -> Suspension {
        let readers = match transport {
            Transport::Dev { readers, .. } => *readers,
            Transport::Uring { .. } => 0,
        };
        Suspension { asked: AtomicBool::new(false), seats: Seats::new(readers) }
    }

    /// Whether the session ends because it is suspended.
    pub(super) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }
}
