//! Scrubbing: reads the blocks of an inode from the device, past the cache, and compares them with their
//! checksums.
//!
//! Covers one inode at a time: the blocks of a directory or table and of its index, the extent tree, the
//! attribute block, the contents of a small file, the clusters of a large one. The inode's own record is in a
//! sector of its directory and is verified with that. Changed blocks are skipped, since the next epoch
//! overwrites them.
//!
//! The device is read a segment at a time and the last ones are kept, so that files that are
//! together cost one request. An epoch that is being written can change a block after it was kept,
//! or not yet have written a block that the inode names already: a problem counts when it is found
//! again by a new [`Scrubber`] while no epoch runs.

use std::collections::VecDeque;
use std::ops::Range;

use super::{Inode, InodeCache, VnodeState};
use crate::error::{Corruption, Error, Result};
use crate::format::extent::{Extent, Node};
use crate::format::{Superblock, checksum, cluster, index, locator, sector, xattr};
use crate::units::{BlockNo, CgIndex, Container, FileBlock, FragNo, InodeNo, SectorIndex};

/// The count of pieces of the device that are kept.
const PIECES_MAX: usize = 32;
/// The largest piece that is read at once, in bytes.
const PIECE_BYTES_MAX: u64 = 1 << 20;

/// Reads the device for verification, past the cache.
pub struct Scrubber<'s> {
    inodes: &'s InodeCache,
    piece_bytes: u64,
    pieces: VecDeque<(u64, Vec<u8>)>,
    /// Bytes that were read from the device.
    pub read_bytes: u64,
    /// The problems, in the order in which they were found.
    pub problems: Vec<Error>,
}

