//! Growing: the allocator adds the new blocks of the volume.

use super::Allocator;
use super::group::Group;
use super::promise::WholeBlocks;
use crate::error::Result;
use crate::format::Layout;
use crate::units::{BlockNo, CgIndex};

impl Allocator {
    /// Makes the volume `blocks` blocks long, for all users of its layout; the new blocks are
    /// free. The caller ensures that no change is under way and no contents wait to be placed.
    pub fn grow(&self, blocks: u64) -> Result<()> {
        let mut state = self.lock();
        let old: Layout = *self.layout;
        let last = CgIndex(old.cgs() - 1);
        if last.0 < state.cgs_made {
            self.group(&mut state, last)?;
        }
        self.layout.grow(blocks);
        // A group that was never used is made for the size that the volume has then.
        let mut gained_here = 0;
        if let Some(group) = state.groups.get_mut(&last) {
            let before = group.free_count();
            group.grow(last, &old, &self.layout);
            gained_here = group.free_count() - before;
        }
        let gained = self.layout.allocatable_fragments() - old.allocatable_fragments();
        state.free += gained;
        state.free_elsewhere += gained as i64 - i64::from(gained_here);
        state.whole = WholeBlocks::default();
        Ok(())
    }
}

impl Group {
    /// Adds the new blocks of the volume's former last group: those after its end, and those that were cut
    /// off by the old end of the volume.
    fn grow(&mut self, cg: CgIndex, old: &Layout, new: &Layout) {
        let per_block = new.block_fragments();
        self.extend(new.cg_fragments(cg));
        let start = new.cg_start(cg).0;
        for block in (0..old.cg_len_blocks(cg)).rev() {
            let number = BlockNo(start + u64::from(block));
            if !old.is_reserved(number) || block < old.cg_reserved_blocks(cg) {
                break;
            }
            self.give(block * per_block, per_block);
        }
        for block in old.cg_len_blocks(cg)..new.cg_len_blocks(cg) {
            if !new.is_reserved(BlockNo(start + u64::from(block))) {
                self.give(block * per_block, per_block);
            }
        }
    }
}
