//! `cffs-bench figures`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use cffs_bench::figures;

#[derive(Args)]
#[command(after_help = "Example: cffs-bench figures --write")]
pub struct FiguresArguments {
    /// Replace the tables in the documents.
    #[arg(long)]
    write: bool,
    /// The directory with README.md and docs/.
    #[arg(default_value = ".")]
    root: PathBuf,
}

impl FiguresArguments {
    pub fn run(self) -> Result<()> {
        figures::run(&self.root, self.write)
    }
}
