//! Reads the contents of files from memory and from the device, and verifies them.
//!
//! A page in memory is complete and replaces the blocks on the device. Bytes after the end of the file are
//! zero in each page and in each mapped fragment.
//!
//! The reader gets the contents piece by piece, directly from memory, so that its copy is the only one.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Content, ExtentMap, InodeCache, Mapping, VnodeState};
use crate::alloc::Kind;
use crate::cache::{Block, BufferCache};
use crate::error::{Corruption, Error, Result};
use crate::format::extent::Extent;
use crate::format::{Checksum, LiveLayout, checksum, cluster};
use crate::units::{BlockNo, FileBlock, FileFrag, FragNo, FragRun};

/// Bytes of a file that are fetched at once: the size of the requests of programs that read whole files.
const FETCH_BYTES: u64 = 1 << 20;
/// Blocks of a run that are looked up before the first copy, and released after the last one. A change of a
/// reference count between two copies would make the processor finish one before it starts the next.
const GATHERED_BLOCKS: usize = 32;
/// The contents of a hole.
static ZEROS: [u8; 4096] = [0; 4096];

/// Reads the contents of files.
#[derive(Clone, Copy)]
pub struct Contents<'a> {
    layout: &'a LiveLayout,
    cache: &'a BufferCache,
    checksum: Checksum,
}

