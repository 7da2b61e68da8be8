//! `cffs clone`: copies a tree within a mounted volume, or makes a volume in an object store from a version
//! of another.

use std::fs;
use std::os::linux::fs::MetadataExt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use cffs::error::Error;
use cffs::files::{Cloned, Summary};
use cffs_object::versions;
use cffs_serve::served::control::{CloneAtServer, CloneStatus, Stage};
use clap::Args;
use rustix::fs::{Access, access};
use serde_json::json;

use super::import;
use super::snapshot::place;
use crate::interrupt::Interrupt;
use crate::output::{self, say};
use crate::{image, mounts, names, progress, size};

/// The longest interval between queries of a clone's status.
const POLL_INTERVAL_MAX: Duration = Duration::from_millis(100);

/// The message of a command that an interrupt ended.
pub const INTERRUPTED: &str = "interrupted; files that were copied stay";

/// Copy a tree within a mounted volume, or make a volume in an object store from a version of another
///
/// The server of the volume copies a tree. Compressed contents are shared: they take more space only when
/// the copy or its source is changed. Other contents are copied. The copy has the modes, times, holes, hard
/// links, extended attributes and ACLs of its source, and its owners if root makes it. The copy of another
/// user belongs to that user, who must be able to read each file. The first failure or an interrupt ends the
/// clone; files that were copied before stay.
///
/// A clone of a version of a volume in an object store takes four requests, whatever the size: it reads
/// shared data from the objects of its origin, and writes changes to its own place. Changes to one do not
/// affect the other. Shared data is kept until the clone's objects and the version are removed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cffs clone mnt/src mnt/experiment
  cffs snapshot create s3://bucket/tree@monday
  cffs clone s3://bucket/tree@monday s3://bucket/experiment
  cffs mount s3://bucket/experiment mnt")]
pub struct Clone {
    /// The file or directory to copy, or the version to begin as. A symbolic link is copied as a link.
    #[arg(value_name = "SOURCE|URL@NAME")]
    from: PathBuf,
    /// The copy, which must not exist, in the same mount; or the new volume, in the same bucket, or in a
    /// directory next to the origin.
    #[arg(value_name = "TARGET|URL")]
    to: PathBuf,
    /// Print nothing but errors.
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
    /// Print the counts of a copied tree as JSON.
    #[arg(long)]
    json: bool,
}

impl Clone {
    /// Makes the clone.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if image::location(&self.from)?.is_some() || image::location(&self.to)?.is_some() {
            if self.json {
                bail!("--json prints the counts of a copied tree, and a version has none");
            }
            let (from, to) = (place(&self.from)?, place(&self.to)?);
            names::check_unused(&self.to)?;
            versions::clone(&from, &to).with_context(|| self.from.display().to_string())?;
            return Ok(ExitCode::SUCCESS);
        }
        let copying = Copying::begin("clone", self.quiet || self.json)?;
        let cloned = copying.copy(&self.from, &self.to)?;
        if self.json {
            output::json(&json!(cloned))?;
        } else if !self.quiet {
            say!("{}", summary(cloned))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Copies trees at the server of their mount.
pub struct Copying {
    command: &'static str,
    is_quiet: bool,
    interrupt: Interrupt,
}

impl Copying {
    /// For a command, which an interrupt ends.
    pub fn begin(command: &'static str, is_quiet: bool) -> anyhow::Result<Copying> {
        let late = format!(
            "cffs {command}: interrupted; the server has not answered yet, and ends the copy when its device \
             answers; files that were copied stay"
        );
        Ok(Copying { command, is_quiet, interrupt: Interrupt::hear(late)? })
    }

    /// Whether the command was interrupted.
    pub fn is_over(&self) -> bool {
        self.interrupt.has_arrived()
    }

    /// Copies a file or a tree to a path that does not exist, in the same mount.
    pub fn copy(&self, from: &Path, to: &Path) -> anyhow::Result<Cloned> {
        mounts::passable(from)?;
        let source = fs::symlink_metadata(from).with_context(|| from.display().to_string())?;
        let Some(name) = to.file_name() else { bail!("{}: file exists", to.display()) };
        let directory = match to.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        mounts::passable(directory)?;
        let target = fs::metadata(directory).with_context(|| directory.display().to_string())?;
        if source.st_dev() != target.st_dev() {
            bail!("{}: not in the same mount as {}", to.display(), from.display());
        }
        access(directory, Access::WRITE_OK | Access::EXEC_OK)
            .with_context(|| directory.display().to_string())?;
        if fs::symlink_metadata(to).is_ok() {
            bail!("{}: file exists", to.display());
        }
        let clone = CloneAtServer::begin(from, directory, name.as_bytes())
            .with_context(|| from.display().to_string())?;
        let status = self.follow(&clone).with_context(|| from.display().to_string())?;
        match (status.stage, status.failure) {
            (Stage::Done, _) => Ok(status.cloned),
            // Another program has made it meanwhile.
            (_, Some(why)) if why == Error::Exists.to_string() => bail!("{}: {why}", to.display()),
            (_, Some(why)) => bail!("{}: {why}", from.display()),
            (_, None) if self.is_over() => bail!("{}: {INTERRUPTED}", from.display()),
            (_, None) => bail!(
                "{}: ended before it was complete; files that were copied stay",
                from.display()
            ),
        }
    }

    /// Waits until the clone has ended.
    fn follow(&self, clone: &CloneAtServer) -> anyhow::Result<CloneStatus> {
        let bar = progress::counter(self.command, None, "files", self.is_quiet);
        self.interrupt.will_clear(&bar);
        let mut interval = Duration::from_millis(1);
        loop {
            let status =
                clone.status().context("the volume was unmounted before the copy was complete")?;
            bar.set_position(status.cloned.files);
            bar.set_message(size::show(status.cloned.bytes));
            if status.stage != Stage::Running {
                bar.finish_and_clear();
                return Ok(status);
            }
            if self.is_over() {
                clone.stop()?;
            }
            thread::sleep(interval);
            interval = (interval * 2).min(POLL_INTERVAL_MAX);
        }
    }
}

/// The counts of a copy, as text.
pub fn summary(cloned: Cloned) -> String {
    let Cloned { directories, files, symlinks, hard_links, special, bytes } = cloned;
    let failures = 0;
    import::shown(&Summary { files, directories, symlinks, hard_links, special, bytes, failures })
}
