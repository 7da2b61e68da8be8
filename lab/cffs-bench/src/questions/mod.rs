//! The questions that the papers left open, asked of C-FFS: each yields tables.
//!
//! ```text
//!   Question ──ask──► tables ──► standard output, and docs/questions.md, which quotes and interprets them
//! ```
//!
//! - [`bandwidth`]: the bandwidth of small files, of large files, and of grouping;
//! - [`grouping`]: whether files are stored together, after years of use and on other file systems;
//! - [`keys`]: keys other than the directory by which files can be stored together;
//! - [`prediction`]: whether numbers of requests predict times;
//! - [`programs`]: the files that programs open together, and the gain of grouping for programs;
//! - [`recovery`]: recovery and response by the load of a server and the time between checkpoints;
//! - [`requests`](mod@requests): the cost of a request by its size, and of unneeded bytes that it reads;
//! - [`sizes`]: sizes of files;
//! - [`tiny`]: files that fit into an inode;
//! - [`unrelated`]: bytes of other files that a reader reads.
//!
//! Tables of the library on the disk in virtual time repeat exactly as long as the cache holds everything
//! that is read. [`crate::figures`] compares these with the document.

pub mod bandwidth;
pub mod grouping;
pub mod keys;
pub mod prediction;
pub mod programs;
pub mod recovery;
pub mod requests;
pub mod sizes;
pub mod tiny;
pub mod unrelated;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::{fmt, fs};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

use crate::disk::{Profile, Stroke};
use crate::library::LibraryPlan;
use crate::peer::{Peer, find_cffs};
use crate::report::table::markdown_table;
use crate::workload::Phase;

/// The parameters of the questions.
#[derive(Clone, Debug, Args)]
pub struct Plan {
    /// Small sizes, for first results.
    #[arg(long)]
    pub quick: bool,
    /// The seed of all random choices.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Directories of this machine whose files are counted.
    #[arg(long, value_delimiter = ',', default_value = "/usr,/etc")]
    pub trees: Vec<PathBuf>,
    /// The directory of this machine's configuration files.
    #[arg(long, default_value = "/etc")]
    pub configuration: PathBuf,
    /// The `cffs` binary.
    #[arg(long, default_value_os_t = find_cffs())]
    pub cffs: PathBuf,
}

/// A question of the papers, in the order of the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Question {
    /// Do small files matter? Thesis, 5.3, question 1; USENIX'97, figures 3 and 4.
    SmallFilesMatter,
    /// Are accesses to small files much slower than to large files? Thesis, 5.3, question 2.
    SmallFilesSlower,
    /// Are accesses to small files often grouped? Thesis, 5.3, question 3.
    AccessesGrouped,
    /// Do current file systems group small files poorly? Thesis, 5.3, question 4; USENIX'97, 2.2.
    GroupedToday,
    /// Do small files stay grouped as a volume ages? Thesis, 5.3, question 5; USENIX'97, 4.3.
    GroupsAged,
    /// How much of what a used volume reads is of other files? Thesis, 2.3.2.
    UnrelatedBytes,
    /// Does grouping improve bandwidth on small files? Thesis, 5.3, question 6; table 4.2.
    SmallFileBandwidth,
    /// Does a larger request take much longer? USENIX'97, 2.1, figure 2.
    ServiceTime,
    /// How large may holes in a group be? USENIX'97, 6.
    Holes,
    /// Do the techniques gain anything if every change is durable at once? USENIX'97, 4.2, figure 5.
    EachDurable,
    /// The gain of each technique alone. USENIX'97, 4.2, figure 6.
    EachTechnique,
    /// How fast are small files on an aged volume? USENIX'97, 4.3, figure 7.
    SmallFilesAged,
    /// Does grouping make applications faster? Thesis, 5.3, question 7; table 4.3.
    Applications,
    /// Do numbers of requests predict times? Thesis, 4.3.
    TimesPredicted,
    /// Does grouping harm large files? Thesis, 5.3, question 8; table 4.1.
    LargeFileBandwidth,
    /// Does recovery stay short under load? Peacock et al., 6.3, figures 7 to 9.
    RecoveryUnderLoad,
    /// Are hints of applications useful? USENIX'97, 6.
    Hints,
    /// Which keys other than the directory are useful? Thesis, 2.3 and 6.
    Keys,
    /// Is the order of writing, as in a log, a better one? USENIX'97, 6.
    LogOrder,
    /// Are tiny files faster if inodes hold them? Extµ, 6.1, tables 1 and 2.
    TinyFiles,
    /// Do servers of tiny files gain by it? Extµ, 6.2, figure 5.
    TinyServers,
    /// Does an inode hold an option of a program? Extµ, 3 and 6.3, figures 1, 2 and 6.
    Configuration,
}

