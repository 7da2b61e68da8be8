//! Opens an image or a device that other programs may be using, or a volume in a store.

use std::cmp::Ordering;
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use cffs::clock::SystemClock;
use cffs::device::file::{Access, FileDevice, OpenError, Process, User};
use cffs::device::{BlockDevice, Excluded, PairedDevice};
use cffs::error::{Corruption, Error};
use cffs::files::Files;
use cffs::format::Superblock;
use cffs::format::superblock::SUPERBLOCK_BYTES;
use cffs::host::SystemHost;
use cffs::journal;
use cffs::trace::{RecordedDevice, Recorder};
use cffs::vfs::types::OpenOptions;
use cffs::vfs::{Volume, mark, read_superblock};
use cffs_object::{COMMAND_PATIENCE, Location, LogDevice};
use cffs_serve::served::control::{self, AskError};
use rustix::thread::CapabilitySet;

use crate::hidden_server::{self, HiddenServer};
use crate::keys;
use crate::mounts::{self, Mounted};
use crate::output::note;
use crate::successor;

/// How long a command waits for a program that writes the image: a server that is closing it, or another
/// command.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long it waits before printing a note: a server of a mount of type fuse completes the image after
/// umount(8) has returned.
const QUIET: Duration = Duration::from_secs(3);

/// Opens an image or a device, exclusively, or shared with other readers for reading.
///
/// If it is mounted, in any mount namespace, this fails at once; the error says where. If it is open for
/// writing otherwise, a server is about to close it or another command is running: this waits, with a note.
/// It does not wait long for readers, since any user who may read the image can be one.
pub fn open_device(path: &Path, access: Access) -> anyhow::Result<FileDevice> {
    if Location::url_of(path).is_some() {
        bail!(
            "{path}: a volume in an object store must be mounted for this: cffs mount {path} DIR, then name \
             DIR",
            path = path.display()
        );
    }
    if let Some(mounted) = mounts::holding(path)? {
        let (source, directory) = (mounted.source.display(), mounted.directory.display());
        bail!(
            "{} is a directory of {source}, which is mounted on {directory}; this command needs a volume \
             that is not mounted: run cffs umount {directory}, then name {source}",
            path.display()
        );
    }
    if path.is_dir() {
        bail!(
            "{}: {}; name a directory of a mounted volume, an image, a device, or a URL",
            path.display(),
            AskError::NotMounted
        );
    }
    let user = match FileDevice::open(path, access) {
        Err(OpenError::InUse { by, .. }) => by,
        outcome => return Ok(outcome?),
    };
    let name = match process(&user).map_or(Ordering::Equal, |process| process.begins) {
        Ordering::Equal => path.display().to_string(),
        Ordering::Greater => format!("a part of {}", path.display()),
        Ordering::Less => format!("a device of which {} is a part", path.display()),
    };
    if let Some(mounted) = mounts::of_source(path).or_else(|| served_by(&user)) {
        bail!(
            "{name} is mounted on {}{}; unmount it first: cffs umount {}",
            mounted.directory.display(),
            process(&user)
                .map(|process| format!(" by process {}", process.pid))
                .unwrap_or_default(),
            mounted.directory.display(),
        );
    }
    if let Some(where_mounted) = mounted_elsewhere(&name, &user) {
        bail!("{where_mounted}");
    }
    if let Ok(server) = control::identity_of_server(path) {
        let (path, pid, how) = (path.display(), server.pid, server.transport);
        bail!("{path} is served by process {pid} ({how}); stop it first: cffs serve --stop {path}");
    }
    match FileDevice::open_waiting(path, access, QUIET) {
        Err(OpenError::InUse { .. }) => {}
        outcome => return Ok(outcome?),
    }
    // A server that is closing the volume has ended by now, unless it has much to write.
    if let Some(server) = hidden_server(path, &user) {
        bail!("{server}");
    }
    note!("cffs: {} is {user}; waiting for it", path.display());
    match FileDevice::open_waiting(path, access, PATIENCE) {
        Err(OpenError::InUse { by, .. }) => bail!("{} is still {by}", path.display()),
        outcome => Ok(outcome?),
    }
}

