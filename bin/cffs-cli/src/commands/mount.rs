//! `cffs mount`, `mount.cffs` and variants: mounts a volume and serves it.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, anyhow, bail};
use cffs::device::BlockDevice;
use cffs::device::file::{Access, FileDevice, OpenError};
use cffs::vfs::Volume;
use cffs::vfs::types::OpenOptions;
use cffs_serve::fuse::restart::Suspended;
use cffs_serve::fuse::{
    self, Ended, KernelCaches, LeaveSeat, Server, StillOpen, Stopper, TransportChoice, Watch,
    WatchedDevice,
};
use cffs_serve::nfs::{self, Export};
use cffs_serve::served::control::{self, AskError};
use cffs_serve::shared::Companion;
use clap::Args;

use super::{remount, serve, umount};
use crate::background;
use crate::interrupt::at_signals;
use crate::mount_options::{self, MountOptions};
use crate::output::note;
use crate::successor::{self, Base, Inherited, InheritedBase};
use crate::web::{WebOptions, parse_address};
use crate::{image, log, mounts, privileges, service_manager, udev, working_directory};

mod store;

use store::OpenStore;

/// The help after the list of mount options.
const AFTER_OPTIONS: &str = "\
Options for mount(8) and systemd (noauto, nofail, _netdev, x-...) are accepted and ignored.

A mount by root enables FUSE over io_uring, unless it has transport=dev:
  /sys/module/fuse/parameters/enable_uring

Examples:
  cffs mount tree.cffs mnt
  cffs mount -o ro,noatime,cache=1G /dev/sdb1 /srv/tree
  cffs mount s3://bucket/tree@monday mnt
                         a version (cffs snapshot), read-only
  cffs mount -o follow s3://bucket/tree mnt
                         shows the changes of another machine, read-only, after a few seconds
  cffs mount --cache /var/cache/tree=20G s3://bucket/tree mnt
                         keeps data read from the store on a local disk, also for later mounts
  cffs mount --nfs 127.0.0.1:2049 tree.cffs mnt    also for NFS clients of this machine
  cffs mount --web 127.0.0.1:8080 tree.cffs mnt
In /etc/fstab:
  /var/lib/tree.cffs  /srv/tree  cffs  noatime,nofail  0  0";

/// Mount a volume on a directory
///
/// Returns when the volume can be used, and serves it in the background until it is unmounted. A
/// volume that was not left clean is recovered first. An ordinary user needs only fusermount3 for
/// this, from the package fuse3.
#[derive(Debug, Default, Args)]
#[command(after_help = format!("{}{AFTER_OPTIONS}", mount_options::help()))]
pub struct Mount {
    /// The image or the device, or the URL of a volume in an object store or of a version of it, URL@NAME; a
    /// block device also by LABEL= or UUID=.
    #[arg(value_name = "IMAGE|DEVICE|URL")]
    pub source: PathBuf,
    /// The directory to mount on.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Stay in the foreground and log to standard error.
    #[arg(short, long)]
    pub foreground: bool,
    /// Mount options, comma-separated; see below.
    #[arg(short, value_name = "OPTIONS")]
    pub options: Vec<OsString>,
    /// Cache data read from an object store in this directory of a local disk, which is created if it does
    /// not exist, up to SIZE (16M or more); mounts can share it.
    #[arg(long, value_name = "DIR=SIZE")]
    pub cache: Option<OsString>,
    /// For a volume in an object store, let fsync return when the changes are in this directory of a local
    /// disk, which is created if it does not exist; they are then sent to the store, in order. If the server
    /// ends before all are sent, mount again with the same directory to send the rest. Until they are sent,
    /// other readers do not see them, and if another program takes the volume over, they are rejected.
    #[arg(long, value_name = "DIR")]
    pub staging: Option<PathBuf>,
    /// The page.
    #[command(flatten)]
    pub web: WebOptions,
    /// Print whether requests arrive through io_uring or /dev/fuse.
    #[arg(short, long)]
    pub verbose: bool,
    /// Also serve the mounted volume to NFS clients, as cffs serve does without a mount.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_address)]
    pub nfs: Option<SocketAddr>,
    /// With --nfs, a directory of the volume, and its clients and options, as for cffs serve.
    #[arg(long, value_name = "PATH[:OPTIONS]", requires = "nfs")]
    pub export: Vec<Export>,
    /// Whether to ignore unknown options.
    #[arg(skip)]
    pub sloppy: bool,
    /// Whether to skip the actual mount.
    #[arg(skip)]
    pub fake: bool,
}

