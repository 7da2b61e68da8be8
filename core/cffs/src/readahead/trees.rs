//! Prefetching the extent trees of the inodes that a directory lists.

use std::ops::ControlFlow;

use super::survey::Survey;
use crate::format::sector::Body;
use crate::inode::{InodeCache, VnodeState};
use crate::namespace::scan;
use crate::units::{BlockNo, Class};

/// Prefetches the extent trees of the listed inodes, all at once and in device order. Attributes of an inode
/// with a tree need the tree, and one by one trees would be read in the order of names.
pub(super) fn prefetch(inodes: &InodeCache, dir: &VnodeState) {
    let survey = Survey::new(inodes);
    let mut roots = Vec::new();
    let sectors = 0..survey.reading.listed_sectors_max;
    let _ = scan(inodes, dir, sectors, |_, entry| {
        if let Body::Embedded(record) = &entry.body {
            let root = record.inode.map_root.get();
            let is_block = (1..inodes.layout.blocks).contains(&root);
            // An inode in use has its tree decoded.
            let is_needed = is_block && inodes.peek(entry.ino()).is_none();
            if is_needed && !inodes.cache.claims(BlockNo(root)) {
                roots.push(root..root + 1);
            }
        }
        ControlFlow::<()>::Continue(())
    });
    if roots.len() >= 2 {
        inodes.cache.prefetch(survey.merged(roots), Class::Metadata);
    }
}
