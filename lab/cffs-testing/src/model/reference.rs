//! The reference: a UNIX file system in plain maps, and the effect of each operation on it.
//!
//! Functions return the kind of error that the volume must return as well.

use std::collections::{BTreeMap, BTreeSet};

use cffs::error::Error;
use cffs::format::inode::FileType;
use cffs::units::InodeNo;
use cffs::vfs::RenameMode;

use super::sparse::Sparse;

pub const ROOT: InodeNo = InodeNo::ROOT;

/// An error without details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    NoSpace,
    NotFound,
    Stale,
    Exists,
    NotDirectory,
    IsDirectory,
    NotEmpty,
    NameTooLong,
    TooLarge,
    Invalid,
    NotPermitted,
    NoAttribute,
    Range,
    NotSupported,
    NoData,
}

/// The kind of an error that an operation may return; other errors are failures of the volume.
pub fn kind(error: &Error) -> Option<Kind> {
    Some(match error {
        Error::NoSpace => Kind::NoSpace,
        Error::NotFound => Kind::NotFound,
        Error::Stale => Kind::Stale,
        Error::Exists => Kind::Exists,
        Error::NotDirectory => Kind::NotDirectory,
        Error::IsDirectory => Kind::IsDirectory,
        Error::NotEmpty => Kind::NotEmpty,
        Error::NameTooLong => Kind::NameTooLong,
        Error::TooLarge => Kind::TooLarge,
        Error::Invalid(_) => Kind::Invalid,
        Error::NotPermitted => Kind::NotPermitted,
        Error::NoAttribute => Kind::NoAttribute,
        Error::Range => Kind::Range,
        Error::NotSupported => Kind::NotSupported,
        Error::NoData => Kind::NoData,
        _ => return None,
    })
}

/// The contents of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    Bytes(Sparse),
    Names(BTreeMap<Vec<u8>, InodeNo>),
    Target(Vec<u8>),
    Nothing,
}

#[derive(Clone, Debug)]
pub struct Node {
    pub file_type: FileType,
    pub contents: Contents,
    pub nlink: u32,
    pub permissions: u32,
    pub uid: u32,
    pub device: u64,
    pub parent: InodeNo,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub references: u64,
}

impl Node {
    pub fn new(file_type: FileType, parent: InodeNo) -> Node {
        let contents = match file_type {
            FileType::Regular => Contents::Bytes(Sparse::default()),
            FileType::Directory => Contents::Names(BTreeMap::new()),
            _ => Contents::Nothing,
        };
        let nlink = if file_type == FileType::Directory { 2 } else { 1 };
        Node {
            file_type,
            contents,
            nlink,
            permissions: 0o644,
            uid: 0,
            device: 0,
            parent,
            xattrs: BTreeMap::new(),
            references: 0,
        }
    }

    pub fn is_dir(&self) -> bool {
        self.file_type == FileType::Directory
    }

    pub fn names(&self) -> Option<&BTreeMap<Vec<u8>, InodeNo>> {
        match &self.contents {
            Contents::Names(names) => Some(names),
            _ => None,
        }
    }

    pub fn bytes(&self) -> Result<&Sparse, Kind> {
        match &self.contents {
            Contents::Bytes(bytes) => Ok(bytes),
            Contents::Names(_) => Err(Kind::IsDirectory),
            _ => Err(Kind::Invalid),
        }
    }

    pub fn bytes_mut(&mut self) -> Result<&mut Sparse, Kind> {
        match &mut self.contents {
            Contents::Bytes(bytes) => Ok(bytes),
            Contents::Names(_) => Err(Kind::IsDirectory),
            _ => Err(Kind::Invalid),
        }
    }
}

/// A directory listing in progress: the names that have existed throughout, and those that were
/// returned.
#[derive(Clone, Debug)]
pub struct Cursor {
    pub dir: InodeNo,
    pub cookie: u64,
    pub throughout: BTreeSet<Vec<u8>>,
    pub seen: Vec<Vec<u8>>,
}

/// A whole file system.
#[derive(Clone, Debug)]
pub struct Reference {
    pub inodes: BTreeMap<InodeNo, Node>,
    pub cursor: Option<Cursor>,
}

impl Default for Reference {
    fn default() -> Reference {
        let root = Node { permissions: 0o755, ..Node::new(FileType::Directory, ROOT) };
        Reference { inodes: BTreeMap::from([(ROOT, root)]), cursor: None }
    }
}

impl Reference {
    pub fn node(&self, ino: InodeNo) -> Result<&Node, Kind> {
        self.inodes.get(&ino).ok_or(Kind::Stale)
    }

