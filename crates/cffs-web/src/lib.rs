//! A page by which people watch and run a volume that is being served, and the interface below it.
//!
//! Offers [`Server`], which listens at an address and shows what a [`Served`] volume says of itself: the
//! counters of `cffs stats`, the jobs on it, the last lines of the log, and where files lie. Everything
//! that the page needs is in the program. Asynchronous code of the page is here alone.
//!
//! ```text
//!   Served ──once a second──▶ snapshot ──▶ every browser        (samples.rs, one text for all)
//!   browser ──▶ listener: limits, TLS ──▶ access: Host, Origin, token ──▶ api ──▶ Served
//! ```
//!
//! Invariants: nothing is shown without a token, but for the page itself, which holds no figures; a path of
//! the host is in no answer to the viewing token, and for the other in commands alone; no request of another
//! site is carried out; the volume is asked once a second, for any number of browsers. What waits for the
//! device runs in threads of its own, few of them.

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

/// Threads that wait for the device on behalf of browsers: no more than this are kept from the volume's
/// users.
const WAITING_THREADS: usize = 4;

/// How to serve a page.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to listen. Other addresses than those of this machine take a certificate.
    pub address: SocketAddr,
    /// Names by which browsers may call the server, in addition to its addresses and `localhost`.
    pub names: Vec<String>,
    /// A file with a certificate, those that vouch for it, and its key.
    pub certificate: Option<PathBuf>,
    /// The tokens for viewing and for full control.
    pub tokens: Tokens,
    /// The last messages of the program.
    pub log: RecentLog,
    /// How commands reach the volume.
    pub target: Target,
    /// The versions that its device keeps, if it can.
    pub snapshots: Option<Arc<dyn Snapshots>>,
    /// How it is drawn, and its metrics for Prometheus.
    pub forms: Forms,
}

/// How commands reach a volume that has a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The directory on which it is mounted, if it is. Commands take that, and the image otherwise.
    pub directory: Option<PathBuf>,
    /// Its image, device or URL.
    pub image: PathBuf,
}

impl Target {
    /// The word for the volume where its path is not shown.
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

/// Forms that commands print, too.
#[derive(Clone, Copy, Debug)]
pub struct Forms {
    /// A picture of a layout, with a title, as SVG.
    pub picture: fn(&LayoutReport, &str) -> String,
    /// Metrics in the text format of Prometheus, from the counters and the mounts.
    pub metrics: fn(&Value, &Value) -> String,
}

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The address cannot be had.
    #[error("listening at {0}: {1}")]
    Listen(SocketAddr, io::Error),
    /// The certificate is not good.
    #[error("{}: {why}; it has to hold a certificate and its key, in the form PEM", .path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// Tokens would be read on their way.
    #[error(
        "{0} can be reached from other machines, and tokens would travel there in readable form: \
         name a certificate, or listen at 127.0.0.1 and reach that by `ssh -L`"
    )]
    Open(SocketAddr),
}

/// A page that listens, and answers as soon as [`start`](Server::start) is called.
pub struct Server {
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    options: Options,
}

impl Server {
    /// Listens.
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

    /// Where it listens, also if any port was asked for.
    ///
    /// # Errors
    ///
    /// Those of getsockname(2).
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
    /// Those of starting threads.
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
            // A thread that waits for the device ends by itself, and is not joined.
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
    /// One layout is looked at at a time: what has to become durable waits meanwhile.
    looking: Arc<Mutex<()>>,
}

/// A page that is being served; dropped, it ends.
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

    /// How often the volume was asked for its figures so far.
    pub fn samples(&self) -> u64 {
        self.state.samples.count()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.state.samples.stop();
        if let Some(thread) = self.thread.take() {
            // It has logged why, if it panicked.
            let _ = thread.join();
        }
    }
}
