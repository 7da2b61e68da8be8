//! A web page to monitor and administer a served volume, and its HTTP interface.
//!
//! Offers [`Server`], which listens at an address and shows the figures of a [`Served`] volume: the counters
//! of `cffs stats`, its jobs, the last lines of the log, and the layout of files. All files of the page are
//! compiled into the program. The page's asynchronous code is only in this crate.
//!
//! ```text
//!   Served ──once a second──▶ snapshot ──▶ every browser        (samples.rs, one text for all)
//!   browser ──▶ listener: limits, TLS ──▶ access: Host, Origin, token ──▶ api ──▶ Served
//! ```
//!
//! Invariants: nothing is shown without a token, except the page itself, which contains no figures; answers
//! for the viewing token contain no path of the host, and for the other token only in commands; no request of
//! another site is executed; the volume is asked once a second, for any number of browsers. Requests that
//! wait for the device run in a few threads of their own.

// No program outside the workspace uses this crate, so a comment only says what a name does not.
#![allow(missing_docs)]

use std::borrow::Cow;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use cffs_serve::layout::LayoutReport;
use cffs_serve::served::Served;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::oneshot;

mod access;
mod actions;
mod api;
mod files;
mod listener;
mod recent;
mod samples;
mod snapshots;
mod tokens;

use access::Gate;
use actions::Actions;
pub use recent::RecentLog;
use samples::Samples;
pub use snapshots::{Snapshot, Snapshots};
pub use tokens::{BadTokens, Tokens};

/// The maximum number of threads that wait for the device on behalf of browsers. The limit leaves most of the
/// device's time to the users of the volume.
const WAITING_THREADS: usize = 4;

/// How to serve a page.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to listen. Addresses other than loopback require a certificate.
    pub address: SocketAddr,
    /// Host names of the server, in addition to its addresses and `localhost`.
    pub names: Vec<String>,
    /// A PEM file with a certificate, its chain, and its key.
    pub certificate: Option<PathBuf>,
    /// The tokens for viewing and for full control.
    pub tokens: Tokens,
    /// The last messages of the program.
    pub log: RecentLog,
    /// How commands name the volume.
    pub target: Target,
    /// The snapshots, if the device supports them.
    pub snapshots: Option<Arc<dyn Snapshots>>,
    /// Functions that render its picture and its metrics.
    pub forms: Forms,
}

/// How commands name a volume that has a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its mount point, if it is mounted. Commands take this, or else the image.
    pub directory: Option<PathBuf>,
    /// Its image, device or URL.
    pub image: PathBuf,
}

impl Target {
    /// A word for the volume, for answers that must not contain its path.
    pub(crate) fn word(&self) -> &'static str {
        match self.directory {
            Some(_) => "DIR",
            None => "IMAGE",
        }
    }

    /// The argument by which commands name the volume.
    pub(crate) fn path(&self) -> Cow<'_, str> {
        self.directory.as_ref().unwrap_or(&self.image).to_string_lossy()
    }
}

/// Renderings that commands print as well.
#[derive(Clone, Copy, Debug)]
pub struct Forms {
    /// The SVG picture of a layout, with a title.
    pub picture: fn(&LayoutReport, &str) -> String,
    /// Metrics in the text format of Prometheus, from the counters and the mounts.
    pub metrics: fn(&Value, &Value) -> String,
}

/// Why a page cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The address is not available.
    #[error("listening at {0}: {1}")]
    Listen(SocketAddr, io::Error),
    /// The certificate cannot be used.
    #[error("{}: {why}; it must contain a certificate and its key in PEM format", .path.display())]
    Certificate { path: PathBuf, why: String },
    /// Without TLS, tokens could be read on the network.
    #[error(
        "{0} can be reached from other machines, where tokens could be read on the network: \
         give a certificate, or listen at 127.0.0.1 and connect through `ssh -L`"
    )]
    Open(SocketAddr),
}

/// A page that listens; it answers once [`start`](Server::start) is called.
pub struct Server {
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    options: Options,
}

impl Server {
    /// Begins to listen.
    ///
    /// # Errors
    ///
    /// [`BindError`]
    pub fn bind(options: Options) -> Result<Server, BindError> {
        let address = options.address;
        if options.certificate.is_none() && !address.ip().is_loopback() {
            return Err(BindError::Open(address));
        }
        let tls = match &options.certificate {
            None => None,
            Some(path) => Some(
                listener::tls(path)
                    .map_err(|why| BindError::Certificate { path: path.clone(), why })?,
            ),
        };
        let listen = || {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let listener = listen().map_err(|error| BindError::Listen(address, error))?;
        Ok(Server { listener, tls, options })
    }

    /// The address that it listens at, with the actual port.
    ///
    /// # Errors
    ///
    /// Errors of getsockname(2).
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The scheme of its addresses.
    pub fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// Serves in threads of its own until the [`Page`] is dropped.
    ///
    /// # Errors
    ///
    /// Errors of starting threads.
    pub fn start(self, served: Arc<Served>) -> io::Result<Page> {
        let Server { listener, tls, options } = self;
        let is_secure = tls.is_some();
        let samples = Samples::start(served, &options)?;
        let state = Arc::new(State {
            gate: Gate::new(&options, is_secure),
            actions: Arc::clone(samples.actions()),
            looking: Arc::default(),
            samples,
            options,
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(WAITING_THREADS)
            .thread_name("page")
            .build()?;
        let (stop, stopped) = oneshot::channel();
        let router = api::router(Arc::clone(&state));
        let thread = thread::Builder::new().name(String::from("page")).spawn(move || {
            let serving = listener::serve(listener, tls, router, stopped);
            if let Err(error) = runtime.block_on(serving) {
                tracing::error!(%error, "the page ended");
            }
            // A thread that waits for the device ends by itself and is not joined.
            runtime.shutdown_background();
        })?;
        Ok(Page { state, stop: Some(stop), thread: Some(thread) })
    }
}

/// The state that handlers share.
struct State {
    options: Options,
    gate: Gate,
    samples: Samples,
    actions: Arc<Actions>,
    /// Only one layout is computed at a time, since each delays commits.
    looking: Arc<Mutex<()>>,
}

/// A served page; it ends when dropped.
pub struct Page {
    state: Arc<State>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Page {
    /// Shows another opening of the volume from now on.
    pub fn show(&self, served: Arc<Served>) {
        self.state.samples.show(served);
    }

    /// How often the volume was asked for its figures.
    pub fn samples(&self) -> u64 {
        self.state.samples.count()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.state.samples.stop();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been logged.
            let _ = thread.join();
        }
    }
}
