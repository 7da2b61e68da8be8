//! NFS version 3: the volume for other machines, or for this one without a mount.
//!
//! Offers [`Server`], which listens at an address and serves directories of a [`Volume`] until it is stopped,
//! by itself or [as the companion of a mount](Running) of the same volume. Stands on `nfs-wire` (the
//! protocol) and on the facade. MOUNT and NFS answer at one port, by TCP, and need no portmapper: `mount -o
//! port=N,mountport=N,proto=tcp,vers=3,nolock`.
//!
//! ```text
//!   listener ─▶ connection: reader, writer ─▶ pool ─▶ service: reply cache, handle, export
//!                                                     ─▶ contents, names: access, Volume, durable
//! ```
//!
//! Invariants: an answered change is durable, except UNSTABLE WRITEs, whose verifier shows whether the server
//! has restarted since. Before the answer, a change is shown to the [`Observer`], with no lock held. Files
//! are reached only by handles, which clients cannot forge. Permissions are checked here, by
//! [`access`](crate::access), since no kernel has checked them.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle, Scope};
use std::time::Duration;

use cffs::error::Error;
use cffs::vfs::Volume;
use parking_lot::{Condvar, Mutex};

mod administration;
mod connection;
mod contents;
mod exported;
mod exports;
mod file;
pub mod handle;
mod handover;
mod names;
mod pool;
mod replies;
mod request;
mod service;
mod stop;
mod translate;

pub use exports::{BadExport, Export, Network, Squash};
pub use handover::{Handover, State};
pub use request::Peer;
pub use service::Service;

use crate::shared::{Companion, Exports, Observer};
use administration::Administration;
use connection::Total;
use exported::Exported;
use pool::Pool;
use replies::Replies;
use stop::{Stop, Woken};

#[cfg(test)]
mod tests;

/// The most concurrent calls. Most of them wait for the device, together.
const WORKERS: usize = 32;
/// Connections at the same time; another one is closed at once.
const CONNECTIONS_MAX: usize = 256;
/// The time for peers of a stopping server to accept replies, before their connections are closed.
const REPLIES_TIME: Duration = Duration::from_secs(5);
/// How long calls that are under way then may take, if the server is to pause.
const CALLS_TIME: Duration = Duration::from_secs(5);

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

/// Why a server does not go on with what another has handed over.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// It was not handed over whole.
    #[error("the handover state is invalid")]
    Malformed,
    /// The listener cannot be used.
    #[error("listening: {0}")]
    Listener(#[from] io::Error),
}

/// A server that listens, and answers as soon as [`serve`](Server::serve) runs.
pub struct Server {
    listener: TcpListener,
    service: Arc<Service>,
    connections: Arc<Connections>,
    stop: Arc<Stop>,
}

/// The connections that are open.
#[derive(Default)]
struct Connections {
    streams: Mutex<Vec<Arc<TcpStream>>>,
    /// One has ended.
    ended: Condvar,
    underway: Arc<Total>,
}

impl Connections {
    /// Waits until none is left, for so long at most.
    fn wait_for_none(&self, time: Duration) -> bool {
        let mut streams = self.streams.lock();
        !self.ended.wait_while_for(&mut streams, |streams| !streams.is_empty(), time).timed_out()
    }

