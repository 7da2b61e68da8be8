//! Home extents: the segments that contain the files of a key, and the holes in them.

use foldhash::HashMap;

use super::Found;
use super::group::Among;
use super::groups::Groups;
use super::request::{Kind, Owner, Request};
use crate::format::LiveLayout;
use crate::tuning::Placing;
use crate::units::{FragNo, FragRun};

/// The extents of a grown key's files. Holes in them are for its next files.
#[derive(Debug, Default)]
struct HomeExtents {
    runs: Vec<FragRun>,
    /// The last search found no hole of this length. New holes appear when an epoch ends.
    no_hole: Option<u32>,
}

/// The home extents of the keys that have grown, as far as they are known.
pub(super) struct Homes {
    layout: LiveLayout,
    placing: Placing,
    by_owner: HashMap<Owner, HomeExtents>,
}

impl Homes {
    /// No home extents are known yet.
    pub fn new(layout: LiveLayout, placing: Placing) -> Homes {
        Homes { layout, placing, by_owner: HashMap::default() }
    }

    pub fn knows(&self, owner: Owner) -> bool {
        self.by_owner.contains_key(&owner)
    }

    /// Records the segments of an owner's files, in order and cut at the end of the volume, unless they are
    /// known.
    pub fn note(&mut self, owner: Owner, segments: &[u64]) {
        if self.by_owner.len() >= self.placing.reservations_max {
            self.by_owner.clear();
        }
        if self.knows(owner) {
            return;
        }
        self.by_owner.insert(owner, HomeExtents::default());
        let len = self.layout.segment_fragments();
        for segment in segments {
            let start = FragNo(segment.saturating_mul(len.into()));
            if start.0.saturating_add(len.into()) <= self.layout.fragments() {
                self.add(owner, FragRun::new(start, len));
            }
        }
    }

    /// Adds a run, which is in one group, to an owner's home extents if they are known: to the last one if
    /// they touch and share the group.
    pub fn add(&mut self, owner: Owner, run: FragRun) {
        let Some(home) = self.by_owner.get_mut(&owner) else { return };
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

    /// Forgets the home extents of an owner.
    pub fn forget(&mut self, owner: Owner) {
        self.by_owner.remove(&owner);
    }

    /// An epoch has freed space: there may be new holes.
    pub fn epoch_done(&mut self) {
        self.by_owner.values_mut().for_each(|home| home.no_hole = None);
    }

    /// Whether a fragment is in the home extents of an owner.
    pub fn contain(&self, owner: Owner, fragment: FragNo) -> bool {
        let is_there = |run: &FragRun| run.start <= fragment && fragment < run.end();
        self.by_owner.get(&owner).is_some_and(|home| home.runs.iter().any(is_there))
    }

    /// The first hole among the files of the owner that is long enough. This may separate files that were
    /// made together, which costs little: a reader of the directory sweeps over all home extents.
    pub fn find_hole(&mut self, groups: &mut Groups, request: &Request) -> Found {
        let home = self.by_owner.entry(request.owner).or_default();
        if home.no_hole.is_none_or(|len| request.len < len) {
            for run in &home.runs {
                let (cg, from) = self.layout.cg_position(run.start);
                let found = groups.find(cg, from..from + run.len, request.len, 1)?;
                if found.is_some() {
                    return Ok(found);
                }
            }
            home.no_hole = Some(request.len);
        }
        match request.kind {
            Kind::Medium => self.longest_hole(groups, request),
            _ => Ok(None),
        }
    }

    /// The longest hole among the files of the owner, if the holes have room for the request in pieces that
    /// are long enough. A reader of the directory passes over them anyway; a separate place would cost one
    /// more seek.
    fn longest_hole(&self, groups: &mut Groups, request: &Request) -> Found {
        let Some(home) = self.by_owner.get(&request.owner) else { return Ok(None) };
        let block = self.layout.block_fragments();
        let least =
            (request.len / self.placing.medium_pieces_max).max(self.layout.segment_fragments());
        let mut longest = FragRun::default();
        let mut room = 0;
        for run in &home.runs {
            let (cg, from) = self.layout.cg_position(run.start);
            let group = groups.get(cg)?;
            for (at, hole) in group.runs(from..from + run.len, least, block, Among::Unreserved) {
                room += hole;
                if hole > longest.len {
                    longest = self.layout.cg_run(cg, at, hole.min(request.len));
                }
            }
        }
        Ok((room >= request.len).then_some(longest))
    }
}
