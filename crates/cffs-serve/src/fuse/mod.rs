//! FUSE: the volume as a mounted file system.
//!
//! Offers [`Server`], which mounts a [`Volume`] and serves it until it is unmounted. Stands on `fuse-ring`
//! (protocol and transports), on the facade, and on [`served`](crate::served), whose
//! [`control`] interface other programs use through the mount.
//!
//! ```text
//!   Server::mount             Server::serve                              volume closed,
//!   directory is usable ───▶  requests in threads, once a second   ───▶  image complete
//!                             Volume::background                         (closing)
//! ```
//!
//! Root's mounts stand on a block device (type `fuseblk`): the device itself, or a loop device over the
//! image. Then sync(2) and syncfs(2) reach the volume, and umount(2) returns when the image is
//! complete. Where there is none to be had, and for ordinary users, the type is `fuse`.
//!
//! Invariants: the kernel checks permissions (`default_permissions`, POSIX ACLs), caches names and
//! attributes for as long as it likes, and keeps locks by itself. Writes reach the volume before
//! the call of the writer returns: the kernel does not hold them back, so sizes and times are the
//! volume's alone.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use cffs::device::file::FileDevice;
use cffs::error::Error;
use cffs::vfs::types::AtimeMode;
use cffs::vfs::{Handover, Volume};
use fuse_ring::protocol::{Features, Wishes};
use fuse_ring::{Config, MountOptions, Session, Transport, Unmount, Unmounter};

use crate::served::control::{self, Control};
use crate::served::{Counters, Identity, Served};

mod adapter;
mod caches;
mod closing;
mod credentials;
mod device;
mod follow;
mod interest;
mod ioctl;
mod loop_device;
mod panic_guard;
mod privileges;
mod requests;
pub mod restart;
mod shown;
mod translate;
mod underway;
mod waiter;
mod watch;

use adapter::Adapter;
pub use caches::KernelCaches;
use closing::Closing;
pub use device::WatchedDevice;
use follow::Following;
pub use follow::{Follow, Newer};
pub use fuse_ring::{TransportChoice, make_requests, switch_rings_on};
use loop_device::LoopDevice;
use requests::Requests;
pub use requests::current_request;
use restart::{Restarter, Suspended};
use shown::Shown;
pub use waiter::LeaveSeat;
pub use watch::{STALL, Watch};

use crate::shared::{self, Companion, Current, Exports};

/// The subtype of the mount: its type is shown as `fuseblk.cffs` or as `fuse.cffs`.
pub const SUBTYPE: &str = "cffs";

/// For how long the kernel may believe what it is told of a volume that nobody else changes: a year, which
/// is longer than any mount. What the server changes by itself it announces.
pub const TTL_ALONE: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// The same where another front end changes it, too: that notifies the kernel, and this bounds what is left,
/// such as times of access.
pub const TTL_SHARED: Duration = Duration::from_secs(1);

/// How to mount.
#[derive(Clone, Debug)]
pub struct Options {
    /// The image or device, as the mount table is to show it.
    pub source: PathBuf,
    /// No writes.
    pub read_only: bool,
    /// Users other than the mounter may enter.
    pub allow_other: bool,
    /// Set-id bits are honoured.
    pub suid: bool,
    /// Device files work.
    pub dev: bool,
    /// Programs can be executed.
    pub exec: bool,
    /// When a read sets the time of access, as the volume was opened; the mount table shows it if never.
    pub atime: AtimeMode,
    /// The options that stay as they are as long as the server runs, as commands are to see them, each
    /// under its name.
    pub fixed: BTreeMap<String, String>,
    /// How requests are to arrive.
    pub transport: TransportChoice,
    /// What is under way, also on the device: the same as that of its [`WatchedDevice`].
    pub watch: Arc<Watch>,
    /// Symbolic links are not followed.
    pub no_symlink_follow: bool,
    /// The image or device itself, if there is one: it is given back to others when the volume is
    /// closed, though the server has not ended yet.
    pub device: Option<Arc<FileDevice>>,
    /// Whether to mount that as a block device, an image by way of a loop device; for root only.
    pub block_device: bool,
    /// How long nobody must have used the volume before it is regrouped; `None` for never.
    pub regroup_after: Option<Duration>,
    /// The size of the volume's cache in bytes, as statistics show it.
    pub cache_bytes: u64,
    /// The program by which this one can be replaced while the volume is mounted.
    pub program: Option<PathBuf>,
    /// What the kernel caches, of which another front end of the volume notifies it.
    pub caches: KernelCaches,
    /// For how long the kernel may believe what it is told.
    pub ttl: Duration,
    /// How the mount moves with what another program writes, if it does. It has no other front end then.
    pub follow: Option<Follow>,
}

