//! Plans: prefetching of the files that a directory lists next.
//!
//! A miss plans the files that are listed after it, and reads them in the order of the device, gaps
//! between them included where reading costs less than a seek.
//!
//! ```text
//!     miss in order: × growth, up to the longest plan
//!    none ────────────────────────────────▶ planning ──▶ the next directory begins with as much
//!     ▲          miss out of order             │
//!     └────────────────────────────────────────┘
//! ```
//!
//! With prefetch threads, a plan is continued when the reader reaches the file in its middle, so that the
//! device need not wait for the reader. A walk of a tree (`walk`) continues with the next directory, which is
//! planned when the reader reaches the last plan of this one.
//!
//! The way (`way`) limits how far apart the files of a plan may be: if the files of a directory are not
//! together, a wrong guess costs an access for each of them.
//!
//! A miss is in order if the reader skipped hardly any absent file since the last plan. So a random reader
//! only pays for group reads. Subdirectories are planned in the same way, as find(1) needs them.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use super::survey::{Candidate, Listed, Survey};
use super::way::Way;
use crate::cache::{Cursor, Cursors, Growth};
use crate::inode::VnodeState;
use crate::lock::{Mutex, Rank};
use crate::tuning::Tuning;
use crate::units::{BlockNo, Container, InodeNo, SectorIndex};

/// How far a directory was planned.
#[derive(Clone, Copy, Debug)]
struct Place {
    dir: InodeNo,
    /// The sector at which the last plan began.
    first: SectorIndex,
    /// The last file of the last plan, and its sector.
    last: (SectorIndex, InodeNo),
    /// The file of the last plan at which the next one begins.
    middle: InodeNo,
    /// The limit of the distance between the files of the last plan.
    way: Way,
}

/// The recently planned directories; windows are in bytes. Separate for files and for directories: a
/// directory of directories keeps its plan while those of hundreds of directories below it are replaced.
pub(super) struct Plans {
    files: Planned,
    directories: Planned,
}

struct Planned {
    cursors: Mutex<Cursors<Place>>,
    /// Whether there are any. Outside of the lock, since the first read of each file checks it: without
    /// misses there are no plans.
    is_any: AtomicBool,
}

/// The runs that a plan reads.
#[derive(Default)]
struct Gathered {
    runs: Vec<Range<u64>>,
    last: Option<(SectorIndex, InodeNo)>,
    /// The file at which the next plan begins: in the middle, or if the directory has no more files
    /// than these, the first.
    middle: InodeNo,
}

impl Plans {
    pub(super) fn new(tuning: &Tuning) -> Plans {
        let none = || Planned {
            cursors: Mutex::new(Rank::Leaf, Cursors::new(tuning.reading.cursors_max)),
            is_any: AtomicBool::new(false),
        };
        Plans { files: none(), directories: none() }
    }

    fn of(&self, listed: Listed) -> &Planned {
        match listed {
            Listed::Files => &self.files,
            Listed::Directories => &self.directories,
        }
    }

    fn find(&self, dir: InodeNo, listed: Listed) -> Option<Cursor<Place>> {
        let planned = self.of(listed);
        if !planned.is_any.load(Ordering::Relaxed) {
            return None;
        }
        planned.cursors.lock().find(|place| place.dir == dir).cloned()
    }

    /// The plan that was made last: where another directory ended.
    fn latest(&self, listed: Listed) -> Option<Cursor<Place>> {
        self.of(listed).cursors.lock().latest().cloned()
    }

    fn remember(&self, listed: Listed, at: Place, window: u64) {
        let planned = self.of(listed);
        let mut cursors = planned.cursors.lock();
        planned.is_any.store(true, Ordering::Relaxed);
        match cursors.find_to_move(|place| place.dir == at.dir) {
            Some(plan) => *plan = Cursor { at, window },
            None => cursors.add(Cursor { at, window }),
        }
    }

    /// The bytes of the last plan of a directory's files, and its way.
    pub(super) fn extent_of(&self, dir: InodeNo) -> Option<(u64, Way)> {
        self.find(dir, Listed::Files).map(|plan| (plan.window, plan.at.way))
    }

    /// Whether the reader has come to the middle of the last plan, and threads can read the next one
    /// meanwhile.
    pub(super) fn is_due(
        &self,
        survey: &Survey<'_>,
        dir: InodeNo,
        listed: Listed,
        ino: InodeNo,
    ) -> bool {
        let plan = || self.find(dir, listed);
        survey.inodes.cache.has_prefetchers() && plan().is_some_and(|plan| plan.at.middle == ino)
    }

