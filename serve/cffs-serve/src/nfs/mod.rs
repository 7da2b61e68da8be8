//! NFS version 3: the volume for other machines, or for this one without a mount.
//!
//! Offers [`Server`], which listens at an address and serves directories of a [`Volume`] until it is stopped,
//! by itself or [as the companion of a mount](Running) of the same volume. Uses `nfs-wire` (the protocol) and
//! the facade. MOUNT and NFS share one TCP port, and need no portmapper: `mount -o
//! port=N,mountport=N,proto=tcp,vers=3,nolock`.
//!
//! ```text
//!   listener ─▶ connection: reader, writer ─▶ pool ─▶ service: reply cache, handle, export
//!                                                     ─▶ contents, names: access, Volume, durable
//! ```
//!
//! Invariants: an answered change is durable, except UNSTABLE WRITEs, whose verifier shows whether the server
//! has restarted since. The [`Observer`] is notified of a change before the answer, with no lock held. Files
//! are accessed only by handles, which clients cannot forge. Permissions are checked here, by
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

/// The most concurrent calls. Most of them wait for the device, and so share its writes. There are more than
/// clients usually send at once, since a call that finds no worker waits for an epoch (decision 021).
const WORKERS: usize = 128;
/// The most connections; further ones are closed at once.
const CONNECTIONS_MAX: usize = 256;
/// The time for peers of a stopping server to accept replies, before their connections are closed.
const REPLIES_TIME: Duration = Duration::from_secs(5);
/// How long calls in progress may take when the server is to pause.
const CALLS_TIME: Duration = Duration::from_secs(5);

/// Why the server could not start.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The address is not available.
    #[error("listening at {0}: {1}")]
    Listen(SocketAddr, io::Error),
    /// The volume cannot be served.
    #[error("{0}")]
    Volume(#[from] Error),
}

/// Why a server ended without being stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// An error of accept(2) that concerns the listener and not a single connection.
    #[error("waiting for connections: {0}")]
    Accept(#[from] io::Error),
    /// Threads cannot be started.
    #[error("starting threads: {0}")]
    Threads(io::Error),
    /// A thread panicked. The volume in memory may be half changed: it must not be closed, and the next
    /// opening recovers it.
    #[error("it panicked, as its log says")]
    Panicked,
}

/// Why a server cannot continue from handed-over state.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// The state is invalid.
    #[error("the handover state is invalid")]
    Malformed,
    /// The listener cannot be used.
    #[error("listening: {0}")]
    Listener(#[from] io::Error),
}

/// A server that listens; it answers once [`serve`](Server::serve) runs.
pub struct Server {
    listener: TcpListener,
    service: Arc<Service>,
    connections: Arc<Connections>,
    stop: Arc<Stop>,
}

#[derive(Default)]
struct Connections {
    streams: Mutex<Vec<Arc<TcpStream>>>,
    /// Notified when one ends.
    ended: Condvar,
    underway: Arc<Total>,
}

impl Connections {
    /// Waits until no connection is left, at most for `time`.
    fn wait_for_none(&self, time: Duration) -> bool {
        let mut streams = self.streams.lock();
        !self.ended.wait_while_for(&mut streams, |streams| !streams.is_empty(), time).timed_out()
    }

    /// Ends all connections now. Calls in progress are carried out, and their replies kept.
    fn cut(&self) {
        for stream in self.streams.lock().iter() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Stops a server from another thread.
pub struct Stopper(Arc<Stop>);

impl Stopper {
    /// Ends the server: it accepts no further calls, and answers those in progress.
    pub fn stop(&self) {
        self.0.end();
    }
}

impl Server {
    /// Listens at an address for clients of these exports. The observer is notified of their changes.
    ///
    /// # Errors
    ///
    /// [`BindError`]; for an export that is not a directory, [`BindError::Volume`].
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

    /// Continues with the clients of a handed-over server, and a volume that was opened since.
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
        // A pending connection may be gone before it is accepted.
        listener.set_nonblocking(true)?;
        let (service, stop) = (Arc::new(service), Arc::new(Stop::new()?));
        Ok(Server { listener, service, connections: Arc::default(), stop })
    }

    /// The address that it listens at, with the actual port.
    ///
    /// # Errors
    ///
    /// Errors of getsockname(2).
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// A handle that stops the server.
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.stop))
    }

    /// The exports with their clients, and counts of calls by procedure: for administration.
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
        // A thread that waits for a pause is notified of the end, whatever causes it.
        let _end = Ending(&self.stop);
        // Not earlier: threads inherit the privileges of the thread that starts them, and binding may need
        // more.
        let pool = Pool::start(WORKERS).map_err(ServeError::Threads)?;
        let accepted = thread::scope(|scope| {
            loop {
                let accepted = self.accept(scope, &pool);
                if accepted.is_err() {
                    self.stop.end();
                }
                let all_ended = self.connections.wait_for_none(REPLIES_TIME) || {
                    self.connections.cut();
                    // An ending server waits for calls in progress, however long they take.
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

    /// Accepts connections until the server stops or pauses.
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
                // Replies are small, and a client waits for each.
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

/// Marks a server as ended when this is dropped.
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
    /// Serves in new threads until [`end`](Companion::end) is called.
    ///
    /// # Errors
    ///
    /// Errors of starting a thread.
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
    /// The exports, as in [`Server::exports`].
    pub fn exports(&self) -> Arc<dyn Exports> {
        Arc::clone(&self.exports)
    }

    /// Ends a [paused](Companion::pause) server, so that another can continue with its clients, which wait
    /// meanwhile.
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
        // Nothing can be done until a connection ends.
        thread::sleep(std::time::Duration::from_millis(100));
    }
    let passes = [
        io::ErrorKind::ConnectionAborted,
        io::ErrorKind::Interrupted,
        // The connection ended before it was accepted.
        io::ErrorKind::WouldBlock,
    ];
    is_full || passes.contains(&error.kind())
}
