//! A mounted file system and the threads that serve it.
//!
//! ```text
//!  Session::mount          Session::serve                       unmounted by anybody,
//!  mount(2), INIT   ───▶   threads serve until the     ───▶     connection aborted:
//!  transport known         connection ends                      Handler::destroy
//!        │                                                           
//!        └── dropped unserved: unmounted
//! ```

use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;

use rustix::io::Errno;
use rustix::param::page_size;

use crate::dispatch::Dispatcher;
use crate::protocol::init::encode_retry;
use crate::protocol::{
    Dialect, Frame, Granted, Negotiation, Operation, Request, Wishes, encode, negotiate,
};
use crate::transport::dev::{self, Buffers};
use crate::transport::device::{Device, Received};
use crate::{Handler, MountOptions, Notifier, Unmount, mount};

/// What to negotiate, and how to serve.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// What to ask of the kernel.
    pub wishes: Wishes,
    /// Which transport to use.
    pub transport: TransportChoice,
    /// How many threads read `/dev/fuse` on the classic transport; one per core if not given.
    pub dev_threads: Option<NonZeroUsize>,
}

/// Which transport to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportChoice {
    /// The fastest that kernel and permissions allow.
    #[default]
    Auto,
    /// `/dev/fuse`.
    Dev,
}

/// Which transport is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Reads and writes on `/dev/fuse`.
    Dev {
        /// The number of threads that do so.
        threads: usize,
        /// Why not io_uring.
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
    transport: Transport,
}

/// The mount, shared with those who may end it.
#[derive(Debug)]
struct Mounted {
    path: PathBuf,
    ended: AtomicBool,
}

/// Ends a session from another thread, a signal handler's for one. Can be cloned; does not keep
/// the session alive.
#[derive(Clone, Debug)]
pub struct Unmounter(Weak<Mounted>);

impl Unmounter {
    /// Unmounts. A session that is over counts as unmounted.
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
            // It went by itself between the two lines: the serving threads will notice.
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(()),
            result => result,
        }
    }
}

impl<H: Handler> Session<H> {
    /// Mounts the file system on a directory and agrees with the kernel on how to talk.
    ///
    /// From here on programs can enter, and wait until [`serve`](Session::serve) runs.
    pub fn mount(
        handler: H,
        path: impl AsRef<Path>,
        options: &MountOptions,
        config: &Config,
    ) -> io::Result<Session<H>> {
        let (device, path) = mount::mount(path.as_ref(), options)?;
        let mounted = Mounted { path, ended: AtomicBool::new(false) };
        let (granted, transport) = match handshake(&device, config) {
            Ok(agreed) => agreed,
            Err(error) => {
                // The device goes first, so that nobody waits for an answer below the mount.
                drop(device);
                let _ = mounted.unmount(Unmount::Lazy);
                return Err(error);
            }
        };
        handler.init(&granted);
        Ok(Session {
            dispatcher: Dispatcher::new(handler, granted),
            device: Arc::new(device),
            mounted: Arc::new(mounted),
            transport,
        })
    }

    /// What was agreed on.
    pub fn granted(&self) -> &Granted {
        &self.dispatcher.granted
    }

    /// Which transport is in use, and why not a faster one.
    pub fn transport(&self) -> &Transport {
        &self.transport
    }

    /// Where the file system is mounted, without symbolic links.
    pub fn path(&self) -> &Path {
        &self.mounted.path
    }

    /// The means to end the session from elsewhere.
    pub fn unmounter(&self) -> Unmounter {
        Unmounter(Arc::downgrade(&self.mounted))
    }

    /// The means to tell the kernel of changes.
    pub fn notifier(&self) -> Notifier {
        Notifier::new(Arc::downgrade(&self.device))
    }

    /// Serves until the file system is unmounted, by whomever, and returns the handler's fate: an
    /// error if a thread failed or the handler panicked.
    pub fn serve(self) -> io::Result<()> {
        let result = match self.transport {
            Transport::Dev { threads, .. } => self.serve_dev(threads),
        };
        if result.is_ok() {
            self.mounted.ended.store(true, Ordering::Release);
        }
        self.dispatcher.destroy();
        if self.dispatcher.panicked() {
            return Err(io::Error::other("the handler panicked"));
        }
        result
    }

    fn serve_dev(&self, threads: usize) -> io::Result<()> {
        let payload_len = self.dispatcher.granted.payload_len();
        let mut workers = vec![(None, Buffers::new(payload_len)?)];
        for _ in 1..threads {
            workers.push((Some(self.device.try_clone()?), Buffers::new(payload_len)?));
        }
        thread::scope(|scope| {
            let mut threads = Vec::new();
            for (index, (device, mut buffers)) in workers.into_iter().enumerate() {
                let work = move || {
                    let device = device.as_ref().unwrap_or(&self.device);
                    let result = dev::serve(&self.dispatcher, device, &mut buffers);
                    if result.is_err() {
                        // The others would serve on, and never end by themselves.
                        let _ = self.mounted.unmount(Unmount::Lazy);
                    }
                    result
                };
                let builder = thread::Builder::new().name(format!("fuse-dev-{index}"));
                threads.push(builder.spawn_scoped(scope, work).inspect_err(|_| {
                    let _ = self.mounted.unmount(Unmount::Lazy);
                }));
            }
            threads.into_iter().try_for_each(|thread| match thread?.join() {
                Ok(result) => result,
                Err(_) => Err(io::Error::other("a server thread panicked")),
            })
        })
    }
}

impl<H: Handler> Drop for Session<H> {
    fn drop(&mut self) {
        if let Err(error) = self.mounted.unmount(Unmount::Lazy) {
            tracing::warn!(path = %self.mounted.path.display(), %error, "not unmounted");
        }
    }
}

/// Waits for the kernel's `INIT` and answers it.
fn handshake(device: &Device, config: &Config) -> io::Result<(Granted, Transport)> {
    let page = u32::try_from(page_size()).map_err(|_| Errno::INVAL)?;
    let mut buffers = Buffers::new(1 << 16)?;
    loop {
        let Received::Message(len) = device.receive(buffers.message())? else {
            return Err(Errno::NOTCONN.into());
        };
        let message = &buffers.message()[..len];
        let malformed = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let frame = Frame::contiguous(message, Dialect::default()).map_err(malformed)?;
        let request = Request::decode(&frame, Dialect::default()).map_err(malformed)?;
        let Operation::Init(init) = &request.operation else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the first request is no INIT"));
        };
        let unique = frame.unique().0;
        match negotiate(init, &config.wishes, page) {
            Negotiation::Agreed(granted) => {
                tracing::debug!(offered = ?init, ?granted, "INIT");
                let body = granted.encode(&config.wishes, page);
                device.send(&encode::header(unique, Ok(body.len())), &body)?;
                let threads = config.dev_threads.or_else(|| thread::available_parallelism().ok());
                let transport = Transport::Dev {
                    threads: threads.map_or(1, NonZeroUsize::get),
                    why_not_uring: String::from("not built"),
                };
                return Ok((granted, transport));
            }
            Negotiation::Retry => {
                let body = encode_retry();
                device.send(&encode::header(unique, Ok(body.len())), &body)?;
            }
            Negotiation::Unsupported => {
                let _ = device.send(&encode::header(unique, Err(Errno::PROTO)), &[]);
                return Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    format!("the kernel speaks FUSE {}.{}", init.major, init.minor),
                ));
            }
        }
    }
}
