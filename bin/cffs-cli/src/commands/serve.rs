//! `cffs serve`: serves a volume by NFS, without a mount.

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, mpsc};

use anyhow::{Context, bail};
use cffs::device::file::{Access, FileDevice, OpenError, User};
use cffs::vfs::Volume;
use cffs_serve::nfs::{BindError, Export, ServeError, Server};
use cffs_serve::served::control::{self, AskError, Question, Request};
use cffs_serve::served::shutdown::{Heard, ShutdownListener};
use cffs_serve::served::{Identity, Served};
use cffs_serve::shared::{self, NoObserver, Observer};
use cffs_serve::{socket, stopped, unmounted};
use cffs_web::Page;
use clap::{ArgGroup, Args};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::CapabilitySet;

use crate::background;
use crate::ending::{self, Waiting};
use crate::interrupt::at_signals;
use crate::mount_options::{self, MountOptions};
use crate::names::OnMount;
use crate::output::{self, note};
use crate::stored::{self, Stored};
use crate::web::{WebOptions, parse_address};
use crate::{image, mounts, names, privileges, service_manager, udev};

const EXPORT_OPTIONS: &str = "\
Options of --export, after the path and a colon, comma-separated; as in exports(5):
  ro, rw                 read-only or read-write (rw)
  root_squash, no_root_squash, all_squash
                         users whose requests are made as the anonymous user: root, none,
                         or all (root_squash)
  anonuid=N, anongid=N   the anonymous user and group (65534)
  secure, insecure       whether clients must call from a port below 1024 (secure)
  ADDRESS[/BITS]         clients with access; several may be given (only this machine)
";

const EXAMPLES: &str = "\
Examples:
  cffs serve --nfs 127.0.0.1:2049 tree.cffs
  mount -t nfs -o vers=3,proto=tcp,port=2049,mountport=2049,nolock 127.0.0.1:/ /mnt
  cffs serve --nfs 192.0.2.1:2049 --export /srv:ro,192.0.2.0/24 --export /home:192.0.2.7 tree.cffs
  cffs stats tree.cffs     its costs so far; sync, scrub and trace record also take the image
  cffs serve --export-add /srv:ro tree.cffs     while it is served; also --export-remove /srv
  cffs serve --web 127.0.0.1:8080 tree.cffs
  cffs serve --nfs 192.0.2.1:2049 --export /:192.0.2.0/24 s3://bucket/tree
                           many machines write a volume in an object store through this one
  cffs serve --stop tree.cffs";

/// Serve a volume to NFS clients, or a page about it, without a mount
///
/// Returns when clients can be served, and serves them in the background until it is stopped. The protocol is
/// NFS version 3 over TCP, with MOUNT on the same port; no portmapper is needed. Changes are durable when
/// they are answered, except writes that a client has not committed; handles stay valid when the server is
/// restarted. A volume that was not left clean is recovered first.
///
/// As with any NFS server of this version, clients are trusted to name their users. Therefore only this
/// machine has access unless an export names addresses, and only from ports below 1024 unless the export says
/// insecure. Locks between clients are not supported: they mount with nolock.
///
/// Only the server writes a volume in an object store; all clients write through it. When the server ends, it
/// sends everything to the store, and releases the volume.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXPORT_OPTIONS}\n{}\n{EXAMPLES}", mount_options::help_of_serve()),
    group(ArgGroup::new("what").required(true).multiple(true)
        .args(["nfs", "web", "stop", "exports", "export_add", "export_remove"])))]
