//! `place memory`: the sizes of caches.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::size;
use crate::output::{self, say};
use cffs_place::memory::{self, Memory};

/// Find out how much of a file that was read stays in memory
///
/// Shows the processor's caches and the memory of the machine, and finds how much of a file stays in the page
/// cache: it grows a temporary file in DIR until its beginning leaves memory. A limit of a control group
/// counts as well. Contents of other files may leave memory meanwhile.
#[derive(Debug, Args)]
#[command(name = "memory", after_help = EXAMPLES)]
pub struct MeasureMemory {
    /// A directory on a disk.
    directory: PathBuf,
    /// Stop at this size, rounded up to 4 MiB.
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "1G")]
    limit: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  place memory ~
  systemd-run --user --pty -p MemoryMax=256M place memory ~
  place memory --json --limit 8G /srv | jq .file_bytes";

impl MeasureMemory {
    /// Measures and prints.
    pub fn run(self) -> Result<ExitCode> {
        let found = memory::measure(&self.directory, self.limit)?;
        match self.json {
            true => output::json(&found)?,
            false => print(&found)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn print(found: &Memory) -> Result<()> {
    for (number, bytes) in found.processor_caches.iter().enumerate() {
        let name = if number == 0 { "processor" } else { "" };
        say!("{name:<10} {} KiB", bytes >> 10)?;
    }
    say!("machine    {} MiB", found.total_bytes >> 20)?;
    let (least, limit) = match found.is_whole {
        true => ("at least ", " (--limit)"),
        false => ("", ""),
    };
    say!("page cache {least}{} MiB of a file{limit}", found.file_bytes >> 20)
}
