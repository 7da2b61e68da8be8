//! The findings of a check: problems, what a crash explains, and doubts about the intent log.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::lost_writes::LostWrites;
use super::{Code, Place, Problem, Report, Severity};
use crate::format::superblock::State;
use crate::units::{Container, InodeNo};

/// The findings of all rounds of a check.
pub(super) struct Findings {
    pub report: Report,
    reported: HashSet<(Code, Place)>,
    /// The state in which the volume was left.
    state: State,
    /// Inodes whose counts and parents a repair has changed: wrong ones are corrected and not reported.
    pub touched: HashSet<InodeNo>,
    /// Why the intent log does not explain what was found; only of a fast check.
    pub doubt: Option<String>,
    /// Evidence that the device lost durable data; only of a fast check.
    pub lost_writes: Option<LostWrites>,
}

impl Findings {
    /// Starts with the problems in the report, for a volume that was left in this state.
    pub fn new(mut report: Report, state: State) -> Findings {
        report.recovery = state != State::Clean;
        report.crashed = state == State::InUse;
        let reported = report.problems.iter().map(|p| (p.code, p.place)).collect();
        Findings {
            report,
            reported,
            state,
            touched: HashSet::new(),
            doubt: None,
            lost_writes: None,
        }
    }

    /// Whether the derived state should be correct.
    pub fn was_clean(&self) -> bool {
        self.state == State::Clean
    }

    /// Whether contradictions may be effects of a crash.
    pub fn crashed(&self) -> bool {
        self.state == State::InUse
    }

    /// Notes a problem, once in all rounds.
    pub fn problem(&mut self, code: Code, place: Place, message: impl Into<String>) {
        if self.reported.insert((code, place)) {
            let message = message.into();
            // A corruption error names its place itself.
            let message = match message.strip_prefix(&format!("{place}: ")) {
                Some(rest) => rest.to_owned(),
                None => message,
            };
            self.report.problems.push(Problem { code, place, message, fixed: false });
        }
    }

    /// Notes a problem of a volume that was left clean; on any other, a crash explains it.
    pub fn expected(&mut self, code: Code, place: Place, message: impl Into<String>) {
        if self.crashed() {
            *self.report.recovered.entry(code).or_default() += 1;
        } else {
            self.problem(code, place, message);
        }
    }

    /// Whether a repair changes primary metadata, and derived state with it.
    pub fn is_damaged(&self) -> bool {
        // Removing an index frees its blocks.
        let changes_truth = |code: Code| code.severity() > Severity::Derived || code == Code::Index;
        self.report.problems.iter().any(|problem| changes_truth(problem.code))
    }

    /// Notes wrong counts and parents, unless a repair made them so.
    pub fn counted(&mut self, code: Code, ino: InodeNo, message: impl Into<String>) {
        if !self.touched.contains(&ino) {
            self.expected(code, Place::Inode(ino), message);
        }
    }

    /// Notes wrong derived state: a problem only of a volume that was left clean and has no other damage.
    pub fn derived(&mut self, code: Code, place: Place, message: impl Into<String>) {
        if self.was_clean() && !self.is_damaged() {
            self.problem(code, place, message);
        } else {
            *self.report.recovered.entry(code).or_default() += 1;
        }
    }

    /// Marks the problems that a repair can help as repaired.
    pub fn settle_problems(&mut self) {
        let is_noted = |p: &Problem| self.reported.contains(&(p.code, p.place));
        debug_assert!(self.report.problems.iter().all(is_noted), "a problem bypassed the findings");
        for problem in &mut self.report.problems {
            problem.fixed = !problem.code.is_final();
        }
    }

    /// Notes that an inode could not be reconnected or repaired for want of space.
    pub fn no_space(&mut self, ino: InodeNo) {
        self.problem(Code::NoSpace, Place::Inode(ino), "no space to reconnect it");
    }

    /// Notes that the intent log does not explain what was found.
    pub fn doubt(&mut self, why: impl Into<String>) {
        self.doubt.get_or_insert_with(|| why.into());
    }

    /// Records that the device lost durable data.
    pub fn lost_writes(&mut self, what: impl Into<String>) {
        let what = what.into();
        self.doubt(what.clone());
        self.lost_writes.get_or_insert(LostWrites { what, generation: 0 });
    }

    /// Why this check cannot be trusted.
    pub fn reason_for_doubt(&self) -> Option<String> {
        let worse = |problem: &&Problem| problem.code.severity() > Severity::Derived;
        let problem = self.report.problems.iter().find(worse);
        self.doubt.clone().or_else(|| problem.map(|problem| problem.to_string()))
    }
}

/// The losses of all rounds.
#[derive(Default)]
pub(super) struct Losses {
    pub sectors: HashSet<Container>,
    /// Directories that lack sectors.
    pub incomplete: BTreeSet<InodeNo>,
    /// The lost names by inode: the directory of each, and the name.
    pub names: BTreeMap<InodeNo, (InodeNo, Vec<u8>)>,
}
