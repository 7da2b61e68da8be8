//! The command line: a single definition for parsing, help, man pages and completions.

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::commands::{
    cat, clone, explain, export, fsck, generate, grow, import, info, inspect, layout, ls, mkfs,
    mount, path, publish, regroup, restart, scrub, serve, snapshot, stats, sync, tar, trace, trim,
    tune, umount,
};
use crate::exit::Kind;
use crate::output::HELP_WIDTH;

#[cfg(test)]
mod tests;

/// Co-locating fast file system: millions of small files, few requests.
///
/// cffs makes, mounts, checks and copies volumes of C-FFS, a file system that lays a file's name, inode and
/// data, and those of its neighbours, side by side, and moves them as one request. A volume lies in an
/// image file or on a block device. It can be mounted by FUSE, or read and written by these commands
/// without a mount.
#[derive(Debug, Parser)]
#[command(
    name = "cffs",
    version,
    propagate_version = true,
    max_term_width = HELP_WIDTH,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = EXAMPLES
)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
First steps:
  cffs mkfs --size 4G tree.cffs        make an image (it takes space only as it fills)
  mkdir mnt && cffs mount tree.cffs mnt
  cp -a ~/src mnt/                     use it as any other file system
  cffs stats mnt                       what it cost
  cffs umount mnt                      returns when the image is complete

Without mounting:
  cffs import tree.cffs ~/src /src     copy a tree in, at the library's speed
  cffs ls -l tree.cffs /src
  cffs export tree.cffs /src ./copy

`cffs COMMAND --help` explains a command, with examples.";

/// The commands, in the order in which one needs them.
#[derive(Debug, Subcommand)]
pub enum Command {
    Mkfs(mkfs::Mkfs),
    Mount(mount::Mount),
    Umount(umount::Umount),
    Serve(serve::Serve),
    Restart(restart::Restart),
    Sync(sync::Sync),
    Fsck(fsck::Fsck),
    Scrub(scrub::Scrub),
    Grow(grow::Grow),
    Tune(tune::Tune),
    Trim(trim::Trim),
    Info(info::Info),
    Ls(ls::Ls),
    Cat(cat::Cat),
    Import(import::Import),
    Export(export::Export),
    Tar(tar::Tar),
    Snapshot(snapshot::Snapshot),
    Clone(clone::Clone),
    Publish(publish::Publish),
    Stats(stats::Stats),
    Explain(explain::Explain),
    Layout(layout::Layout),
    Regroup(regroup::Regroup),
    Trace(trace::Trace),
    Path(path::Path),
    Inspect(inspect::Inspect),
    #[command(hide = true)]
    ResumeVersion(restart::ResumeVersion),
    #[command(hide = true)]
    FillRequests(restart::FillRequests),
    #[command(hide = true)]
    Generate(generate::Generate),
}

impl Command {
    /// The command's name, for messages.
    pub fn name(&self) -> &'static str {
        match self {
            Command::Mkfs(_) => "mkfs",
            Command::Mount(_) => "mount",
            Command::Umount(_) => "umount",
            Command::Serve(_) => "serve",
            Command::Restart(_) => "restart",
            Command::ResumeVersion(_) => "resume-version",
            Command::FillRequests(_) => "fill-requests",
            Command::Sync(_) => "sync",
            Command::Fsck(_) => "fsck",
            Command::Scrub(_) => "scrub",
            Command::Grow(_) => "grow",
            Command::Tune(_) => "tune",
            Command::Trim(_) => "trim",
            Command::Info(_) => "info",
            Command::Ls(_) => "ls",
            Command::Cat(_) => "cat",
            Command::Import(_) => "import",
            Command::Export(_) => "export",
            Command::Tar(tar) => tar.name(),
            Command::Snapshot(_) => "snapshot",
            Command::Clone(_) => "clone",
            Command::Publish(_) => "publish",
            Command::Stats(_) => "stats",
            Command::Explain(_) => "explain",
            Command::Layout(_) => "layout",
            Command::Regroup(_) => "regroup",
            Command::Trace(_) => "trace",
            Command::Path(_) => "path",
            Command::Inspect(_) => "inspect",
            Command::Generate(_) => "generate",
        }
    }

    /// The convention for its exit codes.
    pub fn kind(&self) -> Kind {
        match self {
            Command::Mount(_) => Kind::Mount,
            Command::Fsck(_) | Command::Scrub(_) => Kind::Fsck,
            _ => Kind::Ordinary,
        }
    }

    /// Runs the command.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Command::Mkfs(command) => command.run(),
            Command::Mount(command) => command.run(),
            Command::Umount(command) => command.run(),
            Command::Serve(command) => command.run(),
            Command::Restart(command) => command.run(),
            Command::ResumeVersion(command) => command.run(),
            Command::FillRequests(command) => command.run(),
            Command::Sync(command) => command.run(),
            Command::Fsck(command) => command.run(),
            Command::Scrub(command) => command.run(),
            Command::Grow(command) => command.run(),
            Command::Tune(command) => command.run(),
            Command::Trim(command) => command.run(),
            Command::Info(command) => command.run(),
            Command::Ls(command) => command.run(),
            Command::Cat(command) => command.run(),
            Command::Import(command) => command.run(),
            Command::Export(command) => command.run(),
            Command::Tar(command) => command.run(),
            Command::Snapshot(command) => command.run(),
            Command::Clone(command) => command.run(),
            Command::Publish(command) => command.run(),
            Command::Stats(command) => command.run(),
            Command::Explain(command) => command.run(),
            Command::Layout(command) => command.run(),
            Command::Regroup(command) => command.run(),
            Command::Trace(command) => command.run(),
            Command::Path(command) => command.run(),
            Command::Inspect(command) => command.run(),
            Command::Generate(command) => command.run(Cli::command()),
        }
    }
}
