//! Changing the inodes of a sector in place.

use zerocopy::FromBytes;

use super::{EMBEDDED, Sector, body_start};
use crate::format::inode::DiskInode;

/// Changes the fixed part of each inode in a sector.
pub fn edit_inodes(image: &mut [u8], mut edit: impl FnMut(&mut DiskInode)) {
    let raw = Sector::new(image).raw();
    let embedded = raw.filter(|raw| raw.header.kind == EMBEDDED);
    let starts: Vec<usize> = embedded.map(|raw| raw.at).collect();
    for at in starts {
        let body = body_start(image, at);
        if let Some(Ok((inode, _))) = image.get_mut(body..).map(DiskInode::mut_from_prefix) {
            edit(inode);
        }
    }
}
