//! `cffs export`: copies a tree out of an image or a mounted volume.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;

use cffs::files;
use clap::Args;

use super::import::{CopyFlags, Watcher};
use crate::tree;

/// Copy a tree out of an image, without mounting it, or out of a directory of a mounted volume
///
/// The counterpart of import. The server of a mounted volume reads the files, with the rights of the caller.
/// Users other than root cannot give files away; with --no-owner, they own all copies.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cffs export tree.cffs /home/src ./src
  cffs export mnt/src / ./src
  cffs export --no-owner tree.cffs / ./everything")]
pub struct Export {
    /// The image or the device, or the URL of a volume in an object store, mounted or not; or a directory of
    /// a mounted volume, which then counts as the root.
    #[arg(value_name = "IMAGE|DEVICE|URL|DIR")]
    image: PathBuf,
    /// The file or directory within the volume, or within the directory.
    source: OsString,
    /// The destination.
    target: PathBuf,
    #[command(flatten)]
    how: CopyFlags,
}

impl Export {
    /// Copies the tree.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let files = tree::open_to_read(&self.image)?;
        let watcher = Watcher::new("exporting", self.how.is_silent());
        let options = self.how.options();
        let source = self.source.as_bytes();
        let copied = tree::reading_ahead(&files, || {
            files::export(&files, source, &self.target, &options, &watcher)
        });
        watcher.finish();
        self.how.print(&copied?)
    }
}
