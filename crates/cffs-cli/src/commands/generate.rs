//! `cffs generate`: man pages and completions, from the definition of the command line.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::Shell;

use crate::cli::Cli;

/// Write man pages or shell completions to a directory
#[derive(Debug, Args)]
pub struct Generate {
    /// What to write.
    what: What,
    /// Where to; made if it is missing.
    directory: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    /// A page for each command, and for the names that mkfs(8), fsck(8) and mount(8) look for.
    Man,
    /// For bash, zsh and fish.
    Completions,
}

/// Names in section 8 and the page that they lead to.
const HELPERS: [(&str, &str); 4] = [
    ("mkfs.cffs", "cffs-mkfs"),
    ("fsck.cffs", "cffs-fsck"),
    ("mount.cffs", "cffs-mount"),
    ("mount.fuse.cffs", "cffs-mount"),
];

impl Generate {
    /// Writes the files.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let written = match self.what {
            What::Man => man_pages(&self.directory),
            What::Completions => completions(&self.directory),
        };
        written.with_context(|| self.directory.display().to_string())?;
        Ok(ExitCode::SUCCESS)
    }
}

fn man_pages(directory: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(directory)?;
    clap_mangen::generate_to(Cli::command(), directory)?;
    for (name, page) in HELPERS {
        fs::write(directory.join(format!("{name}.8")), format!(".so man1/{page}.1\n"))?;
    }
    Ok(())
}

fn completions(directory: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(directory)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut Cli::command(), "cffs", directory)?;
    }
    Ok(())
}
