//! `cffs restart`: replaces the program that serves a mounted volume.

use std::os::unix::process::{CommandExt, parent_id};
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use cffs_serve::fuse::{self, restart::FILL_COMMAND};
use cffs_serve::served::control;
use clap::Args;

use crate::output::say;
use crate::{background, mounts, names};

/// Replace the program that serves a mounted volume, without unmounting
///
/// For upgrades: the server closes the volume and is replaced by the program that is now installed under the
/// name by which it was started. The volume stays mounted and files stay open; programs that use it meanwhile
/// wait for a moment. NFS clients of the mount (mount --nfs) reconnect, and nothing that they have done is
/// lost or done twice. A program whose working directory was deleted earlier loses that directory.
///
/// These mounts cannot be restarted: one over io_uring whose server may not run on all cores (mount -o
/// transport=dev can); one whose log, files of the page, cache or staging directory are below its own mount
/// point; a read-only mount of a volume in an object store, unless it is a version; and one whose store does
/// not answer.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  make install && cffs restart /srv/tree")]
pub struct Restart {
    /// The volume, by its image, its device, its URL, or any file on it.
    #[arg(value_name = "IMAGE|DEVICE|URL|DIR", required = true)]
    paths: Vec<PathBuf>,
}

impl Restart {
    /// Returns when the new program serves.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        for path in &self.paths {
            let asked = names::to_ask_the_only_one(path)?;
            let restarted = control::restart(&asked);
            if restarted.is_err() && control::identity_of_server(&asked).is_ok() {
                let name = path.display();
                bail!(
                    "{name} is served without a mount, and such a server cannot be replaced; end it with \
                     cffs serve --stop {name}, and start it again with the same cffs serve command"
                );
            }
            restarted.with_context(|| path.display().to_string())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Print the version of the handover state that this program understands
#[derive(Debug, Args)]
pub struct ResumeVersion {
    /// For volumes in object stores. Programs that cannot take these over do not know the option.
    #[arg(long)]
    store: bool,
}

impl ResumeVersion {
    /// Prints the version.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let ResumeVersion { store: _ } = self;
        say!("{}", cffs_serve::fuse::restart::VERSION)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Send the requests that a server over io_uring needs to hand over its mount
///
/// Returns at once and starts a process that sends the requests when standard input ends, and ends when they
/// are answered.
#[derive(Debug, Args)]
pub struct FillRequests {
    /// Act as that process.
    #[arg(long)]
    now: bool,
    /// The mount point.
    directory: PathBuf,
    /// The number of requests on each core.
    #[arg(value_name = "CORE:COUNT", value_parser = core_and_count)]
    cores: Vec<(usize, usize)>,
}

fn core_and_count(text: &str) -> Result<(usize, usize), String> {
    let parsed = text
        .split_once(':')
        .and_then(|(core, count)| Some((core.parse().ok()?, count.parse().ok()?)));
    parsed.ok_or_else(|| format!("'{text}' is not CORE:COUNT"))
}

impl FillRequests {
    /// Makes the requests.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if self.now {
            std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
            fuse::make_requests(&self.directory, &self.cores)?;
            return Ok(ExitCode::SUCCESS);
        }
        let directory = mounts::directory_served_by(parent_id(), &self.directory);
        let mut command = Command::new(background::program()?);
        command.arg(FILL_COMMAND).arg("--now").arg(directory.unwrap_or(self.directory));
        command.args(self.cores.iter().map(|(core, count)| format!("{core}:{count}")));
        command.process_group(0).spawn()?;
        Ok(ExitCode::SUCCESS)
    }
}
