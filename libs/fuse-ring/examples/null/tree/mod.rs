//! A minimal but correct file system in memory, with which the transports are measured and tested. One lock
//! guards all of it.

mod nodes;

use std::sync::{Arc, Mutex, MutexGuard};

use fuse_ring::protocol::{
    AttrReply, Context, CopyFileRange, Create, Entry, Fallocate, FileHandle, Listing, ListingPlus,
    LockOwner, NodeId, Open, Opened, Read, Rename, SetAttr, SetTime, SetXattr, Statfs, StatxReply,
    Write,
};
use fuse_ring::{Errno, Handler};

use nodes::{Content, Directory, Nodes, TTL, now};

const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFLNK: u32 = 0o120_000;
const S_IFREG: u32 = 0o100_000;
const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;
const O_TRUNC: u32 = 0o1000;
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// The file system. Clones share it, so that a program can hand one to the session and keep another.
#[derive(Clone, Debug)]
pub struct Tree(Arc<Mutex<Nodes>>);

/// Counts of the kernel's requests, for tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// The longest read and the longest write in bytes.
    pub largest: (usize, usize),
    /// How often a file was opened by `OPEN`.
    pub opens: u64,
    /// How often a range was copied.
    pub copies: u64,
    /// How often the session ended.
    pub destroyed: u64,
    /// Whether the kernel forgot a lookup that it had not made.
    pub forgotten_too_often: bool,
}

impl Default for Tree {
    /// An empty tree that belongs to the user of this process.
    fn default() -> Tree {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        Tree(Arc::new(Mutex::new(Nodes::new(S_IFDIR | 0o755, uid.as_raw(), gid.as_raw()))))
    }
}

impl Tree {
    /// The number of lookups that the kernel holds, according to this side.
    #[allow(dead_code, reason = "for tests")]
    pub fn lookups(&self) -> u64 {
        self.tree().nodes.values().map(|node| node.lookups).sum()
    }

    /// The number of inodes, including the root and those without names.
    #[allow(dead_code, reason = "for tests")]
    pub fn inodes(&self) -> usize {
        self.tree().nodes.len()
    }

    /// The requests up to now.
    #[allow(dead_code, reason = "for tests")]
    pub fn seen(&self) -> Seen {
        self.tree().seen
    }

    /// Creates or changes a file in the root without the kernel's knowledge.
    #[allow(dead_code, reason = "for tests")]
    pub fn put(&self, name: &[u8], data: &[u8]) -> NodeId {
        let mut tree = self.tree();
        let node = tree.find(NodeId::ROOT, name).unwrap_or_else(|_| {
            let node = tree.add(S_IFREG | 0o644, 0, 0, Content::Data(Vec::new()));
            tree.name(NodeId::ROOT, name, node)
        });
        if let Ok(found) = tree.get_mut(node) {
            found.attr.size = data.len() as u64;
            found.content = Content::Data(data.to_vec());
        }
        node
    }

    /// Removes a file of the root without the kernel's knowledge.
    #[allow(dead_code, reason = "for tests")]
    pub fn take(&self, name: &[u8]) -> Result<(), Errno> {
        self.tree().remove(NodeId::ROOT, name, false)
    }

    fn tree(&self) -> MutexGuard<'_, Nodes> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Copies as much as fits, and returns the whole length.
fn copy_out(value: &[u8], buf: &mut [u8]) -> usize {
    if let Some(target) = buf.get_mut(..value.len()) {
        target.copy_from_slice(value);
    }
    value.len()
}

impl Handler for Tree {
    fn destroy(&self) {
        self.tree().seen.destroyed += 1;
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        let mut tree = self.tree();
        let left = tree.nodes.get(&node).and_then(|found| found.lookups.checked_sub(lookups));
        match (left, tree.nodes.get_mut(&node)) {
            (Some(left), Some(found)) => found.lookups = left,
            // The root is not looked up, but may be forgotten nevertheless.
            _ if node == NodeId::ROOT => {}
            _ => tree.seen.forgotten_too_often = true,
        }
        tree.reap(node);
    }

    fn lookup(&self, _: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        let mut tree = self.tree();
        match tree.find(parent, name) {
            Ok(node) => tree.entry(node),
            Err(Errno::NOENT) => Ok(Entry::negative(TTL)),
            Err(errno) => Err(errno),
        }
    }

