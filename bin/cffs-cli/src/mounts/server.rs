//! Finds the process that serves a mount without querying it: a stopped process does not answer.
//!
//! The kernel shows in `/proc/PID/fdinfo` which connection a descriptor of `/dev/fuse` serves: the device
//! number of the mount. If it shows none, or the process belongs to another user, the server is not found.

use std::collections::BTreeMap;
use std::fs::{self, DirEntry};
use std::path::{Path, PathBuf};

use anyhow::bail;
use cffs_object::Location;
use cffs_serve::fuse::device_number;
use cffs_serve::served::control;
use cffs_serve::stopped;

use super::Mounted;

/// Fails if the server of a mount is stopped, since a query would block until it continues.
pub fn answers(mounted: &Mounted) -> anyhow::Result<()> {
    // The kernel gives the number of a mount that was detached to the next one, even if the server of the
    // former still runs, since it waits for its store.
    match serving(mounted.device).into_iter().find(|process| stopped::is_stopped(*process)) {
        Some(process) => bail!(
            "{directory}: {why}, or detach the mount with cffs umount -l {directory}",
            directory = mounted.directory.display(),
            why = stopped::explain(process),
        ),
        None => Ok(()),
    }
}

/// The file that connects a server to the kernel.
const DEVICE: &str = "/dev/fuse";

/// The option under which a server reports the service of its volume's bucket.
const SERVICE: &str = "service";

/// Adds the service of a volume's bucket to the options that its server reports.
pub fn set_service(told: &mut BTreeMap<String, String>, location: &Location) {
    told.insert(SERVICE.to_owned(), location.service().to_owned());
}

/// Whether the server of a mount reports the service of this location. It reports that only to root and its
/// own user; a stopped server is not queried.
pub fn is_of_service(mounted: &Mounted, location: &Location) -> bool {
    let told = || control::identity(&mounted.directory).ok()?.fixed_options.remove(SERVICE);
    answers(mounted).is_ok() && told().is_some_and(|service| service == location.service())
}

/// The process that serves a mount, if the caller may see that.
pub fn process_of(mounted: &Mounted) -> Option<u32> {
    serving(mounted.device).first().copied()
}

/// The processes that serve the mount with this device number.
fn serving(device: (u32, u32)) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    processes.filter(|process| served_by(*process).contains(&device)).collect()
}

/// Whether the server of a mount has a certain file or device open; `None` if the server is not found. Only
/// files are examined whose paths `may_look` allows to access.
pub fn has_open(
    mounted: &Mounted,
    is_it: impl Fn(&fs::Metadata) -> bool,
    may_look: &dyn Fn(&Path) -> bool,
) -> Option<bool> {
    let serving = serving(mounted.device);
    let open = serving.iter().flat_map(|process| {
        fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten()
    });
    let has = |link: PathBuf| {
        fs::read_link(&link).is_ok_and(|path| path.is_absolute() && may_look(&path))
            && fs::metadata(&link).is_ok_and(|data| is_it(&data))
    };
    let has_any = open.map(|entry| entry.path()).any(has);
    (!serving.is_empty()).then_some(has_any)
}

/// Whether a process may serve a mount. False if the caller may see its open files, and `/dev/fuse` is not
/// among them.
pub fn may_serve(process: u32) -> bool {
    connections(process).is_none_or(|mut open| open.next().is_some())
}

/// The descriptors of a process that connect it to the kernel, if the caller may see its open files.
fn connections(process: u32) -> Option<impl Iterator<Item = DirEntry>> {
    let open = fs::read_dir(format!("/proc/{process}/fd")).ok()?.flatten();
    let is_device =
        |file: &DirEntry| fs::read_link(file.path()).is_ok_and(|to| to == Path::new(DEVICE));
    Some(open.filter(is_device))
}

/// The device numbers of the mounts that a process serves.
pub fn served_by(process: u32) -> Vec<(u32, u32)> {
    let about = PathBuf::from(format!("/proc/{process}/fdinfo"));
    let devices = connections(process)
        .into_iter()
        .flatten()
        .filter_map(|file| device_number(&fs::read_to_string(about.join(file.file_name())).ok()?));
    devices.collect()
}

/// A directory that a process serves: `known`, unless that was renamed or unmounted since.
pub fn directory_served_by(process: u32, known: &Path) -> Option<PathBuf> {
    let served = served_by(process);
    let mounted = super::all().ok()?.into_iter().filter(|it| served.contains(&it.device));
    mounted.map(|it| it.directory).max_by_key(|directory| directory == known)
}
