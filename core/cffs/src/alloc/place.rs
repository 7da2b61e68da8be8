//! The search for space, in the order that the list in the parent module gives.

use std::ops::RangeInclusive;

use super::group::Among;
use super::{Allocator, Class, Owner, Reservation, State};
use crate::error::{Corruption, Error, Result};
use crate::format::Layout;
use crate::format::superblock::Policy;
use crate::tuning::Placing;
use crate::units::{CgIndex, FragNo, FragRun};

/// The kind of file that needs a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A small file, whole.
    Small,
    /// A larger file that is still placed among the files of its key, in pieces if necessary.
    Medium,
    /// A piece of a large file, which is not among the files of its key.
    Large,
    /// One block of metadata, aligned to a block.
    Metadata,
}

impl Kind {
    /// The kind of a file of this size.
    pub fn of_file(bytes: u64, layout: &Layout, placing: &Placing) -> Kind {
        match bytes {
            small if small <= layout.small_bytes_max() => Kind::Small,
            medium if medium <= placing.medium_bytes_max => Kind::Medium,
            _ => Kind::Large,
        }
    }
}

/// Space that a file needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Small, medium, large or metadata.
    pub kind: Kind,
    /// The owner near whose files it should be.
    pub owner: Owner,
    /// The number of fragments.
    pub len: u32,
    /// The fragment after the file's last one, where the file continues without a seek.
    pub goal: Option<FragNo>,
    /// Whether the owner has grown: files of the directory were placed in an earlier epoch, or those of
    /// another key fill a segment.
    pub grown: bool,
    /// Whether the file frees as much space as it takes. The next file can use that hole as soon as the epoch
    /// is on the device, so no room has to be reserved after this one.
    pub replaces: bool,
    /// For sectors: the fragments to reserve for the directory when its reservation is used up.
    pub room: u32,
}

// A request is plain data. If it held a closure, the allocator would call its user while it holds its lock.
const _: fn() = || {
    fn is_data<T: Copy + Send + Sync + std::hash::Hash + 'static>() {}
    is_data::<Request>();
};

impl Allocator {
    /// The number of whole segments in this many bytes.
    pub(super) fn segments(&self, bytes: u64) -> u32 {
        Placing::segments(bytes, self.layout.segment_bytes)
    }

    /// Finds fragments and marks them as used. Except for metadata, the run may be shorter than the request;
    /// the caller then asks again for the rest.
    pub fn place(&self, request: &Request) -> Result<FragRun> {
        let mut state = self.lock();
        state.clock += 1;
        let run = match (request.kind, self.policy) {
            (Kind::Metadata, _) => self.place_metadata(&mut state, request)?,
            _ if request.owner == Owner::Moved => self.take_moved(&mut state, request.len),
            (_, Policy::None | Policy::Scattered) => {
                self.place_conventionally(&mut state, request)?
            }
            (Kind::Large, _) => self.place_large(&mut state, request)?,
            (Kind::Medium, _) if request.goal.is_some() => self.place_large(&mut state, request)?,
            (Kind::Small | Kind::Medium, _) => self.place_small(&mut state, request)?,
        };
        let run = match run {
            Some(run) => run,
            None => self.place_anywhere(&mut state, request)?.ok_or(Error::NoSpace)?,
        };
        self.check_placed(request, run)?;
        self.take(&mut state, run)?;
        Ok(run)
    }

    /// Checks the run that a search found. The search trusts bitmaps from the device, and a wrong bitmap must
    /// not make a system block allocatable.
    pub(super) fn check_placed(&self, request: &Request, run: FragRun) -> Result<()> {
        assert!((1..=request.len).contains(&run.len), "no more than was asked for");
        if request.kind == Kind::Metadata {
            let block = self.layout.block_fragments();
            let is_block = run.len == block && run.start.0.is_multiple_of(block.into());
            assert!(is_block, "metadata has whole blocks");
        }
        if self.layout.is_allocatable(run.start, run.len) {
            return Ok(());
        }
        let cg = self.layout.cg_of_fragment(run.start);
        Err(Corruption::CgBitmap { cg }.into())
    }