    fn getattr(
        &self,
        _: &Context<'_>,
        node: NodeId,
        _: Option<FileHandle>,
    ) -> Result<AttrReply, Errno> {
        Ok(AttrReply { attr: self.tree().get(node)?.attr, ttl: TTL })
    }

    fn setattr(&self, _: &Context<'_>, node: NodeId, set: &SetAttr) -> Result<AttrReply, Errno> {
        let mut tree = self.tree();
        let found = tree.get_mut(node)?;
        let now = now();
        let time = |set: SetTime| match set {
            SetTime::Now => now,
            SetTime::At(time) => time,
        };
        if let Some(size) = set.size {
            found.resize(size)?;
            found.attr.mtime = now;
        }
        let attr = &mut found.attr;
        attr.mode = set.mode.map_or(attr.mode, |mode| (attr.mode & S_IFMT) | (mode & !S_IFMT));
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        attr.atime = set.atime.map_or(attr.atime, time);
        attr.mtime = set.mtime.map_or(attr.mtime, time);
        attr.ctime = now;
        Ok(AttrReply { attr: *attr, ttl: TTL })
    }

    fn statx(
        &self,
        _: &Context<'_>,
        node: NodeId,
        _: Option<FileHandle>,
        _flags: u32,
        _mask: u32,
    ) -> Result<StatxReply, Errno> {
        let tree = self.tree();
        let found = tree.get(node)?;
        Ok(StatxReply {
            attr: found.attr,
            ttl: TTL,
            btime: Some(found.btime),
            attributes: 0,
            attributes_mask: 0,
        })
    }

    fn readlink(&self, _: &Context<'_>, node: NodeId, buf: &mut [u8]) -> Result<usize, Errno> {
        match &self.tree().get(node)?.content {
            Content::Data(target) => Ok(copy_out(target, buf)),
            Content::Directory(_) => Err(Errno::INVAL),
        }
    }

    fn symlink(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
    ) -> Result<Entry, Errno> {
        let mut tree = self.tree();
        let content = Content::Data(target.to_vec());
        let node = tree.make(cx, parent, name, S_IFLNK | 0o777, content)?;
        tree.get_mut(node)?.attr.size = target.len() as u64;
        tree.entry(node)
    }

    fn mknod(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        mode: u32,
        rdev: u32,
        _umask: u32,
    ) -> Result<Entry, Errno> {
        let mut tree = self.tree();
        let node = tree.make(cx, parent, name, mode, Content::Data(Vec::new()))?;
        tree.get_mut(node)?.attr.rdev = rdev;
        tree.entry(node)
    }

    fn mkdir(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        mode: u32,
        _umask: u32,
    ) -> Result<Entry, Errno> {
        let mut tree = self.tree();
        let content = Content::Directory(Directory::new(parent));
        let node = tree.make(cx, parent, name, S_IFDIR | mode, content)?;
        tree.entry(node)
    }

    fn unlink(&self, _: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.tree().remove(parent, name, false)
    }

    fn rmdir(&self, _: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.tree().remove(parent, name, true)
    }

    fn rename(&self, _: &Context<'_>, parent: NodeId, what: &Rename<'_>) -> Result<(), Errno> {
        let Rename { name, new_parent, new_name, flags } = *what;
        let mut tree = self.tree();
        let node = tree.find(parent, name)?;
        let target = tree.find(new_parent, new_name).ok();
        if target == Some(node) {
            return Ok(());
        }
        match flags {
            0 => {
                if let Some(target) = target {
                    let dir = tree.get(target)?.is_dir();
                    if dir != tree.get(node)?.is_dir() {
                        return Err(if dir { Errno::ISDIR } else { Errno::NOTDIR });
                    }
                    tree.remove(new_parent, new_name, dir)?;
                }
            }
            RENAME_NOREPLACE if target.is_some() => return Err(Errno::EXIST),
            RENAME_NOREPLACE => {}
            RENAME_EXCHANGE => {
                let target = target.ok_or(Errno::NOENT)?;
                tree.dir_mut(new_parent)?.remove(new_name);
                tree.dir_mut(parent)?.remove(name);
                tree.dir_mut(parent)?.insert(name, target);
                tree.dir_mut(new_parent)?.insert(new_name, node);
                return Ok(());
            }
            _ => return Err(Errno::INVAL),
        }
        let subdirs = i64::from(tree.get(node)?.is_dir());
        tree.dir_mut(parent)?.remove(name);
        tree.touch_dir(parent, -subdirs)?;
        tree.dir_mut(new_parent)?.insert(new_name, node);
        tree.touch_dir(new_parent, subdirs)?;
        if let Content::Directory(moved) = &mut tree.get_mut(node)?.content {
            moved.parent = new_parent;
        }
        Ok(())
    }