impl Mount {
    /// Mounts the volume, by default in the background.
    pub fn run(mut self) -> anyhow::Result<ExitCode> {
        self.source = udev::device_of_tag(&self.source)?;
        // A successor has the device open already. The path may lead through the mount that it is to serve.
        if !successor::is_one() {
            mounts::passable(&self.source)?;
        }
        let mut options = MountOptions::for_user(rustix::process::geteuid().is_root());
        options.apply(&self.options, self.sloppy)?;
        options.settle_for(&self.source, self.cache.as_deref(), self.staging.as_deref())?;
        if options.follow.is_some() && self.nfs.is_some() {
            bail!("a volume that is followed cannot be served by NFS: leave out --nfs or 'follow'");
        }
        if !successor::is_one()
            && let Some(code) = self.prepare(&options)?
        {
            return Ok(code);
        }
        match background::enter(self.foreground, &self.source, options.logfile.as_deref())? {
            ControlFlow::Continue(in_background) => self.serve(&options, in_background),
            ControlFlow::Break(code) => Ok(code),
        }
    }

    /// Prepares the mount; returns an exit code if nothing has to be mounted.
    fn prepare(&self, options: &MountOptions) -> anyhow::Result<Option<ExitCode>> {
        if !self.fake && !options.remount {
            self.take_dead_mounts_away()?;
        }
        if !self.directory.is_dir() {
            bail!("{} is not a directory", self.directory.display());
        }
        if self.fake {
            return Ok(Some(ExitCode::SUCCESS));
        }
        if options.remount {
            if self.nfs.is_some() {
                bail!("a remount does not change how the volume is served; unmount and mount it");
            }
            remount::remount(&self.directory, options)?;
            return Ok(Some(ExitCode::SUCCESS));
        }
        Ok(None)
    }

    /// Removes mounts whose server has died, since they fail every call, including the check whether the path
    /// is a directory.
    fn take_dead_mounts_away(&self) -> anyhow::Result<()> {
        while let Some(mounted) = mounts::on(&self.directory)? {
            mounts::answers(&mounted)?;
            if !matches!(control::identity(&mounted.directory), Err(AskError::Dead)) {
                return Ok(());
            }
            umount::unmount(&mounted, true)?;
            note!(
                "cffs mount: removed the mount of {} from {}: its server had died",
                mounted.source.display(),
                mounted.directory.display()
            );
        }
        Ok(())
    }

    fn serve(&self, options: &MountOptions, in_background: bool) -> anyhow::Result<ExitCode> {
        let access = if options.open.read_only { Access::ReadOnly } else { Access::ReadWrite };
        let inherited = successor::inherited(access)?;
        let is_successor = inherited.is_some();
        let page = {
            let (source, dir) = (&self.source, Some(self.directory.as_path()));
            match is_successor {
                true => self.web.bind_again(source, dir),
                false => Ok(self.web.bind(source, dir)?),
            }
        };
        let Mounted { fuse_options, mut store, mut server, nfs } = match inherited {
            Some(inherited) => self.go_on(inherited, options)?,
            None => self.mount(access, options)?,
        };
        store.iter().for_each(|store| store.show(&server));
        // Before any thread is started, since each thread has its own capabilities.
        if let Err(error) = privileges::give_up_all_but(privileges::TO_UNMOUNT) {
            tracing::warn!("{error:#}");
        }
        let stopper = Arc::new(Mutex::new(server.stopper()));
        stop_on_signals(Arc::clone(&stopper))?;
        if let (Ok(Some(nfs)), false) = (&nfs, is_successor) {
            note_address(self.nfs, nfs.address()?);
        }
        let mut nfs = match is_successor {
            true => resume_companion(&server, nfs),
            false => nfs?.map(|nfs| start_companion(&server, nfs)).transpose()?,
        };
        let page = match page.and_then(|page| page.start(server.served())) {
            // A takeover must not fail because of the page.
            Err(error) if is_successor => {
                let why = format!("{error:#}");
                tracing::error!(why, "the page has ended");
                server.page_failed(why);
                None
            }
            page => page?,
        };
        // This was reported to the caller of the first program.
        if let Some(why) = server.why_no_block_device().filter(|_| !is_successor) {
            note!("cffs mount: mounted as fuse, so that sync(2) does not reach it: {why}");
        }
        if self.verbose && !is_successor {
            note!("cffs mount: requests arrive by {}", server.transport());
        }
        let mut report = (!in_background || !is_successor).then_some(in_background);
        loop {
            let (report, connection) = (report.take(), server.connection());
            let ready = move || {
                report
                    .into_iter()
                    .for_each(|in_background| report_ready(in_background, connection));
            };
            let ended = server.serve_then(ready).inspect_err(|error| {
                tracing::error!(image = %fuse_options.source.display(), %error, "ended");
            })?;
            match ended {
                Ended::Closed => return Ok(ExitCode::SUCCESS),
                Ended::Suspended(suspended) => {
                    let handover = nfs.take().map(|nfs| nfs.hand_over());
                    let handover = handover.transpose().map_err(anyhow::Error::msg);
                    (server, nfs) =
                        give_way(suspended, handover, &fuse_options, store.as_mut(), options)?;
                }
                Ended::Open(open) => server = serve_on(open, nfs.as_ref(), &fuse_options)?,
            }
            store.iter().for_each(|store| store.show(&server));
            if let Some(page) = &page {
                page.show(server.served());
            }
            *stopper.lock().unwrap_or_else(PoisonError::into_inner) = server.stopper();
        }
    }