impl Question {
    /// The name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Measures the tables of the answer.
    pub fn ask(self, plan: &Plan) -> Result<Vec<Table>> {
        match self {
            Question::SmallFilesMatter => sizes::matter(plan),
            Question::SmallFilesSlower => bandwidth::by_size(plan),
            Question::AccessesGrouped => programs::traced(plan),
            Question::GroupedToday => grouping::today(plan),
            Question::GroupsAged => grouping::aged(plan),
            Question::UnrelatedBytes => unrelated::bytes(plan),
            Question::SmallFileBandwidth => bandwidth::small_files(plan),
            Question::ServiceTime => requests::service_time(plan),
            Question::Holes => requests::holes(plan),
            Question::EachDurable => bandwidth::each_durable(plan),
            Question::EachTechnique => bandwidth::each_technique(plan),
            Question::SmallFilesAged => bandwidth::small_files_aged(plan),
            Question::Applications => programs::developers(plan),
            Question::TimesPredicted => prediction::of_times(plan),
            Question::LargeFileBandwidth => bandwidth::large_file(plan),
            Question::RecoveryUnderLoad => recovery::under_load(plan),
            Question::Hints => keys::hints(plan),
            Question::Keys => keys::policies(plan),
            Question::LogOrder => keys::log_order(plan),
            Question::TinyFiles => tiny::operations(plan),
            Question::TinyServers => tiny::servers(plan),
            Question::Configuration => sizes::configuration(plan),
        }
    }
}

/// Figures of one kind; prints as Markdown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The names of the columns.
    pub header: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// The first column with numbers.
    pub numbers: usize,
    /// Whether every run with the same seed yields the same figures, on every machine.
    pub is_exact: bool,
}

impl Table {
    /// A table without rows whose figures repeat exactly. Columns from `numbers` on are numbers.
    pub fn new<const N: usize>(header: [&str; N], numbers: usize) -> Table {
        let header = header.map(String::from).into();
        Table { header, rows: Vec::new(), numbers, is_exact: true }
    }

    /// A table whose figures depend on the machine, or on which blocks a full cache drops.
    pub fn inexact<const N: usize>(header: [&str; N], numbers: usize) -> Table {
        Table { is_exact: false, ..Table::new(header, numbers) }
    }

    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    /// Moves rows with the same first cell together, and keeps that cell in the first of them only.
    pub fn grouped(mut self) -> Table {
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

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header: Vec<&str> = self.header.iter().map(String::as_str).collect();
        f.write_str(&markdown_table(&header, self.rows.iter().cloned(), self.numbers))
    }
}

impl Default for Plan {
    /// Asks at full scale, about the files of this machine.
    fn default() -> Plan {
        Plan {
            quick: false,
            seed: 1,
            trees: vec![PathBuf::from("/usr"), PathBuf::from("/etc")],
            configuration: PathBuf::from("/etc"),
            cffs: find_cffs(),
        }
    }
}

impl Plan {
    /// Checks that the directories to analyse exist.
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

    /// The first number in a full run, the second in a quick one.
    fn pick(&self, full: u64, quick: u64) -> u64 {
        if self.quick { quick } else { full }
    }

    /// The library on a volume of this size on a disk in virtual time.
    pub(crate) fn library(&self, profile: Profile, size: u64) -> LibraryPlan {
        LibraryPlan {
            profile,
            stroke: Stroke::Whole,
            size,
            files: 0,
            large_bytes: 64 << 20,
            journal_bytes: 0,
            each_durable: false,
            seed: self.seed,
        }
    }
}

/// The variants that the thesis compares: FFS, C-FFS without grouping, and C-FFS.
const OF_THE_THESIS: [Peer; 3] = [Peer::CffsPlain, Peer::CffsNoGroups, Peer::Cffs];

/// The name of a variant in the tables.
fn called(peer: Peer) -> String {
    String::from(match peer {
        Peer::Cffs => "C-FFS",
        Peer::CffsNoEmbed => "C-FFS without embedding",
        Peer::CffsNoInline => "C-FFS without inlining",
        Peer::CffsNoGroups => "C-FFS without grouping",
        Peer::CffsPlain => "conventional",
        Peer::CffsFirstFit => "conventional, first fit",
        other => other.name(),
    })
}

/// The reads and writes of the disk in a phase.
fn requests(phase: &Phase) -> String {
    let device = phase.device.unwrap_or_default();
    format!("{} + {}", device.reads, device.writes)
}

/// A size with its unit.
fn in_words(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 20 => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 => format!("{} KiB", b >> 10),
        b => format!("{b} bytes"),
    }
}