pub struct Serve {
    /// The address and port to listen on.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_address)]
    pub nfs: Option<SocketAddr>,
    /// A directory of the volume, and its clients and options; see below. By default / for this machine.
    #[arg(long, value_name = "PATH[:OPTIONS]", requires = "nfs")]
    pub export: Vec<Export>,
    /// Options for the volume, comma-separated; see below.
    #[arg(short, value_name = "OPTIONS")]
    pub options: Vec<OsString>,
    /// Cache data read from an object store in this directory of a local disk, as cffs mount does.
    #[arg(long, value_name = "DIR=SIZE")]
    pub cache: Option<OsString>,
    /// For a volume in an object store, make changes durable in this directory of a local disk, and send them
    /// to the store in order, as cffs mount does.
    #[arg(long, value_name = "DIR")]
    pub staging: Option<PathBuf>,
    /// The page.
    #[command(flatten)]
    pub web: WebOptions,
    /// Stay in the foreground and log to standard error.
    #[arg(short, long)]
    pub foreground: bool,
    /// Stop the server of this volume, and return when its image is fully written and closed.
    #[arg(long, conflicts_with_all = ["nfs", "web", "export", "foreground", "cache", "staging"])]
    pub stop: bool,
    /// Print what the server of this volume exports, and its clients.
    #[arg(long, conflicts_with_all = ["nfs", "web", "export", "foreground", "stop"])]
    pub exports: bool,
    /// Make the server of this volume export a directory; replaces an export of the same path. This lasts
    /// until the server ends: to make it permanent, start the server with --export.
    #[arg(long, value_name = "PATH[:OPTIONS]",
          conflicts_with_all = ["nfs", "web", "export", "foreground", "stop"])]
    pub export_add: Vec<Export>,
    /// Make the server stop exporting a path: handles that clients have through it become stale. If the next
    /// start names the path with --export, it is exported again.
    #[arg(long, value_name = "PATH",
          conflicts_with_all = ["nfs", "web", "export", "foreground", "stop"])]
    pub export_remove: Vec<String>,
    /// The image or the device, or the URL of a volume in an object store or of a version of it, URL@NAME; a
    /// block device also by LABEL= or UUID=. For --exports, --export-add and --export-remove also the
    /// directory of a mount.
    #[arg(value_name = "IMAGE|DEVICE|URL")]
    pub source: PathBuf,
}

impl Serve {
    /// Serves the volume, by default in the background; or stops a server.
    pub fn run(mut self) -> anyhow::Result<ExitCode> {
        self.source = udev::device_of_tag(&self.source)?;
        mounts::passable(&self.source)?;
        if self.stop {
            return self.stop_server();
        }
        if self.exports || !self.export_add.is_empty() || !self.export_remove.is_empty() {
            return self.change_exports();
        }
        let options = self.mount_options()?;
        match background::enter(self.foreground, &self.source, options.logfile.as_deref())? {
            ControlFlow::Continue(in_background) => self.serve(&options, in_background),
            ControlFlow::Break(code) => Ok(code),
        }
    }

    /// The options for the volume.
    fn mount_options(&self) -> anyhow::Result<MountOptions> {
        let mut options = MountOptions::for_user(rustix::process::geteuid().is_root());
        options.apply(&self.options, false)?;
        options.settle_for(&self.source, self.cache.as_deref(), self.staging.as_deref())?;
        if options.follow.is_some() {
            bail!("a volume that is followed cannot be served by NFS: leave out 'follow'");
        }
        Ok(options)
    }

    /// Opens the volume on an image or a device.
    fn open_image(&self, source: &Path, options: &MountOptions) -> anyhow::Result<Arc<Volume>> {
        let access = if options.open.read_only { Access::ReadOnly } else { Access::ReadWrite };
        let device = image::open_device(source, access)?;
        let named = options.journal_device.as_deref();
        let journal = image::open_journal(source, &device, access, named)?.map(Arc::new);
        image::open_served_volume(source, device, journal, options.open.clone())
    }

