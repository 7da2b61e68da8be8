//! Reading the contents of files, from memory and from the device, and verifying them.
//!
//! A page that is in memory is complete, and hides what the device has. Bytes after the end of the file
//! are zero in every page and in every mapped fragment.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Content, ExtentMap, Mapping, Store, VnodeState};
use crate::alloc::Kind;
use crate::cache::Block;
use crate::error::{Corruption, Error, Result};
use crate::format::checksum;
use crate::units::{BlockNo, FileBlock, FileFrag, FragNo};

/// What is fetched of a file at once: as much as readers of whole files ask for.
const FETCH_BYTES: u64 = 1 << 20;

impl Store {
    /// Reads from a file into `out`, at most to its end, and returns how many bytes.
    pub fn read(&self, file: &VnodeState, offset: u64, out: &mut [u8]) -> Result<usize> {
        let size = file.inode.size;
        let len = size.saturating_sub(offset).min(out.len() as u64) as usize;
        if len == 0 {
            return Ok(0);
        }
        let out = &mut out[..len];
        match &file.inode.content {
            Content::Inline(bytes) => {
                out.copy_from_slice(&bytes[offset as usize..offset as usize + len]);
            }
            Content::Map(map) if len as u64 == size => {
                let expected = self.checksum_to_verify(file)?;
                self.read_mapped(file, map, 0, out)?;
                verify(file, expected, out)?;
            }
            Content::Map(map) => {
                self.verify_contents(file)?;
                self.read_mapped(file, map, offset, out)?;
            }
        }
        Ok(len)
    }

    /// Brings the contents of a file into the cache, as a reader from beginning to end does, and neither
    /// verifies nor returns them.
    pub fn fetch(&self, file: &VnodeState) -> Result<()> {
        let Content::Map(map) = &file.inode.content else { return Ok(()) };
        let mut chunk = vec![0; file.inode.size.min(FETCH_BYTES) as usize];
        let mut at = 0;
        while at < file.inode.size {
            let len = (file.inode.size - at).min(FETCH_BYTES);
            self.read_mapped(file, map, at, &mut chunk[..len as usize])?;
            at += len;
        }
        Ok(())
    }

    /// Reads from the run of the volume that begins at `start`, `skip` bytes in; nothing is read ahead
    /// from `until` on.
    pub(super) fn read_fragments(
        &self,
        start: FragNo,
        skip: u64,
        out: &mut [u8],
        until: BlockNo,
    ) -> Result<()> {
        let block_bytes = u64::from(self.layout.block_bytes);
        let mut at = start.0 * u64::from(self.layout.fragment_bytes) + skip;
        let mut rest = out;
        while !rest.is_empty() {
            let number = BlockNo(at / block_bytes);
            let into = (at % block_bytes) as usize;
            let wanted = (into + rest.len()).div_ceil(block_bytes as usize) as u32;
            let block = self.cache.read_near(number, wanted, until)?;
            let len = rest.len().min(block.len() - into);
            let (piece, after) = rest.split_at_mut(len);
            piece.copy_from_slice(&block[into..into + len]);
            at += len as u64;
            rest = after;
        }
        Ok(())
    }

    pub(super) fn read_mapped(
        &self,
        file: &VnodeState,
        map: &ExtentMap,
        offset: u64,
        out: &mut [u8],
    ) -> Result<()> {
        let block_bytes = u64::from(self.layout.block_bytes);
        let fragment_bytes = u64::from(self.layout.fragment_bytes);
        let mut done = 0;
        while done < out.len() {
            let at = offset + done as u64;
            let position = self.layout.file_block(at);
            let left = out.len() - done;
            if let Some(page) = file.pages.get(position) {
                let into = (at % block_bytes) as usize;
                let len = left.min(page.len() - into);
                out[done..done + len].copy_from_slice(&page[into..into + len]);
                done += len;
                continue;
            }
            let next_page = {
                let next = file.pages.next_at(position);
                next.map_or(u64::MAX, |page| self.layout.file_offset(page) - at)
            };
            let into = at % fragment_bytes;
            let limit = |fragments: u64| {
                (fragments.saturating_mul(fragment_bytes).saturating_sub(into))
                    .min(next_page)
                    .min(left as u64) as usize
            };
            match map.find(FileFrag(at / fragment_bytes)) {
                Mapping::Mapped { start, len, unwritten: false } => {
                    // What follows a file among others is likely to be read next.
                    let until = match self.kind_of(file.inode.size) == Kind::Large {
                        true => BlockNo(self.layout.block_of(FragNo(start.0 + len - 1)).0 + 1),
                        false => BlockNo(self.layout.blocks),
                    };
                    let len = limit(len);
                    self.read_fragments(start, into, &mut out[done..done + len], until)?;
                    done += len;
                }
                Mapping::Mapped { len, .. } | Mapping::Hole(len) => {
                    let len = limit(len);
                    out[done..done + len].fill(0);
                    done += len;
                }
            }
        }
        Ok(())
    }

    /// The next data or hole at or after `offset`, which lies before the end of the file.
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

    /// Compares the contents of a small file with their checksum, once after the inode was read.
    pub(super) fn verify_contents(&self, file: &VnodeState) -> Result<()> {
        let expected = self.checksum_to_verify(file)?;
        if expected.is_none() {
            return Ok(());
        }
        let mut contents = vec![0; file.inode.size as usize];
        if let Content::Map(map) = &file.inode.content {
            self.read_mapped(file, map, 0, &mut contents)?;
        }
        verify(file, expected, &contents)
    }

    /// The checksum with which the contents were not compared yet.
    fn checksum_to_verify(&self, file: &VnodeState) -> Result<Option<u32>> {
        if file.inode.content_checksum.is_none() || file.verified.load(Ordering::Relaxed) {
            return Ok(None);
        }
        if file.inode.size > self.small_bytes_max() {
            let what = "a large file with a checksum of its contents";
            return Err(Corruption::Inode { ino: file.inode.ino, what }.into());
        }
        Ok(file.inode.content_checksum)
    }

    /// The page of a file as it is now; it may be one of the cache's own blocks.
    pub(super) fn load_page(&self, file: &VnodeState, position: FileBlock) -> Result<Arc<Block>> {
        if let Some(page) = file.pages.get(position) {
            return Ok(page.clone());
        }
        let map = match &file.inode.content {
            Content::Map(map) => map,
            Content::Inline(_) => return Err(Error::Invalid("contents inline have no pages")),
        };
        if let Some(number) = map.block_at(position, self.layout.block_fragments()) {
            return self.cache.read(number);
        }
        let mut block = Block::zeroed(self.layout.block_bytes as usize);
        self.read_mapped(file, map, self.layout.file_offset(position), &mut block)?;
        Ok(Arc::new(block))
    }
}

/// Compares the contents of a file with the checksum that they should have, if there is one, and
/// notes that they have it.
fn verify(file: &VnodeState, expected: Option<u32>, contents: &[u8]) -> Result<()> {
    let Some(expected) = expected else { return Ok(()) };
    if checksum::contents(0, contents) != expected {
        return Err(Corruption::Contents { ino: file.inode.ino }.into());
    }
    file.verified.store(true, Ordering::Relaxed);
    Ok(())
}
