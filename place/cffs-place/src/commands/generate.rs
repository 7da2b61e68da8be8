//! `place generate`: man pages and completions, from the definition of the command line.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Command, ValueEnum};
use man_page::{write_completions, write_pages};

/// Write man pages or shell completions to a directory
#[derive(Debug, Args)]
pub struct Generate {
    /// The kind of files to write.
    what: What,
    /// Where to; made if it is missing.
    directory: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    /// A page for each command in man1.
    Man,
    /// For bash, zsh and fish.
    Completions,
}

impl Generate {
    /// Writes the files that document and complete `definition`, the whole command line.
    pub fn run(self, definition: Command) -> Result<ExitCode> {
        match self.what {
            What::Man => self.man_pages(definition),
            What::Completions => write_completions(definition, "place", &self.directory),
        }
        .with_context(|| self.directory.display().to_string())?;
        Ok(ExitCode::SUCCESS)
    }

    fn man_pages(&self, definition: Command) -> std::io::Result<()> {
        let mut definition = definition.disable_help_subcommand(true);
        definition.build();
        write_pages(&definition, &self.directory, |_| &STATUSES, &[])
    }
}

const STATUSES: [(u8, &str); 4] = [
    (0, "Success."),
    (1, "Failure, or something could not be done; messages say what."),
    (2, "Wrong usage."),
    (130, "Interrupted."),
];
