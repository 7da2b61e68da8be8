//! `cffs clone`: makes a volume in an object store from a version of another.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use cffs_object::versions;
use clap::Args;

use super::snapshot::place;

/// Make a volume in an object store that begins as a version of another
///
/// It takes four requests, whatever the size: the clone reads shared data from the objects of its origin, and
/// writes changes to its own place. Changes to one do not affect the other. Shared data is kept until the
/// clone's objects and the version are removed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cffs snapshot create s3://bucket/tree@monday
  cffs clone s3://bucket/tree@monday s3://bucket/experiment
  cffs mount s3://bucket/experiment mnt")]
pub struct Clone {
    /// The version to begin as.
    #[arg(value_name = "URL@NAME")]
    from: PathBuf,
    /// The new volume: in the same bucket, or in a directory beside the origin.
    #[arg(value_name = "URL")]
    to: PathBuf,
}

impl Clone {
    /// Makes the clone.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        versions::clone(&place(&self.from)?, &place(&self.to)?)
            .with_context(|| self.from.display().to_string())?;
        Ok(ExitCode::SUCCESS)
    }
}
