//! `place trace`: the files that a command opens, in order.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use cffs_place::list;
use cffs_place::trace::trace;

use super::ends;
use crate::Interrupt;
use crate::output::{counted, note};

/// Run a command, and write down which files it opens, in order
///
/// Lists the files on ext4, XFS and btrfs that the command and its descendants open, each once, by their
/// paths. The list is for place pack --trace, which puts them side by side, and for place warm. The exit
/// status is the command's.
///
/// Needs root. The command runs in a mount namespace of its own; later mounts are not watched.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Trace {
    /// Where the list goes.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// End each path with a zero byte, not a line end: for names with line ends.
    #[arg(short = '0', long)]
    null: bool,
    /// The command with its arguments.
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  place trace -o t -- ./start && place pack --trace t
  place trace -o t -- ./start; place warm - <t";

impl Trace {
    /// Runs the command and writes the list.
    pub fn run(self, _: &Interrupt) -> Result<ExitCode> {
        let at = || self.output.display().to_string();
        let mut output = BufWriter::new(File::create(&self.output).with_context(at)?);
        let ends = ends(self.null);
        let mut untold = 0;
        let (status, seen) = trace(&self.command, |path| {
            untold += u64::from(!list::write(&mut output, path, ends)?);
            Ok(())
        })?;
        output.flush().with_context(at)?;
        if untold > 0 {
            let names = counted(untold, "name");
            note!("place: left out, because of a line end: {names}; -0 keeps them");
        }
        if seen.overflowed {
            note!("place: the kernel lost reports: files are missing from {}", at());
            return Ok(ExitCode::FAILURE);
        }
        // 128 plus the signal's number, as shells report it.
        use std::os::unix::process::ExitStatusExt;
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        Ok(ExitCode::from(code as u8))
    }
}
