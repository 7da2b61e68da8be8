//! Dispatch by the name under which the binary was called.
//!
//! mkfs(8), fsck(8) and mount(8) look for a program per type of file system. Each is this binary
//! under another name; here its arguments become those of the `cffs` command that does the work.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};
use crate::commands::mount::Mount;
use crate::exit::{self, Kind};

/// What mount(8) passes to a helper: `mount.TYPE SPEC DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS]`.
#[derive(Debug, Parser)]
#[command(name = "mount.cffs", version, about = "Mounts a C-FFS volume; called by mount(8)")]
struct MountHelper {
    /// The image or device.
    source: PathBuf,
    /// The directory to mount on.
    directory: PathBuf,
    /// Tolerates options that are not known.
    #[arg(short)]
    sloppy: bool,
    /// Does everything but the mount.
    #[arg(short)]
    fake: bool,
    /// Accepted and without effect: there is no mtab to write.
    #[arg(short)]
    no_mtab: bool,
    /// Tells more.
    #[arg(short)]
    verbose: bool,
    /// Not supported: mount in the namespace itself.
    #[arg(short = 'N', value_name = "NAMESPACE", hide = true)]
    namespace: Option<OsString>,
    /// The type, as mount(8) was given it.
    #[arg(short = 't', value_name = "TYPE")]
    file_system_type: Option<OsString>,
    /// Mount options, comma-separated.
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,
}

/// Runs what the arguments ask for. Failures are reported here, under the program's name.
pub fn run(arguments: Vec<OsString>) -> ExitCode {
    let called_as = arguments.first().map(Path::new).and_then(Path::file_name);
    let called_as = called_as.unwrap_or(OsStr::new("cffs")).to_owned();
    let rest = arguments.iter().skip(1).cloned();
    let parsed = match called_as.as_encoded_bytes() {
        b"mkfs.cffs" => parse(["cffs", "mkfs"], rest),
        b"fsck.cffs" => parse(["cffs", "fsck"], rest),
        b"mount.cffs" | b"mount.fuse.cffs" => {
            MountHelper::try_parse_from(arguments.iter()).map(MountHelper::into_command)
        }
        _ => parse(["cffs"], rest),
    };
    match parsed {
        Ok(command) => {
            let (name, kind) = (command.name(), command.kind());
            command.run().unwrap_or_else(|error| exit::report(&called_as, name, kind, &error))
        }
        Err(usage) => {
            // Where standard error is closed there is nobody to tell.
            let _ = usage.print();
            let kind = Kind::of_arguments(&called_as, arguments.get(1).map(OsString::as_os_str));
            if usage.use_stderr() { kind.usage_code() } else { ExitCode::SUCCESS }
        }
    }
}

fn parse<const N: usize>(
    head: [&str; N],
    rest: impl Iterator<Item = OsString>,
) -> Result<Command, clap::Error> {
    let arguments = head.into_iter().map(OsString::from).chain(rest);
    Cli::try_parse_from(arguments).map(|cli| cli.command)
}

impl MountHelper {
    fn into_command(self) -> Command {
        Command::Mount(Mount {
            source: self.source,
            directory: self.directory,
            options: self.options,
            sloppy: self.sloppy,
            fake: self.fake,
            verbose: self.verbose,
            ..Mount::default()
        })
    }
}
