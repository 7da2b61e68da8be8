//! `cffs rm`: removes files and trees of a mounted volume at its server.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use cffs::files::attached::{self, RemoveRequest};
use cffs::wire::{Failure, Removed};
use clap::Args;
use rustix::io::Errno;

use crate::exit::Reported;
use crate::interrupt::Interrupt;
use crate::output::{counted, note, printable, say};
use crate::{mounts, progress};

#[cfg(test)]
mod tests;

/// The message of a command that an interrupt ended before the server reported its progress.
const LATE: &str = "cffs rm: interrupted; the server has not answered yet, and ends the removal when its \
                    device answers; files that were removed stay removed";

/// Remove files and trees of a mounted volume
///
/// The volume's server removes them, in one request instead of several for each file. It checks the rights of
/// the caller as the kernel does for rm(1), and the mount shows the change when the command returns. It never
/// asks for confirmation. A file that cannot be removed is reported, and the others are removed. An interrupt
/// ends the command; files that were removed before stay removed.
///
/// A tree in which something is mounted is refused, as are `.` and `..`. Programs with no_new_privs (in
/// sandboxes), or in another network or user namespace, cannot attach to the server: use rm(1) there.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cffs rm -r mnt/experiment
  cffs rm mnt/a mnt/b")]
pub struct Rm {
    /// The files to remove. A symbolic link is removed itself.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Remove directories and everything in them.
    #[arg(short, long)]
    recursive: bool,
    /// Ignore files that do not exist.
    #[arg(short, long)]
    force: bool,
    /// Print nothing but errors.
    #[arg(short, long)]
    quiet: bool,
}

impl Rm {
    /// Removes the files.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let interrupt = Interrupt::hear(LATE.to_owned())?;
        let (mut all, mut has_failed) = (Removed::default(), false);
        for file in &self.files {
            match self.remove(file, &interrupt, &mut all) {
                Ok(is_whole) => has_failed |= !is_whole,
                Err(error) => {
                    note!("cffs rm: {}: {error:#}", shown_path(file));
                    has_failed = true;
                }
            }
            if interrupt.has_arrived() {
                bail!("interrupted; {}", shown(all));
            }
        }
        if !self.quiet {
            say!("{}", shown(all))?;
        }
        if has_failed { Err(Reported.into()) } else { Ok(ExitCode::SUCCESS) }
    }

    /// Removes one of the files. Returns whether nothing of it is left.
    fn remove(
        &self,
        file: &Path,
        interrupt: &Interrupt,
        all: &mut Removed,
    ) -> anyhow::Result<bool> {
        let (directory, name) = split(file)?;
        mounts::passable(directory)?;
        match fs::symlink_metadata(directory.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.force => return Ok(true),
            // As for rm(1), a slash at the end stands for a directory.
            found => {
                if !found?.is_dir() && file.as_os_str().as_bytes().ends_with(b"/") {
                    return Err(io::Error::from(Errno::NOTDIR).into());
                }
            }
        }
        if let Some(mount_point) = mounts::at_or_below(&directory.canonicalize()?, name)? {
            bail!("something is mounted on {}", shown_path(&mount_point));
        }
        let bar = progress::counter("rm", None, "files", self.quiet);
        interrupt.will_clear(&bar);
        let so_far = Cell::new(Removed::default());
        let mut progress = |removed: Removed| {
            so_far.set(removed);
            bar.set_position(all.files + removed.files);
            match interrupt.has_arrived() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        let mut is_whole = true;
        let mut failed = |Failure { path, text, .. }: Failure| {
            is_whole = false;
            let path = directory.join(OsStr::from_bytes(&path));
            bar.suspend(|| note!("cffs rm: {}: {text}", shown_path(&path)));
        };
        let request = RemoveRequest { directory, name: name.as_bytes(), recursive: self.recursive };
        let removed = attached::remove(&request, &mut progress, &mut failed);
        bar.finish_and_clear();
        let counted = removed.as_ref().map_or(so_far.get(), |(removed, _)| *removed);
        all.files += counted.files;
        all.directories += counted.directories;
        let (_, is_complete) = removed.context("not removed completely")?;
        Ok(is_whole && is_complete)
    }
}

fn shown_path(path: &Path) -> String {
    printable(path.as_os_str().as_bytes())
}

/// The directory of a file, and its name there.
fn split(file: &Path) -> anyhow::Result<(&Path, &OsStr)> {
    let bytes = file.as_os_str().as_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let (directory, name) = match bytes[..end].iter().rposition(|byte| *byte == b'/') {
        Some(0) => (&b"/"[..], &bytes[1..end]),
        Some(slash) => (&bytes[..slash], &bytes[slash + 1..end]),
        None => (&b"."[..], &bytes[..end]),
    };
    match name {
        b"" | b"." | b".." => bail!("'.', '..' and '/' are not removed"),
        _ => Ok((Path::new(OsStr::from_bytes(directory)), OsStr::from_bytes(name))),
    }
}

fn shown(removed: Removed) -> String {
    let (files, directories) =
        (counted(removed.files, "file"), counted(removed.directories, "directory"));
    format!("removed {files}, {directories}")
}
