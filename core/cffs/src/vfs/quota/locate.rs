//! The directories with quotas, and those above them, as a reader keeps them.
//!
//! A volume that another program has open, or that was not closed, is read without recovery: the locator
//! table on the device may not have new directories yet. Their names are on the device, so a walk finds them.
//! A reader keeps them in memory from then on, since their numbers do not lead to them.

use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;

use super::members::{ANCESTORS_MAX, Uncounted};
use crate::error::{Corruption, Error, Result};
use crate::format::inode::FileType;
use crate::inode::{InodeCache, Vnode};
use crate::namespace::{Namespace, read_dir};
use crate::units::InodeNo;

/// A directory that the walk found, with those above it.
struct Found {
    dir: Arc<Vnode>,
    above: Option<Rc<Found>>,
}

/// Frees a chain of directories one by one: recursion would overflow the stack if it is long.
impl Drop for Found {
    fn drop(&mut self) {
        let mut above = self.above.take();
        while let Some(mut found) = above.and_then(Rc::into_inner) {
            above = found.above.take();
        }
    }
}

/// Finds the directories of accounts, as far as the tree can be read. Returns them, with those above them.
pub(super) fn locate(names: &Namespace, accounts: &mut [Uncounted]) -> Result<Vec<Arc<Vnode>>> {
    let mut kept = Vec::new();
    let mut missing: HashSet<(InodeNo, u32)> = HashSet::new();
    for (account, vnode) in &*accounts {
        let path = vnode.as_ref().map(|dir| up_to_root(&names.inodes, dir));
        match path {
            Some(Ok(path)) => kept.extend(path),
            _ => drop(missing.insert((account.dir, account.generation))),
        }
    }
    if missing.is_empty() {
        return Ok(kept);
    }
    let root = Found { dir: names.inodes.get(InodeNo::ROOT)?, above: None };
    let mut pending = vec![Rc::new(root)];
    let mut seen = HashSet::new();
    while !missing.is_empty()
        && let Some(found) = pending.pop()
    {
        let dir = &found.dir;
        if !seen.insert(dir.ino) {
            continue;
        }
        let key = (dir.ino, dir.state.read().inode.generation);
        if missing.remove(&key) {
            let of_dir = |(account, _): &&mut Uncounted| (account.dir, account.generation) == key;
            accounts.iter_mut().filter(of_dir).for_each(|(_, vnode)| *vnode = Some(dir.clone()));
            let mut at = Some(&found);
            while let Some(found) = at {
                kept.push(found.dir.clone());
                at = found.above.as_ref();
            }
        }
        let listed = read_dir(&names.inodes, &dir.state.read(), 0, &mut |visited| {
            if visited.file_type == FileType::Directory {
                match names.vnode_visited(visited) {
                    Ok(dir) => pending.push(Rc::new(Found { dir, above: Some(found.clone()) })),
                    Err(error) => leave_out(dir, &error),
                }
            }
            Ok(true)
        });
        listed.unwrap_or_else(|error| leave_out(dir, &error));
    }
    Ok(kept)
}

/// A directory and those above it.
fn up_to_root(inodes: &InodeCache, dir: &Arc<Vnode>) -> Result<Vec<Arc<Vnode>>> {
    let mut path = vec![dir.clone()];
    let mut at = dir.clone();
    while at.ino != InodeNo::ROOT {
        if path.len() > ANCESTORS_MAX {
            return Err(Corruption::Loop { ino: dir.ino }.into());
        }
        let parent = at.state.read().inode.parent;
        at = inodes.get(parent)?;
        path.push(at.clone());
    }
    Ok(path)
}

fn leave_out(dir: &Vnode, error: &Error) {
    tracing::warn!(dir = dir.ino.0, "a directory is not searched for quotas: {error}");
}
