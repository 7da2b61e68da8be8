//! The tree of a volume, and the trees that a crash may leave.
//!
//! The promise (docs/RELIABILITY.md), name by name and inode by inode, over the **window** from the last
//! durable state to the moment of the crash:
//!
//! 1. a name refers to an inode that it referred to in the window, and exists if it existed throughout;
//! 2. an inode has contents and attributes that it had at one moment of the window, and exists if it existed
//!    throughout; a file that is large, or ever was, or ever had that much space, is overwritten in place and
//!    may mix them sector by sector;
//! 3. an inode that always had exactly one name has exactly one: a rename happened or did not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cffs::format::inode::FileType;
use cffs::units::InodeNo;
use cffs::vfs::Volume;

/// Files with more space than this may be overwritten in place, even when they are smaller again.
const IN_PLACE_BYTES: usize = 8192;
/// The smallest piece that a device writes atomically.
const SECTOR_BYTES: usize = 512;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub file_type: FileType,
    owner: (u32, u32, u32),
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    bytes: Arc<Vec<u8>>,
}

pub type Name = (InodeNo, Vec<u8>);

/// All names, each by directory and name, and all inodes.
#[derive(Clone, Default)]
pub struct Tree {
    pub names: BTreeMap<Name, InodeNo>,
    inodes: BTreeMap<InodeNo, Node>,
    /// How many names each inode has.
    name_counts: BTreeMap<InodeNo, usize>,
    /// Files that may be overwritten in place.
    in_place: BTreeSet<InodeNo>,
}

impl Tree {
    /// Everything on a volume.
    pub fn of(volume: &Volume) -> Result<Tree, String> {
        let mut tree = Tree::default();
        let mut todo = vec![InodeNo::ROOT];
        while let Some(dir) = todo.pop() {
            let mut entries = Vec::new();
            let read = volume.read_dir(dir, 0, true, &mut |entry| {
                entries.push((entry.name.to_vec(), entry.attr.expect("attributes")));
                true
            });
            read.map_err(|error| format!("reading directory {dir}: {error}"))?;
            for (name, attr) in entries {
                let node = node(volume, &attr).map_err(|e| format!("inode {}: {e}", attr.ino))?;
                volume.release(attr.ino, 1);
                if attr.file_type == FileType::Directory {
                    todo.push(attr.ino);
                }
                if node.bytes.len().max(attr.allocated_bytes as usize) > IN_PLACE_BYTES {
                    tree.in_place.insert(attr.ino);
                }
                tree.inodes.insert(attr.ino, node);
                *tree.name_counts.entry(attr.ino).or_default() += 1;
                if let Some(twice) = tree.names.insert((dir, name), attr.ino) {
                    return Err(format!("a name of inode {twice} exists twice"));
                }
            }
        }
        Ok(tree)
    }

    fn paths(&self) -> BTreeMap<Vec<u8>, InodeNo> {
        let mut paths = BTreeMap::new();
        let mut todo = vec![(InodeNo::ROOT, Vec::new())];
        while let Some((dir, path)) = todo.pop() {
            for ((_, name), ino) in
                self.names.range((dir, Vec::new())..(InodeNo(dir.0 + 1), Vec::new()))
            {
                let separator: &[u8] = if path.is_empty() { b"" } else { b"/" };
                let path = [&path[..], separator, name].concat();
                if self.inodes[ino].file_type == FileType::Directory {
                    todo.push((*ino, path.clone()));
                }
                paths.insert(path, *ino);
            }
        }
        paths
    }

    fn name_count(&self, ino: InodeNo) -> usize {
        self.name_counts.get(&ino).copied().unwrap_or(0)
    }

    fn names_of(&self, ino: InodeNo) -> impl Iterator<Item = &Name> {
        self.names.iter().filter(move |(_, of)| **of == ino).map(|(name, _)| name)
    }
}

fn node(volume: &Volume, attr: &cffs::vfs::Attr) -> Result<Node, cffs::error::Error> {
    let bytes = match attr.file_type {
        FileType::Regular => {
            let mut bytes = vec![0; attr.size as usize];
            let len = volume.read(attr.ino, 0, &mut bytes)?;
            bytes.truncate(len);
            bytes
        }
        FileType::Symlink => volume.read_link(attr.ino)?,
        _ => Vec::new(),
    };
    let mut xattrs = BTreeMap::new();
    for name in volume.xattr_names(attr.ino)? {
        let value = volume.xattr(attr.ino, &name)?;
        xattrs.insert(name, value);
    }
    Ok(Node {
        file_type: attr.file_type,
        owner: (attr.permissions, attr.uid, attr.gid),
        xattrs,
        bytes: Arc::new(bytes),
    })
}

/// The states that a volume went through, and the oldest one that a crash may restore.
pub struct History {
    states: Vec<Tree>,
    floor: usize,
    inode_floors: BTreeMap<InodeNo, usize>,
    name_floors: BTreeMap<Name, usize>,
    in_place: BTreeSet<InodeNo>,
}

impl History {
    pub fn new(start: Tree) -> History {
        History {
            in_place: start.in_place.clone(),
            states: vec![start],
            floor: 0,
            inode_floors: BTreeMap::new(),
            name_floors: BTreeMap::new(),
        }
    }

    pub fn push(&mut self, state: Tree) {
        self.in_place.extend(&state.in_place);
        self.states.push(state);
    }

    /// Records that a sync was acknowledged: no state older than the newest may be restored.
    pub fn synced(&mut self) {
        self.states.drain(..self.states.len() - 1);
        self.floor = 0;
        self.inode_floors.clear();
        self.name_floors.clear();
    }

