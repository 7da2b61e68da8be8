//! How an inode comes into memory: from an entry at hand, or by its number.

use std::sync::Arc;

use super::{Content, ExtentMap, Inode, Store, Vnode};
use crate::error::{Corruption, Error, Result};
use crate::format::extent::{Extent, MAP_DEPTH_MAX, Node};
use crate::format::inode::{FileType, InodeFlags, Record};
use crate::format::sector::Body;
use crate::units::{BlockNo, Container, FragNo, FragRun, InodeNo, Key};

/// More directories than this above a file are a loop.
const ANCESTORS_MAX: usize = 1 << 20;

/// How an inode is found in the container that the locator table names.
enum Search {
    Found(Arc<Vnode>),
    /// The container does not have it.
    Missing,
}

impl Store {
    /// The vnode of an inode by its number.
    ///
    /// Fails with [`Error::Stale`] if there is no such inode. This is the slow way, by the locator
    /// table; a walk by names passes the entries that it sees to [`Store::adopt`].
    pub fn get(&self, ino: InodeNo) -> Result<Arc<Vnode>> {
        if let Some(vnode) = self.peek(ino) {
            return Ok(vnode);
        }
        if ino < InodeNo::FIRST_USER {
            return Err(Error::Stale);
        }
        // The containers above come first, each found in the one above it, from the nearest that
        // is in memory on. The root is always there.
        let mut chain = vec![(ino, self.locate(ino)?)];
        let mut holder = loop {
            let (_, container) = chain[chain.len() - 1];
            if let Some(vnode) = self.peek(container.file) {
                break vnode;
            }
            if chain.len() > ANCESTORS_MAX {
                return Err(Corruption::Loop { ino }.into());
            }
            let above = container.file;
            chain.push((above, self.locate(above)?));
        };
        while let Some((ino, container)) = chain.pop() {
            holder = match self.get_in(&holder, ino, container)? {
                Search::Found(vnode) => vnode,
                Search::Missing => self.get_moved(ino, container)?,
            };
        }
        Ok(holder)
    }

    /// The vnode of an inode that the locator table placed in `container`, which did not have it: it moved
    /// since the table was asked. A thread that moves an inode has its vnode until the table has the new
    /// place.
    fn get_moved(&self, ino: InodeNo, container: Container) -> Result<Arc<Vnode>> {
        match self.peek(ino) {
            Some(vnode) => Ok(vnode),
            None if self.locate(ino)? != container => self.get(ino),
            None => Err(Corruption::LocatorEntry { ino, container }.into()),
        }
    }

    fn locate(&self, ino: InodeNo) -> Result<Container> {
        let container = self.locator_find(ino)?.ok_or(Error::Stale)?;
        // The number was taken for a file that is being made.
        if container == self.layout.system_container(InodeNo::ROOT) && ino != InodeNo::ROOT {
            return Err(Error::Stale);
        }
        let itself = container.file == ino;
        let system = container.file.is_system()
            && !matches!(container.file, InodeNo::ROOT | InodeNo::EXTERNAL);
        if itself || system {
            return Err(Corruption::LocatorEntry { ino, container }.into());
        }
        Ok(container)
    }

    /// The vnode of an inode that lies in `container`, whose vnode is `holder`.
    fn get_in(&self, holder: &Vnode, ino: InodeNo, container: Container) -> Result<Search> {
        if let Some(vnode) = self.peek(ino) {
            return Ok(Search::Found(vnode));
        }
        let state = holder.state.read();
        if container.sector.0 >= self.sector_count(&state) {
            return Ok(Search::Missing);
        }
        let image = self.sector(&state, container.sector)?;
        match image.get().find_inode(ino).map(|entry| entry.body) {
            Some(Body::Embedded(record)) => self.adopt(&record, container).map(Search::Found),
            _ => Ok(Search::Missing),
        }
    }

    /// The vnode of the inode in this record, which lies in `container`.
    ///
    /// The caller holds the lock of the container, so that the record is the inode's latest.
    pub fn adopt(&self, record: &Record<'_>, container: Container) -> Result<Arc<Vnode>> {
        match self.peek(record.inode.number()) {
            Some(vnode) => Ok(vnode),
            None => {
                let inode = self.decode(record)?;
                Ok(self.insert(self.vnode(inode, Some(container), true)))
            }
        }
    }

