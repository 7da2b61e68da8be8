//! `place generate`: man pages and completions, from the definition of the command line.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Command, ValueEnum};
use man_page::{Page, write_completions};

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
        let commands: Vec<&Command> =
            definition.get_subcommands().filter(|command| !command.is_hide_set()).collect();
        let see_also = commands.iter().map(|command| format!("place-{}(1)", command.get_name()));
        let page = Page {
            name: "place",
            section: 1,
            invocation: "place",
            command: &definition,
            statuses: &STATUSES,
            see_also: see_also.collect(),
        };
        page.write(&self.directory)?;
        for command in commands {
            let name = format!("place-{}", command.get_name());
            let invocation = format!("place {}", command.get_name());
            let see_also = vec![String::from("place(1)")];
            let page = Page {
                name: &name,
                section: 1,
                invocation: &invocation,
                command,
                statuses: &STATUSES,
                see_also,
            };
            page.write(&self.directory)?;
        }
        Ok(())
    }
}

const STATUSES: [(u8, &str); 4] = [
    (0, "Success."),
    (1, "Failure, or not everything could be done; messages say what."),
    (2, "Wrong usage."),
    (130, "Interrupted."),
];
