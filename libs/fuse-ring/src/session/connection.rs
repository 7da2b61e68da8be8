//! Suspending a session, so that another one can continue its connection to the kernel.
//!
//! A server that is replaced, for example by a newer version, stops reading requests and answers those that
//! it has read. The file system stays mounted: callers wait in the kernel for the session that is
//! [resumed](super::Session::resume) on the same connection.
//!
//! No request is lost: unread requests stay in the kernel's queue, in order. Threads that wait in the kernel
//! for a request are interrupted, so that an idle file system can be suspended, too. On io_uring, requests
//! are [held](crate::transport::hold) in the rings' entries.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use rustix::thread::{CpuSet, sched_getaffinity};

use super::Transport;
use crate::protocol::Granted;
use crate::start_file::StartFile;
use crate::transport::device::Device;
use crate::transport::entry::{Held, HeldEntry, is_online};
use crate::transport::hold::Hold;
use crate::transport::reader_slots::ReaderSlots;
use crate::transport::uring::Worker;

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
    pub(super) rings: Option<Rings>,
}

/// The unanswered requests in the entries of a session's rings. Passed on with its [`Connection`].
#[derive(Debug)]
pub struct Rings(pub(super) Vec<Held>);

impl Rings {
    /// Serialises the entries for another program in this process.
    pub fn to_entries(&self) -> Vec<HeldEntry> {
        Held::to_entries(&self.0)
    }

    /// Restores the entries in that program.
    ///
    /// # Errors
    ///
    /// Fails if the addresses are in use.
    pub fn from_entries(entries: Vec<HeldEntry>) -> io::Result<Rings> {
        Held::from_entries(entries).map(Rings)
    }
}

impl Connection {
    /// A connection made of the parts of one from another process.
    pub fn from_parts(device: OwnedFd, path: PathBuf, granted: Granted) -> Connection {
        Connection { device: Device::from_fd(device), path, granted, rings: None }
    }

    /// The same connection with the requests that its rings hold.
    pub fn with_rings(self, rings: Option<Rings>) -> Connection {
        Connection { rings, ..self }
    }

    /// The requests in its rings, if it had rings.
    pub fn take_rings(&mut self) -> Option<Rings> {
        self.rings.take()
    }

    /// The descriptor of `/dev/fuse`, the directory, and the features negotiated with the kernel.
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

    /// Makes threads stop once they have answered their requests. Does nothing if the session has ended.
    ///
    /// On io_uring this may fail, since it takes [requests](Suspender::fill) on all cores: then the session
    /// continues, and `failed` is called with the reason. Make the requests after this returns. It waits
    /// until all threads have registered their entries, for at most five seconds.
    pub fn suspend_or(&self, failed: impl FnOnce(String) + Send + 'static) {
        let Some(suspension) = self.0.upgrade() else { return };
        suspension.start_file.stop();
        if let Some(hold) = &suspension.hold {
            hold.begin(Box::new(failed));
        } else {
            suspension.asked.store(true, Ordering::Release);
            suspension.slots.end();
        }
    }

    /// The requests that the owner has to make after it asked to suspend a session on io_uring: their number
    /// for each core. [`make_requests`](crate::make_requests) makes them, in a process that must outlive this
    /// one, since it waits for the next session. None are needed on `/dev/fuse`.
    pub fn fill(&self) -> Vec<(usize, usize)> {
        self.0.upgrade().map_or_else(Vec::new, |suspension| suspension.entries_per_core())
    }

    /// Why the session cannot be suspended, if that is known.
    pub fn obstacle(&self) -> Option<String> {
        let suspension = self.0.upgrade()?;
        if !suspension.is_placed {
            return Some(String::from("no other program can have its memory at the same place"));
        }
        let usable = |queue: &u16| suspension.usable.is_set(usize::from(*queue));
        let other = suspension.queues_in_use().find(|queue| !usable(queue))?;
        Some(format!("its requests come from core {other}, too, on which it may not run"))
    }
}

/// Notifies the threads of a session that it ends.
pub(super) struct Suspension {
    asked: AtomicBool,
    start_file: Arc<StartFile>,
    /// Threads that read `/dev/fuse`.
    pub(super) slots: Arc<ReaderSlots>,
    /// Threads that serve rings, with the queues of their entries.
    pub(super) hold: Option<Hold>,
    queues: Vec<u16>,
    is_placed: bool,
    /// The cores on which the session may run; each of its threads is bound to one.
    usable: CpuSet,
}

impl std::fmt::Debug for Suspension {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Suspension").field("asked", &self.asked).finish_non_exhaustive()
    }
}

impl Suspension {
    pub(super) fn new(
        start_file: &Arc<StartFile>,
        transport: &Transport,
        workers: &[Worker],
    ) -> Suspension {
        let (readers, hold) = match transport {
            Transport::Dev { readers, .. } => (*readers, None),
            Transport::Uring { .. } => (0, Hold::new(workers.len()).ok()),
        };
        Suspension {
            asked: AtomicBool::new(false),
            start_file: Arc::clone(start_file),
            slots: ReaderSlots::new(readers),
            hold,
            queues: workers.iter().flat_map(Worker::queues).collect(),
            is_placed: workers.iter().all(Worker::is_placed),
            usable: sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new()),
        }
    }

    /// The number of entries of each online core.
    pub(super) fn entries_per_core(&self) -> Vec<(usize, usize)> {
        let mut cores = BTreeMap::new();
        for queue in self.queues_in_use() {
            *cores.entry(usize::from(queue)).or_insert(0) += 1;
        }
        cores.into_iter().collect()
    }

    fn queues_in_use(&self) -> impl Iterator<Item = u16> {
        self.queues.iter().copied().filter(|queue| is_online(*queue))
    }

    /// Whether the session ends because it is suspended, and the requests that its rings hold then.
    pub(super) fn outcome(&self) -> Option<Option<Rings>> {
        match &self.hold {
            Some(hold) => {
                Some(hold.take()).filter(|held| !held.is_empty()).map(|held| Some(Rings(held)))
            }
            None => self.asked.load(Ordering::Acquire).then_some(None),
        }
    }
}
