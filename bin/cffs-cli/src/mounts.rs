//! The mounted C-FFS volumes.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::linux::fs::MetadataExt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use cffs_object::Location;
use mount_list::{Mount, options};
use rustix::fs::{major, minor};
use rustix::process::geteuid;

mod points;
mod server;
#[cfg(test)]
mod tests;
mod walk;

pub use points::{at_or_below, below};
pub use server::{answers, directory_served_by, may_serve, process_of, served_by, set_service};
use walk::walk;

/// A mounted C-FFS volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// The number of the mount, which another one can get when this one has ended.
    pub id: u64,
    /// The image or device; also the image if a loop device for it is mounted.
    pub source: PathBuf,
    /// The source shown by the kernel: the image, a block device, or the loop device.
    pub shown_source: PathBuf,
    /// The mount point.
    pub directory: PathBuf,
    /// The device number of its files, shared by all mounts of the volume.
    pub device: (u32, u32),
    /// The options of this mount, such as `nosuid`.
    pub options: Vec<String>,
    /// Whether the volume is read-only on all mounts.
    pub is_read_only: bool,
    /// The user that mounted it, if the kernel shows that.
    pub user: Option<u32>,
}

/// The file system types of C-FFS mounts: with and without a block device.
const FILE_SYSTEM_TYPES: [&[u8]; 2] = [b"fuseblk.cffs", b"fuse.cffs"];

/// SIGKILL in a set of signals.
const KILLED: u64 = 1 << (9 - 1);

/// The major number of loop devices.
const LOOP_MAJOR: u32 = 7;

impl Mounted {
    /// Whether root or this user has made the mount.
    fn is_trusted(&self) -> bool {
        self.user.is_none_or(|user| user == 0 || user == geteuid().as_raw())
    }

    /// Whether a file with these attributes is on the mount.
    pub fn holds(&self, data: &fs::Metadata) -> bool {
        self.device == (major(data.st_dev()), minor(data.st_dev()))
    }

    /// The mount, if its volume is one of C-FFS.
    fn of(mount: Mount<'_>) -> Option<Mounted> {
        if !FILE_SYSTEM_TYPES.contains(&mount.kind) {
            return None;
        }
        let texts = |list| options(list).map(|option| String::from_utf8_lossy(option).into_owned());
        let user = texts(mount.shared_options)
            .find_map(|option| option.strip_prefix("user_id=")?.parse().ok());
        Some(Mounted {
            id: mount.id,
            is_read_only: mount.is_read_only(),
            options: texts(mount.options).collect(),
            user,
            source: mount.source.clone(),
            shown_source: mount.source,
            directory: mount.point,
            device: mount.device,
        })
    }

    /// Whether the loop device has been attached to another image since it was mounted.
    pub fn has_another_image(&self) -> bool {
        let image = backing_file(self.device, &|path| passable(path).is_ok());
        image.is_some_and(|image| image != self.source)
    }

    /// The directory as seen from the mount namespace of a process with this mount.
    pub fn inside(&self, pid: u32) -> PathBuf {
        let root = Path::new("/proc").join(pid.to_string()).join("root");
        let below_root = self.directory.strip_prefix(root);
        below_root.map_or_else(|_| self.directory.clone(), |below| Path::new("/").join(below))
    }

    /// Whether this mount has an option.
    pub fn has(&self, option: &str) -> bool {
        self.options.iter().any(|has| has == option)
    }
}

/// The mounted C-FFS volumes, in the order of mounting.
pub fn all() -> anyhow::Result<Vec<Mounted>> {
    Ok(parse(&own_list()?))
}

/// The C-FFS volumes mounted in the mount namespace of a process, if the caller may see them. The directories
/// are as seen from this process.
pub fn of_process(pid: u32) -> Vec<Mounted> {
    let process = Path::new("/proc").join(pid.to_string());
    let mut found = parse(&fs::read(process.join("mountinfo")).unwrap_or_default());
    for mounted in &mut found {
        let below_root = mounted.directory.strip_prefix("/").unwrap_or(&mounted.directory);
        mounted.directory = process.join("root").join(below_root);
    }
    found
}

/// The list of mounts of this process.
fn own_list() -> anyhow::Result<Vec<u8>> {
    fs::read(mount_list::OWN).with_context(|| format!("reading {}", mount_list::OWN))
}

fn parse(list: &[u8]) -> Vec<Mounted> {
    let mut found: Vec<Mounted> = mount_list::parse(list).filter_map(Mounted::of).collect();
    let may_look = |path: &Path| walk(path, &found, &answers).is_ok();
    let image = |mounted: &Mounted| backing_file(mounted.device, &may_look);
    let images: Vec<_> = found.iter().map(image).collect();
    for (mounted, image) in found.iter_mut().zip(images) {
        mounted.source = image.unwrap_or_else(|| mounted.shown_source.clone());
    }
    found
}

/// The volume that is mounted exactly on `directory`. Does not access the volume itself, so that it also
/// works if the server has died.
///
/// # Errors
///
/// The path passes through a mount whose server is stopped.
pub fn on(directory: &Path) -> anyhow::Result<Option<Mounted>> {
    Ok(walk(directory, &all()?, &answers)?.root_of().cloned())
}