    fn link(
        &self,
        _: &Context<'_>,
        node: NodeId,
        new_parent: NodeId,
        new_name: &[u8],
    ) -> Result<Entry, Errno> {
        let mut tree = self.tree();
        if tree.find(new_parent, new_name).is_ok() {
            return Err(Errno::EXIST);
        }
        tree.get_mut(node)?.attr.nlink += 1;
        tree.dir_mut(new_parent)?.insert(new_name, node);
        tree.touch_dir(new_parent, 0)?;
        tree.entry(node)
    }

    fn open(&self, _: &Context<'_>, node: NodeId, open: &Open) -> Result<Opened, Errno> {
        let mut tree = self.tree();
        tree.seen.opens += 1;
        if open.flags & O_TRUNC != 0 {
            tree.get_mut(node)?.resize(0)?;
        }
        Ok(Opened::default())
    }

    fn create(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        create: &Create,
    ) -> Result<(Entry, Opened), Errno> {
        let mut tree = self.tree();
        let mode = S_IFREG | (create.mode & !S_IFMT);
        let node = tree.make(cx, parent, name, mode, Content::Data(Vec::new()))?;
        Ok((tree.entry(node)?, Opened::default()))
    }

    fn tmpfile(
        &self,
        cx: &Context<'_>,
        _: NodeId,
        create: &Create,
    ) -> Result<(Entry, Opened), Errno> {
        let mut tree = self.tree();
        let mode = S_IFREG | (create.mode & !S_IFMT);
        let node = tree.add(mode, cx.uid, cx.gid, Content::Data(Vec::new()));
        Ok((tree.entry(node)?, Opened::default()))
    }

    fn read(
        &self,
        _: &Context<'_>,
        node: NodeId,
        read: &Read,
        buf: &mut [u8],
    ) -> Result<usize, Errno> {
        let mut tree = self.tree();
        tree.seen.largest.0 = tree.seen.largest.0.max(buf.len());
        let Content::Data(data) = &tree.get(node)?.content else { return Err(Errno::ISDIR) };
        let start = usize::try_from(read.offset).unwrap_or(usize::MAX).min(data.len());
        let len = buf.len().min(data.len() - start);
        buf[..len].copy_from_slice(&data[start..start + len]);
        Ok(len)
    }

    fn write(&self, _: &Context<'_>, node: NodeId, write: &Write<'_>) -> Result<usize, Errno> {
        let mut tree = self.tree();
        tree.seen.largest.1 = tree.seen.largest.1.max(write.data.len());
        tree.get_mut(node)?.write(write.offset, write.data)?;
        Ok(write.data.len())
    }

    fn statfs(&self, _: &Context<'_>, _: NodeId) -> Result<Statfs, Errno> {
        let files = self.tree().nodes.len() as u64;
        Ok(Statfs {
            blocks: 1 << 20,
            bfree: 1 << 20,
            bavail: 1 << 20,
            files,
            ffree: 1 << 20,
            bsize: 4096,
            frsize: 4096,
            namelen: 255,
        })
    }

    fn flush(&self, _: &Context<'_>, _: NodeId, _: FileHandle, _: LockOwner) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    fn readdir(
        &self,
        _: &Context<'_>,
        node: NodeId,
        read: &Read,
        listing: &mut Listing<'_>,
    ) -> Result<(), Errno> {
        let tree = self.tree();
        let directory = tree.dir(node)?;
        for (cookie, name, ino) in [(1, b".".as_slice(), node), (2, b"..", directory.parent)] {
            if cookie > read.offset && listing.push(ino.0, S_IFDIR, cookie, name).is_err() {
                return Ok(());
            }
        }
        for (&cookie, name) in directory.order.range(read.offset.saturating_add(1)..) {
            let attr = tree.get(directory.names[name].1)?.attr;
            if listing.push(attr.ino, attr.mode, cookie, name).is_err() {
                break;
            }
        }
        Ok(())
    }

