//! `cffs info`: describes a volume.

use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use cffs::device::file::Access;
use cffs::format::Superblock;
use cffs::format::superblock::SUPERBLOCK_BYTES;
use cffs_serve::describe;
use cffs_serve::served::control::{self, AskError, Question};
use clap::Args;
use serde_json::{Value, json};

use super::inspect::reader::Reader;
use crate::{image, names, output, udev};

/// Describe a volume: sizes, features, state, and the server that has it mounted
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cffs info tree.cffs
  cffs info --json mnt
  cffs info --udev /dev/sdb1       what udev's rule for C-FFS reads")]
pub struct Info {
    /// An image, a device, a volume in an object store, or a directory on a mounted volume.
    #[arg(value_name = "IMAGE|DEVICE|URL|DIR")]
    path: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print type, UUID and label as udev properties, without waiting for a program that uses the device.
    #[arg(long, conflicts_with = "json")]
    udev: bool,
}

impl Info {
    /// Queries the server if there is one, otherwise reads the superblock.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if self.udev {
            let superblock = self.superblock().with_context(|| self.path.display().to_string())?;
            let mut out = output::stdout();
            out.write_all(udev::properties(&superblock).as_bytes())?;
            out.flush()?;
            return Ok(ExitCode::SUCCESS);
        }
        let answer = self.answer().with_context(|| self.path.display().to_string())?;
        match self.json {
            true => output::json(&answer)?,
            false => output::key_values(&answer)?,
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Reads only the superblock, without a lock: udev's rules also run while the volume is in use.
    fn superblock(&self) -> anyhow::Result<Superblock> {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        File::open(&self.path)?.read_exact(&mut bytes)?;
        Ok(Superblock::decode(&bytes, 0)?)
    }

    fn answer(&self) -> anyhow::Result<Value> {
        if let Some(mounted) = names::mounted(&self.path)? {
            match control::ask(&mounted.path, Question::Info) {
                // If the server refuses or has died, the image itself is read.
                Err(_) if !self.path.is_dir() => {}
                answer => return Ok(answer?),
            }
        }
        if self.path.is_dir() {
            bail!(AskError::NotMounted);
        }
        if let Ok(answer) = control::ask_server_of(&self.path, Question::Info) {
            return Ok(answer);
        }
        // Opening the image reports a refusal.
        if let Some(directory) = image::directory_elsewhere(&self.path).ok().flatten()
            && let Ok(answer) = control::ask(&directory, Question::Info)
        {
            return Ok(answer);
        }
        let device = image::open(&self.path, Access::ReadOnly, false)?;
        let reader = Reader::open(&device)?;
        Ok(json!({ "superblock": describe::superblock(reader.superblock()) }))
    }
}
