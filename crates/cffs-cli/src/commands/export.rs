//! `cffs export`: copies a tree out of an image.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;

use cffs::files;
use clap::Args;

use super::import::{CopyFlags, Watcher};
use crate::image;

/// Copy a tree out of an image, without mounting it
///
/// The counterpart of import. Users other than root cannot give files away; with --no-owner, they own all
/// copies.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cffs export tree.cffs /home/src ./src
  cffs export --no-owner tree.cffs / ./everything")]
pub struct Export {
    /// The image or the device, or the URL of a volume in an object store.
    #[arg(value_name = "IMAGE|DEVICE|URL")]
    image: PathBuf,
    /// The file or directory within the volume.
    source: OsString,
    /// The destination.
    target: PathBuf,
    #[command(flatten)]
    how: CopyFlags,
}

impl Export {
    /// Copies the tree.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let files = image::open_files(&self.image, image::read_only())?;
        let watcher = Watcher::new("exporting", self.how.is_silent());
        let options = self.how.options();
        let copied =
            files::export(&files, self.source.as_bytes(), &self.target, &options, &watcher);
        watcher.finish();
        self.how.print(&copied?)
    }
}
