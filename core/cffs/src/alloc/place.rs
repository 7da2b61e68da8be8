//! The search for space, in the order that the list in the parent module gives.

use std::sync::Arc;

use super::group::Among;
use super::groups::Groups;
use super::home::Homes;
use super::own_keys::KeySizes;
use super::request::{Kind, Owner, Request};
use super::reservation::{MOVED, Reservations, SHARED_FILES};
use super::zone::Zones;
use super::{Found, conventional};
use crate::error::{Corruption, Result};
use crate::format::superblock::Policy;
use crate::format::{LiveLayout, Superblock};
use crate::tuning::Placing;
use crate::units::{CgIndex, Class, FragNo, FragRun};

/// The free space of the volume, in which each file gets a place near the files of its owner.
pub(super) struct FreeSpace {
    pub groups: Groups,
    pub(super) layout: LiveLayout,
    policy: Policy,
    pub(super) placing: Placing,
    pub(super) key_sizes: Arc<KeySizes>,
    /// The hot spot: the group where the last run was found.
    pub hot: CgIndex,
    pub(super) zones: Zones,
    pub reservations: Reservations,
    pub homes: Homes,
}

impl FreeSpace {
    /// The free space of a clean volume.
    pub fn new(
        groups: Groups,
        placing: Placing,
        key_sizes: Arc<KeySizes>,
        superblock: &Superblock,
    ) -> FreeSpace {
        let layout = groups.layout().clone();
        let policy = superblock.policy;
        FreeSpace {
            zones: Zones::new(layout.clone(), placing, policy),
            reservations: Reservations::new(layout.clone(), placing.reservations_max),
            homes: Homes::new(layout.clone(), placing),
            groups,
            layout,
            policy,
            placing,
            key_sizes,
            hot: CgIndex(superblock.cg_rotor),
        }
    }

    /// Finds fragments, which stay free until they are taken. Except for metadata, the run may be shorter
    /// than the request.
    pub fn find(&mut self, request: &Request) -> Found {
        let is_conventional = matches!(self.policy, Policy::None | Policy::Scattered);
        let found = match request.kind {
            Kind::Metadata => return self.place_metadata(request),
            _ if request.owner == Owner::Moved => self.reservations.take(MOVED, request.len),
            Kind::Large if request.goal.is_some() => self.place_large(request)?,
            _ if is_conventional => {
                conventional::find(&mut self.groups, self.policy, self.reservations.clock, request)?
            }
            Kind::Large => self.place_large(request)?,
            Kind::Medium if request.goal.is_some() => self.place_large(request)?,
            Kind::Small | Kind::Medium => self.place_small(request)?,
        };
        if found.is_some() { Ok(found) } else { self.place_anywhere(request.len) }
    }

    /// Takes the run that a search found into use. The search trusts bitmaps from the device, and a wrong
    /// bitmap must not make a system block allocatable.
    pub fn take(&mut self, request: &Request, run: FragRun) -> Result<()> {
        assert!((1..=request.len).contains(&run.len), "no more than was asked for");
        if request.kind == Kind::Metadata {
            let block = self.layout.block_fragments();
            let is_block = run.len == block && run.start.0.is_multiple_of(block.into());
            assert!(is_block, "metadata has whole blocks");
        }
        let (cg, at) = self.layout.cg_position(run.start);
        if !self.layout.is_allocatable(run.start, run.len) {
            return Err(Corruption::CgBitmap { cg }.into());
        }
        self.groups.take(run);
        if at >= self.zones.files_start(cg) {
            self.groups.get(cg)?.rotor = at + run.len;
        }
        Ok(())
    }

    /// Finds one run for a small file.
    pub fn place_small(&mut self, request: &Request) -> Found {
        let own = (request.owner, Class::Files);
        if request.grown
            && let Some(run) = self.homes.find_hole(&mut self.groups, request)?
        {
            return Ok(Some(run));
        }
        let is_urgent = request.owner == Owner::Urgent;
        if (request.grown || is_urgent)
            && let Some(run) = self.reservations.take(own, request.len)
        {
            return Ok(Some(run));
        }
        let needs_no_room = request.replaces && self.reservations.get(own).is_none();
        if request.grown && (needs_no_room || self.ends_in_shared(request.owner)) {
            let run = self.take_shared(request.len)?;
            if let Some(run) = run {
                self.homes.add(request.owner, run);
            }
            return Ok(run);
        }
        if request.grown && self.reserve_run(own, request.len)?
            || is_urgent && self.reserve_urgent()?
        {
            return Ok(self.reservations.take(own, request.len));
        }
        self.take_shared(request.len)
    }