/// How serving ended, if it did not fail.
#[derive(Debug)]
pub enum Ended {
    /// The volume was unmounted, and its image is complete.
    Closed,
    /// The volume is mounted and closed, and its users wait for [`Server::resume`].
    Suspended(Suspended),
    /// The same, but for the volume.
    Open(StillOpen),
}

/// A mount whose volume could not be closed for another program, with which [`Server::resume`] goes on.
pub struct StillOpen {
    /// The mount.
    pub suspended: Suspended,
    /// The volume, as it is in use.
    pub volume: Arc<Volume>,
    /// Why, for people to read.
    pub why: String,
}

impl fmt::Debug for StillOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StillOpen").field("why", &self.why).finish_non_exhaustive()
    }
}

/// Why serving ended other than by an unmount and a complete image.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The connection to the kernel broke.
    #[error("serving failed: {0}")]
    Session(#[from] io::Error),
    /// The volume could not be completed; the next mount recovers it.
    #[error("closing the volume failed: {0}")]
    Close(#[from] Error),
}

/// A mounted volume. Programs that enter it wait until [`serve`](Server::serve) runs; dropped
/// without that, it is unmounted.
pub struct Server {
    session: Session<Adapter>,
    volume: Current,
    following: Option<Arc<Following>>,
    served: Arc<Served>,
    closing: Arc<Closing>,
    watch: Arc<Watch>,
    /// How long nobody must have used the volume before it is regrouped, if it ever is.
    regroup_after: Option<Duration>,
    mount_type: String,
    why_no_block_device: Option<String>,
}

/// The parts of a server without its session.
struct Parts {
    volume: Current,
    following: Option<Arc<Following>>,
    closing: Arc<Closing>,
    watch: Arc<Watch>,
    served: Arc<Served>,
    requests: Arc<Requests>,
    restarter: control::Restarter,
    caches: KernelCaches,
    ttl: Duration,
}

impl Parts {
    fn new(volume: Arc<Volume>, options: &Options) -> Parts {
        let volume = Current::new(volume);
        let served = Arc::new(Served::new(volume.clone()));
        let following = options
            .follow
            .clone()
            .map(|follow| Arc::new(Following::new(follow, volume.clone(), options.caches.clone())));
        let (device, watch) = (options.device.clone(), Arc::clone(&options.watch));
        Parts {
            closing: Arc::new(Closing::new(Arc::clone(&served), device, watch)),
            served,
            volume,
            following,
            watch: Arc::clone(&options.watch),
            requests: Arc::default(),
            restarter: Arc::default(),
            caches: options.caches.clone(),
            ttl: options.ttl,
        }
    }

    fn adapter(&self) -> Adapter {
        let control = Control::new(Arc::clone(&self.served), Arc::clone(&self.restarter));
        let requests = Arc::clone(&self.requests);
        let (closing, watch) = (Arc::clone(&self.closing), Arc::clone(&self.watch));
        let shown = match &self.following {
            Some(following) => Shown::Following(self.volume.clone(), Arc::clone(following)),
            None => Shown::Fixed(self.volume.get()),
        };
        Adapter::new(shown, control, requests, closing, watch, self.caches.clone(), self.ttl)
    }

    fn into_server(
        self,
        session: Session<Adapter>,
        options: &Options,
        mount_type: String,
        failure: Option<String>,
    ) -> Server {
        let transport = describe_transport(session.transport());
        tracing::info!(transport, mount_type, "mounted");
        self.caches.fill(session.notifier(), session.unmounter());
        // All are new here, so none is set already.
        let _ = self.restarter.set(Box::new(Restarter {
            program: options.program.clone(),
            suspender: session.suspender(),
            directory: session.path().to_owned(),
            closing: Arc::clone(&self.closing),
            went_on: Arc::default(),
        }));
        let requests = self.requests;
        let _ = self.served.requests.set(Box::new(move || requests.describe()));
        let _ = self.served.identity.set(Identity {
            image: Some(options.source.to_string_lossy().into_owned()),
            directory: Some(session.path().to_string_lossy().into_owned()),
            pid: std::process::id(),
            uid: rustix::process::geteuid().as_raw(),
            read_only: options.read_only,
            atime: options.atime.name().to_owned(),
            fixed_options: options.fixed.clone(),
            cache_bytes: options.cache_bytes,
            transport,
            mount_type: mount_type.clone(),
            started: Identity::now(),
            restart_failure: failure,
            nfs_failure: None,
        });
        let Parts { volume, following, served, closing, watch, .. } = self;
        Server {
            session,
            volume,
            following,
            served,
            closing,
            watch,
            regroup_after: options.regroup_after.filter(|_| !options.read_only),
            mount_type,
            why_no_block_device: None,
        }
    }
}

/// Ends a server from another thread.
#[derive(Clone, Debug)]
pub struct Stopper(Unmounter);

impl Stopper {
    /// Takes the mount out of the tree. Programs that have files open keep them, and the server
    /// ends when the last is closed.
    pub fn stop(&self) -> io::Result<()> {
        match self.0.unmount(Unmount::Now) {
            Ok(()) => Ok(()),
            Err(_) => self.0.unmount(Unmount::Lazy),
        }
    }

    /// Ends at once. Requests of programs that still have files open fail.
    pub fn abort(&self) -> io::Result<()> {
        self.0.unmount(Unmount::Force)
    }
}

impl Server {
    /// Mounts the volume on a directory.
    pub fn mount(volume: Arc<Volume>, directory: &Path, options: &Options) -> io::Result<Server> {
        let parts = Parts::new(volume, options);
        let attempt = |block_device: Option<&Path>| {
            let mount = mount_options(options, block_device);
            Session::mount(parts.adapter(), directory, &mount, &config(options))
        };
        let below = options.device.as_deref().filter(|_| options.block_device);
        let mounted = below.map(|device| (device, on_block_device(device, options, attempt)));
        let (session, mount_type, why_no_block_device) = match mounted {
            Some((_, Ok(session))) => (session, String::from("fuseblk"), None),
            Some((device, Err(error))) => {
                device.reclaim()?;
                let why = error.to_string();
                (attempt(None)?, format!("fuse; not fuseblk: {why}"), Some(why))
            }
            None => {
                let shown = String::from("fuse; not fuseblk: not asked for, or not by root");
                (attempt(None)?, shown, None)
            }
        };
        let server = parts.into_server(session, options, mount_type, None);
        Ok(Server { why_no_block_device, ..server })
    }

    /// Goes on with a mount that a server has left [suspended](Ended::Suspended), with a volume that was
    /// opened since. `failure` says why the program that was to do so did not, if this is the same one.
    ///
    /// # Errors
    ///
    /// Those of taking over the files in use that have no name.
    pub fn resume(
        volume: Arc<Volume>,
        options: &Options,
        suspended: Suspended,
        failure: Option<String>,
    ) -> Result<Server, Error> {
        let (connection, handover, mount_type) = suspended.into_parts();
        volume.succeed(&handover)?;
        let parts = Parts::new(volume, options);
        let session = Session::resume(parts.adapter(), connection, &config(options));
        Ok(parts.into_server(session, options, mount_type, failure))
    }

    /// How requests arrive, for people to read.
    pub fn transport(&self) -> String {
        describe_transport(self.session.transport())
    }

    /// What is served, for those who administer it.
    pub fn served(&self) -> Arc<Served> {
        Arc::clone(&self.served)
    }

    /// Why the volume is mounted as `fuse`, though a block device was wanted, for people to read.
    pub fn why_no_block_device(&self) -> Option<&str> {
        self.why_no_block_device.as_deref()
    }

    /// The means to end the server.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.session.unmounter())
    }

    /// Sets the companion server, which ends before the volume is closed, and shows its exports.
    pub fn set_companion(&self, companion: Arc<dyn Companion>, exports: Arc<dyn Exports>) {
        self.closing.set_companion(companion);
        // A mount has one at most.
        let _ = self.served.exports.set(exports);
    }

    /// Shows why the companion server did not go on with its clients after a restart.
    pub fn companion_failed(&self, why: String) {
        // A mount has one at most.
        let _ = self.served.nfs_failure.set(why);
    }

    /// Shows the requests to the object store that the volume lies in among its counters.
    pub fn set_store(&self, requests: Counters) {
        // There is one at most.
        let _ = self.served.store.set(requests);
    }

    /// Shows what waits on a local disk until it is in the object store.
    pub fn set_staging(&self, waiting: Counters) {
        // There is one at most.
        let _ = self.served.staging.set(waiting);
    }

    /// Serves until the volume is unmounted, and closes it, or until this program is to be replaced.
    pub fn serve(self) -> Result<Ended, ServeError> {
        self.serve_then(|| ())
    }

    /// Does the same, and calls `ready` when programs can enter, and the volume can be unmounted.
    pub fn serve_then(self, ready: impl FnOnce() + Send + 'static) -> Result<Ended, ServeError> {
        let Server { session, volume, following, closing, watch, mount_type, .. } = self;
        let (shown, regroup_after) = (&self.served, self.regroup_after);
        let (end, ended) = mpsc::channel();
        let (end_regrouping, regrouping_ended) = mpsc::channel();
        let served = std::thread::scope(|scope| {
            let (watch, volume) = (&watch, &volume);
            scope.spawn(move || watch.run(shown, ended));
            if let Some(after) = regroup_after {
                let volume = volume.get();
                let idle = move || shown.regroup_when_idle(&volume, after, &regrouping_ended);
                scope.spawn(idle);
            }
            // Dropped when all is over, and with it the watchdog.
            let _end = end;
            let serve = || session.serve_then(ready);
            let served = match &following {
                Some(following) => following.keep(serve),
                None => shared::keep(&volume.get(), serve),
            };
            drop(end_regrouping);
            if let Ok(fuse_ring::Ended::Suspended(connection)) = served {
                let volume = volume.get();
                let handover = match volume.close_for_successor() {
                    Ok(handover) => handover,
                    Err(error) => {
                        let why = why_open(&volume, &error).ok_or(error)?;
                        let suspended = Suspended::new(connection, Handover::default(), mount_type);
                        return Ok(Ended::Open(StillOpen { suspended, volume, why }));
                    }
                };
                tracing::info!("suspended");
                let suspended = Suspended::new(connection, handover, mount_type);
                return Ok(Ended::Suspended(suspended));
            }
            // Serving ends with this, unless it failed.
            closing.run();
            served.map(|_| Ended::Closed).map_err(ServeError::from)
        });
        match closing.take_failure() {
            Some(error) => Err(error.into()),
            None => served,
        }
    }
}

