//! The device that has the stable log of a volume, where that is not the volume's own.
//!
//! It is found by the UUID that stands in the superblock and at its head: in a file beside the
//! image, with `.log` added to its name, or on a block device.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use cffs::format::Superblock;
use cffs::format::log::{HEADER_BLOCKS, HEADER_BYTES, Header};

/// The path of the device that has the log of a volume, if it is found.
pub fn find(path: &Path, superblock: &Superblock) -> Option<PathBuf> {
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
