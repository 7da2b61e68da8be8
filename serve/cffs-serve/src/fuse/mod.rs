//! FUSE: the volume as a mounted file system.
//!
//! Offers [`Server`], which mounts a [`Volume`] and serves it until it is unmounted. Uses `fuse-ring`
//! (protocol and transports), the facade, and [`served`](crate::served), whose [`control`] interface other
//! programs use through the mount.
//!
//! ```text
//!   Server::mount             Server::serve                              volume closed,
//!   directory is usable ───▶  requests in threads, once a second   ───▶  image complete
//!                             Background::run_once                       (closing)
//! ```
//!
//! Root's mounts use a block device (type `fuseblk`): the device itself, or a loop device for the image. Then
//! sync(2) and syncfs(2) reach the volume (Linux 6.18), and umount(2) returns when the image is complete. If
//! no block device is available, and for ordinary users, the type is `fuse`.
//!
//! Invariants: the kernel checks permissions (`default_permissions`, POSIX ACLs), caches names and attributes
//! for the configured lifetime, and manages file locks itself. Writes reach the volume before the writer's
//! call returns: the kernel does not delay them, so the volume alone determines sizes and times.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use cffs::counted;
use cffs::device::file::FileDevice;
use cffs::error::Error;
use cffs::vfs::types::AtimeMode;
use cffs::vfs::{Handover, Volume};
use fuse_ring::protocol::{Features, Wishes};
use fuse_ring::{Config, MountOptions, Session, Transport, Unmount, Unmounter};

use crate::attached::Sessions;
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
mod mount_state;
mod panic_guard;
mod privileges;
mod requests;
pub mod restart;
mod translate;
mod underway;
mod volume_handle;
mod waiter;
mod watch;

use adapter::Adapter;
pub use caches::KernelCaches;
use closing::Closing;
pub use device::WatchedDevice;
use follow::Following;
pub use follow::{Follow, Newer};
pub use fuse_ring::{TransportChoice, device_number, make_requests, switch_rings_on};
use loop_device::LoopDevice;
use mount_state::MountState;
use requests::Requests;
pub use requests::current_request;
use restart::{Restarter, Suspended};
use volume_handle::VolumeHandle;
pub use waiter::LeaveSeat;
pub use watch::{STALL, Watch};

use crate::shared::{self, Companion, Current, Exports, Observer};

/// The subtype of the mount: its type is shown as `fuseblk.cffs` or as `fuse.cffs`.
pub const SUBTYPE: &str = "cffs";

/// The lifetime of names and attributes in the kernel if only the mount changes the volume: a year, longer
/// than any mount. The server notifies the kernel of its own changes.
pub const TTL_ALONE: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// The same if another front end also changes the volume. That front end notifies the kernel of most changes;
/// this bounds the others, such as access times.
pub const TTL_SHARED: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct Options {
    /// The image or device, as the mount table shows it.
    pub source: PathBuf,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether users other than the mounter have access.
    pub allow_other: bool,
    /// Whether set-id bits are honoured.
    pub suid: bool,
    /// Whether device files work.
    pub dev: bool,
    /// Whether programs can be executed.
    pub exec: bool,
    /// When a read sets the access time; the volume is opened with the same. The mount table shows `noatime`.
    pub atime: AtimeMode,
    /// The options that do not change while the server runs, by name, as commands see them.
    pub fixed: BTreeMap<String, String>,
    /// How requests arrive.
    pub transport: TransportChoice,
    /// The watchdog, shared with the device's [`WatchedDevice`].
    pub watch: Arc<Watch>,
    /// Whether symbolic links are not followed.
    pub no_symlink_follow: bool,
    /// The image or device itself, unless the volume is in an object store. It is released when the volume is
    /// closed, before the server ends.
    pub device: Option<Arc<FileDevice>>,
    /// The device of the journal, if that is separate. It is released together with the other.
    pub journal: Option<Arc<FileDevice>>,
    /// Whether to mount a block device, or a loop device for an image; only for root.
    pub block_device: bool,
    /// How long the volume must be idle before it is regrouped; `None` for never.
    pub regroup_after: Option<Duration>,
    /// The size of the volume's cache in bytes, as statistics show it.
    pub cache_bytes: u64,
    /// The program that can replace this one while the volume is mounted, or why none can.
    pub program: Result<PathBuf, String>,
    /// The kernel's caches, which another front end of the volume invalidates.
    pub caches: KernelCaches,
    /// The lifetime of names and attributes in the kernel.
    pub ttl: Duration,
    /// How the mount follows another program's changes, if it does. It then has no companion server.
    pub follow: Option<Follow>,
}

/// How serving ended without an error.
#[derive(Debug)]
pub enum Ended {
    /// The volume was unmounted, and its image is complete.
    Closed,
    /// The volume is mounted and closed, and its users wait for [`Server::resume`].
    Suspended(Suspended),
    /// The same, but the volume is still open.
    Open(StillOpen),
}

