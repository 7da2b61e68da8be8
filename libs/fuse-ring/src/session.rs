//! A mounted file system and the threads that serve it.
//!
//! ```text
//!   Session::mount             Session::serve                    unmounted by anybody,
//!   mount(2), INIT,    ───▶    threads serve until the   ───▶    connection aborted:
//!   transport chosen           connection ends                   Handler::destroy
//!         │                        │
//!         │                        └── suspended: the Connection, for Session::resume, in this
//!         │                            process or in one that replaces it; callers wait meanwhile
//!         └── dropped unserved: unmounted
//! ```

mod connection;
mod handshake;

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use connection::Suspension;
pub use connection::{Connection, Ended, Rings, Suspender};
use handshake::Agreed;

use crate::dispatch::Dispatcher;
use crate::protocol::{Granted, Wishes};
use crate::transport::dev::{self, Buffers};
use crate::transport::device::Device;
use crate::transport::reader_slots;
use crate::transport::readers::Readers;
use crate::transport::sync_pool::{self, SyncPool};
use crate::transport::uring::Worker;
use crate::transport::waiting::Waiting;
use crate::{Handler, MountOptions, Notifier, Unmount, mount};

/// The features to negotiate, and the configuration of serving.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Features and limits to request from the kernel.
    pub wishes: Wishes,
    /// The transport to use.
    pub transport: TransportChoice,
    /// The number of serving threads: in total on `/dev/fuse`, per core on io_uring.
    ///
    /// A request that waits for a disk occupies its thread, so this limits the number of concurrent requests;
    /// on `/dev/fuse`, `FSYNC` and similar requests have separate threads. By default, one thread per core,
    /// but at least [`READERS_MIN`], reads `/dev/fuse`, and [`SPARES`] more threads replace those that
    /// [wait](will_wait); on io_uring each core has its share of [`RING_THREADS_MIN`], but at least
    /// [`THREADS_PER_CORE_MIN`].
    pub threads: Option<NonZeroUsize>,
    /// Whether requests may wait for long, for example for a network, and killed callers should end
    /// meanwhile. This requires `/dev/fuse`: over io_uring, only the thread that serves a request can answer
    /// it. [`TransportChoice::Auto`] then means `/dev/fuse`.
    pub waits_long: bool,
}

/// The least number of threads that read `/dev/fuse`, by default.
pub const READERS_MIN: usize = 3;

/// The number of threads that replace reading threads of `/dev/fuse` while those [wait](will_wait), by
/// default.
pub const SPARES: usize = 8;

/// The least number of threads that serve each core on io_uring, by default.
pub const THREADS_PER_CORE_MIN: usize = 4;

/// The least number of threads that serve io_uring on all cores, by default: this many requests may wait for
/// a disk concurrently, and this many `FSYNC`s may share one flush. An idle thread takes no time, since the
/// kernel gives a request to the most recently active thread, but its buffer stays in memory once it was
/// used.
pub const RING_THREADS_MIN: usize = 16;

/// Announces that the request of this thread is about to wait for a device, or for a thread that does, so
/// that another thread replaces it meanwhile. Outside a handler this does nothing.
///
/// Without this call the request is served as well, but on `/dev/fuse` only [`READERS_MIN`] requests, or one
/// per core, run concurrently.
pub fn will_wait() {
    reader_slots::leave();
}

/// The transport to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportChoice {
    /// io_uring if the kernel supports it, otherwise `/dev/fuse`.
    #[default]
    Auto,
    /// `/dev/fuse`.
    Dev,
    /// io_uring; without it, mounting fails.
    Uring,
}

/// The transport in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// FUSE over io_uring.
    Uring {
        /// The number of serving cores.
        cores: usize,
        /// The number of threads on each.
        threads_per_core: usize,
    },
    /// Reads and writes on `/dev/fuse`.
    Dev {
        /// The total number of threads.
        threads: usize,
        /// The number of threads that read concurrently; the others replace those that wait.
        readers: usize,
        /// The reason for not using io_uring, in words.
        why_not_uring: String,
    },
}

