//! `cffs info`: what a volume is.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use cffs::device::file::Access;
use cffs_serve::describe;
use cffs_serve::fuse::control::{self, Question};
use clap::Args;
use serde_json::{Value, json};

use super::inspect::reader::Reader;
use crate::{image, mounts, output};

/// Show what a volume is: sizes, features, state, and who has it mounted
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  cffs info tree.cffs\n  cffs info --json mnt")]
pub struct Info {
    /// An image, a device, or a directory on a mounted volume.
    #[arg(value_name = "IMAGE|DEVICE|DIR")]
    path: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Info {
    /// Asks the server if there is one, else reads the superblock.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let answer = self.answer().with_context(|| self.path.display().to_string())?;
        match self.json {
            true => output::json(&answer)?,
            false => output::key_values(&answer)?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn answer(&self) -> anyhow::Result<Value> {
        if self.path.is_dir() {
            return Ok(control::ask(&self.path, Question::Info)?);
        }
        // A server that keeps others out, or has died, leaves what its image says.
        if let Some(mounted) = mounts::of_source(&self.path)
            && let Ok(answer) = control::ask(&mounted.directory, Question::Info)
        {
            return Ok(answer);
        }
        let device = image::open_device(&self.path, Access::ReadOnly)?;
        let reader = Reader::open(&device)?;
        Ok(json!({ "superblock": describe::superblock(reader.superblock()) }))
    }
}
