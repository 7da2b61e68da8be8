//! NFS version 3: the volume for other machines, or for this one without a mount.
//!
//! Offers [`Server`], which listens at an address and serves directories of a [`Volume`] until it is
//! stopped, by itself or [beside a mount](Running) of the same volume. Stands on `nfs-wire` (the protocol)
//! and on the facade. MOUNT and NFS answer at one port, by TCP, and need no portmapper:
//! `mount -o port=N,mountport=N,proto=tcp,vers=3,nolock`.
//!
//! ```text
//!   listener ─▶ connection: reader, writer ─▶ pool ─▶ service: reply cache, handle, export
//!                                                     ─▶ contents, names: access, Volume, durable
//! ```
//!
//! Invariants: what was answered is durable, but for WRITEs that were asked to be UNSTABLE; of these
//! the verifier shows whether the server is still the one that had them. Before it is answered, a change is
//! shown to the [`Observer`], with no lock held. A file is got at by a handle
//! only, which no client can make. Permissions are checked here, by [`access`](crate::access), since
//! no kernel has.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use cffs::error::Error;
use cffs::vfs::Volume;
use parking_lot::Mutex;

mod administration;
mod connection;
mod contents;
mod exported;
mod exports;
mod file;
pub mod handle;
mod names;
mod pool;
mod replies;
mod request;
mod service;
mod translate;

pub use exports::{BadExport, Export, Network, Squash};
pub use request::Peer;
pub use service::Service;

use crate::shared::{Beside, Exports, Observer};
use administration::Administration;
use connection::Total;
use pool::Pool;

#[cfg(test)]
mod tests;

/// Calls that are carried out at the same time. Most of them wait for the device, together.
const WORKERS: usize = 32;
/// Connections at the same time; another one is closed at once.
const CONNECTIONS_MAX: usize = 256;

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The address cannot be had.
    #[error("listening at {0}: {1}")]
    Listen(SocketAddr, io::Error),
    /// The volume cannot be served.
    #[error("{0}")]
    Volume(#[from] Error),
}

/// Why a server ended without having been asked to.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Those of accept(2) that concern the listener and not a connection.
    #[error("waiting for connections: {0}")]
    Accept(#[from] io::Error),
    /// Threads cannot be started.
    #[error("starting threads: {0}")]
    Threads(io::Error),
    /// A part of it panicked. The volume in memory may be half changed: it is not to be closed, and the
    /// next opening recovers it.
    #[error("it panicked, as its log says")]
    Panicked,
}

/// A server that listens, and answers as soon as [`serve`](Server::serve) runs.
pub struct Server {
    listener: TcpListener,
    service: Arc<Service>,
    connections: Arc<Connections>,
    stopping: Arc<AtomicBool>,
}

/// The connections that are open.
#[derive(Default)]
struct Connections {
    count: AtomicUsize,
    streams: Mutex<Vec<Arc<TcpStream>>>,
    underway: Arc<Total>,
}

/// Stops a server from another thread.
pub struct Stopper {
    listener: OwnedFd,
    stopping: Arc<AtomicBool>,
}

impl Stopper {
    /// Has the server end: it takes no further calls, and answers those that it has.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        // Wakes the thread that waits for connections. It fails only where that has ended.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
    }
}

impl Server {
    /// Listens at an address for clients of these exports. What they change is shown to the observer.
    ///
    /// # Errors
    ///
    /// [`BindError`]; of an export that is no directory, [`BindError::Volume`].
    pub fn bind(
        volume: Arc<Volume>,
        address: SocketAddr,
        exports: Vec<Export>,
        observer: Arc<dyn Observer>,
    ) -> Result<Server, BindError> {
        let service = Arc::new(Service::over(volume, exports, observer)?);
        let listener =
            TcpListener::bind(address).map_err(|error| BindError::Listen(address, error))?;
        let (connections, stopping) = (Arc::default(), Arc::default());
        Ok(Server { listener, service, connections, stopping })
    }