/// Opens an image or a device that need not contain a volume, in the same way.
pub fn open_any(path: &Path, access: Access) -> anyhow::Result<FileDevice> {
    if path.is_dir() && mounts::holding(path)?.is_none() {
        bail!("{} is a directory; name a file or a device", path.display());
    }
    open_device(path, access)
}

/// The place in a store, if the target is a URL and not a path, with the key of its volume.
pub fn location(target: &Path) -> anyhow::Result<Option<Location>> {
    let Some(place) = place(target)? else { return Ok(None) };
    Ok(Some(place.with_secret(keys::secret()?)))
}

/// The same place, where no volume is opened yet.
pub fn place(target: &Path) -> anyhow::Result<Option<Location>> {
    let Some(url) = Location::url_of(target) else { return Ok(None) };
    // The path may lead through the mount that a successor is to serve.
    if let Some(directory) = target.as_os_str().as_bytes().strip_prefix(b"file://")
        && !successor::is_one()
    {
        mounts::passable(Path::new(OsStr::from_bytes(directory)))?;
    }
    Ok(Some(Location::parse(&url)?))
}

/// Whether the target is a version of a volume in a store, which never changes.
pub fn is_version(target: &Path) -> bool {
    Location::url_of(target)
        .and_then(|url| Location::parse(&url).ok())
        .is_some_and(|location| location.version().is_some())
}

/// Opens an image, a device, or a volume in a store; `take_over` takes the latter from its last writer. Fails
/// if a key was named that it cannot have.
pub fn open(
    target: &Path,
    access: Access,
    take_over: bool,
) -> anyhow::Result<Arc<dyn BlockDevice>> {
    if Location::url_of(target).is_none() {
        keys::check_none_named().with_context(|| target.display().to_string())?;
    }
    open_with_journal(target, access, take_over, None)
}

/// The options with which a command writes a volume in a store: it does not wait for the end of an outage.
pub fn command_options(take_over: bool) -> cffs_object::OpenOptions {
    cffs_object::OpenOptions {
        take_over,
        patience: Some(COMMAND_PATIENCE),
        note: Some(|what| note!("cffs: {what}")),
        ..Default::default()
    }
}

/// The same with a named journal device, for volumes with a separate journal.
pub fn open_with_journal(
    target: &Path,
    access: Access,
    take_over: bool,
    journal_device: Option<&Path>,
) -> anyhow::Result<Arc<dyn BlockDevice>> {
    let Some(location) = location(target)? else {
        let device = Arc::new(open_device(target, access)?);
        return with_its_journal(target, device, access, journal_device);
    };
    let read_only = access == Access::ReadOnly;
    let options = cffs_object::OpenOptions { read_only, ..command_options(take_over) };
    Ok(open_store(target, &location, options)?)
}

/// Opens a volume in a store.
pub fn open_store(
    target: &Path,
    location: &Location,
    options: cffs_object::OpenOptions,
) -> anyhow::Result<Arc<LogDevice>> {
    let device = LogDevice::open(location, options);
    Ok(Arc::new(device.with_context(|| target.display().to_string())?))
}

/// Pairs the volume's device with that of its journal, unless it is paired already.
fn with_its_journal(
    path: &Path,
    device: Arc<dyn BlockDevice>,
    access: Access,
    named: Option<&Path>,
) -> anyhow::Result<Arc<dyn BlockDevice>> {
    if device.journal_device().is_some() {
        return Ok(device);
    }
    let journal = open_journal(path, &*device, access, named)?;
    Ok(paired(device, journal.map(Arc::new)))
}

/// Opens the device of the journal, if that is separate and can be found. If it is missing, the code that
/// needs it reports that.
pub fn open_journal(
    path: &Path,
    device: &dyn BlockDevice,
    access: Access,
    named: Option<&Path>,
) -> anyhow::Result<Option<FileDevice>> {
    let superblock = match read_superblock(device) {
        Ok(superblock) if journal::is_external(&superblock) => superblock,
        _ => return Ok(None),
    };
    let found = match named {
        Some(named) => Some(named.to_owned()),
        None => cffs::files::find_journal(path, &superblock, &mounts::can_be_read),
    };
    let open = |found: PathBuf| {
        open_any(&found, access)
            .with_context(|| format!("the device of the journal, {}", found.display()))
    };
    found.map(open).transpose()
}

