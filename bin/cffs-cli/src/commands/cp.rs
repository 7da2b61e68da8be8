//! `cffs cp`: copies files and trees within a mounted volume at its server, to the names of cp(1).

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use cffs::files::Cloned;
use clap::Args;
use serde_json::json;

use super::clone::{self, Copying, INTERRUPTED};
use crate::exit::Reported;
use crate::output::{self, note, printable, say};

/// Copy files and trees within a mounted volume, as `cp -a` does
///
/// The volume's server copies them, as for cffs-clone(1). Compressed contents are shared: they take more
/// space only when the copy or its source is changed. Other contents are copied. A copy has the modes, times,
/// holes, hard links, extended attributes and ACLs of its source, and its owners if root makes it. Symbolic
/// links are copied as links.
///
/// If the target is a directory, each copy gets the name of its source in it. Otherwise the target is the new
/// name of the only source. Nothing is replaced or merged: if the name of a copy exists, that source is
/// refused, and the others are copied. The first failure in a tree ends the copy of this tree. An interrupt
/// ends the command. Files that were copied before stay.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cffs cp -a mnt/src mnt/experiment
  cffs cp -a mnt/a mnt/b mnt/directory")]
pub struct Cp {
    /// Copy directories with all that they contain, and keep attributes and links. No other copies are made.
    #[arg(short, long, required = true)]
    archive: bool,
    /// The files and directories to copy.
    #[arg(value_name = "SOURCE", required = true)]
    sources: Vec<PathBuf>,
    /// The directory that gets the copies, or the new name of a single one, in the same mount.
    #[arg(value_name = "TARGET", required = true)]
    target: PathBuf,
    /// Print nothing but errors.
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
    /// Print the counts of the copied files as JSON.
    #[arg(long)]
    json: bool,
}

impl Cp {
    /// Makes the copies.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let copying = Copying::begin("cp", self.quiet || self.json)?;
        crate::mounts::passable(&self.target)?;
        let is_directory = self.target.is_dir();
        if self.sources.len() > 1 && !is_directory {
            bail!("{}: not a directory", shown(&self.target));
        }
        let (mut all, mut has_failed) = (Cloned::default(), false);
        for source in &self.sources {
            match self.copy(&copying, source, is_directory) {
                Ok(copied) => add(&mut all, copied),
                Err(error) if copying.is_over() => return Err(error),
                Err(error) => {
                    note!("cffs cp: {error:#}");
                    has_failed = true;
                }
            }
            if copying.is_over() {
                bail!("{INTERRUPTED}");
            }
        }
        if self.json {
            output::json(&json!(all))?;
        } else if !self.quiet {
            say!("{}", clone::summary(all))?;
        }
        if has_failed { Err(Reported.into()) } else { Ok(ExitCode::SUCCESS) }
    }

    fn copy(&self, copying: &Copying, source: &Path, is_directory: bool) -> anyhow::Result<Cloned> {
        if !is_directory {
            let bytes = self.target.as_os_str().as_bytes();
            let is_file = || fs::symlink_metadata(source).is_ok_and(|data| !data.is_dir());
            if bytes.ends_with(b"/") && is_file() {
                bail!("{}: not a directory", shown(&self.target));
            }
            return copying.copy(source, &self.target);
        }
        let name = match source.as_os_str().as_bytes() {
            // Path::file_name ignores the dot.
            bytes if bytes == b"." || bytes.ends_with(b"/.") => None,
            _ => source.file_name(),
        };
        let name = name.with_context(|| {
            format!("{}: not the name of a file; name the target of its copy", shown(source))
        })?;
        copying.copy(source, &self.target.join(name))
    }
}

fn shown(path: &Path) -> String {
    printable(path.as_os_str().as_bytes())
}

fn add(all: &mut Cloned, copied: Cloned) {
    let Cloned { directories, files, symlinks, hard_links, special, bytes } = copied;
    all.directories += directories;
    all.files += files;
    all.symlinks += symlinks;
    all.hard_links += hard_links;
    all.special += special;
    all.bytes += bytes;
}
