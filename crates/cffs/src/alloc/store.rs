//! How groups come from the device and return to it.

use std::sync::Arc;

use super::group::Group;
use super::{Allocator, State};
use crate::cache::{Block, Phase, WriteSet};
use crate::error::{Corruption, Result};
use crate::format::Superblock;
use crate::format::cylinder_group::{CgHeader, bitmap_checksum};
use crate::units::{BlockNo, CgIndex};

impl Allocator {
    /// The group, read from the device when it is first needed, or made if it was never used.
    pub(super) fn group<'a>(&self, state: &'a mut State, cg: CgIndex) -> Result<&'a mut Group> {
        if !state.groups.contains_key(&cg) {
            let group = if cg.0 < state.cgs_made {
                self.read_group(cg)?
            } else {
                Group::unused(&self.layout, cg)
            };
            state.groups.insert(cg, group);
        }
        Ok(state.groups.get_mut(&cg).expect("it was just inserted"))
    }

    /// How many groups the device has; the others were not used when the volume was last clean.
    pub fn groups_made(&self) -> u32 {
        self.state.lock().cgs_made
    }

    /// Reads a group's header and bitmap from the device and holds them against their checksums.
    pub fn verify_group(&self, cg: CgIndex) -> Result<()> {
        self.read_group(cg).map(drop)
    }

    fn read_group(&self, cg: CgIndex) -> Result<Group> {
        let block_bytes = self.layout.block_bytes as usize;
        let bitmap_bytes = self.layout.bitmap_blocks() as usize * block_bytes;
        let mut bytes = vec![0; block_bytes + bitmap_bytes];
        self.cache.read_uncached(self.layout.cg_header(cg), &mut bytes)?;
        let (header, bitmap) = bytes.split_at(block_bytes);
        let header = CgHeader::decode(header, cg, self.checksum)?;
        if bitmap_checksum(bitmap) != header.bitmap_checksum {
            return Err(Corruption::CgBitmap { cg }.into());
        }
        let group = Group::from_bitmap(&self.layout, cg, bitmap, header.rotor);
        if group.free_count() != header.free_fragments {
            return Err(Corruption::CgHeader { cg, what: "wrong count of free fragments" }.into());
        }
        Ok(group)
    }

    /// Adds the groups that changed to what an epoch writes, and notes in the superblock what it
    /// tells of them. For a moment at which no change is under way.
    pub fn save(&self, writes: &mut WriteSet, superblock: &mut Superblock) {
        let mut state = self.state.lock();
        let block_bytes = self.layout.block_bytes as usize;
        let bitmap_bytes = self.layout.bitmap_blocks() as usize * block_bytes;
        // Groups are made in order, and a group in the middle of those made is never left out.
        let last_used = state.groups.keys().next_back().map_or(0, |cg| cg.0 + 1);
        for cg in (state.cgs_made..last_used).map(CgIndex) {
            state.groups.entry(cg).or_insert_with(|| Group::unused(&self.layout, cg));
        }
        state.cgs_made = state.cgs_made.max(last_used);
        for (cg, group) in state.groups.iter_mut().filter(|(_, group)| group.dirty) {
            let bitmap = group.to_bitmap(bitmap_bytes);
            let header = CgHeader {
                cg: *cg,
                free_fragments: group.free_count(),
                rotor: group.rotor,
                bitmap_checksum: bitmap_checksum(&bitmap),
                generation: superblock.generation,
            };
            let mut block = Block::zeroed(block_bytes);
            header.encode_into(&mut block, self.checksum);
            writes.put_block(Phase::Derived, self.layout.cg_header(*cg), Arc::new(block));
            let first = self.layout.cg_bitmap(*cg).0;
            for (number, image) in (first..).zip(bitmap.chunks_exact(block_bytes)) {
                writes.put_block(Phase::Derived, BlockNo(number), Arc::new(Block::new(image)));
            }
            group.dirty = false;
        }
        superblock.free_fragments = state.free;
        superblock.cgs_made = state.cgs_made;
        superblock.cg_rotor = state.hot.0;
    }
}
