//! The space for an image on the file system that contains it.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::statvfs;

use crate::output::note;
use crate::size;

/// Bytes in a block of `st_blocks`.
const BLOCK_BYTES: u64 = 512;

/// Warns if the file system that contains an image has less space than the image can still take.
/// An image is sparse, so the volume finds the host's file system full only when it is used.
pub fn warn(command: &str, image: &Path) {
    let Ok(data) = std::fs::metadata(image) else { return };
    let Ok(host) = statvfs(image) else { return };
    if !data.is_file() {
        return;
    }
    let free = host.f_bavail.saturating_mul(host.f_frsize);
    let missing = data.len().saturating_sub(data.blocks() * BLOCK_BYTES);
    if missing > free {
        note!(
            "cffs {command}: warning: {image}: the image can take {size}, but its file system has only \
             {free} free; once that is full, the volume becomes read-only and loses its last changes",
            image = image.display(),
            size = size::show(data.len()),
            free = size::show(free),
        );
    }
}
