//! Whether the server's own mount is read-only, as the kernel lists it.
//!
//! The kernel does not tell a server of a remount: `mount -o remount,ro` only makes it refuse changes. Work
//! that the server begins by itself, or for callers that do not pass through the kernel, therefore asks here.

use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::path::Path;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

#[cfg(test)]
mod tests;

/// The major and the minor number of a device.
type Device = (u32, u32);

/// How long the list counts as it was read unless the kernel reports a change. It reports remounts by
/// mount(2) and mount_setattr(2), but not by fsconfig(2) alone.
const LIFETIME: Duration = Duration::from_secs(1);

/// A mounted volume in the list of mounts.
#[derive(Debug)]
pub(super) struct MountState {
    /// The device number of its files; `None` if it is unknown.
    device: Option<Device>,
    /// Whether the volume was opened for reading only, which no remount changes.
    opened_read_only: bool,
    last: Mutex<Option<Last>>,
}

/// The list when it was last read.
#[derive(Debug)]
struct Last {
    list: File,
    read: Instant,
    is_read_only: bool,
}

impl MountState {
    /// The volume with this device number. If the number is unknown, that of the last mount on the directory.
    pub fn of(device: Option<Device>, directory: &Path, opened_read_only: bool) -> MountState {
        let listed = || device_on(&fs::read(mount_list::OWN).unwrap_or_default(), directory);
        let device = device.or_else(listed);
        MountState { device, opened_read_only, last: Mutex::default() }
    }

    /// The number of the mount's connection to this server.
    pub fn connection(&self) -> Option<u32> {
        self.device.map(fuse_ring::connection_number)
    }

    /// Whether the kernel refuses changes through all mounts of the volume. If the list does not have the
    /// volume, it was detached, and programs with open files may change these.
    pub fn is_read_only(&self) -> bool {
        let device = match self.device {
            Some(device) if !self.opened_read_only => device,
            _ => return self.opened_read_only,
        };
        let mut last = self.last.lock();
        if let Some(known) = &*last
            && known.read.elapsed() < LIFETIME
            && !has_changed(&known.list)
        {
            return known.is_read_only;
        }
        let kept = last.take().map(|known| known.list);
        match look(kept, device) {
            Ok(now) => last.insert(now).is_read_only,
            Err(error) => {
                tracing::debug!(%error, "the list of mounts cannot be read");
                false
            }
        }
    }
}

/// Reads the list, which may be open.
fn look(kept: Option<File>, device: Device) -> io::Result<Last> {
    let mut list = kept.map_or_else(|| File::open(mount_list::OWN), Ok)?;
    // A change after this is reported by the next poll.
    has_changed(&list);
    let (read, mut bytes) = (Instant::now(), Vec::new());
    list.rewind()?;
    list.read_to_end(&mut bytes)?;
    Ok(Last { list, read, is_read_only: is_shown_read_only(&bytes, device).unwrap_or(false) })
}

/// Whether mounts were changed since this was last called for the open list.
fn has_changed(list: &File) -> bool {
    let mut descriptors = [PollFd::new(list, PollFlags::PRI)];
    let polled = poll(&mut descriptors, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    polled.is_err() || descriptors[0].revents().intersects(PollFlags::PRI | PollFlags::ERR)
}

/// Whether the list shows a volume as read-only on all its mounts.
fn is_shown_read_only(list: &[u8], device: Device) -> Option<bool> {
    mount_list::parse(list).find(|mount| mount.device == device).map(|mount| mount.is_read_only())
}

/// The device number of the last mount on a directory.
fn device_on(list: &[u8], directory: &Path) -> Option<Device> {
    mount_list::parse(list).rfind(|mount| mount.point == directory).map(|mount| mount.device)
}