fn paired(device: Arc<dyn BlockDevice>, journal: Option<Arc<FileDevice>>) -> Arc<dyn BlockDevice> {
    match journal {
        Some(journal) => Arc::new(PairedDevice::new(device, journal)),
        None => device,
    }
}

fn process(user: &User) -> Option<&Process> {
    match user {
        User::Writer(process) | User::Reader(process) => process.as_ref(),
        User::Claim(_) => None,
    }
}

/// Whether the program has the volume in another part of the image open.
fn is_elsewhere(user: &User) -> bool {
    process(user).is_some_and(Process::is_elsewhere)
}

/// The mount that a process serves, possibly from an image with another path.
fn served_by(user: &User) -> Option<Mounted> {
    mount_of_server(process(user)?, mounts::all().ok()?)
}

/// The same in the mount namespace of that process.
fn mount_elsewhere(user: &User) -> Option<(&Process, Mounted)> {
    let process = process(user)?;
    Some((process, mount_of_server(process, mounts::of_process(process.pid))?))
}

/// Says where the volume is mounted, and how to unmount it, if that is in another mount namespace.
fn mounted_elsewhere(name: &str, user: &User) -> Option<String> {
    let (process, mounted) = mount_elsewhere(user)?;
    // The command needs the /proc of its process namespace. A user can enter a mount namespace only together
    // with the user namespace that it belongs to. To return to the process namespace of this command, it
    // needs a right over that.
    let is_root = rustix::process::geteuid().is_root();
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let same_processes = namespace("self") == namespace(&process.pid.to_string());
    let enter = match (is_root, same_processes) {
        (true, _) => "nsenter -m -p",
        (false, true) => "nsenter -U --preserve-credentials -m",
        (false, false) => "nsenter -U --preserve-credentials -m -p",
    };
    Some(format!(
        "{name} is {user}, which has it mounted on {directory} in its mount namespace; unmount it there \
         first: {enter} -t {pid} cffs umount {directory}",
        directory = mounted.inside(process.pid).display(),
        pid = process.pid,
    ))
}

fn mount_of_server(process: &Process, mounts: Vec<Mounted>) -> Option<Mounted> {
    if !mounts::may_serve(process.pid) {
        return None;
    }
    let (served, pid) = (mounts::served_by(process.pid), mounts::pid_inside(process.pid));
    let serves = |mounted: &Mounted| match served.is_empty() {
        false => served.contains(&mounted.device),
        // The kernel does not show the server to this user. A mount with another server is not asked: it may
        // not answer.
        true if mounts::process_of(mounted).is_some() => false,
        true => control::identity(&mounted.directory).is_ok_and(|identity| identity.pid == pid),
    };
    mounts.into_iter().find(serves)
}

/// The server that has an image open, if the system does not show it to this user.
fn hidden_server(path: &Path, user: &User) -> Option<HiddenServer> {
    matches!(user, User::Writer(None)).then(|| hidden_server::find(path)).flatten()
}

/// The program that has the volume on an image or a device open, if that excludes others.
fn user_of(path: &Path) -> anyhow::Result<Option<User>> {
    match FileDevice::open(path, Access::ReadOnly) {
        Err(OpenError::InUse { by, .. }) if !is_elsewhere(&by) => Ok(Some(by)),
        Err(OpenError::Io { source, .. }) if source.kind() == ErrorKind::PermissionDenied => {
            bail!(
                "{}: finding its server takes permission to read it; run this as its owner or as root",
                path.display()
            )
        }
        _ => Ok(None),
    }
}

/// A path for queries to the volume on an image, if it is mounted in another mount namespace.
///
/// # Errors
///
/// It has a server of another user, which answers no queries of this one.
pub fn directory_elsewhere(path: &Path) -> anyhow::Result<Option<PathBuf>> {
    let Some(user) = user_of(path)? else { return Ok(None) };
    match hidden_server(path, &user) {
        Some(server) => bail!("{server}"),
        None => Ok(mount_elsewhere(&user).map(|(_, mounted)| mounted.directory)),
    }
}