    pub fn node_mut(&mut self, ino: InodeNo) -> Result<&mut Node, Kind> {
        self.inodes.get_mut(&ino).ok_or(Kind::Stale)
    }

    pub fn check_name(name: &[u8]) -> Result<(), Kind> {
        match name {
            name if name.len() > 255 => Err(Kind::NameTooLong),
            b"" | b"." | b".." => Err(Kind::Invalid),
            name if name.contains(&b'/') || name.contains(&0) => Err(Kind::Invalid),
            _ => Ok(()),
        }
    }

    /// The entries of a modifiable directory.
    fn entries(&self, dir: InodeNo) -> Result<&BTreeMap<Vec<u8>, InodeNo>, Kind> {
        let node = self.node(dir)?;
        let names = node.names().ok_or(Kind::NotDirectory)?;
        if node.nlink == 0 { Err(Kind::NotFound) } else { Ok(names) }
    }

    pub fn lookup(&self, dir: InodeNo, name: &[u8]) -> Result<InodeNo, Kind> {
        let entries = self.entries(dir)?;
        Reference::check_name(name)?;
        entries.get(name).copied().ok_or(Kind::NotFound)
    }

    fn enter(&mut self, dir: InodeNo, name: &[u8], ino: InodeNo) {
        if let Some(Contents::Names(names)) = self.inodes.get_mut(&dir).map(|n| &mut n.contents) {
            names.insert(name.to_vec(), ino);
        }
        self.touched(dir, name);
    }

    fn take(&mut self, dir: InodeNo, name: &[u8]) {
        if let Some(Contents::Names(names)) = self.inodes.get_mut(&dir).map(|n| &mut n.contents) {
            names.remove(name);
        }
        self.touched(dir, name);
    }

    fn touched(&mut self, dir: InodeNo, name: &[u8]) {
        if let Some(cursor) = self.cursor.as_mut().filter(|cursor| cursor.dir == dir) {
            cursor.throughout.remove(name);
        }
    }

    /// Whether a file with this name can be created.
    pub fn may_make(&self, dir: InodeNo, name: &[u8]) -> Result<(), Kind> {
        self.node(dir)?;
        Reference::check_name(name)?;
        if self.entries(dir)?.contains_key(name) { Err(Kind::Exists) } else { Ok(()) }
    }

    pub fn make(&mut self, dir: InodeNo, name: &[u8], ino: InodeNo, node: Node) {
        if node.is_dir() {
            self.change(dir, |dir| dir.nlink += 1);
        }
        let before = self.inodes.insert(ino, node);
        assert!(before.is_none(), "inode {ino} is in use and was given out again");
        self.enter(dir, name, ino);
    }

    fn change(&mut self, ino: InodeNo, change: impl FnOnce(&mut Node)) {
        if let Some(node) = self.inodes.get_mut(&ino) {
            change(node);
        }
    }

    pub fn link(&mut self, ino: InodeNo, dir: InodeNo, name: &[u8]) -> Result<(), Kind> {
        self.node(ino)?;
        self.may_make(dir, name)?;
        if self.node(ino)?.is_dir() {
            return Err(Kind::NotPermitted);
        }
        self.change(ino, |node| node.nlink += 1);
        self.enter(dir, name, ino);
        Ok(())
    }

    pub fn unlink(&mut self, dir: InodeNo, name: &[u8]) -> Result<(), Kind> {
        let ino = self.lookup(dir, name)?;
        if self.node(ino)?.is_dir() {
            return Err(Kind::IsDirectory);
        }
        self.take(dir, name);
        self.name_gone(ino);
        Ok(())
    }

    pub fn remove_dir(&mut self, dir: InodeNo, name: &[u8]) -> Result<(), Kind> {
        let ino = self.lookup(dir, name)?;
        self.check_empty(ino)?;
        self.take(dir, name);
        self.change(dir, |dir| dir.nlink -= 1);
        self.name_gone(ino);
        Ok(())
    }

    fn check_empty(&self, ino: InodeNo) -> Result<(), Kind> {
        let names = self.node(ino)?.names().ok_or(Kind::NotDirectory)?;
        if names.is_empty() { Ok(()) } else { Err(Kind::NotEmpty) }
    }

    fn name_gone(&mut self, ino: InodeNo) {
        self.change(ino, |node| node.nlink = if node.is_dir() { 0 } else { node.nlink - 1 });
        self.forget_if_unused(ino);
    }