    fn decode(&self, record: &Record<'_>) -> Result<Inode> {
        let disk = record.inode;
        let ino = disk.number();
        let bad = |what| Corruption::Inode { ino, what };
        let file_type = disk.file_type().ok_or(bad("the mode has no file type"))?;
        let flags = disk.inode_flags();
        let parent = InodeNo(disk.parent.get());
        let mut inode = Inode::new(ino, disk.generation.get(), file_type, parent, disk.btime());
        inode.permissions = u32::from(disk.mode.get()) & 0o7777;
        inode.nlink = disk.nlink.get();
        inode.uid = disk.uid.get();
        inode.gid = disk.gid.get();
        inode.size = disk.size.get();
        inode.atime = disk.atime();
        inode.mtime = disk.mtime();
        inode.ctime = disk.ctime();
        inode.change = disk.change.get();
        inode.protection = flags & InodeFlags::PROTECTION;
        inode.key = Some(disk.key.get()).filter(|key| *key != 0).map(Key);
        inode.hint = FragRun::new(FragNo(disk.hint_start.get()), disk.hint_len.get());
        inode.device = disk.device();
        if inode.is_dir() {
            (inode.entry_count, inode.bucket_count) = (disk.entries(), disk.buckets());
        }
        inode.content_checksum =
            flags.contains(InodeFlags::CONTENT_CHECKSUM).then(|| disk.content_checksum.get());
        inode.content = if flags.contains(InodeFlags::INLINE) {
            Content::Inline(record.data.to_vec())
        } else {
            Content::Map(self.decode_map(record)?)
        };
        self.decode_attributes(&mut inode, record.xattrs, disk.attribute_run())?;
        let sectors_aligned = inode.size.is_multiple_of(self.layout.block_bytes.into());
        if inode.is_dir() && (!sectors_aligned || inode.size > 1 << 40) {
            return Err(bad("the size of the directory is not one of whole blocks").into());
        }
        // A directory has no holes. A size beyond its blocks would be walked sector by sector.
        let mapped =
            inode.map().map_or(0, |map| map.iter().map(|extent| u64::from(extent.len)).sum());
        if inode.is_dir() && self.layout.fragments_for(inode.size) > mapped {
            return Err(bad("the directory is larger than its blocks").into());
        }
        Ok(inode)
    }

    fn decode_map(&self, record: &Record<'_>) -> Result<ExtentMap> {
        let ino = record.inode.number();
        let generation = record.inode.generation.get();
        let mut map = ExtentMap::default();
        let root = record.inode.map_root.get();
        let depth = record.inode.map_depth;
        if root != 0 {
            if depth > MAP_DEPTH_MAX {
                return Err(Corruption::Inode { ino, what: "the extent tree is too tall" }.into());
            }
            let mut end = 0;
            let mut todo = vec![(BlockNo(root), depth)];
            while let Some((block, depth)) = todo.pop() {
                let bad = |what| Corruption::ExtentBlock { ino, block, what };
                let fragments = self.layout.block_fragments();
                if block.0 >= self.layout.blocks
                    || !self.layout.is_allocatable(self.layout.block_start(block), fragments)
                {
                    return Err(bad("outside of the volume's space for files").into());
                }
                let bytes = self.read_whole(block)?;
                match Node::decode(&bytes, ino, generation, depth, block, self.checksum)? {
                    Node::Leaf(extents) => {
                        let first = extents.first().ok_or(bad("empty"))?.logical;
                        if first < end {
                            return Err(bad("out of order").into());
                        }
                        map.load_node(block, depth, Some(first));
                        for extent in extents {
                            end = extent.logical_end();
                            self.load_extent(&mut map, ino, extent, false)?;
                        }
                    }
                    Node::Inner(children) => {
                        map.load_node(block, depth, None);
                        if children.is_empty() {
                            return Err(bad("empty").into());
                        }
                        todo.extend(children.iter().rev().map(|child| (child.block, depth - 1)));
                    }
                }
            }
        }
        for extent in Extent::decode_list(record.data) {
            self.load_extent(&mut map, ino, extent, true)?;
        }
        if ino.is_system() || record.inode.file_type() == Some(FileType::Directory) {
            // Otherwise a block would be taken for a hole, and mapped twice.
            let fragments = self.layout.block_fragments();
            if let Some(extent) = map.iter().find(|extent| !extent.is_of_blocks(fragments)) {
                let what = "not of whole blocks";
                return Err(Corruption::Extent { ino, start: extent.start, what }.into());
            }
        }
        Ok(map)
    }

    fn load_extent(
        &self,
        map: &mut ExtentMap,
        ino: InodeNo,
        extent: Extent,
        direct: bool,
    ) -> Result<()> {
        let bad = |what| Corruption::Extent { ino, start: extent.start, what };
        if !self.layout.is_allocatable(extent.start, extent.len) {
            return Err(bad("outside of the volume's space for files").into());
        }
        if extent.logical_end() > self.layout.file_fragments_max() {
            return Err(bad("after the end of the largest file").into());
        }
        map.load(extent, direct).map_err(bad)?;
        Ok(())
    }
}
