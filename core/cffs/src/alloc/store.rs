//! Cylinder groups on the device.

use std::sync::Arc;

use super::group::Group;
use crate::cache::{Block, BufferCache, Phase, WriteSet};
use crate::error::{Corruption, Result};
use crate::format::cylinder_group::{CgHeader, bitmap_checksum};
use crate::format::{Checksum, LiveLayout};
use crate::units::{BlockNo, CgIndex};

/// Reads cylinder groups from the device, verifies them, and encodes them for it.
#[derive(Clone)]
pub(super) struct GroupStore {
    cache: Arc<BufferCache>,
    pub layout: LiveLayout,
    checksum: Checksum,
}

impl GroupStore {
    /// The groups below this cache.
    pub fn new(cache: Arc<BufferCache>, checksum: Checksum) -> GroupStore {
        GroupStore { layout: cache.layout().clone(), cache, checksum }
    }

    /// A group of a volume with `made` groups on the device. The others were never used.
    pub fn load(&self, cg: CgIndex, made: u32) -> Result<Group> {
        if cg.0 < made { self.read(cg) } else { Ok(Group::unused(&self.layout, cg)) }
    }

    /// Reads a group that is on the device.
    pub fn read(&self, cg: CgIndex) -> Result<Group> {
        let block_bytes = self.layout.block_bytes as usize;
        let bitmap_bytes = self.bitmap_bytes();
        let mut bytes = vec![0; block_bytes + bitmap_bytes + self.layout.count_bytes()];
        self.cache.read_uncached(self.layout.cg_header(cg), &mut bytes)?;
        let (header, rest) = bytes.split_at(block_bytes);
        let (bitmap, counts) = rest.split_at(bitmap_bytes);
        let header = CgHeader::decode(header, cg, self.checksum)?;
        if bitmap_checksum(bitmap) != header.bitmap_checksum {
            return Err(Corruption::CgBitmap { cg }.into());
        }
        let mut group = Group::from_bitmap(&self.layout, cg, bitmap, header.rotor);
        if bitmap_checksum(counts) != header.counts_checksum {
            let what = "checksum mismatch of the counts of references";
            return Err(Corruption::CgHeader { cg, what }.into());
        }
        group.load_references(counts);
        if group.free_count() != header.free_fragments {
            return Err(Corruption::CgHeader { cg, what: "wrong count of free fragments" }.into());
        }
        Ok(group)
    }

    /// The number of clusters that begin in a group, from its header.
    pub fn read_cluster_count(&self, cg: CgIndex) -> Result<u32> {
        let mut block = vec![0; self.layout.block_bytes as usize];
        self.cache.read_uncached(self.layout.cg_header(cg), &mut block)?;
        Ok(CgHeader::decode(&block, cg, self.checksum)?.clusters)
    }

    /// The length of a group's bitmap on the device.
    pub fn bitmap_bytes(&self) -> usize {
        self.layout.bitmap_blocks() as usize * self.layout.block_bytes as usize
    }

    /// Adds a group's header, bitmap and counts of references to the writes of an epoch.
    pub fn write(&self, writes: &mut WriteSet, header: &CgHeader, bitmap: &[u8], counts: &[u8]) {
        let block_bytes = self.layout.block_bytes as usize;
        let mut block = Block::zeroed(block_bytes);
        header.encode_into(&mut block, self.checksum);
        writes.put_block(Phase::Derived, self.layout.cg_header(header.cg), Arc::new(block));
        let first = self.layout.cg_bitmap(header.cg).0;
        let images = bitmap.chunks_exact(block_bytes).chain(counts.chunks_exact(block_bytes));
        for (number, image) in (first..).zip(images) {
            writes.put_block(Phase::Derived, BlockNo(number), Arc::new(Block::new(image)));
        }
    }
}