/// A mounted file system.
///
/// Dropping it without serving unmounts it.
pub struct Session<H: Handler> {
    dispatcher: Dispatcher<H>,
    device: Arc<Device>,
    mounted: Arc<Mounted>,
    suspension: Arc<Suspension>,
    transport: Transport,
    /// Whether no session has served the connection before.
    is_new: bool,
    /// The threads that serve the rings, prepared in advance; none on `/dev/fuse`.
    workers: io::Result<Vec<Worker>>,
}

/// The mount, shared with everything that may unmount it.
#[derive(Debug)]
struct Mounted {
    path: PathBuf,
    ended: AtomicBool,
}

/// Unmounts from another thread, for example a signal handler's. Can be cloned; does not keep the session
/// alive.
#[derive(Clone, Debug)]
pub struct Unmounter(Weak<Mounted>);

impl Unmounter {
    /// Unmounts. Succeeds if the session has already ended.
    pub fn unmount(&self, how: Unmount) -> io::Result<()> {
        self.0.upgrade().map_or(Ok(()), |mounted| mounted.unmount(how))
    }
}

impl Mounted {
    fn unmount(&self, how: Unmount) -> io::Result<()> {
        if self.ended.load(Ordering::Acquire) {
            return Ok(());
        }
        match mount::unmount(&self.path, how) {
            // It was unmounted meanwhile; the serving threads will notice.
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(()),
            result => result,
        }
    }

    /// Unmounts because no thread serves. Only root can abort a connection; for other users it ends when the
    /// last open file is closed.
    fn abandon(&self) -> io::Result<()> {
        self.unmount(Unmount::Force).or_else(|_| self.unmount(Unmount::Lazy))
    }
}

impl<H: Handler> Session<H> {
    /// Mounts the file system on a directory and negotiates with the kernel.
    ///
    /// From now on programs can access it; they wait until [`serve`](Session::serve) runs.
    pub fn mount(
        handler: H,
        path: impl AsRef<Path>,
        options: &MountOptions,
        config: &Config,
    ) -> io::Result<Session<H>> {
        let (device, path) = mount::mount(path.as_ref(), options)?;
        let mounted = Mounted { path, ended: AtomicBool::new(false) };
        let agreed = match handshake::run(&device, config) {
            Ok(agreed) => agreed,
            Err(error) => {
                // The device is closed first, so that no caller waits for an answer below the mount.
                drop(device);
                let _ = mounted.unmount(Unmount::Lazy);
                return Err(match error.raw_os_error() {
                    // For a block device that is mounted already, the kernel reuses the existing mount and
                    // sends no requests.
                    Some(code) if options.block_device && code == Errno::PERM.raw_os_error() => {
                        io::Error::new(io::ErrorKind::ResourceBusy, "the device is mounted already")
                    }
                    _ => error,
                });
            }
        };
        Ok(Session::new(handler, device, mounted, agreed, true))
    }

    /// Continues a connection that another session has left [suspended](Ended::Suspended), with the features
    /// negotiated by that session. Of `config`, only the number of threads is used.
    ///
    /// If resources for its rings are missing, serving fails.
    pub fn resume(handler: H, connection: Connection, config: &Config) -> Session<H> {
        let Connection { device, path, granted, rings } = connection;
        let mounted = Mounted { path, ended: AtomicBool::new(false) };
        match handshake::resume(granted, rings, config) {
            Ok(agreed) => Session::new(handler, device, mounted, agreed, false),
            Err(error) => {
                let transport = Transport::Uring { cores: 0, threads_per_core: 0 };
                let agreed = Agreed { granted, transport, workers: Vec::new() };
                let mut session = Session::new(handler, device, mounted, agreed, false);
                session.workers = Err(error);
                session
            }
        }
    }

    fn new(
        handler: H,
        device: Device,
        mounted: Mounted,
        agreed: Agreed,
        is_new: bool,
    ) -> Session<H> {
        handler.init(&agreed.granted);
        let dispatcher = Dispatcher::new(handler, agreed.granted);
        let suspension =
            Suspension::new(&dispatcher.start_file, &agreed.transport, &agreed.workers);
        Session {
            dispatcher,
            device: Arc::new(device),
            mounted: Arc::new(mounted),
            suspension: Arc::new(suspension),
            transport: agreed.transport,
            is_new,
            workers: Ok(agreed.workers),
        }
    }

