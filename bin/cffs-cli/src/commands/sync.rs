//! `cffs sync`: makes everything on a mounted or served volume durable.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use cffs_serve::served::control::AskError;
use clap::Args;

use crate::{durable, names};

/// Make everything on a mounted or served volume durable
///
/// On a mount of type fuseblk, as root's are, sync(1) and syncfs(2) do the same (Linux 6.18); they do not
/// reach a mount of type fuse. Fails if the device failed, and says what is lost. If the store of the volume
/// cannot be reached, prints that it waits, and fails after two minutes; the server of the volume continues
/// to try. Programs that call fsync need none of these.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  cffs sync mnt && echo 'survives a power failure from here'")]
pub struct Sync {
    /// A mounted volume, by its image, its device, its URL, or any file on it; or one that cffs serve serves,
    /// by its image or its URL.
    #[arg(value_name = "IMAGE|DEVICE|URL|DIR", required = true)]
    paths: Vec<PathBuf>,
}

impl Sync {
    /// Returns when all is durable.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        for path in &self.paths {
            sync(path).with_context(|| path.display().to_string())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn sync(path: &Path) -> anyhow::Result<()> {
    let synced = durable::sync("sync", path, &names::to_ask(path)?);
    match synced.as_ref().map_err(|error| error.downcast_ref()) {
        Err(Some(AskError::NotDurable(why))) => {
            // The advice at its end is a command, which takes the volume's name.
            let mounted = names::mounted(path).ok().flatten();
            let name = mounted.map_or_else(|| path.to_owned(), |on| on.mounted.source);
            bail!("{} {}", why, name.display())
        }
        _ => synced,
    }
}
