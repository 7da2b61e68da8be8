//! Finds the device that contains the journal of a volume with a separate journal.
//!
//! The UUID in the superblock equals the one in the journal's header. The journal is in a file in the image's
//! directory, with `.journal` added to the image's name, or on a block device.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::format::Superblock;
use crate::format::journal::{HEADER_BLOCKS, HEADER_BYTES, Header};

/// The path of the device with the journal of a volume in an image, if it is found. Reads only files and
/// devices of which `can_be_read` is true: others may be on a mount whose server is stopped.
pub fn find_device(
    image: &Path,
    superblock: &Superblock,
    can_be_read: &dyn Fn(&Path) -> bool,
) -> Option<PathBuf> {
    let devices = fs::read_dir("/sys/class/block").into_iter().flatten().flatten();
    let devices = devices.map(|entry| Path::new("/dev").join(entry.file_name()));
    std::iter::once(sibling(image))
        .chain(devices)
        .find(|path| can_be_read(path) && contains_journal(path, superblock))
}

/// The file for the journal in the directory of an image.
pub fn sibling(image: &Path) -> PathBuf {
    let mut name = image.as_os_str().to_owned();
    name.push(".journal");
    PathBuf::from(name)
}

/// Whether a file or device contains the header of the volume's journal.
fn contains_journal(path: &Path, superblock: &Superblock) -> bool {
    let Ok(file) = File::open(path) else { return false };
    (0..u64::from(HEADER_BLOCKS)).any(|block| {
        let mut head = [0; HEADER_BYTES];
        file.read_exact_at(&mut head, block * u64::from(superblock.block_bytes)).is_ok()
            && Header::journal_uuid(&head) == Some(superblock.journal.uuid)
    })
}