    fn serve(self, options: &MountOptions, in_background: bool) -> anyhow::Result<ExitCode> {
        let location = image::location(&self.source)?;
        let missing = |source| OpenError::Io { path: self.source.clone(), source };
        let source = match &location {
            Some(_) => self.source.clone(),
            None => self.source.canonicalize().map_err(missing)?,
        };
        let page = self.web.bind(&source, None)?;
        let stored = location.map(|location| Stored::new(&location, options)).transpose()?;
        let (volume, counter) = match &stored {
            Some(stored) => {
                let device = stored.open(&source, options)?;
                let counter = device.counter();
                let volume =
                    image::open_served_volume(&source, device, None, options.open.clone())?;
                (volume, Some(counter))
            }
            None => (self.open_image(&source, options)?, None),
        };
        let exports = self.export;
        let bound = self.nfs.map(|at| bind(&volume, at, exports, Arc::new(NoObserver))).transpose();
        let server = match bound {
            Ok(server) => server,
            Err(error) => {
                volume.close()?;
                return Err(error);
            }
        };
        if let Err(error) = privileges::give_up_all_but(CapabilitySet::empty()) {
            tracing::warn!("{error:#}");
        }
        let address = server.as_ref().map(Server::address).transpose()?;
        let (stop, stopped) = mpsc::channel();
        let stopper = server.as_ref().map(Server::stopper);
        // Ends the server at the first signal, after the calls in progress. A second signal has no effect:
        // closing takes only as long as the device needs.
        at_signals(move || {
            tracing::info!("ending after a signal");
            if let Some(stopper) = &stopper {
                stopper.stop();
            }
            // Fails if an NFS server runs, which does not use the channel, or after the end.
            let _ = stop.send(());
        })?;
        let identity = identity(&source, options, address);
        let exports = server.as_ref().map(Server::exports);
        let served = Arc::new(Served::unmounted(Arc::clone(&volume), identity, exports));
        if let Some(counter) = counter {
            served.set_store(stored::requests(counter));
        }
        if let Some(staged) = stored.as_ref().and_then(Stored::staged) {
            served.set_staging(staged);
        }
        listen(&served, &source, stored.is_some());
        let page = page.start(Arc::clone(&served))?;
        if let Some(address) = address {
            tracing::info!(image = %source.display(), %address, "serves NFS");
            if !in_background || self.nfs.is_some_and(|asked| asked.port() == 0) {
                note!("cffs serve: listens at {address}");
            }
        }
        if in_background {
            background::ready(None)?;
        } else {
            service_manager::ready();
        }
        run(&served, &source, page, || match server {
            Some(server) => server.serve(),
            None => {
                // Also ends when the sender is dropped.
                let _ = stopped.recv();
                Ok(())
            }
        })
    }