    fn mount(&self, access: Access, options: &MountOptions) -> anyhow::Result<Mounted> {
        if let Some(location) = image::location(&self.source)? {
            return self.mount_from_store(&location, options);
        }
        let missing = |source| OpenError::Io { path: self.source.clone(), source };
        let source = self.source.canonicalize().map_err(missing)?;
        switch_rings_on(options);
        let device = Arc::new(image::open_device(&source, access)?);
        let named = options.journal_device.as_deref();
        let journal = image::open_journal(&source, &*device, access, named)?.map(Arc::new);
        let watch = Arc::new(Watch::new(options.stall));
        let volume = open_served(&source, &device, journal.clone(), &watch, options)?;
        if let Some(damage) = volume.writer().superblock.get().damage {
            let advice = "unmount it, and cffs fsck -y checks and repairs it";
            note!("cffs mount: {}: {damage}; {advice}", source.display());
        }
        let fuse_options = fuse_options(&source, Some(device), journal, watch, options);
        self.mount_volume(&volume, fuse_options, options)
    }

    /// A path below the mount point that a program that replaces this one has to open: it would wait for
    /// itself. The image and the journal are handed over open. Before the volume is mounted.
    fn hidden(&self, options: &MountOptions) -> Option<PathBuf> {
        let directory = self.directory.canonicalize().ok()?;
        let log = log::file(options.logfile.as_deref());
        let cache = options.cache_dir.iter().map(|(directory, _)| directory.clone());
        let mut paths = self.web.files().chain(log).chain(cache).chain(options.staging.clone());
        paths.find(|path| {
            let Ok(path) = working_directory::absolute_argument(path) else { return false };
            let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
            parent.is_some_and(|parent| parent.starts_with(&directory))
        })
    }

    /// Mounts the volume, and listens for NFS clients if that was requested.
    fn mount_volume(
        &self,
        volume: &Arc<Volume>,
        mut fuse_options: fuse::Options,
        options: &MountOptions,
    ) -> anyhow::Result<Mounted> {
        if let Some(hidden) = self.hidden(options) {
            fuse_options.program = Err(format!(
                "{} is below the mount point, where the next program could not open it; unmount and mount",
                hidden.display()
            ));
        }
        let mounted = (|| {
            let mut nfs = None;
            if let Some(address) = self.nfs {
                fuse_options.ttl = fuse::TTL_SHARED;
                nfs = Some(self.bind_nfs(volume, address, &fuse_options)?);
            }
            let server = Server::mount(Arc::clone(volume), &self.directory, &fuse_options)
                .map_err(|error| no_mount(&self.directory, &error))?;
            Ok(Mounted { fuse_options, store: None, server, nfs: Ok(nfs) })
        })();
        if mounted.is_err() {
            volume.close()?;
        }
        mounted
    }

