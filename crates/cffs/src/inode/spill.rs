//! Promises for what may not find room beside an inode: its extent tree and its attributes.
//!
//! Both go to blocks of their own when the epoch comes, always to new ones, and a full volume may have
//! none then. So each change that can make them necessary first has the blocks promised: as many as
//! it takes at worst, given how many extents may come or go. What an inode was promised is given back
//! when it is encoded, and what it takes is allocated right after that.

use super::{Locked, Store, VnodeState};
use crate::error::Result;

impl Store {
    /// Makes sure that write-back finds blocks for the tree and the attributes of a file, of which
    /// `changes` more extents may come or go. A change that frees space, or for which there is a
    /// promise already, may take from what is set aside.
    pub fn promise_spill(
        &self,
        file: &mut Locked<'_>,
        changes: u64,
        frees_space: bool,
    ) -> Result<()> {
        let changes = file.promised.map_changes + changes;
        let needed = self.spill_blocks_max(file, changes);
        if needed > file.promised.spill_blocks {
            let more = needed - file.promised.spill_blocks;
            self.alloc.promise_spill(more, frees_space, file.spender)?;
            file.promised.spill_blocks = needed;
        }
        file.promised.map_changes = changes;
        Ok(())
    }

    /// Promises a new block to a container or to the locator table, and what its place takes in the
    /// map.
    pub fn promise_block(&self, file: &mut Locked<'_>) -> Result<()> {
        self.promise_spill(file, 1, false)?;
        self.alloc.reserve_blocks(1, file.spender)?;
        file.promised.blocks += 1;
        Ok(())
    }

    fn spill_blocks_max(&self, file: &VnodeState, changes: u64) -> u64 {
        let block_bytes = self.layout.block_bytes;
        let tree = file.inode.map().map_or(0, |map| map.tree_blocks_max(changes, block_bytes));
        tree + u64::from(file.inode.has_attributes())
    }

    /// Gives back what was promised to a file, whose inode is encoded now.
    pub(super) fn settle_spill(&self, file: &mut VnodeState) {
        self.alloc.withdraw_spill(std::mem::take(&mut file.promised.spill_blocks));
        file.promised.map_changes = 0;
    }
}