    /// The negotiated features and limits.
    pub fn granted(&self) -> &Granted {
        &self.dispatcher.granted
    }

    /// The transport in use, with the reason if it is not the faster one.
    pub fn transport(&self) -> &Transport {
        &self.transport
    }

    /// The mount point, without symbolic links.
    pub fn path(&self) -> &Path {
        &self.mounted.path
    }

    /// The device number of the file system. `None` if the kernel does not show it for the descriptor of
    /// `/dev/fuse`, as before Linux 6.16.
    pub fn device_number(&self) -> Option<(u32, u32)> {
        self.device.number()
    }

    /// The file system.
    pub fn handler(&self) -> &H {
        &self.dispatcher.handler
    }

    /// A handle that unmounts the file system.
    pub fn unmounter(&self) -> Unmounter {
        Unmounter(Arc::downgrade(&self.mounted))
    }

    /// A handle that suspends the session.
    pub fn suspender(&self) -> Suspender {
        Suspender::new(&self.suspension)
    }

    /// A handle that notifies the kernel of changes.
    pub fn notifier(&self) -> Notifier {
        Notifier::new(Arc::downgrade(&self.device))
    }

    /// Serves until the file system is unmounted by any program, until the session is suspended, or until
    /// serving fails.
    ///
    /// After a lazy unmount, the session ends when the last open file is closed.
    pub fn serve(self) -> io::Result<Ended> {
        self.serve_then(|| ())
    }

    /// Does the same, and calls `ready` when programs may use the mount. They can access it before; but until
    /// then a new session uses the file system itself if opening [is elided](crate::protocol::Granted) or
    /// requests come through io_uring, and therefore it cannot be unmounted.
    pub fn serve_then(mut self, ready: impl FnOnce() + Send + 'static) -> io::Result<Ended> {
        self.start_then(ready)?;
        let workers = std::mem::replace(&mut self.workers, Ok(Vec::new()));
        let result = match self.transport {
            Transport::Dev { threads, .. } => self.serve_dev(threads),
            Transport::Uring { .. } => workers.and_then(|workers| self.serve_uring(workers)),
        };
        if result.is_ok() {
            self.mounted.ended.store(true, Ordering::Release);
            if let Some(rings) = self.suspension.outcome()
                && !self.dispatcher.panicked()
            {
                return Ok(Ended::Suspended(Connection {
                    device: self.device.try_clone()?,
                    path: self.mounted.path.clone(),
                    granted: self.dispatcher.granted,
                    rings,
                }));
            }
        }
        if self.dispatcher.destroy().is_err() {
            return Err(io::Error::other("the handler panicked"));
        }
        result.map(|()| Ended::Unmounted)
    }

    /// Uses the [start file](crate::start_file) if necessary, and calls `ready`.
    fn start_then(&self, ready: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let opens = self.dispatcher.granted.elide_open;
        let has_rings = matches!(self.transport, Transport::Uring { .. });
        if !self.is_new || !(opens || has_rings) {
            ready();
            return Ok(());
        }
        let suspension = Arc::clone(&self.suspension);
        let cores = move || match &suspension.hold {
            Some(hold) => {
                hold.wait_for_start();
                suspension.entries_per_core()
            }
            None => Vec::new(),
        };
        let start_file = Arc::clone(&self.dispatcher.start_file);
        start_file.run(self.mounted.path.clone(), opens, cores, ready)
    }

