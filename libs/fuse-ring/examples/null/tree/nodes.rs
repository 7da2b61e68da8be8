//! The inodes and names of the tree, and their references to each other.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime};

use fuse_ring::Errno;
use fuse_ring::protocol::{Attr, Context, Entry, Full, ListingPlus, NodeId, Timestamp};

use super::Seen;

pub const TTL: Duration = Duration::from_secs(3600);

#[derive(Debug)]
pub struct Nodes {
    pub nodes: HashMap<NodeId, Node>,
    pub last: u64,
    pub seen: Seen,
}

#[derive(Debug)]
pub struct Node {
    pub attr: Attr,
    pub btime: Timestamp,
    pub lookups: u64,
    pub content: Content,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

#[derive(Debug)]
pub enum Content {
    /// A file's data, or a symbolic link's target.
    Data(Vec<u8>),
    Directory(Directory),
}

/// A directory's entries, by name and by the cookie from which listings continue. The cookies 1 and
/// 2 are `.` and `..`.
#[derive(Debug)]
pub struct Directory {
    pub parent: NodeId,
    pub names: HashMap<Vec<u8>, (u64, NodeId)>,
    pub order: BTreeMap<u64, Vec<u8>>,
    pub last_cookie: u64,
}

impl Directory {
    pub fn new(parent: NodeId) -> Directory {
        Directory { parent, names: HashMap::new(), order: BTreeMap::new(), last_cookie: 2 }
    }

    pub fn insert(&mut self, name: &[u8], node: NodeId) {
        self.last_cookie += 1;
        self.names.insert(name.to_vec(), (self.last_cookie, node));
        self.order.insert(self.last_cookie, name.to_vec());
    }

    pub fn remove(&mut self, name: &[u8]) -> Option<NodeId> {
        let (cookie, node) = self.names.remove(name)?;
        self.order.remove(&cookie);
        Some(node)
    }
}

impl Node {
    pub fn is_dir(&self) -> bool {
        matches!(self.content, Content::Directory(_))
    }

    pub fn resize(&mut self, size: u64) -> Result<(), Errno> {
        let Content::Data(data) = &mut self.content else { return Err(Errno::ISDIR) };
        data.resize(usize::try_from(size).map_err(|_| Errno::FBIG)?, 0);
        self.attr.size = size;
        self.attr.blocks = size.div_ceil(512);
        Ok(())
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let end = offset.checked_add(bytes.len() as u64).ok_or(Errno::FBIG)?;
        if end > self.attr.size {
            self.resize(end)?;
        }
        let Content::Data(data) = &mut self.content else { return Err(Errno::ISDIR) };
        let start = usize::try_from(offset).map_err(|_| Errno::FBIG)?;
        data[start..start + bytes.len()].copy_from_slice(bytes);
        self.attr.mtime = now();
        self.attr.ctime = self.attr.mtime;
        Ok(())
    }
}

impl Nodes {
    /// A tree with only the root.
    pub fn new(mode: u32, uid: u32, gid: u32) -> Nodes {
        let mut nodes = Nodes { nodes: HashMap::new(), last: 0, seen: Seen::default() };
        let root = nodes.add(mode, uid, gid, Content::Directory(Directory::new(NodeId::ROOT)));
        if let Some(root) = nodes.nodes.get_mut(&root) {
            root.attr.nlink = 2;
        }
        nodes
    }

    pub fn get(&self, node: NodeId) -> Result<&Node, Errno> {
        self.nodes.get(&node).ok_or(Errno::STALE)
    }