/// A suspended mount whose volume could not be closed; [`Server::resume`] continues it.
pub struct StillOpen {
    pub suspended: Suspended,
    pub volume: Arc<Volume>,
    pub why: String,
}

impl fmt::Debug for StillOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StillOpen").field("why", &self.why).finish_non_exhaustive()
    }
}

/// Why serving ended without an unmount, or without a complete image.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The connection to the kernel failed.
    #[error("serving failed: {0}")]
    Session(#[from] io::Error),
    /// The volume could not be written completely; the next mount recovers it.
    #[error("closing the volume failed: {0}")]
    Close(#[from] Error),
}

/// A mounted volume. Programs that access it wait until [`serve`](Server::serve) runs. If dropped before, it
/// is unmounted.
pub struct Server {
    session: Session<Adapter>,
    volume: Current,
    following: Option<Arc<Following>>,
    served: Arc<Served>,
    closing: Arc<Closing>,
    watch: Arc<Watch>,
    /// How long the volume must be idle before it is regrouped; `None` for never.
    regroup_after: Option<Duration>,
    mount_type: String,
    why_no_block_device: Option<String>,
    /// The number of the connection to the kernel.
    connection: Option<u32>,
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
    sessions: Arc<Sessions>,
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
        let devices = [&options.device, &options.journal].into_iter().flatten().cloned().collect();
        let watch = Arc::clone(&options.watch);
        let sessions =
            Sessions::new(volume.clone(), Box::new(options.caches.clone()), options.allow_other);
        let (shown, attached) = (Arc::clone(&served), Arc::clone(&sessions));
        Parts {
            closing: Arc::new(Closing::new(shown, devices, watch, attached)),
            served,
            sessions,
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
            Some(following) => VolumeHandle::Following(self.volume.clone(), Arc::clone(following)),
            None => VolumeHandle::Fixed(self.volume.get()),
        };
        let caches = (self.caches.clone(), self.ttl);
        let sessions = Arc::clone(&self.sessions);
        Adapter::new(shown, control, requests, closing, watch, caches, sessions)
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
        let mount = MountState::of(session.device_number(), session.path(), options.read_only);
        let connection = mount.connection();
        self.caches.fill(session.notifier(), session.unmounter(), Arc::new(mount));
        // All are new, so none is set already.
        let _ = self.restarter.set(Box::new(Restarter {
            program: options.program.clone(),
            suspender: session.suspender(),
            directory: session.path().to_owned(),
            is_in_store: options.device.is_none(),
            closing: Arc::clone(&self.closing),
            went_on: Arc::default(),
        }));
        let caches = self.caches.clone();
        caches.refuses_changes();
        let _ = self.served.mount_is_read_only.set(Box::new(move || caches.refuses_changes()));
        let requests = self.requests;
        let _ = self.served.requests.set(Box::new(move || requests.describe()));
        let _ = self.served.identity.set(Identity {
            image: Some(options.source.to_string_lossy().into_owned()),
            directory: Some(session.path().to_string_lossy().into_owned()),
            pid: std::process::id(),
            uid: rustix::process::geteuid().as_raw(),
            read_only: options.read_only,
            opened_read_only: options.read_only,
            fixed_options: options.fixed.clone(),
            cache_bytes: options.cache_bytes,
            transport,
            mount_type: mount_type.clone(),
            started: Identity::now(),
            restart_failure: failure,
            nfs_failure: None,
            page_failure: None,
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
            connection,
        }
    }
}

/// Stops a server from another thread.
#[derive(Clone, Debug)]
pub struct Stopper(Unmounter);

impl Stopper {
    /// Detaches the mount. Programs keep their open files, and the server ends when the last is closed.
    pub fn stop(&self) -> io::Result<()> {
        match self.0.unmount(Unmount::Now) {
            Ok(()) => Ok(()),
            Err(_) => self.0.unmount(Unmount::Lazy),
        }
    }

    /// Ends the server at once. Requests of programs with open files fail.
    pub fn abort(&self) -> io::Result<()> {
        self.0.unmount(Unmount::Force)
    }
}

impl Server {
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
                let why = match &options.device {
                    Some(_) => "not asked for, or not by root",
                    None => "a volume in an object store has no block device",
                };
                (attempt(None)?, format!("fuse; not fuseblk: {why}"), None)
            }
        };
        let server = parts.into_server(session, options, mount_type, None);
        Ok(Server { why_no_block_device, ..server })
    }

    /// Continues a [suspended](Ended::Suspended) mount with a volume that was opened since. `failure` is the
    /// reason why the program was not replaced, if this is still the same program.
    ///
    /// # Errors
    ///
    /// Errors of taking over nameless files in use.
    pub fn resume(
        volume: Arc<Volume>,
        options: &Options,
        suspended: Suspended,
        failure: Option<String>,
    ) -> Result<Server, Error> {
        let (connection, handover, mount_type) = suspended.into_parts();
        handover.succeed(&volume)?;
        let parts = Parts::new(volume, options);
        // Programs that were attached to the last server may have changed sizes that the kernel knows.
        parts.caches.joined();
        let session = Session::resume(parts.adapter(), connection, &config(options));
        Ok(parts.into_server(session, options, mount_type, failure))
    }

    /// The transport, in words.
    pub fn transport(&self) -> String {
        describe_transport(self.session.transport())
    }

    /// The served volume, for administration.
    pub fn served(&self) -> Arc<Served> {
        Arc::clone(&self.served)
    }

    /// Why the volume is mounted as `fuse` although a block device was wanted.
    pub fn why_no_block_device(&self) -> Option<&str> {
        self.why_no_block_device.as_deref()
    }

    /// The number by which the connection can be aborted, in `/sys/fs/fuse/connections`. `None` if it is
    /// unknown.
    pub fn connection(&self) -> Option<u32> {
        self.connection
    }

    /// A handle that stops the server.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.session.unmounter())
    }

    /// Sets the companion server, which ends before the volume is closed, and publishes its exports.
    pub fn set_companion(&self, companion: Arc<dyn Companion>, exports: Arc<dyn Exports>) {
        self.closing.set_companion(companion);
        // A mount has at most one.
        let _ = self.served.exports.set(exports);
    }

    /// Records why the companion server did not continue with its clients after a restart.
    pub fn companion_failed(&self, why: String) {
        // A mount has at most one.
        let _ = self.served.nfs_failure.set(why);
    }

    /// Records why the page did not continue after a restart.
    pub fn page_failed(&self, why: String) {
        // A mount has at most one.
        let _ = self.served.page_failure.set(why);
    }

    /// Adds the counters of requests to the volume's object store.
    pub fn set_store(&self, requests: Counters) {
        self.served.set_store(requests);
    }

    /// Adds the counters of staged records that wait for the object store.
    pub fn set_staging(&self, waiting: Counters) {
        self.served.set_staging(waiting);
    }

    /// Serves until the volume is unmounted, and closes it, or until this program is replaced.
    pub fn serve(self) -> Result<Ended, ServeError> {
        self.serve_then(|| ())
    }

    /// Does the same, and calls `ready` when programs can access the volume, and it can be unmounted.
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
            // Dropping this ends the watchdog.
            let _end = end;
            let serve = || session.serve_then(ready);
            let served = match &following {
                Some(following) => following.keep(serve),
                None => shared::keep(&volume.get(), serve),
            };
            drop(end_regrouping);
            if let Ok(fuse_ring::Ended::Suspended(connection)) = served {
                let volume = volume.get();
                let handover = match Handover::close(&volume) {
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
            // Done already when serving ended normally.
            closing.run();
            served.map(|_| Ended::Closed).map_err(ServeError::from)
        });
        match closing.take_failure() {
            Some(error) => Err(error.into()),
            None => served,
        }
    }
}