/// The mount of a volume, given any name of its device as for [`all_of_source`]. Prefers a writable mount,
/// then the latest one.
pub fn of_source(source: &Path) -> Option<Mounted> {
    all_of_source(source).into_iter().max_by_key(|mounted| !mounted.is_read_only)
}

/// The mounts of a volume, given any name of its device: an image or a link to it, a block device, a loop
/// device for the image, or a URL.
///
/// Any user can make a mount with any source, and a path can name another file than when it was mounted. So
/// the server has to have the file or device open. The URL of a bucket names a volume only together with the
/// bucket's service, which is queried from the server of a mount of that URL.
pub fn all_of_source(source: &Path) -> Vec<Mounted> {
    let all = all().unwrap_or_default();
    if let Some(url) = Location::url_of(source) {
        let bucket = (!url.starts_with("file://")).then(|| Location::parse(&url));
        let is_it = |mounted: &&Mounted| {
            let shown = Location::url_of(&mounted.shown_source).unwrap_or_default();
            without_slash(&shown) == without_slash(&url)
                && match &bucket {
                    None => mounted.is_trusted(),
                    Some(Ok(bucket)) => server::is_of_service(mounted, bucket),
                    Some(Err(_)) => false,
                }
        };
        return all.iter().filter(is_it).cloned().collect();
    }
    let Ok(named) = walk(source, &all, &answers) else { return Vec::new() };
    let wanted = things(source, &|path| passable(path).is_ok());
    // An image below a mount that the name does not pass through is another one, and that mount's server is
    // not queried about it.
    let may_ask = |mounted: &Mounted| {
        let is_passed = named.entered.iter().any(|entered| entered.device == mounted.device);
        if is_passed { Ok(()) } else { bail!("of another mount") }
    };
    let may_look = |path: &Path| walk(path, &all, &may_ask).is_ok();
    let is_it = |mounted: &&Mounted| {
        let shown = [&mounted.source, &mounted.shown_source];
        let mut shown = shown.into_iter().flat_map(|path| things(path, &may_look));
        let is_open = |thing: &Thing| match thing {
            // Its server has the image open, not the loop device.
            Thing::Device(_) if mounted.is_trusted() => true,
            thing => server::has_open(mounted, |data| thing.is(data), &may_look)
                .unwrap_or_else(|| mounted.is_trusted()),
        };
        shown.any(|thing| wanted.contains(&thing) && is_open(&thing))
    };
    all.iter().filter(is_it).cloned().collect()
}

/// A URL without the slash at its end, unless the slash keeps an `@` from beginning a version's name.
fn without_slash(url: &str) -> &str {
    let trimmed = url.trim_end_matches('/');
    let has_at = trimmed.rsplit('/').next().is_some_and(|name| name.contains('@'));
    &url[..trimmed.len() + usize::from(has_at && trimmed.len() < url.len())]
}

/// Fails for several mounts of the volume with this name, and names them.
pub fn check_one(name: &Path, mounts: &[Mounted]) -> anyhow::Result<()> {
    if mounts.len() <= 1 {
        return Ok(());
    }
    let places: Vec<_> = mounts.iter().map(|it| it.directory.display().to_string()).collect();
    bail!("{} is mounted on {}; name one of them", name.display(), places.join(" and on "))
}

/// The mount that contains a directory. A file on it may be the image of another volume.
///
/// # Errors
///
/// The path passes through a mount whose server is stopped.
pub fn holding(directory: &Path) -> anyhow::Result<Option<Mounted>> {
    let all = all().unwrap_or_default();
    let walked = walk(directory, &all, &answers)?;
    if let Some(mounted) = walked.root_of() {
        return Ok(Some(mounted.clone()));
    }
    let Ok(data) = fs::metadata(directory) else { return Ok(None) };
    let is_it = |mounted: &Mounted| data.is_dir() && mounted.holds(&data);
    Ok(all.into_iter().rev().find(is_it))
}

/// The mount on which a file is that may not exist.
pub fn holding_file(path: &Path) -> Option<Mounted> {
    let above = path.parent().filter(|above| !above.as_os_str().is_empty());
    holding(above.unwrap_or(Path::new("."))).ok().flatten()
}

/// Fails if a path passes through a mount whose server is stopped, since accessing it would block.
pub fn passable(path: &Path) -> anyhow::Result<()> {
    walk(path, &all().unwrap_or_default(), &answers).map(drop)
}

/// Whether a file or a device can be read, including the image of a loop device: no server needed for this is
/// stopped.
pub fn can_be_read(path: &Path) -> bool {
    let image = || {
        let data = fs::metadata(path).ok().filter(|data| data.file_type().is_block_device())?;
        let number = (major(data.st_rdev()), minor(data.st_rdev()));
        backing_file(number, &|path| passable(path).is_ok())
    };
    passable(path).is_ok() && image().is_none_or(|image| passable(&image).is_ok())
}