/// Fails if the volume on an image is mounted in another mount namespace, or has a server of another user;
/// the error says where.
pub fn not_mounted_elsewhere(path: &Path) -> anyhow::Result<()> {
    let Some(user) = user_of(path)? else { return Ok(()) };
    let elsewhere = mounted_elsewhere(&path.display().to_string(), &user);
    let elsewhere =
        elsewhere.or_else(|| hidden_server(path, &user).map(|server| server.to_string()));
    elsewhere.map_or(Ok(()), |where_mounted| Err(anyhow!(where_mounted)))
}

pub fn open_volume(
    path: &Path,
    device: impl BlockDevice + 'static,
    options: OpenOptions,
) -> anyhow::Result<Arc<Volume>> {
    let access = if options.read_only { Access::ReadOnly } else { Access::ReadWrite };
    open_paired(path, with_its_journal(path, Arc::new(device), access, None)?, options)
}

fn open_paired(
    path: &Path,
    device: Arc<dyn BlockDevice>,
    mut options: OpenOptions,
) -> anyhow::Result<Arc<Volume>> {
    if !options.read_only || !is_version(path) {
        options.host.get_or_insert_with(|| Arc::new(SystemHost));
    }
    let read_only = options.read_only;
    let volume = cffs::open(device, Arc::new(SystemClock), options)
        .map_err(|error| no_volume(path, error))?;
    if read_only {
        warn_of_writer(path, &volume.writer().superblock.get());
    }
    Ok(Arc::new(volume))
}

/// The error of a path at which no volume was opened. A file without a volume on a mounted volume was
/// probably named as a part of that.
fn no_volume(path: &Path, error: Error) -> anyhow::Error {
    let is_short = || fs::metadata(path).is_ok_and(|file| file.len() < SUPERBLOCK_BYTES as u64);
    let is_empty = matches!(error, Error::Corruption(Corruption::SuperblockMagic { .. }));
    let shown = path.display();
    if let Some(mounted) = mounts::holding_file(path)
        && (is_empty || is_short())
    {
        let directory = mounted.directory.display();
        return anyhow!(
            "{shown} is a file on the volume that is mounted on {directory}, and contains no volume; \
             name a directory of the mount"
        );
    }
    anyhow::Error::new(error).context(shown.to_string())
}

/// The same for a volume that will be served: its journal is open already, and device requests can be
/// recorded with their causes.
pub fn open_served_volume(
    path: &Path,
    device: impl BlockDevice + 'static,
    journal: Option<Arc<FileDevice>>,
    options: OpenOptions,
) -> anyhow::Result<Arc<Volume>> {
    let recorder = Arc::new(Recorder::default());
    let recorded = Arc::new(RecordedDevice::new(device, Arc::clone(&recorder)));
    open_paired(path, paired(recorded, journal), OpenOptions { recorder, ..options })
}

/// Warns that the volume may change while it is read: by another host, which locks do not exclude, or because
/// this is a copy of a volume in use. In a store, a reader sees one state, which never changes.
pub fn warn_of_writer(path: &Path, superblock: &Superblock) {
    if Location::url_of(path).is_none()
        && let Some(user) = mark::user(superblock, &SystemHost, Excluded::OfHost)
    {
        note!("cffs: {}: {user}; reads may be inconsistent", path.display());
    }
}

/// Opens the files of an image, or of a volume in a store.
pub fn open_files(path: &Path, options: OpenOptions) -> anyhow::Result<Files> {
    let access = if options.read_only { Access::ReadOnly } else { Access::ReadWrite };
    let device = open(path, access, options.take_over)?;
    Ok(Files::new(open_volume(path, device, options)?))
}

/// Whether this process may give files to other users, and set their modes then: root usually may, but not in
/// a container without these capabilities.
pub fn may_give_files_away() -> bool {
    let needed = CapabilitySet::CHOWN | CapabilitySet::FOWNER;
    rustix::thread::capabilities(None).is_ok_and(|held| held.effective.contains(needed))
}

pub fn read_only() -> OpenOptions {
    OpenOptions { read_only: true, ..OpenOptions::default() }
}