    /// Whether the last files of a key without a reservation end where the shared reservation continues: its
    /// directory is being filled across an epoch.
    fn ends_in_shared(&self, owner: Owner) -> bool {
        let Some(shared) = self.reservations.get(SHARED_FILES) else { return false };
        let last = FragNo(shared.next.0.saturating_sub(1));
        self.reservations.get((owner, Class::Files)).is_none() && self.homes.contain(owner, last)
    }

    fn take_shared(&mut self, len: u32) -> Found {
        let mut run = self.reservations.take(SHARED_FILES, len);
        if run.is_none() && self.reserve_run(SHARED_FILES, len)? {
            run = self.reservations.take(SHARED_FILES, len);
        }
        Ok(run)
    }

    fn place_large(&mut self, request: &Request) -> Found {
        let block = self.layout.block_fragments();
        // A long run elsewhere is better than a short one right after the file.
        let least = request.len.min(self.layout.segment_fragments());
        if let Some(goal) = request.goal
            && let Some(run) = self.groups.run_from(goal, least..=request.len)?
        {
            return Ok(Some(run));
        }
        // A tail of less than a block goes among the small files if the file cannot continue where it ends.
        if request.len < block {
            return self.place_small(request);
        }
        if request.kind == Kind::Medium
            && request.grown
            && let Some(run) = self.homes.find_hole(&mut self.groups, request)?
        {
            return Ok(Some(run));
        }
        let group_fragments = self.layout.cg_blocks * block;
        let mut want = request.len.min(group_fragments / 2);
        loop {
            if let Some(run) = self.find_from_hot(want, block)? {
                return Ok(Some(run));
            }
            if want <= block {
                return Ok(None);
            }
            // In whole blocks, so that the last search is for a single block, whatever the length.
            want = (want / 2 / block * block).max(block);
        }
    }

    /// The last resort: releases reservations and takes any run, a shorter one if no free run is long enough.
    fn place_anywhere(&mut self, len: u32) -> Found {
        if let Some(run) = self.find_without_reservations(len, 1)? {
            return Ok(Some(run));
        }
        for step in 0..self.layout.cgs() {
            let cg = self.after_hot(step);
            let (at, longest) = self.groups.get(cg)?.longest(1, Among::Unreserved);
            if longest > 0 {
                return Ok(Some(self.layout.cg_run(cg, at, longest.min(len))));
            }
        }
        Ok(None)
    }

    /// A run at the hot spot or after it, as soon as enough reservations are given up; in the zones, if that
    /// is not enough.
    pub(super) fn find_without_reservations(&mut self, len: u32, align: u32) -> Found {
        while self.shrink_reservations() {
            if let Some(run) = self.find_from_hot(len, align)? {
                return Ok(Some(run));
            }
        }
        self.zones.are_open = true;
        self.find_from_hot(len, align)
    }

    /// The first run of `len` fragments at the hot spot or after it, group by group. Moves the hot spot
    /// there.
    pub(super) fn find_from_hot(&mut self, len: u32, align: u32) -> Found {
        for step in 0..self.layout.cgs() {
            let cg = self.after_hot(step);
            let files = self.zones.files_start(cg);
            let group = self.groups.get(cg)?;
            if group.free_count() < len {
                continue;
            }
            if let Some(at) = group.find_from_rotor(files, len, align) {
                self.hot = cg;
                return Ok(Some(self.layout.cg_run(cg, at, len)));
            }
        }
        Ok(None)
    }

    /// The group this many groups after the hot spot; the first one follows the last.
    fn after_hot(&self, groups: u32) -> CgIndex {
        CgIndex((self.hot.0 + groups) % self.layout.cgs())
    }
}