    /// Has each end now. What is under way is carried out, and its reply kept.
    fn cut(&self) {
        for stream in self.streams.lock().iter() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Stops a server from another thread.
pub struct Stopper(Arc<Stop>);

impl Stopper {
    /// Ends the server: it accepts no further calls, and answers those that it has.
    pub fn stop(&self) {
        self.0.end();
    }
}

impl Server {
    /// Listens at an address for clients of these exports. Their changes are shown to the observer.
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
        let service = Service::over(volume, exports, observer)?;
        let listen = || Server::listening(TcpListener::bind(address)?, service);
        listen().map_err(|error| BindError::Listen(address, error))
    }

    /// Continues with the clients of a server that was handed over, and a volume that was opened since.
    ///
    /// # Errors
    ///
    /// [`ResumeError`]
    pub fn resume(
        volume: Arc<Volume>,
        handover: Handover,
        observer: Arc<dyn Observer>,
    ) -> Result<Server, ResumeError> {
        let Handover { listener, kept, replies } = handover;
        let replies = Replies::from_bytes(&replies).ok_or(ResumeError::Malformed)?;
        let exported = Exported::resume(volume, kept, observer).ok_or(ResumeError::Malformed)?;
        Ok(Server::listening(listener, Service::new(exported, replies))?)
    }

    fn listening(listener: TcpListener, service: Service) -> io::Result<Server> {
        // Who is to be accepted may be gone by then.
        listener.set_nonblocking(true)?;
        let (service, stop) = (Arc::new(service), Arc::new(Stop::new()?));
        Ok(Server { listener, service, connections: Arc::default(), stop })
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
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.stop))
    }

    /// The exports, with the clients and the calls of each procedure: for administration.
    pub fn exports(&self) -> Arc<dyn Exports> {
        let (service, connections) = (Arc::clone(&self.service), Arc::clone(&self.connections));
        Arc::new(Administration::new(service, connections))
    }

    /// Serves until it is stopped. The volume stays open.
    ///
    /// # Errors
    ///
    /// [`ServeError`]
    pub fn serve(&self) -> Result<(), ServeError> {
        // A thread that waits for a pause learns of the end, however it comes.
        let _end = Ending(&self.stop);
        // Not before: threads have the rights of the one that starts them, which binding may need more of.
        let pool = Pool::start(WORKERS).map_err(ServeError::Threads)?;
        let accepted = thread::scope(|scope| {
            loop {
                let accepted = self.accept(scope, &pool);
                if accepted.is_err() {
                    self.stop.end();
                }
                let all_ended = self.connections.wait_for_none(REPLIES_TIME) || {
                    self.connections.cut();
                    // One that ends waits for calls that are under way, however long they take.
                    self.connections.wait_for_none(CALLS_TIME)
                };
                if !self.stop.stay(all_ended) {
                    break accepted;
                }
            }
        });
        pool.end();
        let calls = self.service.calls().into_iter();
        let calls: Vec<String> = calls.map(|(name, count)| format!("{name} {count}")).collect();
        tracing::info!(calls = calls.join(", "), "NFS server ended");
        if self.service.panicked() {
            return Err(ServeError::Panicked);
        }
        Ok(accepted?)
    }

    /// Takes connections until it is to take no more.
    fn accept<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        pool: &'scope Pool,
    ) -> io::Result<()> {
        loop {
            if self.stop.wait_for(&self.listener, None)? == Woken::Stop {
                return Ok(());
            }
            let stream = match self.listener.accept() {
                Ok((stream, _)) => Arc::new(stream),
                Err(error) if is_of_connection(&error) => continue,
                Err(error) => return Err(error),
            };
            let connections = &self.connections;
            let mut streams = connections.streams.lock();
            if streams.len() >= CONNECTIONS_MAX {
                tracing::warn!("{CONNECTIONS_MAX} connections are open; another is refused");
                continue;
            }
            streams.push(Arc::clone(&stream));
            drop(streams);
            scope.spawn(move || {
                // Replies are small, and somebody waits for each.
                let _ = stream.set_nodelay(true);
                self.service.guard(|| {
                    connection::serve(
                        &stream,
                        &self.service,
                        pool,
                        &connections.underway,
                        &self.stop,
                    );
                });
                connections.streams.lock().retain(|other| !Arc::ptr_eq(other, &stream));
                connections.ended.notify_all();
            });
        }
    }

    /// The state that another server needs to continue with its clients.
    fn hand_over(self) -> Handover {
        let (kept, replies) = (self.service.exported().keep(), self.service.replies());
        Handover { listener: self.listener, kept, replies }
    }
}

/// Has a server count as ended when this is dropped.
struct Ending<'a>(&'a Stop);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A companion server of a mount of the same volume.
pub struct Running {
    stop: Arc<Stop>,
    service: Arc<Service>,
    exports: Arc<dyn Exports>,
    thread: Mutex<Option<JoinHandle<Server>>>,
}

impl Server {
    /// Serves in threads of its own until [`end`](Companion::end) is called.
    ///
    /// # Errors
    ///
    /// Those of starting a thread.
    pub fn start(self) -> io::Result<Running> {
        let (stop, service) = (Arc::clone(&self.stop), Arc::clone(&self.service));
        let exports = self.exports();
        let serve = move || {
            if let Err(error) = self.serve() {
                tracing::error!(%error, "the NFS server ended; the volume is mounted still");
            }
            self
        };
        let thread = thread::Builder::new().name(String::from("nfs")).spawn(serve)?;
        Ok(Running { stop, service, exports, thread: Mutex::new(Some(thread)) })
    }
}

impl Running {
    /// The exports, as of [`Server::exports`].
    pub fn exports(&self) -> Arc<dyn Exports> {
        Arc::clone(&self.exports)
    }

    /// Ends a server that has [paused](Companion::pause), so that another can continue with its clients,
    /// which wait meanwhile.
    ///
    /// # Errors
    ///
    /// It has panicked, or ended before.
    pub fn hand_over(&self) -> Result<Handover, String> {
        Ok(self.join()?.ok_or("the NFS server has ended before")?.hand_over())
    }

    fn join(&self) -> Result<Option<Server>, String> {
        self.stop.end();
        let ended = self.thread.lock().take().map(JoinHandle::join).transpose();
        match ended {
            Ok(server) if !self.service.panicked() => Ok(server),
            _ => Err(String::from("a front end panicked, as the log says")),
        }
    }
}

impl Companion for Running {
    fn pause(&self) -> Result<(), String> {
        if self.stop.pause() {
            return Ok(());
        }
        Err(String::from(
            "the NFS server has ended, or calls of its clients wait for the device still; see its log",
        ))
    }

    fn go_on(&self) {
        self.stop.go_on();
    }

    fn end(&self) -> Result<(), String> {
        self.join().map(drop)
    }

    fn broken(&self) {
        self.service.answer_no_more();
    }
}

/// Whether accepting failed because of a single connection, or temporarily.
fn is_of_connection(error: &io::Error) -> bool {
    const EMFILE: i32 = 24;
    const ENFILE: i32 = 23;
    let is_full = matches!(error.raw_os_error(), Some(EMFILE | ENFILE));
    if is_full {
        // Until a connection ends there is nothing to be done.
        thread::sleep(std::time::Duration::from_millis(100));
    }
    let passes = [
        io::ErrorKind::ConnectionAborted,
        io::ErrorKind::Interrupted,
        // It was gone before it was accepted.
        io::ErrorKind::WouldBlock,
    ];
    is_full || passes.contains(&error.kind())
}