/// The identity of the file or device that a path names.
#[derive(PartialEq, Eq)]
enum Thing {
    File { device: u64, inode: u64 },
    Device(u64),
}

impl Thing {
    fn is(&self, data: &fs::Metadata) -> bool {
        match self {
            Thing::File { device, inode } => (data.st_dev(), data.st_ino()) == (*device, *inode),
            Thing::Device(number) => {
                data.file_type().is_block_device() && data.st_rdev() == *number
            }
        }
    }
}

/// The file or the block device at a path, and the image of a loop device. Empty if `may_look` forbids
/// accessing the path.
fn things(path: &Path, may_look: &dyn Fn(&Path) -> bool) -> Vec<Thing> {
    if !may_look(path) {
        return Vec::new();
    }
    let Ok(data) = fs::metadata(path) else { return Vec::new() };
    if !data.file_type().is_block_device() {
        return vec![Thing::File { device: data.st_dev(), inode: data.st_ino() }];
    }
    let number = data.st_rdev();
    let image = backing_file((major(number), minor(number)), may_look);
    let mut things = image.map(|image| things(&image, may_look)).unwrap_or_default();
    things.push(Thing::Device(number));
    things
}

/// The PID of a process in its own PID namespace; the PID in this one if that is unknown.
pub fn pid_inside(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let inside = numbers.and_then(|numbers| numbers.split_ascii_whitespace().last()?.parse().ok());
    inside.unwrap_or(pid)
}

/// A process in another mount namespace in which a volume is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// The PID of a process in that namespace.
    pub pid: u32,
    pub program: String,
    /// The directory as seen by that process.
    pub directory: PathBuf,
}

/// Other mounts of the volume with this device number: one process of each mount namespace, if the caller may
/// see it.
pub fn in_other_namespaces(device: (u32, u32)) -> Vec<Elsewhere> {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let mut seen: Vec<PathBuf> = namespace("self").into_iter().collect();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Ok(pid) = name.parse() else { continue };
        match namespace(&name) {
            Some(namespace) if !seen.contains(&namespace) => seen.push(namespace),
            _ => continue,
        }
        let list = fs::read(entry.path().join("mountinfo")).unwrap_or_default();
        let mut mounts = mount_list::parse(&list).filter_map(Mounted::of);
        let Some(mounted) = mounts.find(|mounted| mounted.device == device) else {
            continue;
        };
        let program = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        let program = program.trim_end().to_owned();
        found.push(Elsewhere { pid, program, directory: mounted.directory });
    }
    found
}

/// A process that uses a mount.
pub struct User {
    pub pid: u32,
    pub program: String,
    /// Whether it was killed, and has not ended yet.
    pub is_ending: bool,
}

/// The processes that have files or a working directory below a mount, if the caller may see them.
pub fn users(directory: &Path) -> Vec<User> {
    let mut users = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse() else { continue };
        let process = entry.path();
        let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        let open = open.map(|descriptor| descriptor.path());
        let mut links =
            ["cwd", "root", "exe"].map(|link| process.join(link)).into_iter().chain(open);
        if links.any(|link| fs::read_link(link).is_ok_and(|to| to.starts_with(directory))) {
            let program = fs::read_to_string(process.join("comm")).unwrap_or_default();
            let status = fs::read_to_string(process.join("status")).unwrap_or_default();
            let is_ending = was_killed(&status);
            users.push(User { pid, program: program.trim_end().to_owned(), is_ending });
        }
    }
    users
}

/// Whether a process has a pending SIGKILL, as each thread of a process gets that a signal ends. `status` is
/// its `/proc/PID/status`.
fn was_killed(status: &str) -> bool {
    let mut pending = status.lines().filter_map(|line| {
        let signals = line.strip_prefix("SigPnd:").or(line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(signals.trim(), 16).ok()
    });
    pending.any(|signals| signals & KILLED != 0)
}

/// The file of a loop device, if the device is one and its offset is 0. `may_look` says whether a path may be
/// accessed.
fn backing_file((major, minor): (u32, u32), may_look: &dyn Fn(&Path) -> bool) -> Option<PathBuf> {
    if major != LOOP_MAJOR {
        return None;
    }
    let attribute = |name: &str| fs::read(format!("/sys/dev/block/{major}:{minor}/loop/{name}"));
    // At another offset there is another volume, such as a partition.
    if attribute("offset").is_ok_and(|offset| offset.trim_ascii() != b"0") {
        return None;
    }
    let shown = attribute("backing_file").ok()?;
    let path = shown.strip_suffix(b"\n").unwrap_or(&shown);
    let path = PathBuf::from(OsString::from_vec(path.to_vec()));
    let is_there = || may_look(&path) && fs::symlink_metadata(&path).is_ok();
    // The kernel's mark for a file that was removed while in use; or a part of the name.
    match path.as_os_str().as_bytes().strip_suffix(b" (deleted)") {
        Some(removed) if !is_there() => Some(PathBuf::from(OsStr::from_bytes(removed))),
        _ => Some(path),
    }
}
