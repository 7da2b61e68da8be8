//! `cffs trim`: returns free space to the device.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use cffs::device::file::Access;
use cffs::vfs::types::OpenOptions;
use cffs_object::{Location, LogDevice};
use cffs_serve::served::control;
use clap::Args;
use serde_json::json;

use crate::output::{self, say};
use crate::{image, names, size};

/// Return free space to the device
///
/// The host of an image does not know which space of the volume is free, so the image does not shrink by
/// itself. This command punches holes into the image where space is free. On an SSD or a thin volume it
/// discards the free blocks. For a volume in an object store that is not mounted, it immediately deletes
/// objects that are no longer needed, and rewrites those that are mostly unused; programs that read an older
/// state without a snapshot lose access to it. A mounted volume is trimmed by its server and can be used
/// meanwhile, and fstrim(8) does the same; mounting with -o discard does it continuously. The server of a
/// volume in an object store then deletes objects later, while it writes.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cffs trim tree.cffs
  cffs trim mnt                  the same while it is mounted
  cffs trim s3://bucket/tree     a volume in an object store that is not mounted
  cffs trim --minimum 1M /dev/sdb1
                                 skip shorter runs: fewer requests")]
pub struct Trim {
    /// An image, a device, the URL of a volume in an object store, or a directory on a mounted volume.
    #[arg(value_name = "IMAGE|DEVICE|URL|DIR")]
    target: PathBuf,
    /// The shortest run of free space that is discarded.
    #[arg(short, long, value_name = "SIZE", default_value = "0", value_parser = size::parse)]
    minimum: u64,
    /// Print nothing but errors.
    #[arg(short, long)]
    quiet: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

impl Trim {
    /// Trims, and prints the number of bytes.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let bytes = self.trim().with_context(|| self.target.display().to_string())?;
        if self.json {
            output::json(&json!({ "trimmed_bytes": bytes }))?;
        } else if !self.quiet {
            say!("{}: {} trimmed", self.target.display(), size::show(bytes))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn trim(&self) -> anyhow::Result<u64> {
        if let Some(mounted) = names::mounted(&self.target)? {
            return Ok(control::trim(&mounted.path, self.minimum)?);
        }
        if let Some(location) = image::location(&self.target)? {
            return self.trim_in_store(&location);
        }
        let device = image::open_device(&self.target, Access::ReadWrite)?;
        let volume = image::open_volume(&self.target, device, OpenOptions::default())?;
        let trimmed = volume.admin().trim(0..u64::MAX, self.minimum);
        volume.close()?;
        Ok(trimmed?.bytes)
    }

    /// Trims a volume in a store; returns the length of the deleted objects.
    fn trim_in_store(&self, location: &Location) -> anyhow::Result<u64> {
        let device = Arc::new(LogDevice::open(location, image::command_options(false))?);
        let options = OpenOptions::default();
        let volume = image::open_volume(&self.target, Arc::clone(&device), options)?;
        let trimmed = volume.admin().trim(0..u64::MAX, self.minimum);
        // Closing releases the volume, so it comes last.
        let swept = trimmed.map(|_| device.collect());
        volume.close()?;
        Ok(swept??.bytes)
    }
}
