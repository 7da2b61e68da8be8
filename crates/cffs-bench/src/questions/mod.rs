//! The questions that the papers left open, and their tables: each is measured, with its answer.
//!
//! ```text
//!   Question ──ask──► Findings (tables, charts, words made of the figures) ──► document
//! ```
//!
//! - [`bandwidth`]: what small files, large files and grouping have to do with each other's bandwidth;
//! - [`grouping`]: whether files lie together, after years of use and on other file systems;
//! - [`keys`]: by what they should lie together, if not by directory;
//! - [`programs`]: what programs open together, and what grouping gives them;
//! - [`sizes`]: how large files are;
//! - [`tiny`]: files that fit into an inode;
//! - [`document`]: the document.
//!
//! What runs on the library and the disk in virtual time is exact as long as the cache holds it.
//! An answer is put together from the figures, so that it stays true when they change.

pub mod bandwidth;
pub mod document;
pub mod grouping;
pub mod keys;
pub mod programs;
pub mod sizes;
pub mod tiny;

#[cfg(test)]
mod tests;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Error, Result};
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
    /// Directories of this machine whose files are counted, the one that speaks for all first.
    pub trees: Vec<PathBuf>,
    /// The directory of this machine's configuration files.
    pub configuration: PathBuf,
    /// The `cffs` binary.
    pub cffs: PathBuf,
}

/// A question of the papers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Question {
    /// Do small files matter?
    SmallFilesMatter,
    /// Are small files much slower than large ones?
    SmallFilesSlower,
    /// Are small files opened in groups?
    AccessesGrouped,
    /// Do ext4, XFS and btrfs group small files?
    GroupedToday,
    /// Does grouping survive years of use?
    GroupsAged,
    /// Does grouping make small files faster? Table 4.2 of the thesis.
    SmallFileBandwidth,
    /// Does grouping make programs faster? Table 4.3 of the thesis.
    Applications,
    /// Does grouping make large files slower? Table 4.1 of the thesis.
    LargeFileBandwidth,
    /// Are hints of programs worth having?
    Hints,
    /// Which keys other than the directory are worth having?
    Keys,
    /// Are files in inodes faster? Tables 1 and 2 of the paper on extµ.
    TinyFiles,
    /// Do servers of tiny files gain by it? Figure 5 of the paper on extµ.
    TinyServers,
    /// Would each option fit into an inode? Figures 1, 2 and 6 of the paper on extµ.
    Configuration,
}

