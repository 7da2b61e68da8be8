//! A tree, one entry after the other.

use super::attached::Tree;
use super::{DirItem, Node, resolve};
use crate::error::{Error, Result};
use crate::format::inode::FileType;
use crate::vfs::types::Attr;
use crate::wire::{BadMessage, Found, Step};

/// An entry of a walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalkEntry {
    /// The path, beginning with that at which the walk began.
    pub path: Vec<u8>,
    /// The inode.
    pub attr: Attr,
    /// The depth below the top of the walk: 0 for the top itself.
    pub depth: usize,
}

/// Walks a tree; see [`Files::walk`](super::Files::walk). The error of a directory that cannot be read
/// follows its entry, or those of its entries that could be read.
pub struct Walk {
    /// The entry with which the walk begins, until it is returned.
    first: Option<WalkEntry>,
    rest: Rest,
    /// The directory that could not be read last.
    unread: Vec<u8>,
}

/// The entries after the first one.
enum Rest {
    Nothing,
    Volume(VolumeWalk),
    Server(ServerWalk),
}

impl Walk {
    pub(super) fn new(root: &Node, path: &[u8]) -> Result<Walk> {
        let node = resolve::node(root, path, true)?;
        let first = WalkEntry { path: path.to_vec(), attr: node.attr()?, depth: 0 };
        let rest = if first.attr.file_type != FileType::Directory {
            Rest::Nothing
        } else if let Some(tree) = node.descend() {
            Rest::Server(ServerWalk::new(tree?, path))
        } else {
            Rest::Volume(VolumeWalk::new(node, &first))
        };
        Ok(Walk { first: Some(first), rest, unread: Vec::new() })
    }

    /// The directory to which the error that was returned last belongs.
    pub fn unread(&self) -> &[u8] {
        &self.unread
    }
}

impl Iterator for Walk {
    type Item = Result<WalkEntry>;

    fn next(&mut self) -> Option<Result<WalkEntry>> {
        if let Some(first) = self.first.take() {
            return Some(Ok(first));
        }
        let unread = &mut self.unread;
        match &mut self.rest {
            Rest::Nothing => None,
            Rest::Volume(walk) => walk.next(unread),
            Rest::Server(walk) => walk.next(unread),
        }
    }
}

/// The walk of a volume that this process has open. A directory is read before its entry is returned.
struct VolumeWalk {
    /// Entries still to be returned, the next one last.
    pending: Vec<WalkEntry>,
    /// The directory that was returned last, if it could not be read.
    failed: Option<(Vec<u8>, Error)>,
    /// The directories on the way to the next entry, by depth.
    kept: Vec<Node>,
}

impl VolumeWalk {
    fn new(start: Node, first: &WalkEntry) -> VolumeWalk {
        let mut walk = VolumeWalk { pending: Vec::new(), failed: None, kept: Vec::new() };
        walk.enter(first, Ok(start));
        walk
    }

    fn next(&mut self, unread: &mut Vec<u8>) -> Option<Result<WalkEntry>> {
        if let Some((path, error)) = self.failed.take() {
            *unread = path;
            return Some(Err(error));
        }
        let entry = self.pending.pop()?;
        if entry.attr.file_type == FileType::Directory {
            self.kept.truncate(entry.depth);
            let parent = self.kept.last().ok_or(Error::NotFound);
            let dir = parent.and_then(|parent| parent.lookup(last_name(&entry.path)));
            self.enter(&entry, dir);
        }
        Some(Ok(entry))
    }

    /// Reads a directory, if it was found.
    fn enter(&mut self, entry: &WalkEntry, dir: Result<Node>) {
        match dir.and_then(|dir| Ok((dir.entries()?, dir))) {
            Ok((items, dir)) => {
                self.kept.push(dir);
                self.pending.extend(items.into_iter().rev().map(|DirItem { name, attr }| {
                    WalkEntry { path: join(&entry.path, &name), attr, depth: entry.depth + 1 }
                }));
            }
            Err(error) => self.failed = Some((entry.path.clone(), error)),
        }
    }
}

/// The walk of a mounted volume, which its server makes.
struct ServerWalk {
    tree: Tree,
    /// The path of the directory that is being listed.
    path: Vec<u8>,
    /// The lengths of its path and of the paths of the directories above it, by depth.
    lengths: Vec<usize>,
}

impl ServerWalk {
    fn new(tree: Tree, start: &[u8]) -> ServerWalk {
        ServerWalk { tree, path: start.to_vec(), lengths: vec![start.len()] }
    }

    fn next(&mut self, unread: &mut Vec<u8>) -> Option<Result<WalkEntry>> {
        let step = match self.tree.next()? {
            Ok(step) => self.take(step),
            Err(error) => Err(error),
        };
        Some(step.inspect_err(|_| unread.clone_from(&self.path)))
    }

    fn take(&mut self, Step { depth, found }: Step) -> Result<WalkEntry> {
        let depth = depth as usize;
        let (name, attr) = match found {
            Found::Entry { name, attr } => (name, attr),
            Found::Fault(fault) => {
                self.return_to(depth)?;
                return Err(fault.into());
            }
        };
        self.return_to(depth.checked_sub(1).ok_or_else(unexpected)?)?;
        let path = join(&self.path, &name);
        if attr.file_type == FileType::Directory {
            self.path.clone_from(&path);
            self.lengths.push(path.len());
        }
        Ok(WalkEntry { path, attr, depth })
    }

    /// Goes back to the directory of this depth.
    fn return_to(&mut self, depth: usize) -> Result<()> {
        let len = *self.lengths.get(depth).ok_or_else(unexpected)?;
        self.lengths.truncate(depth + 1);
        self.path.truncate(len);
        Ok(())
    }
}

fn unexpected() -> Error {
    Error::Io(BadMessage.into())
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
