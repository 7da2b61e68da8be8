//! `place warm`: reads files into the page cache, in device order.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use cffs_place::warm::{files_below, warm};

use super::{bar, ends, paths, print_unseen, size};
use crate::output::{self, counted, note, say};

/// Read files into the page cache, in the order of the device
///
/// For a program that then reads them in another order: tar, rsync, a build, a training job. Returns when all
/// reads have been started.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Warm {
    /// Files, and directories with everything below them on the same file system; - for a list from
    /// standard input.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// The paths of the list end with a zero byte.
    #[arg(short = '0', long)]
    null: bool,
    /// Read no more than this; half of the memory that is available, if not given.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    limit: Option<u64>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  place warm ~/src && tar -cf src.tar ~/src
  git ls-files -z | place warm -0 -
  place trace -o t -- ./start; place warm - <t";

impl Warm {
    /// Reads the files and prints their number.
    pub fn run(self) -> Result<ExitCode> {
        let (files, mut unseen) = files_below(&paths(&self.paths, ends(self.null))?)?;
        let progress = bar(files.len() as u64, "reading");
        let limit = self.limit.unwrap_or_else(|| memory_available() / 2);
        let (warmed, more) = warm(files, limit, || progress.inc(1));
        progress.finish_and_clear();
        unseen.extend(more);
        match self.json {
            true => output::json(&warmed)?,
            false => say!(
                "{} ({} KiB) in {} on the device",
                counted(warmed.files, "file"),
                warmed.bytes >> 10,
                counted(warmed.runs, "run")
            )?,
        }
        if warmed.left_out > 0 {
            note!("place: left out because of --limit: {}", counted(warmed.left_out, "file"));
        }
        Ok(if print_unseen(&unseen) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

/// Memory that can be used without evicting other programs' pages, in bytes.
pub fn memory_available() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(1 << 20) << 10
}
