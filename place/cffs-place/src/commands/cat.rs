//! `place cat`: copies the contents of many files to standard output, reading them in device order.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use cffs_place::tree::{Unseen, open_for_reading};
use cffs_place::warm::{files_below, warm};

use super::{ends, paths, print_unseen};

/// Write the contents of files to standard output, reading ahead in the order of the device
///
/// Like cat(1), in the given order; files below a directory are in the order of their paths.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Cat {
    /// Files, and directories with everything below them on the same file system; - for a list from
    /// standard input.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// The paths of the list end with a zero byte.
    #[arg(short = '0', long)]
    null: bool,
}

const EXAMPLES: &str = "\
Examples:
  place cat /var/log/app/*.log | grep error
  find mail -name '*.eml' -print0 | place cat -0 - | wc -w";

/// The most files, and bytes, of one read-ahead.
const AHEAD_FILES: usize = 4096;
const AHEAD_BYTES: u64 = 256 << 20;

impl Cat {
    /// Copies all to standard output.
    pub fn run(self) -> Result<ExitCode> {
        let (mut files, mut unseen) = (Vec::new(), Vec::new());
        for path in paths(&self.paths, ends(self.null))? {
            let (mut below, more) = files_below(&[path])?;
            below.sort_by(|(_, a), (_, b)| a.cmp(b));
            files.append(&mut below);
            unseen.extend(more);
        }
        let mut output = io::stdout().lock();
        for round in files.chunks(AHEAD_FILES) {
            // Files that cannot be read are reported below.
            warm(round.to_vec(), AHEAD_BYTES, || {});
            for (_, path) in round {
                copy(path, &mut output, &mut unseen)?;
            }
        }
        output.flush().context("standard output")?;
        Ok(if print_unseen(&unseen) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

/// Copies one file. One that cannot be read is noted; a failure to write is an error.
fn copy(path: &Path, output: &mut impl Write, unseen: &mut Vec<Unseen>) -> Result<()> {
    use std::io::Read;
    let mut file = match open_for_reading(path) {
        Ok(file) => file,
        Err(error) => {
            unseen.push((path.to_owned(), error));
            return Ok(());
        }
    };
    let mut buffer = [0; 64 << 10];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => output.write_all(&buffer[..read]).context("standard output")?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                unseen.push((path.to_owned(), error));
                return Ok(());
            }
        }
    }
}