    pub(super) fn take(&self, state: &mut State, run: FragRun) -> Result<()> {
        let cg = self.layout.cg_of_fragment(run.start);
        let at = self.in_group(cg, run.start);
        let files = self.files_start(state, cg);
        let group = self.group(state, cg)?;
        group.take(at, run.len);
        if at >= files {
            group.rotor = at + run.len;
        }
        let taken = state.free.min(run.len.into());
        state.free -= taken;
        // The superblock's count may be too low.
        state.free_elsewhere += i64::from(run.len) - taken as i64;
        state.whole.taken(run.len, self.layout.block_fragments());
        Ok(())
    }

    pub(super) fn place_small(
        &self,
        state: &mut State,
        request: &Request,
    ) -> Result<Option<FragRun>> {
        let own = (request.owner, Class::Files);
        if request.grown
            && let Some(run) = self.take_from_holes(state, request)?
        {
            return Ok(Some(run));
        }
        let is_urgent = request.owner == Owner::Urgent;
        if (request.grown || is_urgent)
            && let Some(run) = self.take_reserved(state, own, request.len)
        {
            return Ok(Some(run));
        }
        let needs_no_room = request.replaces && !state.reservations.contains_key(&own);
        if request.grown && (needs_no_room || self.ends_in_shared(state, own)) {
            let run = self.take_shared(state, request.len)?;
            if let (Some(run), Some(home)) = (run, state.homes.get_mut(&request.owner)) {
                self.add_to(home, run);
            }
            return Ok(run);
        }
        if request.grown && self.reserve_run(state, own, request.len)?
            || is_urgent && self.reserve_urgent(state)?
        {
            return Ok(self.take_reserved(state, own, request.len));
        }
        self.take_shared(state, request.len)
    }

    fn take_shared(&self, state: &mut State, len: u32) -> Result<Option<FragRun>> {
        let shared = (Owner::Shared, Class::Files);
        if let Some(run) = self.take_reserved(state, shared, len) {
            return Ok(Some(run));
        }
        Ok(if self.reserve_run(state, shared, len)? {
            self.take_reserved(state, shared, len)
        } else {
            None
        })
    }

    /// Takes the next fragments of a key's reservation, which stay marked as reserved.
    pub(super) fn take_reserved(
        &self,
        state: &mut State,
        owner: (Owner, Class),
        len: u32,
    ) -> Option<FragRun> {
        let clock = state.clock;
        let reservation = state.reservations.get_mut(&owner)?;
        if reservation.end.0 - reservation.next.0 < u64::from(len) {
            return None;
        }
        let run = FragRun::new(reservation.next, len);
        reservation.next = run.end();
        reservation.used = clock;
        Some(run)
    }

    /// Reserves a run for a key, right after its last run if possible, otherwise at the hot spot or after it.
    pub(super) fn reserve_run(
        &self,
        state: &mut State,
        owner: (Owner, Class),
        len: u32,
    ) -> Result<bool> {
        let segment = self.layout.segment_fragments();
        let previous = state.reservations.remove(&owner);
        // All file reservations together take at most a part of the free space. Sector reservations are as
        // numerous but short: if they counted, directories would be in twice as many pieces.
        let of_files =
            state.reservations.keys().filter(|(_, class)| *class == Class::Files).count() as u64;
        let fair = (state.free / (of_files + 1) * self.placing.reserved_eighths / 8)
            .min(u32::MAX.into()) as u32;
        let most = self.segments(self.placing.reservation_bytes_max);
        let longest = (fair / segment).clamp(1, most) * segment;
        let first = self.segments(self.placing.reservation_bytes_first) * segment;
        let longer = match (self.key_sizes.of_owner(owner.0), previous) {
            (Some(size), _) => size.min(longest).next_multiple_of(segment),
            (None, Some(last)) => last.made.saturating_mul(self.placing.reservation_growth),
            (None, None) => first,
        };
        let mut want = longer.clamp(segment, longest).max(len.next_multiple_of(segment));
        if let Some(reservation) = previous {
            self.release_reservation(state, &reservation)?;
            // A shorter run that needs no seek is as good.
            let least = want.min(first).max(len);
            if let Some(run) = self.run_after(state, reservation.next, least..=want)? {
                return self.start_reservation(state, owner, run, want);
            }
        }
        loop {
            if let Some(run) = self.find_near(state, previous, want)? {
                return self.start_reservation(state, owner, run, want);
            }
            if let Some(run) = self.find_from_hot(state, want, segment)? {
                return self.start_reservation(state, owner, run, want);
            }
            if want <= segment {
                return Ok(false);
            }
            want = (want / 2).max(segment);
            if want < len {
                return Ok(false);
            }
        }
    }