    /// Whether this is the first of the directories that its parent lists first. Its own sectors may have
    /// been read with the parent's, but those of the next have not, and returning for them from the files of
    /// the first costs two seeks.
    pub(super) fn begins_tree(&self, at: Container, listed: Listed) -> bool {
        listed == Listed::Directories && at.sector.0 < 2 && self.find(at.file, listed).is_none()
    }

    /// The extent of the plan for a miss. `expected`: the miss is one of the planned files, or follows them.
    fn way(
        &self,
        survey: &Survey<'_>,
        before: Option<&Cursor<Place>>,
        at: Container,
        listed: Listed,
        expected: bool,
    ) -> Way {
        let sectors_max = survey.reading.plan_sectors_max;
        let latest = || self.latest(listed).map(|latest| latest.at.way);
        let way = match before {
            Some(Cursor { at: place, .. }) => {
                let end = place.last.0.0.saturating_add(sectors_max);
                let follows = expected && (place.first.0..end).contains(&at.sector.0);
                follows.then(|| place.way.twice(survey))
            }
            None if at.sector.0 < 2 => latest(),
            None => None,
        };
        way.unwrap_or(Way::at_random(survey))
    }

    /// Plans the files from a missed one on: as many as the cursor's window allows, if the miss was in order.
    pub(super) fn plan(
        &self,
        survey: &Survey<'_>,
        dir: &VnodeState,
        at: Container,
        ino: InodeNo,
        listed: Listed,
    ) -> Vec<Range<u64>> {
        let of_tree = listed == Listed::Directories;
        let sectors_max = survey.reading.plan_sectors_max;
        let most = survey.inodes.cache.tuning().plan_bytes_max();
        let before = self.find(at.file, listed);
        let from = match &before {
            Some(plan) if at.sector.0.wrapping_sub(plan.at.last.0.0) < sectors_max => {
                plan.at.last.0
            }
            Some(_) => at.sector,
            None if of_tree && at.sector.0 < sectors_max => SectorIndex(0),
            None => SectorIndex(at.sector.0.saturating_sub(1)),
        };
        let mut candidates = survey.candidates(dir, from.0..at.sector.0 + 1, listed);
        let is_last = |plan: &Cursor<Place>| {
            candidates.iter().position(|candidate| candidate.ino == plan.at.last.1)
        };
        let last = before.as_ref().and_then(is_last);
        let planned = match (&before, last) {
            (Some(plan), _) if at.sector.0 < plan.at.last.0.0 => true,
            (_, Some(last)) => candidates[..=last].iter().any(|c| c.ino == ino),
            _ => false,
        };
        if let (Some(last), false) = (last, planned) {
            candidates.drain(..=last);
        }
        let passed = candidates.iter().position(|one| one.ino == ino);
        let missing =
            |one: &&Candidate| one.blocks.iter().any(|run| survey.absent_of(run).is_some());
        let in_order = passed.is_some_and(|passed| {
            candidates[..passed].iter().filter(missing).count() <= survey.reading.passed_max
        });
        let way = self.way(survey, before.as_ref(), at, listed, in_order || planned);
        let segment = u64::from(survey.inodes.layout.segment_bytes);
        let growth = Growth { least: 2 * segment, ..growth(survey, listed) };
        let mut budget = match before {
            _ if !in_order && !planned => 0,
            Some(plan) => plan.next_window(growth),
            None => match self.latest(listed) {
                Some(latest) if at.sector.0 < 2 => latest.window,
                None if of_tree && from.0 == 0 => survey.reading.tree_bytes_first,
                _ => 0,
            },
        }
        .min(most);
        candidates.drain(..passed.unwrap_or(0));
        let gather = |candidates, budget| {
            gather(survey, dir, candidates, at.sector, listed, (budget, Some(ino)))
        };
        let mut planned = gather(candidates.clone(), budget);
        if of_tree && budget > 0 {
            // In an aged tree, the places of the first few directories span those of the others.
            let worth = survey.worth_the_way(&planned.runs).min(most);
            if worth > budget {
                budget = worth;
                planned = gather(candidates, budget);
            }
            planned.runs.extend(next_sectors(survey, dir, at.sector));
        } else if !of_tree {
            way.limit(survey, &mut planned.runs);
        }
        let (last, middle) = (planned.last.unwrap_or((at.sector, ino)), planned.middle);
        self.remember(listed, Place { dir: at.file, first: from, last, middle, way }, budget);
        // The group read also brings files in one segment, or in a stream.
        let first = planned.runs.first().map(|run| BlockNo(run.start));
        let window = first.map_or(0, |first| survey.inodes.cache.window_bytes(first));
        let is_sufficient = window >= survey.reading.window_bytes_sufficient;
        let streams = is_sufficient && (!of_tree || budget <= window);
        if planned.runs.len() <= 1 && budget <= window || streams {
            return Vec::new();
        }
        survey.merged(planned.runs)
    }