/// Why a volume that could not be closed for the next program is still open; `None` if it is closed.
fn why_open(volume: &Volume, error: &Error) -> Option<String> {
    const FILES: &str = "files that are open and have no name";
    match error {
        _ if volume.writer().health.latched().is_some() => None,
        Error::Exists => Some(format!(
            "{FILES} are handed over in /.cffs-handover, and that is something else here: rename it"
        )),
        Error::NoSpace | Error::QuotaExceeded(_) | Error::OtherQuota => {
            // Keeps the references. This removes the names that some of the files were given already.
            let given = Handover { references: Vec::new(), has_nameless: true };
            let _ = given.succeed(volume);
            Some(match error {
                Error::NoSpace => format!("no space is left to hand over {FILES}"),
                _ => format!("the quota of the root has no room to hand over {FILES}: raise it"),
            })
        }
        _ => None,
    }
}

/// Mounts the block device that contains the volume, or a loop device for its image.
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
            let cores = counted(*cores as u64, "core");
            let threads = counted(*threads_per_core as u64, "thread");
            format!("io_uring, {cores}, {threads} per core")
        }
        Transport::Dev { threads, why_not_uring, .. } => {
            let threads = counted(*threads as u64, "thread");
            format!("/dev/fuse, {threads}; not io_uring: {why_not_uring}")
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
    // Only root can create id-mapped mounts, for which the server finds a caller's user from its process.
    let finds_users = rustix::process::geteuid().is_root() && fuse_ring::sees_all_processes();
    features.set(Features::ALLOW_IDMAP, finds_users);
    let wishes = Wishes {
        features,
        // On a followed volume, cached contents may be old when a file is opened, and listings are not
        // cached.
        elide_open: options.follow.is_none(),
        elide_opendir: options.follow.is_none(),
        ..defaults
    };
    // Only volumes in object stores have no device here.
    let waits_long = options.device.is_none();
    Config { wishes, transport: options.transport, waits_long, ..Config::default() }
}