    /// A run in the group of a key's last reservation, which is a short seek away.
    fn find_near(
        &self,
        state: &mut State,
        previous: Option<Reservation>,
        want: u32,
    ) -> Result<Option<FragRun>> {
        let segment = self.layout.segment_fragments();
        let Some(reservation) =
            previous.filter(|reservation| reservation.end.0 < self.layout.fragments())
        else {
            return Ok(None);
        };
        let cg = self.layout.cg_of_fragment(reservation.end);
        let files = self.files_start(state, cg);
        let from = self.in_group(cg, reservation.end).max(files);
        let group = self.group(state, cg)?;
        let end = group.fragments();
        let found = group
            .find(from, end, want, segment, Among::Unreserved)
            .or_else(|| group.find(files, end, want, segment, Among::Unreserved));
        Ok(found.map(|at| FragRun::new(self.of_group(cg, at), want)))
    }

    pub(super) fn start_reservation(
        &self,
        state: &mut State,
        owner: (Owner, Class),
        run: FragRun,
        made: u32,
    ) -> Result<bool> {
        if state.reservations.len() >= self.placing.reservations_max {
            let oldest = state.reservations.iter().min_by_key(|(_, reservation)| reservation.used);
            if let Some((oldest, reservation)) =
                oldest.map(|(owner, reservation)| (*owner, *reservation))
            {
                self.release_reservation(state, &reservation)?;
                state.reservations.remove(&oldest);
            }
        }
        let cg = self.layout.cg_of_fragment(run.start);
        let at = self.in_group(cg, run.start);
        let last = FragNo(run.end().0 - 1);
        assert_eq!(cg, self.layout.cg_of_fragment(last), "a reservation is in one group");
        self.group(state, cg)?.reserve(at, run.len);
        let used = state.clock;
        state
            .reservations
            .insert(owner, Reservation { next: run.start, end: run.end(), made, used });
        if owner.1 == Class::Files
            && let Some(home) = state.homes.get_mut(&owner.0)
        {
            self.add_to(home, run);
        }
        Ok(true)
    }

    pub(super) fn release_reservation(
        &self,
        state: &mut State,
        reservation: &Reservation,
    ) -> Result<()> {
        let len = (reservation.end.0 - reservation.next.0) as u32;
        if len > 0 {
            let cg = self.layout.cg_of_fragment(reservation.next);
            let at = self.in_group(cg, reservation.next);
            self.group(state, cg)?.release(at, len);
        }
        Ok(())
    }

    /// The longest run that begins here, if its length is in the range.
    pub(super) fn run_after(
        &self,
        state: &mut State,
        end: FragNo,
        len: RangeInclusive<u32>,
    ) -> Result<Option<FragRun>> {
        if end.0 >= self.layout.fragments() {
            return Ok(None);
        }
        let cg = self.layout.cg_of_fragment(end);
        let at = self.in_group(cg, end);
        let free = self.group(state, cg)?.run_at(at, *len.end(), Among::Unreserved);
        Ok(len.contains(&free).then(|| FragRun::new(end, free)))
    }

    /// The first run of `len` fragments at the hot spot or after it, group by group. Moves the hot spot
    /// there.
    pub(super) fn find_from_hot(
        &self,
        state: &mut State,
        len: u32,
        align: u32,
    ) -> Result<Option<FragRun>> {
        let cgs = self.layout.cgs();
        for step in 0..cgs {
            let cg = CgIndex((state.hot.0 + step) % cgs);
            let files = self.files_start(state, cg);
            let group = self.group(state, cg)?;
            if group.free_count() < len {
                continue;
            }
            if let Some(at) = group.find_from_rotor(files, len, align) {
                state.hot = cg;
                return Ok(Some(FragRun::new(self.of_group(cg, at), len)));
            }
        }
        Ok(None)
    }

