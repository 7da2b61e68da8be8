//! Promises: a change in memory is accepted only if its write-back is guaranteed the space that it needs.
//!
//! For contents, counting fragments is enough. Metadata needs whole blocks, and free fragments may be in
//! pieces smaller than a block: if whole blocks are scarce, promised ones are reserved at once, in the pool.

use std::ops::Range;

use super::place::FreeSpace;
use super::{Allocator, State};
use crate::error::{Error, Result};
use crate::format::{LiveLayout, Superblock};
use crate::tuning::Tuning;
use crate::units::{CgIndex, FragRun};

/// Compaction reserves the length of an expanded cluster, and on a tiny volume one in this many fragments.
const RESERVE_PART_MIN: u64 = 16;

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

/// The space that changes in memory were promised, and the pool of whole blocks behind the promises.
pub(super) struct Promises {
    layout: LiveLayout,
    tuning: Tuning,
    /// Fragments promised to changes that are still in memory.
    pub fragments: u64,
    /// Whole blocks promised to metadata that is still in memory; also counted in `fragments`.
    blocks: u64,
    /// Whole blocks promised to extent trees and attributes that may not fit into the sector with their
    /// inode.
    spill_blocks: u64,
    /// Fragments that are kept for the users of root's reserve.
    root_reserve: u64,
    /// Blocks reserved for metadata.
    pool: Vec<FragRun>,
}

impl Promises {
    /// Nothing is promised, and the pool is empty.
    pub fn new(layout: LiveLayout, tuning: Tuning, superblock: &Superblock) -> Promises {
        Promises {
            layout,
            tuning,
            fragments: 0,
            blocks: 0,
            spill_blocks: 0,
            root_reserve: superblock.reserve.fragments,
            pool: Vec::new(),
        }
    }

    /// The number of blocks reserved for metadata: enough for one epoch, or a share of a tiny volume.
    pub fn pool_blocks(&self) -> usize {
        let (least, most) = self.tuning.placing.pool_blocks;
        (self.layout.blocks / self.tuning.placing.pool_part).clamp(least, most) as usize
    }

    fn fragments_of(&self, blocks: u64) -> u64 {
        blocks * u64::from(self.layout.block_fragments())
    }

    /// Fragments that are kept for compaction, which frees more than it takes, but only with its epoch.
    pub fn compaction_fragments(&self) -> u64 {
        if !self.layout.has_clusters() {
            return 0;
        }
        let cluster_bytes = self.tuning.writing.cluster_bytes;
        let cluster = cluster_bytes / u64::from(self.layout.fragment_bytes);
        cluster.min(self.layout.allocatable_fragments() / RESERVE_PART_MIN)
    }

    /// Fragments that are kept from this user: the pool, and the reserves for others.
    pub fn kept_from(&self, spender: Spender) -> u64 {
        let reserve = match spender {
            Spender::Anyone => self.root_reserve + self.compaction_fragments(),
            Spender::Privileged => self.compaction_fragments(),
            Spender::Compaction => 0,
        };
        self.fragments_of(self.pool_blocks() as u64) + reserve
    }

    /// Fails unless this many fragments are free, not promised, and not kept from the spender.
    /// Half of the pool is for blocks that are promised to attributes and extents that may not
    /// fit into their sector.
    fn check_free(&self, free: u64, fragments: u64, spender: Spender) -> Result<()> {
        let beyond_pool = self.spill_blocks.saturating_sub(self.pool_blocks() as u64 / 2);
        let spill = self.fragments_of(beyond_pool);
        let promised = self.fragments + spill + self.kept_from(spender);
        if promised + fragments > free { Err(Error::NoSpace) } else { Ok(()) }
    }

    /// Makes sure that `more` blocks can be promised, and that the pool keeps `margin` blocks beyond all
    /// promises.
    fn back(&mut self, space: &mut FreeSpace, more: u64, margin: usize) -> Result<()> {
        let wanted = self.blocks + self.spill_blocks + more + margin as u64;
        if wanted <= self.pool.len() as u64 {
            return Ok(());
        }
        // File data that is still to be placed comes in at most as many pieces as it has blocks, and each
        // piece breaks at most one block at each end.
        let data = self.fragments - self.fragments_of(self.blocks);
        let data = data.div_ceil(self.layout.block_fragments().into());
        if space.groups.has_whole_blocks(wanted + 3 * data)? {
            return Ok(());
        }
        let wanted = wanted as usize;
        // Groups that are made already come first.
        let existing = space.groups.existing();
        self.fill_pool(space, existing, wanted)?;
        self.fill_pool(space, 0..self.layout.cgs(), wanted)?;
        while self.pool.len() < wanted && space.shrink_reservations() {
            self.fill_pool(space, 0..self.layout.cgs(), wanted)?;
        }
        if self.pool.len() < wanted {
            self.trim_pool(space);
            return Err(Error::NoSpace);
        }
        Ok(())
    }

    /// Whether data that is still to be placed would find its space if the pool grew by one block.
    pub fn can_spare_block(&self, free: u64) -> bool {
        let data = self.fragments.saturating_sub(self.fragments_of(self.blocks));
        data + self.fragments_of(self.pool.len() as u64 + 1) <= free
    }

