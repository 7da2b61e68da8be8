//! Whether the server's own mount is read-only, as the kernel lists it.
//!
//! The kernel does not tell a server of a remount: `mount -o remount,ro` only makes it refuse changes. Work
//! that the server begins by itself, or for callers that do not pass through the kernel, therefore asks here.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

#[cfg(test)]
mod tests;

/// The list of the mounts in the mount namespace of the server.
const MOUNTS: &str = "/proc/self/mountinfo";

/// A mounted volume in the list of mounts.
pub(super) struct MountState {
    /// The device number of its files as the list shows it; `None` if it is unknown.
    device: Option<Vec<u8>>,
}

impl MountState {
    /// The volume with this device number. If the number is unknown, that of the last mount on the directory.
    pub fn of(number: Option<(u32, u32)>, directory: &Path) -> MountState {
        let device = match number {
            Some((major, minor)) => Some(format!("{major}:{minor}").into_bytes()),
            None => device_on(&fs::read(MOUNTS).unwrap_or_default(), directory),
        };
        MountState { device }
    }

    /// Whether the kernel refuses changes through all mounts of the volume. If the list does not have the
    /// volume, it was detached, and programs with open files may change these.
    pub fn is_read_only(&self) -> bool {
        let shown = |device| is_shown_read_only(&fs::read(MOUNTS).unwrap_or_default(), device);
        self.device.as_deref().and_then(shown).unwrap_or(false)
    }
}

fn lines(list: &[u8]) -> impl DoubleEndedIterator<Item = Vec<&[u8]>> {
    list.split(|byte| *byte == b'\n').map(|line| line.split(|byte| *byte == b' ').collect())
}

/// Whether the list shows a volume as read-only: the last field of each of its mounts begins with `ro`.
fn is_shown_read_only(list: &[u8], device: &[u8]) -> Option<bool> {
    let line = lines(list).find(|fields| fields.get(2) == Some(&device))?;
    Some(line.last()?.split(|byte| *byte == b',').next() == Some(b"ro"))
}

/// The device number of the last mount on a directory.
fn device_on(list: &[u8], directory: &Path) -> Option<Vec<u8>> {
    const DEVICE: usize = 2;
    const DIRECTORY: usize = 4;
    let shown = escaped(directory);
    let line = lines(list).rfind(|fields| fields.get(DIRECTORY) == Some(&&shown[..]))?;
    Some(line[DEVICE].to_vec())
}

/// A path as the kernel lists it.
fn escaped(path: &Path) -> Vec<u8> {
    let escape = |byte: &u8| match byte {
        b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
        byte => vec![*byte],
    };
    path.as_os_str().as_bytes().iter().flat_map(escape).collect()
}
