//! The command line: a single definition for parsing, help, man pages and completions.

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::commands::{
    cat, changes, clone, cp, destroy, explain, export, fsck, generate, grow, import, info, inspect,
    layout, ls, mark, mkfs, mount, path, publish, quota, regroup, restart, rm, scrub, serve,
    snapshot, stats, sync, tar, trace, trim, tune, umount,
};
use crate::exit::Kind;
use crate::keys::Keys;
use crate::output::HELP_WIDTH;

#[cfg(test)]
mod tests;

/// Co-locating fast file system: millions of small files, few requests.
///
/// cffs creates, mounts, checks and copies volumes of C-FFS, a file system that stores a file's name, inode
/// and data next to those of its neighbours, and transfers them all in one request. A volume is an image
/// file, a block device, or a place in an object store. It can be mounted with FUSE, or read and written by
/// these commands without a mount.
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
    /// The secret of encrypted volumes.
    #[command(flatten)]
    pub keys: Keys,
}

const EXAMPLES: &str = "\
First steps:
  cffs mkfs --size 4G tree.cffs        make an image (it takes space only as it fills)
  mkdir mnt && cffs mount tree.cffs mnt
  cp -a ~/src mnt/                     use it as any other file system
  cffs stats mnt                       its costs in requests and bytes
  cffs umount mnt                      returns when the image is fully written and closed

Without mounting:
  cffs import tree.cffs ~/src /src     copy a tree in, at the library's speed
  cffs ls -l tree.cffs /src
  cffs export tree.cffs /src ./copy

`cffs COMMAND --help` explains a command, with examples.";

/// Defines the commands, each with its name for messages.
macro_rules! commands {
    ($($(#[$attribute:meta])* $command:ident($arguments:ty) = $name:literal $(, $definition:expr)?;)*) => {
        /// The commands, in the order in which users need them.
        #[derive(Debug, Subcommand)]
        pub enum Command {
            $($(#[$attribute])* $command($arguments),)*
        }

        impl Command {
            /// The command's name, for messages.
            pub fn name(&self) -> &'static str {
                if let Command::Tar(tar) = self {
                    return tar.name();
                }
                match self {
                    $(Command::$command(_) => $name,)*
                }
            }

            pub fn run(self) -> anyhow::Result<ExitCode> {
                match self {
                    $(Command::$command(command) => command.run($($definition)?),)*
                }
            }
        }
    };
}

commands! {
    Mkfs(mkfs::Mkfs) = "mkfs";
    Mount(mount::Mount) = "mount";
    Umount(umount::Umount) = "umount";
    Serve(serve::Serve) = "serve";
    Restart(restart::Restart) = "restart";
    Sync(sync::Sync) = "sync";
    Fsck(fsck::Fsck) = "fsck";
    Scrub(scrub::Scrub) = "scrub";
    Grow(grow::Grow) = "grow";
    Tune(tune::Tune) = "tune";
    Trim(trim::Trim) = "trim";
    Info(info::Info) = "info";
    Ls(ls::Ls) = "ls";
    Cat(cat::Cat) = "cat";
    Import(import::Import) = "import";
    Export(export::Export) = "export";
    Tar(tar::Tar) = "tar";
    Snapshot(snapshot::Snapshot) = "snapshot";
    Clone(clone::Clone) = "clone";
    Destroy(destroy::Destroy) = "destroy";
    Cp(cp::Cp) = "cp";
    Rm(rm::Rm) = "rm";
    Publish(publish::Publish) = "publish";
    Mark(mark::Mark) = "mark";
    Changes(changes::Changes) = "changes";
    Quota(quota::QuotaCommand) = "quota";
    Stats(stats::Stats) = "stats";
    Explain(explain::Explain) = "explain";
    Layout(layout::Layout) = "layout";
    Regroup(regroup::Regroup) = "regroup";
    Trace(trace::Trace) = "trace";
    Path(path::Path) = "path";
    Inspect(inspect::Inspect) = "inspect";
    #[command(hide = true)]
    ResumeVersion(restart::ResumeVersion) = "resume-version";
    #[command(hide = true)]
    FillRequests(restart::FillRequests) = "fill-requests";
    #[command(hide = true)]
    Generate(generate::Generate) = "generate", Cli::command();
}

impl Command {
    /// The convention for its exit codes.
    pub fn kind(&self) -> Kind {
        match self {
            Command::Mount(_) => Kind::Mount,
            Command::Fsck(_) | Command::Scrub(_) => Kind::Fsck,
            _ => Kind::Ordinary,
        }
    }
}