    fn readdirplus(
        &self,
        _: &Context<'_>,
        node: NodeId,
        read: &Read,
        listing: &mut ListingPlus<'_>,
    ) -> Result<(), Errno> {
        let mut tree = self.tree();
        let directory = tree.dir(node)?;
        for (cookie, name, ino) in [(1, b".".as_slice(), node), (2, b"..", directory.parent)] {
            if cookie > read.offset && listing.push_name(ino.0, S_IFDIR, cookie, name).is_err() {
                return Ok(());
            }
        }
        let mut cookie = read.offset;
        loop {
            let directory = tree.dir(node)?;
            let next = directory.order.range(cookie.saturating_add(1)..).next();
            let Some((&at, name)) = next else { return Ok(()) };
            let (name, child) = (name.clone(), directory.names[name].1);
            if tree.push(listing, child, at, &name).is_err() {
                return Ok(());
            }
            cookie = at;
        }
    }

    fn fallocate(&self, _: &Context<'_>, node: NodeId, what: &Fallocate) -> Result<(), Errno> {
        let mut tree = self.tree();
        let found = tree.get_mut(node)?;
        let end = what.offset.checked_add(what.length).ok_or(Errno::FBIG)?;
        match what.mode {
            0 if end > found.attr.size => found.resize(end),
            0 => Ok(()),
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    /// Everything is data; the only hole is at the end.
    fn lseek(
        &self,
        _: &Context<'_>,
        node: NodeId,
        _: FileHandle,
        offset: u64,
        whence: u32,
    ) -> Result<u64, Errno> {
        let size = self.tree().get(node)?.attr.size;
        match whence {
            _ if offset >= size => Err(Errno::NXIO),
            SEEK_DATA => Ok(offset),
            SEEK_HOLE => Ok(size),
            _ => Err(Errno::INVAL),
        }
    }

    fn copy_file_range(
        &self,
        _: &Context<'_>,
        node: NodeId,
        copy: &CopyFileRange,
    ) -> Result<u64, Errno> {
        let mut tree = self.tree();
        tree.seen.copies += 1;
        let Content::Data(data) = &tree.get(node)?.content else { return Err(Errno::ISDIR) };
        let clip = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(data.len());
        let (start, end) = (clip(copy.offset_in), clip(copy.offset_in.saturating_add(copy.length)));
        let part = data[start..end].to_vec();
        tree.get_mut(copy.node_out)?.write(copy.offset_out, &part)?;
        Ok(part.len() as u64)
    }

    fn setxattr(&self, _: &Context<'_>, node: NodeId, set: &SetXattr<'_>) -> Result<(), Errno> {
        let mut tree = self.tree();
        tree.get_mut(node)?.xattrs.insert(set.name.to_vec(), set.value.to_vec());
        Ok(())
    }

    fn getxattr(
        &self,
        _: &Context<'_>,
        node: NodeId,
        name: &[u8],
        buf: &mut [u8],
    ) -> Result<usize, Errno> {
        let tree = self.tree();
        let value = tree.get(node)?.xattrs.get(name).ok_or(Errno::NODATA)?;
        Ok(copy_out(value, buf))
    }

    fn listxattr(&self, _: &Context<'_>, node: NodeId, buf: &mut [u8]) -> Result<usize, Errno> {
        let tree = self.tree();
        let mut list = Vec::new();
        for name in tree.get(node)?.xattrs.keys() {
            list.extend_from_slice(name);
            list.push(0);
        }
        Ok(copy_out(&list, buf))
    }

    fn removexattr(&self, _: &Context<'_>, node: NodeId, name: &[u8]) -> Result<(), Errno> {
        let removed = self.tree().get_mut(node)?.xattrs.remove(name);
        removed.map(drop).ok_or(Errno::NODATA)
    }
}