    /// Removes exports, adds others, and prints all exports if requested.
    fn change_exports(mut self) -> anyhow::Result<ExitCode> {
        let named = self.source.display().to_string();
        let place = || named.clone();
        let mounted = match names::mounted(&self.source)? {
            Some(mounted) => Some(mounted.path),
            None => image::directory_elsewhere(&self.source)?,
        };
        let is_mounted = mounted.is_some();
        self.source = mounted.unwrap_or(self.source);
        let remove = self.export_remove.iter();
        let remove = remove.map(|path| (path, Request::RemoveExport(path.clone())));
        let add = self.export_add.iter();
        let add = add.map(|export| (&export.path, Request::AddExport(export.to_string())));
        for (path, request) in remove.chain(add) {
            let asked = match is_mounted {
                true => control::request(&self.source, request),
                false => control::request_of_server(&self.source, request),
            };
            if let Err(error) = asked {
                return Err(self.refusal(path, error)).with_context(place);
            }
        }
        if self.exports {
            let mut shown = control::ask(&self.source, Question::Exports).with_context(place)?;
            let Some(fields) = shown.as_object_mut() else {
                bail!(
                    "{}: not served by NFS; exports need a server that was started with --nfs",
                    place()
                );
            };
            fields.remove("refusal");
            output::key_values(&shown)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The server's reason for refusing a change: a request on a mount returns only an error number.
    fn refusal(&self, path: &str, error: AskError) -> anyhow::Error {
        let said = control::ask(&self.source, Question::Exports).ok();
        let said = said.and_then(|shown| shown["refusal"].as_str().map(str::to_owned));
        // If this request did not reach the server, the last refusal belongs to another request.
        match said.filter(|why| why.starts_with(path.trim_end_matches('/'))) {
            Some(why) => anyhow::Error::msg(why),
            None => error.into(),
        }
    }

    /// The process that serves the volume without a mount, and a name for it.
    fn server(&self) -> anyhow::Result<(u32, String)> {
        let path = self.source.display();
        if socket::is_url(&self.source) {
            let Some(process) = socket::server_of_url(&self.source) else {
                bail!("{path} is not being served on this machine");
            };
            return Ok((process, format!("process {process}")));
        }
        match FileDevice::open(&self.source, Access::ReadWrite) {
            Ok(_) => bail!("{path} is not being served"),
            Err(OpenError::InUse {
                by: User::Writer(Some(process)) | User::Reader(Some(process)),
                ..
            }) if !process.is_elsewhere() => Ok((process.pid, process.to_string())),
            Err(error) => {
                image::not_mounted_elsewhere(&self.source)?;
                Err(error).with_context(|| "finding the server")
            }
        }
    }

    fn stop_server(&self) -> anyhow::Result<ExitCode> {
        let path = self.source.display();
        if let Some(OnMount { mounted, .. }) = names::mounted(&self.source)? {
            let directory = mounted.directory.display();
            bail!("{path} is mounted on {directory}; to end its server: cffs umount {directory}");
        }
        let (number, process) = self.server()?;
        let arguments = fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
        if !arguments.split(|byte| *byte == 0).any(|argument| argument == b"serve") {
            bail!("{path} is in use by {process}, which is not a server of this kind");
        }
        if stopped::is_stopped(number) {
            bail!("{path}: {}", stopped::explain(number));
        }
        let pid = i32::try_from(number).ok().and_then(Pid::from_raw);
        let pid = pid.context("an invalid process number")?;
        let listener = ShutdownListener::ask_unmounted(&self.source, number);
        kill_process(pid, Signal::TERM).with_context(|| format!("stopping {process}"))?;
        match listener {
            Ok(mut listener) => {
                let waiting = Waiting::new("serve", &self.source);
                ending::last_report(waiting, &mut listener, Heard::Nothing, |_| Ok(()))?;
            }
            Err(error) if socket::is_url(&self.source) => bail!(
                "{process} was told to end, but cannot be queried ({error}); cffs ls {path} shows whether it \
                 has released the volume"
            ),
            Err(error) => {
                note!(
                    "cffs serve: {process} cannot be queried ({error}); reading its image instead"
                );
                ending::last_state("serve", &self.source)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A server at an address, for these exports of the volume, or for all of it.
pub(super) fn bind(
    volume: &Arc<Volume>,
    address: SocketAddr,
    mut exports: Vec<Export>,
    observer: Arc<dyn Observer>,
) -> anyhow::Result<Server> {
    if exports.is_empty() {
        exports.push(Export::default());
    }
    Server::bind(Arc::clone(volume), address, exports, observer).map_err(|error| {
        let what = match &error {
            BindError::Volume(_) => "exporting (--export)",
            BindError::Listen(..) => "serving by NFS",
        };
        anyhow::Error::new(error).context(what)
    })
}

/// Answers commands. If that is not possible, the volume is served nevertheless.
fn listen(served: &Arc<Served>, source: &Path, is_in_store: bool) {
    let listening = unmounted::listen(served).and_then(|()| match is_in_store {
        true => socket::listen_for(source),
        false => Ok(()),
    });
    if let Err(error) = listening {
        tracing::warn!(%error, "commands will not find this server");
    }
}

/// The server's identity, for commands.
fn identity(source: &Path, options: &MountOptions, address: Option<SocketAddr>) -> Identity {
    Identity {
        image: Some(source.to_string_lossy().into_owned()),
        directory: None,
        pid: std::process::id(),
        uid: rustix::process::geteuid().as_raw(),
        read_only: options.open.read_only,
        opened_read_only: options.open.read_only,
        fixed_options: options.kept(),
        cache_bytes: options.open.cache_bytes,
        transport: match address {
            Some(address) => format!("NFS at {address}"),
            None => String::from("only the page (--web), without NFS"),
        },
        mount_type: String::from("not mounted"),
        started: Identity::now(),
        restart_failure: None,
        nfs_failure: None,
        page_failure: None,
    }
}

/// Serves until it is stopped, and closes the volume unless it can no longer be trusted in memory.
fn run(
    served: &Served,
    source: &Path,
    page: Option<Page>,
    serve: impl FnOnce() -> Result<(), ServeError>,
) -> anyhow::Result<ExitCode> {
    let source = source.display();
    let ended = shared::keep(&served.volume(), serve);
    if let Err(error @ ServeError::Panicked) = ended {
        let failure = format!(
            "{error}; the volume was not closed; the next opening recovers it, or: cffs fsck -p"
        );
        unmounted::report_failure(served, &failure);
        bail!("{failure} {source}");
    }
    drop(page);
    if let Err(failure) = unmounted::close(served) {
        bail!("{failure} {source}");
    }
    ended.context("serving by NFS")?;
    tracing::info!("closed");
    Ok(ExitCode::SUCCESS)
}