impl<'s> Scrubber<'s> {
    /// A scrubber that has read nothing yet.
    pub fn new(inodes: &'s InodeCache) -> Scrubber<'s> {
        let piece_bytes = u64::from(inodes.layout.segment_bytes).min(PIECE_BYTES_MAX);
        let pieces = VecDeque::new();
        Scrubber { inodes, piece_bytes, pieces, read_bytes: 0, problems: Vec::new() }
    }

    /// Verifies the superblock.
    pub fn superblock(&mut self) {
        let len = u64::from(self.inodes.layout.block_bytes);
        let decoded = self.read(FragNo(0), len).and_then(|bytes| Superblock::decode(&bytes, 0));
        self.note(decoded.map(drop));
    }

    /// Verifies a cylinder group's header and bitmap.
    pub fn group(&mut self, cg: CgIndex) {
        let layout = &self.inodes.layout;
        self.read_bytes += u64::from(1 + layout.bitmap_blocks() + layout.count_blocks)
            * u64::from(layout.block_bytes);
        let result = self.inodes.alloc.verify_group(cg);
        self.note(result);
    }

    /// The inode numbers in use that a block of the locator table has.
    pub fn numbers(&mut self, index: u64) -> Vec<InodeNo> {
        match self.inodes.locator_table().numbers(index) {
            Ok(numbers) => numbers,
            Err(error) => {
                self.problems.push(error);
                Vec::new()
            }
        }
    }

    /// Verifies all blocks of an inode.
    pub fn inode(&mut self, file: &VnodeState) {
        let inode = &file.inode;
        let tree = self.tree(inode);
        self.note(tree);
        if inode.xattr_block.len > 0 && !file.changes.xattrs {
            let attributes = self.attributes(inode);
            self.note(attributes);
        }
        if inode.is_dir() || inode.ino.is_system() {
            self.blocks(file);
        } else if file.pages.is_empty() {
            let contents = match inode.content_checksum {
                Some(sum) => self.contents(inode, sum),
                None => self.clusters(inode),
            };
            self.note(contents);
        }
    }

    fn note(&mut self, result: Result<()>) {
        self.problems.extend(result.err());
    }

    /// Reads `len` bytes of the device from fragment `start` on.
    fn read(&mut self, start: FragNo, len: u64) -> Result<Vec<u8>> {
        let mut at = start.0 * u64::from(self.inodes.layout.fragment_bytes);
        let end = at + len;
        let mut bytes = Vec::with_capacity(len as usize);
        while at < end {
            let piece = at / self.piece_bytes;
            let first = piece * self.piece_bytes;
            let to = end.min(first + self.piece_bytes);
            let (from, until) = ((at - first) as usize, (to - first) as usize);
            match self.piece(piece)?.and_then(|kept| kept.get(from..until)) {
                Some(kept) => bytes.extend_from_slice(kept),
                None => bytes.extend(self.read_alone(at..to)?),
            }
            at = to;
        }
        Ok(bytes)
    }

    /// A piece of the device; `None` if the device cannot read all of it.
    fn piece(&mut self, piece: u64) -> Result<Option<&[u8]>> {
        if !self.pieces.iter().any(|(known, _)| *known == piece) {
            let layout = &self.inodes.layout;
            let block_bytes = u64::from(layout.block_bytes);
            let first = BlockNo(piece * self.piece_bytes / block_bytes);
            let blocks = (self.piece_bytes / block_bytes).min(layout.blocks - first.0);
            let mut bytes = vec![0; (blocks * block_bytes) as usize];
            if self.inodes.cache.read_uncached(first, &mut bytes).is_err() {
                return Ok(None);
            }
            self.read_bytes += bytes.len() as u64;
            self.pieces.truncate(PIECES_MAX - 1);
            self.pieces.push_front((piece, bytes));
        }
        let kept = self.pieces.iter().find(|(known, _)| *known == piece);
        Ok(kept.map(|(_, bytes)| &bytes[..]))
    }

    /// Reads only these bytes, so that a bad sector does not count against its neighbours.
    fn read_alone(&mut self, range: Range<u64>) -> Result<Vec<u8>> {
        let block_bytes = u64::from(self.inodes.layout.block_bytes);
        let first = range.start / block_bytes;
        let blocks = range.end.div_ceil(block_bytes) - first;
        let mut bytes = vec![0; (blocks * block_bytes) as usize];
        self.inodes.cache.read_uncached(BlockNo(first), &mut bytes)?;
        self.read_bytes += bytes.len() as u64;
        let skip = (range.start - first * block_bytes) as usize;
        bytes.drain(..skip);
        bytes.truncate((range.end - range.start) as usize);
        Ok(bytes)
    }

    /// Verifies the extent tree, from its root down.
    fn tree(&mut self, inode: &Inode) -> Result<()> {
        let Some((map, root)) = inode.map().and_then(|map| Some((map, map.root()?))) else {
            return Ok(());
        };
        let layout = *self.inodes.layout;
        let mut todo = vec![(root, map.depth())];
        while let Some((block, depth)) = todo.pop() {
            let start = layout.block_start(block);
            if !layout.is_allocatable(start, layout.block_fragments()) {
                let what = "outside of the volume's space for files";
                return Err(Corruption::ExtentBlock { ino: inode.ino, block, what }.into());
            }
            let bytes = self.read(start, layout.block_bytes.into())?;
            let (generation, checksum) = (inode.generation, self.inodes.checksum);
            match Node::decode(&bytes, inode.ino, generation, depth, block, checksum)? {
                Node::Inner(children) => {
                    todo.extend(children.iter().map(|child| (child.block, depth - 1)));
                }
                Node::Leaf(_) => {}
            }
        }
        Ok(())
    }

    fn attributes(&mut self, inode: &Inode) -> Result<()> {
        let run = inode.xattr_block;
        let bytes = self
            .read(run.start, u64::from(run.len) * u64::from(self.inodes.layout.fragment_bytes))?;
        let checksum = self.inodes.checksum;
        xattr::decode_block(&bytes, inode.ino, inode.generation, run.start, checksum)?;
        Ok(())
    }

    /// Verifies the blocks of a directory or of a table that are not about to be written.
    fn blocks(&mut self, file: &VnodeState) {
        let fragments = u64::from(self.inodes.layout.block_fragments());
        let Some(map) = file.inode.map() else { return };
        for extent in map.iter() {
            let blocks = extent.logical / fragments..extent.logical_end() / fragments;
            for position in blocks {
                if file.pages.get(FileBlock(position)).is_none() {
                    let start = FragNo(extent.start.0 + position * fragments - extent.logical);
                    let result = self.block(&file.inode, position, start);
                    self.note(result);
                }
            }
        }
    }

    fn block(&mut self, inode: &Inode, position: u64, start: FragNo) -> Result<()> {
        let layout = *self.inodes.layout;
        let (ino, generation, checksum) = (inode.ino, inode.generation, self.inodes.checksum);
        let bytes = self.read(start, layout.block_bytes.into())?;
        let base = index::index_base(layout.block_bytes);
        if ino == InodeNo::LOCATOR {
            locator::verify(&bytes, position, checksum)?;
        } else if position >= base {
            index::verify(&bytes, ino, generation, (position - base) as u32, checksum)?;
        } else {
            let first = position as u32 * layout.block_sectors();
            let sectors = bytes.chunks_exact(layout.sector_bytes as usize);
            for (index, bytes) in (first..).zip(sectors) {
                let container = Container { file: ino, sector: SectorIndex(index) };
                sector::verify(bytes, container, generation, checksum)?;
            }
        }
        Ok(())
    }

    fn contents(&mut self, inode: &Inode, expected: u32) -> Result<()> {
        let layout = *self.inodes.layout;
        let bad = Corruption::Contents { ino: inode.ino };
        if inode.size > self.inodes.layout.small_bytes_max() {
            return Err(bad.into());
        }
        let fragment_bytes = u64::from(layout.fragment_bytes);
        let mut contents = vec![0; inode.size as usize];
        for extent in inode.map().into_iter().flat_map(|map| map.iter()) {
            let at = extent.logical * fragment_bytes;
            let len = (u64::from(extent.len) * fragment_bytes).min(inode.size.saturating_sub(at));
            if !extent.unwritten && len > 0 {
                let bytes = self.extent(inode, extent, len)?;
                contents[at as usize..(at + len) as usize].copy_from_slice(&bytes);
            }
        }
        if checksum::contents(0, &contents) == expected { Ok(()) } else { Err(bad.into()) }
    }

    /// Verifies the clusters in which a file without a checksum has contents.
    fn clusters(&mut self, inode: &Inode) -> Result<()> {
        let extents = inode.map().into_iter().flat_map(|map| map.iter());
        for extent in extents.filter(|extent| extent.cluster.is_some()) {
            let fragment_bytes = u64::from(self.inodes.layout.fragment_bytes);
            self.extent(inode, extent, u64::from(extent.len) * fragment_bytes)?;
        }
        Ok(())
    }

    /// The first `len` bytes that an extent maps.
    fn extent(&mut self, inode: &Inode, extent: &Extent, len: u64) -> Result<Vec<u8>> {
        let Some(part) = extent.cluster else { return self.read(extent.start, len) };
        let fragment_bytes = u64::from(self.inodes.layout.fragment_bytes);
        let stored = self.read(extent.start, u64::from(part.stored) * fragment_bytes)?;
        let bad = |what| Corruption::Cluster { ino: inode.ino, start: extent.start, what };
        let raw = cluster::decode(&stored, self.inodes.checksum).map_err(bad)?;
        let from = u64::from(part.offset) * fragment_bytes;
        let contents = raw.get(from as usize..(from + len) as usize);
        Ok(contents.ok_or(bad("it ends before the file's contents in it do"))?.to_vec())
    }
}