/// Why a volume that was to be closed for another program is open still; `None` if it is not.
fn why_open(volume: &Volume, error: &Error) -> Option<String> {
    const FILES: &str = "files that are open and have no name";
    match error {
        _ if volume.latched().is_some() => None,
        Error::Exists => Some(format!(
            "{FILES} are handed over in /.cffs-handover, and that is something else here: rename it"
        )),
        Error::NoSpace => {
            // The references are still there. Names that some of the files were given go, if there are any.
            let given = Handover { references: Vec::new(), has_nameless: true };
            let _ = volume.succeed(&given);
            Some(format!("there is no space to hand over {FILES}"))
        }
        _ => None,
    }
}

/// Mounts the block device on which the volume lies, or a loop device over its image.
fn on_block_device<T>(
    device: &FileDevice,
    options: &Options,
    mount: impl FnOnce(Option<&Path>) -> io::Result<T>,
) -> io::Result<T> {
    if device.is_block_device() {
        device.lend_claim();
        return mount(Some(&options.source));
    }
    let disk = LoopDevice::over(&device.reopen()?, &options.source, options.read_only)
        .map_err(|error| io::Error::new(error.kind(), format!("no loop device: {error}")))?;
    mount(Some(disk.path()))
}

fn describe_transport(transport: &Transport) -> String {
    match transport {
        Transport::Uring { cores, threads_per_core } => {
            format!("io_uring, {cores} cores with {threads_per_core} threads each")
        }
        Transport::Dev { threads, why_not_uring, .. } => {
            format!("/dev/fuse, {threads} threads; not io_uring: {why_not_uring}")
        }
    }
}

