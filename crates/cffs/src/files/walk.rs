//! A tree, one entry after the other.

use std::collections::VecDeque;

use super::{DirItem, Node, resolve};
use crate::error::{Error, Result};
use crate::format::inode::FileType;
use crate::vfs::types::Attr;

/// How many directories are read together, and their size, which bounds the memory for their entries.
const DIRS_AHEAD_MAX: usize = 16;
const AHEAD_BYTES_MAX: u64 = 1 << 20;

/// An entry of a walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalkEntry {
    /// The path, beginning with that at which the walk began.
    pub path: Vec<u8>,
    /// The inode.
    pub attr: Attr,
    /// How many names below the beginning: 0 for the beginning itself.
    pub depth: usize,
}

/// Walks a tree; see [`Files::walk`](super::Files::walk). The error of a directory
/// that cannot be read follows its entry.
pub struct Walk {
    /// Entries still to be returned, the next one last. A directory is read when it is returned.
    pending: Vec<WalkEntry>,
    /// Where the walk begins, until it has begun.
    start: Option<Node>,
    /// Why the directory that was returned last could not be read.
    failed: Option<Error>,
    /// The directories that were read on the way to the next entry, by depth.
    kept: Vec<Level>,
}

struct Level {
    dir: Node,
    /// The next directories in this one, which were read ahead.
    ahead: VecDeque<Result<(Node, Vec<DirItem>)>>,
}

impl Walk {
    pub(super) fn new(root: &Node, path: &[u8]) -> Result<Walk> {
        let node = resolve::node(root, path, true)?;
        let first = WalkEntry { path: path.to_vec(), attr: node.attr()?, depth: 0 };
        Ok(Walk { pending: vec![first], start: Some(node), failed: None, kept: Vec::new() })
    }

    fn descend(&mut self, entry: &WalkEntry) -> Result<()> {
        self.kept.truncate(entry.depth);
        let (dir, items) = match (self.start.take(), self.kept.last_mut()) {
            (Some(start), _) => {
                let items = start.entries()?;
                (start, items)
            }
            (None, Some(Level { dir, ahead })) => {
                if ahead.is_empty() {
                    *ahead = dir.enter(&next_dirs(entry, &self.pending));
                }
                ahead.pop_front().ok_or(Error::NotFound)??
            }
            (None, None) => return Err(Error::NotFound),
        };
        self.kept.push(Level { dir, ahead: VecDeque::new() });
        self.pending.extend(items.into_iter().rev().map(|DirItem { name, attr }| WalkEntry {
            path: join(&entry.path, &name),
            attr,
            depth: entry.depth + 1,
        }));
        Ok(())
    }
}

/// The names of a directory, and of the directories that follow it in the same one, next to be read.
fn next_dirs<'a>(entry: &'a WalkEntry, pending: &'a [WalkEntry]) -> Vec<&'a [u8]> {
    let mut bytes = 0;
    let same_dir = pending.iter().rev().take_while(|next| next.depth == entry.depth);
    let dirs = same_dir.filter(|next| next.attr.file_type == FileType::Directory);
    let ahead = dirs.take(DIRS_AHEAD_MAX - 1).take_while(|next| {
        bytes += next.attr.size;
        bytes <= AHEAD_BYTES_MAX
    });
    [entry].into_iter().chain(ahead).map(|dir| last_name(&dir.path)).collect()
}

impl Iterator for Walk {
    type Item = Result<WalkEntry>;

    fn next(&mut self) -> Option<Result<WalkEntry>> {
        if let Some(error) = self.failed.take() {
            return Some(Err(error));
        }
        let entry = self.pending.pop()?;
        if entry.attr.file_type == FileType::Directory {
            self.failed = self.descend(&entry).err();
        }
        Some(Ok(entry))
    }
}

fn last_name(path: &[u8]) -> &[u8] {
    let at = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    &path[at..]
}

/// A path one name longer.
pub(super) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = dir.to_vec();
    if !path.is_empty() && !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}