    /// Continues a mount after this program has replaced its server.
    fn go_on(&self, inherited: Inherited, options: &MountOptions) -> anyhow::Result<Mounted> {
        let Inherited { source, base, suspended, nfs } = inherited;
        let watch = Arc::new(Watch::new(options.stall));
        let (volume, mut fuse_options, store) = match base {
            InheritedBase::Files(device, journal) => {
                let volume = open_served(&source, &device, journal.clone(), &watch, options)?;
                (volume, fuse_options(&source, Some(device), journal, watch, options), None)
            }
            InheritedBase::Store(last, lock) => {
                let (store, volume) = OpenStore::succeed(&source, &last, lock, &watch, options)?;
                (volume, store.fuse_options(&source, watch, options), Some(store))
            }
        };
        if self.nfs.is_some() {
            fuse_options.ttl = fuse::TTL_SHARED;
        }
        let nfs = match nfs {
            Some(handover) => handover
                .map_err(anyhow::Error::new)
                .and_then(|handover| resume_nfs(&volume, handover, &fuse_options)),
            // The previous program has lost it.
            None => {
                self.nfs.map(|address| self.bind_nfs(&volume, address, &fuse_options)).transpose()
            }
        };
        let server = Server::resume(volume, &fuse_options, suspended, None)?;
        tracing::info!(image = %source.display(), "took over from the previous program");
        Ok(Mounted { fuse_options, store, server, nfs })
    }

    fn bind_nfs(
        &self,
        volume: &Arc<Volume>,
        address: SocketAddr,
        fuse_options: &fuse::Options,
    ) -> anyhow::Result<nfs::Server> {
        let caches = Arc::new(fuse_options.caches.clone());
        serve::bind(volume, address, self.export.clone(), caches)
    }
}

/// Lets the installed program replace this one. On failure, continues to serve.
fn give_way(
    suspended: Suspended,
    handover: anyhow::Result<Option<nfs::Handover>>,
    fuse_options: &fuse::Options,
    store: Option<&mut OpenStore>,
    options: &MountOptions,
) -> anyhow::Result<(Server, Option<Arc<nfs::Running>>)> {
    let fuse::Options { source, device, journal, watch, .. } = fuse_options;
    let program = fuse_options.program.as_ref().map_err(|why| anyhow!("{why}"))?;
    let succession = store.as_ref().map(|store| store.succession()).transpose()?;
    let error = {
        let base = match (device, &succession, &store) {
            (Some(device), ..) => Base::Files(device, journal.as_deref()),
            (None, Some(succession), Some(store)) => Base::Store(succession, store.lock()),
            (None, ..) => bail!("no volume to hand over"),
        };
        match &handover {
            Ok(nfs) => successor::become_program(program, source, base, &suspended, nfs.as_ref()),
            Err(_) => anyhow::Error::msg("the NFS server has nothing to hand over"),
        }
    };
    let failure = format!("{error:#}");
    tracing::error!(failure, "the program was not replaced");
    let volume = match (device, &succession, store) {
        (Some(device), ..) => open_served(source, device, journal.clone(), watch, options)?,
        (None, Some(last), Some(store)) => store.reopen(source, last, watch, options)?,
        (None, ..) => bail!("no volume to open again"),
    };
    let resume = |handover| resume_nfs(&volume, handover, fuse_options);
    let nfs = handover.and_then(|nfs| nfs.map_or(Ok(None), resume));
    let server = Server::resume(Arc::clone(&volume), fuse_options, suspended, Some(failure))?;
    let nfs = resume_companion(&server, nfs);
    Ok((server, nfs))
}

/// Continues to serve a volume that cannot be handed over, and its NFS clients.
fn serve_on(
    open: StillOpen,
    nfs: Option<&Arc<nfs::Running>>,
    fuse_options: &fuse::Options,
) -> anyhow::Result<Server> {
    let StillOpen { suspended, volume, why } = open;
    tracing::error!(why, "the program was not replaced");
    let server = Server::resume(volume, fuse_options, suspended, Some(why))?;
    if let Some(nfs) = nfs {
        server.set_companion(Arc::clone(nfs) as _, nfs.exports());
        nfs.go_on();
    }
    Ok(server)
}

/// Continues with the NFS clients of the previous server.
fn resume_nfs(
    volume: &Arc<Volume>,
    handover: nfs::Handover,
    fuse_options: &fuse::Options,
) -> anyhow::Result<Option<nfs::Server>> {
    let caches = Arc::new(fuse_options.caches.clone());
    Ok(Some(nfs::Server::resume(Arc::clone(volume), handover, caches)?))
}

/// Serves NFS clients of a mounted volume.
fn start_companion(server: &Server, nfs: nfs::Server) -> anyhow::Result<Arc<nfs::Running>> {
    tracing::info!(address = %nfs.address()?, "serves NFS in addition to the mount");
    let running = Arc::new(nfs.start().context("serving by NFS")?);
    server.set_companion(Arc::clone(&running) as _, running.exports());
    Ok(running)
}