    fn serve_dev(&self, threads: usize) -> io::Result<()> {
        let payload_len = self.dispatcher.granted.payload_len();
        let mut devices = vec![Arc::clone(&self.device)];
        for _ in 1..threads {
            devices.push(Arc::new(self.device.try_clone()?));
        }
        let (slots, pool, waiting) =
            (&self.suspension.slots, &SyncPool::default(), &Waiting::default());
        let reading = &Readers::new()?;
        let readers = devices.into_iter().map(Part::Reads);
        let waiters = std::iter::repeat_with(|| Part::Waits).take(sync_pool::THREADS);
        let work = readers.chain(waiters).chain([Part::Watches]).map(|part| {
            move || match part {
                Part::Reads(device) => {
                    let mut buffers = Buffers::new(payload_len)?;
                    let _reader = reading.enter();
                    let (dispatcher, buffers) = (&self.dispatcher, &mut buffers);
                    let served = dev::serve(dispatcher, &device, buffers, slots, waiting, pool);
                    slots.end();
                    served
                }
                Part::Waits => pool.serve(&self.dispatcher, waiting),
                Part::Watches => {
                    waiting.watch();
                    Ok(())
                }
            }
        });
        let give_up = || {
            let _ = self.mounted.abandon();
            slots.end();
        };
        // The pool ends last, since a reading thread may still give it a request.
        let end = || {
            slots.wait_for_end();
            reading.recall();
            pool.end();
            waiting.end();
        };
        run_all("fuse-dev", work, give_up, end)
    }

    fn serve_uring(&self, workers: Vec<Worker>) -> io::Result<()> {
        let hold = self.suspension.hold.as_ref().ok_or(Errno::MFILE)?;
        let threads = workers.len();
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let payload_len = self.dispatcher.granted.payload_len();
        self.device.set_nonblocking()?;
        let mut reader = Some(Buffers::new(payload_len)?);
        let mut workers = workers.into_iter();
        let work = std::iter::from_fn(|| {
            let (worker, reader) = match workers.next() {
                Some(worker) => (Some(worker), None),
                None => (None, Some(reader.take()?)),
            };
            let stop = stop.as_fd();
            Some(move || match (worker, reader) {
                (Some(worker), _) => {
                    let served = worker.serve(&self.dispatcher, &self.device, stop, hold);
                    hold.thread_ended();
                    served
                }
                (None, Some(mut buffers)) => {
                    dev::serve_beside(&self.dispatcher, &self.device, &mut buffers, stop)
                }
                (None, None) => Ok(()),
            })
        });
        let give_up = || {
            hold.end();
            signal(&stop);
        };
        // Requests outside the rings are served until the ring entries are held.
        let coordinate = || {
            if hold.coordinate(threads) {
                signal(&stop);
            }
        };
        run_all("fuse-ring", work, give_up, coordinate)
    }
}

/// The task of a thread that serves `/dev/fuse`.
enum Part {
    /// Reads and serves requests.
    Reads(Arc<Device>),
    /// Serves requests that wait for a disk.
    Waits,
    /// Watches the callers of waiting requests.
    Watches,
}

/// Runs each task on its own thread until all are done. When one fails or cannot be started, calls `give_up`
/// to end the others. `meanwhile` runs on this thread. Returns the first error.
fn run_all<W>(
    name: &str,
    work: impl Iterator<Item = W>,
    give_up: impl Fn() + Sync,
    meanwhile: impl FnOnce(),
) -> io::Result<()>
where
    W: FnOnce() -> io::Result<()> + Send,
{
    let guarded = |work: W| {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work))
            .unwrap_or_else(|_| Err(io::Error::other("a server thread panicked")));
        result.inspect_err(|_| give_up())
    };
    thread::scope(|scope| {
        let mut running = Vec::new();
        let mut result = Ok(());
        for (index, work) in work.enumerate() {
            let builder = thread::Builder::new().name(format!("{name}-{index}"));
            match builder.spawn_scoped(scope, || guarded(work)) {
                Ok(thread) => running.push(thread),
                Err(error) => {
                    give_up();
                    result = Err(error);
                    break;
                }
            }
        }
        meanwhile();
        for thread in running {
            let ended = thread.join().unwrap_or_else(|_| Err(io::Error::other("panicked")));
            result = result.and(ended);
        }
        result
    })
}

/// Makes the descriptor permanently readable: it is never read.
fn signal(stop: &OwnedFd) {
    let _ = rustix::io::write(stop, &1_u64.to_ne_bytes());
}

impl<H: Handler> Drop for Session<H> {
    fn drop(&mut self) {
        // A connection without a server is aborted: the unmount of a block device would wait for an answer.
        if let Err(error) = self.mounted.abandon() {
            tracing::warn!(path = %self.mounted.path.display(), %error, "not unmounted");
        }
    }
}