    pub fn get_mut(&mut self, node: NodeId) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&node).ok_or(Errno::STALE)
    }

    pub fn dir(&self, node: NodeId) -> Result<&Directory, Errno> {
        match &self.get(node)?.content {
            Content::Directory(directory) => Ok(directory),
            Content::Data(_) => Err(Errno::NOTDIR),
        }
    }

    pub fn dir_mut(&mut self, node: NodeId) -> Result<&mut Directory, Errno> {
        match &mut self.get_mut(node)?.content {
            Content::Directory(directory) => Ok(directory),
            Content::Data(_) => Err(Errno::NOTDIR),
        }
    }

    pub fn find(&self, parent: NodeId, name: &[u8]) -> Result<NodeId, Errno> {
        self.dir(parent)?.names.get(name).map(|(_, node)| *node).ok_or(Errno::NOENT)
    }

    pub fn add(&mut self, mode: u32, uid: u32, gid: u32, content: Content) -> NodeId {
        self.last += 1;
        let now = now();
        let attr = Attr {
            ino: self.last,
            mode,
            uid,
            gid,
            blksize: 4096,
            atime: now,
            mtime: now,
            ctime: now,
            ..Attr::default()
        };
        let node = Node { attr, btime: now, lookups: 0, content, xattrs: BTreeMap::new() };
        self.nodes.insert(NodeId(self.last), node);
        NodeId(self.last)
    }

    /// Creates an inode with a name.
    pub fn make(
        &mut self,
        cx: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        mode: u32,
        content: Content,
    ) -> Result<NodeId, Errno> {
        if self.dir(parent)?.names.contains_key(name) {
            return Err(Errno::EXIST);
        }
        let is_dir = matches!(content, Content::Directory(_));
        let node = self.add(mode, cx.uid, cx.gid, content);
        self.touch_dir(parent, i64::from(is_dir))?;
        Ok(self.name(parent, name, node))
    }

    /// Adds the first name of a new inode.
    pub fn name(&mut self, parent: NodeId, name: &[u8], node: NodeId) -> NodeId {
        if let Some(found) = self.nodes.get_mut(&node) {
            found.attr.nlink = if found.is_dir() { 2 } else { 1 };
        }
        if let Ok(directory) = self.dir_mut(parent) {
            directory.insert(name, node);
        }
        node
    }

    pub fn touch_dir(&mut self, node: NodeId, subdirs: i64) -> Result<(), Errno> {
        let attr = &mut self.get_mut(node)?.attr;
        attr.nlink = attr.nlink.saturating_add_signed(subdirs as i32);
        attr.mtime = now();
        attr.ctime = attr.mtime;
        Ok(())
    }

    /// Removes a name of a node.
    pub fn drop_name(&mut self, node: NodeId) -> Result<(), Errno> {
        let found = self.get_mut(node)?;
        found.attr.nlink = if found.is_dir() { 0 } else { found.attr.nlink - 1 };
        found.attr.ctime = now();
        self.reap(node);
        Ok(())
    }

    pub fn reap(&mut self, node: NodeId) {
        if self.nodes.get(&node).is_some_and(|found| found.attr.nlink == 0 && found.lookups == 0) {
            self.nodes.remove(&node);
        }
    }

    pub fn remove(&mut self, parent: NodeId, name: &[u8], dir: bool) -> Result<(), Errno> {
        let node = self.find(parent, name)?;
        match &self.get(node)?.content {
            Content::Directory(_) if !dir => return Err(Errno::ISDIR),
            Content::Data(_) if dir => return Err(Errno::NOTDIR),
            Content::Directory(found) if !found.names.is_empty() => return Err(Errno::NOTEMPTY),
            _ => {}
        }
        self.dir_mut(parent)?.remove(name);
        self.touch_dir(parent, -i64::from(dir))?;
        self.drop_name(node)
    }

    /// The entry of a node; counts one more lookup by the kernel.
    pub fn entry(&mut self, node: NodeId) -> Result<Entry, Errno> {
        let found = self.get_mut(node)?;
        found.lookups += 1;
        Ok(entry_of(node, found))
    }

    /// Adds the entry to the listing, and counts the lookup if the entry fitted.
    pub fn push(
        &mut self,
        listing: &mut ListingPlus<'_>,
        node: NodeId,
        cookie: u64,
        name: &[u8],
    ) -> Result<(), Full> {
        let Some(found) = self.nodes.get_mut(&node) else { return Ok(()) };
        listing.push(&entry_of(node, found), cookie, name)?;
        found.lookups += 1;
        Ok(())
    }
}

pub fn entry_of(node: NodeId, found: &Node) -> Entry {
    Entry { node, generation: 0, attr: found.attr, entry_ttl: TTL, attr_ttl: TTL }
}

pub fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanoseconds: since.subsec_nanos(),
    }
}