    fn forget_if_unused(&mut self, ino: InodeNo) {
        if self.inodes.get(&ino).is_some_and(|node| node.nlink == 0 && node.references == 0) {
            self.inodes.remove(&ino);
            self.cursor.take_if(|cursor| cursor.dir == ino);
        }
    }

    pub fn refer(&mut self, ino: InodeNo) {
        self.change(ino, |node| node.references += 1);
    }

    pub fn release(&mut self, ino: InodeNo) -> u64 {
        let count = self.inodes.get(&ino).map_or(0, |node| node.references);
        self.change(ino, |node| node.references = 0);
        self.forget_if_unused(ino);
        count
    }

    /// Records that the volume was closed: no inode is referenced.
    pub fn close(&mut self) {
        self.cursor = None;
        self.inodes.values_mut().for_each(|node| node.references = 0);
        self.inodes.retain(|_, node| node.nlink > 0);
    }

    fn is_below(&self, dir: InodeNo, above: InodeNo) -> bool {
        let mut at = dir;
        loop {
            if at == above {
                return true;
            }
            match self.inodes.get(&at) {
                Some(node) if at != ROOT => at = node.parent,
                _ => return false,
            }
        }
    }

    /// Renames; the caller numbers a whiteout left behind, by [`Reference::make`]. `Ok(false)` if
    /// nothing changes because both names belong to one file.
    pub fn rename(
        &mut self,
        (dir, name): (InodeNo, &[u8]),
        (new_dir, new_name): (InodeNo, &[u8]),
        mode: RenameMode,
    ) -> Result<bool, Kind> {
        self.node(dir)?;
        self.node(new_dir)?;
        Reference::check_name(new_name)?;
        let ino = self.lookup(dir, name)?;
        let target = self.entries(new_dir)?.get(new_name).copied();
        if mode == RenameMode::Exchange {
            return self.exchange((dir, name, ino), (new_dir, new_name, target));
        }
        let no_replace =
            matches!(mode, RenameMode::NoReplace | RenameMode::Whiteout { no_replace: true });
        if no_replace && target.is_some() {
            return Err(Kind::Exists);
        }
        let moves_dir = self.node(ino)?.is_dir();
        if moves_dir && self.is_below(new_dir, ino) {
            return Err(Kind::Invalid);
        }
        if target == Some(ino) {
            return Ok(false);
        }
        if let Some(target) = target {
            match (moves_dir, self.node(target)?.is_dir()) {
                (true, false) => return Err(Kind::NotDirectory),
                (false, true) => return Err(Kind::IsDirectory),
                (true, true) => self.check_empty(target)?,
                _ => {}
            }
        }
        self.take(dir, name);
        self.enter(new_dir, new_name, ino);
        self.change(ino, |node| node.parent = new_dir);
        if moves_dir {
            self.change(dir, |dir| dir.nlink -= 1);
            self.change(new_dir, |dir| dir.nlink += 1);
        }
        if let Some(target) = target {
            if moves_dir {
                self.change(new_dir, |dir| dir.nlink -= 1);
            }
            self.name_gone(target);
        }
        Ok(true)
    }

    fn exchange(
        &mut self,
        (dir, name, ino): (InodeNo, &[u8], InodeNo),
        (new_dir, new_name, target): (InodeNo, &[u8], Option<InodeNo>),
    ) -> Result<bool, Kind> {
        let target = target.ok_or(Kind::NotFound)?;
        if target == ino {
            return Ok(false);
        }
        let is_dir = |ino| self.node(ino).is_ok_and(Node::is_dir);
        let (source_dir, target_dir) = (is_dir(ino), is_dir(target));
        if source_dir && self.is_below(new_dir, ino) || target_dir && self.is_below(dir, target) {
            return Err(Kind::Invalid);
        }
        self.enter(dir, name, target);
        self.enter(new_dir, new_name, ino);
        self.change(ino, |node| node.parent = new_dir);
        self.change(target, |node| node.parent = dir);
        for (to, from, moved) in [(new_dir, dir, source_dir), (dir, new_dir, target_dir)] {
            if moved {
                self.change(to, |dir| dir.nlink += 1);
                self.change(from, |dir| dir.nlink -= 1);
            }
        }
        Ok(true)
    }

    /// Every name of the tree, with its directory.
    pub fn all_names(&self) -> Vec<(InodeNo, &[u8])> {
        let dirs = self.inodes.iter().filter_map(|(dir, node)| Some((*dir, node.names()?)));
        dirs.flat_map(|(dir, names)| names.keys().map(move |name| (dir, name.as_slice()))).collect()
    }
}
