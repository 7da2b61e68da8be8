//! `cffs restart`: replaces the program that serves a mounted volume.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use cffs_serve::fuse::control;
use clap::Args;

use crate::names;
use crate::output::say;

/// Replace the program that serves a mounted volume, without unmounting
///
/// For upgrades: the server closes the volume and is replaced by the program that is now installed under the
/// name by which it was started. The volume stays mounted and files stay open; programs that use it meanwhile
/// wait for a moment. NFS clients of the mount (mount --nfs) reconnect, and nothing that they have done is
/// lost or done twice. A removed directory that is the working directory of a program is gone afterwards.
///
/// This needs a mount that uses /dev/fuse (mount -o transport=dev): requests in flight over io_uring cannot
/// be handed over.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  make install && cffs restart /srv/tree")]
pub struct Restart {
    /// The volume, by its image, its device, or any file on it.
    #[arg(value_name = "IMAGE|DEVICE|DIR", required = true)]
    paths: Vec<PathBuf>,
}

impl Restart {
    /// Returns when the new program serves.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        for path in &self.paths {
            control::restart(&names::to_ask(path)?).with_context(|| path.display().to_string())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Print the version of the state that a server hands over which this program understands
#[derive(Debug, Args)]
pub struct ResumeVersion {}

impl ResumeVersion {
    /// Prints it.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        say!("{}", cffs_serve::fuse::restart::VERSION)?;
        Ok(ExitCode::SUCCESS)
    }
}
