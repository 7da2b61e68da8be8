//! Territories: where the files of a key lie, and the holes among them.

use super::group::Among;
use super::place::{Kind, Request};
use super::{Allocator, Class, Owner, State};
use crate::error::Result;
use crate::units::{FragNo, FragRun};

/// Where the files of a key that has grown lie: what they leave is for the next ones.
#[derive(Debug, Default)]
pub(super) struct Territory {
    runs: Vec<FragRun>,
    /// No hole of this length was left when one was last looked for. Holes come with epochs.
    pub(super) no_hole: Option<u32>,
}

impl Allocator {
    /// Whether the territory of a key that has grown is known.
    pub fn is_settled(&self, owner: Owner) -> bool {
        self.lock().territories.contains_key(&owner)
    }

    /// Notes in which segments the files of a key that has grown lie now, unless that is known: holes
    /// among them are for the next ones. Finding them out takes locks above the allocator's, so the
    /// caller does it, before it asks for a place.
    pub fn settle(&self, owner: Owner, segments: &[u64]) {
        let territory = self.territory_of(segments);
        let mut state = self.lock();
        if state.territories.len() >= self.placing.reservations_max {
            state.territories.clear();
        }
        state.territories.entry(owner).or_insert(territory);
    }

    /// The first hole that is long enough among the files of the key. That files which are made
    /// together may come apart costs a reader little: it reads the whole of it in sweeps.
    pub(super) fn take_from_holes(
        &self,
        state: &mut State,
        request: &Request,
    ) -> Result<Option<FragRun>> {
        let mut territory = state.territories.remove(&request.owner).unwrap_or_default();
        let mut found = None;
        if territory.no_hole.is_none_or(|len| request.len < len) {
            for run in &territory.runs {
                let cg = self.layout.cg_of_fragment(run.start);
                let from = self.in_group(cg, run.start);
                let group = self.group(state, cg)?;
                if let Some(at) = group.find(from, from + run.len, request.len, 1, Among::Unheld) {
                    found = Some(FragRun::new(self.of_group(cg, at), request.len));
                    break;
                }
            }
            if found.is_none() {
                territory.no_hole = Some(request.len);
            }
        }
        if found.is_none() && request.kind == Kind::Medium {
            found = self.longest_hole(state, &territory, request.len)?;
        }
        state.territories.insert(request.owner, territory);
        Ok(found)
    }

    /// The longest hole among the files of the key, if they have room for `len` fragments in pieces that
    /// are long enough. A reader of the directory reads them all on the way; a place of its own would be
    /// one more to go to.
    fn longest_hole(
        &self,
        state: &mut State,
        territory: &Territory,
        len: u32,
    ) -> Result<Option<FragRun>> {
        let block = self.layout.block_fragments();
        let least = (len / self.placing.medium_pieces_max).max(self.layout.segment_fragments());
        let mut longest: Option<FragRun> = None;
        let mut room = 0;
        for run in &territory.runs {
            let cg = self.layout.cg_of_fragment(run.start);
            let group = self.group(state, cg)?;
            let mut from = self.in_group(cg, run.start);
            let end = from + run.len;
            while let Some(at) = group.find(from, end, least, block, Among::Unheld) {
                let hole = group.run_at(at, end - at, Among::Unheld) / block * block;
                room += hole;
                if longest.is_none_or(|longest| hole > longest.len) {
                    longest = Some(FragRun::new(self.of_group(cg, at), hole.min(len)));
                }
                from = at + hole;
            }
        }
        Ok(longest.filter(|_| room >= len))
    }

    /// The territory that consists of these segments, in order, as far as they are on the volume.
    fn territory_of(&self, segments: &[u64]) -> Territory {
        let len = self.layout.segment_fragments();
        let mut territory = Territory::default();
        for segment in segments {
            let start = FragNo(segment.saturating_mul(len.into()));
            if start.0.saturating_add(len.into()) > self.layout.fragments() {
                continue;
            }
            self.add_to(&mut territory, FragRun::new(start, len));
        }
        territory
    }

    /// Whether a key that has no reservation yet has its last files where the stream continues: it is
    /// being filled, and an epoch came between.
    pub(super) fn ends_in_stream(&self, state: &State, own: (Owner, Class)) -> bool {
        let stream = (Owner::Shared, Class::Files);
        let Some(stream) = state.reservations.get(&stream) else { return false };
        let Some(territory) = state.territories.get(&own.0) else { return false };
        let last = FragNo(stream.next.0.saturating_sub(1));
        let is_there = |run: &FragRun| run.start <= last && last < run.end();
        !state.reservations.contains_key(&own) && territory.runs.iter().any(is_there)
    }

    /// Adds a run, which lies in one group, to a territory: to the last one if they touch and share the
    /// group.
    pub(super) fn add_to(&self, territory: &mut Territory, run: FragRun) {
        let cg_of = |at| self.layout.cg_of_fragment(at);
        match territory.runs.last_mut() {
            Some(last) if last.end() == run.start && cg_of(last.start) == cg_of(run.start) => {
                last.len += run.len;
            }
            _ => territory.runs.push(run),
        }
        if territory.runs.len() > self.placing.territory_runs_max {
            territory.runs.remove(0);
        }
    }
}
