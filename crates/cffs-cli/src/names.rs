//! The names of a volume that is mounted, of which every command takes each: the image, a link to it, a
//! loop device over it, the block device, its URL, `LABEL=` or `UUID=`, and any directory of the mount.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::mounts::{self, Mounted};
use crate::udev;

/// A mounted volume, as a command names it.
#[derive(Clone, Debug)]
pub struct OnMount {
    /// The path on the mount through which its server is asked: the one that was named, or else the
    /// directory on which the volume is mounted.
    pub path: PathBuf,
    /// The mount.
    pub mounted: Mounted,
}

impl OnMount {
    /// A path within the volume as one on the mount.
    pub fn join(&self, path: Option<&Path>) -> PathBuf {
        let bytes = path.map_or(&b""[..], |path| path.as_os_str().as_bytes());
        let slashes = bytes.iter().take_while(|byte| **byte == b'/').count();
        match &bytes[slashes..] {
            [] => self.path.clone(),
            below => self.path.join(OsStr::from_bytes(below)),
        }
    }
}

/// The mount of the volume that a name stands for; `None` if it is not mounted.
///
/// # Errors
///
/// A label or UUID that no device has; a server that is stopped, of that mount or of one on the way to it.
pub fn mounted(name: &Path) -> anyhow::Result<Option<OnMount>> {
    let device = udev::device_of_tag(name)?;
    let found = match mounts::of_source(&device) {
        Some(mounted) => Some(OnMount { path: mounted.directory.clone(), mounted }),
        None => mounts::holding(name)?.map(|mounted| OnMount { path: name.to_owned(), mounted }),
    };
    if let Some(OnMount { mounted, .. }) = &found {
        mounts::answers(mounted)?;
    }
    Ok(found)
}

/// The path by which the server of a volume is asked: one on the mount, or the image that is served
/// without one.
///
/// # Errors
///
/// Those of [`mounted`].
pub fn to_ask(name: &Path) -> anyhow::Result<PathBuf> {
    match mounted(name)? {
        Some(mounted) => Ok(mounted.path),
        None => udev::device_of_tag(name),
    }
}
