//! The names of a mounted volume, which all commands accept: the image, a link to it, a loop device for it,
//! the block device, its URL, `LABEL=` or `UUID=`, any directory of the mount, and a link to one.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use cffs_object::Location;
use cffs_serve::socket;

use crate::mounts::{self, Mounted};
use crate::output::printable;
use crate::{image, udev};

/// A mounted volume, together with the path that named it.
#[derive(Clone, Debug)]
pub struct OnMount {
    /// The path through which its server is queried: the given path if it is on the mount, otherwise the
    /// mount point.
    pub path: PathBuf,
    pub mounted: Mounted,
}

impl OnMount {
    /// The path on the mount of a path within the volume.
    ///
    /// # Errors
    ///
    /// Nothing is at the path within the volume, which the error names.
    pub fn join(&self, path: Option<&Path>) -> anyhow::Result<PathBuf> {
        let bytes = path.map_or(&b""[..], |path| path.as_os_str().as_bytes());
        let slashes = bytes.iter().take_while(|byte| **byte == b'/').count();
        let below = match &bytes[slashes..] {
            [] => return Ok(self.path.clone()),
            below => self.path.join(OsStr::from_bytes(below)),
        };
        fs::symlink_metadata(&below).with_context(|| printable(bytes))?;
        Ok(below)
    }
}

/// The mount of the volume with this name; `None` if it is not mounted.
///
/// # Errors
///
/// No device has the label or UUID; or the server of that mount, or of one on the path to it, is stopped.
pub fn mounted(name: &Path) -> anyhow::Result<Option<OnMount>> {
    let device = udev::device_of_tag(name)?;
    let found = match mounts::of_source(&device) {
        Some(mounted) => Some(OnMount { path: mounted.directory.clone(), mounted }),
        None => mounts::holding(name)?
            .map(|mounted| OnMount { path: followed(name, &mounted), mounted }),
    };
    if let Some(OnMount { mounted, .. }) = &found {
        mounts::answers(mounted)?;
    }
    Ok(found)
}

/// A path on a mount, through which its server is queried without following links. So a link to a directory
/// of the mount from elsewhere gets a slash at its end.
fn followed(name: &Path, mounted: &Mounted) -> PathBuf {
    match fs::symlink_metadata(name) {
        Ok(data) if data.is_symlink() && !mounted.holds(&data) => name.join(""),
        _ => name.to_owned(),
    }
}

/// The path through which the server of a volume is queried: a path on the mount, in any mount namespace,
/// or the image if it is served without one.
///
/// # Errors
///
/// Errors of [`mounted`]; the volume is in an object store and not mounted here.
pub fn to_ask(name: &Path) -> anyhow::Result<PathBuf> {
    if let Some(mounted) = mounted(name)? {
        return Ok(mounted.path);
    }
    let device = udev::device_of_tag(name)?;
    match image::directory_elsewhere(&device)? {
        None if Location::url_of(&device).is_some() && socket::server_of_url(&device).is_none() => {
            bail!("{}: it is not mounted on this machine", device.display())
        }
        directory => Ok(directory.unwrap_or(device)),
    }
}

/// The same, if the volume has one server.
///
/// # Errors
///
/// Errors of [`to_ask`]; the volume is mounted several times, for reading, each time with a server.
pub fn to_ask_the_only_one(name: &Path) -> anyhow::Result<PathBuf> {
    let device = udev::device_of_tag(name)?;
    let mut mounts = mounts::all_of_source(&device);
    mounts.dedup_by_key(|mounted| mounted.device);
    mounts::check_one(name, &mounts)?;
    to_ask(name)
}

/// Fails if the volume at a URL is mounted or served on this machine, even only for reading. Its server keeps
/// the place while the store cannot be reached, although no volume can be seen there then.
///
/// # Errors
///
/// The program that uses the volume; errors of [`mounted`].
pub fn check_unused(url: &Path) -> anyhow::Result<()> {
    let name = url.display();
    if let Some(OnMount { mounted, .. }) = mounted(url)? {
        let process = mounts::process_of(&mounted);
        let by = process.map_or_else(String::new, |process| format!(" by process {process}"));
        let directory = mounted.directory.display();
        bail!("{name} is mounted on {directory}{by}; unmount it first: cffs umount {directory}");
    }
    if let Some(process) = socket::server_of_url(url) {
        bail!("{name} is served by process {process}; stop it first: cffs serve --stop {name}");
    }
    Ok(())
}

/// A path on each mount of the volume with this name: the one of [`mounted`] first.
///
/// # Errors
///
/// Errors of [`mounted`].
pub fn all_mounted(name: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let Some(OnMount { path, mounted: first }) = mounted(name)? else { return Ok(Vec::new()) };
    let others = mounts::all_of_source(&udev::device_of_tag(name)?);
    let others = others.into_iter().filter(|other| *other != first);
    let others = others.filter(|other| mounts::answers(other).is_ok());
    Ok([path].into_iter().chain(others.map(|other| other.directory)).collect())
}