impl<'a> Contents<'a> {
    pub(super) fn new(inodes: &'a InodeCache) -> Contents<'a> {
        Contents { layout: &inodes.layout, cache: &inodes.cache, checksum: inodes.checksum }
    }

    /// Reads up to `len` bytes of a file, at most to its end, and returns the number of bytes. `take` may
    /// have received contents that later turn out to be damaged.
    pub fn read(
        &self,
        file: &VnodeState,
        offset: u64,
        len: usize,
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<usize> {
        let size = file.inode.size;
        let len = size.saturating_sub(offset).min(len as u64);
        if len == 0 {
            return Ok(0);
        }
        match &file.inode.content {
            Content::Inline(bytes) => take(&bytes[offset as usize..(offset + len) as usize]),
            Content::Map(map) if len == size => {
                self.read_verified(file, map, take)?;
            }
            Content::Map(map) => {
                self.verify_contents(file)?;
                self.read_mapped(file, map, offset..offset + len, take)?;
            }
        }
        Ok(len as usize)
    }

    /// Reads the contents of a file into the cache, as a sequential reader does, without verifying or
    /// returning them.
    pub fn fetch(&self, file: &VnodeState) -> Result<()> {
        let Content::Map(map) = &file.inode.content else { return Ok(()) };
        let size = file.inode.size;
        if file.pages.is_empty() && map.iter().any(|extent| extent.cluster.is_some()) {
            return self.fetch_stored(file, map);
        }
        for at in (0..size).step_by(FETCH_BYTES as usize) {
            self.read_mapped(file, map, at..size.min(at + FETCH_BYTES), &mut |_| ())?;
        }
        Ok(())
    }

    /// The same for a file with contents in clusters, without expanding them.
    fn fetch_stored(&self, file: &VnodeState, map: &ExtentMap) -> Result<()> {
        for extent in map.iter().filter(|extent| !extent.unwritten) {
            let run = extent.run();
            let len = u64::from(run.len) * u64::from(self.layout.fragment_bytes);
            self.read_fragments(run.start, 0, len, self.read_until(file, run), &mut |_| ())?;
        }
        Ok(())
    }

    /// The clusters of which a file shows contents. Pages of the file hide the contents that are in flight:
    /// until they are written, the device and the cache have earlier contents at their places.
    pub fn clusters<'f>(
        &self,
        file: &'f VnodeState,
    ) -> impl Iterator<Item = FragRun> + use<'f, '_> {
        let extents = file.inode.map().into_iter().flat_map(|map| map.iter());
        extents
            .filter(|extent| {
                let fragments = extent.logical..extent.logical_end();
                extent.cluster.is_some() && self.is_shown(file, fragments)
            })
            .map(|extent| extent.run())
    }

    /// Whether a file shows contents at the places of these fragments of it: one of their blocks has no page.
    fn is_shown(&self, file: &VnodeState, fragments: Range<u64>) -> bool {
        let per_block = u64::from(self.layout.block_fragments());
        let mut blocks = fragments.start / per_block..fragments.end.div_ceil(per_block);
        blocks.any(|block| file.pages.get(FileBlock(block)).is_none())
    }

    /// The expanded contents of the cluster of an extent that the file has or had; `None` if the file no
    /// longer has contents of the cluster there, or shows none of them, so that the cluster may not be on the
    /// device yet.
    pub fn expand(&self, file: &VnodeState, extent: &Extent) -> Result<Option<Arc<Vec<u8>>>> {
        let at = extent.logical;
        match file.inode.map().map(|map| map.find(FileFrag(at))) {
            Some(Mapping::InCluster { run, len, .. })
                if run == extent.run() && self.is_shown(file, at..at + len) =>
            {
                self.expand_shown(file, run).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// The expanded contents of a cluster, if a file shows some of them.
    fn expand_shown(&self, file: &VnodeState, run: FragRun) -> Result<Arc<Vec<u8>>> {
        self.cache.unwritten.assert_none_in(self.layout, run);
        if let Some(raw) = self.cache.expanded.get(run.start) {
            return Ok(raw);
        }
        let len = u64::from(run.len) * u64::from(self.layout.fragment_bytes);
        let mut stored = Vec::with_capacity(len as usize);
        let mut take = |piece: &[u8]| stored.extend_from_slice(piece);
        self.read_fragments(run.start, 0, len, self.read_until(file, run), &mut take)?;
        let bad = |what| Corruption::Cluster { ino: file.inode.ino, start: run.start, what };
        let raw = Arc::new(cluster::decode(&stored, self.checksum).map_err(bad)?);
        self.cache.expanded.keep(run.start, raw.clone());
        Ok(raw)
    }

    /// The expanded size of the cluster in a run, from its header on the device; `None` if the device has no
    /// cluster there, for example because it is not written yet.
    pub fn expanded_bytes(&self, run: FragRun) -> Result<Option<u64>> {
        let number = self.layout.block_of(run.start);
        let mut block = vec![0; self.layout.block_bytes as usize];
        self.cache.read_uncached(number, &mut block)?;
        let skipped = run.start.0 - self.layout.block_start(number).0;
        let first = (skipped * u64::from(self.layout.fragment_bytes)) as usize;
        Ok(cluster::expanded_bytes(&block[first..]).map(|bytes| bytes as u64))
    }

    /// The block before which read-ahead stops when this run of a file is read: the end of the run for a
    /// large file, none for a small one, whose neighbours are likely to be read next.
    fn read_until(&self, file: &VnodeState, run: FragRun) -> BlockNo {
        let placing = &self.cache.tuning().placing;
        match Kind::of_file(file.inode.size, self.layout, placing) {
            Kind::Large => BlockNo(self.layout.block_of(FragNo(run.end().0 - 1)).0 + 1),
            _ => BlockNo(self.layout.blocks),
        }
    }

    /// Reads `len` bytes of the volume, from `skip` bytes after the fragment `start` on. Read-ahead stops
    /// before the block `until`.
    pub(super) fn read_fragments(
        &self,
        start: FragNo,
        skip: u64,
        len: u64,
        until: BlockNo,
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        let block_bytes = u64::from(self.layout.block_bytes);
        let fragment_bytes = u64::from(self.layout.fragment_bytes);
        let mut at = start.0 * fragment_bytes + skip;
        let end = at + len;
        let first = FragNo(at / fragment_bytes);
        let fragments = end.div_ceil(fragment_bytes) - first.0;
        self.cache.unwritten.assert_none_in(self.layout, FragRun::new(first, fragments as u32));
        let numbers: Range<u64> = at / block_bytes..end.div_ceil(block_bytes);
        let mut gathered = [const { None }; GATHERED_BLOCKS];
        for first in numbers.clone().step_by(GATHERED_BLOCKS) {
            let part = first..numbers.end.min(first + GATHERED_BLOCKS as u64);
            let count = (part.end - first) as usize;
            for (place, number) in gathered.iter_mut().zip(part) {
                let wanted = (numbers.end - number) as u32;
                *place = Some(self.cache.read_near(BlockNo(number), wanted, until)?);
            }
            for block in gathered[..count].iter().flatten() {
                let into = (at % block_bytes) as usize;
                let piece = &block[into..block.len().min(into + (end - at) as usize)];
                take(piece);
                at += piece.len() as u64;
            }
        }
        Ok(())
    }

    /// A whole block of a file from the device or the cache.
    pub fn read_whole(&self, number: BlockNo) -> Result<Arc<Block>> {
        let run = FragRun::new(self.layout.block_start(number), self.layout.block_fragments());
        self.cache.unwritten.assert_none_in(self.layout, run);
        self.cache.read(number)
    }

    /// Reads a part of a file.
    pub(super) fn read_mapped(
        &self,
        file: &VnodeState,
        map: &ExtentMap,
        part: Range<u64>,
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        let fragment_bytes = u64::from(self.layout.fragment_bytes);
        let mut at = part.start;
        while at < part.end {
            let position = self.layout.file_block(at);
            if let Some(page) = file.pages.get(position) {
                let first = self.layout.file_offset(position);
                let to = part.end.min(first + page.len() as u64);
                take(&page[(at - first) as usize..(to - first) as usize]);
                at = to;
                continue;
            }
            let next = file.pages.next_at(position);
            let next_page = next.map_or(u64::MAX, |page| self.layout.file_offset(page));
            let into = at % fragment_bytes;
            let mapping = map.find(FileFrag(at / fragment_bytes));
            let fragments = match mapping {
                Mapping::Mapped { len, .. }
                | Mapping::InCluster { len, .. }
                | Mapping::Hole(len) => len,
            };
            let len = fragments.saturating_mul(fragment_bytes).saturating_sub(into);
            let to = at.saturating_add(len).min(next_page).min(part.end);
            match mapping {
                Mapping::Mapped { start, len, unwritten: false } => {
                    let until = self.read_until(file, FragRun::new(start, len as u32));
                    self.read_fragments(start, into, to - at, until, take)?;
                }
                Mapping::InCluster { run, offset, .. } => {
                    let raw = self.expand_shown(file, run)?;
                    let from = (u64::from(offset) * fragment_bytes + into) as usize;
                    let (ino, start) = (file.inode.ino, run.start);
                    let what = "it ends before the file's contents in it do";
                    let piece = raw.get(from..from + (to - at) as usize);
                    take(piece.ok_or(Corruption::Cluster { ino, start, what })?);
                }
                Mapping::Mapped { .. } | Mapping::Hole(_) => take_zeros(to - at, take),
            }
            at = to;
        }
        Ok(())
    }

    /// The next data or hole at or after `offset`, which is before the end of the file.
    pub fn seek(&self, file: &VnodeState, offset: u64, data: bool) -> Option<u64> {
        let size = file.inode.size;
        let Content::Map(map) = &file.inode.content else {
            return if data { Some(offset) } else { Some(size) };
        };
        let fragment_bytes = u64::from(self.layout.fragment_bytes);
        let mut at = offset;
        while at < size {
            let position = self.layout.file_block(at);
            if file.pages.get(position).is_some() {
                if data {
                    return Some(at);
                }
                at = self.layout.file_offset(position.next());
                continue;
            }
            let next_page =
                file.pages.next_at(position).map_or(u64::MAX, |page| self.layout.file_offset(page));
            let (here, len) = match map.find(FileFrag(at / fragment_bytes)) {
                Mapping::Mapped { len, unwritten, .. } => (!unwritten, len),
                Mapping::InCluster { len, .. } => (true, len),
                Mapping::Hole(len) => (false, len),
            };
            if here == data {
                return Some(at);
            }
            at = (at / fragment_bytes).saturating_add(len).saturating_mul(fragment_bytes);
            at = at.min(next_page);
        }
        if data { None } else { Some(size) }
    }

    /// Compares the contents of a small file with their checksum, once after the inode is read.
    pub(super) fn verify_contents(&self, file: &VnodeState) -> Result<()> {
        match &file.inode.content {
            Content::Map(map) if self.checksum_to_verify(file)?.is_some() => {
                self.read_verified(file, map, &mut |_| ())
            }
            _ => Ok(()),
        }
    }

    /// Reads all of a file and compares it with its checksum, unless that was done before.
    fn read_verified(
        &self,
        file: &VnodeState,
        map: &ExtentMap,
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        let all = 0..file.inode.size;
        let Some(expected) = self.checksum_to_verify(file)? else {
            return self.read_mapped(file, map, all, take);
        };
        let mut sum = 0;
        self.read_mapped(file, map, all, &mut |piece| {
            sum = checksum::contents(sum, piece);
            take(piece);
        })?;
        if sum != expected {
            return Err(Corruption::Contents { ino: file.inode.ino }.into());
        }
        file.verified.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// The checksum with which the contents must still be compared.
    fn checksum_to_verify(&self, file: &VnodeState) -> Result<Option<u32>> {
        if file.inode.content_checksum.is_none() || file.verified.load(Ordering::Relaxed) {
            return Ok(None);
        }
        if file.inode.size > self.layout.small_bytes_max() {
            let what = "a large file with a checksum of its contents";
            return Err(Corruption::Inode { ino: file.inode.ino, what }.into());
        }
        Ok(file.inode.content_checksum)
    }

    /// The current page of a file, which may be a block of the cache.
    pub(super) fn load_page(&self, file: &VnodeState, position: FileBlock) -> Result<Arc<Block>> {
        if let Some(page) = file.pages.get(position) {
            return Ok(page.clone());
        }
        let map = match &file.inode.content {
            Content::Map(map) => map,
            Content::Inline(_) => return Err(Error::Invalid("contents inline have no pages")),
        };
        if let Some(number) = map.block_at(position, self.layout.block_fragments()) {
            return self.read_whole(number);
        }
        let mut block = Block::zeroed(self.layout.block_bytes as usize);
        let first = self.layout.file_offset(position);
        let part = first..first + u64::from(self.layout.block_bytes);
        self.read_mapped(file, map, part, &mut into_slice(&mut block))?;
        Ok(Arc::new(block))
    }
}

/// Copies pieces into a slice that has room for all of them.
pub fn into_slice(mut out: &mut [u8]) -> impl FnMut(&[u8]) {
    move |piece| {
        let (to, rest) = std::mem::take(&mut out).split_at_mut(piece.len());
        to.copy_from_slice(piece);
        out = rest;
    }
}

/// Passes `len` zero bytes to `take`.
fn take_zeros(mut len: u64, take: &mut dyn FnMut(&[u8])) {
    while len > 0 {
        let piece = &ZEROS[..len.min(ZEROS.len() as u64) as usize];
        take(piece);
        len -= piece.len() as u64;
    }
}