    /// Continues the last plan of a directory, whose middle the reader has reached.
    pub(super) fn continue_plan(
        &self,
        survey: &Survey<'_>,
        dir: &VnodeState,
        listed: Listed,
    ) -> Vec<Range<u64>> {
        let Some(before) = self.find(dir.inode.ino, listed) else { return Vec::new() };
        let (sector, last) = before.at.last;
        let mut candidates = survey.candidates(dir, sector.0..sector.0 + 1, listed);
        let passed = candidates.iter().position(|one| one.ino == last);
        candidates.drain(..passed.map_or(0, |passed| passed + 1));
        let bytes = before.next_window(growth(survey, listed));
        let mut planned = gather(survey, dir, candidates, sector, listed, (bytes, None));
        let way = before.at.way.twice(survey);
        if listed == Listed::Files {
            way.limit(survey, &mut planned.runs);
        }
        let last = planned.last.unwrap_or(before.at.last);
        self.remember(listed, Place { last, middle: planned.middle, way, ..before.at }, bytes);
        survey.merged(planned.runs)
    }

    /// Plans the files of a directory of which none was read yet, if its sectors are in memory.
    pub(super) fn plan_whole(
        &self,
        survey: &Survey<'_>,
        dir: &VnodeState,
        before: (u64, Way),
    ) -> Option<Vec<Range<u64>>> {
        let (first, listed) = (SectorIndex(0), Listed::Files);
        if !survey.is_resident(dir, first, survey.reading.plan_sectors_max) {
            return None;
        }
        let candidates = survey.candidates(dir, 0..1, listed);
        let (bytes, way) = before;
        let mut planned = gather(survey, dir, candidates, first, listed, (bytes, None));
        way.limit(survey, &mut planned.runs);
        let (dir, last, middle) = (dir.inode.ino, planned.last?, planned.middle);
        let place = Place { dir, first, last, middle, way };
        self.remember(listed, place, bytes);
        Some(survey.merged(planned.runs))
    }
}

fn growth(survey: &Survey<'_>, listed: Listed) -> Growth {
    let factor = match listed {
        Listed::Files => survey.reading.plan_growth,
        Listed::Directories => survey.reading.tree_growth,
    };
    Growth { factor, least: 0, most: survey.inodes.cache.tuning().plan_bytes_max() }
}

/// The absent runs of a directory's own sectors from this one on, as far as a plan looks: the next plan needs
/// them.
fn next_sectors(survey: &Survey<'_>, dir: &VnodeState, from: SectorIndex) -> Vec<Range<u64>> {
    let blocks = survey.blocks_of_sectors(dir, from, survey.reading.plan_sectors_max);
    let absent = blocks.into_iter().filter(|block| !survey.inodes.cache.claims(*block));
    absent.map(|block| block.0..block.0 + 1).collect()
}

/// The absent runs of the candidates and of those in the sectors after `from`, up to `budget` bytes, and as
/// far as the cache has room for them and their gaps; those of `wanted` in any case.
fn gather(
    survey: &Survey<'_>,
    dir: &VnodeState,
    mut candidates: Vec<Candidate>,
    from: SectorIndex,
    listed: Listed,
    (budget, wanted): (u64, Option<InodeNo>),
) -> Gathered {
    let mut planned = Gathered::default();
    let mut first = None;
    let (mut bytes, mut gaps) = (0, 0);
    let block_bytes = u64::from(survey.inodes.layout.block_bytes);
    let room = survey.inodes.cache.tuning().plan_room();
    let is_enough = |bytes, gaps| bytes >= budget || bytes + gaps >= room;
    let mut sector = from.0 + 1;
    loop {
        for one in &candidates {
            if is_enough(bytes, gaps) && Some(one.ino) != wanted {
                break;
            }
            planned.last = Some((one.sector, one.ino));
            if Some(one.ino) != wanted {
                first.get_or_insert(one.ino);
            }
            if bytes <= budget / 2 {
                planned.middle = one.ino;
            }
            for run in one.blocks.iter().filter_map(|run| survey.absent_of(run)) {
                bytes += (run.end - run.start) * block_bytes;
                let before = planned.runs.last().map_or(run.start, |before| before.end);
                let gap = run.start.saturating_sub(before) * block_bytes;
                gaps += if gap <= survey.reading.gap_bytes { gap } else { 0 };
                planned.runs.push(run);
            }
        }
        let far = sector > from.0 + survey.reading.plan_sectors_max;
        if is_enough(bytes, gaps) || far {
            return planned;
        }
        if sector >= survey.inodes.containers().sector_count(dir) {
            planned.middle = first.unwrap_or(planned.middle);
            return planned;
        }
        candidates = survey.candidates(dir, sector..sector + 1, listed);
        sector += 1;
    }
}
