//! `cffs changes`: lists what changed since a mark.

use std::fs;
use std::io::Write;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use cffs::error::Error;
use cffs::files::Files;
use cffs::format::inode::FileType;
use cffs::vfs::{CHANGED_PATH_BYTES_MAX, Marks};
use cffs_serve::served::control;
use clap::Args;
use serde_json::json;

use super::mark;
use crate::output::{self, Stdout, note, printable};
use crate::{image, names};

/// How much of a long path is shown.
const SHOWN_BYTES: usize = 64;

/// List files created, changed or renamed since a mark, without reading the whole tree
///
/// Reads only directories with changes below them. Files that were created, or whose contents, attributes or
/// names changed, are listed with all their names. A directory, which ends with a slash, is listed if its
/// attributes changed, or if names in it were added, removed or renamed: names that only its copy has were
/// removed. Everything below a renamed directory is listed. The list is complete, but may contain unchanged
/// files, such as one next to a file that cffs fsck repaired. On a mounted volume, everything is made durable
/// first, and only root and the user who mounted it can list changes.
///
/// Paths begin with ./ and are relative to the directory. The list is meant for rsync --files-from with
/// --dirs, which compares the names of directories that end with a slash.
///
/// If a file with several names changed, all directories are read, but only changes are listed. If the system
/// crashed or cffs fsck repaired something since the mark, all directories are read and listed.
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
        let mut list = List { of: &self, out: &mut out, too_long: None };
        self.list(&mut list).with_context(|| self.target.display().to_string())?;
        let too_long = list.too_long.take();
        out.flush()?;
        if let Some(path) = too_long {
            note!(
                "cffs: the list has paths of more than {CHANGED_PATH_BYTES_MAX} bytes, by which no program \
                 can open a file; each stands for everything below it. The first begins with {}",
                printable(&path[..SHOWN_BYTES])
            );
        }
        Ok(ExitCode::SUCCESS)
    }

    fn list(&self, list: &mut List<'_>) -> anyhow::Result<()> {
        let print = |file_type, path: &[u8]| list.print(path, file_type);
        if let Some(directory) = mounted_directory(&self.target, self.path.as_deref())? {
            return Tree::Mounted(&directory).changes(&self.since, print);
        }
        let files = image::open_files(&self.target, image::read_only())?;
        let path = self.path.as_ref().map_or(&b"/"[..], |path| path.as_os_str().as_bytes());
        Tree::Opened(&files, path).changes(&self.since, print)
    }
}

/// A tree of a volume with marks.
pub enum Tree<'a> {
    /// At this directory of a mount.
    Mounted(&'a Path),
    /// At this path in a volume that this command has opened.
    Opened(&'a Files, &'a [u8]),
}

impl Tree<'_> {
    /// Passes what changed below the tree's top since a mark to `visit`, until that fails.
    pub fn changes(
        &self,
        since: &str,
        visit: impl FnMut(FileType, &[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        match self {
            Tree::Mounted(directory) => of_mount(directory, since, visit),
            Tree::Opened(files, path) => of_files(files, path, since, visit),
        }
    }
}

/// The directory of the mount for a path within a volume, without symbolic links: the server lists the
/// changes of a directory that the kernel finds. `None` if the volume is not mounted.
pub fn mounted_directory(target: &Path, path: Option<&Path>) -> anyhow::Result<Option<PathBuf>> {
    let Some(mounted) = names::mounted(target)? else { return Ok(None) };
    let directory = mounted.join(path)?;
    let shown = || directory.display().to_string();
    let resolved = directory.canonicalize().with_context(shown)?;
    if !mounted.mounted.holds(&fs::metadata(&resolved).with_context(shown)?) {
        bail!("{}: its links lead out of the volume", directory.display());
    }
    Ok(Some(resolved))
}

fn of_files(
    files: &Files,
    path: &[u8],
    since: &str,
    mut visit: impl FnMut(FileType, &[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let dir = files.node(path).with_context(|| printable(path))?;
    let mut failed = None;
    let listed = Marks::of(files.volume()).changes(dir.ino(), since, &mut |change| match visit(
        change.file_type,
        change.path,
    ) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            failed = Some(error);
            ControlFlow::Break(())
        }
    });
    match (listed, failed) {
        (_, Some(error)) => Err(error),
        (Err(Error::NoAttribute), None) => Err(mark::missing(since)),
        (listed, None) => Ok(listed?),
    }
}

fn of_mount(
    directory: &Path,
    since: &str,
    visit: impl FnMut(FileType, &[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    // Other users are told so, not that they lack a mark.
    control::check_permitted(directory)?;
    let marks = control::marks(directory)?;
    let Some(mark) = marks.iter().find(|mark| mark.name == since) else {
        return Err(mark::missing(since));
    };
    if mark.is_damaged {
        bail!("the mark {since} is damaged; remove it: cffs mark --remove");
    }
    // The server does not have changes that the kernel has not passed on yet.
    mark::flush(directory)?;
    control::changes(directory, since, visit)
}

struct List<'a> {
    of: &'a Changes,
    out: &'a mut Stdout,
    /// The first path by which no program can open a file.
    too_long: Option<Vec<u8>>,
}

impl List<'_> {
    fn print(&mut self, path: &[u8], file_type: FileType) -> anyhow::Result<()> {
        let is_dir = file_type == FileType::Directory;
        let slash: &[u8] = if is_dir && !path.is_empty() { b"/" } else { b"" };
        let is_too_long = path.len() > CHANGED_PATH_BYTES_MAX;
        let path = [b"./", path, slash].concat();
        if is_too_long && self.too_long.is_none() {
            self.too_long = Some(path.clone());
        }
        if self.of.json {
            let path = String::from_utf8_lossy(&path);
            let line = json!({"path": path, "type": type_name(file_type)});
            writeln!(self.out, "{line}")?;
            return Ok(());
        }
        if !self.of.null && path.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
            bail!("{}: a name with a line break; use -0", printable(&path));
        }
        self.out.write_all(&path)?;
        self.out.write_all(if self.of.null { b"\0" } else { b"\n" })?;
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
