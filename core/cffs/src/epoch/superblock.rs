//! Reading the superblock of a device that has no open volume.

use crate::device::BlockDevice;
use crate::error::{Error, Result};
use crate::format::Superblock;
use crate::format::superblock::SUPERBLOCK_BYTES;

/// Reads the superblock from the start of a device.
///
/// # Errors
///
/// [`Error::Unsupported`] if the device is too short for this or any volume; [`Error::Corruption`] if the
/// superblock is missing or contradicts the format; [`Error::Io`] if the device cannot be read.
pub fn read_superblock(device: &dyn BlockDevice) -> Result<Superblock> {
    let geometry = device.geometry();
    let len = (geometry.sector_bytes as usize).max(SUPERBLOCK_BYTES);
    if geometry.size_bytes < len as u64 {
        let what = format!("not a C-FFS volume (only {} bytes long)", geometry.size_bytes);
        return Err(Error::Unsupported(what));
    }
    let mut bytes = vec![0; len];
    device.read_at(0, &mut bytes)?;
    let superblock = Superblock::decode(&bytes, 0)?;
    let size = superblock.blocks * u64::from(superblock.block_bytes);
    if size > geometry.size_bytes {
        return Err(Error::Unsupported(format!(
            "the volume has {size} bytes, the device only {}: it was cut off; restore all of it",
            geometry.size_bytes
        )));
    }
    Ok(superblock)
}