    pub(super) fn place_large(
        &self,
        state: &mut State,
        request: &Request,
    ) -> Result<Option<FragRun>> {
        let block = self.layout.block_fragments();
        if let Some(goal) = request.goal
            && goal.0 < self.layout.fragments()
        {
            let cg = self.layout.cg_of_fragment(goal);
            let at = self.in_group(cg, goal);
            let free = self.group(state, cg)?.run_at(at, request.len, Among::Unreserved);
            // A long run elsewhere is better than a short one right after the file.
            if free >= request.len.min(self.layout.segment_fragments()) {
                return Ok(Some(FragRun::new(goal, free)));
            }
        }
        // A tail of less than a block goes among the small files if the file cannot continue where it ends.
        if request.len < block {
            return self.place_small(state, request);
        }
        if request.kind == Kind::Medium
            && request.grown
            && let Some(run) = self.take_from_holes(state, request)?
        {
            return Ok(Some(run));
        }
        let group_fragments = self.layout.cg_blocks * block;
        let mut want = request.len.min(group_fragments / 2);
        loop {
            if let Some(run) = self.find_from_hot(state, want, block)? {
                return Ok(Some(run));
            }
            if want <= block {
                return Ok(None);
            }
            // In whole blocks, so that the last search is for a single block, whatever the length.
            want = (want / 2 / block * block).max(block);
        }
    }

    fn place_metadata(&self, state: &mut State, request: &Request) -> Result<Option<FragRun>> {
        let block = self.layout.block_fragments();
        debug_assert_eq!(request.len, block, "metadata comes in blocks");
        // All free space outside the pool may be promised to data.
        if !self.can_spare_block(state)
            && let Some(number) = state.pool.pop()
        {
            return Ok(Some(FragRun::new(self.layout.block_start(number), block)));
        }
        if let Some(run) = self.place_sectors(state, request)? {
            return Ok(Some(run));
        }
        // If space is short, metadata goes where files go: to the next whole block of the key's reservation
        // or of the shared one.
        let shared = (Owner::Shared, Class::Files);
        for owner in [(request.owner, Class::Files), shared] {
            if owner == shared && !state.reservations.contains_key(&shared) {
                self.reserve_run(state, shared, block)?;
            }
            if let Some(run) = self.take_reserved_block(state, owner)? {
                return Ok(Some(run));
            }
        }
        if self.reserve_run(state, shared, block)? {
            return self.take_reserved_block(state, shared);
        }
        if let Some(run) = self.find_from_hot(state, block, block)? {
            return Ok(Some(run));
        }
        while self.shrink_reservations(state)? {
            if let Some(run) = self.find_from_hot(state, block, block)? {
                return Ok(Some(run));
            }
        }
        state.zones_open = true;
        if let Some(run) = self.find_from_hot(state, block, block)? {
            return Ok(Some(run));
        }
        let pooled = state.pool.pop();
        Ok(pooled.map(|number| FragRun::new(self.layout.block_start(number), block)))
    }

    /// The first sectors of all directories go next to each other, into one reservation. A directory's later
    /// sectors go right after its first ones, or into a reservation of its own in the same zone, or else into
    /// one that is cut from the common reservation. So few requests read the names of a directory or of a
    /// tree.
    fn place_sectors(&self, state: &mut State, request: &Request) -> Result<Option<FragRun>> {
        let Some(goal) = request.goal.filter(|goal| goal.0 < self.layout.fragments()) else {
            return self.place_first_sector(state);
        };
        let block = self.layout.block_fragments();
        let segment = self.layout.segment_fragments();
        let own = (request.owner, Class::Metadata);
        if let Some(run) = self.take_reserved_block(state, own)? {
            return Ok(Some(run));
        }
        if let Some(run) = self.run_after(state, goal, block..=block)? {
            return Ok(Some(run));
        }
        let longest = self.segments(self.placing.sectors_bytes_max) * segment;
        let first = self.placing.sectors_bytes_first / u64::from(self.layout.fragment_bytes);
        let first = u32::try_from(first).unwrap_or(u32::MAX).clamp(block, longest);
        let want = request.room.clamp(first, longest).next_multiple_of(block);
        let near = self.layout.cg_of_fragment(goal);
        let all = (Owner::Shared, Class::Metadata);
        let mut run = self.find_in_zone(state, near, want, block)?;
        if run.is_none() {
            run = self.take_reserved(state, all, want);
        }
        if run.is_none() && self.reserve_sectors(state)? {
            run = self.take_reserved(state, all, want);
        }
        let Some(run) = run else { return self.block_of_zone(state) };
        if let Some(reservation) = state.reservations.remove(&own) {
            self.release_reservation(state, &reservation)?;
        }
        self.start_reservation(state, own, run, want)?;
        self.take_reserved_block(state, own)
    }

