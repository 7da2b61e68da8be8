//! Dispatch by the name under which the binary was called.
//!
//! mkfs(8), fsck(8) and mount(8) look for a program per file system type. Each of these is this
//! binary under another name; this module translates its arguments to those of the equivalent
//! `cffs` command.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, Parser};

use crate::cli::{Cli, Command};
use crate::commands::mount_helper::MountHelper;
use crate::exit::{self, Kind};
use crate::keys;
use crate::output::{note, printable};

/// Runs the command given by the arguments. Prints failures under the program's name.
pub fn run(arguments: Vec<OsString>) -> ExitCode {
    let called_as = arguments.first().map(Path::new).and_then(Path::file_name);
    let called_as = called_as.unwrap_or(OsStr::new("cffs")).to_owned();
    let rest = arguments.iter().skip(1).cloned();
    let parsed = match called_as.as_encoded_bytes() {
        b"mkfs.cffs" => parse(["cffs", "mkfs"], rest),
        b"fsck.cffs" => parse(["cffs", "fsck"], rest),
        b"mount.cffs" | b"mount.fuse.cffs" | b"mount.fuseblk.cffs" => {
            MountHelper::try_parse_from(arguments.iter())
                .map(|helper| Command::Mount(helper.into()))
        }
        _ => parse(["cffs"], rest),
    };
    match parsed {
        Ok(command) => {
            let (name, kind) = (command.name(), command.kind());
            command.run().unwrap_or_else(|error| exit::report(&called_as, name, kind, &error))
        }
        Err(mut usage) => {
            let printed = print(&mut usage, &arguments);
            let kind = Kind::of_arguments(&called_as, arguments.get(1).map(OsString::as_os_str));
            match printed {
                // If standard error is closed, nothing can be reported.
                _ if usage.use_stderr() => kind.usage_code(),
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    let error = anyhow::Error::new(error).context("standard output");
                    exit::report(&called_as, "help", kind, &error)
                }
            }
        }
    }
}

fn parse<const N: usize>(
    head: [&str; N],
    rest: impl Iterator<Item = OsString>,
) -> Result<Command, clap::Error> {
    let arguments = head.into_iter().map(OsString::from).chain(rest);
    let cli = Cli::try_parse_from(arguments).map_err(without_hidden)?;
    keys::name(cli.keys);
    Ok(cli.command)
}

/// Prints a usage error, or the help. Arguments with control characters are escaped, without colors.
fn print(usage: &mut clap::Error, arguments: &[OsString]) -> io::Result<()> {
    let has_controls =
        |argument: &OsString| argument.to_string_lossy().contains(|c: char| c.is_control());
    if !usage.use_stderr() || !arguments.iter().any(has_controls) {
        return usage.print();
    }
    let escaped = |text: &String| printable(text.as_bytes());
    let context = usage.context().filter_map(|(kind, value)| match value {
        ContextValue::String(text) => Some((kind, ContextValue::String(escaped(text)))),
        ContextValue::Strings(all) => {
            Some((kind, ContextValue::Strings(all.iter().map(escaped).collect())))
        }
        _ => None,
    });
    for (kind, value) in context.collect::<Vec<_>>() {
        usage.insert(kind, value);
    }
    note!("{}", usage.render().to_string().trim_end());
    Ok(())
}

/// Removes suggestions of commands that are only for programs from a usage error.
fn without_hidden(mut usage: clap::Error) -> clap::Error {
    let is_hidden = |name: &String| {
        let command = Cli::command();
        command.find_subcommand(name).is_some_and(clap::Command::is_hide_set)
    };
    match usage.remove(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::Strings(mut names)) => {
            names.retain(|name| !is_hidden(name));
            if !names.is_empty() {
                usage.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(names));
            }
        }
        Some(ContextValue::String(name)) if !is_hidden(&name) => {
            usage.insert(ContextKind::SuggestedSubcommand, ContextValue::String(name));
        }
        _ => {}
    }
    usage
}
