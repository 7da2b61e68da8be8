//! Promises: a change in memory is accepted only if its write-back is guaranteed the space that it needs.
//!
//! For contents, counting fragments is enough. Metadata needs whole blocks, and free fragments may be in
//! pieces smaller than a block: if whole blocks are scarce, promised ones are reserved at once, in the pool.

use super::group::Among;
use super::{Allocator, Clusters, State};
use crate::error::{Error, Result};
use crate::format::Layout;
use crate::units::{BlockNo, CgIndex, FragNo};

/// The user for whom space is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spender {
    /// A user who may not use the reserve.
    Anyone,
    /// Root, a user who may use the reserve, or the file system itself.
    #[default]
    Privileged,
    /// The compaction of clusters, which has a reserve of its own.
    Compaction,
}

/// A lower bound of the free whole blocks.
#[derive(Debug, Default)]
pub(super) struct WholeBlocks {
    count: u64,
    /// Whether all groups were counted since the last epoch, so that the bound is exact.
    all: bool,
}

impl WholeBlocks {
    /// Records that a run was taken: it breaks at most one block at each end.
    pub(super) fn taken(&mut self, fragments: u32, per_block: u32) {
        self.count = self.count.saturating_sub(u64::from(fragments / per_block) + 2);
    }
}

impl Allocator {
    /// Promises fragments for file data that is still in memory.
    pub fn promise(&self, fragments: u64, spender: Spender) -> Result<()> {
        let mut state = self.lock();
        self.check_free(&state, fragments, spender)?;
        state.promised += fragments;
        // The promised blocks must still exist when this data has been placed.
        let backed = self.back(&mut state, 0, self.pool_blocks() / 2);
        if backed.is_err() {
            state.promised -= fragments;
        }
        backed
    }

    /// Withdraws a promise of fragments.
    pub fn withdraw(&self, fragments: u64) {
        let mut state = self.lock();
        state.promised = state.promised.saturating_sub(fragments);
    }

    /// Promises whole blocks for metadata that is still in memory.
    pub fn promise_blocks(&self, blocks: u64, spender: Spender) -> Result<()> {
        let fragments = blocks * u64::from(self.layout.block_fragments());
        let mut state = self.lock();
        self.check_free(&state, fragments, spender)?;
        self.back(&mut state, blocks, self.pool_blocks() / 2)?;
        state.promised += fragments;
        state.promised_blocks += blocks;
        Ok(())
    }

    /// Withdraws a promise of blocks.
    pub fn withdraw_blocks(&self, blocks: u64) {
        let mut state = self.lock();
        let fragments = blocks * u64::from(self.layout.block_fragments());
        state.promised = state.promised.saturating_sub(fragments);
        state.promised_blocks = state.promised_blocks.saturating_sub(blocks);
        self.trim_pool(&mut state);
    }

    /// Promises whole blocks for extent trees and attributes that may not fit into the sector with their
    /// inode. Most of these promises are never used, so `df` does not count them as used. A change that frees
    /// space may use the reserved blocks of the pool, so that a full volume can be emptied.
    pub fn promise_spill(&self, blocks: u64, frees_space: bool, spender: Spender) -> Result<()> {
        let mut state = self.lock();
        let margin = if frees_space { 0 } else { self.pool_blocks() / 2 };
        self.back(&mut state, blocks, margin)?;
        state.spill_blocks += blocks;
        let free = if frees_space { Ok(()) } else { self.check_free(&state, 0, spender) };
        if free.is_err() {
            state.spill_blocks -= blocks;
            self.trim_pool(&mut state);
        }
        free
    }

    /// Withdraws a promise of such blocks.
    pub fn withdraw_spill(&self, blocks: u64) {
        if blocks > 0 {
            let mut state = self.lock();
            state.spill_blocks = state.spill_blocks.saturating_sub(blocks);
            self.trim_pool(&mut state);
        }
    }

    /// Keeps this many fragments for the users of the reserve.
    pub fn set_reserve(&self, fragments: u64) {
        self.lock().root_reserve = fragments;
    }

    /// Fails unless a block is free for a new file.
    pub fn check_room(&self, spender: Spender) -> Result<()> {
        self.check_free(&self.lock(), self.layout.block_fragments().into(), spender)
    }

    /// Fails unless this many fragments are free, not promised, and not kept from the spender.
    /// Half of the pool is for blocks that are promised to attributes and extents that may not
    /// fit into their sector.
    fn check_free(&self, state: &State, fragments: u64, spender: Spender) -> Result<()> {
        let beyond_pool = state.spill_blocks.saturating_sub(self.pool_blocks() as u64 / 2);
        let spill = beyond_pool * u64::from(self.layout.block_fragments());
        let compaction = Clusters::of(self).reserve_fragments();
        let kept = match spender {
            Spender::Anyone => state.root_reserve + compaction,
            Spender::Privileged => compaction,
            Spender::Compaction => 0,
        };
        let promised = state.promised + spill + self.pool_fragments() + kept;
        if promised + fragments > state.free { Err(Error::NoSpace) } else { Ok(()) }
    }