    fn place_first_sector(&self, state: &mut State) -> Result<Option<FragRun>> {
        let all = (Owner::Shared, Class::Metadata);
        if let Some(run) = self.take_reserved_block(state, all)? {
            return Ok(Some(run));
        }
        if self.reserve_sectors(state)? {
            return self.take_reserved_block(state, all);
        }
        self.block_of_zone(state)
    }

    /// Takes the next whole block of a key's reservation; skipped fragments are released.
    fn take_reserved_block(
        &self,
        state: &mut State,
        owner: (Owner, Class),
    ) -> Result<Option<FragRun>> {
        let block = self.layout.block_fragments();
        let clock = state.clock;
        let Some(reservation) = state.reservations.get_mut(&owner) else { return Ok(None) };
        let start = reservation.next.0.next_multiple_of(block.into());
        if start + u64::from(block) > reservation.end.0 {
            return Ok(None);
        }
        let skipped = FragRun::new(reservation.next, (start - reservation.next.0) as u32);
        reservation.next = FragNo(start + u64::from(block));
        reservation.used = clock;
        if skipped.len > 0 {
            let cg = self.layout.cg_of_fragment(skipped.start);
            let at = self.in_group(cg, skipped.start);
            self.group(state, cg)?.release(at, skipped.len);
        }
        Ok(Some(FragRun::new(FragNo(start), block)))
    }

    /// The last resort: releases reservations and takes any run, a shorter one if no free run is long enough.
    fn place_anywhere(&self, state: &mut State, request: &Request) -> Result<Option<FragRun>> {
        if request.kind == Kind::Metadata {
            return Ok(None);
        }
        while self.shrink_reservations(state)? {
            if let Some(run) = self.find_from_hot(state, request.len, 1)? {
                return Ok(Some(run));
            }
        }
        state.zones_open = true;
        if let Some(run) = self.find_from_hot(state, request.len, 1)? {
            return Ok(Some(run));
        }
        let cgs = self.layout.cgs();
        for step in 0..cgs {
            let cg = CgIndex((state.hot.0 + step) % cgs);
            let (at, len) = self.group(state, cg)?.longest(1, Among::Unreserved);
            if len > 0 {
                return Ok(Some(FragRun::new(self.of_group(cg, at), len.min(request.len))));
            }
        }
        Ok(None)
    }

    /// Halves every file reservation, or every sector reservation once no file reservation is left. False if
    /// none is left.
    pub(super) fn shrink_reservations(&self, state: &mut State) -> Result<bool> {
        Ok(self.shrink(state, Class::Files)? || self.shrink(state, Class::Metadata)?)
    }

    fn shrink(&self, state: &mut State, class: Class) -> Result<bool> {
        let segment = u64::from(self.layout.segment_fragments());
        let mut reservations = std::mem::take(&mut state.reservations);
        let mut any = false;
        for (_, reservation) in reservations.iter_mut().filter(|((_, of), _)| *of == class) {
            let left = reservation.end.0 - reservation.next.0;
            let kept = if left > segment { left / 2 } else { 0 };
            let end = FragNo(reservation.next.0 + kept);
            self.release_reservation(state, &Reservation { next: end, ..*reservation })?;
            reservation.end = end;
            any |= left > 0;
        }
        state.reservations = reservations;
        Ok(any)
    }
}