    /// Takes a block out of the pool. It stays marked as reserved.
    pub fn take_block(&mut self) -> Option<FragRun> {
        self.pool.pop()
    }

    /// Reserves blocks until the pool has `wanted`, or no more are free: from the end of these groups,
    /// away from the hot spot.
    fn fill_pool(&mut self, space: &mut FreeSpace, cgs: Range<u32>, wanted: usize) -> Result<()> {
        let block = self.layout.block_fragments();
        for cg in cgs.rev().map(CgIndex) {
            while self.pool.len() < wanted && self.can_spare_block(space.groups.free) {
                // At the end of the group, so that long runs need not skip it.
                let fragments = space.groups.get(cg)?.fragments();
                let from_end = fragments.saturating_sub(2 * wanted as u32 * block);
                let from = from_end.max(fragments * 3 / 4) / block * block;
                let Some(run) = space.groups.reserve_block(cg, from)? else { break };
                self.pool.push(run);
            }
        }
        Ok(())
    }

    /// Releases the blocks of the pool beyond the promises.
    fn trim_pool(&mut self, space: &mut FreeSpace) {
        let promised = (self.blocks + self.spill_blocks) as usize;
        let kept = self.pool_blocks().max(self.pool_blocks() / 2 + promised);
        self.pool.drain(kept.min(self.pool.len())..).for_each(|run| space.groups.release(run));
    }

    /// Fails if the counts contradict each other.
    pub fn check(&self) {
        assert!(
            self.fragments_of(self.blocks) <= self.fragments,
            "promised blocks are promised fragments"
        );
    }
}

impl Allocator {
    /// Promises fragments for file data that is still in memory.
    pub fn promise(&self, fragments: u64, spender: Spender) -> Result<()> {
        let State { space, promises, .. } = &mut *self.lock();
        promises.check_free(space.groups.free, fragments, spender)?;
        promises.fragments += fragments;
        // The promised blocks must still exist when this data has been placed.
        let backed = promises.back(space, 0, promises.pool_blocks() / 2);
        if backed.is_err() {
            promises.fragments -= fragments;
        }
        backed
    }

    /// Withdraws a promise of fragments.
    pub fn withdraw(&self, fragments: u64) {
        let promised = &mut self.lock().promises.fragments;
        *promised = promised.saturating_sub(fragments);
    }

    /// Promises whole blocks for metadata that is still in memory.
    pub fn promise_blocks(&self, blocks: u64, spender: Spender) -> Result<()> {
        let State { space, promises, .. } = &mut *self.lock();
        let fragments = promises.fragments_of(blocks);
        promises.check_free(space.groups.free, fragments, spender)?;
        promises.back(space, blocks, promises.pool_blocks() / 2)?;
        promises.fragments += fragments;
        promises.blocks += blocks;
        Ok(())
    }

    /// Withdraws a promise of blocks.
    pub fn withdraw_blocks(&self, blocks: u64) {
        let State { space, promises, .. } = &mut *self.lock();
        let fragments = promises.fragments_of(blocks);
        promises.fragments = promises.fragments.saturating_sub(fragments);
        promises.blocks = promises.blocks.saturating_sub(blocks);
        promises.trim_pool(space);
    }

    /// Promises whole blocks for extent trees and attributes that may not fit into the sector with their
    /// inode. Most of these promises are never used, so `df` does not count them as used. A change that frees
    /// space may use the reserved blocks of the pool, so that a full volume can be emptied.
    pub fn promise_spill(&self, blocks: u64, frees_space: bool, spender: Spender) -> Result<()> {
        let State { space, promises, .. } = &mut *self.lock();
        let margin = if frees_space { 0 } else { promises.pool_blocks() / 2 };
        promises.back(space, blocks, margin)?;
        promises.spill_blocks += blocks;
        let free = match frees_space {
            true => Ok(()),
            false => promises.check_free(space.groups.free, 0, spender),
        };
        if free.is_err() {
            promises.spill_blocks -= blocks;
            promises.trim_pool(space);
        }
        free
    }

    /// Withdraws a promise of such blocks.
    pub fn withdraw_spill(&self, blocks: u64) {
        if blocks > 0 {
            let State { space, promises, .. } = &mut *self.lock();
            promises.spill_blocks = promises.spill_blocks.saturating_sub(blocks);
            promises.trim_pool(space);
        }
    }

    /// Keeps this many fragments for the users of the reserve.
    pub fn set_reserve(&self, fragments: u64) {
        self.lock().promises.root_reserve = fragments;
    }

    /// Fails unless a block is free for a new file.
    pub fn check_room(&self, spender: Spender) -> Result<()> {
        let State { space, promises, .. } = &*self.lock();
        promises.check_free(space.groups.free, promises.fragments_of(1), spender)
    }

    /// Fills the pool of blocks for metadata. Called at mount and after each epoch.
    pub fn fill_pool(&self) -> Result<()> {
        let State { space, promises, .. } = &mut *self.lock();
        // Only existing groups, so that this makes none.
        let existing = space.groups.existing();
        promises.fill_pool(space, existing, promises.pool_blocks())
    }
}