    /// Makes sure that `more` blocks can be promised, and that the pool keeps `margin` blocks beyond all
    /// promises.
    fn back(&self, state: &mut State, more: u64, margin: usize) -> Result<()> {
        let block = u64::from(self.layout.block_fragments());
        let promised = state.promised_blocks + state.spill_blocks + more;
        let wanted = promised + margin as u64;
        if wanted <= state.pool.len() as u64 {
            return Ok(());
        }
        // File data that is still to be placed comes in at most as many pieces as it has blocks, and each
        // piece breaks at most one block at each end.
        let data = (state.promised - state.promised_blocks * block).div_ceil(block);
        if self.has_whole_blocks(state, wanted + 3 * data)? {
            return Ok(());
        }
        let wanted = wanted as usize;
        // Groups that are made already come first.
        self.fill_pool_to(state, state.cgs_made.max(1).min(self.layout.cgs()), wanted)?;
        self.fill_pool_to(state, self.layout.cgs(), wanted)?;
        while state.pool.len() < wanted && self.shrink_reservations(state)? {
            self.fill_pool_to(state, self.layout.cgs(), wanted)?;
        }
        if state.pool.len() < wanted {
            self.trim_pool(state);
            return Err(Error::NoSpace);
        }
        Ok(())
    }

    /// Whether this many whole blocks are free, reservations not counted. They are counted at
    /// most once per epoch, and only as far as necessary.
    fn has_whole_blocks(&self, state: &mut State, wanted: u64) -> Result<bool> {
        if state.whole.count >= wanted {
            return Ok(true);
        }
        if state.whole.all {
            return Ok(false);
        }
        // Groups that were never used come first, since they need not be read.
        let unmade = (state.cgs_made..self.layout.cgs()).map(CgIndex);
        let mut count = 0;
        for cg in unmade.filter(|cg| !state.groups.contains_key(cg)) {
            count += never_used(&self.layout, cg);
            if count >= 2 * wanted {
                break;
            }
        }
        let known: Vec<CgIndex> = state.groups.keys().copied().collect();
        let is_new = |cg: &CgIndex| known.binary_search(cg).is_err();
        let others = (0..state.cgs_made).map(CgIndex).filter(is_new);
        for cg in known.iter().copied().chain(others) {
            if count >= 2 * wanted {
                break;
            }
            count += self.group(state, cg)?.whole_blocks(self.layout.block_fragments());
        }
        state.whole = WholeBlocks { count, all: count < 2 * wanted };
        Ok(count >= wanted)
    }

    /// Fills the pool of blocks for metadata. Called at mount and after each epoch.
    pub fn fill_pool(&self) -> Result<()> {
        let mut state = self.lock();
        // Only existing groups, so that this makes none.
        let groups = state.cgs_made.max(1).min(self.layout.cgs());
        self.fill_pool_to(&mut state, groups, self.pool_blocks())
    }

    /// The end of all space that was ever used, from the last group that was made.
    pub fn end_of_used(&self) -> Result<BlockNo> {
        let mut state = self.lock();
        let last = CgIndex(state.cgs_made.clamp(1, self.layout.cgs()) - 1);
        let end = self.group(&mut state, last)?.end_of_used();
        Ok(BlockNo(self.of_group(last, end).0.div_ceil(self.layout.block_fragments().into())))
    }

    /// Whether data that is still to be placed would find its space if the pool grew by one block.
    pub(super) fn can_spare_block(&self, state: &State) -> bool {
        let block = u64::from(self.layout.block_fragments());
        let data = state.promised.saturating_sub(state.promised_blocks * block);
        data + (state.pool.len() as u64 + 1) * block <= state.free
    }

    /// Reserves blocks until the pool has `wanted`, or no more are free: from the end of the
    /// volume's first `groups` groups, away from the hot spot.
    fn fill_pool_to(&self, state: &mut State, groups: u32, wanted: usize) -> Result<()> {
        let block = self.layout.block_fragments();
        for cg in (0..groups).rev().map(CgIndex) {
            while state.pool.len() < wanted && self.can_spare_block(state) {
                let group = self.group(state, cg)?;
                // At the end of the group, so that long runs need not skip it.
                let from_end = group.fragments().saturating_sub(2 * wanted as u32 * block);
                let from = from_end.max(group.fragments() * 3 / 4) / block * block;
                let found = group
                    .find(from, group.fragments(), block, block, Among::Unreserved)
                    .or_else(|| group.find(0, group.fragments(), block, block, Among::Unreserved));
                let Some(at) = found else { break };
                group.reserve(at, block);
                let number: BlockNo = self.layout.block_of(self.of_group(cg, at));
                state.pool.push(number);
                state.whole.taken(block, block);
            }
        }
        Ok(())
    }

    /// Releases the blocks of the pool beyond the promises.
    fn trim_pool(&self, state: &mut State) {
        let promised = (state.promised_blocks + state.spill_blocks) as usize;
        while state.pool.len() > self.pool_blocks().max(self.pool_blocks() / 2 + promised) {
            let Some(number) = state.pool.pop() else { return };
            let start: FragNo = self.layout.block_start(number);
            let cg = self.layout.cg_of_fragment(start);
            let at = self.in_group(cg, start);
            if let Some(group) = state.groups.get_mut(&cg) {
                group.release(at, self.layout.block_fragments());
            }
        }
    }
}

/// The free blocks of a group that was never used, at least.
fn never_used(layout: &Layout, cg: CgIndex) -> u64 {
    // The volume ends with two more reserved blocks.
    u64::from(layout.cg_len_blocks(cg)).saturating_sub(u64::from(layout.cg_reserved_blocks(cg)) + 2)
}