fn mount_options(options: &Options, block_device: Option<&Path>) -> MountOptions {
    MountOptions {
        fsname: block_device.unwrap_or(&options.source).as_os_str().to_owned(),
        block_device: block_device.is_some(),
        subtype: String::from(SUBTYPE),
        default_permissions: true,
        allow_other: options.allow_other,
        read_only: options.read_only,
        allow_suid: options.suid,
        allow_dev: options.dev,
        no_exec: !options.exec,
        no_symlink_follow: options.no_symlink_follow,
        no_atime: options.atime == AtimeMode::Never,
        ..MountOptions::default()
    }
}

fn config(options: &Options) -> Config {
    let defaults = Wishes::default();
    let mut features = defaults.features
        | Features::EXPORT_SUPPORT
        | Features::DONT_MASK
        | Features::POSIX_ACL
        | Features::HANDLE_KILLPRIV_V2;
    // Only root can make id-mapped mounts, and the user of a caller has to be found by its process.
    let finds_users = rustix::process::geteuid().is_root() && fuse_ring::sees_all_processes();
    features.set(Features::ALLOW_IDMAP, finds_users);
    let wishes = Wishes {
        features,
        // What the kernel has cached of a file may be old when it is opened, and listings are not cached.
        elide_open: options.follow.is_none(),
        elide_opendir: options.follow.is_none(),
        ..defaults
    };
    // A volume in an object store has no device here.
    let waits_long = options.device.is_none();
    Config { wishes, transport: options.transport, waits_long, ..Config::default() }
}
