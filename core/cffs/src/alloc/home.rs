//! Home extents: the segments that contain the files of a key, and the holes in them.

use super::group::Among;
use super::place::{Kind, Request};
use super::{Allocator, Class, Owner, State};
use crate::error::Result;
use crate::units::{FragNo, FragRun};

/// The extents of a grown key's files. Holes in them are for its next files.
#[derive(Debug, Default)]
pub(super) struct HomeExtents {
    runs: Vec<FragRun>,
    /// The last search found no hole of this length. New holes appear when an epoch ends.
    pub(super) no_hole: Option<u32>,
}

impl Allocator {
    /// Whether the home extents of a key that has grown are known.
    pub fn knows_home(&self, owner: Owner) -> bool {
        self.lock().homes.contains_key(&owner)
    }

    /// Records the segments of a grown key's files, unless they are known; holes in them are for its next
    /// files. Finding the segments takes locks that rank above the allocator's, so the caller finds them
    /// before it asks for a place.
    pub fn note_home(&self, owner: Owner, segments: &[u64]) {
        let home = self.home_of(segments);
        let mut state = self.lock();
        if state.homes.len() >= self.placing.reservations_max {
            state.homes.clear();
        }
        state.homes.entry(owner).or_insert(home);
    }

    /// The first hole among the files of the key that is long enough. This may separate files that were made
    /// together, which costs little: a reader of the directory sweeps over all home extents.
    pub(super) fn take_from_holes(
        &self,
        state: &mut State,
        request: &Request,
    ) -> Result<Option<FragRun>> {
        let mut home = state.homes.remove(&request.owner).unwrap_or_default();
        let mut found = None;
        if home.no_hole.is_none_or(|len| request.len < len) {
            for run in &home.runs {
                let cg = self.layout.cg_of_fragment(run.start);
                let from = self.in_group(cg, run.start);
                let group = self.group(state, cg)?;
                if let Some(at) =
                    group.find(from, from + run.len, request.len, 1, Among::Unreserved)
                {
                    found = Some(FragRun::new(self.of_group(cg, at), request.len));
                    break;
                }
            }
            if found.is_none() {
                home.no_hole = Some(request.len);
            }
        }
        if found.is_none() && request.kind == Kind::Medium {
            found = self.longest_hole(state, &home, request.len)?;
        }
        state.homes.insert(request.owner, home);
        Ok(found)
    }

    /// The longest hole among the files of the key, if the holes have room for `len` fragments in pieces that
    /// are long enough. A reader of the directory passes over them anyway; a separate place would cost one
    /// more seek.
    fn longest_hole(
        &self,
        state: &mut State,
        home: &HomeExtents,
        len: u32,
    ) -> Result<Option<FragRun>> {
        let block = self.layout.block_fragments();
        let least = (len / self.placing.medium_pieces_max).max(self.layout.segment_fragments());
        let mut longest: Option<FragRun> = None;
        let mut room = 0;
        for run in &home.runs {
            let cg = self.layout.cg_of_fragment(run.start);
            let group = self.group(state, cg)?;
            let mut from = self.in_group(cg, run.start);
            let end = from + run.len;
            while let Some(at) = group.find(from, end, least, block, Among::Unreserved) {
                let hole = group.run_at(at, end - at, Among::Unreserved) / block * block;
                room += hole;
                if longest.is_none_or(|longest| hole > longest.len) {
                    longest = Some(FragRun::new(self.of_group(cg, at), hole.min(len)));
                }
                from = at + hole;
            }
        }
        Ok(longest.filter(|_| room >= len))
    }

    /// The home extents of these segments, in order, cut at the end of the volume.
    fn home_of(&self, segments: &[u64]) -> HomeExtents {
        let len = self.layout.segment_fragments();
        let mut home = HomeExtents::default();
        for segment in segments {
            let start = FragNo(segment.saturating_mul(len.into()));
            if start.0.saturating_add(len.into()) > self.layout.fragments() {
                continue;
            }
            self.add_to(&mut home, FragRun::new(start, len));
        }
        home
    }

    /// Whether the last files of a key without a reservation end where the shared reservation continues: its
    /// directory is being filled across an epoch.
    pub(super) fn ends_in_shared(&self, state: &State, own: (Owner, Class)) -> bool {
        let shared = (Owner::Shared, Class::Files);
        let Some(shared) = state.reservations.get(&shared) else { return false };
        let Some(home) = state.homes.get(&own.0) else { return false };
        let last = FragNo(shared.next.0.saturating_sub(1));
        let is_there = |run: &FragRun| run.start <= last && last < run.end();
        !state.reservations.contains_key(&own) && home.runs.iter().any(is_there)
    }

    /// Adds a run, which is in one group, to home extents: to the last one if they touch and share the
    /// group.
    pub(super) fn add_to(&self, home: &mut HomeExtents, run: FragRun) {
        let cg_of = |at| self.layout.cg_of_fragment(at);
        match home.runs.last_mut() {
            Some(last) if last.end() == run.start && cg_of(last.start) == cg_of(run.start) => {
                last.len += run.len;
            }
            _ => home.runs.push(run),
        }
        if home.runs.len() > self.placing.home_runs_max {
            home.runs.remove(0);
        }
    }
}