    /// Records that a sync of one file was acknowledged: it covers the file and its names. A directory above
    /// it that has just moved may be back at its old place, with its contents.
    pub fn file_synced(&mut self, ino: InodeNo) {
        let now = self.states.len() - 1;
        self.inode_floors.insert(ino, now);
        for name in self.states[now].names_of(ino) {
            self.name_floors.insert(name.clone(), now);
        }
    }

    /// Fails if a difference between a tree with a mark and the tree that was found is not `listed`. Contents
    /// of a file that may be overwritten in place need not be listed before they are synced.
    pub fn check_listed(
        &self,
        marked: &Tree,
        found: &Tree,
        listed: &BTreeSet<Vec<u8>>,
    ) -> Result<(), String> {
        let missing = |path: &[u8], why: &str| {
            let path = String::from_utf8_lossy(path);
            Err(format!("'{path}' {why} since the mark, and is not listed: {listed:?}"))
        };
        let (before, now) = (marked.paths(), found.paths());
        for (path, ino) in &now {
            if before.get(path) != Some(ino) && !listed.contains(path) {
                return missing(path, "is new");
            }
            let (old, new) = (marked.inodes.get(ino), &found.inodes[ino]);
            let Some(old) = old.filter(|old| *old != new) else { continue };
            let resized = old.bytes.len() != new.bytes.len();
            let is_other = resized || Node { bytes: old.bytes.clone(), ..new.clone() } != *old;
            let was_old = |state: &Tree| state.inodes.get(ino).is_none_or(|node| node == old);
            let may_be_old = self.window_of_inode(*ino).iter().any(was_old);
            let is_excused = !is_other && self.in_place.contains(ino) && may_be_old;
            if !is_excused && !listed.contains(path) {
                return missing(path, "changed");
            }
        }
        for (path, ino) in &before {
            if now.get(path) == Some(ino) {
                continue;
            }
            let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
            let is_there = end == 0 || now.contains_key(&path[..end]);
            if is_there && !listed.contains(&path[..end]) {
                return missing(&path[..end], "lost a name");
            }
        }
        Ok(())
    }

    fn window_of_inode(&self, ino: InodeNo) -> &[Tree] {
        &self.states[self.inode_floors.get(&ino).copied().unwrap_or(self.floor)..]
    }

    fn window_of_name(&self, name: &Name) -> &[Tree] {
        &self.states[self.name_floors.get(name).copied().unwrap_or(self.floor)..]
    }

    /// Whether the found tree equals, as a whole, one state of the window.
    pub fn is_moment(&self, found: &Tree) -> bool {
        self.states.iter().any(|s| s.names == found.names && s.inodes == found.inodes)
    }

    /// The reason why a crash may not leave this state.
    pub fn refuse(&self, found: &Tree) -> Result<(), String> {
        for (name, ino) in &found.names {
            if !self.window_of_name(name).iter().any(|state| state.names.get(name) == Some(ino)) {
                return Err(format!("{} never stood for inode {ino}", shown(name)));
            }
        }
        for (ino, node) in &found.inodes {
            let in_place = self.in_place.contains(ino);
            if !was(self.window_of_inode(*ino), *ino, node, in_place) {
                return Err(format!("inode {ino} never was like this: {}", sketch(node)));
            }
        }
        // Every window ends with the newest state, so what was there throughout is there.
        let newest = self.states.last().expect("the first state");
        for name in newest.names.keys().filter(|name| !found.names.contains_key(*name)) {
            if self.window_of_name(name).iter().all(|s| s.names.contains_key(name)) {
                return Err(format!("{} is gone", shown(name)));
            }
        }
        for ino in newest.inodes.keys() {
            let window = self.window_of_inode(*ino);
            if window.iter().all(|s| s.inodes.contains_key(ino)) {
                let one = window.iter().all(|s| s.name_count(*ino) == 1);
                match found.name_count(*ino) {
                    0 => return Err(format!("inode {ino} is gone")),
                    2.. if one => return Err(format!("inode {ino} has two names, never had")),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// Whether an inode had this state in the window, or is a mixture of states and may be overwritten in place.
fn was(window: &[Tree], ino: InodeNo, found: &Node, in_place: bool) -> bool {
    let versions: Vec<&Node> = window.iter().filter_map(|state| state.inodes.get(&ino)).collect();
    if versions.contains(&found) {
        return true;
    }
    if !in_place {
        return false;
    }
    let head = |node: &Node| {
        (node.file_type, node.owner, node.xattrs.clone(), node.bytes.len()) == {
            (found.file_type, found.owner, found.xattrs.clone(), found.bytes.len())
        }
    };
    versions.iter().any(|node| head(node))
        && found.bytes.chunks(SECTOR_BYTES).enumerate().all(|(index, piece)| {
            versions.iter().any(|node| {
                let old = node.bytes.get(index * SECTOR_BYTES..).unwrap_or(&[]);
                let len = old.len().min(piece.len());
                old[..len] == piece[..len] && piece[len..].iter().all(|byte| *byte == 0)
            })
        })
}

fn shown((dir, name): &Name) -> String {
    format!("{} in directory {dir}", String::from_utf8_lossy(name))
}

fn sketch(node: &Node) -> String {
    let (len, first, last) = (node.bytes.len(), node.bytes.first(), node.bytes.last());
    format!(
        "{:?} {:?}, {len} bytes from {first:?} to {last:?}, {} attributes",
        node.file_type,
        node.owner,
        node.xattrs.len()
    )
}
