//! `place show`: the requests of a cold read per directory, and their causes.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use cffs_place::predict::{Finding, Requests, predict};
use cffs_place::tree;
use cffs_place::volume::{Kind, Volume};

use super::{counter, print_unseen};
use crate::output::{self, counted, say};

/// Show how many requests a cold read of a directory takes, and why
///
/// For the directory and each one below it on the same file system: the requests for listing it and reading
/// its files one after the other, by name, with cold caches. Only metadata is read for this. The column
/// "ordered" shows the requests if the files are read in device order (place warm).
///
/// On ext4, root can read where the inode tables are; otherwise their usual places are assumed.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Show {
    /// The directory.
    #[arg(default_value = ".")]
    directory: PathBuf,
    /// Show all directories, not only the most expensive ones.
    #[arg(short, long)]
    all: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  place show ~/src
  place show --json ~/src | jq .requests.contents";

/// The number of directories shown without `--all`.
const SHOWN: usize = 20;

#[derive(Serialize)]
struct Shown {
    file_system: Kind,
    requests: Requests,
    total: u64,
    files: u64,
    directories: Vec<Finding>,
}

impl Show {
    /// Predicts and prints.
    pub fn run(self) -> Result<ExitCode> {
        let volume = Volume::of(&self.directory)?;
        let progress = counter("looking at entries:");
        let (directories, unseen) =
            tree::walk(&self.directory, true, |entries| progress.inc(entries))?;
        progress.finish_and_clear();
        let findings = predict(&volume, &directories);
        let none = Requests::default();
        let requests = findings.iter().fold(none, |sum, finding| sum.plus(&finding.requests));
        let files = findings.iter().map(|finding| finding.files).sum();
        let shown = Shown {
            file_system: volume.kind,
            requests,
            total: requests.total(),
            files,
            directories: findings,
        };
        match self.json {
            true => output::json(&shown)?,
            false => print(&shown, if self.all { usize::MAX } else { SHOWN })?,
        }
        Ok(if print_unseen(&unseen) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

const HEADERS: [&str; 9] =
    ["requests", "contents", "inodes", "names", "maps", "ordered", "files", "directory", "why"];

fn print(shown: &Shown, most: usize) -> Result<()> {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(HEADERS);
    for column in table.column_iter_mut().take(7) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut order: Vec<&Finding> = shown.directories.iter().collect();
    order.sort_by_key(|finding| std::cmp::Reverse(finding.requests.total()));
    for finding in order.iter().take(most) {
        let requests = &finding.requests;
        let ordered = requests.total() - requests.contents + finding.runs;
        let numbers = [
            requests.total(),
            requests.contents,
            requests.inodes,
            requests.names,
            requests.maps,
            ordered.min(requests.total()),
            finding.files,
        ];
        let mut row = numbers.map(|number| number.to_string()).to_vec();
        row.extend([finding.path.display().to_string(), finding.why.clone()]);
        table.add_row(row);
    }
    say!("{table}")?;
    if order.len() > most {
        say!("and {} (--all)", counted((order.len() - most) as u64, "other directory"))?;
    }
    let per_file = shown.total as f64 / shown.files.max(1) as f64;
    say!(
        "{} for {} in {} on {}: {per_file:.2} for a file",
        counted(shown.total, "request"),
        counted(shown.files, "file"),
        counted(shown.directories.len() as u64, "directory"),
        shown.file_system.name(),
    )
}