/// The same after a restart. On failure, the mount is served without NFS clients, and its identity has the
/// reason.
fn resume_companion(
    server: &Server,
    nfs: anyhow::Result<Option<nfs::Server>>,
) -> Option<Arc<nfs::Running>> {
    match nfs.and_then(|nfs| nfs.map(|nfs| start_companion(server, nfs)).transpose()) {
        Ok(nfs) => nfs,
        Err(error) => {
            let why = format!("{error:#}");
            tracing::error!(why, "NFS clients are no longer served");
            server.companion_failed(why);
            None
        }
    }
}

/// Reports that the volume can be used, to the caller of this command or to a service manager.
fn report_ready(in_background: bool, connection: Option<u32>) {
    if !in_background {
        service_manager::ready();
    } else if let Err(error) = background::ready(connection) {
        tracing::error!("cannot report that the volume is mounted: {error:#}");
    }
}

/// A mounted volume, with its mount options.
struct Mounted {
    fuse_options: fuse::Options,
    /// The store of the volume, if it is in one and can be opened again there.
    store: Option<OpenStore>,
    server: Server,
    /// The NFS server to start; an error if one ran before a restart and cannot continue.
    nfs: anyhow::Result<Option<nfs::Server>>,
}

/// Prints where the server listens, if it chose the port.
fn note_address(asked: Option<SocketAddr>, address: SocketAddr) {
    if asked.is_some_and(|asked| asked.port() == 0) {
        note!("cffs mount: listens at {address}");
    }
}

fn open_served(
    source: &Path,
    device: &Arc<impl BlockDevice + 'static>,
    journal: Option<Arc<FileDevice>>,
    watch: &Arc<Watch>,
    options: &MountOptions,
) -> anyhow::Result<Arc<Volume>> {
    let watched = WatchedDevice(Arc::clone(device), Arc::clone(watch));
    let open = OpenOptions { waiter: Arc::new(LeaveSeat), ..options.open.clone() };
    image::open_served_volume(source, watched, journal, open)
}

fn fuse_options(
    source: &Path,
    device: Option<Arc<FileDevice>>,
    journal: Option<Arc<FileDevice>>,
    watch: Arc<Watch>,
    options: &MountOptions,
) -> fuse::Options {
    fuse::Options {
        source: source.to_owned(),
        read_only: options.open.read_only,
        allow_other: options.allow_other,
        suid: options.suid(),
        dev: options.dev(),
        exec: options.flags.exec.unwrap_or(true),
        no_symlink_follow: options.flags.symlink_follow == Some(false),
        program: std::env::current_exe().map_err(|error| error.to_string()),
        device,
        journal,
        block_device: options.block_device,
        atime: options.open.atime,
        fixed: options.kept(),
        transport: options.transport,
        watch,
        regroup_after: options.regroup_after,
        cache_bytes: options.open.cache_bytes,
        caches: KernelCaches::default(),
        ttl: fuse::TTL_ALONE,
        follow: None,
    }
}

/// Enables FUSE over io_uring, which is off by default in the kernel; only for root. This applies to all
/// later mounts.
fn switch_rings_on(options: &MountOptions) {
    if options.transport == TransportChoice::Dev || !rustix::process::geteuid().is_root() {
        return;
    }
    match fuse::switch_rings_on() {
        Ok(true) => note!("cffs mount: enabled FUSE over io_uring (enable_uring)"),
        Ok(false) => {}
        Err(error) => tracing::info!(%error, "FUSE over io_uring stays disabled"),
    }
}

/// Why the kernel or fusermount3 did not mount, with advice where it is known to help.
fn no_mount(directory: &Path, error: &io::Error) -> anyhow::Error {
    let is_root = rustix::process::geteuid().is_root();
    let hint = if !Path::new("/dev/fuse").exists() {
        "; /dev/fuse does not exist: load the kernel module with `modprobe fuse`"
    } else if !is_root && error.kind() == io::ErrorKind::NotFound {
        "; ordinary users mount by fusermount3: install the package fuse3"
    } else {
        ""
    };
    anyhow!("cannot mount on {}: {error}{hint}", directory.display())
}

/// The first signal detaches the mount, and the server ends when the last file is closed. The second signal
/// ends the server at once.
fn stop_on_signals(stopper: Arc<Mutex<Stopper>>) -> io::Result<()> {
    let was_stopped = AtomicBool::new(false);
    at_signals(move || {
        let stopper = stopper.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let is_second = was_stopped.swap(true, Ordering::Relaxed);
        match if is_second { stopper.abort() } else { stopper.stop() } {
            Ok(()) => tracing::info!("ending after a signal"),
            Err(error) => tracing::error!(%error, "cannot unmount"),
        }
    })
}
