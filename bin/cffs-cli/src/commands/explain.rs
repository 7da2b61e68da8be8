//! `cffs explain`: the placement of a file.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use cffs_serve::served::control::{self, Question};
use clap::Args;

use crate::output::{self, say};

/// Show where a file on a mounted volume is stored, and what a cold read of it costs
///
/// Prints where name, inode and data are stored, which segment they belong to, and how many requests a read
/// takes when none of them is cached. For compressed contents, also prints how many parts of other files
/// their clusters contain, and the compression ratio of the clusters: expanded bytes per stored byte.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  cffs explain mnt/src/main.rs")]
pub struct Explain {
    /// The files.
    #[arg(value_name = "DIR/PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Explain {
    /// Queries the server about each file.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        for (index, path) in self.paths.iter().enumerate() {
            let answer = control::ask(path, Question::Explain)
                .with_context(|| path.display().to_string())?;
            if self.json {
                output::json(&answer)?;
                continue;
            }
            if index > 0 {
                say!("")?;
            }
            say!("{}", output::printable(path.as_os_str().as_encoded_bytes()))?;
            output::key_values(&answer)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
