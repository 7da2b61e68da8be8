//! `cffs generate`: man pages and completions, from the definition of the command line.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::{Args, Command, CommandFactory, ValueEnum};
use man_page::{Page, write_completions, write_pages};

use super::mount_helper::MountHelper;
use crate::exit::Kind;

/// Write man pages or shell completions to a directory
#[derive(Debug, Args)]
pub struct Generate {
    /// The kind of files to write.
    what: What,
    /// The destination, which is created if it does not exist.
    directory: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    /// A page for each command in man1, and for the names that mkfs(8), fsck(8) and mount(8) look
    /// for in man8.
    Man,
    /// For bash, zsh and fish.
    Completions,
}

impl Generate {
    /// Writes the man pages or completions of `definition`, the whole command line.
    pub fn run(self, definition: Command) -> anyhow::Result<ExitCode> {
        let written = match self.what {
            What::Man => man_pages(definition, &self.directory),
            What::Completions => {
                write_completions(definition, "cffs", &self.directory).map_err(Into::into)
            }
        };
        written.with_context(|| self.directory.display().to_string())?;
        Ok(ExitCode::SUCCESS)
    }
}

fn man_pages(definition: Command, directory: &Path) -> anyhow::Result<()> {
    let mut definition = definition.disable_help_subcommand(true);
    definition.build();
    let statuses = |command: Option<&str>| {
        Kind::of_arguments(OsStr::new("cffs"), command.map(OsStr::new)).statuses()
    };
    write_pages(&definition, directory, statuses, &["mount.cffs(8)"])?;
    applet_pages(&definition, directory)
}

/// The pages in section 8, for the names under which other programs call this one.
fn applet_pages(definition: &Command, directory: &Path) -> anyhow::Result<()> {
    let subcommand = |name| {
        definition.find_subcommand(name).ok_or_else(|| anyhow!("there is no command {name}"))
    };
    let mut mount = MountHelper::command();
    if let Some(options) = subcommand("mount")?.get_after_help() {
        mount = mount.after_help(options.clone());
    }
    mount.build();
    let applets = [
        ("mkfs.cffs", subcommand("mkfs")?, "cffs-mkfs(1)", "mkfs(8)"),
        ("fsck.cffs", subcommand("fsck")?, "cffs-fsck(1)", "fsck(8)"),
        ("mount.cffs", &mount, "cffs-mount(1)", "mount(8)"),
    ];
    for (name, command, by_cffs, caller) in applets {
        Page {
            name,
            section: 8,
            invocation: name,
            command,
            statuses: Kind::of_arguments(OsStr::new(name), None).statuses(),
            see_also: vec!["cffs(1)".to_owned(), by_cffs.to_owned(), caller.to_owned()],
        }
        .write(directory)?;
    }
    for name in ["mount.fuse.cffs", "mount.fuseblk.cffs"] {
        fs::write(directory.join(format!("man8/{name}.8")), ".so man8/mount.cffs.8\n")?;
    }
    Ok(())
}