impl Question {
    /// All of them, in the order of the document.
    pub fn all() -> &'static [Question] {
        Question::value_variants()
    }

    /// The name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// The question.
    pub fn title(self) -> &'static str {
        match self {
            Question::SmallFilesMatter => "Do small files matter?",
            Question::SmallFilesSlower => {
                "Are accesses to small files much slower than to large files?"
            }
            Question::AccessesGrouped => "Are accesses to small files often grouped?",
            Question::GroupedToday => "Do current file systems group small files poorly?",
            Question::GroupsAged => "Do small files stay grouped, even under the stress of aging?",
            Question::SmallFileBandwidth => "Does grouping improve bandwidth on small files?",
            Question::Applications => "Does grouping make applications faster?",
            Question::LargeFileBandwidth => "Does grouping harm large files?",
            Question::Hints => "Are hints of applications worth having?",
            Question::Keys => "Which keys other than the directory are worth having?",
            Question::TinyFiles => "Are tiny files faster if inodes hold them?",
            Question::TinyServers => "Do servers of tiny files gain by it?",
            Question::Configuration => "Does an inode hold an option of a program?",
        }
    }

    /// Where it was asked.
    pub fn source(self) -> &'static str {
        match self {
            Question::SmallFilesMatter => "Thesis, 5.3, question 1; USENIX'97, figure 3",
            Question::SmallFilesSlower => "Thesis, 5.3, question 2",
            Question::AccessesGrouped => "Thesis, 5.3, question 3",
            Question::GroupedToday => "Thesis, 5.3, question 4; USENIX'97, 2.2",
            Question::GroupsAged => "Thesis, 5.3, question 5; USENIX'97, 4.3",
            Question::SmallFileBandwidth => "Thesis, 5.3, question 6; table 4.2",
            Question::Applications => "Thesis, 5.3, question 7; table 4.3",
            Question::LargeFileBandwidth => "Thesis, 5.3, question 8; table 4.1",
            Question::Hints => "USENIX'97, 6",
            Question::Keys => "Thesis, 2.3 and 6",
            Question::TinyFiles => "Extµ, 6.1, tables 1 and 2",
            Question::TinyServers => "Extµ, 6.2, figure 5",
            Question::Configuration => "Extµ, 3 and 6.3, figures 1, 2 and 6",
        }
    }

    /// Finds the answer.
    pub fn ask(self, plan: &Plan) -> Result<Findings> {
        match self {
            Question::SmallFilesMatter => sizes::matter(plan),
            Question::SmallFilesSlower => bandwidth::by_size(plan),
            Question::AccessesGrouped => programs::traced(plan),
            Question::GroupedToday => grouping::today(plan),
            Question::GroupsAged => grouping::aged(plan),
            Question::SmallFileBandwidth => bandwidth::small_files(plan),
            Question::Applications => programs::developers(plan),
            Question::LargeFileBandwidth => bandwidth::large_file(plan),
            Question::Hints => keys::hints(plan),
            Question::Keys => keys::policies(plan),
            Question::TinyFiles => tiny::operations(plan),
            Question::TinyServers => tiny::servers(plan),
            Question::Configuration => sizes::configuration(plan),
        }
    }
}

/// The answer to a question.
#[derive(Clone, Debug)]
pub struct Findings {
    /// The method, in a few sentences.
    pub how: String,
    /// The figures.
    pub tables: Vec<Table>,
    /// The figures as charts.
    pub charts: Vec<Chart>,
    /// The answer in a word or two.
    pub verdict: String,
    /// The answer in a few sentences.
    pub answer: String,
}

impl Findings {
    /// The findings of a question that this machine cannot measure.
    fn not_measured(how: String, error: &Error) -> Findings {
        Findings {
            how,
            tables: Vec::new(),
            charts: Vec::new(),
            verdict: String::from("Not measured"),
            answer: format!("Where this was written, it could not be: {error:#}."),
        }
    }
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
    /// Whether they would be the same elsewhere, and the next time.
    pub repeats: Repeats,
}

/// Whether figures are the same when they are measured again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeats {
    /// On every machine, to the last digit.
    Exactly,
    /// Nearly: what a full cache drops is chance.
    Nearly,
    /// On this machine, as far as it is the same.
    Here,
}

impl Table {
    /// A table without rows, of which the columns from `numbers` on are numbers.
    pub fn new<const N: usize>(header: [&str; N], numbers: usize) -> Table {
        let header = header.map(String::from).into();
        Table { header, rows: Vec::new(), numbers, repeats: Repeats::Exactly }
    }

    /// One whose figures repeat less exactly.
    pub fn repeats(self, repeats: Repeats) -> Table {
        Table { repeats, ..self }
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
    /// Finds out before anything is measured whether the directories are there whose files are counted.
    pub fn check(&self) -> Result<()> {
        for (option, directory) in self
            .trees
            .iter()
            .map(|tree| ("--trees", tree))
            .chain([("--configuration", &self.configuration)])
        {
            let listed = fs::read_dir(directory);
            listed.with_context(|| format!("{option} {}", directory.display()))?;
        }
        Ok(())
    }

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

/// The variants that the thesis compares: FFS, C-FFS without grouping, and C-FFS.
const OF_THE_THESIS: [Peer; 3] = [Peer::CffsPlain, Peer::CffsNoGroups, Peer::Cffs];

/// The name of a variant in the document.
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
