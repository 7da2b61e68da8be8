//! The device that has the stable log of a volume, where that is not the volume's own.
//!
//! It is named, or found by the UUID that stands in the superblock and at its head: in a file beside the
//! image, with `.log` added to its name, or on a block device.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use cffs::device::file::{Access, FileDevice};
use cffs::device::{BlockDevice, PairedDevice};
use cffs::format::Superblock;
use cffs::format::log::{HEADER_BLOCKS, HEADER_BYTES, Header};
use cffs::log;
use cffs::vfs::read_superblock;

use crate::{image, signatures};

/// The size of a file that is made for a log.
const FILE_BYTES: u64 = 64 << 20;

/// Puts the device of the log beside that of the volume, if it is another and can be found. What is missing
/// is said by whatever needs it.
pub fn beside(
    path: &Path,
    device: Arc<dyn BlockDevice>,
    access: Access,
    named: Option<&Path>,
) -> anyhow::Result<Arc<dyn BlockDevice>> {
    let superblock = match read_superblock(&*device) {
        Ok(superblock) if log::is_external(&superblock) && device.log_device().is_none() => superblock,
        _ => return Ok(device),
    };
    let found = match named {
        Some(named) => Some(named.to_owned()),
        None => find(path, &superblock),
    };
    let Some(found) = found else { return Ok(device) };
    let medium = image::open_device(&found, access)
        .with_context(|| format!("the device of the stable log, {}", found.display()))?;
    Ok(Arc::new(PairedDevice::new(device, Arc::new(medium))))
}

/// Opens a device that is to have a log, or makes a file for it.
pub fn prepare(
    path: &Path,
    volume: &Path,
    bytes: u64,
    force: bool,
) -> anyhow::Result<Arc<dyn BlockDevice>> {
    if !path.exists() {
        if path.starts_with("/dev") && !path.starts_with("/dev/shm") {
            bail!("there is no device {}", path.display());
        }
        let bytes = if bytes == 0 { FILE_BYTES } else { bytes };
        return Ok(Arc::new(FileDevice::create(path, bytes)?));
    }
    if volume.exists() && path.canonicalize()? == volume.canonicalize()? {
        bail!("{} cannot have the log, too, in this way: use --log SIZE", path.display());
    }
    let device = image::open_device(path, Access::ReadWrite)?;
    match signatures::contents(&device).with_context(|| path.display().to_string())? {
        Some(what) if !force => {
            bail!("{} has {what} on it already; --force overwrites it", path.display())
        }
        _ => Ok(Arc::new(device)),
    }
}

fn find(path: &Path, superblock: &Superblock) -> Option<PathBuf> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".log");
    let devices = fs::read_dir("/sys/class/block").into_iter().flatten().flatten();
    let devices = devices.map(|entry| Path::new("/dev").join(entry.file_name()));
    std::iter::once(PathBuf::from(beside)).chain(devices).find(|path| has_log(path, superblock))
}

/// Whether the head of a file or a device says that it has the volume's log.
fn has_log(path: &Path, superblock: &Superblock) -> bool {
    let Ok(file) = File::open(path) else { return false };
    (0..u64::from(HEADER_BLOCKS)).any(|block| {
        let mut head = [0; HEADER_BYTES];
        file.read_exact_at(&mut head, block * u64::from(superblock.block_bytes)).is_ok()
            && Header::log_uuid(&head) == Some(superblock.log.uuid)
    })
}
