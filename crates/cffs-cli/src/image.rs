//! Opening an image or a device that others may have in use.

use std::os::linux::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use anyhow::{Context, anyhow, bail};
use cffs::clock::SystemClock;
use cffs::device::BlockDevice;
use cffs::device::file::{Access, FileDevice, OpenError};
use cffs::files::Files;
use cffs::vfs::Volume;
use cffs::vfs::types::OpenOptions;

use crate::mounts;

/// How long a command waits for whoever has the image: a server that is closing it, or another
/// command.
const PATIENCE: Duration = Duration::from_secs(60);
/// How much of that goes without a word: a server of a mount of type fuse completes the image after
/// umount(8) has returned.
const QUIET: Duration = Duration::from_secs(3);

/// Opens an image or a device, alone (or, to read, beside other readers).
///
/// Where it is mounted, this fails at once and says where. Where it is in use otherwise, the
/// server is about to close it or another command is at work: that is waited for, with a note.
pub fn open_device(path: &Path, access: Access) -> anyhow::Result<FileDevice> {
    match FileDevice::open(path, access) {
        Err(OpenError::InUse { .. }) => {}
        outcome => return Ok(outcome?),
    }
    if let Some(mounted) = mounts::of_source(path) {
        return Err(anyhow!(
            "{} is mounted on {}{}; unmount it first: cffs umount {}",
            path.display(),
            mounted.directory.display(),
            held_by(path),
            mounted.directory.display(),
        ));
    }
    match FileDevice::open_waiting(path, access, QUIET) {
        Err(OpenError::InUse { .. }) => {}
        outcome => return Ok(outcome?),
    }
    eprintln!("cffs: {} is in use{}; waiting for it", path.display(), held_by(path));
    match FileDevice::open_waiting(path, access, PATIENCE) {
        Err(OpenError::InUse { .. }) => bail!(
            "{} is still in use{} after {} seconds",
            path.display(),
            held_by(path),
            PATIENCE.as_secs()
        ),
        outcome => Ok(outcome?),
    }
}

/// Opens the volume on a device.
pub fn open_volume(
    path: &Path,
    device: impl BlockDevice + 'static,
    options: OpenOptions,
) -> anyhow::Result<Arc<Volume>> {
    let volume = cffs::open(Arc::new(device), Arc::new(SystemClock), options)
        .with_context(|| path.display().to_string())?;
    Ok(Arc::new(volume))
}

/// Opens the files of an image.
pub fn open_files(path: &Path, options: OpenOptions) -> anyhow::Result<Files> {
    let access = if options.read_only { Access::ReadOnly } else { Access::ReadWrite };
    let device = open_device(path, access)?;
    Ok(Files::new(open_volume(path, device, options)?))
}

/// Options for a command that only reads.
pub fn read_only() -> OpenOptions {
    OpenOptions { read_only: true, ..OpenOptions::default() }
}

/// " by process N", as far as it can be found out.
fn held_by(path: &Path) -> String {
    match lock_holder(path) {
        Ok(Some(pid)) => format!(" by process {pid}"),
        _ => String::new(),
    }
}

/// The process that holds the lock of a file, from lines such as
/// `1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF`.
fn lock_holder(path: &Path) -> io::Result<Option<u32>> {
    let metadata = fs::metadata(path)?;
    let device = metadata.st_dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let file = format!("{major:02x}:{minor:02x}:{}", metadata.st_ino());
    let table = fs::read_to_string("/proc/locks")?;
    let holder = table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let at = fields.iter().position(|field| *field == file)?;
        let is_waiting = fields.get(1) == Some(&"->");
        if is_waiting { None } else { fields.get(at.checked_sub(1)?)?.parse().ok() }
    });
    Ok(holder)
}
