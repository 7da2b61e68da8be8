//! Decoding an inode: from its record, its extent tree and its attribute block. All of this data comes from
//! the device and is checked.

use super::{Attributes, Content, Contents, ExtentMap, Inode, InodeCache, Unstamped};
use crate::error::{Corruption, Result};
use crate::format::extent::{Extent, MAP_DEPTH_MAX, Node};
use crate::format::inode::{FileType, InodeFlags, Record};
use crate::format::{Checksum, LiveLayout, xattr};
use crate::units::{BlockNo, FragNo, FragRun, InodeNo, Key};

/// Decodes inodes.
#[derive(Clone, Copy)]
pub(super) struct Decoder<'a> {
    layout: &'a LiveLayout,
    checksum: Checksum,
    contents: Contents<'a>,
}

impl<'a> Decoder<'a> {
    pub(super) fn new(inodes: &'a InodeCache) -> Decoder<'a> {
        Decoder { layout: &inodes.layout, checksum: inodes.checksum, contents: inodes.contents() }
    }

    /// The inode in a record.
    pub(super) fn decode(&self, record: &Record<'_>) -> Result<Inode> {
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
        inode.stamps = disk.stamps();
        inode.unstamped = Unstamped::Nothing;
        inode.flags = flags & InodeFlags::SETTABLE;
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
        if ino.is_system() && inode.content_checksum.is_some() {
            return Err(bad("a table with a checksum of its contents").into());
        }
        if inode.is_dir() || ino == InodeNo::EXTERNAL {
            self.check_container(&inode).map_err(bad)?;
        }
        Ok(inode)
    }

    /// Checks the size of a directory, or of the external inode table. Neither has holes, and a reader would
    /// walk a size beyond its blocks sector by sector.
    fn check_container(&self, inode: &Inode) -> Result<(), &'static str> {
        let is_aligned = inode.size.is_multiple_of(self.layout.block_bytes.into());
        if !is_aligned || inode.size > 1 << 40 {
            return Err("its size is not one of whole blocks");
        }
        let mapped =
            inode.map().map_or(0, |map| map.iter().map(|extent| u64::from(extent.len)).sum());
        if self.layout.fragments_for(inode.size) > mapped {
            return Err("it is larger than its blocks");
        }
        Ok(())
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
                let bytes = self.contents.read_whole(block)?;
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
        let is_regular = !ino.is_system() && record.inode.file_type() == Some(FileType::Regular);
        if let Some(extent) = map.iter().find(|extent| extent.cluster.is_some() && !is_regular) {
            let what = "in a cluster, but not of a regular file";
            return Err(Corruption::Extent { ino, start: extent.start, what }.into());
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
        if let Some(what) = extent.fault(self.layout) {
            return Err(bad(what).into());
        }
        map.load(extent, direct).map_err(bad)?;
        Ok(())
    }

    /// Decodes the attributes next to the inode, or records their block.
    fn decode_attributes(
        &self,
        inode: &mut Inode,
        embedded: &[u8],
        apart: Option<FragRun>,
    ) -> Result<()> {
        let ino = inode.ino;
        match apart {
            None => {
                let known = Attributes::decode(embedded);
                inode.attributes = Some(known.map_err(|what| Corruption::Inode { ino, what })?);
            }
            Some(run) => {
                let bad = |what| Corruption::XattrBlock { ino, start: run.start, what };
                if !self.layout.is_allocatable(run.start, run.len) {
                    return Err(bad("outside of the volume's space for files").into());
                }
                let bytes_max = xattr::HEADER_BYTES + xattr::XATTR_LIST_BYTES_MAX;
                if u64::from(run.len) > self.layout.fragments_for(bytes_max as u64) {
                    return Err(bad("larger than attributes can be").into());
                }
                (inode.attributes, inode.xattr_block) = (None, run);
            }
        }
        Ok(())
    }

    /// The attributes that are in a block of their own.
    pub(super) fn read_attributes(&self, inode: &Inode) -> Result<Attributes> {
        let run = inode.xattr_block;
        let len = u64::from(run.len) * u64::from(self.layout.fragment_bytes);
        let mut bytes = Vec::with_capacity(len as usize);
        let until = BlockNo(self.layout.blocks);
        self.contents.read_fragments(run.start, 0, len, until, &mut |piece| bytes.extend(piece))?;
        let list =
            xattr::decode_block(&bytes, inode.ino, inode.generation, run.start, self.checksum)?;
        let bad = |what| Corruption::XattrBlock { ino: inode.ino, start: run.start, what };
        Ok(Attributes::decode(list).map_err(bad)?)
    }
}