    /// Where it listens, also if any port was asked for.
    ///
    /// # Errors
    ///
    /// Those of getsockname(2).
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The means to end it.
    ///
    /// # Errors
    ///
    /// Those of dup(2).
    pub fn stopper(&self) -> io::Result<Stopper> {
        let listener = self.listener.as_fd().try_clone_to_owned()?;
        Ok(Stopper { listener, stopping: Arc::clone(&self.stopping) })
    }

    /// What is exported, with the clients and the calls of each procedure: for administration.
    pub fn exports(&self) -> Arc<dyn Exports> {
        let (service, connections) = (Arc::clone(&self.service), Arc::clone(&self.connections));
        Arc::new(Administration::new(service, connections))
    }

    /// Serves until it is stopped. The volume stays open.
    ///
    /// # Errors
    ///
    /// [`ServeError`]
    pub fn serve(self) -> Result<(), ServeError> {
        // Not before: threads have the rights of the one that starts them, which binding may need more of.
        let pool = Pool::start(WORKERS).map_err(ServeError::Threads)?;
        let accepted = thread::scope(|scope| {
            let accepted = loop {
                let stream = match self.listener.accept() {
                    _ if self.stopping.load(Ordering::Acquire) => break Ok(()),
                    Ok((stream, _)) => Arc::new(stream),
                    Err(error) if is_of_connection(&error) => continue,
                    Err(error) => break Err(error),
                };
                let connections = &self.connections;
                if connections.count.load(Ordering::Acquire) >= CONNECTIONS_MAX {
                    tracing::warn!("{CONNECTIONS_MAX} connections are open; another is refused");
                    continue;
                }
                connections.count.fetch_add(1, Ordering::AcqRel);
                connections.streams.lock().push(Arc::clone(&stream));
                let (service, pool) = (&self.service, &pool);
                scope.spawn(move || {
                    // Replies are small, and somebody waits for each.
                    let _ = stream.set_nodelay(true);
                    service.guard(|| {
                        connection::serve(&stream, service, pool, &connections.underway);
                    });
                    connections.streams.lock().retain(|other| !Arc::ptr_eq(other, &stream));
                    connections.count.fetch_sub(1, Ordering::AcqRel);
                });
            };
            for stream in self.connections.streams.lock().iter() {
                // Its reader ends, and its writer when all is answered.
                let _ = stream.shutdown(Shutdown::Read);
            }
            accepted
        });
        pool.end();
        tracing::info!(calls = ?self.service.calls(), "NFS server ended");
        if self.service.panicked() {
            return Err(ServeError::Panicked);
        }
        Ok(accepted?)
    }
}

/// A server that runs beside another front end of the volume.
pub struct Running {
    stopper: Stopper,
    service: Arc<Service>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Server {
    /// Serves in threads of its own until [`end`](Beside::end) is called.
    ///
    /// # Errors
    ///
    /// Those of starting a thread.
    pub fn start(self) -> io::Result<Running> {
        let (stopper, service) = (self.stopper()?, Arc::clone(&self.service));
        let serve = move || {
            if let Err(error) = self.serve() {
                tracing::error!(%error, "the NFS server ended; the volume is mounted still");
            }
        };
        let thread = thread::Builder::new().name(String::from("nfs")).spawn(serve)?;
        Ok(Running { stopper, service, thread: Mutex::new(Some(thread)) })
    }
}

impl Beside for Running {
    fn end(&self) -> Result<(), String> {
        self.stopper.stop();
        let ended = self.thread.lock().take().map_or(Ok(()), JoinHandle::join);
        if ended.is_err() || self.service.panicked() {
            return Err(String::from("a front end panicked, as the log says"));
        }
        Ok(())
    }

    fn broken(&self) {
        self.service.answer_no_more();
    }
}

/// Whether accepting failed for a reason that lies with one connection, or passes.
fn is_of_connection(error: &io::Error) -> bool {
    const EMFILE: i32 = 24;
    const ENFILE: i32 = 23;
    let is_full = matches!(error.raw_os_error(), Some(EMFILE | ENFILE));
    if is_full {
        // Until a connection ends there is nothing to be done.
        thread::sleep(std::time::Duration::from_millis(100));
    }
    is_full || matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted)
}
