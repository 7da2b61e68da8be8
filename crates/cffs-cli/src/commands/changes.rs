//! `cffs changes`: lists what changed since a mark.

use std::io::Write;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use cffs::device::file::Access;
use cffs::error::Error;
use cffs::files::Files;
use cffs::format::inode::FileType;
use cffs::vfs::Marks;
use cffs_serve::served::control;
use clap::Args;
use serde_json::json;

use super::mark;
use crate::output::{self, Stdout, printable};
use crate::{image, names};

/// List files created, changed or renamed since a mark, without reading the whole tree
///
/// Only directories are read below which something changed. Files that were created, or whose contents,
/// attributes or names changed, are listed with all their names. A directory, which ends with a slash, is
/// listed if its attributes changed, or if names in it were added, removed or renamed: what its copy has and
/// it has not was removed. Of a directory that was renamed, everything is listed. No change is missing. A
/// file may be listed that did not change, such as one next to a file that cffs fsck repaired. On a mounted
/// volume, everything is made durable first, and only root and the user who mounted it can list changes.
///
/// Paths begin with ./ and are relative to the directory. The list is meant for rsync --files-from with
/// --dirs, which compares the names of directories that end with a slash.
///
/// All directories are read, and still only what changed is listed, if a file with several names changed. If
/// the system crashed or cffs fsck repaired something since the mark, all directories are listed as well.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cffs changes mnt --since monday
  cffs changes tree.cffs /src --since monday --json
  cffs changes mnt -0 --since monday > list
  rsync -a --no-r --dirs --delete --from0 --files-from=list mnt/ copy/")]
pub struct Changes {
    /// An image, a device, the URL of a volume in an object store or of a version of it, or a directory of a
    /// mounted volume.
    #[arg(value_name = "IMAGE|DEVICE|URL|DIR")]
    target: PathBuf,
    /// The directory in the volume, or below DIR; all of it if none is given.
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,
    /// The mark, as set with cffs mark.
    #[arg(long, value_name = "NAME")]
    since: String,
    /// End each path with a zero byte instead of a line break. Without this option or --json, a name with a
    /// line break is an error.
    #[arg(short = '0', long, conflicts_with = "json")]
    null: bool,
    /// Print one JSON object per line; bytes of names that are not UTF-8 become U+FFFD.
    #[arg(long)]
    json: bool,
}

impl Changes {
    /// Prints the list.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let mut out = output::stdout();
        self.list(&mut out).with_context(|| self.target.display().to_string())?;
        out.flush()?;
        Ok(ExitCode::SUCCESS)
    }

    fn list(&self, out: &mut Stdout) -> anyhow::Result<()> {
        if let Some(mounted) = names::mounted(&self.target)? {
            return self.list_mounted(&mounted.join(self.path.as_deref()), out);
        }
        if self.target.is_dir() {
            bail!(control::AskError::NotMounted);
        }
        let device = image::open(&self.target, Access::ReadOnly, false)?;
        let files = Files::new(image::open_volume(&self.target, device, image::read_only())?);
        let path = self.path.as_ref().map_or(&b"/"[..], |path| path.as_os_str().as_bytes());
        let dir = files.node(path).with_context(|| printable(path))?;
        let mut failed = None;
        let listed =
            Marks::of(files.volume()).changes(dir.ino(), &self.since, &mut |change| match self
                .print(change.path, change.file_type, out)
            {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            });
        match (listed, failed) {
            (_, Some(error)) => Err(error),
            (Err(Error::NoAttribute), None) => Err(mark::missing(&self.since)),
            (listed, None) => Ok(listed?),
        }
    }

    fn list_mounted(&self, directory: &Path, out: &mut Stdout) -> anyhow::Result<()> {
        let marks = control::marks(directory)?;
        let Some(mark) = marks.iter().find(|mark| mark.name == self.since) else {
            return Err(mark::missing(&self.since));
        };
        if mark.is_damaged {
            bail!("the mark {} is damaged; remove it: cffs mark --remove", self.since);
        }
        // The server does not know yet what the kernel has not passed on.
        mark::flush(directory)?;
        let list = control::changes(directory, &self.since)?;
        for change in list.split_inclusive(|byte| *byte == 0) {
            let Some((kind, [path @ .., 0])) = change.split_first() else {
                bail!("the server's list ends in the middle of a path");
            };
            let file_type = FileType::from_byte(*kind).context("the server names no file type")?;
            self.print(path, file_type, out)?;
        }
        Ok(())
    }

    fn print(&self, path: &[u8], file_type: FileType, out: &mut Stdout) -> anyhow::Result<()> {
        let is_dir = file_type == FileType::Directory;
        let slash: &[u8] = if is_dir && !path.is_empty() { b"/" } else { b"" };
        let path = [b"./", path, slash].concat();
        if self.json {
            let path = String::from_utf8_lossy(&path);
            let line = json!({"path": path, "type": type_name(file_type)});
            writeln!(out, "{line}")?;
            return Ok(());
        }
        if !self.null && path.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
            bail!("{}: a name with a line break; use -0", printable(&path));
        }
        out.write_all(&path)?;
        out.write_all(if self.null { b"\0" } else { b"\n" })?;
        Ok(())
    }
}

fn type_name(file_type: FileType) -> &'static str {
    match file_type {
        FileType::Regular => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        FileType::CharDevice => "char-device",
        FileType::BlockDevice => "block-device",
    }
}
