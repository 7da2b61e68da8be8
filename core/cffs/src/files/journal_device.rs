//! Finds the device that contains the journal of a volume with a separate journal.
//!
//! The UUID in the superblock equals the one in the journal's header. The journal is in a file in the image's
//! directory, with `.journal` added to the image's name, or on a block device.

use std::fs::{self, File, FileType};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;

use crate::device::{self, BlockDevice, FileDevice, PairedDevice};
use crate::error::Result;
use crate::format::Superblock;
use crate::format::journal::{HEADER_BLOCKS, HEADER_BYTES, Header};
use crate::journal;
use crate::vfs::read_superblock;

/// The path of the device with the journal of a volume in an image, if it is found. Reads only files and
/// devices of which `can_be_read` is true: others may be on a mount whose server is stopped.
pub fn find_journal(
    image: &Path,
    superblock: &Superblock,
    can_be_read: &dyn Fn(&Path) -> bool,
) -> Option<PathBuf> {
    let devices = fs::read_dir("/sys/class/block").into_iter().flatten().flatten();
    let devices = devices.map(|entry| Path::new("/dev").join(entry.file_name()));
    std::iter::once(journal_file(image))
        .chain(devices)
        .find(|path| can_be_read(path) && contains_journal(path, superblock))
}

/// The file for the journal in the directory of an image.
pub fn journal_file(image: &Path) -> PathBuf {
    let mut name = image.as_os_str().to_owned();
    name.push(".journal");
    PathBuf::from(name)
}

/// Pairs the device of an image with that of its journal, if that is separate and is found. If it is missing,
/// [`open`](crate::open::open()) reports that where it matters. Fails if it is found and cannot be opened.
pub(super) fn with_its_journal(
    path: &Path,
    image: Arc<FileDevice>,
    access: device::Access,
) -> Result<Arc<dyn BlockDevice>> {
    let found = match read_superblock(&*image) {
        Ok(superblock) if journal::is_external(&superblock) => {
            find_journal(path, &superblock, &|_| true)
        }
        _ => None,
    };
    Ok(match found {
        Some(found) => {
            let journal = Arc::new(FileDevice::open(&found, access)?);
            Arc::new(PairedDevice::new(image, journal))
        }
        None => image,
    })
}

/// Whether a file or device contains the header of the volume's journal.
fn contains_journal(path: &Path, superblock: &Superblock) -> bool {
    // Opening a FIFO or an empty drive could wait.
    let is_suitable = |kind: FileType| kind.is_file() || kind.is_block_device();
    if !fs::metadata(path).is_ok_and(|found| is_suitable(found.file_type())) {
        return false;
    }
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let Ok(file) = File::options().read(true).custom_flags(flags).open(path) else { return false };
    (0..u64::from(HEADER_BLOCKS)).any(|block| {
        let mut head = [0; HEADER_BYTES];
        file.read_exact_at(&mut head, block * u64::from(superblock.block_bytes)).is_ok()
            && Header::journal_uuid(&head) == Some(superblock.journal.uuid)
    })
}
