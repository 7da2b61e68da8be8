//! Directories with quotas that only a walk finds.
//!
//! A volume that another program has open, or that was not closed, is read without recovery: the locator
//! table on the device may not have new directories yet. Their names are on the device.

use std::collections::HashSet;

use super::members::Uncounted;
use crate::error::Result;
use crate::format::inode::FileType;
use crate::inode::Vnode;
use crate::namespace::{Namespace, read_dir};
use crate::units::InodeNo;

/// Looks for the missing directories in the tree, as far as it can be read.
pub(super) fn locate(names: &Namespace, accounts: &mut [Uncounted]) -> Result<()> {
    let mut missing = accounts.iter().filter(|(_, vnode)| vnode.is_none()).count();
    if missing == 0 {
        return Ok(());
    }
    let mut pending = vec![names.inodes.get(InodeNo::ROOT)?];
    let mut seen = HashSet::new();
    while missing > 0
        && let Some(dir) = pending.pop()
    {
        if !seen.insert(dir.ino) {
            continue;
        }
        let generation = dir.state.read().inode.generation;
        for (account, vnode) in accounts.iter_mut() {
            if vnode.is_none() && (account.dir, account.generation) == (dir.ino, generation) {
                *vnode = Some(dir.clone());
                missing -= 1;
            }
        }
        let listed = read_dir(&names.inodes, &dir.state.read(), 0, &mut |visited| {
            if visited.file_type == FileType::Directory {
                match names.vnode_visited(visited) {
                    Ok(vnode) => pending.push(vnode),
                    Err(error) => leave_out(&dir, &error),
                }
            }
            Ok(true)
        });
        listed.unwrap_or_else(|error| leave_out(&dir, &error));
    }
    Ok(())
}

fn leave_out(dir: &Vnode, error: &crate::error::Error) {
    tracing::warn!(dir = dir.ino.0, "a directory is not searched for quotas: {error}");
}
