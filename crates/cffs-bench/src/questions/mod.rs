//! The questions that the papers left open, and their tables: each measured anew, with its answer.
//!
//! ```text
//!   Question ──ask──► Findings (tables, charts, words made of the figures) ──► document
//! ```
//!
//! - [`bandwidth`]: what small files, large files and grouping have to do with each other's bandwidth.
//! - [`grouping`]: whether files lie together, also after years;
//!
//! What runs on the library and the disk in virtual time is exact: the same program always finds the same.
//! An answer is put together from the figures, so that it stays true when they change.

pub mod bandwidth;
pub mod document;
pub mod grouping;

#[cfg(test)]
mod tests;

use anyhow::Result;
use clap::ValueEnum;

use crate::disk::{Profile, Stroke};
use crate::library::LibraryPlan;
use crate::peer::Peer;
use crate::report::curve::Chart;
use crate::workload::catalog::Scale;

/// How the questions are asked.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How large everything is.
    pub scale: Scale,
    /// Where randomness starts.
    pub seed: u64,
}

/// A question of the papers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Question {
    /// Are small files much slower than large ones?
    SmallFilesSlower,
    /// Does grouping survive years of use?
    GroupsAged,
    /// Does grouping make small files faster? Table 4.2 of the thesis.
    SmallFileBandwidth,
    /// Does grouping make large files slower? Table 4.1 of the thesis.
    LargeFileBandwidth,
}

impl Question {
    /// All of them, in the order of the document.
    pub const ALL: [Question; 4] = [
        Question::SmallFilesSlower,
        Question::GroupsAged,
        Question::SmallFileBandwidth,
        Question::LargeFileBandwidth,
    ];

    /// The name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// The question.
    pub fn title(self) -> &'static str {
        match self {
            Question::SmallFilesSlower => {
                "Are small file accesses significantly slower than large file accesses?"
            }
            Question::GroupsAged => "Do small files stay grouped, even under the stress of aging?",
            Question::SmallFileBandwidth => "Does grouping improve bandwidth on small files?",
            Question::LargeFileBandwidth => "Does grouping harm the performance of large files?",
        }
    }

    /// Where it was asked.
    pub fn source(self) -> &'static str {
        match self {
            Question::SmallFilesSlower => "Thesis, 5.3, question 2",
            Question::GroupsAged => "Thesis, 5.3, question 5; USENIX'97, 4.3",
            Question::SmallFileBandwidth => "Thesis, 5.3, question 6, and table 4.2",
            Question::LargeFileBandwidth => "Thesis, 5.3, question 8, and table 4.1",
        }
    }

    /// Whether the same program always finds the same, on any machine.
    pub fn is_exact(self) -> bool {
        true
    }

    /// Finds the answer.
    pub fn ask(self, plan: &Plan) -> Result<Findings> {
        match self {
            Question::SmallFilesSlower => bandwidth::by_size(plan),
            Question::GroupsAged => grouping::aged(plan),
            Question::SmallFileBandwidth => bandwidth::small_files(plan),
            Question::LargeFileBandwidth => bandwidth::large_file(plan),
        }
    }
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Findings {
    /// What was done, in a few sentences.
    pub how: String,
    /// The figures.
    pub tables: Vec<Table>,
    /// What they look like.
    pub charts: Vec<Chart>,
    /// The answer in a word or two.
    pub verdict: String,
    /// The answer in a few sentences.
    pub answer: String,
}

/// Figures of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The names of the columns.
    pub header: Vec<String>,
    /// The rows.
    pub rows: Vec<Vec<String>>,
    /// The first column with numbers.
    pub numbers: usize,
}

impl Table {
    /// A table without rows, of which the columns from `numbers` on are numbers.
    pub fn new<const N: usize>(header: [&str; N], numbers: usize) -> Table {
        Table { header: header.map(String::from).into(), rows: Vec::new(), numbers }
    }

    /// Adds a row.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    /// Brings rows with the same first cell together, and names it once.
    fn grouped(mut self) -> Table {
        let firsts: Vec<String> = self.rows.iter().map(|row| row[0].clone()).collect();
        let place = |first: &String| firsts.iter().position(|other| other == first);
        self.rows.sort_by_key(|row| place(&row[0]));
        for i in (1..self.rows.len()).rev() {
            if self.rows[i][0] == self.rows[i - 1][0] {
                self.rows[i][0].clear();
            }
        }
        self
    }
}

impl Plan {
    /// One number for a full run, another for one with small sizes.
    fn pick(&self, full: u64, quick: u64) -> u64 {
        if self.scale == Scale::Full { full } else { quick }
    }

    /// The library on a volume of this size on a disk in virtual time.
    fn library(&self, profile: Profile, size: u64) -> LibraryPlan {
        LibraryPlan {
            profile,
            stroke: Stroke::Whole,
            size,
            files: 0,
            large_bytes: 64 << 20,
            log_bytes: 0,
            seed: self.seed,
        }
    }
}

/// What the thesis compares: FFS, C-FFS without grouping, and C-FFS.
const OF_THE_THESIS: [Peer; 3] = [Peer::CffsPlain, Peer::CffsNoGroups, Peer::Cffs];

/// What a variant is called in the document.
fn called(peer: Peer) -> &'static str {
    match peer {
        Peer::Cffs => "C-FFS",
        Peer::CffsNoEmbed => "C-FFS without embedding",
        Peer::CffsNoInline => "C-FFS without inlining",
        Peer::CffsNoGroups => "C-FFS without grouping",
        Peer::CffsPlain => "conventional",
        other => other.name(),
    }
}

/// A size as people write it.
fn in_words(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 20 => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 => format!("{} KiB", b >> 10),
        b => format!("{b} bytes"),
    }
}
