//! Promises for the extent tree and the attributes of an inode, which may not fit into its sector.
//!
//! Each epoch writes them to new blocks, and a full volume may have none by then. So each change that can
//! make such blocks necessary first asks for promises: as many as the worst case needs, given how many
//! extents may be added or removed. The promises are withdrawn when the inode is encoded, right before its
//! blocks are allocated.

use super::{SpacePlan, VnodeGuard, VnodeState};
use crate::alloc::{Kind, Owner, Request};
use crate::error::{Error, Result};
use crate::format::xattr;
use crate::lock::Rule;
use crate::units::{FragNo, FragRun};

impl SpacePlan<'_> {
    /// Makes sure that write-back finds blocks for the tree and the attributes of a file, of which `changes`
    /// more extents may be added or removed. A change that frees space, or that has a promise already, may
    /// use the blocks that are set aside.
    pub fn promise_spill(
        &self,
        file: &mut VnodeGuard<'_>,
        changes: u64,
        frees_space: bool,
    ) -> Result<()> {
        let has_attributes = file.inode.has_attributes();
        self.promise_spill_with(file, changes, has_attributes, frees_space)
    }

    fn promise_spill_with(
        &self,
        file: &mut VnodeGuard<'_>,
        changes: u64,
        has_attributes: bool,
        frees_space: bool,
    ) -> Result<()> {
        let changes = file.promised.map_changes + changes;
        let needed = self.tree_blocks_max(file, changes) + u64::from(has_attributes);
        if needed > file.promised.spill_blocks {
            let more = needed - file.promised.spill_blocks;
            self.alloc.promise_spill(more, frees_space, file.spender)?;
            file.promised.spill_blocks = needed;
        }
        file.promised.map_changes = changes;
        Ok(())
    }

    /// Promises a new block to a container or to the locator table, and the blocks that its extent may need.
    pub fn promise_block(&self, file: &mut VnodeGuard<'_>) -> Result<()> {
        self.promise_spill(file, 1, false)?;
        let promised = self.alloc.promise_blocks(1, file.spender);
        match promised {
            Ok(()) => file.promised.blocks += 1,
            Err(_) => self.withdraw_unused(file),
        }
        promised
    }

    /// The most blocks that [`SpacePlan::promise_block`] takes after another change of the map.
    pub fn blocks_promised_max(&self, file: &VnodeState) -> u64 {
        let tree = self.tree_blocks_max(file, file.promised.map_changes + 2);
        1 + tree + u64::from(file.inode.has_attributes())
    }

    fn tree_blocks_max(&self, file: &VnodeState, changes: u64) -> u64 {
        let block_bytes = self.layout.block_bytes;
        file.inode.map().map_or(0, |map| map.tree_blocks_max(changes, block_bytes))
    }

    /// Withdraws all promises to an inode that no epoch will encode: a change may get some of its promises
    /// before the last one fails.
    pub fn withdraw_unused(&self, file: &mut VnodeGuard<'_>) {
        if !file.changes.dirty && file.pages.dirty_count() == 0 {
            self.settle_promises(file);
            self.settle_spill(file);
            self.alloc.free(std::mem::take(&mut file.promised.xattr_space));
        }
    }

    /// Withdraws these promises to a file, whose inode is being encoded.
    pub(super) fn settle_spill(&self, file: &mut VnodeState) {
        self.alloc.withdraw_spill(std::mem::take(&mut file.promised.spill_blocks));
        file.promised.map_changes = 0;
    }

    /// Allocates space for a list of attributes of this many bytes, before the list is changed: it must be
    /// in one piece, and a full volume may have none when the epoch is written. A list of up to a block is
    /// covered by a promise, for which a list that does not grow may use the blocks that are set aside. The
    /// file may have no attributes yet.
    pub fn take_xattr_space(&self, file: &mut VnodeGuard<'_>, list_bytes: usize) -> Result<()> {
        let bytes = (xattr::HEADER_BYTES + list_bytes) as u64;
        let len = self.layout.fragments_for(bytes) as u32;
        let is_replaced =
            file.inode.known_attributes().is_some_and(|old| list_bytes <= old.encoded_len());
        self.promise_spill_with(file, 0, list_bytes > 0, is_replaced)?;
        if bytes <= u64::from(self.layout.block_bytes) || len <= file.promised.xattr_space.len {
            return Ok(());
        }
        self.alloc.promise(len.into(), file.spender)?;
        // If the promise ended before the placement, another change could get one for the same space.
        let is_held = Rule::PromiseHeld.holds();
        let withdraw = || self.alloc.withdraw(len.into());
        if !is_held {
            withdraw();
        }
        let run = self.place_xattrs(file, len);
        if is_held {
            withdraw();
        }
        self.alloc.free(std::mem::replace(&mut file.promised.xattr_space, run?));
        Ok(())
    }

    /// Places attributes of `len` fragments, in one piece.
    pub(super) fn place_xattrs(&self, file: &VnodeState, len: u32) -> Result<FragRun> {
        let block = self.layout.block_fragments();
        let owner = Owner::Key(file.inode.placement_key());
        let place = |kind, len| {
            self.alloc.place(&Request {
                kind,
                owner,
                len,
                goal: None,
                grown: false,
                replaces: false,
                room: 0,
            })
        };
        match place(Kind::Small, len) {
            Ok(run) if run.len == len => return Ok(run),
            Ok(short) => self.alloc.free(short),
            Err(Error::NoSpace) => {}
            Err(error) => return Err(error),
        }
        if len > block {
            return Err(Error::NoSpace);
        }
        Ok(self.cut_off(place(Kind::Metadata, block)?, len))
    }

    /// Shortens a run to `len` fragments and frees the rest.
    pub(super) fn cut_off(&self, run: FragRun, len: u32) -> FragRun {
        self.alloc.free(FragRun::new(FragNo(run.start.0 + u64::from(len)), run.len - len));
        FragRun::new(run.start, len)
    }
}
